/* The flow table, and the loop that runs one. */
#include "rl/flows/steps_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_time.h"
#include "rl/rk_checkpoints.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

static const struct rk_flow *const flows[] = {
    &rk_flow_rl,
    &rk_flow_sft,
    &rk_flow_dpo,
};

const struct rk_flow *const *rk_flows(int64_t *count)
{
    *count = RK_ARRAY_LEN(flows);
    return flows;
}

const struct rk_flow *rk_flow_of(const struct rk_config *job)
{
    const char *type = rk_config_string(job, "algorithm.type");

    for (size_t i = 0; i < RK_ARRAY_LEN(flows); i++) {
        if (strcmp(flows[i]->name, type) == 0)
            return flows[i];
    }
    RK_ASSERT(!"the choices of algorithm.type are the rows of the table");
    return NULL;
}

/* The sizes of a step and of an epoch, whose last, smaller batch is dropped. */
static struct rk_status *set_sizes(struct rk_flow_context *ctx)
{
    const struct rk_flow_data *data = ctx->flow->data;
    int64_t num_data = rk_flow_inputs_num_rows(ctx->inputs);

    ctx->num_prompts = rk_config_int(ctx->job, "data.train_batch_size");
    ctx->num_samples = data->num_sequences(ctx->job);
    ctx->num_rows = ctx->num_prompts * ctx->num_samples;
    ctx->group_size = ctx->flow->group_size;
    ctx->mini_batch_rows = data->step_rows(ctx->job, RK_ROLE_ACTOR) * ctx->num_samples;
    ctx->steps_per_epoch = num_data / ctx->num_prompts;
    ctx->num_left_out = rk_flow_filters_groups(ctx) ? 0 : num_data % ctx->num_prompts;
    if (ctx->steps_per_epoch == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "data.train_files have %lld %s, expected at least data.train_batch_size=%lld",
                       (long long)num_data, data->rows, (long long)ctx->num_prompts);
    return NULL;
}

struct rk_status *rk_flow_context_init(struct rk_flow_context *ctx, const struct rk_config *job,
                                       const struct rk_flow_inputs *inputs, struct rk_driver *driver,
                                       const struct rk_flow_sink *sink)
{
    *ctx = (struct rk_flow_context){
        .flow = rk_flow_of(job), .job = job, .inputs = inputs, .driver = driver, .sink = *sink};
    RK_TRY(rk_job_meshes_create(&ctx->meshes, job, rk_driver_num_workers(driver)));
    ctx->num_replicas = rk_flow_num_replicas(ctx, RK_ROLE_ACTOR);
    RK_TRY(set_sizes(ctx));
    if (ctx->flow->data->init)
        ctx->flow->data->init(ctx);
    ctx->total_steps = rk_job_int_or(job, "trainer.total_training_steps",
                                     ctx->steps_per_epoch * rk_config_int(job, "trainer.total_epochs"));
    ctx->position = rk_run_position_after(job, rk_flow_inputs_num_rows(inputs), 0);
    ctx->validates_only = rk_config_bool(job, "trainer.val_only");
    ctx->arena = rk_arena_create(1 << 16, 0);
    return NULL;
}

static void end_step(struct rk_flow_context *ctx)
{
    rk_flow_drop_passes(ctx);
    rk_batch_destroy(ctx->batch);
    rk_json_free(ctx->metrics);
    if (ctx->flow && ctx->flow->data->end_step) /* a zeroed context has none */
        ctx->flow->data->end_step(ctx);
    ctx->batch = NULL;
    ctx->metrics = NULL;
    ctx->seqlens = NULL;
    if (ctx->arena)
        rk_arena_reset(ctx->arena);
}

void rk_flow_context_fini(struct rk_flow_context *ctx)
{
    end_step(ctx);
    rk_flow_profile_fini(ctx);
    rk_job_meshes_fini(&ctx->meshes);
    rk_arena_destroy(ctx->arena);
    ctx->arena = NULL;
}

