/* The shares of signal and noise in a gradient's square, without the gradient of single responses: the square
 * of the norm of a response's gradient is taken to be A^2 W, with W the sum of its tokens' variances. As in
 * verl (compute_variance_proxy_metrics). */
#include <math.h>

#include "base/math/rk_rollout_correction.h"
#include "rl/algo/algo_internal.h"

#define WEIGHT_SQUARE_MIN 1e-10

/* Terms of one response. */
struct row {
    double num_tokens, advantages, weights; /* sums */
    double variance;                        /* as the estimators weigh it */
    double unweighted; /* without the importance weights, but for tokens whose weight is 0 */
};

double rk_adv_token_variance(double old_log_prob, double sum_pi_squared)
{
    return 1.0 - 2.0 * exp(old_log_prob) + sum_pi_squared;
}

static struct row sum_row(const struct rk_variance_in *in, int64_t i)
{
    struct row row = {0};

    for (int64_t at = i * in->width; at < (i + 1) * in->width; at++) {
        double weight, variance;

        if (!in->response_mask[at])
            continue;
        weight = in->rollout_is_weights ? (double)in->rollout_is_weights[at] : 1.0;
        variance = rk_adv_token_variance((double)in->old_log_probs[at], (double)in->sum_pi_squared[at]) *
                   weight * weight;
        row.num_tokens += 1.0;
        row.advantages += (double)in->advantages[at];
        row.weights += weight;
        row.variance += variance;
        row.unweighted += variance / fmax(weight * weight, WEIGHT_SQUARE_MIN);
    }
    return row;
}

int64_t rk_variance_proxy_measure(struct rk_variance_proxy *out, const struct rk_variance_in *in)
{
    int64_t num_rows = 0;

    *out = (struct rk_variance_proxy){.signal_strength = in->grad_norm * in->grad_norm};
    for (int64_t i = 0; i < in->num_rows; i++) {
        struct row row = sum_row(in, i);
        double advantage = rk_masked_mean(row.advantages, row.num_tokens);
        double weight = in->rollout_is_weights ? rk_masked_mean(row.weights, row.num_tokens) : 1.0;

        if (row.num_tokens == 0.0)
            continue;
        num_rows++;
        out->total_power += weight * weight * advantage * advantage * fmax(row.unweighted, 0.0);
        out->expected_a_squared += advantage * advantage;
        out->expected_w += row.variance;
    }
    if (num_rows == 0)
        return 0;
    out->total_power /= (double)num_rows;
    out->expected_a_squared /= (double)num_rows;
    out->expected_w /= (double)num_rows;
    if (num_rows > 1)
        out->pure_noise = fmax(0.0, (out->total_power - out->signal_strength) / (double)(num_rows - 1));
    return num_rows;
}
