/* Twin of rope_kv_write in kernels/cpu/rope.c, and of next_tokens in kernels/cpu/rows.c: the operations of a
 * step over a cache between its GEMMs.
 *
 * Work split   rope_kv_write: one thread for 8 pairs of a head of q or k (two packs, half a head apart), or
 *              for the same two packs of a head of v.
 *
 * Traffic      Read and write q and k, read v, write both to the cache. 64 tokens of 12 + 2 + 2 heads of 128:
 *              0.7 MB, so a call takes the time of one launch; separate rope, rope and kv_write take three.
 *
 * Overlap      The next kernel may start at once. With places_are_settled (rk_kernels.h) the kernel loads
 *              positions, slots and tables before the previous kernel has ended.
 *
 * Limits       Fewer than 2^31 packs; tables without gaps. For keys and values with different shapes or
 *              strides the separate operators are used.
 *
 * Numerics     Those of rope.cu. A position outside the tables leaves q and k unchanged; a slot outside the
 *              cache is skipped. */
#include "kernels/cuda/cuda_common.cuh"

struct rope_kv_shape {
    int64_t q_stride, k_stride, v_stride, block_stride, num_positions, num_blocks;
    unsigned num_items, items_per_token, packs_per_half, half, num_heads, num_kv_heads, block_size;
    bool aligned, table_aligned, places_are_settled;
};

template <class T> struct rope_kv_tensors {
    T *q, *k, *k_cache, *v_cache;
    const T *v;
    const float *cos, *sin;
    const int32_t *positions, *slots;
};

/* Two packs of a head, half a head apart. */
template <class T> struct rope_kv_pair {
    rk_pack<T, RK_TILE_PACK> first, second;
};

template <class T>
__device__ __forceinline__ rope_kv_pair<T> load_pair(const T *at, int64_t count, const rope_kv_shape &shape)
{
    return {rk_load<RK_TILE_PACK>(at, count, shape.aligned),
            rk_load<RK_TILE_PACK>(at + shape.half, count, shape.aligned)};
}

template <class T>
__device__ __forceinline__ void store_pair(T *at, const rope_kv_pair<T> &pair, int64_t count,
                                           const rope_kv_shape &shape)
{
    rk_store(at, pair.first, count, shape.aligned);
    rk_store(at + shape.half, pair.second, count, shape.aligned);
}

/* Position of a thread's packs, computed before they are loaded. */
struct rope_kv_place {
    rk_pack<float, RK_TILE_PACK> cos, sin;
    bool rotates;
    int slot;
};

template <class T>
__device__ __forceinline__ rope_kv_place find_place(const rope_kv_tensors<T> &t, unsigned token, unsigned col,
                                                    bool is_value, const rope_kv_shape &shape)
{
    int64_t position = t.positions[token], count = (int64_t)shape.half - col;
    rope_kv_place place = {};

    place.slot = t.slots[token];
    place.rotates = !is_value && position >= 0 && position < shape.num_positions;
    if (place.rotates) {
        place.cos = rk_load<RK_TILE_PACK>(t.cos + position * shape.half + col, count, shape.table_aligned);
        place.sin = rk_load<RK_TILE_PACK>(t.sin + position * shape.half + col, count, shape.table_aligned);
    }
    return place;
}

template <class T> __device__ __forceinline__ void rotate(rope_kv_pair<T> &pair, const rope_kv_place &place)
{
    typedef rk_acc<T> A;

#pragma unroll
    for (int i = 0; i < RK_TILE_PACK; i++) {
        A a = rk_widen<A>(pair.first.get(i)), b = rk_widen<A>(pair.second.get(i));
        A cosine = place.cos.get(i), sine = place.sin.get(i);

        pair.first.set(i, rk_narrow<T>(a * cosine - b * sine));
        pair.second.set(i, rk_narrow<T>(b * cosine + a * sine));
    }
}

