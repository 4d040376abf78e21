/* GPUs that the plug-in's code runs on. */
#ifndef RK_CUDA_ARCHS_H
#define RK_CUDA_ARCHS_H

#include <stdbool.h>

#include "base/rk_compiler.h"

RK_BEGIN_DECLS

/* `archs` lists what nvcc compiled for, "80,90a". Code of an architecture runs on GPUs of the same major
 * number and an equal or greater minor one; with the suffix 'a' on exactly that architecture; 'f' is treated
 * as no suffix.
 */
bool rk_cuda_archs_run_on(const char *archs, int major, int minor);
/* Whether `arch`, for example "90a", is in the list. */
bool rk_cuda_archs_have(const char *archs, const char *arch);

RK_END_DECLS

#endif
