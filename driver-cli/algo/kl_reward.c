/* KL in the reward: r_t = score_t - kl_coef * KL_t, with x = old_log_prob - ref_log_prob and
 *
 *   kl, k1: x    abs: |x|    mse, k2: x^2 / 2
 *   low_var_kl, k3: e^-x + x - 1, the exponent clamped to 20, the value to 10
 *
 * (Schulman, "Approximating KL divergence", 2020). Masked positions keep their score. */
#include "driver-cli/rk_algo.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

typedef double (*kl_fn_t)(double x);

static double kl_k1(double x)
{
    return x;
}

static double kl_k2(double x)
{
    return 0.5 * x * x;
}

static double clamp(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

static double kl_k3(double x)
{
    double y = clamp(-x, -20.0, 20.0);

    return clamp(exp(y) - y - 1.0, -10.0, 10.0);
}

static const struct {
    const char *name;
    kl_fn_t fn;
} estimators[] = {
    {"kl", kl_k1}, {"k1", kl_k1}, {"abs", fabs},         {"mse", kl_k2},
    {"k2", kl_k2}, {"k3", kl_k3}, {"low_var_kl", kl_k3},
};

static kl_fn_t find_estimator(const char *name)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(estimators); i++) {
        if (strcmp(estimators[i].name, name) == 0)
            return estimators[i].fn;
    }
    return NULL;
}

/* Writes the row's rewards; adds the masked mean of its KL to *total. Returns whether it has one. */
static bool apply_row(float *rewards, double *total, const struct rk_kl_reward_in *in, int64_t row,
                      kl_fn_t estimate)
{
    double sum = 0.0;
    int64_t count = 0;

    for (int64_t t = 0; t < in->response_length; t++) {
        int64_t at = row * in->response_length + t;
        double kl;

        rewards[at] = in->scores[at];
        if (!in->response_mask[at])
            continue;
        kl = estimate((double)in->old_log_probs[at] - (double)in->ref_log_prob[at]);
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
    kl_fn_t estimate = find_estimator(in->kl_penalty);
    int64_t num_measured = 0;
    double sum = 0.0;

    *current_kl = 0.0;
    RK_TRY(rk_check_finite("old_log_probs", in->old_log_probs, in->response_mask, in->num_rows,
                           in->response_length));
    RK_TRY(rk_check_finite("ref_log_prob", in->ref_log_prob, in->response_mask, in->num_rows,
                           in->response_length));
    if (!estimate)
        return RK_FAIL(
            RK_INVALID_ARGUMENT,
            "algorithm.kl_penalty: unknown estimator '%s' (known: kl, k1, abs, mse, k2, low_var_kl, k3)",
            in->kl_penalty);
    for (int64_t i = 0; i < in->num_rows; i++)
        num_measured += apply_row(rewards, &sum, in, i, estimate);
    if (num_measured > 0)
        *current_kl = sum / (double)num_measured;
    return NULL;
}
