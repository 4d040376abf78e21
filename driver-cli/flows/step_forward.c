/* Passes over the batch that train nothing: log-probs of the policy and of its reference. */
#include "base/rk_loss_agg.h"
#include "driver-cli/flows/flows_internal.h"
#include "driver-cli/job_internal.h"
#include "proto/rk_methods.h"

static struct rk_status *make_forward_plan(struct rk_flow_context *ctx, struct rk_job_micro micro,
                                           int32_t num_replicas, struct rk_plan *plan)
{
    struct rk_plan_request request = {
        .num_rows = ctx->num_rows,
        .num_replicas = num_replicas,
        .seqlens = ctx->seqlens,
        .use_dynamic_bsz = micro.use_dynamic_bsz,
        .max_token_len = micro.max_token_len,
        .micro_batch_rows = micro.micro_batch_rows,
        .workload = ctx->inputs->workload,
    };

    return rk_plan_build(plan, ctx->arena, &request);
}

static const char *const token_columns[] = {"input_ids", "attention_mask", "position_ids", "responses", NULL};

/* Runs a forward pass over the batch and adds its columns. */
static struct rk_status *add_log_probs(struct rk_flow_context *ctx, const char *role, const char *method,
                                       const char *section, int32_t num_replicas)
{
    struct rk_json *options = rk_json_new_object();
    struct rk_driver_result result = {0};
    struct rk_batch *tokens = NULL;
    struct rk_plan plan;
    struct rk_status *st;

    rk_job_copy_value(options, "temperature", ctx->job, RK_JOB_ROLLOUT "temperature");
    st = make_forward_plan(ctx, rk_job_log_prob_micro(ctx->job, section), num_replicas, &plan);
    if (!st)
        st = rk_flow_select(&tokens, ctx, token_columns);
    if (st) {
        rk_json_free(options);
        return st;
    }
    st = rk_flow_call(ctx, role, method, tokens, options, &plan, &result);
    if (!st)
        st = rk_batch_union(ctx->batch, result.batch);
    rk_driver_result_fini(&result);
    rk_batch_destroy(tokens);
    return st;
}

/* What the daemons computed, at the tokens that count. */
static struct rk_status *check_finite(const struct rk_flow_context *ctx, const char *name)
{
    const void *values, *mask;

    RK_TRY(rk_flow_column(ctx, name, RK_DTYPE_F32, ctx->response_length, &values));
    RK_TRY(rk_flow_column(ctx, "response_mask", RK_DTYPE_I64, ctx->response_length, &mask));
    return rk_check_finite(name, values, mask, ctx->num_rows, ctx->response_length);
}

static struct rk_status *old_log_prob(struct rk_flow_context *ctx)
{
    const void *entropys, *mask, *old, *rollout;
    double scale = rk_config_is_null(ctx->job, RK_JOB_ACTOR "loss_scale_factor")
                       ? (double)ctx->response_length
                       : rk_config_real(ctx->job, RK_JOB_ACTOR "loss_scale_factor");
    struct rk_loss_matrix matrix = {.num_rows = ctx->num_rows, .width = ctx->response_length};
    rk_loss_agg_mode_t mode;

    RK_TRY(rk_loss_agg_mode_parse(RK_JOB_ACTOR "loss_agg_mode",
                                  rk_config_string(ctx->job, RK_JOB_ACTOR "loss_agg_mode"), &mode));
    RK_TRY(add_log_probs(ctx, "actor", "compute_log_prob", RK_JOB_ROLLOUT, ctx->num_replicas));
    RK_TRY(check_finite(ctx, "rollout_log_probs"));
    RK_TRY(check_finite(ctx, "old_log_probs"));
    RK_TRY(rk_flow_column(ctx, "entropys", RK_DTYPE_F32, ctx->response_length, &entropys));
    RK_TRY(rk_flow_column(ctx, "response_mask", RK_DTYPE_I64, ctx->response_length, &mask));
    RK_TRY(rk_flow_column(ctx, "old_log_probs", RK_DTYPE_F32, ctx->response_length, &old));
    RK_TRY(rk_flow_column(ctx, "rollout_log_probs", RK_DTYPE_F32, ctx->response_length, &rollout));
    matrix.values = entropys;
    matrix.mask = mask;
    rk_flow_metric(ctx->metrics, "actor/entropy", rk_loss_aggregate(&matrix, mode, scale));
    rk_flow_probs_diff(ctx->metrics, old, rollout, mask, ctx->num_rows * ctx->response_length);
    rk_batch_remove(ctx->batch, "entropys");
    return NULL;
}

const struct rk_flow_step rk_step_old_log_prob = {"old_log_prob", "old_log_prob", NULL, old_log_prob};

static bool needs_ref(const struct rk_flow_context *ctx)
{
    return rk_job_role_needed(ctx->job, RK_ROLE_REF);
}

static struct rk_status *ref_log_prob(struct rk_flow_context *ctx)
{
    RK_TRY(add_log_probs(ctx, "ref", "compute_ref_log_prob", RK_JOB_REF,
                         rk_flow_num_replicas(ctx, RK_ROLE_REF)));
    return check_finite(ctx, "ref_log_prob");
}

const struct rk_flow_step rk_step_ref = {"ref", "ref", needs_ref, ref_log_prob};
