/* Products by kernels of our own, for any shape, stride and transpose: what strict mode takes where the
 * library does not promise its bits, and what everything takes that the library has no kernel for.
 *
 * Work split   A block of 128 threads makes a 64 x 64 tile of C; K is staged in shared memory 32 at a time.
 *              16-bit types: 2 x 2 warps of 32 x 32, mma.sync.m16n8k16. F32 and F64: 8 x 4 outputs a thread,
 *              fused multiply-adds.
 *
 * Traffic      A is read N/64 times, B M/64 times, element by element: no speed is claimed.
 *
 * Limits       65535 * 64 rows of C; C of the dtype of A and B, or F32.
 *
 * Numerics     Every output is one ascending chain over K: of k16 steps into one f32 accumulator for the
 *              16-bit types, which are the bits of cuBLASLt with split-K = 1 (gemm.c); of single fused
 *              multiply-adds otherwise. K is padded with zeros, which change no sum. Then alpha, beta * C
 *              and the bias, and one rounding. */
#include "kernels/cuda/cuda_common.cuh"

constexpr int TILE_M = RK_TILE_CHAIN_M, TILE_N = RK_TILE_CHAIN_N, TILE_K = RK_TILE_CHAIN_K;

/* op(A), or the transpose of op(B): rows of k elements. */
template <class T> struct chain_operand {
    const T *data;
    int64_t ld, rows, k;
    bool k_is_row; /* as it lies in memory */
};

template <class T, class C> struct chain_args {
    C *c;
    chain_operand<T> a, b;
    const T *bias; /* may be NULL */
    int64_t ldc;
    float alpha, beta;
};

/* Stages rows row0.. and columns k0.. of an operand as tile[row][k], zeros outside. Neighbouring threads read
 * neighbouring memory either way. */
template <int ROWS, int PITCH, class T>
__device__ __forceinline__ void stage(T *tile, const chain_operand<T> &x, int64_t row0, int64_t k0)
{
    for (int i = threadIdx.x; i < ROWS * TILE_K; i += RK_TILE_CHAIN_THREADS) {
        int row = x.k_is_row ? i % ROWS : i / TILE_K, k = x.k_is_row ? i / ROWS : i % TILE_K;
        T value = rk_narrow<T>(0.0f);

        if (row0 + row < x.rows && k0 + k < x.k)
            value = x.k_is_row ? x.data[(k0 + k) * x.ld + row0 + row] : x.data[(row0 + row) * x.ld + k0 + k];
        tile[row * PITCH + k] = value;
    }
}

template <class T, class C>
__device__ __forceinline__ void store_output(const chain_args<T, C> &args, int64_t m, int64_t n,
                                             rk_acc<T> sum)
{
    typedef rk_acc<T> A;
    C *at = args.c + m * args.ldc + n;

    if (m >= args.a.rows || n >= args.b.rows)
        return;
    sum *= args.alpha;
    if (args.beta != 0.0f)
        sum += args.beta * rk_widen<A>(*at);
    if (args.bias)
        sum += rk_widen<A>(args.bias[n]);
    *at = rk_narrow<C>(sum);
}

/* --- F32 and F64 --- */

constexpr int OUT_M = 8, OUT_N = 4; /* outputs of a thread; 8 x 16 threads */

template <class T, class C>
__global__ void __launch_bounds__(RK_TILE_CHAIN_THREADS) gemm_chain_fma_kernel(chain_args<T, C> args)
{
    constexpr int PITCH = TILE_K + 1;
    __shared__ T a[TILE_M * PITCH], b[TILE_N * PITCH];
    int64_t m0 = (int64_t)blockIdx.y * TILE_M, n0 = (int64_t)blockIdx.x * TILE_N;
    int m = threadIdx.x / 16, n = threadIdx.x % 16;
    T sum[OUT_M][OUT_N] = {};

    for (int64_t k0 = 0; k0 < args.a.k; k0 += TILE_K) {
        stage<TILE_M, PITCH>(a, args.a, m0, k0);
        stage<TILE_N, PITCH>(b, args.b, n0, k0);
        __syncthreads(); /* the tiles are staged before they are read */
        for (int k = 0; k < TILE_K; k++) {
#pragma unroll
            for (int i = 0; i < OUT_M; i++) {
#pragma unroll
                for (int j = 0; j < OUT_N; j++)
                    sum[i][j] = fma(a[(m + i * 8) * PITCH + k], b[(n + j * 16) * PITCH + k], sum[i][j]);
            }
        }
        __syncthreads(); /* ... and read before the next ones come */
    }
#pragma unroll
    for (int i = 0; i < OUT_M; i++) {
#pragma unroll
        for (int j = 0; j < OUT_N; j++)
            store_output(args, m0 + m + i * 8, n0 + n + j * 16, sum[i][j]);
    }
}

/* --- BF16 and F16 --- */

__device__ __forceinline__ void mma_k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2],
                                        rk_bf16)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

__device__ __forceinline__ void mma_k16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], rk_f16)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
        "{%0,%1,%2,%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Two neighbouring elements. */
