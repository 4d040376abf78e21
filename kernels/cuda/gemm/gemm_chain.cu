/* GEMM kernels for any shape, stride and transpose: used in strict mode where cuBLASLt does not have the
 * required bits, and whenever cuBLASLt has no kernel.
 *
 * Work split   A block of 128 threads makes a 64 x 64 tile of C; K is staged in shared memory 32 at a time.
 *              16-bit types: 2 x 2 warps of 32 x 32, mma.sync.m16n8k16. F32 and F64: 8 x 4 outputs a thread,
 *              fused multiply-adds.
 *
 * Traffic      A is read N/64 times, B M/64 times, element by element: not optimised for speed.
 *
 * Limits       65535 * 64 rows of C, 65535 heads; C of the dtype of A and B, or F32.
 *
 * Numerics     Every output is one ascending chain over K: of k16 steps into one f32 accumulator for the
 *              16-bit types, which are the bits of cuBLASLt with split-K = 1 (gemm.c); of single fused
 *              multiply-adds otherwise. K is padded with zeros, which change no sum. Then alpha, beta * C
 *              and the bias, and one rounding. */
#include "kernels/cuda/gemm/gemm_chain.cuh"

template <class T, class C>
__global__ void __launch_bounds__(RK_TILE_CHAIN_THREADS) gemm_chain_kernel(chain_args<T, C> args)
{
    chain_tile(args, (int64_t)blockIdx.y * CHAIN_M, (int64_t)blockIdx.x * CHAIN_N);
}

template <class T, class C> static void launch(cudaStream_t stream, const struct rk_gemm_args *args)
{
    int64_t m = args->c.shape[0], n = args->c.shape[1], k = args->a.shape[args->trans_a ? 0 : 1];
    chain_args<T, C> chain = {(C *)args->c.data,
                              {(const T *)args->a.data, args->a.row_stride, m, k, args->trans_a},
                              {(const T *)args->b.data, args->b.row_stride, n, k, !args->trans_b},
                              (const T *)args->bias.data,
                              args->c.row_stride,
                              args->alpha,
                              args->beta};
    dim3 blocks((unsigned)rk_ceil_div(n, CHAIN_N), (unsigned)rk_ceil_div(m, CHAIN_M));

    gemm_chain_kernel<T, C><<<blocks, RK_TILE_CHAIN_THREADS, 0, stream>>>(chain);
}

template <class T> static struct rk_status *launch_for_c(cudaStream_t stream, const struct rk_gemm_args *args)
{
    if (args->c.dtype == args->a.dtype)
        launch<T, T>(stream, args);
    else if (args->c.dtype == RK_DTYPE_F32)
        launch<T, float>(stream, args);
    else
        return RK_FAIL(RK_UNIMPLEMENTED, "gemm: c is %s for %s inputs, this backend supports %s or f32",
                       rk_dtype_name(args->c.dtype), rk_dtype_name(args->a.dtype),
                       rk_dtype_name(args->a.dtype));
    return NULL;
}

extern "C" struct rk_status *rk_cuda_gemm_chain(const struct rk_cuda_device *dev,
                                                const struct rk_cuda_stream *stream,
                                                const struct rk_gemm_args *args)
{
    int64_t blocks_m = rk_ceil_div(args->c.shape[0], CHAIN_M);

    if (blocks_m > UINT16_MAX)
        return RK_FAIL(RK_UNIMPLEMENTED, "gemm: %lld rows of c, this kernel supports at most %d",
                       (long long)args->c.shape[0], UINT16_MAX * CHAIN_M);
    RK_TRY(rk_check_grid("gemm", args->c.shape[1]));
    RK_FOR_DTYPE("gemm", args->a.dtype, T, RK_TRY(launch_for_c<T>(stream->stream, args)));
    return rk_cuda_launched(dev, stream, "gemm");
}

/* --- heads --- */

/* The GEMM of the first head, and the elements from one head to the next. */
template <class T> struct heads_args {
    chain_args<T, T> chain;
    int64_t y_stride, x_stride, w_stride;
};

template <class T>
__global__ void __launch_bounds__(RK_TILE_CHAIN_THREADS) batched_chain_kernel(heads_args<T> args)
{
    chain_args<T, T> chain = args.chain;

    chain.c += blockIdx.z * args.y_stride;
    chain.a.data += blockIdx.z * args.x_stride;
    chain.b.data += blockIdx.z * args.w_stride;
    chain_tile(chain, (int64_t)blockIdx.y * CHAIN_M, (int64_t)blockIdx.x * CHAIN_N);
}

template <class T> static void launch_heads(cudaStream_t stream, const struct rk_batched_gemm_args *args)
{
    int64_t m = args->x.shape[0], heads = args->x.shape[1];
    int64_t k = args->w.shape[args->trans_w ? 2 : 1], n = args->w.shape[args->trans_w ? 1 : 2];
    heads_args<T> batch = {{(T *)args->y.data,
                            {(const T *)args->x.data, args->x.row_stride, m, k, false},
                            {(const T *)args->w.data, args->trans_w ? k : n, n, k, !args->trans_w},
                            NULL,
                            args->y.row_stride,
                            1.0f,
                            0.0f},
                           args->y.shape[2],
                           args->x.shape[2],
                           args->w.row_stride};
    dim3 blocks((unsigned)rk_ceil_div(n, CHAIN_N), (unsigned)rk_ceil_div(m, CHAIN_M), (unsigned)heads);

    batched_chain_kernel<T><<<blocks, RK_TILE_CHAIN_THREADS, 0, stream>>>(batch);
}

