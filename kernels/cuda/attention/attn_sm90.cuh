/* Hopper's instructions for the attention kernels: barriers in shared memory (mbarrier), tensor copies (TMA),
 * wgmma.
 *
 * Tiles in shared memory. A tile of R rows and HD columns is stored as HD / 64 halves of [R][64] elements
 * with the 128-byte swizzle (16-byte unit u of row r is at u ^ r % 8), each aligned to 1024 bytes: the layout
 * that a TMA box writes and that wgmma reads, by rows (k along the columns) or by columns (k along the rows).
 * Device code below is empty for other architectures, whose launchers never call it. */
#ifndef RK_CUDA_ATTN_SM90_CUH
#define RK_CUDA_ATTN_SM90_CUH

#include "kernels/cuda/attention/attn_common.cuh"

#include <cuda.h>

#if !defined(__CUDA_ARCH__) || defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define RK_ATTN_HAS_SM90 1
#else
#define RK_ATTN_HAS_SM90 0
#endif

constexpr int ATTN_WG = 128; /* threads of a warpgroup */

#if RK_ATTN_HAS_SM90

#include "kernels/cuda/attention/attn_wgmma.cuh"

/* --- barriers */

__device__ inline void attn_bar_init(uint64_t *bar, int arrivals)
{
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(attn_smem(bar)), "r"(arrivals));
}

/* Call after the inits and before the __syncthreads() that publishes them: makes them visible to TMA too. */
__device__ inline void attn_bar_init_fence()
{
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}

__device__ inline void attn_bar_arrive(uint64_t *bar)
{
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(attn_smem(bar)) : "memory");
}

/* Arrives, and makes the phase wait for that many bytes of TMA copies. */
__device__ inline void attn_bar_expect(uint64_t *bar, int bytes)
{
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(attn_smem(bar)), "r"(bytes)
                 : "memory");
}

/* Waits until the phase of the given parity has ended. */
__device__ inline void attn_bar_wait(uint64_t *bar, int parity)
{
    asm volatile("{ .reg .pred p;\n"
                 "attn_wait: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n"
                 "@!p bra attn_wait; }" ::"r"(attn_smem(bar)),
                 "r"(parity)
                 : "memory");
}

/* Named barriers 1..15 among `threads` threads. */
__device__ inline void attn_named_sync(int id, int threads)
{
    asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

__device__ inline void attn_named_arrive(int id, int threads)
{
    asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}

/* --- TMA: tensors of [block, head, row, column] (attn_make_map), boxes of rows x 128 bytes */

struct attn_box {
    int row, head, block; /* the box's first row */
};

/* Copies a box to rows `at`.. of a tile of `rows` rows. */
template <int HD>
__device__ inline void attn_tma_load(bf16 *tile, int rows, int at, const CUtensorMap *map, uint64_t *bar,
                                     attn_box box)
{
#pragma unroll
    for (int half = 0; half < HD / 64; half++)
        asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes "
                     "[%0], [%1, {%3, %4, %5, %6}], [%2];" ::"r"(attn_smem(tile + (half * rows + at) * 64)),
                     "l"(map), "r"(attn_smem(bar)), "r"(half * 64), "r"(box.row), "r"(box.head),
                     "r"(box.block)
                     : "memory");
}

__device__ inline void attn_tma_prefetch(const CUtensorMap *map)
{
    asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

/* Makes ordinary writes to shared memory visible to wgmma and TMA. */
__device__ inline void attn_async_fence()
{
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}

/* --- registers of a warpgroup */

template <int N> __device__ inline void attn_give_registers()
{
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N));
}

template <int N> __device__ inline void attn_take_registers()
{
    asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N));
}

/* --- wgmma */

/* Address of an operand, in units of 16 bytes. In a cluster, shared memory addresses have the block's rank
 * above these bits. */
__device__ inline uint64_t attn_desc_address(const bf16 *at)
{
    return (attn_smem(at) & 0x3ffff) >> 4;
}

/* Operand whose rows are those of the tile and whose k runs along the columns: rows from `row` (a multiple of
 * 8) of one half. A k16 step is 32 bytes, plus attn_desc_step() halves. */
__device__ inline uint64_t attn_desc_rows(const bf16 *tile, int row)
{
    return attn_desc_address(tile + row * 64) | (uint64_t)1 << 16 | (uint64_t)(1024 >> 4) << 32 |
           (uint64_t)1 << 62;
}

/* ... of k16 step kk of a tile with `rows` rows. */
__device__ inline uint64_t attn_desc_step(uint64_t desc, int kk, int rows)
{
    return desc + (kk / 4 * rows * 128 + kk % 4 * 32 >> 4);
}

/* Operand B with k along the tile's rows, from k16 step kk, and n along its columns. */
__device__ inline uint64_t attn_desc_cols(const bf16 *tile, int kk, int rows)
{
    return attn_desc_address(tile + kk * 16 * 64) | (uint64_t)(rows * 128 >> 4) << 16 |
           (uint64_t)(1024 >> 4) << 32 | (uint64_t)1 << 62;
}

__device__ inline void attn_wgmma_fence()
{
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}

__device__ inline void attn_wgmma_commit()
{
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

template <int PENDING> __device__ inline void attn_wgmma_wait()
{
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(PENDING) : "memory");
}

/* Prevents the compiler from moving uses of d across the waits and fences around it. */
template <int N> __device__ inline void attn_pin(float (&d)[N])
{
#pragma unroll
    for (int i = 0; i < N; i++)
        asm volatile("" : "+f"(d[i])::"memory");
}

