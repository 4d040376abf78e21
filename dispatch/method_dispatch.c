/* The meshes over which a method runs: its row names them by their roles. */
#include "dispatch/rk_modes.h"

#include "proto/rk_methods.h"

struct rk_status *rk_dispatch_create_method(struct rk_dispatch **out, const struct rk_method *method,
                                            const char *role,
                                            const struct rk_mesh *(*find)(const void *user, const char *role),
                                            const void *user)
{
    const struct rk_mesh *meshes[RK_METHOD_MESHES_MAX];
    struct rk_method_meshes roles = rk_method_get_meshes(method, role);

    *out = NULL;
    for (int32_t i = 0; i < roles.count; i++) {
        meshes[i] = find(user, roles.role[i]);
        if (!meshes[i])
            return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NOT_CONFIGURED",
                                  "role '%s' has no mesh in this group", roles.role[i]);
    }
    return rk_dispatch_create_union(out, method->dispatch_mode, meshes, roles.count);
}
