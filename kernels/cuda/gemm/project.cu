/* Twin of kernels/cpu/project.c. Gradients of many columns: project_wide.cu.
 *
 * Work split   Forward: a warp takes RK_TILE_PROJECT_FWD_ROWS rows, a lane every 32nd pack of 8 elements of
 *              each; RK_TILE_PROJECT_COLS columns of the scores at a time. Backward: a block takes 256
 *              elements of a row, a pack a lane, of one part of the rows, a row a warp,
 *              RK_TILE_PROJECT_BWD_ROWS of them in flight; a thread writes its pack of dx and keeps its share
 *              of dweight in registers. The number of parts gives about RK_TILE_PROJECT_BLOCKS blocks, and
 *              column_finish_kernel adds them.
 *
 * Traffic      Forward: read x, 2 bytes an element in bf16. Backward: read x, write dx, 4 bytes. The weight
 *              comes from L1. With more than RK_TILE_PROJECT_COLS columns x is read once for each group of so
 *              many columns, from L2 if it fits.
 *
 * Numerics     f32 (f64 for F64). A score is summed by each lane in ascending packs, then by a butterfly: its
 *              bits depend on its row of x and of the weight only. dx is one chain in ascending columns.
 *              dweight: each warp of a part adds its rows in ascending order, then warps, then parts are
 *              added in a fixed order: reproducible, but its bits depend on the number of rows. */
#include "kernels/cuda/column_sum.cuh"
#include "kernels/cuda/gemm/project_wide.h"

constexpr int WARPS = RK_TILE_PROJECT_WARPS;
constexpr int THREADS = 32 * WARPS;
constexpr int COLS = RK_TILE_PROJECT_COLS;
constexpr int SLAB = 32 * RK_TILE_PACK; /* elements of a row that a warp processes at a time */

template <class T> struct project_fwd {
    rk_acc<T> *scores;
    const T *x, *weight, *bias;
    int64_t scores_stride, x_stride, weight_stride;
    int64_t num_rows, num_cols, hidden_size;
    bool aligned; /* all rows of x and of the weight */
};

/* Adds one pack of each row, elements from `col` on, to the sums of columns from first_col on. Columns beyond
 * the last one repeat the last one. */
template <int ROWS, int CO, class T>
__device__ __forceinline__ void project_add(rk_acc<T> (&sum)[ROWS][CO],
                                            const rk_pack<T, RK_TILE_PACK> (&packs)[ROWS],
                                            const project_fwd<T> &args, int64_t first_col, int64_t col)
{
    rk_acc<T> x[ROWS][RK_TILE_PACK];

#pragma unroll
    for (int r = 0; r < ROWS; r++)
        rk_unpack(x[r], packs[r]);
#pragma unroll
    for (int c = 0; c < CO; c++) {
        int64_t column = RK_MIN(first_col + c, args.num_cols - 1);
        rk_acc<T> weight[RK_TILE_PACK];

        rk_unpack(weight, rk_load<RK_TILE_PACK>(args.weight + column * args.weight_stride + col,
                                                args.hidden_size - col, args.aligned));
#pragma unroll
        for (int r = 0; r < ROWS; r++) {
#pragma unroll
            for (int i = 0; i < RK_TILE_PACK; i++)
                sum[r][c] = rk_fma(x[r][i], weight[i], sum[r][c]);
        }
    }
}

/* sum[r][c] = x[first_row + r] . weight[first_col + c], in all lanes. Rows beyond the last one repeat the
 * last one. */
