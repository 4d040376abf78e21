/* Twin of kernels/cpu/rows.c, and of the cache write in kernels/cpu/attn_paged.c: whole rows moved by index.
 *
 * Work split   Blocks of 256 threads, x over the units of a row, y over rows. A unit is 16, 8, 4 or 2 bytes,
 *              the largest that the starts and lengths of all rows are multiples of; 1 byte otherwise.
 *
 * Traffic      Each row is read once and written once; indices come from L1. 8192 rows of 3 KiB on an H200:
 *              11.1 us; keys and values of 8192 tokens, 4 heads of 128: 9.0 us (86% of 4.3 TB/s).
 *
 * Limits       2^31 - 1 blocks of rows.
 *
 * Numerics     None: bytes. A destination out of range is skipped, a source out of range is zeros. */
#include "kernels/cuda/cuda_common.cuh"

/* Rows as addresses. Units of a destination row start at dst + row * dst_stride, in units. */
template <class Unit> struct row_move {
    Unit *dst;
    const Unit *src;
    int64_t dst_stride, src_stride, dst_rows, src_rows, units;
    const int32_t *dst_index, *src_index;
    int64_t num_rows, src_begin;
    const int32_t *count; /* NULL, or the number of rows, up to num_rows */
};

template <class Unit>
__global__ void __launch_bounds__(RK_TILE_FLAT_THREADS) move_rows_kernel(row_move<Unit> move)
{
    int64_t r = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    int64_t dst_row, src_row;
    bool has_src;

    rk_wait_for_stream();
    if (r >= move.num_rows || (move.count && r >= move.count[0]))
        return;
    dst_row = move.dst_index ? move.dst_index[r] : r;
    src_row = move.src_index ? move.src_index[r] - move.src_begin : r;
    has_src = src_row >= 0 && src_row < move.src_rows;
    if (dst_row < 0 || dst_row >= move.dst_rows)
        return;
    for (int64_t u = threadIdx.x; u < move.units; u += blockDim.x) {
        Unit value = {};

        if (has_src)
            value = move.src[src_row * move.src_stride + u];
        move.dst[dst_row * move.dst_stride + u] = value;
    }
}

/* Blocks of 256 threads for rows of that many units: x covers a row, or at least a warp's width of it. */
static dim3 block_of(int64_t units)
{
    unsigned x = 1;

    while (x < 32 && x < units)
        x *= 2;
    if (units > 32)
        x = (unsigned)RK_MIN(rk_ceil_div(units, 32) * 32, (int64_t)RK_TILE_FLAT_THREADS);
    return dim3(x, RK_TILE_FLAT_THREADS / x);
}

/* The largest unit that divides starts and lengths of all rows. */
static size_t unit_bytes(rk_tensor_t a, rk_tensor_t b, size_t row_bytes)
{
    size_t bits = row_bytes | (uintptr_t)a.data | (uintptr_t)b.data |
                  (size_t)a.row_stride * rk_dtype_bytes(a.dtype) |
                  (size_t)b.row_stride * rk_dtype_bytes(b.dtype) | 16;

    return bits & -bits;
}

template <class Unit>
static void launch_move(const struct rk_cuda_stream *stream, const struct rk_cuda_row_move *args,
                        size_t row_bytes)
{
    size_t elem_bytes = rk_dtype_bytes(args->src.dtype);
    row_move<Unit> move = {(Unit *)args->dst.data,
                           (const Unit *)args->src.data,
                           (int64_t)((size_t)args->dst.row_stride * elem_bytes / sizeof(Unit)),
                           (int64_t)((size_t)args->src.row_stride * elem_bytes / sizeof(Unit)),
                           args->dst.shape[0],
                           args->src.shape[0],
                           (int64_t)(row_bytes / sizeof(Unit)),
                           args->dst_index,
                           args->src_index,
                           args->num_rows,
                           args->src_begin,
                           args->count};
    dim3 threads = block_of(move.units);

    rk_launch({stream, dim3((unsigned)rk_ceil_div(move.num_rows, threads.y)), threads, 0},
              move_rows_kernel<Unit>, move);
}

extern "C" struct rk_status *rk_cuda_move_rows(const struct rk_cuda_device *dev,
                                               const struct rk_cuda_stream *stream,
                                               const struct rk_cuda_row_move *move, const char *op)
{
    size_t row_bytes = (size_t)rk_tensor_row_elements(move->src) * rk_dtype_bytes(move->src.dtype);

    RK_TRY(rk_check_grid(op, move->num_rows));
    switch (unit_bytes(move->dst, move->src, row_bytes)) {
    case 16:
        launch_move<uint4>(stream, move, row_bytes);
        break;
    case 8:
        launch_move<uint2>(stream, move, row_bytes);
        break;
    case 4:
        launch_move<uint32_t>(stream, move, row_bytes);
        break;
    case 2:
        launch_move<uint16_t>(stream, move, row_bytes);
        break;
    default:
        launch_move<uint8_t>(stream, move, row_bytes);
        break;
    }
    return rk_cuda_launched(dev, stream, op);
}

