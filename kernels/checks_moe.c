/* Argument checks of the operators that make up layers of experts. */
#include "kernels/checks_internal.h"

/* The largest number of groups, which a GPU counts in a block's shared memory. */
#define MAX_GROUPS 1024

static void expect_offsets(struct rk_check *check, rk_tensor_t offsets, int64_t num_groups)
{
    rk_expect(check, num_groups >= 1 && num_groups <= MAX_GROUPS, "%lld groups, expected 1 to %d",
              (long long)num_groups, MAX_GROUPS);
    rk_expect_tensor(check, "offsets", offsets, RK_DTYPE_I32, RK_DIMS(num_groups + 1));
}

int64_t rk_check_grouped_gemm(struct rk_check *check, const struct rk_grouped_gemm_args *args)
{
    const rk_tensor_t *w = &args->w;
    int64_t rows = args->x.shape[0], k = args->x.shape[1], n = w->shape[args->trans_w ? 1 : 2];

    rk_expect_source(check, "x", args->x, 2);
    rk_expect_source(check, "w", *w, 3);
    rk_expect_tensor(check, "w", *w, args->x.dtype,
                     args->trans_w ? RK_DIMS(w->shape[0], n, k) : RK_DIMS(w->shape[0], k, n));
    rk_expect_contiguous(check, "w", *w);
    rk_expect_tensor(check, "y", args->y, args->x.dtype, RK_DIMS(rows, n));
    expect_offsets(check, args->offsets, w->shape[0]);
    rk_expect_no_alias(check, "y", args->y, "x", args->x);
    rk_expect_no_alias(check, "y", args->y, "w", *w);
    return rows * n;
}

int64_t rk_check_grouped_gemm_wgrad(struct rk_check *check, const struct rk_grouped_gemm_wgrad_args *args)
{
    const rk_tensor_t *dw = &args->dw;
    int64_t rows = args->x.shape[0];

    rk_expect_source(check, "x", args->x, 2);
    rk_expect_source(check, "dw", *dw, 3);
    rk_expect_tensor(check, "dw", *dw, dw->dtype == RK_DTYPE_F32 ? RK_DTYPE_F32 : args->x.dtype,
                     RK_DIMS(dw->shape[0], dw->shape[1], args->x.shape[1]));
    rk_expect_contiguous(check, "dw", *dw);
    rk_expect_tensor(check, "dy", args->dy, args->x.dtype, RK_DIMS(rows, dw->shape[1]));
    expect_offsets(check, args->offsets, dw->shape[0]);
    rk_expect_no_alias(check, "dw", *dw, "dy", args->dy);
    rk_expect_no_alias(check, "dw", *dw, "x", args->x);
    return args->overwrites_dw ? rk_tensor_num_elements(*dw) : rows * dw->shape[1];
}
