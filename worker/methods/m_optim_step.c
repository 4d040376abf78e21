/* optim_step: one optimizer step with the gradients of forward_backward, and one step of the learning-rate
 * schedule. Without gradients nothing changes; non-finite gradients are discarded, and the call fails.
 */
#include "worker/methods/methods.h"

#include "worker/methods/update_internal.h"

static struct rk_status *prepare(const struct rk_method_call *call, struct rk_optim_config *config)
{
    RK_TRY(rk_update_check_role(call->role));
    *config = rk_trainer_get_config(call->role->trainer);
    return rk_optim_config_override(config, call->job->options);
}

static void report(struct rk_job_call *job, const struct rk_step_stats *stats)
{
    struct rk_router_metrics routers = {0};

    rk_job_add_metric(job, "actor/grad_norm", stats->grad_norm, "mean");
    rk_job_add_metric(job, "actor/lr", stats->lr, "last");
    rk_router_metrics_add(&routers, &stats->routers);
    rk_router_metrics_report(&routers, job, "actor");
}

static struct rk_status *step(struct rk_method_call *call, const struct rk_optim_config *config)
{
    struct rk_step_stats stats;

    call->role->has_gradients = false;
    RK_TRY(rk_update_step(call, config, &stats));
    if (stats.was_skipped)
        return RK_FAIL_REASON(RK_ABORTED, "NON_FINITE",
                              "gradients were inf or NaN; they were discarded and no weight has changed");
    rk_trainer_advance_lr(call->role->trainer);
    if (rk_method_call_is_collector(call))
        report(call->job, &stats);
    return NULL;
}

struct rk_status *rk_m_optim_step(struct rk_method_call *call)
{
    struct rk_optim_config config;

    RK_TRY(rk_method_call_begin(call, prepare(call, &config)));
    return call->role->has_gradients ? step(call, &config) : NULL;
}
