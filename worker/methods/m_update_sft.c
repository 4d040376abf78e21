/* update_sft: supervised fine-tuning on the marked tokens of whole sequences. */
#include "worker/methods/methods.h"

#include "worker/methods/update_internal.h"

struct rk_status *rk_m_update_sft(struct rk_method_call *call)
{
    static const struct rk_update_kind kind = {
        .objective = RK_OBJECTIVE_SFT,
        .mask_column = "loss_mask",
        .prefix = "train",
    };

    return rk_update_run(call, &kind);
}
