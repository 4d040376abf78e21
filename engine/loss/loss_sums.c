/* Losses for training gateways whose client normalizes: plain sums over tokens, with weights and advantages
 * of any sign and size. With r = e^(log_prob - old), not clamped, and [low, high] = [clip_low_threshold,
 * clip_high_threshold], which are ratios:
 *
 *   cross_entropy        -w log_prob, w = 1 without the column weights
 *   importance_sampling  -r A                             gradient -r A
 *   ppo                  -min(r A, clamp(r) A)            -r A where r A is the smaller or equal, else 0
 *   cispo                -clamp(r) A log_prob             -clamp(r) A
 *   dro                  -(A log_prob - beta/2 (log_prob - old)^2)
 *   gspo                 ppo with r = e^(mean of log_prob - old over the sequence); gradient -r A of each own
 *                        token, r as a constant (GSPO-token)
 *
 * No dual clip, no KL, no entropy. ppo and gspo: thresholds 0.8 and 1.2 unless set; cispo: 0 and 4. The mean
 * of gspo is over the tokens whose sequence_ratio_mask is not 0, over all without that column. Metric
 * loss_sum. Names and formulas: the loss functions of Tinker's API. */
#include "engine/loss/policy.h"

#define FIELDS \
    .outputs = RK_HEAD_BIT(RK_HEAD_LOG_PROBS), .metrics = metrics, .num_metrics = RK_ARRAY_LEN(metrics)

static const struct rk_loss_metric metrics[] = {[RK_PG_LOSS] = {"loss_sum", RK_LOSS_SUM, 0}};

struct clip_config {
    RK_SUM_CLIP_KNOBS(RK_KNOB_FIELD, , , )
};

static const struct rk_knob clip_knobs[] = {RK_SUM_CLIP_KNOBS(RK_KNOB_ROW, struct clip_config, , )};

static struct rk_status *complete_clip(struct clip_config *config, double low, double high)
{
    if (isnan(config->clip_low_threshold))
        config->clip_low_threshold = low;
    if (isnan(config->clip_high_threshold))
        config->clip_high_threshold = high;
    if (config->clip_low_threshold <= config->clip_high_threshold)
        return NULL;
    return RK_FAIL(RK_INVALID_ARGUMENT,
                   "clip_low_threshold: expected at most clip_high_threshold (%g), got %g",
                   config->clip_high_threshold, config->clip_low_threshold);
}

static struct rk_status *check_ppo(void *config)
{
    return complete_clip(config, 0.8, 1.2);
}

static struct rk_status *check_cispo(void *config)
{
    return complete_clip(config, 0.0, 4.0);
}

static double clip(const struct clip_config *config, double ratio)
{
    return rk_loss_clamp(ratio, config->clip_low_threshold, config->clip_high_threshold);
}

static struct rk_pg_token clipped(const struct clip_config *config, double ratio, double advantage)
{
    double l1 = -ratio * advantage, l2 = -clip(config, ratio) * advantage;

    return l2 > l1 ? (struct rk_pg_token){.loss = l2} : (struct rk_pg_token){.loss = l1, .grad = l1};
}

static void cross_entropy(struct rk_loss_out *out, const struct rk_loss_in *in, const void *config)
{
    const double *weights = in->columns[RK_LOSS_WEIGHTS];

    (void)config;
    for (int64_t t = 0; t < in->num_tokens; t++) {
        double weight;

        if (!in->mask[t])
            continue;
        weight = in->weight[t] * (weights ? weights[t] : 1.0);
        out->grads[RK_HEAD_LOG_PROBS][t] -= weight;
        out->metrics[RK_PG_LOSS] -= weight * in->outputs[RK_HEAD_LOG_PROBS][t];
    }
}

static struct rk_pg_token importance_sampling_token(const void *config, double log_prob, double old,
                                                    double advantage)
{
    double loss = -exp(log_prob - old) * advantage;

    (void)config;
    return (struct rk_pg_token){.loss = loss, .grad = loss};
}

static void importance_sampling(struct rk_loss_out *out, const struct rk_loss_in *in, const void *config)
{
    rk_pg_add_all(out, in, in->weight, importance_sampling_token, config);
}