extern "C" struct rk_status *rk_cuda_op_gather_rows(void *dev, void *stream, const struct rk_rows_args *args)
{
    struct rk_cuda_row_move move = {};

    move.dst = args->out;
    move.src = args->x;
    move.src_index = (const int32_t *)args->index.data;
    move.num_rows = args->index.shape[0];
    move.count = (const int32_t *)args->count.data;
    return rk_cuda_move_rows((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, &move,
                             "gather_rows");
}

extern "C" struct rk_status *rk_cuda_op_scatter_rows(void *dev, void *stream, const struct rk_rows_args *args)
{
    struct rk_cuda_row_move move = {};

    move.dst = args->out;
    move.src = args->x;
    move.dst_index = (const int32_t *)args->index.data;
    move.num_rows = args->index.shape[0];
    move.count = (const int32_t *)args->count.data;
    return rk_cuda_move_rows((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, &move,
                             "scatter_rows");
}

/* Keys or values of one call, in units. */
template <class Unit> struct kv_part {
    Unit *cache; /* block b, head h, offset o: cache + b * block_stride + (h * block_size + o) * units */
    const Unit *src;
    int64_t src_stride, block_stride;
};

struct kv_shape {
    int64_t num_tokens, num_blocks;
    int num_kv_heads, block_size, units; /* of a head's vector */
};

/* One unit of keys per thread and, if given, the same unit of values. */
template <class Unit, bool HAS_VALUES>
__global__ void __launch_bounds__(RK_TILE_FLAT_THREADS)
    kv_write_kernel(kv_part<Unit> k, kv_part<Unit> v, const int32_t *__restrict__ slots, kv_shape shape)
{
    int64_t token = (int64_t)blockIdx.x * blockDim.y + threadIdx.y;
    int slot, block, offset;

    rk_wait_for_stream();
    if (token >= shape.num_tokens)
        return;
    slot = slots[token];
    block = slot / shape.block_size;
    offset = slot % shape.block_size;
    if (slot < 0 || block >= shape.num_blocks)
        return;
    for (int u = threadIdx.x; u < shape.num_kv_heads * shape.units; u += blockDim.x) {
        int head = u / shape.units, rest = u % shape.units;
        int64_t at = ((int64_t)head * shape.block_size + offset) * shape.units + rest;
        Unit key = k.src[token * k.src_stride + u], value = {};

        if (HAS_VALUES)
            value = v.src[token * v.src_stride + u];
        k.cache[block * k.block_stride + at] = key;
        if (HAS_VALUES)
            v.cache[block * v.block_stride + at] = value;
    }
}

template <class Unit> static kv_part<Unit> part_of(rk_tensor_t cache, rk_tensor_t src)
{
    int64_t per_unit = (int64_t)(sizeof(Unit) / rk_dtype_bytes(src.dtype));

    return {(Unit *)cache.data, (const Unit *)src.data, src.row_stride / per_unit,
            cache.row_stride / per_unit};
}

template <class Unit>
static void launch_kv(const struct rk_cuda_stream *stream, const struct rk_kv_write_args *args)
{
    const int64_t *cache = args->k_cache.shape;
    kv_shape shape = {args->k.shape[0], cache[0], (int)cache[1], (int)cache[2],
                      (int)((size_t)cache[3] * rk_dtype_bytes(args->k.dtype) / sizeof(Unit))};
    dim3 threads = block_of((int64_t)shape.num_kv_heads * shape.units);
    unsigned blocks = (unsigned)rk_ceil_div(shape.num_tokens, threads.y);
    kv_part<Unit> k = part_of<Unit>(args->k_cache, args->k), v = {};

    if (args->v_cache.data)
        v = part_of<Unit>(args->v_cache, args->v);
    rk_launch({stream, dim3(blocks), threads, 0},
              args->v_cache.data ? kv_write_kernel<Unit, true> : kv_write_kernel<Unit, false>, k, v,
              (const int32_t *)args->slot_mapping.data, shape);
}

/* Writes keys, and values of the same shape if given. */
static void write_kv(const struct rk_cuda_stream *stream, const struct rk_kv_write_args *args)
{
    size_t head_bytes = (size_t)args->k.shape[2] * rk_dtype_bytes(args->k.dtype);
    size_t unit = unit_bytes(args->k_cache, args->k, head_bytes);

    if (args->v_cache.data)
        unit = RK_MIN(unit, unit_bytes(args->v_cache, args->v, head_bytes));
    switch (unit) {
    case 16:
        launch_kv<uint4>(stream, args);
        break;
    case 8:
        launch_kv<uint2>(stream, args);
        break;
    case 4:
        launch_kv<uint32_t>(stream, args);
        break;
    default: /* no supported type is smaller */
        launch_kv<uint16_t>(stream, args);
        break;
    }
}

extern "C" struct rk_status *rk_cuda_op_kv_write(void *dev, void *stream, const struct rk_kv_write_args *args)
{
    struct rk_kv_write_args keys = *args, values = *args;

    RK_TRY(rk_check_grid("kv_write", args->k.shape[0]));
    RK_TRY(rk_check_grid("kv_write", args->k.shape[1] * args->k.shape[2]));
    if (!args->v_cache.data || args->k.shape[2] == args->v.shape[2]) {
        write_kv((const struct rk_cuda_stream *)stream, args);
    } else {
        RK_TRY(rk_check_grid("kv_write", args->v.shape[1] * args->v.shape[2]));
        keys.v_cache.data = values.v_cache.data = NULL;
        values.k_cache = args->v_cache;
        values.k = args->v;
        write_kv((const struct rk_cuda_stream *)stream, &keys);
        write_kv((const struct rk_cuda_stream *)stream, &values);
    }
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "kv_write");
}
