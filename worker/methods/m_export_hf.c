/* export_hf: writes the model as a Hugging Face directory. One rank of the mesh writes; all return the same
 * verdict. With check_only nothing is written but the empty directory: a driver learns before it trains for
 * hours that it could not save. */
#include "worker/methods/methods_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_fault.h"

/* The weights against what is free. Others may take it before they are written; a file system that does not
 * know its size is not asked. */
static struct rk_status *check_space(const struct rk_model *model, const char *dir)
{
    struct rk_model_desc desc;
    struct statvfs info;
    uint64_t needed, available;

    rk_model_describe(model, &desc);
    needed = (uint64_t)rk_model_num_elements(model) * rk_dtype_bytes(desc.dtype);
    if (statvfs(dir, &info) != 0)
        return RK_FAIL(RK_INTERNAL, "path '%s': statvfs: %s", dir, strerror(errno));
    available = (uint64_t)info.f_frsize * (geteuid() == 0 ? info.f_bfree : info.f_bavail);
    if (RK_FAULT("ckpt.space"))
        available = 0;
    else if (info.f_blocks == 0)
        return NULL;
    if (available >= needed)
        return NULL;
    return RK_FAIL_REASON(RK_RESOURCE_EXHAUSTED, "DISK_FULL",
                          "path '%s': the model takes %" PRIu64 " bytes, %" PRIu64 " are free", dir, needed,
                          available);
}

static struct rk_status *resolve(struct rk_call *call, char **dir)
{
    bool is_writer = rk_comm_group_rank(rk_mesh_comms_group(call->role->comms, RK_GROUP_ALL)) == 0;
    const char *path;

    RK_TRY(rk_json_get_string(call->job->options, "", "path", &path));
    if (!is_writer) {
        *dir = rk_strdup(path);
        return NULL;
    }
    RK_TRY(rk_path_resolve(dir, call->worker->ckpt_roots, path, RK_PATH_RESOLVE_CREATE));
    return check_space(call->role->model, *dir);
}

struct rk_status *rk_m_export_hf(struct rk_call *call)
{
    char *dir = NULL;
    bool check_only = rk_json_as_bool(rk_json_find(call->job->options, "check_only"), false);
    struct rk_status *st = rk_call_agree(call, resolve(call, &dir));

    if (!st && !check_only)
        st = rk_model_export_hf(call->role->model, dir, 0, &call->hooks);
    rk_free(dir);
    return st;
}
