/* The critic: values of the tokens, and its update. It has its own mini-batches, so its rows are distributed
 * separately, starting from their order before the actor's layout. */
#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "rl/flows/steps_internal.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

static bool has_critic(const struct rk_flow_context *ctx)
{
    return rk_job_role_needed(ctx->job, RK_ROLE_CRITIC);
}

/* --- values --- */

struct rk_flow_pass rk_flow_values_pass(const struct rk_flow_context *ctx)
{
    return (struct rk_flow_pass){
        .role = "critic",
        .method = "compute_values",
        .micro = rk_job_values_micro(ctx->job),
        .batch = ctx->batch,
        .num_rows = ctx->num_rows,
        .seqlens = ctx->seqlens,
        .options = rk_json_new_object(),
    };
}

static struct rk_status *values(struct rk_flow_context *ctx)
{
    const struct rk_flow_pass pass = rk_flow_values_pass(ctx);
    struct rk_driver_result result = {0};
    struct rk_status *st = rk_flow_run_pass(ctx, &pass, &result);

    if (!st)
        st = rk_batch_union(ctx->batch, result.batch);
    rk_driver_result_fini(&result);
    return st ? st : rk_flow_check_finite(ctx, "values");
}

const struct rk_flow_step rk_step_values = {"values", "values", has_critic, values};

/* --- update --- */

/* Rows in the order in which the critic's replicas take them: order[i] is a row of the batch. */
static struct rk_status *find_order(struct rk_flow_context *ctx, int64_t *order)
{
    int64_t *row_of = rk_flow_scratch(ctx, (size_t)ctx->num_rows, sizeof(*row_of));
    int64_t *seqlens = rk_flow_scratch(ctx, (size_t)ctx->num_rows, sizeof(*seqlens));
    const void *index, *session;

    RK_TRY(rk_batch_get_dense(ctx->batch, "index", RK_DTYPE_I64, 1, NULL, &index));
    RK_TRY(rk_batch_get_dense(ctx->batch, "session", RK_DTYPE_I64, 1, NULL, &session));
    for (int64_t row = 0; row < ctx->num_rows; row++) {
        int64_t place = ((const int64_t *)index)[row] * ctx->num_samples + ((const int64_t *)session)[row];

        row_of[place] = row;
        seqlens[place] = ctx->seqlens[row];
    }
    RK_TRY(rk_flow_layout(ctx, RK_ROLE_CRITIC, seqlens, order));
    for (int64_t i = 0; i < ctx->num_rows; i++)
        order[i] = row_of[order[i]];
    return NULL;
}

static struct rk_status *make_batch(struct rk_batch **out, struct rk_plan *plan, struct rk_flow_context *ctx)
{
    int64_t *order = rk_flow_scratch(ctx, (size_t)ctx->num_rows, sizeof(*order));
    int64_t *seqlens = rk_flow_scratch(ctx, (size_t)ctx->num_rows, sizeof(*seqlens));
    int64_t *loss_tokens = rk_flow_scratch(ctx, (size_t)ctx->num_rows, sizeof(*loss_tokens));
    int64_t *tokens_of;

    RK_TRY(find_order(ctx, order));
    RK_TRY(rk_flow_sum_rows(ctx, "response_mask", ctx->response_length, &tokens_of));
    for (int64_t i = 0; i < ctx->num_rows; i++) {
        seqlens[i] = ctx->seqlens[order[i]];
        loss_tokens[i] = tokens_of[order[i]];
    }
    RK_TRY(rk_flow_update_plan(plan, ctx, RK_ROLE_CRITIC, seqlens, loss_tokens));
    RK_TRY(rk_flow_select(out, ctx->batch, "update_critic", NULL));
    return rk_batch_reorder(*out, order);
}

static struct rk_json *loss_options(const struct rk_config *job)
{
    static const char *const inherited[] = {"loss_agg_mode", "loss_scale_factor"};
    struct rk_json *options = rk_json_new_object();

    for (size_t i = 0; i < RK_ARRAY_LEN(inherited); i++) {
        char *path = rk_format(RK_JOB_ACTOR "%s", inherited[i]);

        rk_job_copy_value(options, inherited[i], job, path);
        rk_free(path);
    }
    rk_job_copy_knobs(options, job, RK_JOB_KNOBS_CRITIC_LOSS);
    return options;
}

/* Runs the update, or starts it if the critic shares no rank with the actor: rk_step_end_update_critic waits
 * for it after the actor's update. */
static struct rk_status *run_update(struct rk_flow_context *ctx, const struct rk_batch *batch,
                                    const struct rk_plan *plan, struct rk_driver_result *result)
{
    struct rk_json *options = loss_options(ctx->job);
    const struct rk_driver_call_args call = {
        .role = "critic", .method = "update_critic", .batch = batch, .options = options, .plan = plan};
    bool is_started;
    struct rk_status *st = rk_flow_start_beside(&is_started, ctx, &call);

    if (!st && !is_started)
        return rk_flow_call(ctx, call.role, call.method, batch, options, plan, result);
    rk_json_free(options);
    return st;
}

static struct rk_status *update_critic(struct rk_flow_context *ctx)
{
    struct rk_driver_result result = {0};
    struct rk_batch *batch = NULL;
    struct rk_plan plan;
    struct rk_status *st;
    bool has;

    RK_TRY(rk_flow_has_loss_tokens(ctx, &has));
    if (!has)
        return NULL;
    st = make_batch(&batch, &plan, ctx);
    if (!st)
        st = run_update(ctx, batch, &plan, &result);
    rk_flow_merge_metrics(ctx->metrics, result.metrics);
    rk_driver_result_fini(&result);
    rk_batch_destroy(batch);
    return st;
}

const struct rk_flow_step rk_step_update_critic = {"update_critic", "update_critic", has_critic,
                                                   update_critic};

static bool is_updating(const struct rk_flow_context *ctx)
{
    return rk_flow_is_started(ctx, RK_ROLE_CRITIC);
}

static struct rk_status *end_update(struct rk_flow_context *ctx)
{
    struct rk_driver_result result = {0};
    struct rk_status *st = rk_future_take(rk_flow_take_started(ctx, RK_ROLE_CRITIC), &result);

    rk_flow_merge_metrics(ctx->metrics, result.metrics);
    rk_driver_result_fini(&result);
    return st;
}

const struct rk_flow_step rk_step_end_update_critic = {"update_critic", "update_critic", is_updating,
                                                       end_update};
