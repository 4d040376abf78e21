/* Distributes the rows over the replicas. */
#include "rl/flows/steps_internal.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

struct rk_status *rk_flow_layout(struct rk_flow_context *ctx, uint32_t role, const int64_t *seqlens,
                                 int64_t *order)
{
    struct rk_job_update update = rk_job_update_of(ctx->job, role);
    struct rk_layout_request request = {
        .num_rows = ctx->num_rows,
        .num_replicas = rk_flow_num_replicas(ctx, role),
        .seqlens = seqlens,
        .mini_batch_rows =
            role == RK_ROLE_ACTOR ? ctx->mini_batch_rows : update.mini_batch_size * ctx->num_samples,
        .group_size = ctx->group_size,
        .shuffle = update.shuffle,
        .balance = rk_config_bool(ctx->job, "trainer.balance_batch"),
        .seed = (uint64_t)(update.seed + ctx->step),
        .workload = ctx->inputs->workload,
    };

    return rk_plan_layout(order, &request);
}

/* Puts the rows in the order of the actor's replicas; after this, only uid identifies a prompt's
 * responses. */
static struct rk_status *lay_out(struct rk_flow_context *ctx)
{
    int64_t width = ctx->prompt_length + ctx->response_length;
    int64_t *order = rk_flow_scratch(ctx, (size_t)ctx->num_rows, sizeof(*order));
    struct rk_seqlen_stats stats;

    RK_TRY(rk_flow_sum_rows(ctx, "attention_mask", width, &ctx->seqlens));
    RK_TRY(rk_flow_layout(ctx, RK_ROLE_ACTOR, ctx->seqlens, order));
    RK_TRY(rk_batch_reorder(ctx->batch, order));
    if (ctx->flow->data->reorder)
        ctx->flow->data->reorder(ctx, order);
    stats = rk_plan_seqlen_stats(ctx->seqlens, order, ctx->num_rows, ctx->num_replicas);
    rk_flow_metric(ctx->metrics, "global_seqlen/min", stats.min);
    rk_flow_metric(ctx->metrics, "global_seqlen/max", stats.max);
    rk_flow_metric(ctx->metrics, "global_seqlen/minmax_diff", stats.minmax_diff);
    rk_flow_metric(ctx->metrics, "global_seqlen/balanced_min", stats.balanced_min);
    rk_flow_metric(ctx->metrics, "global_seqlen/balanced_max", stats.balanced_max);
    rk_flow_metric(ctx->metrics, "global_seqlen/mean", stats.mean);
    return rk_flow_sum_rows(ctx, "attention_mask", width, &ctx->seqlens);
}

const struct rk_flow_step rk_step_layout = {"layout", NULL, NULL, lay_out};
