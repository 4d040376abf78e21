/* Differences between numbers and the expected ones. */
#include "cmd/verify/verify.h"

#include <math.h>

void rk_difference_add(struct rk_difference *difference, const double *actual, const double *expected,
                       int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        double error = fabs(actual[i] - expected[i]);

        if (!isfinite(error)) { /* also for an infinity on both sides */
            difference->has_nan = true;
            difference->worst = difference->count + i;
            continue;
        }
        if (error > difference->error_max) {
            difference->error_max = error;
            if (!difference->has_nan)
                difference->worst = difference->count + i;
        }
        difference->expected_max = fmax(difference->expected_max, fabs(expected[i]));
        difference->error_squares += error * error;
        difference->expected_squares += expected[i] * expected[i];
        difference->product += actual[i] * expected[i];
    }
    difference->count += count;
}
