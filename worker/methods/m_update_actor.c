/* update_actor: the policy objective. */
#include "worker/methods/methods.h"

#include "worker/methods/update_internal.h"

struct rk_status *rk_m_update_actor(struct rk_method_call *call)
{
    static const struct rk_update_kind kind = {
        .objective = RK_OBJECTIVE_POLICY,
        .mask_column = "response_mask",
        .prefix = "actor",
        .has_temperature = true,
        .replays_routes = true,
    };

    return rk_update_run(call, &kind);
}
