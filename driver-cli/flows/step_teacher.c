/* Log-probs of the sampled tokens under the teacher. */
#include "driver-cli/flows/flows_internal.h"
#include "driver-cli/job_internal.h"
#include "proto/rk_methods.h"

static bool needs_teacher(const struct rk_flow_context *ctx)
{
    return rk_job_role_needed(ctx->job, RK_ROLE_TEACHER);
}

static struct rk_status *teacher_log_probs(struct rk_flow_context *ctx)
{
    const struct rk_flow_pass pass = {
        .role = "teacher",
        .method = "compute_ref_log_prob",
        .micro = rk_job_log_prob_micro(ctx->job, RK_JOB_TEACHER),
        .num_replicas = rk_flow_num_replicas(ctx, RK_ROLE_TEACHER),
        .batch = ctx->batch,
        .num_rows = ctx->num_rows,
        .seqlens = ctx->seqlens,
        .options = rk_json_new_object(),
    };
    struct rk_driver_result result = {0};
    const void *log_probs;
    struct rk_status *st;

    rk_job_copy_value(pass.options, "temperature", ctx->job, RK_JOB_ROLLOUT "temperature");
    RK_TRY_GOTO(st, rk_flow_run_pass(ctx, &pass, &result), out);
    RK_TRY_GOTO(st,
                rk_flow_column_of(result.batch, "ref_log_prob", RK_DTYPE_F32, ctx->num_rows,
                                  ctx->response_length, &log_probs),
                out);
    st = rk_batch_put(ctx->batch, "teacher_log_probs", rk_batch_find(result.batch, "ref_log_prob"));
out:
    rk_driver_result_fini(&result);
    return st ? st : rk_flow_check_finite(ctx, "teacher_log_probs");
}

const struct rk_flow_step rk_step_teacher = {"teacher", "teacher", needs_teacher, teacher_log_probs};
