/* The flow table, and the loop that runs one. */
#include "driver-cli/flows/flows_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_time.h"
#include "driver-cli/job_internal.h"

static const struct rk_flow *const flows[] = {
    &rk_flow_grpo,
};

const struct rk_flow *rk_flow_find(const char *adv_estimator)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(flows); i++) {
        if (strcmp(flows[i]->adv_estimator, adv_estimator) == 0)
            return flows[i];
    }
    return NULL;
}

struct rk_status *rk_flow_context_init(struct rk_flow_context *ctx, const struct rk_config *job,
                                       const struct rk_flow_inputs *inputs, struct rk_driver *driver,
                                       const struct rk_flow_sink *sink)
{
    int64_t num_data = rk_dataset_num_rows(inputs->dataset);

    *ctx = (struct rk_flow_context){.job = job, .inputs = inputs, .driver = driver, .sink = *sink};
    ctx->prompt_length = rk_config_int(job, "data.max_prompt_length");
    ctx->response_length = rk_config_int(job, "data.max_response_length");
    ctx->num_prompts = rk_config_int(job, "data.train_batch_size");
    ctx->num_samples = rk_config_int(job, RK_JOB_ROLLOUT "n");
    ctx->num_rows = ctx->num_prompts * ctx->num_samples;
    ctx->mini_batch_rows = rk_config_int(job, RK_JOB_ACTOR "ppo_mini_batch_size") * ctx->num_samples;
    ctx->num_replicas = rk_driver_num_workers(driver) / rk_job_actor_tp(job);
    ctx->steps_per_epoch = num_data / ctx->num_prompts; /* the last, smaller batch of an epoch is dropped */
    ctx->num_left_out = num_data % ctx->num_prompts;
    if (ctx->steps_per_epoch == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "data.train_files hold %lld prompts, fewer than data.train_batch_size=%lld",
                       (long long)num_data, (long long)ctx->num_prompts);
    ctx->total_steps = rk_job_int_or(job, "trainer.total_training_steps",
                                     ctx->steps_per_epoch * rk_config_int(job, "trainer.total_epochs"));
    ctx->validates_only = rk_config_bool(job, "trainer.val_only");
    ctx->arena = rk_arena_create(1 << 16, 0);
    return NULL;
}

static void end_step(struct rk_flow_context *ctx)
{
    rk_batch_destroy(ctx->batch);
    rk_json_free(ctx->metrics);
    rk_flow_scores_fini(&ctx->scores);
    ctx->batch = NULL;
    ctx->metrics = NULL;
    ctx->rows = NULL;
    ctx->seqlens = NULL;
    if (ctx->arena)
        rk_arena_reset(ctx->arena);
}

void rk_flow_context_fini(struct rk_flow_context *ctx)
{
    end_step(ctx);
    rk_arena_destroy(ctx->arena);
    ctx->arena = NULL;
}

static struct rk_status *run_part(struct rk_flow_context *ctx, const struct rk_flow_step *part)
{
    int64_t began_ns = rk_time_now_ns();

    if (part->is_needed && !part->is_needed(ctx))
        return NULL;
    if (ctx->sink.on_phase)
        ctx->sink.on_phase(ctx->sink.user, part->name);
    RK_TRY(part->run(ctx));
    if (part->timer) {
        char *name = rk_format("timing_s/%s", part->timer);

        rk_flow_metric(ctx->metrics, name, (double)(rk_time_now_ns() - began_ns) / 1e9);
        rk_free(name);
    }
    return NULL;
}

static struct rk_status *run_step(const struct rk_flow *flow, struct rk_flow_context *ctx)
{
    ctx->started_ns = rk_time_now_ns();
    ctx->epoch = (ctx->step - 1) / ctx->steps_per_epoch;
    ctx->metrics = rk_json_new_object();
    rk_json_set(ctx->metrics, "training/global_step", rk_json_new_int(ctx->step));
    rk_json_set(ctx->metrics, "training/epoch", rk_json_new_int(ctx->epoch));
    for (const struct rk_flow_step *part = flow->steps; part->name; part++) {
        struct rk_status *st = run_part(ctx, part);

        if (st)
            return RK_WRAP(st, "step %lld, %s", (long long)ctx->step, part->name);
    }
    if (ctx->sink.on_step)
        RK_TRY(ctx->sink.on_step(ctx->sink.user, ctx->step, ctx->metrics));
    return rk_flow_checkpoint_commit(ctx);
}

/* A validation of the model that a run begins with, as a step of its own. */
static struct rk_status *validate_first(struct rk_flow_context *ctx)
{
    static const struct rk_flow_step part = {"validate", "testing", NULL, rk_flow_validate};
    struct rk_status *st;

    ctx->metrics = rk_json_new_object();
    rk_json_set(ctx->metrics, "training/global_step", rk_json_new_int(ctx->step));
    st = run_part(ctx, &part);
    if (st)
        st = RK_WRAP(st, "step %lld, validate", (long long)ctx->step);
    else if (ctx->sink.on_step)
        st = ctx->sink.on_step(ctx->sink.user, ctx->step, ctx->metrics);
    end_step(ctx);
    return st;
}

/* The model that a run goes on with was validated, or not, when its step ended. */
static bool validates_first(const struct rk_flow_context *ctx)
{
    return ctx->inputs->val_dataset && rk_config_bool(ctx->job, "trainer.val_before_train") &&
           (ctx->step == 0 || ctx->validates_only);
}

struct rk_status *rk_flow_run(const struct rk_flow *flow, struct rk_flow_context *ctx)
{
    struct rk_status *st = NULL;

    RK_TRY(flow->setup(ctx));
    if (!ctx->validates_only)
        RK_TRY(rk_flow_check_export(ctx));
    RK_TRY(rk_flow_checkpoint_load(ctx));
    if (!ctx->validates_only)
        RK_TRY(rk_flow_checkpoint_check(ctx));
    if (ctx->sink.on_begin)
        ctx->sink.on_begin(ctx->sink.user, ctx->step + 1, ctx->total_steps);
    if (validates_first(ctx))
        RK_TRY(validate_first(ctx));
    if (ctx->validates_only)
        return NULL;
    while (ctx->step < ctx->total_steps && !st) {
        ctx->step++;
        st = run_step(flow, ctx);
        end_step(ctx);
    }
    return st ? st : rk_flow_checkpoint_finish(ctx, true);
}