/* Address in the cache of columns col.. of a head of this token; NULL when it has no slot. */
template <class T>
__device__ __forceinline__ T *cache_at(T *cache, int slot, unsigned head, unsigned col,
                                       const rope_kv_shape &shape)
{
    int block = slot / (int)shape.block_size, offset = slot % (int)shape.block_size;

    if (slot < 0 || block >= shape.num_blocks)
        return NULL;
    return cache + block * shape.block_stride + ((int64_t)head * shape.block_size + offset) * 2 * shape.half +
           col;
}

template <class T>
__global__ void __launch_bounds__(RK_TILE_FLAT_THREADS)
    rope_kv_write_kernel(rope_kv_tensors<T> t, rope_kv_shape shape)
{
    unsigned item = blockIdx.x * RK_TILE_FLAT_THREADS + threadIdx.x;
    unsigned token = item / shape.items_per_token, rest = item % shape.items_per_token;
    unsigned head = rest / shape.packs_per_half, col = rest % shape.packs_per_half * RK_TILE_PACK;
    unsigned kv_head = (head - shape.num_heads) % shape.num_kv_heads;
    bool is_query = head < shape.num_heads, is_value = head >= shape.num_heads + shape.num_kv_heads;
    int64_t count = (int64_t)shape.half - col;
    rope_kv_place place = {};
    rope_kv_pair<T> pair;
    const T *src;
    T *dst;

    rk_start_next(); /* attention can load old keys meanwhile */
    if (!shape.places_are_settled)
        rk_wait_for_stream();
    if (item < shape.num_items)
        place = find_place(t, token, col, is_value, shape);
    rk_wait_for_stream();
    if (item >= shape.num_items)
        return;
    if (is_query)
        src = t.q + token * shape.q_stride + (int64_t)head * 2 * shape.half + col;
    else
        src = (is_value ? t.v + token * shape.v_stride : t.k + token * shape.k_stride) +
              (int64_t)kv_head * 2 * shape.half + col;
    pair = load_pair(src, count, shape);
    if (place.rotates) {
        rotate(pair, place);
        store_pair(const_cast<T *>(src), pair, count, shape);
    }
    if (is_query)
        return;
    dst = cache_at(is_value ? t.v_cache : t.k_cache, place.slot, kv_head, col, shape);
    if (dst)
        store_pair(dst, pair, count, shape);
}

template <class T>
static void launch_rope_kv(const struct rk_cuda_stream *stream, const struct rk_rope_kv_write_args *args,
                           rope_kv_shape shape)
{
    rope_kv_tensors<T> t = {(T *)args->q.data,
                            (T *)args->kv.k.data,
                            (T *)args->kv.k_cache.data,
                            (T *)args->kv.v_cache.data,
                            (const T *)args->kv.v.data,
                            (const float *)args->cos.data,
                            (const float *)args->sin.data,
                            (const int32_t *)args->positions.data,
                            (const int32_t *)args->kv.slot_mapping.data};

    rk_launch({stream, dim3((unsigned)rk_ceil_div(shape.num_items, RK_TILE_FLAT_THREADS)),
               dim3(RK_TILE_FLAT_THREADS), 0},
              rope_kv_write_kernel<T>, t, shape);
}

static bool all_aligned(const struct rk_rope_kv_write_args *args)
{
    size_t half_bytes = (size_t)args->q.shape[2] / 2 * rk_dtype_bytes(args->q.dtype);

    return rk_rows_aligned(args->q) && rk_rows_aligned(args->kv.k) && rk_rows_aligned(args->kv.v) &&
           rk_rows_aligned(args->kv.k_cache) && rk_rows_aligned(args->kv.v_cache) && half_bytes % 16 == 0;
}

/* For shapes of keys and values that the kernel does not support: runs its parts one after another. */
static struct rk_status *write_in_parts(void *dev, void *stream, const struct rk_rope_kv_write_args *args)
{
    struct rk_rope_args rope = {};

