/* Saving and loading of a run: the daemons write and read one part per role that trains, the driver its own.
 * A checkpoint is complete, and named by the tracker, only when both are on the disk and the metrics of its
 * step with them. With async_save the daemons write while training goes on; the next save and the end wait
 * for them. */
#include "rl/flows/steps_internal.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/format/rk_ckpt_dir.h"
#include "base/rk_log.h"
#include "rl/rk_checkpoints.h"
#include "base/rk_small_file.h"
#include "rl/rk_job.h"

static bool saves(const struct rk_flow_context *ctx)
{
    return ctx->checkpoints && ctx->checkpoints->save_freq > 0;
}

static char *part_path(const struct rk_flow_context *ctx, int64_t step, const char *role)
{
    char *step_dir = rk_ckpt_step_dir(ctx->checkpoints->dir, step);
    char *path = rk_path_join(step_dir, role);

    rk_free(step_dir);
    return path;
}

/* --- the daemons' parts --- */

static struct rk_status *call_save(struct rk_flow_context *ctx, const char *role, int64_t step,
                                   bool check_only)
{
    const struct rk_checkpoints *checkpoints = ctx->checkpoints;
    struct rk_json *options = rk_json_new_object();
    char *path = part_path(ctx, step, role);
    struct rk_driver_result result;

    rk_json_set(options, "path", rk_json_new_string(path));
    rk_json_set(options, "contents", rk_json_clone(checkpoints->save_contents));
    rk_json_set(options, "async", rk_json_new_bool(checkpoints->is_async && !check_only));
    rk_json_set(options, "global_step", rk_json_new_int(step));
    rk_json_set(options, "check_only", rk_json_new_bool(check_only));
    rk_free(path);
    RK_TRY(rk_flow_call(ctx, role, "save_checkpoint", NULL, options, NULL, &result));
    rk_driver_result_fini(&result);
    return NULL;
}

static struct rk_status *save_parts(struct rk_flow_context *ctx, int64_t step, bool check_only)
{
    for (const char *const *role = ctx->checkpoints->roles; *role; role++)
        RK_TRY(call_save(ctx, *role, step, check_only));
    return NULL;
}

/* Whether a rank reports that it is still writing. */
static bool is_writing(const struct rk_driver_result *result)
{
    bool is = false;

    for (int32_t i = 0; i < result->num_outputs; i++) {
        const struct rk_json *meta = result->outputs[i] ? rk_batch_meta(result->outputs[i]) : NULL;

        is = is || strcmp(rk_json_as_string(rk_json_find(meta, "state"), ""), "writing") == 0;
    }
    return is;
}

static struct rk_status *wait_for_writers(struct rk_flow_context *ctx, bool wait, bool *is_done)
{
    *is_done = true;
    for (const char *const *role = ctx->checkpoints->roles; *role; role++) {
        struct rk_json *options = rk_json_new_object();
        struct rk_driver_result result;

        rk_json_set(options, "wait", rk_json_new_bool(wait));
        RK_TRY(rk_flow_call(ctx, *role, "wait_checkpoint", NULL, options, NULL, &result));
        *is_done = *is_done && !is_writing(&result);
        rk_driver_result_fini(&result);
    }
    return NULL;
}

/* --- the whole --- */

/* Beside the Hugging Face directories of the parts. */
static void copy_tokenizer(const struct rk_flow_context *ctx, int64_t step)
{
    for (const char *const *role = ctx->checkpoints->roles; *role; role++) {
        char *path = part_path(ctx, step, *role), *hf = rk_path_join(path, "huggingface");

        if (access(hf, W_OK) == 0)
            RK_IGNORE(rk_flow_write_tokenizer(ctx->inputs, hf),
                      "a checkpoint is complete without a tokenizer");
        rk_free(hf);
        rk_free(path);
    }
}

/* All parts are written: the checkpoint becomes the latest. */
static struct rk_status *complete(struct rk_flow_context *ctx, int64_t step)
{
    const struct rk_checkpoints *checkpoints = ctx->checkpoints;

    copy_tokenizer(ctx, step);
    RK_TRY(rk_checkpoints_complete(checkpoints, step));
    ctx->saved_step = step;
    return checkpoints->max_to_keep > 0 ? rk_checkpoints_prune(checkpoints, checkpoints->max_to_keep) : NULL;
}

struct rk_status *rk_flow_checkpoint_finish(struct rk_flow_context *ctx, bool wait)
{
    int64_t step = ctx->writing_step;
    bool is_done = true;
    struct rk_status *st;

    if (step == 0)
        return NULL;
    st = wait_for_writers(ctx, wait, &is_done);
    if (!st && !is_done)
        return NULL;
    ctx->writing_step = 0;
    if (!st)
        st = complete(ctx, step);
    return st ? RK_WRAP(st, "the checkpoint of step %lld", (long long)step) : NULL;
}

struct rk_status *rk_flow_checkpoint_check(struct rk_flow_context *ctx)
{
    struct rk_status *st = saves(ctx) ? save_parts(ctx, ctx->step + 1, true) : NULL;

