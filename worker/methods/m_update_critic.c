/* update_critic: the value objective. */
#include "worker/methods/methods.h"

#include "worker/methods/update_internal.h"

struct rk_status *rk_m_update_critic(struct rk_method_call *call)
{
    static const struct rk_update_kind kind = {
        .objective = RK_OBJECTIVE_VALUE,
        .mask_column = "response_mask",
        .prefix = "critic",
    };

    return rk_update_run(call, &kind);
}
