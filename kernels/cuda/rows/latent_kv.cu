/* Twin of kernels/cpu/latent_kv.c.
 *
 * Work split   Keys and values, forward and backward: blocks of 256 threads, one thread per unit of a head's
 *              row; a unit is 16, 8, 4, 2 or 1 bytes, the largest that widths, starts and strides are
 *              multiples of. The sum over the heads: one thread per column of a token. Blocks of a cache: one
 *              thread block per cache block.
 *
 * Traffic      Every element is read once and written once: 8192 tokens of 16 heads of 192 and 128 in bf16
 *              are 84 MB written. The shared part is read once per head, from L2.
 *
 * Limits       2^31 - 1 blocks of threads.
 *
 * Numerics     The sum is f32 (f64 for F64), in the order of the heads, rounded once. A block outside the
 *              cache becomes zeros. */
#include "kernels/cuda/cuda_common.cuh"

namespace
{

/* [T, heads, width] or [T / block_size, heads, block_size, width], in units. */
template <class Unit> struct head_rows {
    Unit *data;
    int64_t row_stride;
    int width, block_size; /* block_size 0: the first */

    __device__ Unit *at(int64_t t, int64_t h) const
    {
        if (block_size == 0)
            return data + t * row_stride + h * width;
        return data + t / block_size * row_stride + (h * block_size + t % block_size) * width;
    }
};

/* Keys [nope, rope], values, and the GEMM's result with a part of both, [nope, v]. */
template <class Unit> struct kv_parts {
    head_rows<Unit> k, v, kv;
    const Unit *rope;
    int64_t rope_stride, num_rows; /* tokens times heads */
    int heads, nope, rope_dim;
};

template <class Unit>
__global__ void __launch_bounds__(RK_TILE_FLAT_THREADS) latent_kv_kernel(kv_parts<Unit> p)
{
    int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, t = row / p.heads, h = row % p.heads;
    const Unit *kv;
    Unit *key, *value;

    rk_wait_for_stream();
    if (row >= p.num_rows)
        return;
    kv = p.kv.at(t, h);
    key = p.k.at(t, h);
    value = p.v.at(t, h);
    for (int u = threadIdx.x; u < p.nope + p.rope_dim; u += blockDim.x)
        key[u] = u < p.nope ? kv[u] : p.rope[t * p.rope_stride + u - p.nope];
    for (int u = threadIdx.x; u < p.v.width; u += blockDim.x)
        value[u] = kv[p.nope + u];
}

template <class Unit>
__global__ void __launch_bounds__(RK_TILE_FLAT_THREADS) latent_dkv_kernel(kv_parts<Unit> p)
{
    int64_t row = (int64_t)blockIdx.x * blockDim.y + threadIdx.y, t = row / p.heads, h = row % p.heads;
    const Unit *key, *value;
    Unit *kv;

    rk_wait_for_stream();
    if (row >= p.num_rows)
        return;
    kv = p.kv.at(t, h);
    key = p.k.at(t, h);
    value = p.v.at(t, h);
    for (int u = threadIdx.x; u < p.kv.width; u += blockDim.x)
        kv[u] = u < p.nope ? key[u] : value[u - p.nope];
}

/* drope[t][c] = sum over h of dk[t][h][nope + c]. */
template <class T> struct rope_sum {
    T *drope;
    const T *dk;
    int64_t drope_stride, dk_stride, num_items;
    int heads, head_dim, rope_dim;
};

template <class T> __global__ void __launch_bounds__(RK_TILE_FLAT_THREADS) latent_drope_kernel(rope_sum<T> p)
{
    int64_t item = (int64_t)blockIdx.x * RK_TILE_FLAT_THREADS + threadIdx.x, t = item / p.rope_dim;
    int c = (int)(item % p.rope_dim);
    rk_acc<T> sum = 0;
    const T *at;

    rk_wait_for_stream();
    if (item >= p.num_items)
        return;
    at = p.dk + t * p.dk_stride + p.head_dim - p.rope_dim + c;
    for (int h = 0; h < p.heads; h++)
        sum += rk_widen<rk_acc<T>>(at[(int64_t)h * p.head_dim]);
    p.drope[t * p.drope_stride + c] = rk_narrow<T>(sum);
}

template <class Unit> struct block_copy {
    Unit *out;
    const Unit *cache;
    int32_t *numbers;
    const int32_t *table;
    int64_t cache_stride, table_stride, num_blocks, units;
    int max_blocks;
};

template <class Unit>
__global__ void __launch_bounds__(RK_TILE_FLAT_THREADS) gather_blocks_kernel(block_copy<Unit> p)
{
    int64_t i = blockIdx.x, block;

    rk_wait_for_stream();
    block = p.table[i / p.max_blocks * p.table_stride + i % p.max_blocks];
    if (threadIdx.x == 0)
        p.numbers[i] = (int32_t)i;
    for (int64_t u = threadIdx.x; u < p.units; u += RK_TILE_FLAT_THREADS) {
        Unit value = {};

        if (block >= 0 && block < p.num_blocks)
            value = p.cache[block * p.cache_stride + u];
        p.out[i * p.units + u] = value;
    }
}

/* The union of the bits of address, stride and width of a tensor's heads. */
size_t head_bits(rk_tensor_t t)
{
    size_t element = rk_dtype_bytes(t.dtype);

    return (uintptr_t)t.data | (size_t)t.row_stride * element | (size_t)t.shape[t.rank - 1] * element;
}

/* The largest power of two up to 16 that divides all of them. */
size_t unit_of(size_t bits)
{
    bits |= 16;
    return bits & -bits;
}

template <class Unit> head_rows<Unit> rows_of(rk_tensor_t t)
{
    int64_t per_unit = (int64_t)(sizeof(Unit) / rk_dtype_bytes(t.dtype));

    return {(Unit *)t.data, t.row_stride / per_unit, (int)(t.shape[t.rank - 1] / per_unit),
            t.rank == 4 ? (int)t.shape[2] : 0};
}

template <class Unit> kv_parts<Unit> parts_of(rk_tensor_t k, rk_tensor_t v, rk_tensor_t kv, rk_tensor_t rope)
{
    int64_t per_unit = (int64_t)(sizeof(Unit) / rk_dtype_bytes(kv.dtype));
    kv_parts<Unit> p = {};

    p.k = rows_of<Unit>(k);
    p.v = rows_of<Unit>(v);
    p.kv = rows_of<Unit>(kv);
    p.rope = (const Unit *)rope.data;
    p.rope_stride = rope.row_stride / per_unit;
    p.rope_dim = (int)(rope.shape[1] / per_unit);
    p.num_rows = kv.shape[0] * kv.shape[1];
    p.heads = (int)kv.shape[1];
    p.nope = p.kv.width - p.v.width;
    return p;
}

template <class Unit>
void launch_parts(const struct rk_cuda_stream *stream, const kv_parts<Unit> &p, bool is_forward)
{
    unsigned x = p.kv.width < 32 ? 8 : 32;
    dim3 threads(x, RK_TILE_FLAT_THREADS / x);
    dim3 blocks((unsigned)rk_ceil_div(p.num_rows, threads.y));

    if (is_forward)
        rk_launch({stream, blocks, threads, 0}, latent_kv_kernel<Unit>, p);
    else
        rk_launch({stream, blocks, threads, 0}, latent_dkv_kernel<Unit>, p);
}

void launch_kv(const struct rk_cuda_stream *stream, rk_tensor_t k, rk_tensor_t v, rk_tensor_t kv,
               rk_tensor_t rope, bool is_forward)
{
    switch (unit_of(head_bits(k) | head_bits(v) | head_bits(kv) | head_bits(rope))) {
    case 16:
        return launch_parts(stream, parts_of<uint4>(k, v, kv, rope), is_forward);
    case 8:
        return launch_parts(stream, parts_of<uint2>(k, v, kv, rope), is_forward);
    case 4:
        return launch_parts(stream, parts_of<uint32_t>(k, v, kv, rope), is_forward);
    default:
        return launch_parts(stream, parts_of<uint16_t>(k, v, kv, rope), is_forward);
    }
}

template <class T>
void launch_drope(const struct rk_cuda_stream *stream, const struct rk_latent_kv_bwd_args *args)
{
    rope_sum<T> p = {};

    p.drope = (T *)args->drope.data;
    p.dk = (const T *)args->dk.data;
    p.drope_stride = args->drope.row_stride;
    p.dk_stride = args->dk.row_stride;
    p.num_items = args->drope.shape[0] * args->drope.shape[1];
    p.heads = (int)args->dk.shape[1];
    p.head_dim = (int)args->dk.shape[2];
    p.rope_dim = (int)args->drope.shape[1];
    rk_launch({stream, dim3((unsigned)rk_ceil_div(p.num_items, RK_TILE_FLAT_THREADS)),
               dim3(RK_TILE_FLAT_THREADS), 0},
              latent_drope_kernel<T>, p);
}

template <class Unit>
void launch_blocks(const struct rk_cuda_stream *stream, const struct rk_gather_blocks_args *args)
{
    int64_t per_unit = (int64_t)(sizeof(Unit) / rk_dtype_bytes(args->cache.dtype));
    block_copy<Unit> p = {};

    p.out = (Unit *)args->out.data;
    p.cache = (const Unit *)args->cache.data;
    p.numbers = (int32_t *)args->numbers.data;
    p.table = (const int32_t *)args->block_table.data;
    p.cache_stride = args->cache.row_stride / per_unit;
    p.table_stride = args->block_table.row_stride;
    p.num_blocks = args->cache.shape[0];
    p.units = rk_tensor_row_elements(args->cache) / per_unit;
    p.max_blocks = (int)args->block_table.shape[1];
    rk_launch({stream, dim3((unsigned)args->out.shape[0]), dim3(RK_TILE_FLAT_THREADS), 0},
              gather_blocks_kernel<Unit>, p);
}

} // namespace