    return st ? RK_WRAP(st, "stopped before training, because no checkpoint can be saved in %s",
                        ctx->checkpoints->dir)
              : NULL;
}

static bool is_due(const struct rk_flow_context *ctx)
{
    return saves(ctx) && (ctx->step % ctx->checkpoints->save_freq == 0 || ctx->step == ctx->total_steps ||
                          (ctx->checkpoints->after_each_epoch && ctx->step % ctx->steps_per_epoch == 0));
}

/* verl's order: with 2 or more to keep, old ones are removed before the save. */
static struct rk_status *save(struct rk_flow_context *ctx)
{
    const struct rk_checkpoints *checkpoints = ctx->checkpoints;

    RK_TRY(rk_flow_checkpoint_finish(ctx, true));
    if (checkpoints->max_to_keep >= 2 && !checkpoints->is_async)
        RK_TRY(rk_checkpoints_prune(checkpoints, checkpoints->max_to_keep - 1));
    RK_TRY(save_parts(ctx, ctx->step, false));
    ctx->writing_step = ctx->step;
    return NULL;
}

const struct rk_flow_step rk_step_save_checkpoint = {"save_checkpoint", "save_checkpoint", is_due, save};

struct rk_status *rk_flow_checkpoint_commit(struct rk_flow_context *ctx)
{
    struct rk_json *state;
    struct rk_status *st;

    if (ctx->writing_step != ctx->step)
        return rk_flow_checkpoint_finish(ctx, false);
    if (ctx->sink.on_saved)
        RK_TRY(ctx->sink.on_saved(ctx->sink.user));
    state = rk_run_state_make(ctx->checkpoints->identity, ctx->job, &ctx->position, &ctx->kl_ctrl, ctx->step);
    rk_json_set(state, "total_steps", rk_json_new_int(ctx->total_steps));
    st = rk_checkpoints_write_state(ctx->checkpoints, state, ctx->step);
    rk_json_free(state);
    RK_TRY(st);
    return rk_flow_checkpoint_finish(ctx, false);
}

/* --- going on --- */

static struct rk_status *check_loaded(const struct rk_flow_context *ctx,
                                      const struct rk_driver_result *result)
{
    const struct rk_checkpoints *checkpoints = ctx->checkpoints;

    for (int32_t i = 0; i < result->num_outputs; i++) {
        const struct rk_json *meta = result->outputs[i] ? rk_batch_meta(result->outputs[i]) : NULL;
        int64_t step = rk_json_as_int(rk_json_find(meta, "global_step"), -1);

        if (step != checkpoints->resume_step)
            return RK_FAIL_REASON(RK_DATA_LOSS, "CHECKPOINT_DAMAGED",
                                  "the daemons loaded step %lld from %s, expected step %lld", (long long)step,
                                  checkpoints->resume_path, (long long)checkpoints->resume_step);
    }
    return NULL;
}

/* Without the optimizer's state where there is no optimizer. */
static struct rk_json *contents_to_load(const struct rk_flow_context *ctx)
{
    const struct rk_json *all = ctx->checkpoints->load_contents;
    struct rk_json *contents = rk_json_new_array();

    for (int64_t i = 0; i < rk_json_count(all); i++) {
        const struct rk_json *item = rk_json_at(all, i);

        if (!ctx->validates_only || strcmp(rk_json_as_string(item, ""), "optimizer") != 0)
            rk_json_append(contents, rk_json_clone(item));
    }
    return contents;
}

static struct rk_status *load_part(struct rk_flow_context *ctx, const char *role)
{
    const struct rk_checkpoints *checkpoints = ctx->checkpoints;
    struct rk_json *options = rk_json_new_object();
    char *path = rk_path_join(checkpoints->resume_path, role);
    struct rk_driver_result result;
    struct rk_status *st;

    rk_json_set(options, "path", rk_json_new_string(path));
    rk_json_set(options, "contents", contents_to_load(ctx));
    rk_free(path);
    st = rk_flow_call(ctx, role, "load_checkpoint", NULL, options, NULL, &result);
    if (!st)
        st = check_loaded(ctx, &result);
    rk_driver_result_fini(&result);
    return st ? RK_WRAP(st, "loading %s", checkpoints->resume_path) : NULL;
}

struct rk_status *rk_flow_checkpoint_load(struct rk_flow_context *ctx)
{
    const struct rk_checkpoints *checkpoints = ctx->checkpoints;

    if (!checkpoints || !checkpoints->resume_path)
        return NULL;
    for (const char *const *role = checkpoints->roles; *role; role++) {
        if (rk_job_role_has_model(ctx->job, rk_role_parse(*role)))
            RK_TRY(load_part(ctx, *role));
    }
    if (ctx->kl_ctrl.is_adaptive && !isnan(checkpoints->resume_kl_coef))
        ctx->kl_ctrl.kl_coef = checkpoints->resume_kl_coef;
    ctx->step = ctx->trained_step = checkpoints->resume_step;
    ctx->position = checkpoints->position;
    return NULL;
}
