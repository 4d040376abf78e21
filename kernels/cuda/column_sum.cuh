/* The second stage of sums over the rows of a tensor: adds partial sums, column by column, in a fixed order.
 */
#ifndef RK_CUDA_COLUMN_SUM_CUH
#define RK_CUDA_COLUMN_SUM_CUH

#include "kernels/cuda/cuda_common.cuh"

/* out[col] += sum of parts[0 .. num_parts)[col], num_parts <= 32 * RUN. Thread (x, y) adds RUN parts of
 * column x; thread (x, 0) then the 32 sums. */
template <class A, class D, int RUN>
__global__ void __launch_bounds__(RK_TILE_COLUMN_FINISH *RK_TILE_COLUMN_FINISH)
    column_finish_kernel(D *__restrict__ out, const A *__restrict__ parts, int num_parts, int64_t num_cols)
{
    __shared__ A sums[RK_TILE_COLUMN_FINISH][RK_TILE_COLUMN_FINISH + 1];
    int64_t col = (int64_t)blockIdx.x * RK_TILE_COLUMN_FINISH + threadIdx.x;
    A sum = 0;

#pragma unroll
    for (int i = 0; i < RUN; i++) {
        int part = threadIdx.y * RUN + i;

        sum += part < num_parts && col < num_cols ? parts[part * num_cols + col] : (A)0;
    }
    sums[threadIdx.y][threadIdx.x] = sum;
    __syncthreads(); /* all 32 sums of a column are there */
    if (threadIdx.y > 0 || col >= num_cols)
        return;
    sum = 0;
    for (int i = 0; i < RK_TILE_COLUMN_FINISH; i++)
        sum += sums[i][threadIdx.x];
    out[col] = rk_narrow<D>(rk_widen<A>(out[col]) + sum);
}

/* `out` is F32 or of type T. */
template <class T, int MAX_PARTS>
static void launch_column_finish(cudaStream_t stream, rk_tensor_t out, const rk_acc<T> *parts, int num_parts)
{
    typedef rk_acc<T> A;
    constexpr int RUN = MAX_PARTS / RK_TILE_COLUMN_FINISH;
    int64_t num_cols = out.shape[0];
    unsigned blocks = (unsigned)rk_ceil_div(num_cols, RK_TILE_COLUMN_FINISH);
    dim3 threads(RK_TILE_COLUMN_FINISH, RK_TILE_COLUMN_FINISH);

    static_assert(MAX_PARTS % RK_TILE_COLUMN_FINISH == 0, "every thread adds as many parts");
    if (out.dtype == RK_DTYPE_F32)
        column_finish_kernel<A, float, RUN>
            <<<blocks, threads, 0, stream>>>((float *)out.data, parts, num_parts, num_cols);
    else
        column_finish_kernel<A, T, RUN>
            <<<blocks, threads, 0, stream>>>((T *)out.data, parts, num_parts, num_cols);
}

#endif
