/* compute_ref_log_prob: log-probs of the responses under the reference policy. */
#include "worker/methods/methods_internal.h"

#include "worker/methods/log_prob_internal.h"

struct rk_status *rk_m_compute_ref_log_prob(struct rk_call *call)
{
    return rk_log_prob_run(call, "ref_log_prob", NULL);
}
