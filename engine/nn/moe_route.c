/* Scores of tokens: the router, and the gate of a shared expert. Computed in the dtype of statistics for all
 * model dtypes: otherwise rounding would decide between close scores. */
#include "engine/nn/moe_internal.h"

static struct rk_moe_route_args route_args(const struct rk_moe *moe, const struct rk_moe_saved *saved,
                                           rk_tensor_t probs)
{
    return (struct rk_moe_route_args){
        .ids = saved->ids,
        .probs = probs,
        .logits = saved->logits,
        .is_sigmoid = moe->config.is_sigmoid,
        .normalizes = moe->config.norm_topk_prob,
        .num_groups = moe->config.num_groups,
        .topk_groups = moe->config.topk_groups,
        .scale = (float)moe->config.routed_scaling_factor,
    };
}

/* The parts of the correction bias, whose sum is exact in the dtype of scores. */
static rk_tensor_t bias_parts(const struct rk_pass *pass, const struct rk_moe *moe)
{
    rk_tensor_t parts = rk_weight_value(pass, &moe->bias);

    return rk_tensor_2d(parts.data, parts.dtype, RK_PARAM_WIDE_PARTS, moe->config.num_experts);
}

/* The experts that the pass gives; none: the router chooses. */
static rk_tensor_t given_routes(const struct rk_pass *pass, const struct rk_block *block)
{
    if (!pass->routes.ids.data)
        return (rk_tensor_t){0};
    return rk_tensor_rows(pass->routes.ids, block->route * pass->routes.num_tokens + pass->routes.begin,
                          pass->num_tokens);
}

/* Where the choices of this block go; none: they are not wanted. */
static rk_tensor_t chosen_routes(const struct rk_pass *pass, const struct rk_block *block)
{
    const struct rk_moe *moe = block->own;
    int64_t top_k = moe->config.num_experts_per_tok;

    if (!pass->routes.chosen.data)
        return (rk_tensor_t){0};
    return rk_tensor_cols(rk_tensor_rows(pass->routes.chosen, pass->routes.begin, pass->num_tokens),
                          block->route * top_k, top_k);
}

struct rk_status *rk_moe_choose(const struct rk_pass *pass, const struct rk_block *block, rk_tensor_t x,
                                const struct rk_moe_saved *saved, rk_tensor_t probs)
{
    const struct rk_moe *moe = block->own;
    struct rk_moe_route_args args = route_args(moe, saved, probs);

    RK_TRY(rk_linear_fwd(pass, &moe->router, x, saved->logits));
    if (moe->config.has_correction_bias)
        args.bias = bias_parts(pass, moe);
    args.given = given_routes(pass, block);
    args.chosen = chosen_routes(pass, block);
    return rk_moe_route(pass->stream, &args);
}

/* The gradient of a narrow product in full precision; dx +=. */
static struct rk_status *scores_bwd(const struct rk_pass *pass, const struct rk_block *block,
                                    const struct rk_weight *weight, rk_tensor_t x, rk_tensor_t dscores,
                                    rk_tensor_t dx)
{
    rk_tensor_t part, dweight;

    RK_TRY(rk_activation_make(pass, block, RK_MOE_DX, &part));
    RK_TRY(rk_weight_grad_or_scratch(pass, weight, &dweight));
    RK_TRY(rk_project_bwd(pass->stream, &(struct rk_project_bwd_args){
                                            .dx = part,
                                            .dweight = dweight,
                                            .dscores = dscores,
                                            .x = x,
                                            .weight = rk_weight_value(pass, weight),
                                            .overwrites_dweight = pass->overwrites_grads,
                                        }));
    return rk_axpby(pass->stream, &(struct rk_axpby_args){.y = dx, .x = part, .alpha = 1, .beta = 1});
}

struct rk_status *rk_moe_choose_bwd(const struct rk_pass *pass, const struct rk_block *block,
                                    const struct rk_moe_saved *saved, rk_tensor_t x, rk_tensor_t dprobs,
                                    rk_tensor_t dx)
{
    const struct rk_moe *moe = block->own;
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    struct rk_moe_route_bwd_args args = {.fwd = route_args(moe, saved, (rk_tensor_t){0}), .dprobs = dprobs};

    RK_TRY(rk_activation_make(pass, block, RK_MOE_DLOGITS, &args.dlogits));
    RK_TRY(rk_moe_route_bwd(pass->stream, &args));
    RK_TRY(rk_moe_measure(pass, block, saved, args.dlogits));
    RK_TRY(scores_bwd(pass, block, &moe->router, x, args.dlogits, dx));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

/* The sigmoid of a score, computed as a router with one expert. */
static struct rk_moe_route_args sigmoid_args(rk_tensor_t ids, rk_tensor_t score, rk_tensor_t prob)
{
    return (struct rk_moe_route_args){.ids = ids,
                                      .probs = prob,
                                      .logits = score,
                                      .is_sigmoid = true,
                                      .num_groups = 1,
                                      .topk_groups = 1,
                                      .scale = 1.0f};
}

struct rk_status *rk_moe_gate(const struct rk_pass *pass, const struct rk_weight *weight, rk_tensor_t x,
                              rk_tensor_t score, rk_tensor_t prob)
{
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    struct rk_moe_route_args args;
    rk_tensor_t ids;

    RK_TRY(rk_step_2d(pass->arena, &ids, RK_DTYPE_I32, x.shape[0], 1));
    RK_TRY(rk_project_fwd(
        pass->stream,
        &(struct rk_project_fwd_args){.scores = score, .x = x, .weight = rk_weight_value(pass, weight)}));
    args = sigmoid_args(ids, score, prob);
    RK_TRY(rk_moe_route(pass->stream, &args));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}

struct rk_status *rk_moe_gate_bwd(const struct rk_pass *pass, const struct rk_block *block,
                                  const struct rk_moe_saved *saved, rk_tensor_t x, rk_tensor_t dprob,
                                  rk_tensor_t dx)
{
    const struct rk_moe *moe = block->own;
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    struct rk_moe_route_bwd_args args = {.dprobs = dprob};
    rk_tensor_t ids;

    RK_TRY(rk_step_2d(pass->arena, &ids, RK_DTYPE_I32, x.shape[0], 1));
    RK_TRY(rk_stream_zero(pass->stream, ids.data, rk_tensor_bytes(ids))); /* the one expert is number 0 */
    args.fwd = sigmoid_args(ids, saved->shared_score, (rk_tensor_t){0});
    RK_TRY(rk_activation_make(pass, block, RK_MOE_SHARED_DSCORE, &args.dlogits));
    RK_TRY(rk_moe_route_bwd(pass->stream, &args));
    RK_TRY(scores_bwd(pass, block, &moe->shared.score, x, args.dlogits, dx));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}
