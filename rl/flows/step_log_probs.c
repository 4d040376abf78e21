/* Passes over the batch without training: log-probs of the policy and of its reference. */

#include "base/math/rk_loss_agg.h"
#include "rl/flows/steps_internal.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

static struct rk_flow_pass log_prob_pass(const struct rk_flow_context *ctx, uint32_t role, const char *method,
                                         const char *section, struct rk_json *options)
{
    rk_job_copy_value(options, "temperature", ctx->job, RK_JOB_ROLLOUT "temperature");
    return (struct rk_flow_pass){
        .role = rk_job_role(role)->name,
        .method = method,
        .micro = rk_job_log_prob_micro(ctx->job, section),
        .batch = ctx->batch,
        .num_rows = ctx->num_rows,
        .seqlens = ctx->seqlens,
        .options = options,
    };
}

struct rk_flow_pass rk_flow_ref_pass(const struct rk_flow_context *ctx)
{
    return log_prob_pass(ctx, RK_ROLE_REF, "compute_ref_log_prob", RK_JOB_REF, rk_json_new_object());
}

struct rk_status *rk_flow_add_log_probs(struct rk_flow_context *ctx, uint32_t role, const char *method,
                                        const char *section, struct rk_json *options)
{
    const struct rk_flow_pass pass = log_prob_pass(ctx, role, method, section, options);
    struct rk_driver_result result = {0};
    struct rk_status *st = rk_flow_run_pass(ctx, &pass, &result);

    if (!st)
        st = rk_batch_union(ctx->batch, result.batch);
    if (!st)
        rk_flow_report_routes(ctx->metrics, result.metrics);
    rk_driver_result_fini(&result);
    return st;
}

/* --- log-probs of the policy --- */

#define CHECKED_ROWS_MIN 4 /* of a step whose log-probs are not computed again */

/* Measures the difference between the log-probs of the batch and the rollout's. */
static struct rk_status *compare_batch(struct rk_flow_context *ctx, const struct rk_batch *batch,
                                       struct rk_flow_comparison *c, bool has_to_be_equal)
{
    const void *old, *rollout, *mask;

    RK_TRY(rk_flow_column_of(batch, "old_log_probs", RK_DTYPE_F32, c->num_rows, ctx->response_length, &old));
    RK_TRY(rk_flow_column_of(batch, "rollout_log_probs", RK_DTYPE_F32, c->num_rows, ctx->response_length,
                             &rollout));
    RK_TRY(rk_flow_column_of(batch, "response_mask", RK_DTYPE_I64, c->num_rows, ctx->response_length, &mask));
    c->width = ctx->response_length;
    c->old_log_probs = old;
    c->rollout_log_probs = rollout;
    c->mask = mask;
    RK_TRY(rk_check_finite("old_log_probs", old, mask, c->num_rows, ctx->response_length));
    return rk_flow_compare_log_probs(ctx->metrics, c, has_to_be_equal);
}

/* A few rows, different in every step, the same in every run. */
static int64_t choose_rows(struct rk_flow_context *ctx, int64_t **rows)
{
    int64_t wanted = (CHECKED_ROWS_MIN + ctx->num_replicas - 1) / ctx->num_replicas * ctx->num_replicas;
    int64_t count = RK_MIN(wanted, ctx->num_rows), stride = ctx->num_rows / count;

    *rows = rk_flow_scratch(ctx, (size_t)count, sizeof(**rows));
    for (int64_t i = 0; i < count; i++)
        (*rows)[i] = i * stride + (ctx->step - 1) % stride;
    return count;
}

/* Recomputes some of the log-probs that were taken from the rollout. */
static struct rk_status *check_sample(struct rk_flow_context *ctx)
{
    bool has_to_be_equal = rk_job_log_probs_are_equal(ctx->job, rk_flow_numerics(ctx));
    struct rk_driver_result result = {0};
    struct rk_batch *batch = NULL;
    int64_t *rows, num_rows = choose_rows(ctx, &rows);
    int64_t *seqlens = rk_flow_scratch(ctx, (size_t)num_rows, sizeof(*seqlens));
    struct rk_flow_comparison comparison = {.num_rows = num_rows, .rows = rows};
    struct rk_flow_pass pass = {
        .role = "actor",
        .method = "compute_log_prob",
        .micro = rk_job_log_prob_micro(ctx->job, RK_JOB_ROLLOUT),
        .num_rows = num_rows,
        .seqlens = seqlens,
    };
    struct rk_status *st;

