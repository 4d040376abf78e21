/* Column- and row-parallel linear layers (Shoeybi et al., arXiv:1909.08053), Y = X W^T.
 *
 *   column: rank i has rows i of W and makes columns i of Y; dX = sum over tp of dY_i W_i
 *   row:    rank i has columns i of W and of X;              Y  = sum over tp of X_i W_i^T
 *
 * The other direction needs no communication, unless the residual stream is split over tp (sequence_tp.c):
 * then the sums are reduce-scatters that leave every rank its rows, and X of a column-parallel layer and dY
 * of a row-parallel one are all-gathered; X again for the gradient of W, because the gathered X is not saved.
 * A column-parallel layer may have a bias, split like its rows: Y_i = X W_i^T + b_i, db_i = sum over tokens
 * of dY_i. A row-parallel layer has no bias: the sum over tp would count it tp times. */
#include "engine/nn/nn.h"

#include "base/rk_assert.h"

static rk_tensor_t view(const struct rk_pass *pass, const struct rk_weight *weight, void *buffer,
                        rk_dtype_t dtype)
{
    int64_t offset = rk_params_placement(pass->params, weight->param)->offset;
    char *data = (char *)buffer + (size_t)offset * rk_dtype_bytes(dtype);

    RK_ASSERT(buffer);
    return weight->cols ? rk_tensor_2d(data, dtype, weight->rows, weight->cols)
                        : rk_tensor_1d(data, dtype, weight->rows);
}

rk_tensor_t rk_weight_value(const struct rk_pass *pass, const struct rk_weight *weight)
{
    return view(pass, weight, pass->values, pass->dtype);
}

bool rk_weight_is_trained(const struct rk_pass *pass, const struct rk_weight *weight)
{
    return rk_params_is_trained(pass->params, weight->param);
}

rk_tensor_t rk_weight_grad(const struct rk_pass *pass, const struct rk_weight *weight)
{
    RK_ASSERT(rk_weight_is_trained(pass, weight));
    return view(pass, weight, pass->grads, pass->grad_dtype);
}

struct rk_status *rk_weight_grad_or_scratch(const struct rk_pass *pass, const struct rk_weight *weight,
                                            rk_tensor_t *out)
{
    if (rk_weight_is_trained(pass, weight)) {
        *out = rk_weight_grad(pass, weight);
        return NULL;
    }
    return weight->cols ? rk_step_2d(pass->arena, out, pass->grad_dtype, weight->rows, weight->cols)
                        : rk_step_1d(pass->arena, out, pass->grad_dtype, weight->rows);
}

static struct rk_weight bias_of(const struct rk_weight *weight)
{
    RK_ASSERT(weight->has_bias);
    return (struct rk_weight){.param = weight->bias_param, .rows = weight->rows};
}

static struct rk_status *bias_bwd(const struct rk_pass *pass, const struct rk_weight *weight, rk_tensor_t dy)
{
    struct rk_weight bias = bias_of(weight);

    if (!rk_weight_is_trained(pass, &bias))
        return NULL;
    return rk_bias_bwd(pass->stream,
                       &(struct rk_bias_bwd_args){.dbias = rk_weight_grad(pass, &bias), .dy = dy});
}

static struct rk_gemm_args fwd_args(const struct rk_pass *pass, const struct rk_weight *weight, rk_tensor_t x,
                                    rk_tensor_t y)
{
    struct rk_gemm_args args = {
        .c = y,
        .a = x,
        .b = rk_weight_value(pass, weight),
        .trans_b = true,
        .strict = pass->is_strict,
        .b_is_settled = true,
        .alpha = 1,
    };

    if (weight->has_bias) {
        struct rk_weight bias = bias_of(weight);

        args.bias = rk_weight_value(pass, &bias);
    }
    return args;
}

struct rk_status *rk_linear_fwd(const struct rk_pass *pass, const struct rk_weight *weight, rk_tensor_t x,
                                rk_tensor_t y)
{
    struct rk_gemm_args args = fwd_args(pass, weight, x, y);

    return rk_gemm(pass->stream, &args);
}

struct rk_status *rk_linear_swiglu_fwd(const struct rk_pass *pass, const struct rk_weight *weight,
                                       rk_tensor_t x, rk_tensor_t gate_up, rk_tensor_t y)
{
    struct rk_gemm_args args = fwd_args(pass, weight, x, gate_up);

    args.swiglu = y;
    return rk_gemm(pass->stream, &args);
}

