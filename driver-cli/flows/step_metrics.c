/* Numbers of a step whose updates are done. */
#include "base/rk_time.h"
#include "driver-cli/flows/flows_internal.h"

static struct rk_status *measure(struct rk_flow_context *ctx)
{
    double step_s = (double)(rk_time_now_ns() - ctx->started_ns) / 1e9;
    int64_t num_tokens = 0, num_response_tokens = 0;

    rk_flow_metric(ctx->metrics, "timing_s/step", step_s);
    RK_TRY(rk_flow_data_metrics(ctx->metrics, ctx->batch));
    for (int64_t row = 0; row < ctx->num_rows; row++) {
        num_tokens += ctx->seqlens[row];
        num_response_tokens += ctx->scores.lengths[row];
    }
    rk_flow_speed_metrics(ctx->metrics, num_tokens, num_response_tokens, step_s,
                          rk_driver_num_workers(ctx->driver));
    return NULL;
}

const struct rk_flow_step rk_step_metrics = {"metrics", NULL, NULL, measure};
