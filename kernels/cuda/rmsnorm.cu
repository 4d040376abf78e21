/* Twin of kernels/cpu/rmsnorm.c.
 *
 * Work split   Forward: one block a row, one pack of 8 elements a thread (four where a row is longer than
 *              512 packs). Backward: RK_TILE_NORM_PARTS blocks of consecutive rows each, so that a thread
 *              keeps its columns' share of dweight in registers; column_finish_kernel adds the parts, 32
 *              columns a block.
 *
 * Traffic      Forward: read x and residual, write y and sum: 8 bytes an element in bf16. Backward: read dy,
 *              x, dresidual, write dx: 8 bytes, and 4 * RK_TILE_NORM_PARTS bytes a column twice. 8192 x 1536:
 *              101 MB, 23 us at 4.3 TB/s.
 *
 * Limits       hidden_size <= 16384 (RK_TILE_NORM_*).
 *
 * Numerics     f32 (f64 for F64). Sums over a row have the order of rk_block_sum over threads that depend on
 *              hidden_size alone, so a row's bits do too. dweight is summed in ascending rows inside a part,
 *              parts in groups of 16: repeatable, but its bits depend on the number of rows.
 *
 * Tried        Loading the next row of the backward pass while this one is reduced: 98 registers, so only two
 *              blocks on an SM. */
#include "kernels/cuda/column_sum.cuh"

struct norm_shape {
    int64_t num_rows, hidden_size;
    bool aligned; /* all rows of all tensors */
};

template <class T> struct norm_fwd {
    T *y, *sum;
    rk_acc<T> *rstd;
    const T *x, *residual, *weight;
    int64_t y_stride, sum_stride, x_stride, residual_stride;
    rk_acc<T> eps;
};

/* s = x (+ residual) of one pack, rounded to T. */
template <class T>
__device__ __forceinline__ rk_pack<T, RK_TILE_PACK> norm_input(const norm_fwd<T> &args, int64_t row,
                                                               int64_t col, int64_t count, bool aligned)
{
    rk_pack<T, RK_TILE_PACK> s = rk_load<RK_TILE_PACK>(args.x + row * args.x_stride + col, count, aligned);

    if (args.residual) {
        rk_pack<T, RK_TILE_PACK> residual =
            rk_load<RK_TILE_PACK>(args.residual + row * args.residual_stride + col, count, aligned);

#pragma unroll
        for (int i = 0; i < RK_TILE_PACK; i++)
            s.set(i, rk_narrow<T>(rk_widen<rk_acc<T>>(s.get(i)) + rk_widen<rk_acc<T>>(residual.get(i))));
        rk_store(args.sum + row * args.sum_stride + col, s, count, aligned);
    }
    return s;
}

template <class T, int PACKS>
__global__ void __launch_bounds__(RK_TILE_NORM_THREADS_MAX)
    rmsnorm_fwd_kernel(norm_fwd<T> args, norm_shape shape)
{
    typedef rk_acc<T> A;
    __shared__ A shared[32];
    rk_pack<T, RK_TILE_PACK> s[PACKS];
    int64_t row = blockIdx.x;
    A sum_sq = 0, rstd;

#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        int64_t col = (int64_t)(p * blockDim.x + threadIdx.x) * RK_TILE_PACK;

        s[p] = norm_input(args, row, col, shape.hidden_size - col, shape.aligned);
    }
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
#pragma unroll
        for (int i = 0; i < RK_TILE_PACK; i++) {
            A value = rk_widen<A>(s[p].get(i));

            sum_sq += value * value;
        }
    }
    rstd = (A)1 / sqrt(rk_block_sum(sum_sq, shared) / (A)shape.hidden_size + args.eps);
    if (args.rstd && threadIdx.x == 0)
        args.rstd[row] = rstd;
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        int64_t col = (int64_t)(p * blockDim.x + threadIdx.x) * RK_TILE_PACK;
        int64_t count = shape.hidden_size - col;
        rk_pack<T, RK_TILE_PACK> weight =
            rk_load<RK_TILE_PACK>(args.weight + col, count, rk_aligned16(args.weight));

#pragma unroll
        for (int i = 0; i < RK_TILE_PACK; i++)
            s[p].set(i, rk_narrow<T>(rk_widen<A>(s[p].get(i)) * rstd * rk_widen<A>(weight.get(i))));
        rk_store(args.y + row * args.y_stride + col, s[p], count, shape.aligned);
    }
}

/* Threads for a row of that many packs, `per_thread` each. */
static int norm_threads(int64_t hidden_size, int per_thread)
{
    int64_t packs = rk_ceil_div(hidden_size, RK_TILE_PACK);

    return (int)(rk_ceil_div(rk_ceil_div(packs, per_thread), 32) * 32);
}

static bool norm_is_wide(int64_t hidden_size)
{
    return norm_threads(hidden_size, 1) > RK_TILE_NORM_THREADS_MAX;
}

