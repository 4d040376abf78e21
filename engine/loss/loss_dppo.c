/* DPPO: the policy gradient of tokens whose probability has changed by no more than a bound. With p =
 * e^log_prob, q = e^old, d = clamp(log_prob - old, -20, 20) and w = min(e^d, clip_ratio_c):
 *
 *   l = -A w log_prob v                         dl/dlog_prob = -A w v; w and v are constants
 *   dppo_tv   v = p - q <= high where A > 0, else p - q >= -low
 *   dppo_kl   v = b <= high or p <= q where A > 0, else b <= low or p >= q
 *             b = q (old - log_prob) + (1 - q) ln((1 - q + 1e-8) / (1 - p + 1e-8))
 *
 * so here clip_ratio, clip_ratio_low and clip_ratio_high bound a divergence. Metrics: pg_clipfrac of
 * v = 0, pg_clipfrac_lower of e^d > clip_ratio_c with v = 1.
 * Arxiv 2602.04879, which advises clip_ratio_c = 20; names as in verl. */
#include "engine/loss/policy.h"

#define PROB_EPS 1e-8

typedef bool (*is_near_fn)(const struct rk_clip_config *config, double log_prob, double old,
                           double advantage);

static bool is_near_tv(const struct rk_clip_config *config, double log_prob, double old, double advantage)
{
    double moved = exp(log_prob) - exp(old);

    return advantage > 0.0 ? moved <= config->clip_ratio_high : moved >= -config->clip_ratio_low;
}

static bool is_near_kl(const struct rk_clip_config *config, double log_prob, double old, double advantage)
{
    double p = exp(log_prob), q = exp(old);
    double kl = q * (old - log_prob) + (1.0 - q) * log((1.0 - q + PROB_EPS) / (1.0 - p + PROB_EPS));

    if (advantage > 0.0)
        return kl <= config->clip_ratio_high || p <= q;
    return kl <= config->clip_ratio_low || p >= q;
}

static struct rk_pg_token token_loss(const struct rk_clip_config *config, double log_prob, double old,
                                     double advantage, is_near_fn is_near)
{
    struct rk_log_ratio r = rk_log_ratio(log_prob, old);
    bool is_cut = r.ratio > config->clip_ratio_c;
    double scale = -advantage * (is_cut ? config->clip_ratio_c : r.ratio);
    struct rk_pg_token token = {.kl = -r.d};

    if (!isnan(r.d) && !is_near(config, log_prob, old, advantage)) {
        token.is_clipped = true;
        return token;
    }
    token.loss = scale * log_prob;
    token.grad = scale;
    token.is_clipped_lower = is_cut;
    return token;
}

static struct rk_pg_token token_tv(const void *config, double log_prob, double old, double advantage)
{
    return token_loss(config, log_prob, old, advantage, is_near_tv);
}

static struct rk_pg_token token_kl(const void *config, double log_prob, double old, double advantage)
{
    return token_loss(config, log_prob, old, advantage, is_near_kl);
}

static void forward_backward_tv(struct rk_loss_out *out, const struct rk_loss_in *in, const void *config)
{
    rk_pg_add_all(out, in, in->weight, token_tv, config);
}

static void forward_backward_kl(struct rk_loss_out *out, const struct rk_loss_in *in, const void *config)
{
    rk_pg_add_all(out, in, in->weight, token_kl, config);
}

const struct rk_loss_ops rk_loss_dppo_tv = {
    RK_PG_FIELDS,
    RK_CLIP_FIELDS,
    .num_metrics = RK_PG_COUNT,
    .forward_backward = forward_backward_tv,
};

const struct rk_loss_ops rk_loss_dppo_kl = {
    RK_PG_FIELDS,
    RK_CLIP_FIELDS,
    .num_metrics = RK_PG_COUNT,
    .forward_backward = forward_backward_kl,
};