template <int ROWS, int CO, class T>
__device__ __forceinline__ void project_sums(rk_acc<T> (&sum)[ROWS][CO], const project_fwd<T> &args,
                                             int64_t first_row, int64_t first_col)
{
    constexpr int UNROLL = RK_TILE_PROJECT_FWD_UNROLL;

    for (int64_t col = threadIdx.x * RK_TILE_PACK; col < args.hidden_size; col += UNROLL * SLAB) {
        rk_pack<T, RK_TILE_PACK> packs[UNROLL][ROWS];

#pragma unroll
        for (int i = 0; i < UNROLL * ROWS; i++) {
            int64_t row = RK_MIN(first_row + i % ROWS, args.num_rows - 1), at = col + i / ROWS * SLAB;

            packs[i / ROWS][i % ROWS] =
                rk_load<RK_TILE_PACK>(args.x + row * args.x_stride + at, args.hidden_size - at, args.aligned);
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            project_add(sum, packs[u], args, first_col, col + u * SLAB);
    }
#pragma unroll
    for (int i = 0; i < ROWS * CO; i++)
        sum[i / CO][i % CO] = rk_warp_sum(sum[i / CO][i % CO]);
}

template <class T, int CO> __global__ void __launch_bounds__(THREADS) project_fwd_kernel(project_fwd<T> args)
{
    typedef rk_acc<T> A;
    constexpr int ROWS = RK_TILE_PROJECT_FWD_ROWS;
    int64_t first_row = ((int64_t)blockIdx.x * WARPS + threadIdx.y) * ROWS;

    rk_wait_for_stream();
    if (first_row >= args.num_rows)
        return;
    for (int64_t first_col = 0; first_col < args.num_cols; first_col += CO) {
        A sum[ROWS][CO] = {};

        project_sums(sum, args, first_row, first_col);
#pragma unroll
        for (int i = 0; i < ROWS * CO; i++) {
            int64_t row = first_row + i / CO, col = first_col + i % CO;

            if (threadIdx.x == 0 && row < args.num_rows && col < args.num_cols)
                args.scores[row * args.scores_stride + col] =
                    sum[i / CO][i % CO] + (args.bias ? rk_widen<A>(args.bias[col]) : (A)0);
        }
    }
}

template <class T>
static void launch_fwd(const struct rk_cuda_stream *stream, const struct rk_project_fwd_args *args)
{
    project_fwd<T> fwd = {(rk_acc<T> *)args->scores.data,
                          (const T *)args->x.data,
                          (const T *)args->weight.data,
                          (const T *)args->bias.data,
                          args->scores.row_stride,
                          args->x.row_stride,
                          args->weight.row_stride,
                          args->x.shape[0],
                          args->weight.shape[0],
                          args->x.shape[1],
                          rk_rows_aligned(args->x) && rk_rows_aligned(args->weight)};
    unsigned blocks = (unsigned)rk_ceil_div(fwd.num_rows, WARPS * RK_TILE_PROJECT_FWD_ROWS);
    rk_grid grid = {stream, dim3(blocks), dim3(32, WARPS), 0};

    if (fwd.num_cols == 1)
        rk_launch(grid, project_fwd_kernel<T, 1>, fwd);
    else
        rk_launch(grid, project_fwd_kernel<T, COLS>, fwd);
}

extern "C" struct rk_status *rk_cuda_op_project_fwd(void *dev, void *stream,
                                                    const struct rk_project_fwd_args *args)
{
    struct rk_cuda_stream *on = (struct rk_cuda_stream *)stream;

    RK_TRY(rk_check_grid("project_fwd", args->x.shape[0]));
    RK_FOR_DTYPE("project_fwd", args->x.dtype, T, launch_fwd<T>(on, args));
    return rk_cuda_launched((struct rk_cuda_device *)dev, on, "project_fwd");
}

template <class T> struct project_bwd {
    T *dx;
    rk_acc<T> *parts; /* [gridDim.y, num_cols, hidden_size] */
    const rk_acc<T> *dscores;
    const T *x, *weight;
    int64_t dx_stride, dscores_stride, x_stride, weight_stride;
    int64_t num_rows, num_cols, hidden_size, rows_per_part;
    bool aligned; /* all rows of dx, x and the weight */
};

/* One pack of dx. */
template <class T>
__device__ __forceinline__ void project_dx(const project_bwd<T> &args, int64_t row, int64_t col)
{
    rk_acc<T> dx[RK_TILE_PACK] = {};

    for (int64_t c = 0; c < args.num_cols; c++) {
        rk_acc<T> dscore = args.dscores[row * args.dscores_stride + c], weight[RK_TILE_PACK];

        rk_unpack(weight, rk_load<RK_TILE_PACK>(args.weight + c * args.weight_stride + col,
                                                args.hidden_size - col, args.aligned));
#pragma unroll
        for (int i = 0; i < RK_TILE_PACK; i++)
            dx[i] = rk_fma(dscore, weight[i], dx[i]);
    }
    rk_store(args.dx + row * args.dx_stride + col, rk_repack<T>(dx), args.hidden_size - col, args.aligned);
}

/* This thread's contribution to rows first_col .. first_col + CO of dweight; writes dx once. */
template <int CO, class T>
__device__ __forceinline__ void project_rows(rk_acc<T> (&sum)[CO][RK_TILE_PACK], const project_bwd<T> &args,
                                             int64_t first_col, int64_t col)
{
    constexpr int UNROLL = RK_TILE_PROJECT_BWD_ROWS;
    int64_t begin = blockIdx.y * args.rows_per_part;
    int64_t end = RK_MIN(begin + args.rows_per_part, args.num_rows);

    for (int64_t row = begin + threadIdx.y; row < end; row += UNROLL * WARPS) {
        rk_pack<T, RK_TILE_PACK> packs[UNROLL];
        rk_acc<T> dscores[UNROLL][CO];

#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            int64_t at = RK_MIN(row + u * WARPS, end - 1);

            packs[u] = rk_load<RK_TILE_PACK>(args.x + at * args.x_stride + col, args.hidden_size - col,
                                             args.aligned);
#pragma unroll
            for (int c = 0; c < CO; c++)
                dscores[u][c] = row + u * WARPS < end && first_col + c < args.num_cols
                                    ? args.dscores[at * args.dscores_stride + first_col + c]
                                    : (rk_acc<T>)0;
        }
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            rk_acc<T> x[RK_TILE_PACK];

            if (row + u * WARPS >= end)
                break;
            rk_unpack(x, packs[u]);
#pragma unroll
            for (int c = 0; c < CO; c++) {
#pragma unroll
                for (int i = 0; i < RK_TILE_PACK; i++)
                    sum[c][i] = rk_fma(dscores[u][c], x[i], sum[c][i]);
            }
            if (first_col == 0)
                project_dx(args, row + u * WARPS, col);
        }
    }
}

