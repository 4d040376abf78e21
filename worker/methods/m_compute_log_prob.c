/* compute_log_prob: log-probs and entropies of the responses under the actor, before an update. */
#include "worker/methods/methods_internal.h"

#include "worker/methods/log_prob_internal.h"

struct rk_status *rk_m_compute_log_prob(struct rk_call *call)
{
    return rk_log_prob_run(call, "old_log_probs", "entropys");
}
