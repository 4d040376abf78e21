/* KL-Cov: the tokens with the largest covariance of advantage and log-prob get a penalty on their distance
 * from the old policy. With d = log_prob - old, not clamped, and r = e^d:
 *
 *   l = -A r, plus ppo_kl_coef |d| for the chosen tokens          dl/dlog_prob = -A r, plus ppo_kl_coef
 * sgn(d)
 *
 * Chosen are the max(1, floor(kl_cov_ratio * tokens)) with the largest covariance; cov.h defines it and says
 * why it is that of a micro-batch. Metrics: ppo_kl is the mean of |d| here. Cui et al., arXiv:2505.22617;
 * names as in verl.
 */
#include "engine/loss/cov.h"

#include <string.h>

struct config {
    RK_KL_COV_KNOBS(RK_KNOB_FIELD, , , )
};

static const struct rk_knob knobs[] = {RK_KL_COV_KNOBS(RK_KNOB_ROW, struct config, , )};

/* Key with the largest covariance first: the bits of a double, mapped to an unsigned integer of the same
 * order. */
static uint64_t order(const struct rk_cov *cov, int32_t seq, int64_t t, const void *config)
{
    double value = -rk_cov_at(cov, t);
    uint64_t bits, sign = (uint64_t)1 << 63;

    (void)seq;
    (void)config;
    memcpy(&bits, &value, sizeof(bits));
    bits = bits & sign ? ~bits : bits | sign;
    return bits < RK_COV_NEVER ? bits : RK_COV_NEVER - 1;
}

static void forward_backward(struct rk_loss_out *out, const struct rk_loss_in *in, const void *opaque)
{
    const struct config *config = opaque;
    struct rk_cov cov = rk_cov_begin(in);
    struct rk_cov_choice choice =
        rk_cov_choose(&cov, rk_cov_count(&cov, config->kl_cov_ratio), order, config);

    for (int32_t i = 0; i < in->num_seqs; i++) {
        for (int64_t t = in->cu_seqlens[i]; t < in->cu_seqlens[i + 1]; t++) {
            double d, l1;
            struct rk_pg_token token;

            if (!in->mask[t])
                continue;
            d = in->outputs[RK_HEAD_LOG_PROBS][t] - in->columns[RK_LOSS_OLD_LOG_PROBS][t];
            l1 = -in->columns[RK_LOSS_ADVANTAGES][t] * exp(d);
            token = (struct rk_pg_token){.loss = l1, .grad = l1, .kl = fabs(d)};
            if (rk_cov_is_chosen(&choice, order(&cov, i, t, config))) {
                token.loss += config->ppo_kl_coef * fabs(d);
                token.grad += config->ppo_kl_coef * ((d > 0.0) - (d < 0.0));
            }
            rk_pg_add(out, in, in->weight, t, &token);
        }
    }
}

const struct rk_loss_ops rk_loss_kl_cov = {
    RK_PG_FIELDS,
    .knobs = knobs,
    .num_knobs = RK_ARRAY_LEN(knobs),
    .config_bytes = sizeof(struct config),
    .num_metrics = RK_PG_PPO_KL + 1,
    .forward_backward = forward_backward,
};
