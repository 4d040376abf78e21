/* Twin of kernels/cpu/embed.c.
 *
 * Work split   Forward: a row move. Backward: tokens are sorted by (row, t), stably; then one block for 1024
 *              columns of each first occurrence of a row walks the others and adds their gradients in
 *              ascending t.
 *
 * Traffic      Backward: read dout once, read and write the rows of dtable that occur; the sort of 8192
 *              tokens is half a dozen launches, 33 us on an H200. A token that makes up all of a call is one
 *              chain of T rows, four of them in flight.
 *
 * Limits       Fewer than 2^31 tokens and rows.
 *
 * Numerics     f32 (f64 for F64), one rounding. No atomics: the sum of a row is one chain over the call,
 *              which starts with what dtable holds. */
#include <cub/device/device_radix_sort.cuh>

#include "kernels/cuda/cuda_common.cuh"

extern "C" struct rk_status *rk_cuda_op_embed_fwd(void *dev, void *stream,
                                                  const struct rk_embed_fwd_args *args)
{
    struct rk_cuda_row_move move = {};

    move.dst = args->out;
    move.src = args->table;
    move.src_index = (const int32_t *)args->tokens.data;
    move.src_begin = args->vocab_begin;
    move.num_rows = args->out.shape[0];
    return rk_cuda_move_rows((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, &move,
                             "embed_fwd");
}

/* Arrays of num_tokens, then the sort's own memory. */
struct embed_scratch {
    int32_t *rows, *order, *sorted_rows, *sorted_order;
    void *sort;
    size_t sort_bytes, array_bytes;
};

/* The row of each token; num_rows where it is elsewhere, which sorts last. */
__global__ void __launch_bounds__(RK_TILE_FLAT_THREADS)
    embed_rows_kernel(int32_t *__restrict__ rows, int32_t *__restrict__ order,
                      const int32_t *__restrict__ tokens, int32_t num_tokens, int64_t vocab_begin,
                      int32_t num_rows)
{
    int32_t t = (int32_t)(blockIdx.x * RK_TILE_FLAT_THREADS + threadIdx.x);
    int64_t row;

    if (t >= num_tokens)
        return;
    row = tokens[t] - vocab_begin;
    rows[t] = row >= 0 && row < num_rows ? (int32_t)row : num_rows;
    order[t] = t;
}

template <class T, class D> struct embed_sum {
    D *dtable;
    const T *dout;
    const int32_t *rows, *order; /* sorted */
    int64_t dtable_stride, dout_stride, num_cols;
    int32_t num_tokens, num_rows;
    bool table_aligned, dout_aligned;
};

/* Block (i, c): nothing unless sorted token i is the first of its row. */
template <class T, class D>
__global__ void __launch_bounds__(RK_TILE_EMBED_THREADS) embed_bwd_kernel(embed_sum<T, D> args)
{
    typedef rk_acc<T> A;
    int32_t i = (int32_t)blockIdx.x, row = args.rows[i];
    int64_t col = ((int64_t)blockIdx.y * RK_TILE_EMBED_THREADS + threadIdx.x) * RK_TILE_PACK;
    int64_t count = args.num_cols - col;
    rk_pack<D, RK_TILE_PACK> total;
    A sum[RK_TILE_PACK];
    D *at;

    if (row == args.num_rows || (i > 0 && args.rows[i - 1] == row) || count <= 0)
        return;
    at = args.dtable + row * args.dtable_stride + col;
    total = rk_load<RK_TILE_PACK>(at, count, args.table_aligned);
#pragma unroll
    for (int e = 0; e < RK_TILE_PACK; e++)
        sum[e] = rk_widen<A>(total.get(e));
    for (; i < args.num_tokens && args.rows[i] == row; i += RK_TILE_EMBED_UNROLL) {
        rk_pack<T, RK_TILE_PACK> dout[RK_TILE_EMBED_UNROLL];

#pragma unroll
        for (int j = 0; j < RK_TILE_EMBED_UNROLL; j++) {
            bool is_mine = i + j < args.num_tokens && args.rows[i + j] == row;
            int64_t t = is_mine ? args.order[i + j] : 0;

            dout[j] = rk_load<RK_TILE_PACK>(args.dout + t * args.dout_stride + col, is_mine ? count : 0,
                                            args.dout_aligned);
        }
#pragma unroll
        for (int j = 0; j < RK_TILE_EMBED_UNROLL; j++) {
#pragma unroll
            for (int e = 0; e < RK_TILE_PACK; e++)
                sum[e] += rk_widen<A>(dout[j].get(e));
        }
    }
#pragma unroll
    for (int e = 0; e < RK_TILE_PACK; e++)
        total.set(e, rk_narrow<D>(sum[e]));
    rk_store(at, total, count, args.table_aligned);
}

/* Bits of a number up to `largest`. */
static int num_bits(int32_t largest)
{
    int bits = 1;

    while (bits < 31 && largest >> bits)
        bits++;
    return bits;
}

static cudaError_t sort_tokens(const struct embed_scratch *scratch, size_t *sort_bytes, int32_t num_tokens,
                               int32_t num_rows, cudaStream_t stream)
{
    return cub::DeviceRadixSort::SortPairs(scratch->sort, *sort_bytes, scratch->rows, scratch->sorted_rows,
                                           scratch->order, scratch->sorted_order, num_tokens, 0,
                                           num_bits(num_rows), stream);
}

/* *bytes = what the scratch takes; fills its sizes. */
static struct rk_status *size_scratch(struct embed_scratch *out, size_t *bytes, int32_t num_tokens,
                                      int32_t num_rows)
{
    *out = (struct embed_scratch){};
    out->array_bytes = (size_t)rk_ceil_div(num_tokens, 64) * 64 * sizeof(int32_t);
    RK_CUDA(sort_tokens(out, &out->sort_bytes, num_tokens, num_rows, NULL)); /* asks for the size only */
    *bytes = 4 * out->array_bytes + out->sort_bytes;
    return NULL;
}

static struct rk_status *take_scratch(struct rk_cuda_stream *stream, struct embed_scratch *out,
                                      int32_t num_tokens, int32_t num_rows)
{
    size_t bytes;
    char *base;

    RK_TRY(size_scratch(out, &bytes, num_tokens, num_rows));
    RK_TRY(rk_cuda_reserve(stream, &stream->scratch, bytes));
    base = (char *)stream->scratch.data;
    out->rows = (int32_t *)base;
    out->order = (int32_t *)(base + out->array_bytes);
    out->sorted_rows = (int32_t *)(base + 2 * out->array_bytes);
    out->sorted_order = (int32_t *)(base + 3 * out->array_bytes);
    out->sort = base + 4 * out->array_bytes;
    return NULL;
}

template <class T, class D>
static void launch_sum(cudaStream_t stream, const struct rk_embed_bwd_args *args,
                       const struct embed_scratch *scratch)
{
    int64_t num_tokens = args->dout.shape[0], num_cols = args->dout.shape[1];
    dim3 blocks((unsigned)num_tokens, (unsigned)rk_ceil_div(num_cols, RK_TILE_EMBED_THREADS * RK_TILE_PACK));
    embed_sum<T, D> sum = {(D *)args->dtable.data,
                           (const T *)args->dout.data,
                           scratch->sorted_rows,
                           scratch->sorted_order,
                           args->dtable.row_stride,
                           args->dout.row_stride,
                           num_cols,
                           (int32_t)num_tokens,
                           (int32_t)args->dtable.shape[0],
                           rk_rows_aligned(args->dtable),
                           rk_rows_aligned(args->dout)};

    embed_bwd_kernel<T, D><<<blocks, RK_TILE_EMBED_THREADS, 0, stream>>>(sum);
}

template <class T>
static void launch_bwd(cudaStream_t stream, const struct rk_embed_bwd_args *args,
                       const struct embed_scratch *scratch)
{
    if (args->dtable.dtype == args->dout.dtype)
        launch_sum<T, T>(stream, args, scratch);
    else
        launch_sum<T, float>(stream, args, scratch);
}

extern "C" struct rk_workspace rk_cuda_workspace_embed_bwd(const void *dev,
                                                           const struct rk_embed_bwd_args *args)
{
    struct embed_scratch scratch;
    size_t bytes = 0;
    struct rk_status *st =
        size_scratch(&scratch, &bytes, (int32_t)args->dout.shape[0], (int32_t)args->dtable.shape[0]);

    (void)dev;
    RK_IGNORE(st, "the call itself will fail alike");
    return {bytes, 0};
}

extern "C" struct rk_status *rk_cuda_op_embed_bwd(void *dev, void *stream,
                                                  const struct rk_embed_bwd_args *args)
{
    struct rk_cuda_stream *on = (struct rk_cuda_stream *)stream;
    int64_t num_tokens = args->dout.shape[0], num_rows = args->dtable.shape[0];
    unsigned blocks = (unsigned)rk_ceil_div(num_tokens, RK_TILE_FLAT_THREADS);
    struct embed_scratch scratch;

    RK_TRY(rk_check_grid("embed_bwd", num_tokens));
    RK_TRY(rk_check_grid("embed_bwd", num_rows));
    RK_TRY(take_scratch(on, &scratch, (int32_t)num_tokens, (int32_t)num_rows));
    embed_rows_kernel<<<blocks, RK_TILE_FLAT_THREADS, 0, on->stream>>>(
        scratch.rows, scratch.order, (const int32_t *)args->tokens.data, (int32_t)num_tokens,
        args->vocab_begin, (int32_t)num_rows);
    RK_TRY(rk_cuda_launched((struct rk_cuda_device *)dev, on, "embed_bwd"));
    RK_CUDA(sort_tokens(&scratch, &scratch.sort_bytes, (int32_t)num_tokens, (int32_t)num_rows, on->stream));
    RK_FOR_DTYPE("embed_bwd", args->dout.dtype, T, launch_bwd<T>(on->stream, args, &scratch));
    return rk_cuda_launched((struct rk_cuda_device *)dev, on, "embed_bwd");
}
