/* The teacher's output for the responses: log-probs of the sampled tokens, or, for a divergence over its
 * top-k, its most likely ids at every token with their log-probs. */
#include "base/rk_knobs.h"
#include "driver-cli/driver/flows/steps_internal.h"
#include "driver-cli/driver/job_internal.h"
#include "proto/rk_methods.h"

static bool needs_teacher(const struct rk_flow_context *ctx)
{
    return rk_job_role_needed(ctx->job, RK_ROLE_TEACHER);
}

static struct rk_status *take_log_probs(struct rk_flow_context *ctx, const struct rk_batch *result)
{
    const void *log_probs;

    RK_TRY(rk_flow_column_of(result, "ref_log_prob", RK_DTYPE_F32, ctx->num_rows, ctx->response_length,
                             &log_probs));
    RK_TRY(rk_batch_put(ctx->batch, "teacher_log_probs", rk_batch_find(result, "ref_log_prob")));
    return rk_flow_check_finite(ctx, "teacher_log_probs");
}

/* update_actor checks the numbers. */
static struct rk_status *take_top(struct rk_flow_context *ctx, const struct rk_batch *result)
{
    static const struct {
        const char *name;
        rk_dtype_t dtype;
    } columns[] = {{"teacher_topk_ids", RK_DTYPE_I32}, {"teacher_topk_log_probs", RK_DTYPE_F32}};

    for (size_t i = 0; i < RK_ARRAY_LEN(columns); i++) {
        int64_t shape[3];
        const void *data;

        RK_TRY(rk_batch_get_dense(result, columns[i].name, columns[i].dtype, 3, shape, &data));
        if (shape[0] != ctx->num_rows || shape[1] != ctx->response_length)
            return RK_FAIL(RK_INTERNAL, "column '%s' has the shape [%lld, %lld, K], expected [%lld, %lld, K]",
                           columns[i].name, (long long)shape[0], (long long)shape[1],
                           (long long)ctx->num_rows, (long long)ctx->response_length);
        RK_TRY(rk_batch_put(ctx->batch, columns[i].name, rk_batch_find(result, columns[i].name)));
    }
    return NULL;
}

struct rk_flow_pass rk_flow_teacher_pass(const struct rk_flow_context *ctx)
{
    bool is_topk = rk_job_distills_topk(ctx->job);
    const struct rk_flow_pass pass = {
        .role = "teacher",
        .method = is_topk ? "compute_teacher_log_prob" : "compute_ref_log_prob",
        .micro = rk_job_log_prob_micro(ctx->job, RK_JOB_TEACHER),
        .batch = ctx->batch,
        .num_rows = ctx->num_rows,
        .seqlens = ctx->seqlens,
        .options = rk_json_new_object(),
    };

    rk_job_copy_value(pass.options, "temperature", ctx->job, RK_JOB_ROLLOUT "temperature");
    if (is_topk)
        rk_job_copy_value(pass.options, "topk", ctx->job, RK_KNOB_DISTILL "topk");
    return pass;
}

static struct rk_status *run_teacher(struct rk_flow_context *ctx)
{
    const struct rk_flow_pass pass = rk_flow_teacher_pass(ctx);
    struct rk_driver_result result = {0};
    struct rk_status *st = rk_flow_run_pass(ctx, &pass, &result);

    if (!st)
        st = rk_job_distills_topk(ctx->job) ? take_top(ctx, result.batch) : take_log_probs(ctx, result.batch);
    rk_driver_result_fini(&result);
    return st;
}

const struct rk_flow_step rk_step_teacher = {"teacher", "teacher", needs_teacher, run_teacher};

/* --- the teacher in the advantages --- */

static bool uses_opd(const struct rk_flow_context *ctx)
{
    return rk_config_bool(ctx->job, "algorithm.use_opd");
}

/* A[t] -= opd_kl_coef * (old_log_probs[t] - teacher_log_probs[t]): the reverse KL at the sampled token, by
 * the policy that sampled it and without a gradient. */
static struct rk_status *add_opd(struct rk_flow_context *ctx)
{
    double coef = rk_config_real(ctx->job, "algorithm.opd_kl_coef"), sum = 0.0, num_tokens = 0.0;
    const void *mask, *old, *teacher, *unused;
    float *advantages;

    RK_TRY(rk_flow_column(ctx, "response_mask", RK_DTYPE_I64, ctx->response_length, &mask));
    RK_TRY(rk_flow_column(ctx, "old_log_probs", RK_DTYPE_F32, ctx->response_length, &old));
    RK_TRY(rk_flow_column(ctx, "teacher_log_probs", RK_DTYPE_F32, ctx->response_length, &teacher));
    RK_TRY(rk_flow_column(ctx, "advantages", RK_DTYPE_F32, ctx->response_length, &unused));
    advantages = rk_column_data(rk_batch_find(ctx->batch, "advantages"));
    for (int64_t i = 0; i < ctx->num_rows * ctx->response_length; i++) {
        double kl = (double)((const float *)old)[i] - (double)((const float *)teacher)[i];

        if (!((const int64_t *)mask)[i])
            continue;
        advantages[i] = (float)((double)advantages[i] - coef * kl);
        sum += kl;
        num_tokens += 1.0;
    }
    rk_flow_metric(ctx->metrics, "actor/opd_reverse_kl", num_tokens > 0.0 ? sum / num_tokens : 0.0);
    return NULL;
}

const struct rk_flow_step rk_step_opd = {"opd", NULL, uses_opd, add_opd};