/* Adds the sums of the block's warps in ascending order and writes its part of one row of dweight. */
template <class T>
__device__ __forceinline__ void project_store_part(const project_bwd<T> &args, int64_t column,
                                                   const rk_acc<T> (&sum)[RK_TILE_PACK])
{
    typedef rk_acc<T> A;
    __shared__ A shared[WARPS][SLAB];
    int64_t col = blockIdx.x * (int64_t)SLAB;
    A *part = args.parts + (blockIdx.y * args.num_cols + column) * args.hidden_size + col;
    int thread = (int)(threadIdx.y * 32 + threadIdx.x);

    __syncthreads(); /* the sums of the previous column have been read */
#pragma unroll
    for (int i = 0; i < RK_TILE_PACK; i++)
        shared[threadIdx.y][i * 32 + (int)threadIdx.x] =
            sum[i];  /* of element threadIdx.x * RK_TILE_PACK + i */
    __syncthreads(); /* all warps have written their sums */
    for (int at = thread; at < SLAB && col + at < args.hidden_size; at += THREADS) {
        A total = 0;

#pragma unroll
        for (int warp = 0; warp < WARPS; warp++)
            total += shared[warp][at % RK_TILE_PACK * 32 + at / RK_TILE_PACK];
        part[at] = total;
    }
}

template <class T, int CO> __global__ void __launch_bounds__(THREADS) project_bwd_kernel(project_bwd<T> args)
{
    typedef rk_acc<T> A;
    int64_t col = blockIdx.x * (int64_t)SLAB + threadIdx.x * RK_TILE_PACK;

    rk_wait_for_stream();
    for (int64_t first_col = 0; first_col < args.num_cols; first_col += CO) {
        A sum[CO][RK_TILE_PACK] = {};

        if (col < args.hidden_size)
            project_rows(sum, args, first_col, col);
#pragma unroll
        for (int c = 0; c < CO; c++) {
            if (first_col + c < args.num_cols) /* the same for all threads */
                project_store_part(args, first_col + c, sum[c]);
        }
    }
}

