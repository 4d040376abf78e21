/* Common part of the two distillation losses (loss_distill.c, loss_distill_topk.c): their keys, and the loss
 * of a token from its value v, an estimate of the divergence between teacher and student. With c = clamp(v,
 * -loss_max_clamp, loss_max_clamp):
 *
 *   use_policy_gradient false   l = c                  dl/dv = 1, 0 where v is clamped
 *   use_policy_gradient true    l = PPO's clipped loss (loss_vanilla.c) with A = -c, a constant
 *
 * l is multiplied by distillation_loss_coef if it is added to the policy loss (use_task_rewards), and by 1 if
 * it is the only loss. Names as in verl; https://thinkingmachines.ai/blog/on-policy-distillation. */
#ifndef RK_DISTILL_H
#define RK_DISTILL_H

#include "base/math/rk_kl.h"
#include "engine/loss/policy.h"

struct rk_distill_config {
    RK_DISTILL_KNOBS(RK_KNOB_FIELD, , , )
    struct rk_clip_config clip;
    bool is_topk; /* the divergence is `divergence`; otherwise `kl_type` */
    rk_topk_divergence_t divergence;
    rk_kl_type_t kl_type;
};
enum { RK_NUM_DISTILL_KNOBS = RK_DISTILL_KNOBS(RK_KNOB_COUNT, , , ) };
extern const struct rk_knob rk_distill_knobs[RK_NUM_DISTILL_KNOBS];

/* Metrics of both rows: of l without the coefficient; of v over the tokens in the loss mask; of PPO's loss, 0
 * without it. */
enum {
    RK_DISTILL_LOSS,
    RK_DISTILL_LOSS_MIN,
    RK_DISTILL_LOSS_MAX,
    RK_DISTILL_PPO_KL,
    RK_DISTILL_CLIPFRAC,
    RK_DISTILL_CLIPFRAC_LOWER,
    RK_DISTILL_NUM_METRICS
};
#define RK_DISTILL_METRICS                                                \
    [RK_DISTILL_LOSS] = {"distillation/loss", RK_LOSS_SUM, 0},            \
    [RK_DISTILL_LOSS_MIN] = {"distillation/loss_min", RK_LOSS_MIN, 0},    \
    [RK_DISTILL_LOSS_MAX] = {"distillation/loss_max", RK_LOSS_MAX, 0},    \
    [RK_DISTILL_PPO_KL] = {"distillation/ppo_kl", RK_LOSS_SUM, 0},        \
    [RK_DISTILL_CLIPFRAC] = {"distillation/pg_clipfrac", RK_LOSS_SUM, 0}, \
    [RK_DISTILL_CLIPFRAC_LOWER] = {"distillation/pg_clipfrac_lower", RK_LOSS_SUM, 0}

/* Fields of both rows. */
#define RK_DISTILL_FIELDS                                                                                    \
    .outputs = RK_HEAD_BIT(RK_HEAD_LOG_PROBS), .knobs = rk_distill_knobs, .num_knobs = RK_NUM_DISTILL_KNOBS, \
    .config_bytes = sizeof(struct rk_distill_config), .check = rk_distill_check,                             \
    .is_alone = rk_distill_is_alone, .coefficient = rk_distill_coefficient

struct rk_status *rk_distill_check(void *config) RK_NODISCARD;
bool rk_distill_is_alone(const void *config);
double rk_distill_coefficient(const void *config);
/* Adds token t, which is in the loss mask and has value v, and its metrics. Returns d(sum weight * l)/dv. */
double rk_distill_add(struct rk_loss_out *out, const struct rk_loss_in *in,
                      const struct rk_distill_config *config, int64_t t, double v);
/* Updates the minimum or maximum of a metric. */
static inline void rk_distill_note_range(double *least, double *largest, double value)
{
    *least = value < *least ? value : *least;
    *largest = value > *largest ? value : *largest;
}

#endif
