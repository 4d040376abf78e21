/* PPO's clipped policy loss with a dual clip. Per token, with d = clamp(log_prob - old, -20, 20) and r = e^d:
 *
 *   l1 = -A r                l2 = -A clamp(r, 1 - low, 1 + high)             c1 = max(l1, l2)
 *   l  = min(-A c, c1) where A < 0, else c1                                  c  = clip_ratio_c > 1
 *
 *   dl/dlog_prob = -A r where l1 >= l2, d is not clamped, and not (A < 0 and c1 > -A c); else 0
 *
 * l is multiplied by the rollout's importance weight where there is one. Metrics, as means over the tokens in
 * the loss mask: pg_clipfrac of l2 > l1, pg_clipfrac_lower of c1 > -A c with A < 0, ppo_kl of -d. Schulman et
 * al., arXiv:1707.06347; dual clip: Ye et al., arXiv:1912.09729; names as in verl. */
#include "engine/loss/policy.h"

static struct rk_pg_token token_loss(const void *config, double log_prob, double old, double advantage)
{
    return rk_pg_dual_clip(config, log_prob, old, advantage);
}

static void forward_backward(struct rk_loss_out *out, const struct rk_loss_in *in, const void *config)
{
    rk_pg_add_all(out, in, in->weight, token_loss, config);
}

const struct rk_loss_ops rk_loss_vanilla = {
    RK_PG_FIELDS,
    RK_CLIP_FIELDS,
    .num_metrics = RK_PG_COUNT,
    .forward_backward = forward_backward,
};
