/* export_hf: writes the model as a Hugging Face directory. One rank of the mesh writes; all return the same
 * verdict. With check_only nothing is written but the empty directory: a driver learns before it trains for
 * hours that it could not save. */
#include "worker/methods/methods_internal.h"

#include "base/rk_alloc.h"

static struct rk_status *resolve(struct rk_call *call, char **dir)
{
    bool is_writer = rk_comm_group_rank(rk_mesh_comms_group(call->role->comms, RK_GROUP_ALL)) == 0;
    const char *path;

    RK_TRY(rk_json_get_string(call->job->options, "", "path", &path));
    if (is_writer)
        return rk_path_resolve(dir, call->worker->ckpt_roots, path, RK_PATH_RESOLVE_CREATE);
    *dir = rk_strdup(path);
    return NULL;
}

struct rk_status *rk_m_export_hf(struct rk_call *call)
{
    char *dir = NULL;
    bool check_only = rk_json_as_bool(rk_json_find(call->job->options, "check_only"), false);
    struct rk_status *st = rk_call_agree(call, resolve(call, &dir));

    if (!st && !check_only)
        st = rk_model_export_hf(call->role->model, dir, 0);
    rk_free(dir);
    return st;
}
