/* Rows of the loss table, and functions that several rows use. */
#ifndef RK_LOSS_INTERNAL_H
#define RK_LOSS_INTERNAL_H

#include <math.h>

#include "engine/rk_loss.h"

#define X(id, ...) extern const struct rk_loss_ops rk_loss_##id;
RK_LOSS_TABLE(X)
RK_POLICY_TERM_TABLE(X)
#undef X

/* Iterates over the losses and terms of a kind in order: the first after NULL, NULL after the last. */
const struct rk_loss *rk_loss_next(rk_objective_kind_t kind, const struct rk_loss *after);

/* exp() arguments are clamped to this, so that a ratio of two policies stays finite. */
#define RK_LOSS_EXPONENT_MAX 20.0

/* NaN stays NaN (fmin and fmax would return the bound and hide a NaN of the model). */
static inline double rk_loss_clamp(double x, double low, double high)
{
    return x < low ? low : x > high ? high : x;
}

/* The rollout's importance weight of a token, 1 without the column. */
static inline double rk_loss_is_weight(const struct rk_loss_in *in, int64_t t)
{
    return in->columns[RK_LOSS_ROLLOUT_IS_WEIGHTS] ? in->columns[RK_LOSS_ROLLOUT_IS_WEIGHTS][t] : 1.0;
}

/* --- clip.c: clip ratios that several losses use --- */
struct rk_clip_config {
    RK_CLIP_KNOBS(RK_KNOB_FIELD, , , )
};
enum { RK_NUM_CLIP_KNOBS = RK_CLIP_KNOBS(RK_KNOB_COUNT, , , ) };
extern const struct rk_knob rk_clip_knobs[RK_NUM_CLIP_KNOBS];
/* Sets an unset clip_ratio_low or clip_ratio_high to clip_ratio. */
struct rk_status *rk_clip_check(void *config) RK_NODISCARD;

#endif
