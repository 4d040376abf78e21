/* Private to kernels/cuda: GEMMs with few rows by the kernel of gemm_small_sm90.cu. */
#ifndef RK_CUDA_GEMM_SMALL_H
#define RK_CUDA_GEMM_SMALL_H

#include "kernels/cuda/cuda_internal.h"

RK_BEGIN_DECLS

#define RK_GEMM_SMALL_MAX_ROWS 128

/* A choice is a tile size and the number of thread blocks that share a load. For a given number of parts of K
 * all choices are bit-identical, so timings may select one. One part is bit-identical to gemm_chain.cu. */
#define RK_GEMM_SMALL_MAX_CHOICES 64

/* Whether the kernel supports the GEMM: bf16 C = A B^T (+ bias), alpha 1, beta 0, at most
 * RK_GEMM_SMALL_MAX_ROWS rows, N and K multiples of 8, rows aligned to 16 bytes, on Hopper. */
bool rk_gemm_small_takes(const struct rk_cuda_device *dev, const struct rk_gemm_args *args);
/* The choices for a GEMM, the one expected to be the fastest first; 0 when the kernel does not support it. */
int rk_gemm_small_choices(const struct rk_cuda_device *dev, const struct rk_gemm_args *args, int num_parts,
                          int choices[RK_GEMM_SMALL_MAX_CHOICES]);
/* Number of parts that K is split into where that is faster and the class of algorithms allows it; depends on
 * N and K only. */
int rk_gemm_small_parts(const struct rk_gemm_args *args);
/* Allocates nothing. A choice for one GEMM is valid for every GEMM that the kernel supports, if both have up
 * to 64 rows, or both more. */
struct rk_status *rk_gemm_small_run(const struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                                    int choice, int num_parts, const struct rk_gemm_args *args) RK_NODISCARD;
/* "32 columns, 1x4" (thread blocks that share a load, along M and N): for logs and benchmarks. */
const char *rk_gemm_small_name(int choice, char *text, size_t bytes);

RK_END_DECLS

#endif
