/* Twin of kernels/cpu/bias.c.
 *
 * Work split   A block takes RK_TILE_BIAS_LANES packs of 8 columns, a thread each side by side, of one part
 *              of the rows, RK_TILE_BIAS_ROWS rows at a time. The number of parts gives about
 *              RK_TILE_BIAS_BLOCKS blocks; the last block of its columns to finish adds them.
 *
 * Traffic      Reads dy; the parts are 1% of that at 8192 rows.
 *
 * Measured     H200, bf16, 8192 rows: 10.2 us at 2048 columns (76% of 4.3 TB/s), 20.2 at 4608 (87%). This
 *              includes 2 us for the parts and the launch overhead: reading alone takes 9.4 and 19.6.
 *
 * Limits       RK_CUDA_COUNTERS * 128 columns.
 *
 * Numerics     f32 (f64 for F64). Of a part, each row of threads adds its rows in ascending order, then these
 *              sums are added in ascending order; so are the parts, by any block. Reproducible; the bits
 *              depend on the shape.
 *
 * Tried        In us at 2048 and 4608 columns. Without prefetching rows into L2 while the previous kernel
 *              ends: 11.0 and 21.3; 32 threads side by side, without prefetching: 11.3 and 21.4. More blocks
 *              than fit at once: 14.4 and 25.5; three blocks per SM: 14 and 29. Half as many blocks: 11.8 and
 *              22. Loops whose last rows are loaded one by one: 16.0 and 28.2. A second kernel for the parts:
 *              1 us slower. Clusters of 8 blocks that add their parts in shared memory: 11.5 and 21.8.
 *              Lighter fences around the counter: 0.5 us slower. */
#include "kernels/cuda/column_sum.cuh"

/* Threads in x, and the columns of a thread block. */
constexpr int LANES = RK_TILE_BIAS_LANES;
constexpr int COLS = LANES * RK_TILE_PACK;
constexpr int THREADS = LANES * RK_TILE_BIAS_ROWS;

template <class T, class D> struct bias_sum {
    D *dbias;
    rk_acc<T> *parts; /* [gridDim.x, gridDim.y, COLS] */
    int *counters;    /* [gridDim.x], zero between calls: number of complete parts of these columns */
    const T *dy;
    int64_t stride, num_rows, num_cols, rows_per_part;
    bool aligned;
};

/* Rows that a row of threads adds: every RK_TILE_BIAS_ROWS-th. */
template <class T> struct bias_rows {
    const T *from; /* column 0 of the thread block, row 0 */
    int64_t stride, num_cols, begin, end;
    bool aligned;
};

/* Adds this thread's columns of its rows, in ascending order, with the loads of UNROLL rows in flight and
 * zeros beyond the end. WHOLE: all columns exist and are aligned. */
template <bool WHOLE, int UNROLL, class A, class T>
__device__ __forceinline__ void add_rows(A (&sum)[RK_TILE_PACK], const bias_rows<T> &rows, int lane_col)
{
    int64_t row = rows.begin + threadIdx.x / LANES, step = RK_TILE_BIAS_ROWS * rows.stride;
    const T *from = rows.from + row * rows.stride + lane_col;

    for (; row < rows.end; row += UNROLL * RK_TILE_BIAS_ROWS, from += UNROLL * step) {
        rk_pack<T, RK_TILE_PACK> packs[UNROLL] = {};

#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            if (row + u * RK_TILE_BIAS_ROWS >= rows.end)
                continue;
            if (WHOLE)
                rk_load_words<rk_pack<T, RK_TILE_PACK>::WORDS>(packs[u].word, from + u * step);
            else
                packs[u] = rk_load<RK_TILE_PACK>(from + u * step, rows.num_cols - lane_col, false);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            A values[RK_TILE_PACK];

            rk_unpack(values, packs[u]);
#pragma unroll
            for (int i = 0; i < RK_TILE_PACK; i++)
                sum[i] += values[i];
        }
    }
}

/* Adjacent elements in shared memory are the columns of adjacent threads. */
__device__ __forceinline__ int own_col()
{
    return (int)threadIdx.x % LANES * RK_TILE_PACK + (int)threadIdx.x / LANES;
}

/* Sums the thread block's rows in two steps: those of each row of threads, then these sums. Each of the first
 * COLS threads gets the total of column own_col(). */
