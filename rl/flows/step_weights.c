/* Copies the actor's weights to a rollout with its own mesh: before the first generation, and after every
 * update of the policy. */
#include "base/rk_assert.h"
#include "rl/flows/steps_internal.h"
#include "rl/rk_job.h"

/* All ranks must report the same version. */
static struct rk_status *read_version(struct rk_flow_context *ctx, const struct rk_driver_result *result)
{
    int64_t *held = &rk_flow_prompt_state(ctx)->weight_version;

    *held = -1;
    for (int32_t i = 0; i < result->num_outputs; i++) {
        const struct rk_json *meta = result->outputs[i] ? rk_batch_meta(result->outputs[i]) : NULL;
        int64_t version = rk_json_as_int(rk_json_find(meta, "weight_version"), -1);

        if (!meta)
            continue;
        if (version < 0 || (*held >= 0 && version != *held))
            return RK_FAIL(
                RK_INTERNAL,
                "update_weights: rank %d has weights of version %lld, another rank of version %lld", i,
                (long long)version, (long long)*held);
        *held = version;
    }
    if (*held < 0)
        return RK_FAIL(RK_INTERNAL, "update_weights: no rank reported the version of its weights");
    return NULL;
}

struct rk_status *rk_flow_update_weights(struct rk_flow_context *ctx)
{
    struct rk_json *options = rk_json_new_object();
    struct rk_driver_result result;
    struct rk_status *st;

    rk_job_copy_knobs(options, ctx->job, RK_JOB_KNOBS_RESHARD);
    RK_TRY(rk_flow_call(ctx, "rollout", "update_weights", NULL, options, NULL, &result));
    st = read_version(ctx, &result);
    if (!st && ctx->metrics)
        rk_flow_merge_metrics(ctx->metrics, result.metrics);
    rk_driver_result_fini(&result);
    return st;
}

struct rk_status *rk_flow_check_version(struct rk_flow_context *ctx, const struct rk_batch *answers)
{
    int64_t expected = rk_flow_prompt_state(ctx)->weight_version;
    int64_t version = rk_json_as_int(rk_json_find(rk_batch_meta(answers), "weight_version"), -1);

    if (!rk_job_moves_weights(ctx->job) || version == expected)
        return NULL;
    return RK_FAIL(RK_INTERNAL, "generate_sequences used weights of version %lld, expected %lld",
                   (long long)version, (long long)expected);
}

static bool has_moved_on(const struct rk_flow_context *ctx)
{
    return ctx->trained_step == ctx->step && rk_job_moves_weights(ctx->job);
}

const struct rk_flow_step rk_step_update_weights = {"update_weights", "update_weights", has_moved_on,
                                                    rk_flow_update_weights};