struct rk_status *rk_linear_bwd_weight(const struct rk_pass *pass, const struct rk_weight *weight,
                                       rk_tensor_t x, rk_tensor_t dy)
{
    if (rk_weight_is_trained(pass, weight))
        RK_TRY(rk_gemm(pass->stream, &(struct rk_gemm_args){
                                         .c = rk_weight_grad(pass, weight),
                                         .a = dy,
                                         .b = x,
                                         .trans_a = true,
                                         .alpha = 1,
                                         .beta = pass->overwrites_grads ? 0.0f : 1.0f,
                                     }));
    return weight->has_bias ? bias_bwd(pass, weight, dy) : NULL;
}

struct rk_status *rk_linear_bwd_input(const struct rk_pass *pass, const struct rk_weight *weight,
                                      rk_tensor_t dy, rk_tensor_t dx)
{
    return rk_gemm(pass->stream,
                   &(struct rk_gemm_args){.c = dx, .a = dy, .b = rk_weight_value(pass, weight), .alpha = 1});
}

struct rk_status *rk_linear_bwd(const struct rk_pass *pass, const struct rk_weight *weight, rk_tensor_t x,
                                rk_tensor_t dy, rk_tensor_t dx)
{
    RK_TRY(rk_linear_bwd_weight(pass, weight, x, dy));
    return rk_linear_bwd_input(pass, weight, dy, dx);
}

struct rk_status *rk_linear_column_fwd(const struct rk_pass *pass, const struct rk_weight *weight,
                                       rk_tensor_t x, rk_tensor_t y)
{
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    rk_tensor_t tokens;

    RK_TRY(rk_sp_gather(pass, x, &tokens));
    RK_TRY(rk_linear_fwd(pass, weight, tokens, y));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

struct rk_status *rk_linear_column_swiglu_fwd(const struct rk_pass *pass, const struct rk_weight *weight,
                                              rk_tensor_t x, rk_tensor_t gate_up, rk_tensor_t y)
{
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    rk_tensor_t tokens;

    RK_TRY(rk_sp_gather(pass, x, &tokens));
    RK_TRY(rk_linear_swiglu_fwd(pass, weight, tokens, gate_up, y));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

struct rk_status *rk_linear_column_bwd(const struct rk_pass *pass, const struct rk_weight *weight,
                                       rk_tensor_t x, rk_tensor_t dy, rk_tensor_t dx)
{
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    rk_tensor_t tokens, dtokens;

    /* The gather of x overlaps the GEMM of dx, and the sum of dx overlaps the GEMM of the weight's
     * gradient. */
    RK_TRY(rk_sp_start_gather(pass, x, &tokens));
    RK_TRY(rk_sp_begin_sum(pass, dx, &dtokens));
    RK_TRY(rk_linear_bwd_input(pass, weight, dy, dtokens));
    RK_TRY(rk_pass_join(pass));
    RK_TRY(rk_sp_start_sum(pass, dtokens, dx, RK_REDUCE_SUM));
    RK_TRY(rk_linear_bwd_weight(pass, weight, tokens, dy));
    RK_TRY(rk_pass_join(pass));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

struct rk_status *rk_linear_row_fwd(const struct rk_pass *pass, const struct rk_weight *weight, rk_tensor_t x,
                                    rk_tensor_t y)
{
    /* strict: the sum of a row must not depend on the number of rows. */
    rk_reduce_op_t op = pass->is_strict ? RK_REDUCE_ORDERED_SUM : RK_REDUCE_SUM;
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    rk_tensor_t tokens;

    RK_ASSERT(!weight->has_bias);
    RK_TRY(rk_sp_begin_sum(pass, y, &tokens));
    RK_TRY(rk_linear_fwd(pass, weight, x, tokens));
    RK_TRY(rk_sp_sum(pass, tokens, y, op));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

struct rk_status *rk_linear_row_bwd(const struct rk_pass *pass, const struct rk_weight *weight, rk_tensor_t x,
                                    rk_tensor_t dy, rk_tensor_t dx)
{
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    rk_tensor_t tokens;

    RK_TRY(rk_sp_gather(pass, dy, &tokens));
    RK_TRY(rk_linear_bwd(pass, weight, x, tokens, dx));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}
