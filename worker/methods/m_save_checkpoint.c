/* save_checkpoint: writes the role's part of a training checkpoint. All ranks write, so each resolves the
 * path below its own roots. Meta of the result: state ("writing" with async, otherwise "done"), path,
 * global_step, bytes (0 while it is being written), copy_seconds (the time for which training waited for the
 * copy), seconds. With check_only nothing is written, but the host memory of the copy is allocated: a driver
 * calls it once before training. */
#include "worker/methods/checkpoint_internal.h"

#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/format/rk_ckpt_dir.h"
#include "base/rk_str.h"
#include "worker/methods/update_internal.h"

struct options {
    const char *path, *name; /* the last component is the part's */
    bool is_async, check_only;
    int64_t global_step;
    uint32_t contents;
};

/* A part in another place would be refused by every load. */
static struct rk_status *check_place(const struct rk_method_call *call, const struct options *options)
{
    char *step_dir = rk_path_dir(options->path);
    int64_t step = options->global_step;
    struct rk_status *st = NULL;

    if (strcmp(options->name, call->role->name) != 0)
        st = RK_FAIL(RK_INVALID_ARGUMENT, "path '%s': expected a directory with the name of the role, '%s'",
                     options->path, call->role->name);
    else if (rk_ckpt_step_parse(step_dir, &step) && step != options->global_step)
        st = RK_FAIL(RK_INVALID_ARGUMENT, "path '%s': expected the step of global_step=%lld", options->path,
                     (long long)options->global_step);
    rk_free(step_dir);
    return st;
}

static struct rk_status *read_options(const struct rk_method_call *call, struct options *out)
{
    const struct rk_json *options = call->job->options;
    const char *slash;

    RK_TRY(rk_json_get_string(options, "", "path", &out->path));
    RK_TRY(rk_json_get_bool(options, "", "async", &out->is_async));
    RK_TRY(rk_json_get_bool(options, "", "check_only", &out->check_only));
    RK_TRY(rk_json_get_i64(options, "", "global_step", 0, RK_CKPT_STEP_MAX, &out->global_step));
    RK_TRY(rk_checkpoint_read_contents(call, &out->contents));
    if (!out->contents)
        return RK_FAIL(RK_INVALID_ARGUMENT, "contents: expected a list of names");
    slash = strrchr(out->path, '/');
    out->name = slash ? slash + 1 : "";
    if (out->name[0] == '\0' || out->name[0] == '.')
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "path '%s': expected an absolute path that ends with the name of a role", out->path);
    if (!out->check_only)
        RK_TRY(rk_update_check_no_gradients(call->role, "a checkpoint"));
    RK_TRY(rk_model_check_contents(call->role->model, out->contents));
    return check_place(call, out);
}

/* The directory that the part will be in. */
static struct rk_status *open_step_dir(struct rk_method_call *call, const struct options *options,
                                       char **step_dir)
{
    uint64_t bytes = rk_model_checkpoint_bytes(call->role->model, options->contents);
    char *path = rk_path_dir(options->path);
    struct rk_status *st = rk_method_call_open_output(call, RK_OUTPUT_CHECKPOINT, path, bytes, step_dir);

    rk_free(path);
    return st;
}

static struct rk_status *save(struct rk_method_call *call, const struct options *options,
                              const char *part_dir, struct rk_checkpoint_report *report)
{
    const struct rk_checkpoint_save save = {
        .part_dir = part_dir,
        .role = call->role->name,
        .global_step = options->global_step,
        .contents = options->contents,
        .is_async = options->is_async,
    };

    return rk_saver_save(call->role->saver, &save, &call->hooks, report);
}

struct rk_status *rk_m_save_checkpoint(struct rk_method_call *call)
{
    struct rk_checkpoint_report report = {.state = RK_CHECKPOINT_NONE};
    struct options options = {0};
    char *step_dir, *part_dir;
    struct rk_status *st;

    RK_TRY(rk_method_call_agree(call, read_options(call, &options)));
    RK_TRY(open_step_dir(call, &options, &step_dir));
    part_dir = rk_path_join(step_dir, options.name);
    st = rk_method_call_agree(call, rk_ckpt_check_target(part_dir));
    if (!st && options.check_only)
        st = rk_saver_prepare(call->role->saver, options.contents);
    else if (!st)
        st = save(call, &options, part_dir, &report);
    if (st || options.check_only)
        (void)rmdir(step_dir); /* succeeds when it is empty */
    if (!st)
        st = rk_method_call_agree(call, rk_checkpoint_put_report(call, &report));
    rk_free(part_dir);
    rk_free(step_dir);
    return st;
}
