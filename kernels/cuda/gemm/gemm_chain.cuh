/* Tiles of gemm_chain.cu, which documents the method, for its kernels and for those over groups of rows. */
#ifndef RK_CUDA_GEMM_CHAIN_CUH
#define RK_CUDA_GEMM_CHAIN_CUH

#include "kernels/cuda/cuda_common.cuh"

namespace
{

constexpr int CHAIN_M = RK_TILE_CHAIN_M, CHAIN_N = RK_TILE_CHAIN_N, CHAIN_K = RK_TILE_CHAIN_K;

/* op(A), or the transpose of op(B): rows of k elements. */
template <class T> struct chain_operand {
    const T *data;
    int64_t ld, rows, k;
    bool k_is_row; /* k runs along the rows in memory */
};

template <class T, class C> struct chain_args {
    C *c;
    chain_operand<T> a, b;
    const T *bias; /* may be NULL */
    int64_t ldc;
    float alpha, beta;
};

/* Copies rows row0.. and columns k0.. of an operand to tile[row][k], with zeros outside. Adjacent threads
 * read adjacent memory in both layouts. */
template <int ROWS, int PITCH, class T>
__device__ __forceinline__ void stage(T *tile, const chain_operand<T> &x, int64_t row0, int64_t k0)
{
    for (int i = threadIdx.x; i < ROWS * CHAIN_K; i += RK_TILE_CHAIN_THREADS) {
        int row = x.k_is_row ? i % ROWS : i / CHAIN_K, k = x.k_is_row ? i / ROWS : i % CHAIN_K;
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

constexpr int OUT_M = 8, OUT_N = 4; /* outputs per thread; 8 x 16 threads */

template <class T, class C>
__device__ __forceinline__ void chain_fma_tile(const chain_args<T, C> &args, int64_t m0, int64_t n0)
{
    constexpr int PITCH = CHAIN_K + 1;
    __shared__ T a[CHAIN_M * PITCH], b[CHAIN_N * PITCH];
    int m = threadIdx.x / 16, n = threadIdx.x % 16;
    T sum[OUT_M][OUT_N] = {};

    for (int64_t k0 = 0; k0 < args.a.k; k0 += CHAIN_K) {
        stage<CHAIN_M, PITCH>(a, args.a, m0, k0);
        stage<CHAIN_N, PITCH>(b, args.b, n0, k0);
        __syncthreads(); /* the tiles are written before they are read */
        for (int k = 0; k < CHAIN_K; k++) {
#pragma unroll
            for (int i = 0; i < OUT_M; i++) {
#pragma unroll
                for (int j = 0; j < OUT_N; j++)
                    sum[i][j] = fma(a[(m + i * 8) * PITCH + k], b[(n + j * 16) * PITCH + k], sum[i][j]);
            }
        }
        __syncthreads(); /* ... and read before the next ones are written */
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

/* Two adjacent elements. */
template <class T> __device__ __forceinline__ uint32_t pair_at(const T *at)
{
    return *reinterpret_cast<const uint32_t *>(at);
}

constexpr int MMA_M = 2, MMA_N = 4; /* m16n8 tiles per warp */

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
__device__ __forceinline__ void chain_mma_tile(const chain_args<T, C> &args, int64_t m0, int64_t n0)
{
    constexpr int PITCH = CHAIN_K + 8; /* 20 words per row: the lanes of a fragment access 32 different
                                        * banks */
    __shared__ alignas(16) T a[CHAIN_M * PITCH], b[CHAIN_N * PITCH];
    int warp_m = threadIdx.x / 64 * 32, warp_n = threadIdx.x / 32 % 2 * 32;
    int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float sum[MMA_M][MMA_N][4] = {};

    for (int64_t k0 = 0; k0 < args.a.k; k0 += CHAIN_K) {
        stage<CHAIN_M, PITCH>(a, args.a, m0, k0);
        stage<CHAIN_N, PITCH>(b, args.b, n0, k0);
        __syncthreads(); /* the tiles are written before they are read */
#pragma unroll
        for (int k = 0; k < CHAIN_K; k += 16)
            warp_step<T, PITCH>(sum, a + warp_m * PITCH + k, b + warp_n * PITCH + k);
        __syncthreads(); /* ... and read before the next ones are written */
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

/* Computes the tile of C from row m0 and column n0 on, with a block of RK_TILE_CHAIN_THREADS. */
template <class T, class C>
__device__ __forceinline__ void chain_tile(const chain_args<T, C> &args, int64_t m0, int64_t n0)
{
    if constexpr (sizeof(T) == 2)
        chain_mma_tile(args, m0, n0);
    else
        chain_fma_tile(args, m0, n0);
}

} // namespace

#endif
