/* What a router did with the tokens of a pass, for metrics, and losses on its scores. It belongs to the
 * backward pass, which visits every layer once, also when activations are recomputed. */
#include "engine/nn/moe_internal.h"

/* The first of the ranks that route the same tokens counts them. Its gradient of the router, a summand over
 * tp, contains the gradient of the losses. */
static bool is_counted(const struct rk_pass *pass, const struct rk_moe *moe)
{
    return rk_comm_group_rank(moe->is_by_rows ? pass->etp : pass->tp) == 0;
}

static rk_tensor_t segments_of(const struct rk_pass *pass)
{
    return rk_tensor_rows(pass->routers.segments, pass->routes.begin, pass->num_tokens);
}

/* The experts with the largest scores, without correction bias, groups and replay. */
static struct rk_status *choose_plainly(const struct rk_pass *pass, const struct rk_moe *moe,
                                        const struct rk_moe_saved *saved, rk_tensor_t *ids)
{
    struct rk_moe_route_args args = {.logits = saved->logits,
                                     .is_sigmoid = moe->config.is_sigmoid,
                                     .num_groups = 1,
                                     .topk_groups = 1,
                                     .scale = 1.0f};
    int64_t num_tokens = saved->ids.shape[0], top_k = saved->ids.shape[1];

    *ids = saved->ids;
    if (!moe->config.has_correction_bias && moe->config.num_groups == 1 && !pass->routes.ids.data)
        return NULL;
    RK_TRY(rk_step_2d(pass->arena, &args.ids, RK_DTYPE_I32, num_tokens, top_k));
    RK_TRY(rk_step_2d(pass->arena, &args.probs, pass->stat_dtype, num_tokens, top_k));
    *ids = args.ids;
    return rk_moe_route(pass->stream, &args);
}

/* Adds the choices of this rank's tokens. */
static struct rk_status *count_own(const struct rk_pass *pass, const struct rk_moe *moe,
                                   const struct rk_moe_saved *saved, rk_tensor_t counts)
{
    rk_tensor_t ids;

    RK_TRY(choose_plainly(pass, moe, saved, &ids));
    return rk_moe_count(pass->stream, &(struct rk_moe_count_args){
                                          .counts = counts, .ids = ids, .segments = segments_of(pass)});
}

/* counts stat [number of segments, E] of all ranks that have tokens of the micro-batch. */
static struct rk_status *count(const struct rk_pass *pass, const struct rk_moe *moe,
                               const struct rk_moe_saved *saved, rk_tensor_t *counts)
{
    int64_t num_segments = pass->routers.weights.shape[0];

    RK_TRY(rk_step_2d(pass->arena, counts, pass->stat_dtype, num_segments, moe->config.num_experts));
    RK_TRY(rk_stream_zero(pass->stream, counts->data, rk_tensor_bytes(*counts)));
    if (is_counted(pass, moe))
        RK_TRY(count_own(pass, moe, saved, *counts));
    if (moe->is_by_rows)
        RK_TRY(rk_comm_all_reduce(pass->tp, pass->stream, *counts, RK_REDUCE_SUM));
    return pass->context ? rk_comm_all_reduce(pass->context->group, pass->stream, *counts, RK_REDUCE_SUM)
                         : NULL;
}

struct rk_status *rk_moe_measure(const struct rk_pass *pass, const struct rk_block *block,
                                 const struct rk_moe_saved *saved, rk_tensor_t dlogits)
{
    struct rk_step_mark mark = rk_step_arena_mark(pass->arena);
    const struct rk_moe *moe = block->own;
    rk_tensor_t row = pass->routers.sums;
    struct rk_moe_balance_args args = {.logits = saved->logits,
                                       .ids = saved->ids,
                                       .weights = pass->routers.weights,
                                       .z_weight = pass->routers.z_weight,
                                       .is_sigmoid = moe->config.is_sigmoid};

    if (!row.data || !(moe->is_by_rows || is_counted(pass, moe)))
        return NULL;
    row = rk_tensor_rows(row, block->route, 1);
    args.sums = rk_tensor_1d(row.data, row.dtype, row.shape[1]);
    args.segments = segments_of(pass);
    if (args.weights.data)
        RK_TRY(count(pass, moe, saved, &args.counts));
    if (args.weights.data || args.z_weight > 0.0)
        args.dlogits = dlogits;
    if (is_counted(pass, moe))
        RK_TRY(rk_moe_balance(pass->stream, &args));
    rk_step_arena_release(pass->arena, mark);
    return NULL;
}
