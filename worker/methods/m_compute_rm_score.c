/* compute_rm_score: the reward model's score of every row, at its last token. */
#include "worker/methods/methods.h"

#include "worker/methods/forward_internal.h"

struct rk_status *rk_m_compute_rm_score(struct rk_method_call *call)
{
    static const struct rk_forward_kind kind = {
        .outputs = {{RK_HEAD_VALUES, "rm_scores", NULL}},
        .is_at_last_token = true,
    };

    return rk_forward_run(call, &kind);
}
