/* The soft punishment of overlong responses (Yu et al., "DAPO", arXiv:2503.14476): over the last `len` tokens
 * before max_resp_len the score falls linearly by penalty_factor, and on beyond. */
#include "rl/flows/steps_internal.h"

#include "base/rk_str.h"
#include "rl/rk_job.h"

void rk_overlong_apply(struct rk_flow_scores *scores, const struct rk_config *job)
{
    double len, expected, factor;
    bool is_logged;

    if (!rk_config_bool(job, RK_JOB_OVERLONG "enable"))
        return;
    len = (double)rk_config_int(job, RK_JOB_OVERLONG "len");
    expected = (double)rk_job_overlong_max_len(job) - len;
    factor = rk_config_real(job, RK_JOB_OVERLONG "penalty_factor");
    is_logged = rk_config_bool(job, RK_JOB_OVERLONG "log");
    for (int64_t row = 0; row < scores->num_rows; row++) {
        struct rk_reward_result *result = &scores->results[row];
        double penalty = RK_MIN(-((double)scores->lengths[row] - expected) / len * factor, 0.0);

        if (!rk_flow_has_score(result))
            continue;
        rk_flow_keep_score(result);
        result->score += penalty;
        if (is_logged) {
            rk_json_set(result->extra, "overlong_reward", rk_json_new_real(penalty));
            rk_json_set(result->extra, "overlong", rk_json_new_real(penalty < 0.0));
        }
    }
}
