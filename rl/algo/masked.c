/* Statistics of the values that a mask counts, with verl's epsilons (verl.utils.torch_functional). */
#include "rl/algo/algo_internal.h"

#include <math.h>

#include "base/rk_assert.h"
#include "base/math/rk_rollout_correction.h"

#define VARIANCE_EPSILON 1e-8

int64_t rk_mask_count(const int64_t *mask, int64_t count)
{
    int64_t marks = 0;

    for (int64_t i = 0; i < count; i++)
        marks += mask[i] != 0;
    return marks;
}

double rk_mask_mean(const double *values, const int64_t *mask, int64_t count)
{
    double sum = 0.0;

    for (int64_t i = 0; i < count; i++)
        sum += mask[i] ? values[i] : 0.0;
    return rk_masked_mean(sum, (double)rk_mask_count(mask, count));
}

double rk_mask_var(const double *values, const int64_t *mask, int64_t count)
{
    double mean = rk_mask_mean(values, mask, count), marks = (double)rk_mask_count(mask, count);
    double sum = 0.0;

    RK_ASSERT(marks > 1.0);
    for (int64_t i = 0; i < count; i++) {
        double deviation = mask[i] ? values[i] - mean : 0.0;

        sum += deviation * deviation;
    }
    return rk_masked_mean(sum, marks) * (marks / (marks - 1.0));
}

struct rk_status *rk_mask_whiten(double *values, const int64_t *mask, int64_t count, bool keep_mean)
{
    int64_t marks = rk_mask_count(mask, count);
    double mean, scale;

    if (marks == 1)
        return RK_FAIL(RK_ABORTED,
                       "the batch has one counted token; expected at least 2 to whiten advantages");
    if (marks == 0) {
        for (int64_t i = 0; i < count; i++)
            values[i] = 0.0;
        return NULL;
    }
    mean = rk_mask_mean(values, mask, count);
    scale = 1.0 / sqrt(rk_mask_var(values, mask, count) + VARIANCE_EPSILON);
    for (int64_t i = 0; i < count; i++)
        values[i] = (values[i] - mean) * scale + (keep_mean ? mean : 0.0);
    return NULL;
}
