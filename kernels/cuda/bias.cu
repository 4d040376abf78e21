/* Twin of kernels/cpu/bias.c.
 *
 * Work split   A block takes 256 columns (a pack of 8 a thread, 32 threads side by side) of one part of the
 *              rows, RK_TILE_BIAS_ROWS rows at a time. There are as many parts as make about
 *              RK_TILE_BIAS_BLOCKS blocks; the block that finishes last of its columns adds them.
 *
 * Traffic      Reads dy; the parts are 1% of that at 8192 rows.
 *
 * Limits       RK_CUDA_COUNTERS * 256 columns.
 *
 * Numerics     f32 (f64 for F64). Of a part, each row of threads adds its rows in ascending order, then these
 *              sums are added in ascending order; so are the parts, whichever block does it. Repeatable; the
 *              bits depend on the shape.
 *
 * Tried        A second kernel for the parts: 1 us slower. Half or twice the blocks, or blocks of 512 and
 * 1024 threads: up to 30% slower at 2048 and 4608 columns. Far from the bound all the same: at these sizes a
 * good part of the time is a launch's beginning and end. */
#include "kernels/cuda/cuda_common.cuh"

/* Threads side by side, and the columns of a block. */
constexpr int LANES = 32;
constexpr int COLS = LANES * RK_TILE_PACK;
constexpr int THREADS = LANES * RK_TILE_BIAS_ROWS;

template <class T, class D> struct bias_sum {
    D *dbias;
    rk_acc<T> *parts; /* [gridDim.y, num_cols] */
    int *counters;    /* [gridDim.x], zero between calls: parts of these columns that are complete */
    const T *dy;
    int64_t stride, num_rows, num_cols, rows_per_part;
    bool aligned;
};

/* This thread's columns of this block's part. */
template <class T, class D>
__device__ __forceinline__ void sum_rows(rk_acc<T> (&sum)[RK_TILE_PACK], const bias_sum<T, D> &args)
{
    int64_t col = (int64_t)blockIdx.x * COLS + threadIdx.x % LANES * RK_TILE_PACK;
    int64_t begin = blockIdx.y * args.rows_per_part;
    int64_t end = RK_MIN(begin + args.rows_per_part, args.num_rows);

#pragma unroll RK_TILE_BIAS_UNROLL
    for (int64_t row = begin + threadIdx.x / LANES; row < end; row += RK_TILE_BIAS_ROWS) {
        rk_pack<T, RK_TILE_PACK> pack =
            rk_load<RK_TILE_PACK>(args.dy + row * args.stride + col, args.num_cols - col, args.aligned);

#pragma unroll
        for (int i = 0; i < RK_TILE_PACK; i++)
            sum[i] += rk_widen<rk_acc<T>>(pack.get(i));
    }
}

/* Whether the other parts of these columns are complete. To be called by all threads. */
__device__ __forceinline__ bool is_last_part(int *counter, bool *shared)
{
    __threadfence(); /* this thread's share of the part, before the count */
    __syncthreads(); /* everyone's */
    if (threadIdx.x == 0)
        *shared = atomicAdd(counter, 1) == (int)gridDim.y - 1;
    __syncthreads(); /* the answer is there */
    __threadfence(); /* the count, before the parts of other blocks are read */
    return *shared;
}

template <class T, class D> __global__ void __launch_bounds__(THREADS) bias_bwd_kernel(bias_sum<T, D> args)
{
    typedef rk_acc<T> A;
    __shared__ A sums[RK_TILE_BIAS_ROWS][COLS];
    __shared__ bool is_last;
    int64_t col = (int64_t)blockIdx.x * COLS + threadIdx.x;
    bool has_col = col < args.num_cols;
    A sum[RK_TILE_PACK] = {}, total = 0;

    rk_wait_for_stream();
    sum_rows(sum, args);
#pragma unroll
    for (int i = 0; i < RK_TILE_PACK; i++)
        sums[threadIdx.x / LANES][threadIdx.x % LANES * RK_TILE_PACK + i] = sum[i];
    __syncthreads(); /* all rows of threads have their sums */
    if (has_col) {
        for (int row = 0; row < RK_TILE_BIAS_ROWS; row++)
            total += sums[row][threadIdx.x];
        __stcg(&args.parts[blockIdx.y * args.num_cols + col], total);
    }
    if (!is_last_part(&args.counters[blockIdx.x], &is_last))
        return;
    if (has_col) {
        total = 0;
#pragma unroll 32
        for (unsigned part = 0; part < gridDim.y; part++)
            total += __ldcg(&args.parts[part * args.num_cols + col]);
        args.dbias[col] = rk_narrow<D>(rk_widen<A>(args.dbias[col]) + total);
    }
    if (threadIdx.x == 0)
        args.counters[blockIdx.x] = 0;
}

