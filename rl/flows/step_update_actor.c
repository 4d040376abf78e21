/* The update of the policy. */
#include "base/rk_log.h"
#include "rl/flows/steps_internal.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

static bool is_warm(const struct rk_flow_context *ctx)
{
    return ctx->step >= rk_config_int(ctx->job, "trainer.critic_warmup");
}

static struct rk_status *update_actor(struct rk_flow_context *ctx)
{
    bool use_kl_loss = rk_config_bool(ctx->job, RK_JOB_ACTOR "use_kl_loss");
    bool takes_rollouts = rk_job_takes_rollout_log_probs(ctx->job, rk_flow_numerics(ctx));
    bool is_bypass = rk_job_rollout_correction_keys(ctx->job).bypass_mode;
    const char *columns[] = {"input_ids",
                             "attention_mask",
                             "position_ids",
                             "responses",
                             "response_mask",
                             "old_log_probs",
                             "advantages",
                             NULL,
                             NULL,
                             NULL,
                             NULL,
                             NULL,
                             NULL};
    int64_t num_columns = 7;
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
    if (use_kl_loss)
        columns[num_columns++] = "ref_log_prob";
    if (rk_job_distills_topk(ctx->job)) {
        columns[num_columns++] = "teacher_topk_ids";
        columns[num_columns++] = "teacher_topk_log_probs";
    } else if (rk_config_bool(ctx->job, "distillation.enabled")) {
        columns[num_columns++] = "teacher_log_probs";
    }
    if (rk_job_replays_routes(ctx->job))
        columns[num_columns++] = "routed_experts";
    if (rk_batch_find(ctx->batch, "rollout_is_weights"))
        columns[num_columns] = "rollout_is_weights";
    RK_TRY(rk_flow_select(&batch, ctx, columns));
    options = rk_json_new_object();
    rk_job_copy_knobs(options, ctx->job, RK_JOB_KNOBS_LOSS);
    rk_job_copy_knobs(options, ctx->job, RK_JOB_KNOBS_DISTILL);
    rk_job_copy_value(options, "temperature", ctx->job, RK_JOB_ROLLOUT "temperature");
    if (is_bypass)
        rk_job_set_bypass(options, ctx->job);
    else if (takes_rollouts)
        rk_json_set(options, "calculate_entropy", rk_json_new_bool(true));
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
