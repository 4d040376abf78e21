/* Twin of kernels/cpu/rope.c.
 *
 * Work split   One thread for 8 pairs, a pack of the first half of a head and the one head_dim/2
 *              further on, of RK_TILE_ROPE_HEADS heads: they share cos and sin, and all their packs are
 *              in flight at once.
 *
 * Traffic      Read and write x: 4 bytes an element in bf16. cos and sin come from L1 and L2. 8192
 *              tokens of 12 heads of 128: 50 MB, 12 us at 4.3 TB/s.
 *
 * Measured     H200, 8192 tokens: 12 heads 14.8 us (79% of 4.3 TB/s), 28 heads 31.4 us (87%).
 *
 *              Neighbouring pairs (is_interleaved): one thread for a pack of four pairs of one head.
 *
 * Limits       Fewer than 2^31 packs (32-bit division finds token and head); tables without gaps.
 *
 * Numerics     f32, products rounded before they are added. A position outside the tables leaves its row
 *              unchanged.
 *
 * Tried        Without the early start (rk_launch): 16.3 and 32.8 us. Four heads a thread were 4%
 *              slower, one as fast as two. */
#include "kernels/cuda/cuda_common.cuh"

struct rope_shape {
    int64_t row_stride, num_positions, head_dim, begin;
    unsigned num_items, items_per_token, packs_per_half, half, num_heads;
    bool aligned, table_aligned, inverse;
};

/* Eight pairs. */
template <class T> struct rope_pairs {
    rk_pack<T, RK_TILE_PACK> first, second;
};

template <class T>
__device__ __forceinline__ void rotate(rope_pairs<T> &x, const rk_pack<float, RK_TILE_PACK> &cos,
                                       const rk_pack<float, RK_TILE_PACK> &sin, bool inverse)
{
    rk_acc<T> a[RK_TILE_PACK], b[RK_TILE_PACK];

    rk_unpack(a, x.first);
    rk_unpack(b, x.second);
#pragma unroll
    for (int i = 0; i < RK_TILE_PACK; i++) {
        rk_acc<T> c = cos.get(i), s = inverse ? -sin.get(i) : sin.get(i), first = a[i];

        a[i] = first * c - b[i] * s;
        b[i] = b[i] * c + first * s;
    }
    x.first = rk_repack<T>(a);
    x.second = rk_repack<T>(b);
}

template <class T>
__global__ void __launch_bounds__(RK_TILE_FLAT_THREADS)
    rope_kernel(T *__restrict__ x, const float *__restrict__ cos, const float *__restrict__ sin,
                const int32_t *__restrict__ positions, rope_shape shape)
{
    unsigned item = blockIdx.x * RK_TILE_FLAT_THREADS + threadIdx.x;
    unsigned token = item / shape.items_per_token, rest = item % shape.items_per_token;
    unsigned head = rest / shape.packs_per_half * RK_TILE_ROPE_HEADS;
    unsigned col = rest % shape.packs_per_half * RK_TILE_PACK;
    int64_t count = (int64_t)shape.half - col, position;
    rk_pack<float, RK_TILE_PACK> c, s;
    rope_pairs<T> pairs[RK_TILE_ROPE_HEADS];
    T *at;

    rk_wait_for_stream();
    if (item >= shape.num_items)
        return;
    position = positions[token];
    if (position < 0 || position >= shape.num_positions)
        return;
    at = x + token * shape.row_stride + head * shape.head_dim + shape.begin + col;
#pragma unroll
    for (unsigned h = 0; h < RK_TILE_ROPE_HEADS; h++) {
        int64_t exists = head + h < shape.num_heads ? count : 0;

        pairs[h].first = rk_load<RK_TILE_PACK>(at + h * shape.head_dim, exists, shape.aligned);
        pairs[h].second = rk_load<RK_TILE_PACK>(at + h * shape.head_dim + shape.half, exists, shape.aligned);
    }
    c = rk_load<RK_TILE_PACK>(cos + position * shape.half + col, count, shape.table_aligned);
    s = rk_load<RK_TILE_PACK>(sin + position * shape.half + col, count, shape.table_aligned);
#pragma unroll
    for (unsigned h = 0; h < RK_TILE_ROPE_HEADS; h++) {
        int64_t exists = head + h < shape.num_heads ? count : 0;

        rotate(pairs[h], c, s, shape.inverse);
        rk_store(at + h * shape.head_dim, pairs[h].first, exists, shape.aligned);
        rk_store(at + h * shape.head_dim + shape.half, pairs[h].second, exists, shape.aligned);
    }
}

template <class T>
static void launch_rope(const struct rk_cuda_stream *stream, const struct rk_rope_args *args,
                        rope_shape shape)
{
    unsigned blocks = (unsigned)rk_ceil_div(shape.num_items, RK_TILE_FLAT_THREADS);

    rk_launch({stream, dim3(blocks), dim3(RK_TILE_FLAT_THREADS), 0}, rope_kernel<T>, (T *)args->x.data,
              (const float *)args->cos.data, (const float *)args->sin.data,
              (const int32_t *)args->positions.data, shape);
}

