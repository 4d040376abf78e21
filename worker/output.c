/* Directories that methods write to. The writing ranks are defined once (rk_output_is_writer); each of them
 * resolves the path below its own ckpt.roots, and no rank creates anything before all have permission. */
#include "worker/worker_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_fault.h"

/* Compares the size of the output with the free space. Other programs may use the space before the write;
 * file systems that do not report their size are not checked. */
static struct rk_status *check_space(const char *dir, uint64_t needed)
{
    struct statvfs info;
    uint64_t available;

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
                          "path '%s': the output takes %" PRIu64 " bytes, %" PRIu64 " are free", dir, needed,
                          available);
}

static struct rk_status *make_dir(const struct rk_method_call *call, const char *path, uint64_t bytes,
                                  char **dir)
{
    RK_TRY(rk_path_resolve(dir, call->worker->ckpt_roots, path, RK_PATH_RESOLVE_CREATE));
    return check_space(*dir, bytes);
}

struct rk_status *rk_method_call_open_output(struct rk_method_call *call, rk_output_t output,
                                             const char *path, uint64_t bytes, char **dir)
{
    bool is_writer = rk_output_is_writer(output, call->role->comms);
    struct rk_status *st = NULL;
    char *existing = NULL;

    *dir = NULL;
    if (is_writer)
        st = rk_path_resolve(&existing, call->worker->ckpt_roots, path, RK_PATH_RESOLVE_PROBE);
    rk_free(existing);
    RK_TRY(rk_method_call_agree(call, st));
    st = rk_method_call_agree(call, is_writer ? make_dir(call, path, bytes, dir) : NULL);
    if (st) {
        rk_free(*dir);
        *dir = NULL;
    }
    return st;
}
