/* The interface of the CUDA backend to the plug-in that contains it (engine/plugin_cuda.c). */
#ifndef RK_CUDA_H
#define RK_CUDA_H

#include "kernels/rk_device.h"

RK_BEGIN_DECLS

extern const struct rk_device_ops rk_cuda_device_ops;

RK_END_DECLS

#endif
