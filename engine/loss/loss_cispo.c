/* CISPO: the policy gradient with a clipped ratio as a constant. With d = clamp(log_prob - old, -20, 20), r =
 * e^d and w = clamp(r, 1 - low, 1 + high):
 *
 *   l = -w A log_prob           dl/dlog_prob = -w A, also where w is clipped
 *
 * Metrics: pg_clipfrac of r != w; pg_clipfrac_lower is 0.
 * MiniMax-M1, arXiv:2506.13585; names as in verl. */
#include "engine/loss/policy.h"

static struct rk_pg_token token_loss(const void *opaque, double log_prob, double old, double advantage)
{
    struct rk_log_ratio r = rk_log_ratio(log_prob, old);
    double w = rk_clip_ratio(opaque, r.ratio);

    return (struct rk_pg_token){
        .loss = -w * advantage * log_prob,
        .grad = -w * advantage,
        .kl = -r.d,
        .is_clipped = r.ratio < w || r.ratio > w,
    };
}

static void forward_backward(struct rk_loss_out *out, const struct rk_loss_in *in, const void *config)
{
    rk_pg_add_all(out, in, in->weight, token_loss, config);
}

const struct rk_loss_ops rk_loss_cispo = {
    RK_PG_FIELDS,
    RK_CLIP_FIELDS,
    .num_metrics = RK_PG_COUNT,
    .forward_backward = forward_backward,
};
