/* example: the policy gradient with the ratio to the rollout's own log-probs instead of old_log_probs.
 *
 *   l = -A r      dl/dlog_prob = -A r      r = e^(log_prob - rollout_log_probs)
 *
 * Metrics: those of policy.h up to ppo_kl. A template of CONTRIBUTING.md
 * (tests/scripts/test_contributing.py). */
#include "engine/loss/policy.h"

static void forward_backward(struct rk_loss_out *out, const struct rk_loss_in *in, const void *config)
{
    (void)config;
    for (int64_t t = 0; t < in->num_tokens; t++) {
        struct rk_log_ratio r;
        double l;

        if (!in->mask[t])
            continue;
        r = rk_log_ratio(in->outputs[RK_HEAD_LOG_PROBS][t], in->columns[RK_LOSS_ROLLOUT_LOG_PROBS][t]);
        l = -in->columns[RK_LOSS_ADVANTAGES][t] * r.ratio;
        rk_pg_add(out, in, in->weight, t,
                  &(struct rk_pg_token){.loss = l, .grad = r.is_clamped ? 0.0 : l, .kl = -r.d});
    }
}

const struct rk_loss_ops rk_loss_example = {
    RK_PG_FIELDS,
    .num_metrics = RK_PG_PPO_KL + 1,
    .forward_backward = forward_backward,
};
