/* SAPO: a soft gate in place of the clip. With d = clamp(log_prob - old, -20, 20), r = e^d and
 * tau = tau_pos where A > 0, else tau_neg:
 *
 *   l = -A 4/tau sigmoid(tau (r - 1))           dl/dlog_prob = -4 A g (1 - g) r, g the sigmoid; 0 where d is
 * clamped
 *
 * Always aggregated as seq-mean-token-mean, for every loss_agg_mode. Metrics: the clip fractions are 0.
 * Arxiv 2511.20347; names as in verl. */
#include "engine/loss/policy.h"

struct config {
    RK_SAPO_KNOBS(RK_KNOB_FIELD, , , )
};

static const struct rk_knob knobs[] = {RK_SAPO_KNOBS(RK_KNOB_ROW, struct config, , )};

static struct rk_pg_token token_loss(const void *opaque, double log_prob, double old, double advantage)
{
    const struct config *config = opaque;
    struct rk_log_ratio r = rk_log_ratio(log_prob, old);
    double tau = advantage > 0.0 ? config->tau_pos : config->tau_neg;
    double gate = 1.0 / (1.0 + exp(-tau * (r.ratio - 1.0)));

    return (struct rk_pg_token){
        .loss = -advantage * gate * (4.0 / tau),
        .grad = r.is_clamped ? 0.0 : -4.0 * advantage * gate * (1.0 - gate) * r.ratio,
        .kl = -r.d,
    };
}

static void forward_backward(struct rk_loss_out *out, const struct rk_loss_in *in, const void *config)
{
    rk_pg_add_all(out, in, in->seq_weight, token_loss, config);
}

const struct rk_loss_ops rk_loss_sapo = {
    RK_PG_FIELDS,
    .knobs = knobs,
    .num_knobs = RK_ARRAY_LEN(knobs),
    .config_bytes = sizeof(struct config),
    .num_metrics = RK_PG_COUNT,
    .forward_backward = forward_backward,
};
