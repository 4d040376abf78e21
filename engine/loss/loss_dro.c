/* DRO: the policy gradient with a quadratic penalty. With d = log_prob - old, not clamped:
 *
 *   l = -A log_prob + dro_beta/2 d^2            dl/dlog_prob = -A + dro_beta d
 *
 * Metrics: pg_loss and ppo_kl. Richemond et al., arXiv:2405.19107; names as in verl. */
#include "engine/loss/policy.h"

struct config {
    RK_DRO_KNOBS(RK_KNOB_FIELD, , , )
};

static const struct rk_knob knobs[] = {RK_DRO_KNOBS(RK_KNOB_ROW, struct config, , )};

static struct rk_status *check(void *opaque)
{
    const struct config *config = opaque;

    if (isnan(config->dro_beta))
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "policy_loss.dro_beta: loss_mode \"dro\" needs a number above 0, got null");
    return NULL;
}

static struct rk_pg_token token_loss(const void *opaque, double log_prob, double old, double advantage)
{
    const struct config *config = opaque;

    return rk_pg_dro(config->dro_beta, log_prob, old, advantage);
}

static void forward_backward(struct rk_loss_out *out, const struct rk_loss_in *in, const void *config)
{
    rk_pg_add_all(out, in, in->weight, token_loss, config);
}

const struct rk_loss_ops rk_loss_dro = {
    RK_PG_FIELDS,
    .knobs = knobs,
    .num_knobs = RK_ARRAY_LEN(knobs),
    .config_bytes = sizeof(struct config),
    .check = check,
    .num_metrics = RK_PG_PPO_KL + 1,
    .forward_backward = forward_backward,
};
