/* Rows of the loss table, and what their files share. */
#ifndef RK_LOSS_INTERNAL_H
#define RK_LOSS_INTERNAL_H

#include <math.h>

#include "engine/rk_loss.h"

extern const struct rk_loss_ops rk_loss_vanilla;

/* Exponents are clamped to this before exp(), so that a ratio of two policies stays finite. */
#define RK_LOSS_EXPONENT_MAX 20.0

/* NaN stays NaN (fmin and fmax would turn it into a bound, and a broken model would look healthy). */
static inline double rk_loss_clamp(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

/* Names of all rows, comma separated, for messages; rk_free it. */
char *rk_loss_names(void);

#endif
