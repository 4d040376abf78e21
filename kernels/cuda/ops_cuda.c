/* The operator table of the CUDA backend. */
#include "kernels/cuda/cuda_internal.h"

const struct rk_kernel_ops rk_cuda_kernel_ops = {.name = "cuda",
                                                 .abi = RK_KERNEL_ABI,
#define X(op, args_type) .op = rk_cuda_op_##op,
                                                 RK_KERNEL_TABLE(X)
#undef X
};
