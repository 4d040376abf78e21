/* The experts of tokens in the steps of a flow (router replay). */
#include "rl/flows/steps_internal.h"
#include "rl/rk_job.h"

static void report_share(struct rk_json *metrics, const char *name, const struct rk_json *from,
                         const char *part, const char *whole)
{
    double all = rk_json_as_real(rk_json_find(from, whole), 0.0);

    if (all > 0.0)
        rk_flow_metric(metrics, name, rk_json_as_real(rk_json_find(from, part), 0.0) / all);
}

void rk_flow_report_routes(struct rk_json *metrics, const struct rk_json *from)
{
    report_share(metrics, "training/rollout_routes_diff_tokens", from, "routes/other_tokens",
                 "routes/tokens");
    report_share(metrics, "training/rollout_routes_diff_layers", from, "routes/other_layers",
                 "routes/layers");
}

void rk_flow_drop_routes(struct rk_json *options, const struct rk_flow_context *ctx)
{
    if (rk_job_captures_routes(ctx->job))
        rk_json_set(options, "routed_experts", rk_json_new_bool(false));
}