template <class T> __device__ __forceinline__ uint32_t pair_at(const T *at)
{
    return *reinterpret_cast<const uint32_t *>(at);
}

constexpr int MMA_M = 2, MMA_N = 4; /* m16n8 tiles of a warp */

/* One k16 step of a warp: rows from `a` and columns from `b` on, both [row][k]. Lane 4g + t holds columns 2t,
 * 2t + 1 of rows g and g + 8 (PTX, m16n8k16). */
template <class T, int PITCH>
__device__ __forceinline__ void warp_step(float (&sum)[MMA_M][MMA_N][4], const T *a, const T *b)
{
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    uint32_t a_part[MMA_M][4], b_part[MMA_N][2];

#pragma unroll
    for (int i = 0; i < MMA_M; i++) {
        const T *at = a + (i * 16 + g) * PITCH + 2 * t;

        a_part[i][0] = pair_at(at);
        a_part[i][1] = pair_at(at + 8 * PITCH);
        a_part[i][2] = pair_at(at + 8);
        a_part[i][3] = pair_at(at + 8 * PITCH + 8);
    }
#pragma unroll
    for (int j = 0; j < MMA_N; j++) {
        const T *at = b + (j * 8 + g) * PITCH + 2 * t;

        b_part[j][0] = pair_at(at);
        b_part[j][1] = pair_at(at + 8);
    }
#pragma unroll
    for (int i = 0; i < MMA_M; i++) {
#pragma unroll
        for (int j = 0; j < MMA_N; j++)
            mma_k16(sum[i][j], a_part[i], b_part[j], T());
    }
}

template <class T, class C>
__global__ void __launch_bounds__(RK_TILE_CHAIN_THREADS) gemm_chain_mma_kernel(chain_args<T, C> args)
{
    constexpr int PITCH = TILE_K + 8; /* 20 words a row: the lanes of a fragment hit 32 different banks */
    __shared__ alignas(16) T a[TILE_M * PITCH], b[TILE_N * PITCH];
    int64_t m0 = (int64_t)blockIdx.y * TILE_M, n0 = (int64_t)blockIdx.x * TILE_N;
    int warp_m = threadIdx.x / 64 * 32, warp_n = threadIdx.x / 32 % 2 * 32;
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float sum[MMA_M][MMA_N][4] = {};

    for (int64_t k0 = 0; k0 < args.a.k; k0 += TILE_K) {
        stage<TILE_M, PITCH>(a, args.a, m0, k0);
        stage<TILE_N, PITCH>(b, args.b, n0, k0);
        __syncthreads(); /* the tiles are staged before they are read */
#pragma unroll
        for (int k = 0; k < TILE_K; k += 16)
            warp_step<T, PITCH>(sum, a + warp_m * PITCH + k, b + warp_n * PITCH + k);
        __syncthreads(); /* ... and read before the next ones come */
    }
#pragma unroll
    for (int i = 0; i < MMA_M; i++) {
#pragma unroll
        for (int j = 0; j < MMA_N; j++) {
#pragma unroll
            for (int e = 0; e < 4; e++)
                store_output(args, m0 + warp_m + i * 16 + g + e / 2 * 8, n0 + warp_n + j * 8 + 2 * t + e % 2,
                             sum[i][j][e]);
        }
    }
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
    dim3 blocks((unsigned)rk_ceil_div(n, TILE_N), (unsigned)rk_ceil_div(m, TILE_M));

    if constexpr (sizeof(T) == 2)
        gemm_chain_mma_kernel<T, C><<<blocks, RK_TILE_CHAIN_THREADS, 0, stream>>>(chain);
    else
        gemm_chain_fma_kernel<T, C><<<blocks, RK_TILE_CHAIN_THREADS, 0, stream>>>(chain);
}

template <class T> static struct rk_status *launch_for_c(cudaStream_t stream, const struct rk_gemm_args *args)
{
    if (args->c.dtype == args->a.dtype)
        launch<T, T>(stream, args);
    else if (args->c.dtype == RK_DTYPE_F32)
        launch<T, float>(stream, args);
    else
        return RK_FAIL(RK_UNIMPLEMENTED, "gemm: c is %s for %s inputs, this backend makes %s or f32",
                       rk_dtype_name(args->c.dtype), rk_dtype_name(args->a.dtype),
                       rk_dtype_name(args->a.dtype));
    return NULL;
}

extern "C" struct rk_status *rk_cuda_gemm_chain(const struct rk_cuda_device *dev,
                                                const struct rk_cuda_stream *stream,
                                                const struct rk_gemm_args *args)
{
    int64_t blocks_m = rk_ceil_div(args->c.shape[0], TILE_M);

    if (blocks_m > UINT16_MAX)
        return RK_FAIL(RK_UNIMPLEMENTED, "gemm: %lld rows of c, this kernel takes at most %d",
                       (long long)args->c.shape[0], UINT16_MAX * TILE_M);
    RK_TRY(rk_check_grid("gemm", args->c.shape[1]));
    RK_FOR_DTYPE("gemm", args->a.dtype, T, RK_TRY(launch_for_c<T>(stream->stream, args)));
    return rk_cuda_launched(dev, stream, "gemm");
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
