/* The operator table of the CPU backend. */
#include "kernels/cpu/cpu_internal.h"

const struct rk_kernel_ops rk_cpu_kernel_ops = {.name = "cpu",
                                                .abi = RK_KERNEL_ABI,
#define X(op, args_type) .op = rk_cpu_##op,
                                                RK_KERNEL_TABLE(X)
#undef X
};
