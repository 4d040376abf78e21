/* The methods that run forward passes: each is a list of outputs. */
#include "worker/methods/methods.h"

#include "worker/methods/forward_internal.h"

#define PASS(method, ...)                                         \
    struct rk_status *rk_m_##method(struct rk_method_call *call)  \
    {                                                             \
        static const struct rk_forward_kind kind = {__VA_ARGS__}; \
                                                                  \
        return rk_forward_run(call, &kind);                       \
    }

/* Log-probs of the responses under the actor before an update, and other statistics of its distributions for
 * the estimators. */
PASS(compute_log_prob,
     .outputs = {{RK_HEAD_LOG_PROBS, "old_log_probs", NULL},
                 {RK_HEAD_ENTROPY, "entropys", "calculate_entropy"},
                 {RK_HEAD_SUM_PI_SQUARED, "sum_pi_squared", "calculate_sum_pi_squared"}},
     .has_temperature = true, .replays_routes = true, .records_routes = true)
/* Log-probs of the responses under the reference policy, or a teacher. */
PASS(compute_ref_log_prob, .outputs = {{RK_HEAD_LOG_PROBS, "ref_log_prob", NULL}}, .has_temperature = true,
     .replays_routes = true)
/* The teacher's most likely ids at every response token, with their log-probs. */
PASS(compute_teacher_log_prob, .top_ids = "teacher_topk_ids", .top_log_probs = "teacher_topk_log_probs",
     .has_temperature = true)
/* The critic's value of every response token, from the position before it. */
PASS(compute_values, .outputs = {{RK_HEAD_VALUES, "values", NULL}})
/* The reward model's score of every row, at its last token. */
PASS(compute_rm_score, .outputs = {{RK_HEAD_VALUES, "rm_scores", NULL}}, .is_at_last_token = true)
