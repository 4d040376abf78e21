/* Model FLOPs utilisation, verl's perf/mfu/...: the operations that a step's passes need, with causal
 * attention and without what is computed again, over what the devices could do in the time that the driver
 * waited. */
#include <string.h>

#include "rl/rk_estimate.h"
#include "rl/flows/steps_internal.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

#define TRAIN_PASSES 3 /* forward, and backward with twice its operations */

static int64_t actor_passes(const struct rk_flow_context *ctx)
{
    return TRAIN_PASSES * rk_config_int(ctx->job, RK_JOB_ACTOR "ppo_epochs");
}

static int64_t critic_passes(const struct rk_flow_context *ctx)
{
    return TRAIN_PASSES * rk_job_int_or(ctx->job, RK_JOB_CRITIC "ppo_epochs",
                                        rk_config_int(ctx->job, RK_JOB_ACTOR "ppo_epochs"));
}

/* Old log-probs that come from the rollout cost a pass over a few rows only. */
static int64_t log_prob_passes(const struct rk_flow_context *ctx)
{
    return rk_job_takes_rollout_log_probs(ctx->job, rk_flow_numerics(ctx)) ? 0 : 1;
}

static int64_t example_passes(const struct rk_flow_context *ctx)
{
    (void)ctx;
    return TRAIN_PASSES;
}

static const struct {
    const char *timer, *metric;
    uint32_t role;
    int64_t (*passes)(const struct rk_flow_context *ctx);
} rows[] = {
    {"timing_s/update_actor", "perf/mfu/actor", RK_ROLE_ACTOR, actor_passes},
    {"timing_s/old_log_prob", "perf/mfu/actor_infer", RK_ROLE_ACTOR, log_prob_passes},
    {"timing_s/update_critic", "perf/mfu/critic", RK_ROLE_CRITIC, critic_passes},
    {"timing_s/update_sft", "train/mfu", RK_ROLE_ACTOR, example_passes},
    {"timing_s/update_dpo", "train/mfu", RK_ROLE_ACTOR, example_passes},
};

static const struct rk_json *config_of(const struct rk_flow_context *ctx, uint32_t role)
{
    return rk_flow_own_model(ctx->inputs, role) ? rk_flow_prompt_inputs(ctx->inputs)->critic_config
                                                : ctx->inputs->hf_config;
}

void rk_flow_mfu_metrics(struct rk_flow_context *ctx)
{
    double peak = rk_estimate_peak_flops(rk_driver_device_model(ctx->driver));
    double rate = peak * rk_driver_num_workers(ctx->driver);

    for (size_t i = 0; i < RK_ARRAY_LEN(rows) && rate > 0; i++) {
        double seconds = rk_json_as_real(rk_json_find(ctx->metrics, rows[i].timer), 0.0), flops;
        int64_t passes = seconds > 0 ? rows[i].passes(ctx) : 0;

        if (passes == 0)
            continue;
        flops = rk_estimate_batch_forward(config_of(ctx, rows[i].role), ctx->seqlens, ctx->num_rows);
        if (flops > 0)
            rk_flow_metric(ctx->metrics, rows[i].metric, flops * (double)passes / (seconds * rate));
    }
}
