/* Twin of kernels/cpu/random.c: normal numbers from a counter.
 *
 * Work split   One thread an element: a Philox block and an f64 logarithm, root and sine or cosine. Each
 *              Box-Muller pair is computed twice, which is acceptable because models are initialised once.
 *
 * Limits       2^31 - 1 blocks of 256 elements.
 *
 * Numerics     f64, rounded once to the dtype of the tensor. */
#include "kernels/cuda/cuda_common.cuh"
#include "kernels/cuda/philox.cuh"

/* Uniform in (0, 1) with 53 bits. */
__device__ __forceinline__ double uniform53(uint32_t high, uint32_t low)
{
    uint64_t bits = ((uint64_t)high << 32 | low) >> 11;

    return ((double)bits + 0.5) * 0x1p-53;
}

/* rk_rng_normal. */
__device__ __forceinline__ double normal_at(uint64_t seed, uint64_t stream, uint64_t i)
{
    uint64_t block = i >> 1;
    uint4 word = rk_philox(
        make_uint4((uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream, (uint32_t)(stream >> 32)),
        make_uint2((uint32_t)seed, (uint32_t)(seed >> 32)));
    double radius = sqrt(-2.0 * log(uniform53(word.x, word.y)));
    double angle = 6.283185307179586476925286766559 * uniform53(word.z, word.w);

    return radius * (i & 1 ? sin(angle) : cos(angle));
}

template <class T>
__global__ void __launch_bounds__(RK_TILE_FLAT_THREADS)
    random_normal_kernel(T *__restrict__ out, int64_t num_rows, int64_t num_cols, int64_t row_stride,
                         struct rk_random_normal_args args)
{
    int64_t at = (int64_t)blockIdx.x * RK_TILE_FLAT_THREADS + threadIdx.x;
    int64_t row = at / num_cols, col = at % num_cols;

    if (row < num_rows)
        out[row * row_stride + col] = rk_narrow<T>(
            args.deviation *
            normal_at(args.seed, args.stream, args.first + (uint64_t)row * args.row_pitch + (uint64_t)col));
}

template <class T> static void launch_normal(cudaStream_t stream, const struct rk_random_normal_args *args)
{
    int64_t count = rk_tensor_num_elements(args->out);

    random_normal_kernel<T>
        <<<(unsigned)rk_ceil_div(count, RK_TILE_FLAT_THREADS), RK_TILE_FLAT_THREADS, 0, stream>>>(
            (T *)args->out.data, args->out.shape[0], args->out.shape[1], args->out.row_stride, *args);
}

extern "C" struct rk_status *rk_cuda_op_random_normal(void *dev, void *stream,
                                                      const struct rk_random_normal_args *args)
{
    RK_TRY(
        rk_check_grid("random_normal", rk_ceil_div(rk_tensor_num_elements(args->out), RK_TILE_FLAT_THREADS)));
    RK_FOR_DTYPE("random_normal", args->out.dtype, T, launch_normal<T>(rk_stream_of(stream), args));
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "random_normal");
}
