/* Private to kernels/cuda: the gradients of project_bwd for dozens of columns or more, such as those of a
 * router. */
#ifndef RK_CUDA_PROJECT_WIDE_H
#define RK_CUDA_PROJECT_WIDE_H

#include "kernels/cuda/cuda_internal.h"

RK_BEGIN_DECLS

/* Whether they are faster here than in project.cu. The bits of dx are the same. */
bool rk_project_wide_takes(const struct rk_project_bwd_args *args);
size_t rk_project_wide_scratch_bytes(const struct rk_project_bwd_args *args);
/* The scratch memory is reserved. */
struct rk_status *rk_project_wide_bwd(const struct rk_cuda_stream *stream,
                                      const struct rk_project_bwd_args *args) RK_NODISCARD;

RK_END_DECLS

#endif