/* d = A B^T over HD columns: 64 rows of tile a from a_row, all N rows of tile b. */
template <int HD, int N>
__device__ inline void attn_gemm_rows(float (&d)[N / 2], const bf16 *a, int a_row, int a_rows, const bf16 *b)
{
    uint64_t a_desc = attn_desc_rows(a, a_row), b_desc = attn_desc_rows(b, 0);

#pragma unroll
    for (int kk = 0; kk < HD / 16; kk++)
        attn_wgmma<N>::template ss<0, 0>(d, attn_desc_step(a_desc, kk, a_rows), attn_desc_step(b_desc, kk, N),
                                         kk > 0);
}

/* d (+)= A B over the K rows of tile b, A in registers as attn_pack_rows() makes it. */
template <int HD, int K>
__device__ inline void attn_gemm_cols(float (&d)[HD / 2], const uint32_t (&a)[K / 4], const bf16 *b,
                                      int accumulate)
{
#pragma unroll
    for (int kk = 0; kk < K / 16; kk++)
        attn_wgmma<HD>::rs(d, a + 4 * kk, attn_desc_cols(b, kk, K), kk > 0 ? 1 : accumulate);
}

/* Zeroes rows [first, ROWS) of a tile, by the calling warpgroup (index wg), before it reads the tile: rows
 * beyond the end of a sequence belong to the next one, and their NaN would propagate through 0 * NaN. */
template <int HD, int ROWS> __device__ inline void attn_zero_tail(bf16 *tile, int first)
{
    uint4 zero = {0, 0, 0, 0};

    for (int i = threadIdx.x % ATTN_WG; i < HD / 64 * (ROWS - first) * 8; i += ATTN_WG) {
        int half = i / ((ROWS - first) * 8), rest = i % ((ROWS - first) * 8);

        *reinterpret_cast<uint4 *>(tile + (half * ROWS + first) * 64 + rest * 8) = zero;
    }
}

/* Writes 16 rows x HD of a warp, scaled per row, to global memory in full lines, staged in its own 16 rows
 * (from `row`) of a tile of 128 rows that is no longer read. num_rows of them exist. */
template <int HD>
__device__ inline void attn_store_rows(bf16 *dst, int64_t stride, int num_rows, const float (&d)[HD / 2],
                                       const float (&factor)[2], bf16 *tile, int row)
{
    int lane = attn_lane(), g = lane / 4, t = lane % 4;

#pragma unroll
    for (int n = 0; n < HD / 8; n++) {
#pragma unroll
        for (int r = 0; r < 2; r++) {
            bf16 *line = tile + (n / 8 * 128 + row + g + 8 * r) * 64;

            *reinterpret_cast<uint32_t *>(line + ((n % 8) ^ g) * 8 + 2 * t) =
                attn_pack(__fmul_rn(d[4 * n + 2 * r], factor[r]), __fmul_rn(d[4 * n + 2 * r + 1], factor[r]));
        }
    }
    __syncwarp(); /* the rows are written before other lanes read them */
#pragma unroll
    for (int i = lane; i < HD / 64 * 16 * 8; i += 32) {
        int half = i / 128, line = i / 8 % 16, unit = i % 8;
        const bf16 *src = tile + (half * 128 + row + line) * 64 + (unit ^ line % 8) * 8;

        if (line < num_rows)
            *reinterpret_cast<uint4 *>(dst + line * stride + half * 64 + unit * 8) =
                *reinterpret_cast<const uint4 *>(src);
    }
}

#endif /* RK_ATTN_HAS_SM90 */

/* A tensor for TMA, bf16 or f32: head_dim contiguous columns, and strides in elements. */
struct attn_map_shape {
    int64_t head_dim, rows, heads, blocks;
    int64_t row_stride, head_stride, block_stride;
    int box_rows;
    bool is_f32 = false;
};

static inline attn_map_shape attn_packed_shape(int num_tokens, int heads, int head_dim, int64_t stride,
                                               int box_rows)
{
    return {head_dim, num_tokens, heads, 1, stride, head_dim, stride * num_tokens, box_rows};
}

/* The shape of a paged cache of keys or values, which are `width` wide, block by block. */
static inline attn_map_shape attn_cache_shape(const rk_cuda_attn_paged_args *args, int width,
                                              int64_t block_stride)
{
    return {width,
            args->block_size,
            args->num_kv_heads,
            args->num_blocks,
            width,
            (int64_t)width * args->block_size,
            block_stride,
            args->block_size};
}

static inline cudaError_t attn_make_map(CUtensorMap *map, const void *base, const attn_map_shape &shape)
{
    cuuint64_t dims[4] = {(cuuint64_t)shape.head_dim, (cuuint64_t)shape.rows, (cuuint64_t)shape.heads,
                          (cuuint64_t)shape.blocks};
    cuuint64_t bytes = shape.is_f32 ? 4 : 2;
    cuuint64_t strides[3] = {(cuuint64_t)shape.row_stride * bytes, (cuuint64_t)shape.head_stride * bytes,
                             (cuuint64_t)shape.block_stride * bytes};
    cuuint32_t box[4] = {(cuuint32_t)(128 / bytes), (cuuint32_t)shape.box_rows, 1, 1},
               steps[4] = {1, 1, 1, 1};
    cudaDriverEntryPointQueryResult found;
    void *entry = NULL;
    cudaError_t err =
        cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &entry, 12000, cudaEnableDefault, &found);

    if (err != cudaSuccess || !entry)
        return err != cudaSuccess ? err : cudaErrorNotSupported;
    CUresult result = reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(entry)(
        map, shape.is_f32 ? CU_TENSOR_MAP_DATA_TYPE_FLOAT32 : CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 4,
        const_cast<void *>(base), dims, strides, box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);

    return result == CUDA_SUCCESS ? cudaSuccess : cudaErrorInvalidValue;
}

#endif
