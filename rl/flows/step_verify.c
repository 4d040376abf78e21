/* Compares the replicas of the models that this run trains. It comes before the step that saves a checkpoint,
 * so that no checkpoint contains replicas that differ. */
#include "rl/flows/steps_internal.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

static bool is_due(const struct rk_flow_context *ctx)
{
    int64_t freq = rk_config_int(ctx->job, "trainer.verify_replicas");

    return freq > 0 && ctx->step % freq == 0;
}

static struct rk_status *verify(struct rk_flow_context *ctx)
{
    int64_t num_roles;
    const struct rk_job_role *roles = rk_job_roles(&num_roles);

    for (int64_t i = 0; i < num_roles; i++) {
        struct rk_driver_result result = {0};
        struct rk_status *st;

        if (!roles[i].trains || !rk_job_role_needed(ctx->job, roles[i].bit))
            continue;
        st = rk_flow_call(ctx, roles[i].name, "verify_replicas", NULL, rk_json_new_object(), NULL, &result);
        rk_flow_merge_metrics(ctx->metrics, result.metrics);
        rk_driver_result_fini(&result);
        RK_TRY(st);
    }
    return NULL;
}

const struct rk_flow_step rk_step_verify_replicas = {"verify_replicas", "verify_replicas", is_due, verify};
