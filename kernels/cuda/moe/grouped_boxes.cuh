/* Stores the results of grouped_gemm_sm90.cuh to memory. */
#ifndef RK_CUDA_GROUPED_BOXES_CUH
#define RK_CUDA_GROUPED_BOXES_CUH

#include "kernels/cuda/attention/attn_sm90.cuh"

#if RK_ATTN_HAS_SM90

namespace
{

/* --- results are staged in shared memory, so that TMA writes them while the next tile is computed. Boxes of
 * 64 rows of 128 bytes have the layout of the operands' boxes --- */

/* Four 8 x 8 matrices of 16-bit elements: lane l gives the address of row l % 8 of matrix l / 8. */
template <bool TRANSPOSED>
__device__ inline void store_matrices(const void *row, uint32_t m0, uint32_t m1, uint32_t m2, uint32_t m3)
{
    if constexpr (TRANSPOSED)
        asm volatile(
            "stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(attn_smem(row)),
            "r"(m0), "r"(m1), "r"(m2), "r"(m3)
            : "memory");
    else
        asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(attn_smem(row)),
                     "r"(m0), "r"(m1), "r"(m2), "r"(m3)
                     : "memory");
}

/* Unit `unit` of 16 bytes of row `row` of consecutive boxes. */
__device__ inline uint8_t *box_unit(void *boxes, int row, int unit)
{
    return (uint8_t *)boxes + row * 128 + (unit ^ row % 8) * 16;
}

/* Stores the box at `src` to (col, row) of matrix `group`; elements outside of the tensor are not written. */
__device__ inline void store_box(const CUtensorMap *map, const void *src, int col, int row, int group)
{
    asm volatile(
        "cp.async.bulk.tensor.4d.global.shared::cta.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::"l"(map),
        "r"(attn_smem(src)), "r"(col), "r"(row), "r"(group), "r"(0)
        : "memory");
}

/* ... and adds it to the existing values. */
__device__ inline void add_box(const CUtensorMap *map, const void *src, int col, int row, int group)
{
    asm volatile("cp.reduce.async.bulk.tensor.4d.global.shared::cta.add.bulk_group [%0, {%2, %3, %4, %5}], "
                 "[%1];" ::"l"(map),
                 "r"(attn_smem(src)), "r"(col), "r"(row), "r"(group), "r"(0)
                 : "memory");
}

__device__ inline void commit_boxes()
{
    asm volatile("cp.async.bulk.commit_group;" ::: "memory");
}

/* Waits until the warpgroup's boxes have been read and may be overwritten. */
__device__ inline void wait_for_boxes()
{
    if (threadIdx.x % ATTN_WG == 0)
        asm volatile("cp.async.bulk.wait_group.read 0;" ::: "memory");
    attn_named_sync(2 + threadIdx.x / ATTN_WG, ATTN_WG);
}

/* Makes the warpgroup's writes visible to TMA. */
__device__ inline void publish_boxes()
{
    attn_async_fence();
    attn_named_sync(2 + threadIdx.x / ATTN_WG, ATTN_WG);
}

} // namespace

#endif

#endif
