/* update_dpo: the objective of pairs of responses. */
#include "worker/methods/methods.h"

#include "worker/methods/update_internal.h"

struct rk_status *rk_m_update_dpo(struct rk_method_call *call)
{
    static const struct rk_update_kind kind = {
        .objective = RK_OBJECTIVE_DPO,
        .mask_column = "response_mask",
        .prefix = "train",
        .has_pairs = true,
    };

    return rk_update_run(call, &kind);
}
