/* Private to kernels/cuda: grouped GEMMs with Hopper's instructions (grouped_gemm_sm90.cu). They are
 * bit-identical to gemm_chain.cuh. */
#ifndef RK_CUDA_GROUPED_GEMM_H
#define RK_CUDA_GROUPED_GEMM_H

#include "kernels/cuda/cuda_internal.h"

RK_BEGIN_DECLS

/* Whether device, types and alignment are supported by the functions below. */
bool rk_grouped_gemm_takes(const struct rk_cuda_device *dev, const struct rk_grouped_gemm_args *args);
/* ... and rk_grouped_gemm_run makes swiglu too; y is not written then. */
bool rk_grouped_gemm_takes_swiglu(const struct rk_cuda_device *dev, const struct rk_grouped_gemm_args *args);
bool rk_grouped_gemm_takes_wgrad(const struct rk_cuda_device *dev,
                                 const struct rk_grouped_gemm_wgrad_args *args);

struct rk_status *rk_grouped_gemm_run(const struct rk_cuda_device *dev, struct rk_cuda_stream *stream,
                                      const struct rk_grouped_gemm_args *args) RK_NODISCARD;
struct rk_status *rk_grouped_gemm_run_wgrad(const struct rk_cuda_device *dev, struct rk_cuda_stream *stream,
                                            const struct rk_grouped_gemm_wgrad_args *args) RK_NODISCARD;

RK_END_DECLS

#endif
