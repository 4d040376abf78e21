/* Prompts and responses of a step. */
#include "base/rk_alloc.h"
#include "driver-cli/flows/flows_internal.h"
#include "driver-cli/job_internal.h"

static struct rk_status *take_prompts(struct rk_flow_context *ctx)
{
    int64_t first = (ctx->step - 1) % ctx->steps_per_epoch * ctx->num_prompts;

    ctx->rows = rk_flow_scratch(ctx, (size_t)ctx->num_prompts, sizeof(*ctx->rows));
    for (int64_t i = 0; i < ctx->num_prompts; i++)
        ctx->rows[i] = rk_dataset_at(ctx->inputs->dataset, ctx->epoch, first + i);
    return NULL;
}

const struct rk_flow_step rk_step_prompts = {"prompts", NULL, NULL, take_prompts};

static struct rk_status *add_identity(struct rk_flow_context *ctx)
{
    const char **uids = rk_flow_scratch(ctx, (size_t)ctx->num_rows, sizeof(*uids));
    struct rk_column *column;
    void *index, *session;

    for (int64_t row = 0; row < ctx->num_rows; row++) {
        char *uid = rk_format("%lld-%lld", (long long)ctx->step, (long long)(row / ctx->num_samples));

        uids[row] = rk_arena_strdup(ctx->arena, uid);
        rk_free(uid);
    }
    RK_TRY(rk_column_create_strings(&column, ctx->num_rows, uids, false));
    RK_TRY(rk_batch_put_new(ctx->batch, "uid", column));
    RK_TRY(rk_batch_add_dense(ctx->batch, "index", RK_DTYPE_I64, 1, &ctx->num_rows, &index));
    RK_TRY(rk_batch_add_dense(ctx->batch, "session", RK_DTYPE_I64, 1, &ctx->num_rows, &session));
    for (int64_t row = 0; row < ctx->num_rows; row++) {
        ((int64_t *)index)[row] = row / ctx->num_samples;
        ((int64_t *)session)[row] = row % ctx->num_samples;
    }
    return NULL;
}

/* Each prompt n times, one after the other. */
static struct rk_status *generate(struct rk_flow_context *ctx)
{
    const struct rk_dataset_row **rows = rk_flow_scratch(ctx, (size_t)ctx->num_rows, sizeof(*rows));
    int64_t *streams = rk_flow_scratch(ctx, (size_t)ctx->num_rows, sizeof(*streams));
    struct rk_flow_prompts prompts = {ctx->num_rows, rows, streams};
    struct rk_json *sampling = rk_json_new_object();

    for (int64_t row = 0; row < ctx->num_rows; row++) {
        rows[row] = ctx->rows[row / ctx->num_samples];
        streams[row] = (ctx->step - 1) * ctx->num_rows + row;
    }
    rk_job_copy_knobs(sampling, ctx->job, RK_JOB_KNOBS_SAMPLING);
    rk_job_copy_value(sampling, "temperature", ctx->job, RK_JOB_ROLLOUT "temperature");
    RK_TRY(rk_flow_generate(&ctx->batch, ctx, &prompts, sampling, ctx->metrics));
    return add_identity(ctx);
}

const struct rk_flow_step rk_step_generate = {"generate", "gen", NULL, generate};
