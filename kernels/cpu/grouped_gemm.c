/* GEMMs of groups of rows, or of heads, each with its own matrix: a series of one GEMM per group or head. */
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

static int64_t rows_of(rk_tensor_t offsets, int64_t g)
{
    return rk_cpu_i32(offsets)[g + 1] - rk_cpu_i32(offsets)[g];
}

/* The rows of group g. */
static rk_tensor_t group_of(rk_tensor_t t, rk_tensor_t offsets, int64_t g)
{
    return rk_tensor_rows(t, rk_cpu_i32(offsets)[g], rows_of(offsets, g));
}

static struct rk_gemm_args get_group(const void *user, int64_t g)
{
    const struct rk_grouped_gemm_args *args = user;

    return (struct rk_gemm_args){.c = group_of(args->y, args->offsets, g),
                                 .a = group_of(args->x, args->offsets, g),
                                 .b = matrix_of(args->w, g),
                                 .trans_b = args->trans_w,
                                 .strict = args->strict,
                                 .alpha = 1.0f};
}

struct rk_status *rk_cpu_grouped_gemm(void *dev, void *stream, const struct rk_grouped_gemm_args *args)
{
    RK_TRY(rk_cpu_check_offsets("grouped_gemm", args->offsets, args->x.shape[0]));
    RK_TRY(rk_cpu_gemms_run(
        dev, &(struct rk_cpu_gemms){.count = args->w.shape[0], .get = get_group, .args = args}));
    return activate(dev, stream, args);
}

/* A group without rows changes no row of its matrix, unless it is overwritten. */
static struct rk_gemm_args get_wgrad(const void *user, int64_t g)
{
    const struct rk_grouped_gemm_wgrad_args *args = user;
    bool is_written = rows_of(args->offsets, g) > 0 || args->overwrites_dw;
    rk_tensor_t dw = matrix_of(args->dw, g);

    return (struct rk_gemm_args){.c = is_written ? dw : rk_tensor_rows(dw, 0, 0),
                                 .a = group_of(args->dy, args->offsets, g),
                                 .b = group_of(args->x, args->offsets, g),
                                 .trans_a = true,
                                 .strict = args->strict,
                                 .alpha = 1.0f,
                                 .beta = args->overwrites_dw ? 0.0f : 1.0f};
}

struct rk_status *rk_cpu_grouped_gemm_wgrad(void *dev, void *stream,
                                            const struct rk_grouped_gemm_wgrad_args *args)
{
    (void)stream;
    RK_TRY(rk_cpu_check_offsets("grouped_gemm_wgrad", args->offsets, args->x.shape[0]));
    return rk_cpu_gemms_run(
        dev, &(struct rk_cpu_gemms){.count = args->dw.shape[0], .get = get_wgrad, .args = args});
}

static struct rk_gemm_args get_head(const void *user, int64_t h)
{
    const struct rk_batched_gemm_args *args = user;
    int64_t k = args->w.shape[args->trans_w ? 2 : 1], n = args->w.shape[args->trans_w ? 1 : 2];
    rk_tensor_t x = rk_tensor_merge_cols(args->x), y = rk_tensor_merge_cols(args->y);

    return (struct rk_gemm_args){.c = rk_tensor_cols(y, h * args->y.shape[2], n),
                                 .a = rk_tensor_cols(x, h * args->x.shape[2], k),
                                 .b = rk_tensor_2d(rk_tensor_rows(args->w, h, 1).data, args->w.dtype,
                                                   args->w.shape[1], args->w.shape[2]),
                                 .trans_b = args->trans_w,
                                 .alpha = 1.0f};
}

struct rk_status *rk_cpu_batched_gemm(void *dev, void *stream, const struct rk_batched_gemm_args *args)
{
    (void)stream;
    return rk_cpu_gemms_run(dev,
                            &(struct rk_cpu_gemms){.count = args->w.shape[0], .get = get_head, .args = args});
}
