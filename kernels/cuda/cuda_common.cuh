/* Common code of the kernels: types, packs of elements, reductions over a thread block, dispatch by dtype.
 *
 * Numerics of the folder: arithmetic in f32 (f64 for F64 tensors), one rounding of each result, compiled with
 * -fmad=false like the host code: results do not depend on where the compiler contracts a multiply-add. Sums
 * have one order for a given length; results do not depend on the number of SMs or on alignment. */
#ifndef RK_CUDA_COMMON_CUH
#define RK_CUDA_COMMON_CUH

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "kernels/cuda/cuda_internal.h"
#include "kernels/cuda/tile_table.h"

typedef __nv_bfloat16 rk_bf16;
typedef __half rk_f16;

/* --- arithmetic type --- */

template <class T> struct rk_acc_of {
    typedef float type;
};
template <> struct rk_acc_of<double> {
    typedef double type;
};
template <class T> using rk_acc = typename rk_acc_of<T>::type;

/* Arithmetic type of an operation over two dtypes. */
template <class A, class B> struct rk_common_of {
    typedef float type;
};
template <class B> struct rk_common_of<double, B> {
    typedef double type;
};
template <class A> struct rk_common_of<A, double> {
    typedef double type;
};
template <> struct rk_common_of<double, double> {
    typedef double type;
};

template <class A, class T> __device__ __forceinline__ A rk_widen(T value)
{
    return (A)value;
}
template <> __device__ __forceinline__ float rk_widen<float>(rk_bf16 value)
{
    return __bfloat162float(value);
}
template <> __device__ __forceinline__ float rk_widen<float>(rk_f16 value)
{
    return __half2float(value);
}
template <> __device__ __forceinline__ double rk_widen<double>(rk_bf16 value)
{
    return __bfloat162float(value);
}
template <> __device__ __forceinline__ double rk_widen<double>(rk_f16 value)
{
    return __half2float(value);
}

/* Rounds once, to nearest, ties to even. */
template <class T, class A> __device__ __forceinline__ T rk_narrow(A value)
{
    return (T)value;
}
template <> __device__ __forceinline__ rk_bf16 rk_narrow<rk_bf16>(float value)
{
    return __float2bfloat16_rn(value);
}
template <> __device__ __forceinline__ rk_bf16 rk_narrow<rk_bf16>(double value)
{
    return __double2bfloat16(value);
}
template <> __device__ __forceinline__ rk_f16 rk_narrow<rk_f16>(float value)
{
    return __float2half_rn(value);
}
template <> __device__ __forceinline__ rk_f16 rk_narrow<rk_f16>(double value)
{
    return __double2half(value);
}

/* Rounds two values, the first into the lower half. */
__device__ __forceinline__ uint32_t rk_narrow_two(float first, float second, rk_bf16)
{
    __nv_bfloat162 two = __floats2bfloat162_rn(first, second);
    uint32_t word;

    memcpy(&word, &two, sizeof(word));
    return word;
}

__device__ __forceinline__ uint32_t rk_narrow_two(float first, float second, rk_f16)
{
    __half2 two = __floats2half2_rn(first, second);
    uint32_t word;

    memcpy(&word, &two, sizeof(word));
    return word;
}

__device__ __forceinline__ float rk_fma(float a, float b, float c)
{
    return __fmaf_rn(a, b, c);
}

__device__ __forceinline__ double rk_fma(double a, double b, double c)
{
    return fma(a, b, c);
}

/* --- packs: N elements that are loaded and stored by 128-bit instructions if alignment permits.
 *
 * Stored as words: with elements, a kernel with an aligned and an unaligned load path would unpack each load
 * at once, and so wait for it before it issues the next. --- */

