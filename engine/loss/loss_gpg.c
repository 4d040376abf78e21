/* GPG: the plain policy gradient, l = -A log_prob. Metrics: pg_loss alone.
 * Chu et al., arXiv:2504.02546; names as in verl. */
#include "engine/loss/policy.h"

static struct rk_pg_token token_loss(const void *config, double log_prob, double old, double advantage)
{
    (void)config;
    (void)old;
    return (struct rk_pg_token){.loss = -advantage * log_prob, .grad = -advantage};
}

static void forward_backward(struct rk_loss_out *out, const struct rk_loss_in *in, const void *config)
{
    rk_pg_add_all(out, in, in->weight, token_loss, config);
}

const struct rk_loss_ops rk_loss_gpg = {
    RK_PG_FIELDS,
    .num_metrics = RK_PG_LOSS + 1,
    .forward_backward = forward_backward,
};
