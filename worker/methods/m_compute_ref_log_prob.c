/* compute_ref_log_prob: log-probs of the responses under the reference policy, or a teacher. */
#include "worker/methods/methods.h"

#include "worker/methods/forward_internal.h"

struct rk_status *rk_m_compute_ref_log_prob(struct rk_method_call *call)
{
    static const struct rk_forward_kind kind = {
        .outputs = {{RK_HEAD_LOG_PROBS, "ref_log_prob", NULL}},
        .has_temperature = true,
        .replays_routes = true,
    };

    return rk_forward_run(call, &kind);
}