template <class T, int N> struct rk_pack {
    static constexpr int WORDS = N * (int)sizeof(T) / 4;

    uint32_t word[WORDS];

    __device__ __forceinline__ T get(int i) const
    {
        T value;

        if constexpr (sizeof(T) == 2) {
            uint16_t bits = (uint16_t)(word[i / 2] >> (i % 2 * 16));

            memcpy(&value, &bits, sizeof(value));
        } else if constexpr (sizeof(T) == 4) {
            memcpy(&value, &word[i], sizeof(value));
        } else {
            value = __hiloint2double((int)word[2 * i + 1], (int)word[2 * i]);
        }
        return value;
    }

    __device__ __forceinline__ void set(int i, T value)
    {
        if constexpr (sizeof(T) == 2) {
            uint16_t bits;

            memcpy(&bits, &value, sizeof(bits));
            word[i / 2] = (word[i / 2] & (i % 2 == 0 ? 0xffff0000u : 0xffffu)) | (uint32_t)bits
                                                                                     << (i % 2 * 16);
        } else if constexpr (sizeof(T) == 4) {
            memcpy(&word[i], &value, sizeof(value));
        } else {
            word[2 * i] = (uint32_t)__double2loint(value);
            word[2 * i + 1] = (uint32_t)__double2hiint(value);
        }
    }
};

/* Converts all elements at once, in fewer instructions than one by one. */
template <class A, class T, int N>
__device__ __forceinline__ void rk_unpack(A (&values)[N], const rk_pack<T, N> &pack)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        values[i] = rk_widen<A>(pack.get(i));
}

template <int N>
__device__ __forceinline__ void rk_unpack(float (&values)[N], const rk_pack<rk_bf16, N> &pack)
{
#pragma unroll
    for (int i = 0; i < N; i += 2) {
        values[i] = __uint_as_float(pack.word[i / 2] << 16);
        values[i + 1] = __uint_as_float(pack.word[i / 2] & 0xffff0000u);
    }
}

/* The values, each rounded once. */
template <class T, class A, int N> __device__ __forceinline__ rk_pack<T, N> rk_repack(const A (&values)[N])
{
    rk_pack<T, N> pack = {};

    if constexpr (sizeof(T) == 2 && sizeof(A) == 4) {
#pragma unroll
        for (int i = 0; i < N; i += 2)
            pack.word[i / 2] = rk_narrow_two(values[i], values[i + 1], T());
    } else {
#pragma unroll
        for (int i = 0; i < N; i++)
            pack.set(i, rk_narrow<T>(values[i]));
    }
    return pack;
}

/* WORDS words, 16 bytes at a time, or 8 where there are only two. */
template <int WORDS> __device__ __forceinline__ void rk_load_words(uint32_t *word, const void *src)
{
    if constexpr (WORDS == 2) {
        uint2 two = *(const uint2 *)src;

        word[0] = two.x;
        word[1] = two.y;
    } else {
#pragma unroll
        for (int i = 0; i + 4 <= WORDS; i += 4) {
            uint4 four = ((const uint4 *)src)[i / 4];

            word[i] = four.x;
            word[i + 1] = four.y;
            word[i + 2] = four.z;
            word[i + 3] = four.w;
        }
    }
}

/* The intrinsic is a plain store that the compiler does not split. */
template <int WORDS> __device__ __forceinline__ void rk_store_words(void *dst, const uint32_t *word)
{
    if constexpr (WORDS == 2) {
        __stwb((uint2 *)dst, make_uint2(word[0], word[1]));
    } else {
#pragma unroll
        for (int i = 0; i + 4 <= WORDS; i += 4)
            __stwb((uint4 *)dst + i / 4, make_uint4(word[i], word[i + 1], word[i + 2], word[i + 3]));
    }
}

/* Loads elements [0, count) of `src`, followed by zeros. `aligned`: src is a multiple of 16 bytes. */
template <int N, class T>
__device__ __forceinline__ rk_pack<T, N> rk_load(const T *src, int64_t count, bool aligned)
{
    rk_pack<T, N> pack = {};

    if (aligned && count >= N) {
        rk_load_words<rk_pack<T, N>::WORDS>(pack.word, src);
        return pack;
    }
#pragma unroll
    for (int i = 0; i < N; i++)
        pack.set(i, i < count ? src[i] : rk_narrow<T>(0.0f));
    return pack;
}

template <int N, class T>
__device__ __forceinline__ void rk_store(T *dst, const rk_pack<T, N> &pack, int64_t count, bool aligned)
{
    if (aligned && count >= N) {
        rk_store_words<rk_pack<T, N>::WORDS>(dst, pack.word);
        return;
    }
#pragma unroll
    for (int i = 0; i < N; i++) {
        if (i < count)
            dst[i] = pack.get(i);
    }
}

