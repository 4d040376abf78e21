/* Twins of kernels/cpu/fingerprint.c and of copy_2d in kernels/cpu/rows.c: passes over a part of a matrix.
 *
 * Work split   A block takes a segment of a row, eight elements a thread. fingerprint: sums of a thread, of a
 *              warp, of the block, then one atomic addition a block.
 *
 * Limits       2^31 - 1 segments.
 *
 * Numerics     copy_2d: f32 (f64 where a tensor is), rounded once. fingerprint: integers modulo 2^64, so the
 *              order of the additions does not matter. */
#include "kernels/cuda/cuda_common.cuh"

/* A view of rank 2. */
template <class T> struct matrix {
    T *data;
    int64_t num_rows, num_cols, row_stride;
};

template <class T> static matrix<T> matrix_of(rk_tensor_t t)
{
    return {(T *)t.data, t.shape[0], t.shape[1], t.row_stride};
}

constexpr int PER_THREAD = 8, SEGMENT = PER_THREAD * RK_TILE_FLAT_THREADS; /* columns */

static int64_t segments_of(rk_tensor_t t)
{
    return t.shape[0] * rk_ceil_div(t.shape[1], SEGMENT);
}

/* This thread's elements of its block's segment: columns col, col + RK_TILE_FLAT_THREADS, ... below end. */
struct segment {
    int64_t row, col, end;
};

template <class T> __device__ __forceinline__ segment find_segment(const matrix<T> &x)
{
    int64_t per_row = (x.num_cols + SEGMENT - 1) / SEGMENT, begin = blockIdx.x % per_row * SEGMENT;

    return {blockIdx.x / per_row, begin + threadIdx.x, min(begin + SEGMENT, x.num_cols)};
}

template <class Y, class X>
__global__ void __launch_bounds__(RK_TILE_FLAT_THREADS) copy_2d_kernel(matrix<Y> out, matrix<X> x)
{
    typedef typename rk_common_of<Y, X>::type A;
    segment part = find_segment(x);
    Y *to = out.data + part.row * out.row_stride;
    const X *from = x.data + part.row * x.row_stride;

#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        int64_t col = part.col + i * RK_TILE_FLAT_THREADS;

        if (col < part.end)
            to[col] = rk_narrow<Y>(rk_widen<A>(from[col]));
    }
}

template <class Y> static struct rk_status *copy_from(cudaStream_t stream, const struct rk_copy_2d_args *args)
{
    RK_FOR_DTYPE("copy_2d", args->x.dtype, X,
                 copy_2d_kernel<Y, X><<<(unsigned)segments_of(args->x), RK_TILE_FLAT_THREADS, 0, stream>>>(
                     matrix_of<Y>(args->out), matrix_of<X>(args->x)));
    return NULL;
}

extern "C" struct rk_status *rk_cuda_op_copy_2d(void *dev, void *stream, const struct rk_copy_2d_args *args)
{
    RK_TRY(rk_check_grid("copy_2d", segments_of(args->x)));
    RK_FOR_DTYPE("copy_2d", args->out.dtype, Y, RK_TRY(copy_from<Y>(rk_stream_of(stream), args)));
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "copy_2d");
}

/* rk_fingerprint_mix. */
__device__ __forceinline__ uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

/* rk_fingerprint_of the value rounded to T. */
template <class T> __device__ __forceinline__ uint64_t fingerprint_as(double value, uint64_t number)
{
    uint64_t bits = (uint64_t)__double_as_longlong(rk_widen<double>(rk_narrow<T>(value)));

    return mix(bits ^ mix(number + 0x9e3779b97f4a7c15u));
}

__device__ __forceinline__ uint64_t fingerprint_one(double value, uint64_t number, rk_dtype_t dtype)
{
    switch (dtype) {
    case RK_DTYPE_BF16:
        return fingerprint_as<rk_bf16>(value, number);
    case RK_DTYPE_F16:
        return fingerprint_as<rk_f16>(value, number);
    case RK_DTYPE_F32:
        return fingerprint_as<float>(value, number);
    default:
        return fingerprint_as<double>(value, number);
    }
}

template <class T>
__global__ void __launch_bounds__(RK_TILE_FLAT_THREADS)
    fingerprint_kernel(unsigned long long *__restrict__ out, matrix<const T> x, rk_dtype_t dtype,
                       uint64_t first, uint64_t row_pitch)
{
    __shared__ unsigned long long block_sum;
    segment part = find_segment(x);
    const T *from = x.data + part.row * x.row_stride;
    unsigned long long sum = 0;

    if (threadIdx.x == 0)
        block_sum = 0;
#pragma unroll
    for (int i = 0; i < PER_THREAD; i++) {
        int64_t col = part.col + i * RK_TILE_FLAT_THREADS;

        if (col < part.end)
            sum += fingerprint_one(rk_widen<double>(from[col]),
                                   first + (uint64_t)part.row * row_pitch + (uint64_t)col, dtype);
    }
    for (int lanes = 16; lanes > 0; lanes /= 2)
        sum += __shfl_xor_sync(0xffffffffu, sum, lanes);
    __syncthreads(); /* block_sum is zero */
    if (threadIdx.x % 32 == 0)
        atomicAdd(&block_sum, sum);
    __syncthreads(); /* all warps have added */
    if (threadIdx.x == 0)
        atomicAdd(out, block_sum);
}

extern "C" struct rk_status *rk_cuda_op_fingerprint(void *dev, void *stream,
                                                    const struct rk_fingerprint_args *args)
{
    RK_TRY(rk_check_grid("fingerprint", segments_of(args->x)));
    RK_FOR_DTYPE("fingerprint", args->x.dtype, T,
                 fingerprint_kernel<T>
                 <<<(unsigned)segments_of(args->x), RK_TILE_FLAT_THREADS, 0, rk_stream_of(stream)>>>(
                     (unsigned long long *)args->out.data, matrix_of<const T>(args->x), args->dtype,
                     args->first, args->row_pitch));
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "fingerprint");
}
