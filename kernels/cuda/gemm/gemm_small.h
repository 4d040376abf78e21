/* Private to kernels/cuda: products with few rows by a kernel of our own (gemm_small_sm90.cu). */
#ifndef RK_CUDA_GEMM_SMALL_H
#define RK_CUDA_GEMM_SMALL_H

#include "kernels/cuda/cuda_internal.h"

RK_BEGIN_DECLS

#define RK_GEMM_SMALL_MAX_ROWS 128

/* A choice is a tile and how many blocks share a load; all have the same bits for a number of parts of K, so
 * the clock may pick one. One part has the bits of gemm_chain.cu. */
#define RK_GEMM_SMALL_MAX_CHOICES 64

/* Whether the kernel can do the product: bf16 C = A B^T (+ bias), alpha 1, beta 0, at most
 * RK_GEMM_SMALL_MAX_ROWS rows, N and K multiples of 8, rows aligned to 16 bytes, on Hopper. */
bool rk_gemm_small_takes(const struct rk_cuda_device *dev, const struct rk_gemm_args *args);
/* The choices for a product, the one expected to be the fastest first; 0 when the kernel does not take it. */
int rk_gemm_small_choices(const struct rk_cuda_device *dev, const struct rk_gemm_args *args, int num_parts,
                          int choices[RK_GEMM_SMALL_MAX_CHOICES]);
/* Into how many parts of K such a product is cut where that is faster and its bits are free; by N and K
 * alone. */
int rk_gemm_small_parts(const struct rk_gemm_args *args);
/* Takes no memory but its arguments'. A choice for one product may be run for any that the kernel takes,
 * up to 64 rows for one of those and beyond for another. */
struct rk_status *rk_gemm_small_run(const struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                                    int choice, int num_parts, const struct rk_gemm_args *args) RK_NODISCARD;
/* "32 columns, 1x4" (blocks that share a load, along M and N): for people who measure. */
const char *rk_gemm_small_name(int choice, char *text, size_t bytes);

RK_END_DECLS

#endif
