#include "engine/loss/policy.h"

const struct rk_loss_metric rk_pg_metrics[RK_PG_COUNT] = {
    [RK_PG_LOSS] = {"pg_loss", RK_LOSS_SUM, 0},
    [RK_PG_PPO_KL] = {"ppo_kl", RK_LOSS_SUM, 0},
    [RK_PG_CLIPFRAC] = {"pg_clipfrac", RK_LOSS_SUM, 0},
    [RK_PG_CLIPFRAC_LOWER] = {"pg_clipfrac_lower", RK_LOSS_SUM, 0},
};

struct rk_log_ratio rk_log_ratio(double log_prob, double old)
{
    double raw = log_prob - old;
    double d = rk_loss_clamp(raw, -RK_LOSS_EXPONENT_MAX, RK_LOSS_EXPONENT_MAX);

    return (struct rk_log_ratio){.d = d, .ratio = exp(d), .is_clamped = fabs(raw) > RK_LOSS_EXPONENT_MAX};
}

void rk_pg_add(struct rk_loss_out *out, const struct rk_loss_in *in, const double *weight, int64_t t,
               const struct rk_pg_token *token)
{
    double scale = weight[t] * rk_loss_is_weight(in, t);

    out->grads[RK_HEAD_LOG_PROBS][t] += scale * token->grad;
    out->metrics[RK_PG_LOSS] += scale * token->loss;
    out->metrics[RK_PG_PPO_KL] += in->token_weight[t] * token->kl;
    if (token->is_clipped)
        out->metrics[RK_PG_CLIPFRAC] += in->token_weight[t];
    if (token->is_clipped_lower)
        out->metrics[RK_PG_CLIPFRAC_LOWER] += in->token_weight[t];
}

void rk_pg_add_all(struct rk_loss_out *out, const struct rk_loss_in *in, const double *weight,
                   rk_pg_token_fn fn, const void *config)
{
    const double *old = in->columns[RK_LOSS_OLD_LOG_PROBS], *advantages = in->columns[RK_LOSS_ADVANTAGES];

    for (int64_t t = 0; t < in->num_tokens; t++) {
        struct rk_pg_token token;

        if (!in->mask[t])
            continue;
        token = fn(config, in->outputs[RK_HEAD_LOG_PROBS][t], old ? old[t] : 0.0, advantages[t]);
        rk_pg_add(out, in, weight, t, &token);
    }
}

double rk_pg_mean_log_ratio(const struct rk_loss_in *in, int64_t begin, int64_t end)
{
    double sum = 0.0;
    int64_t count = 0;

    for (int64_t t = begin; t < end; t++) {
        if (!in->mask[t])
            continue;
        sum += in->outputs[RK_HEAD_LOG_PROBS][t] - in->columns[RK_LOSS_OLD_LOG_PROBS][t];
        count++;
    }
    return count > 0 ? sum / (double)count : 0.0;
}

struct rk_pg_token rk_pg_clipped(const struct rk_clip_config *config, double ratio, double advantage)
{
    double l1 = -advantage * ratio, l2 = -advantage * rk_clip_ratio(config, ratio);
    bool is_clipped = l2 > l1;

    return (struct rk_pg_token){
        .loss = is_clipped ? l2 : l1,
        .grad = is_clipped ? 0.0 : l1,
        .is_clipped = is_clipped,
    };
}

struct rk_pg_token rk_pg_dual_clip(const struct rk_clip_config *config, double log_prob, double old,
                                   double advantage)
{
    struct rk_log_ratio r = rk_log_ratio(log_prob, old);
    struct rk_pg_token token = rk_pg_clipped(config, r.ratio, advantage);
    double lower = -advantage * config->clip_ratio_c;

    if (advantage < 0.0 && token.loss > lower) {
        token.loss = lower;
        token.is_clipped_lower = true;
    }
    if (token.is_clipped_lower || r.is_clamped)
        token.grad = 0.0;
    token.kl = -r.d;
    return token;
}

struct rk_pg_token rk_pg_dro(double beta, double log_prob, double old, double advantage)
{
    double d = log_prob - old;

    return (struct rk_pg_token){
        .loss = -(log_prob * advantage - 0.5 * beta * d * d),
        .grad = -advantage + beta * d,
        .kl = -d,
    };
}