static struct rk_status *norm_check(const char *op, struct norm_shape shape)
{
    if (norm_threads(shape.hidden_size, RK_TILE_NORM_PACKS_MAX) > RK_TILE_NORM_THREADS_MAX)
        return RK_FAIL(RK_UNIMPLEMENTED, "%s: hidden_size=%lld, this backend takes at most %d", op,
                       (long long)shape.hidden_size,
                       RK_TILE_NORM_THREADS_MAX * RK_TILE_NORM_PACKS_MAX * RK_TILE_PACK);
    return rk_check_grid(op, shape.num_rows);
}

template <class T>
static void launch_fwd(cudaStream_t stream, const struct rk_rmsnorm_fwd_args *args, norm_shape shape)
{
    norm_fwd<T> fwd = {(T *)args->y.data,
                       (T *)args->sum.data,
                       (rk_acc<T> *)args->rstd.data,
                       (const T *)args->x.data,
                       (const T *)args->residual.data,
                       (const T *)args->weight.data,
                       args->y.row_stride,
                       args->sum.row_stride,
                       args->x.row_stride,
                       args->residual.row_stride,
                       (rk_acc<T>)args->eps};
    unsigned rows = (unsigned)shape.num_rows;

    if (norm_is_wide(shape.hidden_size))
        rmsnorm_fwd_kernel<T, RK_TILE_NORM_PACKS_MAX>
            <<<rows, norm_threads(shape.hidden_size, RK_TILE_NORM_PACKS_MAX), 0, stream>>>(fwd, shape);
    else
        rmsnorm_fwd_kernel<T, 1><<<rows, norm_threads(shape.hidden_size, 1), 0, stream>>>(fwd, shape);
}

extern "C" struct rk_status *rk_cuda_op_rmsnorm_fwd(void *dev, void *stream,
                                                    const struct rk_rmsnorm_fwd_args *args)
{
    norm_shape shape = {
        args->x.shape[0], args->x.shape[1],
        rk_rows_aligned(args->x) && rk_rows_aligned(args->y) &&
            (!args->residual.data || (rk_rows_aligned(args->residual) && rk_rows_aligned(args->sum)))};

    RK_TRY(norm_check("rmsnorm_fwd", shape));
    RK_FOR_DTYPE("rmsnorm_fwd", args->x.dtype, T, launch_fwd<T>(rk_stream_of(stream), args, shape));
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "rmsnorm_fwd");
}

template <class T> struct norm_bwd {
    T *dx;
    rk_acc<T> *parts; /* [RK_TILE_NORM_PARTS, hidden_size] */
    const T *dy, *x, *dresidual, *weight;
    const rk_acc<T> *rstd;
    int64_t dx_stride, dy_stride, x_stride, dresidual_stride;
    int64_t rows_per_part;
};

/* What a thread has of one row. */
template <class T, int PACKS> struct norm_row {
    rk_pack<T, RK_TILE_PACK> dy[PACKS], x[PACKS], dresidual[PACKS];
    rk_acc<T> rstd;
    int64_t idx;
};

template <class T, int PACKS>
__device__ __forceinline__ void norm_load(norm_row<T, PACKS> &out, const norm_bwd<T> &args, norm_shape shape,
                                          int64_t row)
{
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        int64_t col = (int64_t)(p * blockDim.x + threadIdx.x) * RK_TILE_PACK;
        int64_t count = shape.hidden_size - col;

        out.dy[p] = rk_load<RK_TILE_PACK>(args.dy + row * args.dy_stride + col, count, shape.aligned);
        out.x[p] = rk_load<RK_TILE_PACK>(args.x + row * args.x_stride + col, count, shape.aligned);
        if (args.dresidual)
            out.dresidual[p] = rk_load<RK_TILE_PACK>(args.dresidual + row * args.dresidual_stride + col,
                                                     count, shape.aligned);
    }
    out.rstd = args.rstd[row];
    out.idx = row;
}

/* Adds the row's share of dweight and returns the thread's share of sum(g * xhat). */
template <class T, int PACKS>
__device__ __forceinline__ rk_acc<T> norm_products(const norm_row<T, PACKS> &row,
                                                   const rk_pack<T, RK_TILE_PACK> *weight,
                                                   rk_acc<T> (*dweight)[RK_TILE_PACK])
{
    typedef rk_acc<T> A;
    A sum = 0;

#pragma unroll
    for (int p = 0; p < PACKS; p++) {
#pragma unroll
        for (int i = 0; i < RK_TILE_PACK; i++) {
            A dy = rk_widen<A>(row.dy[p].get(i)), xhat = rk_widen<A>(row.x[p].get(i)) * row.rstd;

            dweight[p][i] += dy * xhat;
            sum += dy * rk_widen<A>(weight[p].get(i)) * xhat;
        }
    }
    return sum;
}

