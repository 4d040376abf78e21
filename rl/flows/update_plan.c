/* Functions that the updates of all roles share. */
#include "rl/flows/steps_internal.h"
#include "rl/rk_job.h"

struct rk_status *rk_flow_has_loss_tokens(struct rk_flow_context *ctx, bool *has)
{
    int64_t *loss_tokens;

    *has = false;
    RK_TRY(rk_flow_sum_rows(ctx, "response_mask", ctx->response_length, &loss_tokens));
    for (int64_t row = 0; row < ctx->num_rows; row++)
        *has = *has || loss_tokens[row] > 0;
    return NULL;
}

struct rk_status *rk_flow_make_plan(struct rk_plan *plan, struct rk_flow_context *ctx, uint32_t role,
                                    const struct rk_job_micro *micro, struct rk_plan_request request)
{
    const struct rk_mesh *mesh = rk_job_meshes_find(&ctx->meshes, role);

    request.num_replicas = rk_mesh_axis_size(mesh, RK_AXIS_DP);
    request.use_dynamic_bsz = micro->use_dynamic_bsz;
    request.max_token_len = micro->max_token_len * rk_mesh_axis_size(mesh, RK_AXIS_CP);
    request.micro_batch_rows = micro->micro_batch_rows;
    request.micro_multiple = rk_job_micro_multiple(ctx->job, role);
    request.workload = ctx->inputs->workload;
    return rk_plan_build(plan, ctx->arena, &request);
}

struct rk_status *rk_flow_update_plan(struct rk_plan *plan, struct rk_flow_context *ctx, uint32_t role,
                                      const int64_t *seqlens, const int64_t *loss_tokens)
{
    struct rk_job_update update = rk_job_update_of(ctx->job, role);
    struct rk_plan_request request = {
        .num_rows = ctx->num_rows,
        .seqlens = seqlens,
        .loss_tokens = loss_tokens,
        .mini_batch_rows = update.mini_batch_size * ctx->num_samples,
        .epochs = update.epochs,
        .shuffle = update.shuffle,
        .seed = (uint64_t)(update.seed + ctx->step),
    };

    return rk_flow_make_plan(plan, ctx, role, &update.micro, request);
}
