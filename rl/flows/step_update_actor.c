/* The update of the policy. */
#include "base/config/rk_losses.h"
#include "base/rk_log.h"
#include "rl/flows/steps_internal.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

static bool is_warm(const struct rk_flow_context *ctx)
{
    return ctx->step >= rk_config_int(ctx->job, "trainer.critic_warmup");
}

/* Columns that the job's loss reads, and the experts of replayed routes, ended by NULL. */
static void list_columns(const char *names[RK_LOSS_ALL_COLUMN_COUNT + 2], const struct rk_flow_context *ctx,
                         const struct rk_json *options)
{
    uint32_t columns = rk_policy_loss_columns(options);
    int count = 0;

    for (int i = 0; i < RK_LOSS_ALL_COLUMN_COUNT; i++) {
        if (columns & RK_LOSS_BIT(i))
            names[count++] = rk_loss_column_name((rk_loss_column_t)i);
    }
    if (rk_job_replays_routes(ctx->job))
        names[count++] = "routed_experts";
    names[count] = NULL;
}

static struct rk_json *make_options(const struct rk_flow_context *ctx, bool takes_rollouts)
{
    struct rk_json *options = rk_json_new_object();

    rk_job_copy_knobs(options, ctx->job, RK_JOB_KNOBS_LOSS);
    rk_job_copy_knobs(options, ctx->job, RK_JOB_KNOBS_DISTILL);
    rk_job_copy_value(options, "temperature", ctx->job, RK_JOB_ROLLOUT "temperature");
    if (rk_job_rollout_correction_keys(ctx->job).bypass_mode)
        rk_job_set_bypass(options, ctx->job);
    else if (takes_rollouts)
        rk_json_set(options, "calculate_entropy", rk_json_new_bool(true));
    return options;
}

static struct rk_status *update_actor(struct rk_flow_context *ctx)
{
    bool takes_rollouts = rk_job_takes_rollout_log_probs(ctx->job, rk_flow_numerics(ctx));
    const char *columns[RK_LOSS_ALL_COLUMN_COUNT + 2];
    struct rk_driver_result result = {0};
    struct rk_batch *batch;
    struct rk_json *options;
    struct rk_plan plan;
    struct rk_status *st;
    int64_t *loss_tokens;
    bool has;

    RK_TRY(rk_flow_has_loss_tokens(ctx, &has));
    if (!has) {
        RK_WARN("step %lld: no counted tokens: responses have no score, or rollout correction rejected them; "
                "the policy is not updated",
                (long long)ctx->step);
        return NULL;
    }
    RK_TRY(rk_flow_sum_rows(ctx, "response_mask", ctx->response_length, &loss_tokens));
    RK_TRY(rk_flow_update_plan(&plan, ctx, RK_ROLE_ACTOR, ctx->seqlens, loss_tokens));
    options = make_options(ctx, takes_rollouts);
    list_columns(columns, ctx, options);
    st = rk_flow_select(&batch, ctx->batch, "update_actor", columns);
    if (st) {
        rk_json_free(options);
        return st;
    }
    st = rk_flow_call(ctx, "actor", "update_actor", batch, options, &plan, &result);
    if (result.metrics && !takes_rollouts) /* the entropy of the previous pass belongs to one policy */
        rk_json_remove(result.metrics, "actor/entropy");
    rk_flow_merge_metrics(ctx->metrics, result.metrics);
    rk_driver_result_fini(&result);
    rk_batch_destroy(batch);
    if (!st)
        ctx->trained_step = ctx->step;
    return st;
}

const struct rk_flow_step rk_step_update_actor = {"update_actor", "update_actor", is_warm, update_actor};
