/* Sums over the rows of a tensor in one launch: every thread block writes the sums of its own rows to memory,
 * and the last one to finish adds them, in an order that does not depend on which block is last. */
#ifndef RK_CUDA_COLUMN_SUM_CUH
#define RK_CUDA_COLUMN_SUM_CUH

#include "kernels/cuda/cuda_common.cuh"

/* Counts this thread block in `counter`, which goes from 0 to `count` and is reset to 0. Returns whether it
 * is the last one: then earlier writes of the other blocks are visible to all of its threads. Call it on all
 * threads. */
__device__ __forceinline__ bool rk_is_last_of(int *counter, int count)
{
    __shared__ bool is_last;

    __syncthreads(); /* all threads have written; all have read the previous result */
    if (threadIdx.x == 0 && threadIdx.y == 0) {
        __threadfence(); /* publishes the block's part before the count */
        is_last = atomicAdd(counter, 1) == count - 1;
        if (is_last)
            *counter = 0;
        __threadfence(); /* orders the count before reading the parts of others */
    }
    __syncthreads(); /* the result is written */
    return is_last;
}

/* out[col] += (or =) sum of parts[0 .. num_parts)[col], num_parts <= RK_TILE_COLUMN_ROWS * RUN. Thread (x, y)
 * adds every RK_TILE_COLUMN_ROWS-th part of column x; thread (x, 0) then these sums. */
template <class A, class D, int RUN>
__global__ void __launch_bounds__(32 * RK_TILE_COLUMN_ROWS)
    column_finish_kernel(D *__restrict__ out, const A *__restrict__ parts, int num_parts, int64_t num_cols,
                         bool overwrites)
{
    __shared__ A sums[RK_TILE_COLUMN_ROWS][32];
    int64_t col = (int64_t)blockIdx.x * 32 + threadIdx.x;
    A values[RUN], sum = 0, before = 0;

    rk_start_next();
    rk_wait_for_stream();
    if (threadIdx.y == 0 && col < num_cols && !overwrites)
        before = rk_widen<A>(out[col]);
#pragma unroll
    for (int i = 0; i < RUN; i++) {
        int part = i * RK_TILE_COLUMN_ROWS + threadIdx.y;

        values[i] = part < num_parts && col < num_cols ? parts[part * num_cols + col] : (A)0;
    }
#pragma unroll
    for (int i = 0; i < RUN; i++)
        sum += values[i];
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads(); /* all sums of a column are written */
    if (threadIdx.y > 0 || col >= num_cols)
        return;
    sum = 0;
#pragma unroll
    for (int i = 0; i < RK_TILE_COLUMN_ROWS; i++)
        sum += sums[i][threadIdx.x];
    out[col] = rk_narrow<D>(before + sum);
}

/* `out` is F32 or of type T. */
template <class T, int MAX_PARTS>
static void launch_column_finish(const struct rk_cuda_stream *stream, rk_tensor_t out, const rk_acc<T> *parts,
                                 int num_parts, bool overwrites = false)
{
    typedef rk_acc<T> A;
    constexpr int RUN = (MAX_PARTS + RK_TILE_COLUMN_ROWS - 1) / RK_TILE_COLUMN_ROWS;
    int64_t num_cols = out.shape[0];
    rk_grid grid = {stream, dim3((unsigned)rk_ceil_div(num_cols, 32)), dim3(32, RK_TILE_COLUMN_ROWS), 0};

    if (out.dtype == RK_DTYPE_F32)
        rk_launch(grid, column_finish_kernel<A, float, RUN>, (float *)out.data, parts, num_parts, num_cols,
                  overwrites);
    else
        rk_launch(grid, column_finish_kernel<A, T, RUN>, (T *)out.data, parts, num_parts, num_cols,
                  overwrites);
}

#endif