/* --- asynchronous copies to shared memory (cp.async), in groups that complete in order ---
 */

/* 16 bytes, of which `bytes` (at most 16) are copied and the rest zeroed; both sides aligned to 16. */
__device__ __forceinline__ void rk_copy16(void *shared, const void *src, int64_t bytes)
{
    unsigned at = (unsigned)__cvta_generic_to_shared(shared);

    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(src),
                 "r"((int)RK_MAX(RK_MIN(bytes, (int64_t)16), (int64_t)0))
                 : "memory");
}

__device__ __forceinline__ void rk_copy_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most PENDING of the thread's groups are in flight. */
template <int PENDING> __device__ __forceinline__ void rk_copy_wait()
{
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

/* --- programmatic dependent launch (rk_launch), from compute capability 9.0 on: thread blocks of a kernel
 * start when all those of the previous kernel have started and there is room, and wait here ---
 */

/* Allows the next kernel to start once all thread blocks of this one have called it. A kernel that calls it
 * before it waits itself must have few, small thread blocks, because the next kernel's occupy SMs. */
__device__ __forceinline__ void rk_start_next()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

/* Waits until earlier work on the stream is complete and visible. */
__device__ __forceinline__ void rk_wait_for_previous()
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/* Call before the first access to memory that earlier work on the stream uses: waits until that work is
 * complete and visible, and allows the next kernel to start. */
__device__ __forceinline__ void rk_wait_for_stream()
{
    rk_wait_for_previous();
    rk_start_next();
}

/* Prefetches memory to L2 on such devices; address and size are multiples of 16. A kernel that has not waited
 * yet may prefetch memory that earlier kernels write: no value is read here, and their writes go to L2
 * too. */
__device__ __forceinline__ void rk_prefetch(const void *at, int bytes)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    if (bytes > 0)
        asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(at), "r"(bytes));
#endif
}

/* --- reductions: a butterfly in each warp, then over the warps in ascending order --- */

template <class A> __device__ __forceinline__ A rk_warp_sum(A value)
{
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2)
        value += __shfl_xor_sync(~0u, value, lane);
    return value;
}

/* Sum over the thread block, for all threads. `shared` has 32 elements and may be reused at once: two
 * barriers separate this sum from the next. */
template <class A> __device__ __forceinline__ A rk_block_sum(A value, A *shared)
{
    int num_warps = blockDim.x / 32;
    A sum = 0;

    value = rk_warp_sum(value);
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = value;
    __syncthreads(); /* the parts are written before they are read */
    for (int i = 0; i < num_warps; i++)
        sum += shared[i];
    __syncthreads(); /* ... and read before the next sum writes */
    return sum;
}

/* A barrier of the threads of a block with equal threadIdx.y: blockDim.x is a multiple of 32, blockDim.y at
 * most 15. All threads of a block should call it the same number of times, because racecheck counts the calls
 * together. Barrier 0 is __syncthreads(). */
__device__ __forceinline__ void rk_group_sync(void)
{
    asm volatile("bar.sync %0, %1;" ::"r"(1 + threadIdx.y), "r"(blockDim.x) : "memory");
}

/* Like rk_block_sum, for such a group in a loop, with one barrier. `shared` has 64 elements per group; sums
 * alternate between its halves (turn, turn + 1). */
template <class A> __device__ __forceinline__ A rk_group_sum_in_turn(A value, A *shared, int64_t turn)
{
    int num_warps = blockDim.x / 32;
    A sum = 0;

    shared += threadIdx.y * 64 + turn % 2 * 32;
    value = rk_warp_sum(value);
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = value;
    rk_group_sync(); /* the parts are written before they are read; those of the last sum have been read */
    for (int i = 0; i < num_warps; i++)
        sum += shared[i];
    return sum;
}

