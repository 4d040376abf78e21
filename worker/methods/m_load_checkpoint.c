/* load_checkpoint: reads a role's part of a training checkpoint of any layout. Errors are found before
 * anything is overwritten; a role whose load failed later has no model. Meta of the result: global_step,
 * weight_version, contents. */
#include "worker/methods/checkpoint_internal.h"

#include "base/rk_alloc.h"
#include "base/rk_log.h"

static struct rk_status *prepare(struct rk_method_call *call, char **dir, uint32_t *contents)
{
    const char *path;

    RK_TRY(rk_json_get_string(call->job->options, "", "path", &path));
    RK_TRY(rk_checkpoint_read_contents(call, contents));
    RK_TRY(rk_model_check_contents(call->role->model, *contents));
    return rk_path_resolve(dir, call->worker->ckpt_roots, path, 0);
}

static struct rk_status *put_loaded(struct rk_method_call *call, const struct rk_checkpoint_loaded *loaded)
{
    struct rk_batch *batch;

    RK_TRY(rk_batch_create(&call->job->output, 0));
    batch = call->job->output;
    rk_batch_set_meta(batch, "global_step", rk_json_new_int(loaded->global_step));
    rk_batch_set_meta(batch, "weight_version", rk_json_new_int((int64_t)loaded->weight_version));
    rk_batch_set_meta(batch, "contents", rk_checkpoint_format_contents(loaded->contents));
    return NULL;
}

struct rk_status *rk_m_load_checkpoint(struct rk_method_call *call)
{
    struct rk_checkpoint_loaded loaded;
    uint32_t contents = 0;
    char *dir = NULL;
    struct rk_status *st = rk_method_call_agree(call, prepare(call, &dir, &contents));

    if (!st) {
        call->role->has_gradients = false; /* they belong to the old weights */
        st = rk_model_load_checkpoint(call->role->model, dir, contents, &call->hooks, &loaded);
        if (st && loaded.is_mixed) {
            RK_ERROR("role %s: dropping its model, because the load of a checkpoint was interrupted",
                     call->role->name);
            rk_role_drop_model(call->worker, call->role);
        }
    }
    if (!st)
        st = rk_method_call_agree(call, put_loaded(call, &loaded));
    rk_free(dir);
    return st;
}