/* The largest power of two that gives no more than RK_TILE_BIAS_BLOCKS blocks, within limits. */
static int64_t count_parts(int64_t num_cols)
{
    int64_t wanted = RK_TILE_BIAS_BLOCKS / rk_ceil_div(num_cols, COLS), count = 1;

    while (2 * count <= RK_MIN(wanted, (int64_t)RK_TILE_BIAS_PARTS_MAX))
        count *= 2;
    return count;
}

template <class T, class D>
static void launch_bias(const struct rk_cuda_stream *stream, const struct rk_bias_bwd_args *args)
{
    int64_t num_rows = args->dy.shape[0], num_cols = args->dy.shape[1];
    int64_t rows_per_part = rk_ceil_div(num_rows, count_parts(num_cols));
    dim3 blocks((unsigned)rk_ceil_div(num_cols, COLS), (unsigned)rk_ceil_div(num_rows, rows_per_part));
    bias_sum<T, D> sum = {(D *)args->dbias.data,
                          (rk_acc<T> *)stream->scratch.data,
                          (int *)stream->splits.data,
                          (const T *)args->dy.data,
                          args->dy.row_stride,
                          num_rows,
                          num_cols,
                          rows_per_part,
                          rk_rows_aligned(args->dy)};

    static_assert(THREADS == COLS, "a thread adds the sums of one column");
    rk_launch({stream, blocks, dim3(THREADS), 0}, bias_bwd_kernel<T, D>, sum);
}

template <class T>
static void launch_bias_to(const struct rk_cuda_stream *stream, const struct rk_bias_bwd_args *args)
{
    if (args->dbias.dtype == args->dy.dtype)
        launch_bias<T, T>(stream, args);
    else
        launch_bias<T, float>(stream, args);
}

extern "C" struct rk_workspace rk_cuda_workspace_bias_bwd(const void *dev,
                                                          const struct rk_bias_bwd_args *args)
{
    size_t stat_bytes = args->dy.dtype == RK_DTYPE_F64 ? sizeof(double) : sizeof(float);

    (void)dev;
    return {(size_t)(count_parts(args->dy.shape[1]) * args->dy.shape[1]) * stat_bytes,
            RK_CUDA_COUNTERS * sizeof(int)};
}

extern "C" struct rk_status *rk_cuda_op_bias_bwd(void *dev, void *stream, const struct rk_bias_bwd_args *args)
{
    struct rk_cuda_stream *on = (struct rk_cuda_stream *)stream;
    struct rk_workspace workspace = rk_cuda_workspace_bias_bwd(dev, args);

    if (rk_ceil_div(args->dy.shape[1], COLS) > RK_CUDA_COUNTERS)
        return RK_FAIL(RK_UNIMPLEMENTED, "bias_bwd: %lld columns, this backend takes at most %d",
                       (long long)args->dy.shape[1], RK_CUDA_COUNTERS * COLS);
    RK_TRY(rk_cuda_reserve(on, &on->scratch, workspace.scratch_bytes));
    RK_TRY(rk_cuda_reserve(on, &on->splits, workspace.kept_bytes));
    RK_FOR_DTYPE("bias_bwd", args->dy.dtype, T, launch_bias_to<T>(on, args));
    return rk_cuda_launched((struct rk_cuda_device *)dev, on, "bias_bwd");
}
