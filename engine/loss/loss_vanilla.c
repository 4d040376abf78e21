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

enum { PG_LOSS, PG_CLIPFRAC, PG_CLIPFRAC_LOWER, PPO_KL };

static const struct rk_loss_metric metrics[] = {
    [PG_LOSS] = {"pg_loss", RK_LOSS_SUM, 0},
    [PG_CLIPFRAC] = {"pg_clipfrac", RK_LOSS_SUM, 0},
    [PG_CLIPFRAC_LOWER] = {"pg_clipfrac_lower", RK_LOSS_SUM, 0},
    [PPO_KL] = {"ppo_kl", RK_LOSS_SUM, 0},
};

struct token {
    double loss, grad, d;
    bool is_clipped, is_clipped_lower;
};

static struct token token_loss(const struct rk_clip_config *config, double log_prob, double old,
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

static void forward_backward(struct rk_loss_out *out, const struct rk_loss_in *in, const void *config)
{
    const double *log_probs = in->outputs[RK_HEAD_LOG_PROBS];
    const double *old = in->columns[RK_LOSS_OLD_LOG_PROBS], *advantages = in->columns[RK_LOSS_ADVANTAGES];

    for (int64_t t = 0; t < in->num_tokens; t++) {
        struct token token;
        double scale;

        if (!in->mask[t])
            continue;
        token = token_loss(config, log_probs[t], old[t], advantages[t]);
        scale = in->weight[t] * rk_loss_is_weight(in, t);
        out->grads[RK_HEAD_LOG_PROBS][t] += scale * token.grad;
        out->metrics[PG_LOSS] += scale * token.loss;
        out->metrics[PPO_KL] -= in->token_weight[t] * token.d;
        if (token.is_clipped)
            out->metrics[PG_CLIPFRAC] += in->token_weight[t];
        if (token.is_clipped_lower)
            out->metrics[PG_CLIPFRAC_LOWER] += in->token_weight[t];
    }
}

const struct rk_loss_ops rk_loss_vanilla = {
    .name = "vanilla",
    .abi = RK_LOSS_ABI,
    .kind = RK_OBJECTIVE_POLICY,
    .outputs = RK_HEAD_BIT(RK_HEAD_LOG_PROBS),
    .columns = RK_LOSS_BIT(RK_LOSS_OLD_LOG_PROBS) | RK_LOSS_BIT(RK_LOSS_ADVANTAGES),
    .optional_columns = RK_LOSS_BIT(RK_LOSS_ROLLOUT_IS_WEIGHTS),
    .metrics = metrics,
    .num_metrics = RK_ARRAY_LEN(metrics),
    .knobs = rk_clip_knobs,
    .num_knobs = RK_NUM_CLIP_KNOBS,
    .config_bytes = sizeof(struct rk_clip_config),
    .check = rk_clip_check,
    .forward_backward = forward_backward,
};