template <class T, int PACKS>
__device__ __forceinline__ void norm_store(const norm_row<T, PACKS> &row, const norm_bwd<T> &args,
                                           norm_shape shape, const rk_pack<T, RK_TILE_PACK> *weight,
                                           rk_acc<T> mean)
{
    typedef rk_acc<T> A;

#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        int64_t col = (int64_t)(p * blockDim.x + threadIdx.x) * RK_TILE_PACK;
        rk_pack<T, RK_TILE_PACK> dx = {};

#pragma unroll
        for (int i = 0; i < RK_TILE_PACK; i++) {
            A g = rk_widen<A>(row.dy[p].get(i)) * rk_widen<A>(weight[p].get(i));
            A value = row.rstd * (g - rk_widen<A>(row.x[p].get(i)) * row.rstd * mean);

            if (args.dresidual)
                value += rk_widen<A>(row.dresidual[p].get(i));
            dx.set(i, rk_narrow<T>(value));
        }
        rk_store(args.dx + row.idx * args.dx_stride + col, dx, shape.hidden_size - col, shape.aligned);
    }
}

template <class T, int PACKS>
__global__ void __launch_bounds__(RK_TILE_NORM_THREADS_MAX, PACKS == 1 ? 2 : 1)
    rmsnorm_bwd_kernel(norm_bwd<T> args, norm_shape shape)
{
    typedef rk_acc<T> A;
    __shared__ A shared[32];
    rk_pack<T, RK_TILE_PACK> weight[PACKS];
    norm_row<T, PACKS> row;
    A dweight[PACKS][RK_TILE_PACK] = {};
    int64_t begin = blockIdx.x * args.rows_per_part;
    int64_t end = RK_MIN(begin + args.rows_per_part, shape.num_rows);

#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        int64_t col = (int64_t)(p * blockDim.x + threadIdx.x) * RK_TILE_PACK;

        weight[p] =
            rk_load<RK_TILE_PACK>(args.weight + col, shape.hidden_size - col, rk_aligned16(args.weight));
    }
    for (int64_t r = begin; r < end; r++) {
        A mean;

        norm_load(row, args, shape, r);
        mean = rk_block_sum(norm_products(row, weight, dweight), shared) / (A)shape.hidden_size;
        norm_store(row, args, shape, weight, mean);
    }
#pragma unroll
    for (int p = 0; p < PACKS; p++) {
        int64_t col = (int64_t)(p * blockDim.x + threadIdx.x) * RK_TILE_PACK;

#pragma unroll
        for (int i = 0; i < RK_TILE_PACK; i++) {
            if (col + i < shape.hidden_size)
                args.parts[blockIdx.x * shape.hidden_size + col + i] = dweight[p][i];
        }
    }
}

template <class T>
static void launch_bwd(cudaStream_t stream, const struct rk_rmsnorm_bwd_args *args, norm_shape shape,
                       void *parts)
{
    typedef rk_acc<T> A;
    int64_t rows_per_part = rk_ceil_div(shape.num_rows, RK_TILE_NORM_PARTS);
    int num_parts = (int)rk_ceil_div(shape.num_rows, rows_per_part);
    norm_bwd<T> bwd = {(T *)args->dx.data,
                       (A *)parts,
                       (const T *)args->dy.data,
                       (const T *)args->x.data,
                       (const T *)args->dresidual.data,
                       (const T *)args->weight.data,
                       (const A *)args->rstd.data,
                       args->dx.row_stride,
                       args->dy.row_stride,
                       args->x.row_stride,
                       args->dresidual.row_stride,
                       rows_per_part};

    if (norm_is_wide(shape.hidden_size))
        rmsnorm_bwd_kernel<T, RK_TILE_NORM_PACKS_MAX>
            <<<num_parts, norm_threads(shape.hidden_size, RK_TILE_NORM_PACKS_MAX), 0, stream>>>(bwd, shape);
    else
        rmsnorm_bwd_kernel<T, 1><<<num_parts, norm_threads(shape.hidden_size, 1), 0, stream>>>(bwd, shape);
    launch_column_finish<T, RK_TILE_NORM_PARTS>(stream, args->dweight, (const A *)parts, num_parts);
}

static size_t bwd_parts_bytes(const struct rk_rmsnorm_bwd_args *args)
{
    return RK_TILE_NORM_PARTS * (size_t)args->dy.shape[1] * rk_dtype_bytes(args->rstd.dtype);
}

extern "C" struct rk_workspace rk_cuda_workspace_rmsnorm_bwd(const void *dev,
                                                             const struct rk_rmsnorm_bwd_args *args)
{
    (void)dev;
    return {bwd_parts_bytes(args), 0};
}

extern "C" struct rk_status *rk_cuda_op_rmsnorm_bwd(void *dev, void *stream,
                                                    const struct rk_rmsnorm_bwd_args *args)
{
    struct rk_cuda_stream *on = (struct rk_cuda_stream *)stream;
    norm_shape shape = {args->dy.shape[0], args->dy.shape[1],
                        rk_rows_aligned(args->dy) && rk_rows_aligned(args->x) && rk_rows_aligned(args->dx) &&
                            (!args->dresidual.data || rk_rows_aligned(args->dresidual))};

    RK_TRY(norm_check("rmsnorm_bwd", shape));
    RK_TRY(rk_cuda_reserve(on, &on->scratch, bwd_parts_bytes(args)));
    RK_FOR_DTYPE("rmsnorm_bwd", args->dy.dtype, T, launch_bwd<T>(on->stream, args, shape, on->scratch.data));
    return rk_cuda_launched((struct rk_cuda_device *)dev, on, "rmsnorm_bwd");
}