    rope.x = args->q;
    rope.cos = args->cos;
    rope.sin = args->sin;
    rope.positions = args->positions;
    RK_TRY(rk_cuda_op_rope(dev, stream, &rope));
    rope.x = args->kv.k;
    RK_TRY(rk_cuda_op_rope(dev, stream, &rope));
    return rk_cuda_op_kv_write(dev, stream, &args->kv);
}

extern "C" struct rk_status *rk_cuda_op_rope_kv_write(void *dev, void *stream,
                                                      const struct rk_rope_kv_write_args *args)
{
    const struct rk_kv_write_args *kv = &args->kv;
    int64_t half = args->q.shape[2] / 2, packs = rk_ceil_div(half, RK_TILE_PACK);
    int64_t items_per_token = (args->q.shape[1] + 2 * kv->k.shape[1]) * packs;
    rope_kv_shape shape = {};

    if (kv->k_cache.row_stride != kv->v_cache.row_stride || kv->k.shape[2] != kv->v.shape[2])
        return write_in_parts(dev, stream, args);
    RK_TRY(rk_check_grid("rope_kv_write", args->q.shape[0] * items_per_token));
    if (!rk_tensor_is_contiguous(args->cos) || !rk_tensor_is_contiguous(args->sin))
        return RK_FAIL(RK_UNIMPLEMENTED, "rope_kv_write: this backend expects contiguous tables");
    shape.q_stride = args->q.row_stride;
    shape.k_stride = kv->k.row_stride;
    shape.v_stride = kv->v.row_stride;
    shape.block_stride = kv->k_cache.row_stride;
    shape.num_positions = args->cos.shape[0];
    shape.num_blocks = kv->k_cache.shape[0];
    shape.num_items = (unsigned)(args->q.shape[0] * items_per_token);
    shape.items_per_token = (unsigned)items_per_token;
    shape.packs_per_half = (unsigned)packs;
    shape.half = (unsigned)half;
    shape.num_heads = (unsigned)args->q.shape[1];
    shape.num_kv_heads = (unsigned)kv->k.shape[1];
    shape.block_size = (unsigned)kv->k_cache.shape[2];
    shape.aligned = all_aligned(args);
    shape.places_are_settled = args->places_are_settled;
    shape.table_aligned = rk_rows_aligned(args->cos) && rk_rows_aligned(args->sin);
    RK_FOR_DTYPE("rope_kv_write", args->q.dtype, T,
                 launch_rope_kv<T>((const struct rk_cuda_stream *)stream, args, shape));
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "rope_kv_write");
}

/* --- sampled tokens for the next step --- */

__global__ void __launch_bounds__(RK_TILE_FLAT_THREADS)
    next_tokens_kernel(int32_t *__restrict__ tokens, const int32_t *__restrict__ sampled,
                       const int32_t *__restrict__ source, int64_t num_tokens, int64_t num_sampled)
{
    int64_t t = (int64_t)blockIdx.x * RK_TILE_FLAT_THREADS + threadIdx.x;

    rk_wait_for_stream();
    if (t < num_tokens && source[t] >= 0 && source[t] < num_sampled)
        tokens[t] = sampled[source[t]];
}

extern "C" struct rk_status *rk_cuda_op_next_tokens(void *dev, void *stream,
                                                    const struct rk_next_tokens_args *args)
{
    int64_t num_tokens = args->tokens.shape[0], blocks = rk_ceil_div(num_tokens, RK_TILE_FLAT_THREADS);

    RK_TRY(rk_check_grid("next_tokens", blocks));
    rk_launch({(const struct rk_cuda_stream *)stream, dim3((unsigned)blocks), dim3(RK_TILE_FLAT_THREADS), 0},
              next_tokens_kernel, (int32_t *)args->tokens.data, (const int32_t *)args->sampled.data,
              (const int32_t *)args->source.data, num_tokens, args->sampled.shape[0]);
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "next_tokens");
}
