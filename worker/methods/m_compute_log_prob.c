/* compute_log_prob: log-probs of the responses under the actor before an update, and other statistics of its
 * distributions for the estimators. */
#include "worker/methods/methods.h"

#include "worker/methods/forward_internal.h"

struct rk_status *rk_m_compute_log_prob(struct rk_method_call *call)
{
    static const struct rk_forward_kind kind = {
        .outputs = {{RK_HEAD_LOG_PROBS, "old_log_probs", NULL},
                    {RK_HEAD_ENTROPY, "entropys", "calculate_entropy"},
                    {RK_HEAD_SUM_PI_SQUARED, "sum_pi_squared", "calculate_sum_pi_squared"}},
        .has_temperature = true,
        .replays_routes = true,
        .records_routes = true,
    };

    return rk_forward_run(call, &kind);
}
