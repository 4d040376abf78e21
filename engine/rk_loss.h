/* Losses: functions of per-token log-probs, on the host.
 *
 * A micro-batch has T packed tokens; arrays are f64 [T] in host memory. The total is a weighted sum with
 * global denominators, L = sum_t weight[t] * l[t], so that it does not depend on layout or micro-batches.
 * weight is 0 where the mask is, and such entries are never read ("select, never multiply": a NaN outside the
 * mask is harmless). Formulas and references: each loss_<name>.c. */
#ifndef RK_LOSS_H
#define RK_LOSS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_json.h"
#include "base/rk_kl.h"
#include "base/rk_knobs.h"
#include "base/rk_loss_agg.h"
#include "base/rk_status.h"

RK_BEGIN_DECLS

#define RK_LOSS_ABI 1

/* Read from the options of update_actor (base/knobs.def), complete and checked: the clip ratios have taken
 * their default, loss_scale_factor 0 stands for the response length of the batch. */
struct rk_loss_config {
    RK_LOSS_KNOBS(RK_KNOB_FIELD, , , )
    const struct rk_loss_ops *ops; /* of loss_mode */
    rk_loss_agg_mode_t agg_mode;
    rk_kl_type_t kl_type;
    bool kl_straight_through; /* "+" forms: the gradient is k2's */
};
/* INVALID_ARGUMENT names the key, the value and what is allowed. */
struct rk_status *rk_loss_config_read(struct rk_loss_config *out, const struct rk_json *options) RK_NODISCARD;

enum rk_loss_inputs {
    RK_LOSS_IN_OLD_LOG_PROBS = 1u << 0,
    RK_LOSS_IN_ADVANTAGES = 1u << 1,
    RK_LOSS_IN_REF_LOG_PROB = 1u << 2,
};

struct rk_loss_in {
    int64_t num_tokens;
    int32_t num_seqs;
    const int32_t *cu_seqlens;         /* [num_seqs + 1] */
    const uint8_t *mask;               /* 1: the loss counts this position's label */
    const double *weight;              /* rk_loss_weights */
    const double *token_weight;        /* 1 / global tokens where mask, for metrics that are token means */
    const double *log_probs, *entropy; /* entropy NULL when nothing needs it */
    const double *old_log_probs, *advantages;
    const double *ref_log_prob;       /* NULL without KL loss */
    const double *rollout_is_weights; /* NULL: 1 */
};

/* Sums over tokens, already divided by the global denominators: add over micro-batches and dp ranks. */
struct rk_loss_metrics {
    double pg_loss, pg_clipfrac, pg_clipfrac_lower, ppo_kl, kl_loss, entropy_loss;
};

struct rk_loss_out {
    double *dlog_probs;             /* [T], overwritten */
    double *dentropy;               /* [T] or NULL; overwritten */
    struct rk_loss_metrics metrics; /* added to */
};

/* A row of the loss table. */
struct rk_loss_ops {
    const char *name; /* policy_loss.loss_mode */
    uint32_t abi;
    uint32_t inputs; /* enum rk_loss_inputs that it needs */
    /* Writes d(sum weight * l)/d(log_probs) and adds the metrics. */
    void (*forward_backward)(struct rk_loss_out *out, const struct rk_loss_in *in,
                             const struct rk_loss_config *config);
};

const struct rk_loss_ops *rk_loss_find(const char *name); /* NULL when unknown */

/* The whole loss: policy + kl_loss_coef * KL - entropy_coeff * H, gradients and metrics. */
void rk_loss_forward_backward(struct rk_loss_out *out, const struct rk_loss_in *in,
                              const struct rk_loss_config *config);

RK_END_DECLS

#endif
