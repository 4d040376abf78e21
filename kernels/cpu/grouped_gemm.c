/* GEMMs of groups of rows, or of heads, each with its own matrix: one gemm per group or head. */
#include "kernels/cpu/cpu_internal.h"

/* Matrix g of [G, rows, cols]. */
static rk_tensor_t matrix_of(rk_tensor_t t, int64_t g)
{
    rk_tensor_t matrix = rk_tensor_2d(t.data, t.dtype, t.shape[1], t.shape[2]);

    matrix.data = (char *)t.data + (size_t)g * rk_tensor_bytes(matrix);
    return matrix;
}

static struct rk_status *activate(void *dev, void *stream, const struct rk_grouped_gemm_args *args)
{
    int64_t half = args->y.shape[1] / 2;

    if (!args->swiglu.data)
        return NULL;
    return rk_cpu_swiglu_fwd(
        dev, stream,
        &(struct rk_swiglu_fwd_args){.y = args->swiglu,
                                     .gate = rk_tensor_cols(args->y, 0, half),
                                     .up = rk_tensor_cols(args->y, half, half),
                                     .probs = args->probs,
                                     .count = rk_tensor_rows(args->offsets, args->w.shape[0], 1)});
}

struct rk_status *rk_cpu_grouped_gemm(void *dev, void *stream, const struct rk_grouped_gemm_args *args)
{
    const int32_t *offsets = rk_cpu_i32(args->offsets);

    RK_TRY(rk_cpu_check_offsets("grouped_gemm", args->offsets, args->x.shape[0]));
    for (int64_t g = 0; g < args->w.shape[0]; g++) {
        int64_t num_rows = offsets[g + 1] - offsets[g];

        if (num_rows > 0)
            RK_TRY(rk_cpu_gemm(dev, stream,
                               &(struct rk_gemm_args){.c = rk_tensor_rows(args->y, offsets[g], num_rows),
                                                      .a = rk_tensor_rows(args->x, offsets[g], num_rows),
                                                      .b = matrix_of(args->w, g),
                                                      .trans_b = args->trans_w,
                                                      .strict = args->strict,
                                                      .alpha = 1.0f}));
    }
    return activate(dev, stream, args);
}

struct rk_status *rk_cpu_grouped_gemm_wgrad(void *dev, void *stream,
                                            const struct rk_grouped_gemm_wgrad_args *args)
{
    const int32_t *offsets = rk_cpu_i32(args->offsets);

    RK_TRY(rk_cpu_check_offsets("grouped_gemm_wgrad", args->offsets, args->x.shape[0]));
    for (int64_t g = 0; g < args->dw.shape[0]; g++) {
        int64_t num_rows = offsets[g + 1] - offsets[g];

        if (num_rows > 0 || args->overwrites_dw)
            RK_TRY(rk_cpu_gemm(dev, stream,
                               &(struct rk_gemm_args){.c = matrix_of(args->dw, g),
                                                      .a = rk_tensor_rows(args->dy, offsets[g], num_rows),
                                                      .b = rk_tensor_rows(args->x, offsets[g], num_rows),
                                                      .trans_a = true,
                                                      .strict = args->strict,
                                                      .alpha = 1.0f,
                                                      .beta = args->overwrites_dw ? 0.0f : 1.0f}));
    }
    return NULL;
}

struct rk_status *rk_cpu_batched_gemm(void *dev, void *stream, const struct rk_batched_gemm_args *args)
{
    int64_t k = args->w.shape[args->trans_w ? 2 : 1], n = args->w.shape[args->trans_w ? 1 : 2];
    rk_tensor_t x = rk_tensor_merge_cols(args->x), y = rk_tensor_merge_cols(args->y);

    for (int64_t h = 0; h < args->w.shape[0]; h++) {
        rk_tensor_t w = rk_tensor_2d(rk_tensor_rows(args->w, h, 1).data, args->w.dtype, args->w.shape[1],
                                     args->w.shape[2]);

        RK_TRY(rk_cpu_gemm(dev, stream,
                           &(struct rk_gemm_args){.c = rk_tensor_cols(y, h * args->y.shape[2], n),
                                                  .a = rk_tensor_cols(x, h * args->x.shape[2], k),
                                                  .b = w,
                                                  .trans_b = args->trans_w,
                                                  .alpha = 1.0f}));
    }
    return NULL;
}