/* Maximum over the thread block, for all threads; NaN is ignored. */
__device__ __forceinline__ double rk_block_max(double value, double *shared)
{
    int num_warps = blockDim.x / 32;

#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2)
        value = fmax(value, __shfl_xor_sync(~0u, value, lane));
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = value;
    __syncthreads(); /* the parts are written before they are read */
    for (int i = 0; i < num_warps; i++)
        value = fmax(value, shared[i]);
    __syncthreads(); /* ... and read before the next reduction writes */
    return value;
}

/* --- host side --- */

static inline int64_t rk_ceil_div(int64_t a, int64_t b)
{
    return (a + b - 1) / b;
}

__host__ __device__ static inline bool rk_aligned16(const void *ptr)
{
    return (uintptr_t)ptr % 16 == 0;
}

/* Every row of a view (or none at all) starts at a multiple of 16 bytes. */
static inline bool rk_rows_aligned(rk_tensor_t t)
{
    return rk_aligned16(t.data) && (size_t)t.row_stride * rk_dtype_bytes(t.dtype) % 16 == 0;
}

static inline cudaStream_t rk_stream_of(void *stream)
{
    return ((struct rk_cuda_stream *)stream)->stream;
}

/* Launch configuration of a kernel. */
struct rk_grid {
    const struct rk_cuda_stream *stream;
    dim3 blocks, threads;
    size_t shared_bytes; /* dynamic */
};

/* Launches a kernel that begins with rk_wait_for_stream(). An error is the last one (rk_cuda_launched). */
template <class... Params, class... Args>
static inline void rk_launch(const rk_grid &grid, void (*kernel)(Params...), const Args &...args)
{
    cudaLaunchAttribute early = {};
    cudaLaunchConfig_t config = {};

    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = grid.blocks;
    config.blockDim = grid.threads;
    config.dynamicSmemBytes = grid.shared_bytes;
    config.stream = grid.stream->stream;
    config.attrs = &early;
    config.numAttrs = grid.stream->dev->compute_capability >= 90 ? 1 : 0;
    (void)cudaLaunchKernelEx(&config, kernel, (Params)args...);
}

/* A grid has at most 2^31 - 1 blocks in x, more than tensors of models need. */
static inline struct rk_status *rk_check_grid(const char *op, int64_t num_blocks)
{
    if (num_blocks > INT32_MAX)
        return RK_FAIL(RK_UNIMPLEMENTED, "%s: %lld blocks of work, this backend supports at most %d", op,
                       (long long)num_blocks, INT32_MAX);
    return NULL;
}

static inline struct rk_status *rk_no_dtype(const char *op, rk_dtype_t dtype)
{
    return RK_FAIL(RK_UNIMPLEMENTED, "%s: this backend does not support %s", op, rk_dtype_name(dtype));
}

#define RK_DTYPE_CASE(enumerator, type, T, ...) \
    case enumerator: {                          \
        typedef type T;                         \
        __VA_ARGS__;                            \
        break;                                  \
    }

/* Runs the statement with T as the element type; returns UNIMPLEMENTED for any other dtype. */
#define RK_FOR_DTYPE(op, dtype, T, ...)                       \
    switch (dtype) {                                          \
        RK_DTYPE_CASE(RK_DTYPE_BF16, rk_bf16, T, __VA_ARGS__) \
        RK_DTYPE_CASE(RK_DTYPE_F16, rk_f16, T, __VA_ARGS__)   \
        RK_DTYPE_CASE(RK_DTYPE_F32, float, T, __VA_ARGS__)    \
        RK_DTYPE_CASE(RK_DTYPE_F64, double, T, __VA_ARGS__)   \
    default:                                                  \
        return rk_no_dtype(op, dtype);                        \
    }

/* RK_FOR_DTYPE for operators that compute only in f32. */
#define RK_FOR_DTYPE_TO_F32(op, dtype, T, ...)                \
    switch (dtype) {                                          \
        RK_DTYPE_CASE(RK_DTYPE_BF16, rk_bf16, T, __VA_ARGS__) \
        RK_DTYPE_CASE(RK_DTYPE_F16, rk_f16, T, __VA_ARGS__)   \
        RK_DTYPE_CASE(RK_DTYPE_F32, float, T, __VA_ARGS__)    \
    default:                                                  \
        return rk_no_dtype(op, dtype);                        \
    }

#endif
