/* GMPO: the geometric mean of a sequence's ratios. With d = log_prob - old, not clamped, n the tokens of the
 * row in the loss mask, and per token
 *
 *   x = d where sgn(A) d <= sgn(A) clamp(d, -low, high), else clamp(d, -low, high); 0 where A = 0
 *
 *   L_i = -Abar e^(mean of x)                   dL_i/dlog_prob = L_i / n where x is d and A is not 0, else 0
 *
 * Abar is the mean of A over the row. The loss is the sum of L_i over the rows divided by the rows of the
 * mini-batch, for every loss_agg_mode; a row without tokens in the loss mask adds 0. The rollout's importance
 * weights w multiply L_i by their geometric mean, e^(mean of ln(w + 1e-10)). Metrics, over tokens:
 * pg_clipfrac of d outside the range with A > 0, pg_clipfrac_lower of the same with A < 0, ppo_kl. Zhao et
 * al., arXiv:2507.20673; names as in verl, which divides by the rows of the micro-batch. */
#include "engine/loss/policy.h"

#define WEIGHT_EPS 1e-10

struct row {
    int64_t begin, end;
    double count, x, advantage, log_weight; /* sums, then means */
};

static bool is_active(double d, double clamped, double advantage)
{
    if (advantage > 0.0)
        return !(d > clamped);
    return advantage < 0.0 && !(d < clamped);
}

static double clamp_log_ratio(const struct rk_clip_config *config, double d)
{
    return rk_loss_clamp(d, -config->clip_ratio_low, config->clip_ratio_high);
}

static void add_metrics(struct rk_loss_out *out, double token_weight, double d, double clamped,
                        double advantage)
{
    bool is_outside = d < clamped || d > clamped;

    out->metrics[RK_PG_PPO_KL] -= token_weight * d;
    if (is_outside && advantage > 0.0)
        out->metrics[RK_PG_CLIPFRAC] += token_weight;
    if (is_outside && advantage < 0.0)
        out->metrics[RK_PG_CLIPFRAC_LOWER] += token_weight;
}

static void sum_row(struct row *row, struct rk_loss_out *out, const struct rk_loss_in *in,
                    const struct rk_clip_config *config)
{
    const double *is_weights = in->columns[RK_LOSS_ROLLOUT_IS_WEIGHTS];

    for (int64_t t = row->begin; t < row->end; t++) {
        double advantage, d, clamped;

        if (!in->mask[t])
            continue;
        advantage = in->columns[RK_LOSS_ADVANTAGES][t];
        d = in->outputs[RK_HEAD_LOG_PROBS][t] - in->columns[RK_LOSS_OLD_LOG_PROBS][t];
        clamped = clamp_log_ratio(config, d);
        add_metrics(out, in->token_weight[t], d, clamped, advantage);
        row->count += 1.0;
        row->advantage += advantage;
        if (advantage != 0.0)
            row->x += is_active(d, clamped, advantage) ? d : clamped;
        if (is_weights)
            row->log_weight += log(is_weights[t] + WEIGHT_EPS);
    }
}

static void add_grads(struct rk_loss_out *out, const struct rk_loss_in *in, const struct row *row,
                      double grad, const struct rk_clip_config *config)
{
    for (int64_t t = row->begin; t < row->end; t++) {
        double d;

        if (!in->mask[t])
            continue;
        d = in->outputs[RK_HEAD_LOG_PROBS][t] - in->columns[RK_LOSS_OLD_LOG_PROBS][t];
        if (is_active(d, clamp_log_ratio(config, d), in->columns[RK_LOSS_ADVANTAGES][t]))
            out->grads[RK_HEAD_LOG_PROBS][t] += grad;
    }
}

static void forward_backward(struct rk_loss_out *out, const struct rk_loss_in *in, const void *config)
{
    for (int32_t i = 0; i < in->num_seqs; i++) {
        struct row row = {.begin = in->cu_seqlens[i], .end = in->cu_seqlens[i + 1]};
        double loss;

        sum_row(&row, out, in, config);
        if (!(row.count > 0.0))
            continue;
        loss = -row.advantage / row.count * exp((row.x + row.log_weight) / row.count) / in->num_sequences;
        out->metrics[RK_PG_LOSS] += loss;
        add_grads(out, in, &row, loss / row.count, config);
    }
}

const struct rk_loss_ops rk_loss_geo_mean = {
    RK_PG_FIELDS,
    RK_CLIP_FIELDS,
    .num_metrics = RK_PG_COUNT,
    .forward_backward = forward_backward,
};
