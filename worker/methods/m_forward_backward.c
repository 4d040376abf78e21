/* forward_backward: gradients of a sum over tokens, for optim_step. No normalisation: the caller provides
 * weights and advantages, and gradients of several calls are added. */
#include "worker/methods/methods.h"

#include "worker/methods/update_internal.h"

struct rk_status *rk_m_forward_backward(struct rk_method_call *call)
{
    static const struct rk_update_kind kind = {
        .objective = RK_OBJECTIVE_SUM,
        .mask_column = "response_mask",
        .prefix = "actor",
        .only_accumulates = true,
    };

    return rk_update_run(call, &kind);
}