extern "C" struct rk_status *rk_cuda_batched_gemm_chain(const struct rk_cuda_device *dev,
                                                        const struct rk_cuda_stream *stream,
                                                        const struct rk_batched_gemm_args *args)
{
    if (rk_ceil_div(args->x.shape[0], CHAIN_M) > UINT16_MAX || args->x.shape[1] > UINT16_MAX)
        return RK_FAIL(RK_UNIMPLEMENTED,
                       "batched_gemm: x is [%lld, %lld, ..], this backend supports %d rows and %d heads",
                       (long long)args->x.shape[0], (long long)args->x.shape[1], UINT16_MAX * CHAIN_M,
                       UINT16_MAX);
    RK_FOR_DTYPE("batched_gemm", args->x.dtype, T, launch_heads<T>(stream->stream, args));
    return rk_cuda_launched(dev, stream, "batched_gemm");
}

/* --- bias --- */

template <class C, class T>
__global__ void __launch_bounds__(RK_TILE_FLAT_THREADS)
    add_bias_kernel(C *__restrict__ c, const T *__restrict__ bias, int64_t num_cols, int64_t stride)
{
    typedef typename rk_common_of<C, T>::type A;
    int64_t col = (int64_t)blockIdx.y * RK_TILE_FLAT_THREADS + threadIdx.x;
    C *at = c + blockIdx.x * stride + col;

    if (col < num_cols)
        *at = rk_narrow<C>(rk_widen<A>(*at) + rk_widen<A>(bias[col]));
}

template <class T> static void launch_bias(cudaStream_t stream, rk_tensor_t c, rk_tensor_t bias, dim3 blocks)
{
    if (c.dtype == bias.dtype)
        add_bias_kernel<T, T><<<blocks, RK_TILE_FLAT_THREADS, 0, stream>>>((T *)c.data, (const T *)bias.data,
                                                                           c.shape[1], c.row_stride);
    else
        add_bias_kernel<float, T><<<blocks, RK_TILE_FLAT_THREADS, 0, stream>>>(
            (float *)c.data, (const T *)bias.data, c.shape[1], c.row_stride);
}

extern "C" struct rk_status *rk_cuda_add_bias(const struct rk_cuda_device *dev,
                                              const struct rk_cuda_stream *stream, rk_tensor_t c,
                                              rk_tensor_t bias)
{
    dim3 blocks((unsigned)c.shape[0], (unsigned)rk_ceil_div(c.shape[1], RK_TILE_FLAT_THREADS));

    RK_TRY(rk_check_grid("bias", c.shape[0]));
    RK_FOR_DTYPE("bias", bias.dtype, T, launch_bias<T>(stream->stream, c, bias, blocks));
    return rk_cuda_launched(dev, stream, "bias");
}

/* --- comparison --- */

template <class Word>
__global__ void __launch_bounds__(RK_TILE_FLAT_THREADS)
    compare_kernel(int *__restrict__ num_different, const Word *__restrict__ x, const Word *__restrict__ y,
                   int64_t num_cols, int64_t x_stride, int64_t y_stride)
{
    int64_t col = (int64_t)blockIdx.y * RK_TILE_FLAT_THREADS + threadIdx.x;

    if (col < num_cols && x[blockIdx.x * x_stride + col] != y[blockIdx.x * y_stride + col])
        atomicAdd(num_different, 1);
}

extern "C" struct rk_status *rk_cuda_same_bits(const struct rk_cuda_device *dev,
                                               const struct rk_cuda_stream *stream, rk_tensor_t x,
                                               rk_tensor_t y, bool *same)
{
    dim3 blocks((unsigned)x.shape[0], (unsigned)rk_ceil_div(x.shape[1], RK_TILE_FLAT_THREADS));
    int *counter = (int *)((char *)stream->scratch.data + RK_CUDA_COMPARE_BYTES), num_different = 0;

    RK_CUDA(cudaMemsetAsync(counter, 0, sizeof(*counter), stream->stream));
    if (rk_dtype_bytes(x.dtype) == 2)
        compare_kernel<uint16_t><<<blocks, RK_TILE_FLAT_THREADS, 0, stream->stream>>>(
            counter, (const uint16_t *)x.data, (const uint16_t *)y.data, x.shape[1], x.row_stride,
            y.row_stride);
    else
        compare_kernel<uint32_t><<<blocks, RK_TILE_FLAT_THREADS, 0, stream->stream>>>(
            counter, (const uint32_t *)x.data, (const uint32_t *)y.data, x.shape[1], x.row_stride,
            y.row_stride);
    RK_TRY(rk_cuda_launched(dev, stream, "comparison"));
    RK_CUDA(cudaMemcpyAsync(&num_different, counter, sizeof(num_different), cudaMemcpyDeviceToHost,
                            stream->stream));
    RK_CUDA(cudaStreamSynchronize(stream->stream));
    *same = num_different == 0;
    return NULL;
}
