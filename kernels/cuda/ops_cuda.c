/* The operator table of the CUDA backend. */
#include "kernels/cuda/cuda_internal.h"

/* One row per operator that calls rk_cuda_reserve. */
static const struct rk_workspace_ops workspace_ops = {
    .attn_varlen_bwd = rk_cuda_workspace_attn_varlen_bwd,
    .attn_paged = rk_cuda_workspace_attn_paged,
    .batched_gemm = rk_cuda_workspace_batched_gemm,
    .bias_bwd = rk_cuda_workspace_bias_bwd,
    .embed_bwd = rk_cuda_workspace_embed_bwd,
    .gemm = rk_cuda_workspace_gemm,
    .grouped_gemm = rk_cuda_workspace_grouped_gemm,
    .grouped_gemm_wgrad = rk_cuda_workspace_grouped_gemm_wgrad,
    .head_norm_bwd = rk_cuda_workspace_head_norm_bwd,
    .moe_balance = rk_cuda_workspace_moe_balance,
    .project_bwd = rk_cuda_workspace_project_bwd,
    .rmsnorm_bwd = rk_cuda_workspace_rmsnorm_bwd,
    .sum_squares = rk_cuda_workspace_sum_squares,
};

static const struct rk_limit_ops limit_ops = {
    .attn_varlen_fwd = rk_cuda_limit_attn_varlen_fwd,
    .attn_varlen_bwd = rk_cuda_limit_attn_varlen_bwd,
    .attn_paged = rk_cuda_limit_attn_paged,
};

const struct rk_kernel_ops rk_cuda_kernel_ops = {.name = "cuda",
                                                 .abi = RK_KERNEL_ABI,
                                                 .workspace = &workspace_ops,
                                                 .limits = &limit_ops,
#define X(op, args_type) .op = rk_cuda_op_##op,
                                                 RK_KERNEL_TABLE(X)
#undef X
};
