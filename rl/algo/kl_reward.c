/* KL in the reward: r_t = score_t - kl_coef * KL_t of old_log_probs and ref_log_prob (base/math/rk_kl.h).
 * Masked positions keep their score. */
#include "rl/rk_algo.h"

#include <math.h>
#include <stdbool.h>

#include "base/math/rk_kl.h"

/* Writes the row's rewards; adds the masked mean of its KL to *total. Returns whether it has one. */
static bool apply_row(float *rewards, double *total, const struct rk_kl_reward_in *in, int64_t row,
                      rk_kl_type_t type)
{
    double sum = 0.0;
    int64_t count = 0;

    for (int64_t t = 0; t < in->response_length; t++) {
        int64_t at = row * in->response_length + t;
        double kl, grad;

        rewards[at] = in->scores[at];
        if (!in->response_mask[at])
            continue;
        rk_kl_estimate(type, false, (double)in->old_log_probs[at], (double)in->ref_log_prob[at], &kl, &grad);
        rewards[at] = (float)((double)in->scores[at] - in->kl_coef * kl);
        sum += kl;
        count++;
    }
    *total += sum / ((double)count + 1e-8);
    return count > 0;
}

struct rk_status *rk_check_finite(const char *name, const float *values, const int64_t *mask,
                                  int64_t num_rows, int64_t width)
{
    for (int64_t i = 0; i < num_rows * width; i++) {
        if (mask[i] && !isfinite(values[i]))
            return RK_FAIL_REASON(RK_ABORTED, "NON_FINITE",
                                  "%s of row %lld is %g at token %lld of the response", name,
                                  (long long)(i / width), (double)values[i], (long long)(i % width));
    }
    return NULL;
}

struct rk_status *rk_kl_reward_apply(float *rewards, double *current_kl, const struct rk_kl_reward_in *in)
{
    rk_kl_type_t type;
    bool straight_through; /* of no effect: a reward has no gradient */
    int64_t num_measured = 0;
    double sum = 0.0;

    *current_kl = 0.0;
    RK_TRY(rk_check_finite("old_log_probs", in->old_log_probs, in->response_mask, in->num_rows,
                           in->response_length));
    RK_TRY(rk_check_finite("ref_log_prob", in->ref_log_prob, in->response_mask, in->num_rows,
                           in->response_length));
    RK_TRY(rk_kl_type_parse("algorithm.kl_penalty", in->kl_penalty, &type, &straight_through));
    for (int64_t i = 0; i < in->num_rows; i++)
        num_measured += apply_row(rewards, &sum, in, i, type);
    if (num_measured > 0)
        *current_kl = sum / (double)num_measured;
    return NULL;
}

void rk_kl_ctrl_update(struct rk_kl_ctrl *ctrl, double current_kl, int64_t num_rows)
{
    double error;

    if (!ctrl->is_adaptive)
        return;
    error = current_kl / ctrl->target_kl - 1.0;
    error = error < -0.2 ? -0.2 : error > 0.2 ? 0.2 : error;
    ctrl->kl_coef *= 1.0 + error * (double)num_rows / ctrl->horizon;
}
