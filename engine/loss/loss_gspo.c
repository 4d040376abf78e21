/* GSPO: one ratio per sequence. With d = log_prob - old, not clamped, and s = e^min(10, mean of d over the
 * sequence's tokens in the loss mask):
 *
 *   l = max(-A s, -A clamp(s, 1 - low, 1 + high))
 *
 * Each token's log_prob carries the gradient of its own l as if s were its ratio: -A s where -A s is the
 * larger and s is not clamped at e^10, else 0. Always aggregated as seq-mean-token-mean, for every
 * loss_agg_mode. Metrics: pg_clipfrac of tokens whose clipped term is the larger; pg_clipfrac_lower is 0.
 * Zheng et al., arXiv:2507.18071; names as in verl. */
#include "engine/loss/policy.h"

#define LOG_RATIO_MAX 10.0

static void add_sequence(struct rk_loss_out *out, const struct rk_loss_in *in, int32_t begin, int32_t end,
                         const struct rk_clip_config *config)
{
    const double *log_probs = in->outputs[RK_HEAD_LOG_PROBS], *old = in->columns[RK_LOSS_OLD_LOG_PROBS];
    double log_ratio = rk_pg_mean_log_ratio(in, begin, end);
    double ratio = exp(log_ratio > LOG_RATIO_MAX ? LOG_RATIO_MAX : log_ratio);

    for (int32_t t = begin; t < end; t++) {
        struct rk_pg_token token;

        if (!in->mask[t])
            continue;
        token = rk_pg_clipped(config, ratio, in->columns[RK_LOSS_ADVANTAGES][t]);
        if (log_ratio > LOG_RATIO_MAX)
            token.grad = 0.0;
        token.kl = old[t] - log_probs[t];
        rk_pg_add(out, in, in->seq_weight, t, &token);
    }
}

static void forward_backward(struct rk_loss_out *out, const struct rk_loss_in *in, const void *config)
{
    for (int32_t i = 0; i < in->num_seqs; i++)
        add_sequence(out, in, in->cu_seqlens[i], in->cu_seqlens[i + 1], config);
}

const struct rk_loss_ops rk_loss_gspo = {
    RK_PG_FIELDS,
    RK_CLIP_FIELDS,
    .num_metrics = RK_PG_COUNT,
    .forward_backward = forward_backward,
};
