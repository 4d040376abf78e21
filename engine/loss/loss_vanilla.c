/* PPO's clipped policy loss with a dual clip. Per token, with d = clamp(log_prob - old, -20, 20) and r = e^d:
 *
 *   l1 = -A r                l2 = -A clamp(r, 1 - low, 1 + high)             c1 = max(l1, l2)
 *   l  = min(-A c, c1) where A < 0, else c1                                  c  = clip_ratio_c > 1
 *
 *   dl/dlog_prob = -A r where l1 >= l2, d is not clamped, and not (A < 0 and c1 > -A c); else 0
 *
 * l is multiplied by the rollout's importance weight where there is one. Metrics, as means over the tokens
 * that the loss counts: pg_clipfrac of l2 > l1, pg_clipfrac_lower of c1 > -A c with A < 0, ppo_kl of -d.
 * Schulman et al., arXiv:1707.06347; dual clip: Ye et al., arXiv:1912.09729; names as in verl. */
#include "engine/loss/loss_internal.h"

struct token {
    double loss, grad, d;
    bool is_clipped, is_clipped_lower;
};

static struct token token_loss(const struct rk_loss_config *config, double log_prob, double old,
                               double advantage)
{
    double raw = log_prob - old;
    double d = rk_loss_clamp(raw, -RK_LOSS_EXPONENT_MAX, RK_LOSS_EXPONENT_MAX);
    double ratio = exp(d);
    double l1 = -advantage * ratio;
    double l2 =
        -advantage * rk_loss_clamp(ratio, 1.0 - config->clip_ratio_low, 1.0 + config->clip_ratio_high);
    double lower = -advantage * config->clip_ratio_c;
    struct token token = {.loss = l2 > l1 ? l2 : l1, .d = d, .is_clipped = l2 > l1};

    if (advantage < 0.0 && token.loss > lower) {
        token.loss = lower;
        token.is_clipped_lower = true;
    }
    if (!token.is_clipped && !token.is_clipped_lower && !(fabs(raw) > RK_LOSS_EXPONENT_MAX))
        token.grad = l1;
    return token;
}

static void forward_backward(struct rk_loss_out *out, const struct rk_loss_in *in,
                             const struct rk_loss_config *config)
{
    for (int64_t t = 0; t < in->num_tokens; t++) {
        struct token token;
        double scale;

        out->dlog_probs[t] = 0.0;
        if (!in->mask[t])
            continue;
        token = token_loss(config, in->log_probs[t], in->old_log_probs[t], in->advantages[t]);
        scale = in->weight[t] * (in->rollout_is_weights ? in->rollout_is_weights[t] : 1.0);
        out->dlog_probs[t] = scale * token.grad;
        out->metrics.pg_loss += scale * token.loss;
        out->metrics.ppo_kl -= in->token_weight[t] * token.d;
        if (token.is_clipped)
            out->metrics.pg_clipfrac += in->token_weight[t];
        if (token.is_clipped_lower)
            out->metrics.pg_clipfrac_lower += in->token_weight[t];
    }
}

const struct rk_loss_ops rk_loss_vanilla = {
    .name = "vanilla",
    .abi = RK_LOSS_ABI,
    .inputs = RK_LOSS_IN_OLD_LOG_PROBS | RK_LOSS_IN_ADVANTAGES,
    .forward_backward = forward_backward,
};