template <class A, class T>
__device__ __forceinline__ A bias_total(A (&shared)[RK_TILE_BIAS_ROWS][COLS], bias_rows<T> rows)
{
    int lane_col = (int)threadIdx.x % LANES * RK_TILE_PACK;
    A sum[RK_TILE_PACK] = {}, total = 0;

    if (rows.aligned && rows.num_cols - lane_col >= RK_TILE_PACK)
        add_rows<true, RK_TILE_BIAS_UNROLL>(sum, rows, lane_col);
    else
        add_rows<false, 1>(sum, rows, lane_col);
#pragma unroll
    for (int i = 0; i < RK_TILE_PACK; i++)
        shared[threadIdx.x / LANES][i * LANES + (int)threadIdx.x % LANES] = sum[i];
    __syncthreads(); /* all rows of threads have written their sums */
    if (threadIdx.x >= COLS)
        return 0;
#pragma unroll
    for (int row = 0; row < RK_TILE_BIAS_ROWS; row++)
        total += shared[row][threadIdx.x];
    return total;
}

template <class T, class D>
__global__ void __launch_bounds__(THREADS, RK_TILE_BIAS_PER_SM) bias_bwd_kernel(bias_sum<T, D> args)
{
    typedef rk_acc<T> A;
    __shared__ A shared[RK_TILE_BIAS_ROWS][COLS];
    int64_t first_col = (int64_t)blockIdx.x * COLS, col = first_col + own_col();
    int64_t begin = blockIdx.y * args.rows_per_part;
    int64_t end = RK_MIN(begin + args.rows_per_part, args.num_rows);
    bool has_col = threadIdx.x < COLS && col < args.num_cols;
    A *parts = args.parts + (int64_t)blockIdx.x * gridDim.y * COLS, total, before;

    /* A row a thread. */
    if (threadIdx.x < RK_TILE_BIAS_AHEAD && begin + threadIdx.x < end && args.aligned &&
        first_col + COLS <= args.num_cols)
        rk_prefetch(args.dy + first_col + (begin + threadIdx.x) * args.stride, COLS * (int)sizeof(T));
    rk_wait_for_stream();
    before = has_col ? rk_widen<A>(args.dbias[col]) : (A)0; /* only the last thread block writes it */
    total = bias_total<A, T>(
        shared, {args.dy + first_col, args.stride, args.num_cols - first_col, begin, end, args.aligned});
    if (threadIdx.x < COLS)
        __stcg(&parts[blockIdx.y * COLS + own_col()], total);
    if (!rk_is_last_of(&args.counters[blockIdx.x], (int)gridDim.y))
        return;
    total = bias_total<A, A>(shared, {parts, COLS, COLS, 0, gridDim.y, true});
    if (has_col)
        args.dbias[col] = rk_narrow<D>(before + total);
}

/* The number of parts that gives up to RK_TILE_BIAS_BLOCKS blocks and at least one row per row of threads. */
static int64_t count_parts(int64_t num_rows, int64_t num_cols)
{
    int64_t wanted = RK_TILE_BIAS_BLOCKS / rk_ceil_div(num_cols, COLS);

    return RK_MAX(RK_MIN(wanted, num_rows / RK_TILE_BIAS_ROWS), (int64_t)1);
}

template <class T, class D>
static void launch_bias(const struct rk_cuda_stream *stream, const struct rk_bias_bwd_args *args)
{
    int64_t num_rows = args->dy.shape[0], num_cols = args->dy.shape[1];
    int64_t rows_per_part = rk_ceil_div(num_rows, count_parts(num_rows, num_cols));
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

    static_assert(THREADS >= COLS, "a thread adds the sums of one column");
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
    int64_t num_rows = args->dy.shape[0], num_cols = args->dy.shape[1];
    size_t stat_bytes = args->dy.dtype == RK_DTYPE_F64 ? sizeof(double) : sizeof(float);

    (void)dev;
    return {(size_t)(count_parts(num_rows, num_cols) * rk_ceil_div(num_cols, COLS) * COLS) * stat_bytes,
            RK_CUDA_COUNTERS * sizeof(int)};
}

extern "C" struct rk_status *rk_cuda_op_bias_bwd(void *dev, void *stream, const struct rk_bias_bwd_args *args)
{
    struct rk_cuda_stream *on = (struct rk_cuda_stream *)stream;
    struct rk_workspace workspace = rk_cuda_workspace_bias_bwd(dev, args);

    if (rk_ceil_div(args->dy.shape[1], COLS) > RK_CUDA_COUNTERS)
        return RK_FAIL(RK_UNIMPLEMENTED, "bias_bwd: %lld columns, this backend supports at most %d",
                       (long long)args->dy.shape[1], RK_CUDA_COUNTERS * COLS);
    RK_TRY(rk_cuda_reserve(on, &on->scratch, workspace.scratch_bytes));
    RK_TRY(rk_cuda_reserve(on, &on->splits, workspace.kept_bytes));
    RK_FOR_DTYPE("bias_bwd", args->dy.dtype, T, launch_bias_to<T>(on, args));
    return rk_cuda_launched((struct rk_cuda_device *)dev, on, "bias_bwd");
}
