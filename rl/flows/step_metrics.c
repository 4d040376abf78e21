/* Metrics of a step after its updates. */
#include <math.h>

#include "base/rk_time.h"
#include "rl/flows/steps_internal.h"

/* Metrics of a step that updated the policy and for which sum_pi_squared was computed. */
static struct rk_status *measure_variance(struct rk_flow_context *ctx)
{
    bool has_weights = rk_batch_find(ctx->batch, "rollout_is_weights") != NULL;
    const struct rk_json *grad_norm = rk_json_find(ctx->metrics, "actor/grad_norm");
    const void *mask, *advantages, *old, *squares, *weights = NULL;
    struct rk_variance_proxy proxy;
    struct rk_variance_in in = {.num_rows = ctx->num_rows, .width = ctx->response_length};

    if (!grad_norm || !rk_batch_find(ctx->batch, "sum_pi_squared"))
        return NULL;
    RK_TRY(rk_flow_column(ctx, "response_mask", RK_DTYPE_I64, in.width, &mask));
    RK_TRY(rk_flow_column(ctx, "advantages", RK_DTYPE_F32, in.width, &advantages));
    RK_TRY(rk_flow_column(ctx, "old_log_probs", RK_DTYPE_F32, in.width, &old));
    RK_TRY(rk_flow_column(ctx, "sum_pi_squared", RK_DTYPE_F32, in.width, &squares));
    if (has_weights)
        RK_TRY(rk_flow_column(ctx, "rollout_is_weights", RK_DTYPE_F32, in.width, &weights));
    in.response_mask = mask;
    in.advantages = advantages;
    in.old_log_probs = old;
    in.sum_pi_squared = squares;
    in.rollout_is_weights = weights;
    in.grad_norm = rk_json_as_real(grad_norm, NAN);
    if (rk_variance_proxy_measure(&proxy, &in) == 0)
        return NULL;
    rk_flow_metric(ctx->metrics, "variance_proxy/proxy1_signal_strength", proxy.signal_strength);
    rk_flow_metric(ctx->metrics, "variance_proxy/proxy2_total_power", proxy.total_power);
    rk_flow_metric(ctx->metrics, "variance_proxy/proxy3_pure_noise", proxy.pure_noise);
    rk_flow_metric(ctx->metrics, "variance_proxy/expected_a_squared", proxy.expected_a_squared);
    rk_flow_metric(ctx->metrics, "variance_proxy/expected_w", proxy.expected_w);
    return NULL;
}

static struct rk_status *measure(struct rk_flow_context *ctx)
{
    double step_s = (double)(rk_time_now_ns() - ctx->started_ns) / 1e9;
    int64_t num_tokens = 0, num_response_tokens = 0;

    rk_flow_metric(ctx->metrics, "timing_s/step", step_s);
    RK_TRY(rk_flow_data_metrics(ctx->metrics, ctx->batch));
    RK_TRY(measure_variance(ctx));
    for (int64_t row = 0; row < ctx->num_rows; row++) {
        num_tokens += ctx->seqlens[row];
        num_response_tokens += rk_flow_scores_of(ctx)->lengths[row];
    }
    rk_flow_speed_metrics(ctx->metrics, num_tokens, num_response_tokens, step_s,
                          rk_driver_num_workers(ctx->driver));
    rk_flow_mfu_metrics(ctx);
    return NULL;
}

const struct rk_flow_step rk_step_metrics = {"metrics", NULL, NULL, measure};
