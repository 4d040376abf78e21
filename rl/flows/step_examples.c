/* Steps of flows whose batches are examples of the data. */
#include "base/rk_time.h"
#include "rl/flows/steps_internal.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

static struct rk_status *take_examples(struct rk_flow_context *ctx)
{
    const struct rk_run_position *at = &ctx->position;
    const struct rk_example **examples = rk_flow_scratch(ctx, (size_t)ctx->num_prompts, sizeof(*examples));
    int64_t shape[2];
    const void *ids;

    for (int64_t i = 0; i < ctx->num_prompts; i++)
        examples[i] = rk_examples_at(rk_flow_example_inputs(ctx->inputs)->train, at->epoch, at->next_row + i);
    RK_TRY(rk_flow_collate(&ctx->batch, examples, ctx->num_prompts, ctx->inputs->pad_id));
    RK_TRY(rk_batch_get_dense(ctx->batch, "input_ids", RK_DTYPE_I64, 2, shape, &ids));
    ctx->prompt_length = 1;
    ctx->response_length = shape[1] - 1;
    return NULL;
}

const struct rk_flow_step rk_step_examples = {"examples", NULL, NULL, take_examples};

/* --- updates: one optimizer step over the batch --- */

struct rk_status *rk_flow_example_plan(struct rk_plan *plan, struct rk_flow_context *ctx,
                                       const int64_t *seqlens, const int64_t *loss_tokens)
{
    struct rk_job_micro micro = rk_job_actor_micro(ctx->job);
    struct rk_plan_request request = {
        .num_rows = ctx->num_rows,
        .seqlens = seqlens,
        .loss_tokens = loss_tokens,
        .group_size = ctx->group_size,
    };

    return rk_flow_make_plan(plan, ctx, RK_ROLE_ACTOR, &micro, request);
}

static struct rk_status *make_plan(struct rk_flow_context *ctx, struct rk_plan *plan)
{
    int64_t *loss_tokens;

    RK_TRY(rk_flow_sum_rows(ctx, "response_mask", ctx->response_length, &loss_tokens));
    return rk_flow_example_plan(plan, ctx, ctx->seqlens, loss_tokens);
}

/* Steals the options. */
static struct rk_status *update(struct rk_flow_context *ctx, const char *method, struct rk_json *options)
{
    struct rk_driver_result result = {0};
    struct rk_batch *batch = NULL;
    struct rk_plan plan;
    struct rk_status *st = make_plan(ctx, &plan);

    if (!st)
        st = rk_flow_select(&batch, ctx->batch, method, NULL);
    if (st) {
        rk_json_free(options);
        return st;
    }
    st = rk_flow_call(ctx, "actor", method, batch, options, &plan, &result);
    rk_flow_merge_metrics(ctx->metrics, result.metrics);
    rk_driver_result_fini(&result);
    rk_batch_destroy(batch);
    if (!st)
        ctx->trained_step = ctx->step;
    return st;
}

static struct rk_status *update_sft(struct rk_flow_context *ctx)
{
    return update(ctx, "update_sft", rk_json_new_object());
}

const struct rk_flow_step rk_step_update_sft = {"update_sft", "update_sft", NULL, update_sft};

static struct rk_status *update_dpo(struct rk_flow_context *ctx)
{
    struct rk_json *options = rk_json_new_object();

    rk_job_copy_knobs(options, ctx->job, RK_JOB_KNOBS_DPO);
    return update(ctx, "update_dpo", options);
}

const struct rk_flow_step rk_step_update_dpo = {"update_dpo", "update_dpo", NULL, update_dpo};

/* --- numbers --- */

static struct rk_status *measure(struct rk_flow_context *ctx)
{
    double step_s = (double)(rk_time_now_ns() - ctx->started_ns) / 1e9;
    int64_t num_tokens = 0, num_loss_tokens = 0, *loss_tokens;

    RK_TRY(rk_flow_sum_rows(ctx, "response_mask", ctx->response_length, &loss_tokens));
    for (int64_t row = 0; row < ctx->num_rows; row++) {
        num_tokens += ctx->seqlens[row];
        num_loss_tokens += loss_tokens[row];
    }
    rk_flow_metric(ctx->metrics, "timing_s/step", step_s);
    rk_flow_metric(ctx->metrics, "train/global_tokens", (double)num_tokens);
    rk_flow_metric(ctx->metrics, "train/loss_tokens", (double)num_loss_tokens);
    rk_flow_speed_metrics(ctx->metrics, num_tokens, num_loss_tokens, step_s,
                          rk_driver_num_workers(ctx->driver));
    rk_flow_mfu_metrics(ctx);
    return NULL;
}

const struct rk_flow_step rk_step_example_metrics = {"metrics", NULL, NULL, measure};