static struct rk_pg_token ppo_token(const void *config, double log_prob, double old, double advantage)
{
    return clipped(config, exp(log_prob - old), advantage);
}

static void ppo(struct rk_loss_out *out, const struct rk_loss_in *in, const void *config)
{
    rk_pg_add_all(out, in, in->weight, ppo_token, config);
}

static struct rk_pg_token cispo_token(const void *config, double log_prob, double old, double advantage)
{
    double grad = -clip(config, exp(log_prob - old)) * advantage;

    return (struct rk_pg_token){.loss = grad * log_prob, .grad = grad};
}

static void cispo(struct rk_loss_out *out, const struct rk_loss_in *in, const void *config)
{
    rk_pg_add_all(out, in, in->weight, cispo_token, config);
}

/* --- dro --- */
struct dro_config {
    RK_SUM_DRO_KNOBS(RK_KNOB_FIELD, , , )
};

static const struct rk_knob dro_knobs[] = {RK_SUM_DRO_KNOBS(RK_KNOB_ROW, struct dro_config, , )};

static struct rk_status *check_dro(void *opaque)
{
    const struct dro_config *config = opaque;

    return isnan(config->beta) ? RK_FAIL(RK_INVALID_ARGUMENT, "beta: dro needs a number above 0, got null")
                               : NULL;
}

static struct rk_pg_token dro_token(const void *opaque, double log_prob, double old, double advantage)
{
    const struct dro_config *config = opaque;

    return rk_pg_dro(config->beta, log_prob, old, advantage);
}

static void dro(struct rk_loss_out *out, const struct rk_loss_in *in, const void *config)
{
    rk_pg_add_all(out, in, in->weight, dro_token, config);
}

/* --- gspo --- */
static double sequence_ratio(const struct rk_loss_in *in, int64_t begin, int64_t end)
{
    const double *counts = in->columns[RK_LOSS_SEQUENCE_RATIO_MASK];
    double sum = 0.0, count = 0.0;

    for (int64_t t = begin; t < end; t++) {
        if (!in->mask[t] || (counts && counts[t] == 0.0))
            continue;
        sum += in->outputs[RK_HEAD_LOG_PROBS][t] - in->columns[RK_LOSS_OLD_LOG_PROBS][t];
        count += 1.0;
    }
    return count > 0.0 ? exp(sum / count) : 1.0;
}

static void gspo(struct rk_loss_out *out, const struct rk_loss_in *in, const void *config)
{
    for (int32_t i = 0; i < in->num_seqs; i++) {
        double ratio = sequence_ratio(in, in->cu_seqlens[i], in->cu_seqlens[i + 1]);

        for (int64_t t = in->cu_seqlens[i]; t < in->cu_seqlens[i + 1]; t++) {
            struct rk_pg_token token;

            if (!in->mask[t])
                continue;
            token = clipped(config, ratio, in->columns[RK_LOSS_ADVANTAGES][t]);
            rk_pg_add(out, in, in->weight, t, &token);
        }
    }
}

#define CLIP_FIELDS \
    .knobs = clip_knobs, .num_knobs = RK_ARRAY_LEN(clip_knobs), .config_bytes = sizeof(struct clip_config)

const struct rk_loss_ops rk_loss_sum_cross_entropy = {
    FIELDS,
    .forward_backward = cross_entropy,
};

const struct rk_loss_ops rk_loss_sum_importance_sampling = {
    FIELDS,
    .forward_backward = importance_sampling,
};

const struct rk_loss_ops rk_loss_sum_ppo = {
    FIELDS,
    CLIP_FIELDS,
    .check = check_ppo,
    .forward_backward = ppo,
};

const struct rk_loss_ops rk_loss_sum_cispo = {
    FIELDS,
    CLIP_FIELDS,
    .check = check_cispo,
    .forward_backward = cispo,
};

const struct rk_loss_ops rk_loss_sum_dro = {
    FIELDS,
    .knobs = dro_knobs,
    .num_knobs = RK_ARRAY_LEN(dro_knobs),
    .config_bytes = sizeof(struct dro_config),
    .check = check_dro,
    .forward_backward = dro,
};

const struct rk_loss_ops rk_loss_sum_gspo = {
    FIELDS,
    CLIP_FIELDS,
    .check = check_ppo,
    .forward_backward = gspo,
};