/* Adjacent pairs: a pack has four of them. */
template <class T>
__global__ void __launch_bounds__(RK_TILE_FLAT_THREADS)
    rope_neighbours_kernel(T *__restrict__ x, const float *__restrict__ cos, const float *__restrict__ sin,
                           const int32_t *__restrict__ positions, rope_shape shape)
{
    unsigned item = blockIdx.x * RK_TILE_FLAT_THREADS + threadIdx.x;
    unsigned token = item / shape.items_per_token, rest = item % shape.items_per_token;
    unsigned head = rest / shape.packs_per_half, col = rest % shape.packs_per_half * RK_TILE_PACK;
    int64_t count = 2 * (int64_t)shape.half - col, position;
    rk_pack<T, RK_TILE_PACK> pack;
    rk_acc<T> a[RK_TILE_PACK];
    T *at;

    rk_wait_for_stream();
    if (item >= shape.num_items)
        return;
    position = positions[token];
    if (position < 0 || position >= shape.num_positions)
        return;
    at = x + token * shape.row_stride + head * shape.head_dim + shape.begin + col;
    cos += position * shape.half + col / 2;
    sin += position * shape.half + col / 2;
    pack = rk_load<RK_TILE_PACK>(at, count, shape.aligned);
    rk_unpack(a, pack);
#pragma unroll
    for (int i = 0; i < RK_TILE_PACK; i += 2) {
        if (i < count) {
            rk_acc<T> c = cos[i / 2], s = shape.inverse ? -sin[i / 2] : sin[i / 2], first = a[i];

            a[i] = first * c - a[i + 1] * s;
            a[i + 1] = a[i + 1] * c + first * s;
        }
    }
    rk_store(at, rk_repack<T>(a), count, shape.aligned);
}

template <class T>
static void launch_neighbours(const struct rk_cuda_stream *stream, const struct rk_rope_args *args,
                              rope_shape shape)
{
    unsigned blocks = (unsigned)rk_ceil_div(shape.num_items, RK_TILE_FLAT_THREADS);

    rk_launch({stream, dim3(blocks), dim3(RK_TILE_FLAT_THREADS), 0}, rope_neighbours_kernel<T>,
              (T *)args->x.data, (const float *)args->cos.data, (const float *)args->sin.data,
              (const int32_t *)args->positions.data, shape);
}

/* `shape` as for the other pairs, except for the packs. */
static struct rk_status *rotate_neighbours(void *dev, void *stream, const struct rk_rope_args *args,
                                           rope_shape shape)
{
    int64_t packs = rk_ceil_div(args->x.shape[2] - args->begin, RK_TILE_PACK);
    int64_t num_items = args->x.shape[0] * args->x.shape[1] * packs;

    RK_TRY(rk_check_grid("rope", num_items));
    shape.num_items = (unsigned)num_items;
    shape.items_per_token = (unsigned)(args->x.shape[1] * packs);
    shape.packs_per_half = (unsigned)packs;
    RK_FOR_DTYPE("rope", args->x.dtype, T,
                 launch_neighbours<T>((const struct rk_cuda_stream *)stream, args, shape));
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "rope");
}

extern "C" struct rk_status *rk_cuda_op_rope(void *dev, void *stream, const struct rk_rope_args *args)
{
    int64_t half = (args->x.shape[2] - args->begin) / 2, packs = rk_ceil_div(half, RK_TILE_PACK);
    int64_t items_per_token = rk_ceil_div(args->x.shape[1], RK_TILE_ROPE_HEADS) * packs;
    int64_t num_items = args->x.shape[0] * items_per_token;
    rope_shape shape = {};

    RK_TRY(rk_check_grid("rope", num_items));
    if (!rk_tensor_is_contiguous(args->cos) || !rk_tensor_is_contiguous(args->sin))
        return RK_FAIL(RK_UNIMPLEMENTED, "rope: this backend expects contiguous tables");
    shape.row_stride = args->x.row_stride;
    shape.num_positions = args->cos.shape[0];
    shape.num_items = (unsigned)num_items;
    shape.items_per_token = (unsigned)items_per_token;
    shape.packs_per_half = (unsigned)packs;
    shape.half = (unsigned)half;
    shape.head_dim = args->x.shape[2];
    shape.begin = args->begin;
    shape.num_heads = (unsigned)args->x.shape[1];
    /* both halves of every head, and what is in front of them */
    shape.aligned = rk_rows_aligned(args->x) && (size_t)half * rk_dtype_bytes(args->x.dtype) % 16 == 0 &&
                    (size_t)args->begin * rk_dtype_bytes(args->x.dtype) % 16 == 0;
    shape.table_aligned = rk_rows_aligned(args->cos) && rk_rows_aligned(args->sin);
    shape.inverse = args->inverse;
    if (args->is_interleaved)
        return rotate_neighbours(dev, stream, args, shape);
    RK_FOR_DTYPE("rope", args->x.dtype, T, launch_rope<T>((struct rk_cuda_stream *)stream, args, shape));
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "rope");
}
