/* Loads NCCL when it is first needed, by the name under which every distribution installs the library. It
 * stays loaded. */
#include "engine/comm/rk_nccl.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <string.h>

#include "base/rk_log.h"

#define LIBRARY "libnccl.so.2"

static struct rk_status *find(void *library, const char *name, void *out_entry)
{
    void *symbol = dlsym(library, name);

    if (!symbol)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NCCL_MISSING", LIBRARY " has no function %s", name);
    memcpy(out_entry, &symbol, sizeof(symbol)); /* POSIX guarantees this conversion */
    return NULL;
}

static struct rk_status *load(struct rk_nccl_api *api)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL);
    int version = 0;

    if (!library)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NCCL_MISSING",
                              "collectives between GPUs need NCCL; loading it failed: %s", dlerror());
#define X(entry, name, type, parameters) RK_TRY(find(library, #name, &api->entry));
    RK_NCCL_TABLE(X)
#undef X
    if (api->get_version(&version) != RK_NCCL_SUCCESS || version < RK_NCCL_MIN_VERSION)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NCCL_MISSING",
                              LIBRARY " has version code %d, expected %d or later", version,
                              RK_NCCL_MIN_VERSION);
    RK_INFO("NCCL loaded version=%d.%d.%d", version / 10000, version / 100 % 100, version % 100);
    return NULL;
}

struct rk_status *rk_nccl_api_get(const struct rk_nccl_api **out)
{
    static struct rk_nccl_api api;
    static bool is_loaded;

    *out = NULL;
    if (!is_loaded)
        RK_TRY(load(&api));
    is_loaded = true;
    *out = &api;
    return NULL;
}
