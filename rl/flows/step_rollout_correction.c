/* Rollout correction (Liu et al., "When Speed Kills Stability"; Yao et al., "Your Efficient RL Framework
 * Secretly Brings You Off-Policy RL Training", 2025): importance weights for the loss, rejection of tokens
 * and responses, and metrics of the difference between the rollout's policy and the trained one. With
 * bypass_mode the loss does it. */
#include "rl/algo/rollout_correction.h"
#include "rl/flows/steps_internal.h"
#include "rl/rk_job.h"

static bool is_needed(const struct rk_flow_context *ctx)
{
    return !rk_job_rollout_correction_keys(ctx->job).bypass_mode;
}

/* False when every response is empty or lost its score. */
static bool has_token(const struct rk_rollout_corr_in *in)
{
    for (int64_t at = 0; at < in->num_rows * in->response_length; at++) {
        if (in->response_mask[at])
            return true;
    }
    return false;
}

static struct rk_status *correct(struct rk_flow_context *ctx)
{
    struct rk_rollout_correction config = rk_job_rollout_correction(ctx->job);
    struct rk_rollout_corr_in in = {.num_rows = ctx->num_rows, .response_length = ctx->response_length};
    struct rk_rollout_corr_out out = {.metrics = ctx->metrics};
    int64_t shape[2] = {ctx->num_rows, ctx->response_length};
    const void *old, *rollout, *scored;
    void *weights, *mask;

    RK_TRY(rk_flow_column(ctx, "old_log_probs", RK_DTYPE_F32, ctx->response_length, &old));
    RK_TRY(rk_flow_column(ctx, "rollout_log_probs", RK_DTYPE_F32, ctx->response_length, &rollout));
    RK_TRY(rk_batch_put(ctx->batch, RK_FLOW_SCORED_MASK, rk_batch_find(ctx->batch, "response_mask")));
    RK_TRY(rk_flow_column(ctx, RK_FLOW_SCORED_MASK, RK_DTYPE_I64, ctx->response_length, &scored));
    in.old_log_probs = old;
    in.rollout_log_probs = rollout;
    in.response_mask = scored;
    if (!has_token(&in))
        return NULL;
    if (config.rollout_is != RK_ROLLOUT_IS_NONE) {
        RK_TRY(rk_batch_add_dense(ctx->batch, "rollout_is_weights", RK_DTYPE_F32, 2, shape, &weights));
        out.weights = weights;
    }
    RK_TRY(rk_batch_add_dense(ctx->batch, "response_mask", RK_DTYPE_I64, 2, shape, &mask));
    out.response_mask = mask;
    return rk_rollout_corr_apply(&out, &in, &config);
}

const struct rk_flow_step rk_step_rollout_correction = {"rollout_correction", "rollout_correction", is_needed,
                                                        correct};
