/* Prompts and responses of a step. */
#include "base/rk_alloc.h"
#include "rl/flows/steps_internal.h"
#include "rl/rk_job.h"

bool rk_flow_filters_groups(const struct rk_flow_context *ctx)
{
    return rk_config_bool(ctx->job, "algorithm.filter_groups.enable");
}

static bool takes_one_batch(const struct rk_flow_context *ctx)
{
    return !rk_flow_filters_groups(ctx);
}

static struct rk_status *take_prompts(struct rk_flow_context *ctx)
{
    const struct rk_prompt_inputs *prompts = rk_flow_prompt_inputs(ctx->inputs);
    const struct rk_run_position *at = &ctx->position;
    const struct rk_dataset_row **rows;

    rows = rk_flow_scratch(ctx, (size_t)ctx->num_prompts, sizeof(*rows));
    for (int64_t i = 0; i < ctx->num_prompts; i++)
        rows[i] = rk_dataset_at(prompts->train, at->epoch, at->next_row + i);
    rk_flow_prompt_state(ctx)->rows = rows;
    return NULL;
}

const struct rk_flow_step rk_step_prompts = {"prompts", NULL, takes_one_batch, take_prompts};

/* The teacher of each row, if there are several. */
static struct rk_status *add_teachers(struct rk_flow_context *ctx)
{
    const struct rk_flow_teachers *teachers = &rk_flow_prompt_inputs(ctx->inputs)->teachers;
    void *chosen;

    if (teachers->count < 2)
        return NULL;
    RK_TRY(rk_batch_add_dense(ctx->batch, RK_FLOW_TEACHER, RK_DTYPE_I64, 1, &ctx->num_rows, &chosen));
    for (int64_t row = 0; row < ctx->num_rows; row++)
        RK_TRY(rk_flow_choose_teacher(&((int64_t *)chosen)[row], teachers,
                                      rk_flow_prompt_state(ctx)->rows[row / ctx->num_samples]));
    return NULL;
}

struct rk_status *rk_flow_add_identity(struct rk_flow_context *ctx)
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
    return add_teachers(ctx);
}

struct rk_status *rk_flow_answer(struct rk_batch **out, struct rk_flow_context *ctx,
                                 const struct rk_dataset_row *const *prompts, int64_t num_prompts,
                                 int64_t first_stream)
{
    int64_t num_rows = num_prompts * ctx->num_samples;
    const struct rk_dataset_row **rows = rk_flow_scratch(ctx, (size_t)num_rows, sizeof(*rows));
    int64_t *streams = rk_flow_scratch(ctx, (size_t)num_rows, sizeof(*streams));
    struct rk_json *sampling = rk_json_new_object();

    for (int64_t row = 0; row < num_rows; row++) {
        rows[row] = prompts[row / ctx->num_samples];
        streams[row] = first_stream + row;
    }
    rk_job_copy_knobs(sampling, ctx->job, RK_JOB_KNOBS_SAMPLING);
    rk_job_copy_value(sampling, "temperature", ctx->job, RK_JOB_ROLLOUT "temperature");
    return rk_flow_generate(out, ctx, &(struct rk_flow_prompts){num_rows, rows, streams}, sampling,
                            ctx->metrics);
}

static struct rk_status *generate(struct rk_flow_context *ctx)
{
    const struct rk_dataset_row **rows = rk_flow_prompt_state(ctx)->rows;

    RK_TRY(rk_flow_answer(&ctx->batch, ctx, rows, ctx->num_prompts, ctx->position.next_random_stream));
    return rk_flow_add_identity(ctx);
}

const struct rk_flow_step rk_step_generate = {"generate", "gen", takes_one_batch, generate};
