/* compute_teacher_log_prob: the teacher's most likely ids at every response token, with their log-probs. */
#include "worker/methods/methods.h"

#include "worker/methods/forward_internal.h"

struct rk_status *rk_m_compute_teacher_log_prob(struct rk_method_call *call)
{
    static const struct rk_forward_kind kind = {
        .top_ids = "teacher_topk_ids",
        .top_log_probs = "teacher_topk_log_probs",
        .has_temperature = true,
    };

    return rk_forward_run(call, &kind);
}