/* The number of parts that gives up to RK_TILE_PROJECT_BLOCKS blocks and at least one row per warp. */
static int64_t count_parts(int64_t num_rows, int64_t hidden_size)
{
    int64_t wanted = RK_TILE_PROJECT_BLOCKS / rk_ceil_div(hidden_size, SLAB);

    return RK_MAX(RK_MIN(wanted, num_rows / WARPS), (int64_t)1);
}

template <class T>
static void launch_bwd(const struct rk_cuda_stream *stream, const struct rk_project_bwd_args *args)
{
    int64_t num_rows = args->x.shape[0], num_cols = args->weight.shape[0], hidden_size = args->x.shape[1];
    int64_t rows_per_part = rk_ceil_div(num_rows, count_parts(num_rows, hidden_size));
    int num_parts = (int)rk_ceil_div(num_rows, rows_per_part);
    project_bwd<T> bwd = {(T *)args->dx.data,
                          (rk_acc<T> *)stream->scratch.data,
                          (const rk_acc<T> *)args->dscores.data,
                          (const T *)args->x.data,
                          (const T *)args->weight.data,
                          args->dx.row_stride,
                          args->dscores.row_stride,
                          args->x.row_stride,
                          args->weight.row_stride,
                          num_rows,
                          num_cols,
                          hidden_size,
                          rows_per_part,
                          rk_rows_aligned(args->dx) && rk_rows_aligned(args->x) &&
                              rk_rows_aligned(args->weight)};
    rk_grid grid = {stream, dim3((unsigned)rk_ceil_div(hidden_size, SLAB), (unsigned)num_parts),
                    dim3(32, WARPS), 0};
    rk_tensor_t dweight = rk_tensor_1d(args->dweight.data, args->dweight.dtype, num_cols * hidden_size);

    if (num_cols == 1)
        rk_launch(grid, project_bwd_kernel<T, 1>, bwd);
    else
        rk_launch(grid, project_bwd_kernel<T, COLS>, bwd);
    launch_column_finish<T, RK_TILE_PROJECT_BLOCKS>(stream, dweight, bwd.parts, num_parts,
                                                    args->overwrites_dweight);
}

static size_t bwd_scratch_bytes(const struct rk_project_bwd_args *args)
{
    int64_t elements = args->weight.shape[0] * args->x.shape[1];

    return (size_t)(count_parts(args->x.shape[0], args->x.shape[1]) * elements) *
           rk_dtype_bytes(args->dscores.dtype);
}

extern "C" struct rk_workspace rk_cuda_workspace_project_bwd(const void *dev,
                                                             const struct rk_project_bwd_args *args)
{
    (void)dev;
    return {rk_project_wide_takes(args) ? rk_project_wide_scratch_bytes(args) : bwd_scratch_bytes(args), 0};
}

static struct rk_status *run_bwd(const struct rk_cuda_stream *stream, const struct rk_project_bwd_args *args)
{
    if (rk_project_wide_takes(args))
        return rk_project_wide_bwd(stream, args);
    RK_FOR_DTYPE("project_bwd", args->x.dtype, T, launch_bwd<T>(stream, args));
    return NULL;
}

extern "C" struct rk_status *rk_cuda_op_project_bwd(void *dev, void *stream,
                                                    const struct rk_project_bwd_args *args)
{
    struct rk_cuda_stream *on = (struct rk_cuda_stream *)stream;
    struct rk_workspace workspace = rk_cuda_workspace_project_bwd(dev, args);

    RK_TRY(rk_check_grid("project_bwd", args->weight.shape[0] * args->x.shape[1]));
    RK_TRY(rk_cuda_reserve(on, &on->scratch, workspace.scratch_bytes));
    RK_TRY(run_bwd(on, args));
    return rk_cuda_launched((struct rk_cuda_device *)dev, on, "project_bwd");
}