extern "C" struct rk_status *rk_cuda_op_latent_kv(void *dev, void *stream,
                                                  const struct rk_latent_kv_args *args)
{
    RK_TRY(rk_check_grid("latent_kv", args->kv.shape[0] * args->kv.shape[1]));
    launch_kv((const struct rk_cuda_stream *)stream, args->k, args->v, args->kv, args->rope, true);
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "latent_kv");
}

extern "C" struct rk_status *rk_cuda_op_latent_kv_bwd(void *dev, void *stream,
                                                      const struct rk_latent_kv_bwd_args *args)
{
    RK_TRY(rk_check_grid("latent_kv_bwd", args->dkv.shape[0] * args->dkv.shape[1]));
    launch_kv((const struct rk_cuda_stream *)stream, args->dk, args->dv, args->dkv, args->drope, false);
    RK_FOR_DTYPE("latent_kv_bwd", args->dkv.dtype, T,
                 launch_drope<T>((const struct rk_cuda_stream *)stream, args));
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "latent_kv_bwd");
}

extern "C" struct rk_status *rk_cuda_op_gather_blocks(void *dev, void *stream,
                                                      const struct rk_gather_blocks_args *args)
{
    const struct rk_cuda_stream *cuda_stream = (const struct rk_cuda_stream *)stream;
    size_t element = rk_dtype_bytes(args->cache.dtype);

    RK_TRY(rk_check_grid("gather_blocks", args->out.shape[0]));
    switch (unit_of((uintptr_t)args->out.data | (uintptr_t)args->cache.data |
                    (size_t)args->cache.row_stride * element |
                    (size_t)rk_tensor_row_elements(args->cache) * element)) {
    case 16:
        launch_blocks<uint4>(cuda_stream, args);
        break;
    case 8:
        launch_blocks<uint2>(cuda_stream, args);
        break;
    case 4:
        launch_blocks<uint32_t>(cuda_stream, args);
        break;
    default:
        launch_blocks<uint16_t>(cuda_stream, args);
        break;
    }
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "gather_blocks");
}