static struct rk_status *run_part(struct rk_flow_context *ctx, const struct rk_flow_step *part)
{
    int64_t began_ns = rk_time_now_ns();
    struct rk_status *st;

    if (ctx->sink.on_phase)
        ctx->sink.on_phase(ctx->sink.user, part->name);
    st = part->run(ctx);
    if (st)
        return RK_WRAP(st, "step %lld, %s", (long long)ctx->step, part->name);
    rk_flow_profile_part(ctx, part->name, began_ns);
    if (part->timer) {
        char *name = rk_format("timing_s/%s", part->timer);

        rk_flow_metric(ctx->metrics, name, (double)(rk_time_now_ns() - began_ns) / 1e9);
        rk_free(name);
    }
    return NULL;
}

static struct rk_status *run_step(struct rk_flow_context *ctx)
{
    ctx->started_ns = rk_time_now_ns();
    ctx->epoch = (ctx->step - 1) / ctx->steps_per_epoch;
    ctx->metrics = rk_json_new_object();
    rk_json_set(ctx->metrics, "training/global_step", rk_json_new_int(ctx->step));
    rk_json_set(ctx->metrics, "training/epoch", rk_json_new_int(ctx->epoch));
    RK_TRY(rk_flow_profile_begin(ctx));
    for (const struct rk_flow_step *const *part = ctx->flow->steps; *part; part++) {
        if (!(*part)->is_needed || (*part)->is_needed(ctx))
            RK_TRY(run_part(ctx, *part));
    }
    RK_TRY(rk_flow_profile_end(ctx));
    if (!rk_flow_filters_groups(ctx)) /* otherwise the step has advanced it */
        ctx->position = rk_run_position_after(ctx->job, rk_flow_inputs_num_rows(ctx->inputs), ctx->step);
    if (ctx->sink.on_step)
        RK_TRY(ctx->sink.on_step(ctx->sink.user, ctx->step, ctx->metrics));
    return rk_flow_checkpoint_commit(ctx);
}

/* A validation of the initial model of a run, as a separate step. */
static struct rk_status *validate_first(struct rk_flow_context *ctx)
{
    struct rk_status *st;

    ctx->metrics = rk_json_new_object();
    rk_json_set(ctx->metrics, "training/global_step", rk_json_new_int(ctx->step));
    st = run_part(ctx, ctx->flow->validate);
    if (!st && ctx->sink.on_step)
        st = ctx->sink.on_step(ctx->sink.user, ctx->step, ctx->metrics);
    end_step(ctx);
    return st;
}

/* The validation of a resumed model belongs to the step that it resumes from. */
static bool validates_first(const struct rk_flow_context *ctx)
{
    return !rk_config_is_null(ctx->job, "data.val_files") &&
           rk_config_bool(ctx->job, "trainer.val_before_train") && (ctx->step == 0 || ctx->validates_only);
}

struct rk_status *rk_flow_run(struct rk_flow_context *ctx)
{
    struct rk_status *st = NULL;

    RK_TRY(rk_flow_setup(ctx));
    if (!ctx->validates_only)
        RK_TRY(rk_flow_check_export(ctx));
    RK_TRY(rk_flow_checkpoint_load(ctx));
    if (!ctx->validates_only)
        RK_TRY(rk_flow_checkpoint_check(ctx));
    if (rk_job_moves_weights(ctx->job))
        RK_TRY(rk_flow_update_weights(ctx));
    if (ctx->sink.on_begin)
        ctx->sink.on_begin(ctx->sink.user, ctx->step + 1, ctx->total_steps);
    if (validates_first(ctx))
        RK_TRY(validate_first(ctx));
    if (ctx->validates_only)
        return NULL;
    while (ctx->step < ctx->total_steps && !st) {
        ctx->step++;
        st = run_step(ctx);
        end_step(ctx);
    }
    return st ? st : rk_flow_checkpoint_finish(ctx, true);
}
