/* Common part of the policy losses: the clip's keys, the loop over tokens and the metrics. */
#ifndef RK_LOSS_POLICY_H
#define RK_LOSS_POLICY_H

#include "engine/loss/loss_internal.h"

/* Metrics of every policy loss, in this order; a row with fewer metrics omits the last ones. */
typedef enum rk_pg_metric {
    RK_PG_LOSS,
    RK_PG_PPO_KL,
    RK_PG_CLIPFRAC,
    RK_PG_CLIPFRAC_LOWER,
    RK_PG_COUNT
} rk_pg_metric_t;
extern const struct rk_loss_metric rk_pg_metrics[RK_PG_COUNT];

/* Fields of a policy loss. */
#define RK_PG_FIELDS .outputs = RK_HEAD_BIT(RK_HEAD_LOG_PROBS), .metrics = rk_pg_metrics

/* Fields of a row that has only the clip's keys. */
#define RK_CLIP_FIELDS                                                                                     \
    .knobs = rk_clip_knobs, .num_knobs = RK_NUM_CLIP_KNOBS, .config_bytes = sizeof(struct rk_clip_config), \
    .check = rk_clip_check

static inline double rk_clip_ratio(const struct rk_clip_config *config, double ratio)
{
    return rk_loss_clamp(ratio, 1.0 - config->clip_ratio_low, 1.0 + config->clip_ratio_high);
}

/* log_prob - old, clamped so that its exponential stays finite. */
struct rk_log_ratio {
    double d;        /* clamped */
    double ratio;    /* e^d */
    bool is_clamped; /* no gradient flows through ratio */
};
struct rk_log_ratio rk_log_ratio(double log_prob, double old);

/* One token of a policy loss. */
struct rk_pg_token {
    double loss, grad; /* l, dl / dlog_prob; neither weighted */
    double kl;         /* contribution to ppo_kl */
    bool is_clipped, is_clipped_lower;
};
typedef struct rk_pg_token (*rk_pg_token_fn)(const void *config, double log_prob, double old,
                                             double advantage);

/* Adds a token in the loss mask, multiplied by weight[t] and, if present, the rollout's importance weight.
 */
void rk_pg_add(struct rk_loss_out *out, const struct rk_loss_in *in, const double *weight, int64_t t,
               const struct rk_pg_token *token);
/* Calls rk_pg_add for every token in the loss mask. old is 0 when the loss has no such column. */
void rk_pg_add_all(struct rk_loss_out *out, const struct rk_loss_in *in, const double *weight,
                   rk_pg_token_fn fn, const void *config);

/* Mean of log_prob - old over the tokens of [begin, end) in the loss mask; 0 without any. */
double rk_pg_mean_log_ratio(const struct rk_loss_in *in, int64_t begin, int64_t end);

/* max(-A r, -A clip(r)), the clipped objective; grad is -A r, through the ratio, where that is the larger. */
struct rk_pg_token rk_pg_clipped(const struct rk_clip_config *config, double ratio, double advantage);

/* PPO's loss with a dual clip (loss_vanilla.c). */
struct rk_pg_token rk_pg_dual_clip(const struct rk_clip_config *config, double log_prob, double old,
                                   double advantage);
/* -A log_prob + beta/2 (log_prob - old)^2 */
struct rk_pg_token rk_pg_dro(double beta, double log_prob, double old, double advantage);

#endif