    for (int64_t i = 0; i < num_rows; i++)
        seqlens[i] = ctx->seqlens[rows[i]];
    RK_TRY_GOTO(st, rk_batch_select_idxs(&batch, ctx->batch, rows, num_rows), out);
    pass.batch = batch;
    pass.options = rk_json_new_object();
    rk_job_copy_value(pass.options, "temperature", ctx->job, RK_JOB_ROLLOUT "temperature");
    rk_json_set(pass.options, "calculate_entropy", rk_json_new_bool(false));
    RK_TRY_GOTO(st, rk_flow_run_pass(ctx, &pass, &result), out);
    rk_flow_report_routes(ctx->metrics, result.metrics);
    RK_TRY_GOTO(st, rk_batch_put(batch, "old_log_probs", rk_batch_find(result.batch, "old_log_probs")), out);
    st = compare_batch(ctx, batch, &comparison, has_to_be_equal);
out:
    rk_driver_result_fini(&result);
    rk_batch_destroy(batch);
    return st;
}

static struct rk_status *measure_entropy(struct rk_flow_context *ctx)
{
    double scale = rk_config_is_null(ctx->job, RK_JOB_ACTOR "loss_scale_factor")
                       ? (double)ctx->response_length
                       : rk_config_real(ctx->job, RK_JOB_ACTOR "loss_scale_factor");
    struct rk_loss_matrix matrix = {.num_rows = ctx->num_rows, .width = ctx->response_length};
    const void *entropys, *mask;
    rk_loss_agg_mode_t mode;

    RK_TRY(rk_loss_agg_mode_parse(RK_JOB_ACTOR "loss_agg_mode",
                                  rk_config_string(ctx->job, RK_JOB_ACTOR "loss_agg_mode"), &mode));
    RK_TRY(rk_flow_column(ctx, "entropys", RK_DTYPE_F32, ctx->response_length, &entropys));
    RK_TRY(rk_flow_column(ctx, "response_mask", RK_DTYPE_I64, ctx->response_length, &mask));
    matrix.values = entropys;
    matrix.mask = mask;
    rk_flow_metric(ctx->metrics, "actor/entropy", rk_loss_aggregate(&matrix, mode, scale));
    rk_batch_remove(ctx->batch, "entropys");
    return NULL;
}

static struct rk_status *recompute(struct rk_flow_context *ctx)
{
    struct rk_flow_comparison comparison = {.num_rows = ctx->num_rows};
    bool has_squares = rk_job_needs_sum_pi_squared(ctx->job);
    struct rk_json *options = rk_json_new_object();

    rk_json_set(options, "calculate_sum_pi_squared", rk_json_new_bool(has_squares));
    RK_TRY(rk_flow_add_log_probs(ctx, RK_ROLE_ACTOR, "compute_log_prob", RK_JOB_ROLLOUT, options));
    if (has_squares)
        RK_TRY(rk_flow_check_finite(ctx, "sum_pi_squared"));
    RK_TRY(measure_entropy(ctx));
    return compare_batch(ctx, ctx->batch, &comparison, false);
}

static struct rk_status *old_log_prob(struct rk_flow_context *ctx)
{
    RK_TRY(rk_flow_check_finite(ctx, "rollout_log_probs"));
    if (!rk_job_takes_rollout_log_probs(ctx->job, rk_flow_numerics(ctx)))
        return recompute(ctx);
    RK_TRY(rk_batch_put(ctx->batch, "old_log_probs", rk_batch_find(ctx->batch, "rollout_log_probs")));
    return rk_job_rollout_correction_keys(ctx->job).bypass_mode ? NULL : check_sample(ctx);
}

const struct rk_flow_step rk_step_old_log_prob = {"old_log_prob", "old_log_prob", NULL, old_log_prob};

/* --- log-probs of the reference --- */

static bool needs_ref(const struct rk_flow_context *ctx)
{
    return rk_job_role_needed(ctx->job, RK_ROLE_REF);
}

static struct rk_status *ref_log_prob(struct rk_flow_context *ctx)
{
    RK_TRY(rk_flow_add_log_probs(ctx, RK_ROLE_REF, "compute_ref_log_prob", RK_JOB_REF, rk_json_new_object()));
    return rk_flow_check_finite(ctx, "ref_log_prob");
}

const struct rk_flow_step rk_step_ref = {"ref", "ref", needs_ref, ref_log_prob};
