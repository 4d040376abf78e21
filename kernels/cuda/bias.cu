/* Twin of kernels/cpu/bias.c.
 *
 * Work split   A block takes 256 columns (a pack of 8 a thread, 32 threads side by side) of one part of the
 *              rows, and 8 of its rows at a time; RK_TILE_BIAS_PARTS parts, which column_finish_kernel adds.
 *
 * Traffic      Reads dy; the parts are 1% of that at 8192 rows. 8192 x 2048 in bf16: 34 MB, 8 us at 4.3 TB/s.
 *
 * Limits       2^31 - 1 blocks.
 *
 * Numerics     f32 (f64 for F64). Of a part, each of the 8 rows of threads adds its rows in ascending order,
 *              then they are added in ascending order, then the parts are: repeatable, and a column's bits
 *              depend on the number of rows alone. */
#include "kernels/cuda/column_sum.cuh"

/* Threads of a block: columns by rows. */
constexpr int LANES = 32;
constexpr int ROWS = RK_TILE_FLAT_THREADS / LANES;
constexpr int COLS = LANES * RK_TILE_PACK;

template <class T> struct bias_rows {
    const T *dy;
    int64_t stride, num_rows, num_cols, rows_per_part;
    bool aligned;
};

template <class T>
__global__ void __launch_bounds__(RK_TILE_FLAT_THREADS)
    bias_parts_kernel(rk_acc<T> *__restrict__ parts, bias_rows<T> in)
{
    typedef rk_acc<T> A;
    __shared__ A sums[ROWS][COLS];
    int lane = threadIdx.x % LANES, first = threadIdx.x / LANES;
    int64_t col = (int64_t)blockIdx.x * COLS + lane * RK_TILE_PACK;
    int64_t end = RK_MIN((blockIdx.y + 1) * in.rows_per_part, in.num_rows);
    A sum[RK_TILE_PACK] = {};

    rk_wait_for_stream();
#pragma unroll 4
    for (int64_t row = blockIdx.y * in.rows_per_part + first; row < end; row += ROWS) {
        rk_pack<T, RK_TILE_PACK> pack =
            rk_load<RK_TILE_PACK>(in.dy + row * in.stride + col, in.num_cols - col, in.aligned);

#pragma unroll
        for (int i = 0; i < RK_TILE_PACK; i++)
            sum[i] += rk_widen<A>(pack.get(i));
    }
#pragma unroll
    for (int i = 0; i < RK_TILE_PACK; i++)
        sums[first][lane * RK_TILE_PACK + i] = sum[i];
    __syncthreads(); /* the rows of threads have their sums */
    col = (int64_t)blockIdx.x * COLS + threadIdx.x;
    if (col >= in.num_cols)
        return;
    for (int row = 1; row < ROWS; row++)
        sums[0][threadIdx.x] += sums[row][threadIdx.x];
    parts[blockIdx.y * in.num_cols + col] = sums[0][threadIdx.x];
}

template <class T>
static void launch_bias(const struct rk_cuda_stream *stream, const struct rk_bias_bwd_args *args,
                        void *scratch)
{
    int64_t num_rows = args->dy.shape[0], num_cols = args->dy.shape[1];
    int64_t rows_per_part = rk_ceil_div(num_rows, RK_TILE_BIAS_PARTS);
    int num_parts = (int)rk_ceil_div(num_rows, rows_per_part);
    dim3 blocks((unsigned)rk_ceil_div(num_cols, COLS), (unsigned)num_parts);
    bias_rows<T> in = {(const T *)args->dy.data, args->dy.row_stride, num_rows, num_cols, rows_per_part,
                       rk_rows_aligned(args->dy)};
    rk_acc<T> *parts = (rk_acc<T> *)scratch;

    static_assert(COLS == RK_TILE_FLAT_THREADS, "a thread of the block stores one column");
    rk_launch({stream, blocks, dim3(RK_TILE_FLAT_THREADS), 0}, bias_parts_kernel<T>, parts, in);
    launch_column_finish<T, RK_TILE_BIAS_PARTS>(stream, args->dbias, parts, num_parts);
}

static size_t parts_bytes(const struct rk_bias_bwd_args *args)
{
    size_t sum_bytes = args->dy.dtype == RK_DTYPE_F64 ? sizeof(double) : sizeof(float);

    return RK_TILE_BIAS_PARTS * (size_t)args->dy.shape[1] * sum_bytes;
}

extern "C" struct rk_workspace rk_cuda_workspace_bias_bwd(const void *dev,
                                                          const struct rk_bias_bwd_args *args)
{
    (void)dev;
    return {parts_bytes(args), 0};
}

extern "C" struct rk_status *rk_cuda_op_bias_bwd(void *dev, void *stream, const struct rk_bias_bwd_args *args)
{
    struct rk_cuda_stream *on = (struct rk_cuda_stream *)stream;
    int64_t num_cols = args->dy.shape[1];

    RK_TRY(rk_check_grid("bias_bwd", rk_ceil_div(num_cols, COLS)));
    RK_TRY(rk_cuda_reserve(on, &on->scratch, parts_bytes(args)));
    RK_FOR_DTYPE("bias_bwd", args->dy.dtype, T, launch_bias<T>(on, args, on->scratch.data));
    return rk_cuda_launched((struct rk_cuda_device *)dev, on, "bias_bwd");
}
