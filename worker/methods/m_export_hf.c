/* export_hf: writes the model as a Hugging Face directory. One rank of the mesh writes; all return the same
 * result. With check_only only the empty directory is created: a driver detects before hours of
 * training that it could not save. */
#include "worker/methods/methods.h"

#include "base/rk_alloc.h"

/* Ranks with different weight versions after an interrupted update do not form one model. */
static struct rk_status *check_versions(struct rk_method_call *call)
{
    int32_t version = (int32_t)rk_model_weight_version(call->role->model);
    int32_t bounds[2] = {version, -version};

    call->peers_wait = true;
    RK_TRY(rk_engine_min(rk_mesh_comms_group(call->role->comms, RK_GROUP_ALL), call->worker->stream,
                         call->worker->agree_scratch, bounds, 2));
    call->peers_wait = false;
    if (bounds[0] == -bounds[1])
        return NULL;
    return RK_FAIL_REASON(
        RK_FAILED_PRECONDITION, "WEIGHT_VERSIONS",
        "rank %d has weight version %d, the ranks of the mesh have %d to %d: an update ended "
        "on some of them only",
        call->worker->rank, version, bounds[0], -bounds[1]);
}

struct rk_status *rk_m_export_hf(struct rk_method_call *call)
{
    const struct rk_model *model = call->role->model;
    bool check_only = rk_json_as_bool(rk_json_find(call->job->options, "check_only"), false);
    struct rk_model_desc desc;
    struct rk_status *st;
    const char *path;
    uint64_t bytes;
    char *dir;

    RK_TRY(check_versions(call));
    RK_TRY(rk_json_get_string(call->job->options, "", "path", &path));
    rk_model_describe(model, &desc);
    bytes = (uint64_t)rk_model_num_elements(model) * rk_dtype_bytes(desc.dtype);
    st = rk_method_call_open_output(call, RK_OUTPUT_HF, path, bytes, &dir);
    if (!st && !check_only)
        st = rk_model_export_hf(call->role->model, dir, 0, &call->hooks);
    rk_free(dir);
    return st;
}
