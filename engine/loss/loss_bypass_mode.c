/* Bypass mode: trains against the rollout's log-probs, which are in the column old_log_probs, without
 * log-probs of the policy before the update. In every micro-batch l = log_prob - old gives importance weights
 * w and rejects tokens and responses (base/math/rk_rollout_correction.h). For a token that is kept:
 *
 *   loss_type ppo_clip    the dual-clip loss of loss_vanilla.c, without w: the ratio contains it
 *   loss_type reinforce   -A log_prob w, w = 1 without rollout_is; no gradient flows through w
 *
 * Rejected tokens stay in the denominators of the loss, which are those of the whole mini-batch; only the
 * mean over a response's own tokens (seq-mean-token-mean) leaves them out. Metrics: pg_loss; ppo_kl and, with
 * ppo_clip, the clip fractions, over the tokens that are kept; and below rollout_corr/ sums over the tokens
 * and rows before rejection, to which a row without tokens adds means of log-probs of 0, a perplexity of 1.
 * verl's compute_policy_loss_bypass_mode. */
#include "base/rk_alloc.h"
#include "base/math/rk_rollout_correction.h"
#include "engine/loss/policy.h"

struct config {
    struct rk_clip_config clip;
    RK_ROLLOUT_CORRECTION_KNOBS(RK_KNOB_FIELD, , , )
    struct rk_rollout_correction correction;
};

static const struct rk_knob knobs[] = {
    RK_CLIP_KNOBS(RK_KNOB_ROW, struct rk_clip_config, , ) /* first member of struct config */
    RK_ROLLOUT_CORRECTION_KNOBS(RK_KNOB_ROW, struct config, , )};

/* Appended to the metrics of every policy loss. */
enum {
    IS_MEAN = RK_PG_COUNT,
    IS_MAX,
    IS_MIN,
    IS_FRACTION_HIGH,
    IS_FRACTION_LOW,
    IS_OOB,
    RS_MASKED,
    RS_SEQ_MASKED,
    KL,
    K3_KL,
    CHI2_TOKEN,
    CHI2_SEQ,
    TRAINING_PPL,
    TRAINING_LOG_PPL,
    ROLLOUT_PPL,
    ROLLOUT_LOG_PPL,
    LOG_PPL_DIFF,
    LOG_PPL_ABS_DIFF,
    LOG_PPL_DIFF_MAX,
    LOG_PPL_DIFF_MIN,
    PPL_RATIO,
    NUM_KEPT,
    NUM_METRICS
};

#define CORR(name, reduce)              \
    {                                   \
        "rollout_corr/" name, reduce, 0 \
    }

static const struct rk_loss_metric metrics[] = {
    [RK_PG_LOSS] = {"pg_loss", RK_LOSS_SUM, 0},
    [RK_PG_PPO_KL] = {"ppo_kl", RK_LOSS_KEPT, 0},
    [RK_PG_CLIPFRAC] = {"pg_clipfrac", RK_LOSS_KEPT, 0},
    [RK_PG_CLIPFRAC_LOWER] = {"pg_clipfrac_lower", RK_LOSS_KEPT, 0},
    [IS_MEAN] = CORR("rollout_is_mean", RK_LOSS_SUM),
    [IS_MAX] = CORR("rollout_is_max", RK_LOSS_MAX),
    [IS_MIN] = CORR("rollout_is_min", RK_LOSS_MIN),
    [IS_FRACTION_HIGH] = CORR("rollout_is_ratio_fraction_high", RK_LOSS_SUM),
    [IS_FRACTION_LOW] = CORR("rollout_is_ratio_fraction_low", RK_LOSS_SUM),
    [IS_OOB] = CORR("rollout_is_oob_ratio", RK_LOSS_SUM),
    [RS_MASKED] = CORR("rollout_rs_masked_fraction", RK_LOSS_SUM),
    [RS_SEQ_MASKED] = CORR("rollout_rs_seq_masked_fraction", RK_LOSS_SUM),
    [KL] = CORR("kl", RK_LOSS_SUM),
    [K3_KL] = CORR("k3_kl", RK_LOSS_SUM),
    [CHI2_TOKEN] = CORR("chi2_token", RK_LOSS_SUM),
    [CHI2_SEQ] = CORR("chi2_seq", RK_LOSS_SUM),
    [TRAINING_PPL] = CORR("training_ppl", RK_LOSS_SUM),
    [TRAINING_LOG_PPL] = CORR("training_log_ppl", RK_LOSS_SUM),
    [ROLLOUT_PPL] = CORR("rollout_ppl", RK_LOSS_SUM),
    [ROLLOUT_LOG_PPL] = CORR("rollout_log_ppl", RK_LOSS_SUM),
    [LOG_PPL_DIFF] = CORR("log_ppl_diff", RK_LOSS_SUM),
    [LOG_PPL_ABS_DIFF] = CORR("log_ppl_abs_diff", RK_LOSS_SUM),
    [LOG_PPL_DIFF_MAX] = CORR("log_ppl_diff_max", RK_LOSS_MAX),
    [LOG_PPL_DIFF_MIN] = CORR("log_ppl_diff_min", RK_LOSS_MIN),
    [PPL_RATIO] = CORR("ppl_ratio", RK_LOSS_SUM),
    [NUM_KEPT] = {"num_kept", RK_LOSS_COUNT, 0},
};

static const char *given(const char *text)
{
    return *text ? text : NULL;
}

static struct rk_status *check(void *opaque)
{
    struct config *config = opaque;

    RK_TRY(rk_clip_check(&config->clip));
    return rk_rollout_correction_parse(&config->correction,
                                       &(struct rk_rollout_correction_keys){
                                           .rollout_is = given(config->rollout_is),
                                           .rollout_is_threshold = given(config->rollout_is_threshold),
                                           .rollout_is_batch_normalize = config->rollout_is_batch_normalize,
                                           .rollout_rs = given(config->rollout_rs),
                                           .rollout_rs_threshold = given(config->rollout_rs_threshold),
                                           .loss_type = given(config->loss_type),
                                           .bypass_mode = true,
                                       });
}

static bool has_metric(const void *opaque, int32_t i)
{
    const struct config *config = opaque;

    switch (i) {
    case RK_PG_CLIPFRAC:
    case RK_PG_CLIPFRAC_LOWER:
        return config->correction.loss_type == RK_BYPASS_PPO_CLIP;
    case IS_MEAN:
    case IS_MAX:
    case IS_MIN:
    case IS_FRACTION_HIGH:
    case IS_FRACTION_LOW:
        return config->correction.rollout_is != RK_ROLLOUT_IS_NONE;
    case IS_OOB:
        return config->correction.rollout_is != RK_ROLLOUT_IS_NONE && config->correction.is_lower > 0.0;
    case RS_MASKED:
    case RS_SEQ_MASKED:
        return config->correction.num_rules > 0;
    default:
        return true;
    }
}

/* The tokens of a sequence in the loss mask, packed; the arrays fit the longest sequence. */
struct row {
    const struct rk_loss_in *in;
    const struct rk_rollout_correction *correction;
    int64_t n;
    int64_t *at; /* [n] in the micro-batch */
    double *log_ratio, *raw;
    uint8_t *keep;
};

static void add(struct rk_loss_out *out, int32_t i, double value)
{
    out->metrics[i] += value;
}

static void fold(struct rk_loss_out *out, int32_t max, int32_t min, double of_max, double of_min)
{
    out->metrics[max] = fmax(out->metrics[max], of_max);
    out->metrics[min] = fmin(out->metrics[min], of_min);
}

static double clamp(double log_ratio)
{
    return rk_loss_clamp(log_ratio, -RK_ROLLOUT_LOG_RATIO_MAX, RK_ROLLOUT_LOG_RATIO_MAX);
}

/* Measures the distance of the two policies. */
static void measure_policies(struct rk_loss_out *out, const struct row *row)
{
    double per_row = 1.0 / row->in->num_sequences, n = (double)RK_MAX(row->n, 1), diff;
    double log_prob = 0.0, old = 0.0, sum = 0.0;

    for (int64_t j = 0; j < row->n; j++) {
        double l = row->log_ratio[j], per_token = row->in->token_weight[row->at[j]];

        log_prob += row->in->outputs[RK_HEAD_LOG_PROBS][row->at[j]];
        old += row->in->columns[RK_LOSS_OLD_LOG_PROBS][row->at[j]];
        sum += l;
        add(out, KL, -l * per_token);
        add(out, K3_KL, (exp(l) - l - 1.0) * per_token);
        add(out, CHI2_TOKEN, (exp(2.0 * clamp(l)) - 1.0) * per_token);
    }
    diff = (old - log_prob) / n;
    add(out, CHI2_SEQ, (exp(2.0 * clamp(sum)) - 1.0) * per_row);
    add(out, TRAINING_PPL, exp(-log_prob / n) * per_row);
    add(out, TRAINING_LOG_PPL, -log_prob / n * per_row);
    add(out, ROLLOUT_PPL, exp(-old / n) * per_row);
    add(out, ROLLOUT_LOG_PPL, -old / n * per_row);
    add(out, LOG_PPL_DIFF, diff * per_row);
    add(out, LOG_PPL_ABS_DIFF, fabs(diff) * per_row);
    fold(out, LOG_PPL_DIFF_MAX, LOG_PPL_DIFF_MIN, diff, diff);
    add(out, PPL_RATIO, exp(diff) * per_row);
}

static void measure_weights(struct rk_loss_out *out, const struct row *row)
{
    const struct rk_rollout_correction *correction = row->correction;
    double upper = correction->is_upper,
           lower = correction->is_lower > 0.0 ? correction->is_lower : 1.0 / upper;
    bool is_token = correction->rollout_is == RK_ROLLOUT_IS_TOKEN;
    double sum = 0.0;

    for (int64_t j = 0; j < row->n; j++) {
        double raw = row->raw[j], weight = rk_rollout_is_weight(correction, raw);
        double per_token = row->in->token_weight[row->at[j]];

        sum += row->log_ratio[j];
        add(out, IS_MEAN, weight * per_token);
        add(out, IS_OOB, raw < lower || raw > upper ? per_token : 0.0);
        if (!is_token)
            continue;
        fold(out, IS_MAX, IS_MIN, weight, weight);
        add(out, IS_FRACTION_HIGH, raw > upper ? per_token : 0.0);
        add(out, IS_FRACTION_LOW, raw < lower ? per_token : 0.0);
    }
    if (is_token)
        return;
    fold(out, IS_MAX, IS_MIN, exp(fmin(sum, RK_ROLLOUT_LOG_RATIO_MAX)), exp(sum));
    add(out, IS_FRACTION_HIGH, sum > log(upper) ? 1.0 / row->in->num_sequences : 0.0);
    add(out, IS_FRACTION_LOW, sum < log(lower) ? 1.0 / row->in->num_sequences : 0.0);
}

/* Returns the number of kept tokens. */
static int64_t measure_rejection(struct rk_loss_out *out, const struct row *row)
{
    int64_t num_kept = 0;

    for (int64_t j = 0; j < row->n; j++) {
        num_kept += row->keep[j];
        add(out, RS_MASKED, row->keep[j] ? 0.0 : row->in->token_weight[row->at[j]]);
    }
    add(out, NUM_KEPT, (double)num_kept);
    add(out, RS_SEQ_MASKED, num_kept < row->n ? 1.0 / row->in->num_sequences : 0.0);
    return num_kept;
}

static struct rk_pg_token token_loss(const struct config *config, const struct row *row, int64_t j)
{
    int64_t t = row->at[j];
    double log_prob = row->in->outputs[RK_HEAD_LOG_PROBS][t];
    double advantage = row->in->columns[RK_LOSS_ADVANTAGES][t], weight = 1.0;

    if (row->correction->loss_type == RK_BYPASS_PPO_CLIP)
        return rk_pg_dual_clip(&config->clip, log_prob, row->in->columns[RK_LOSS_OLD_LOG_PROBS][t],
                               advantage);
    if (row->correction->rollout_is != RK_ROLLOUT_IS_NONE)
        weight = rk_rollout_is_weight(row->correction, row->raw[j]);
    return (struct rk_pg_token){
        .loss = -advantage * log_prob * weight,
        .grad = -advantage * weight,
        .kl = -row->log_ratio[j],
    };
}

static void add_row(struct rk_loss_out *out, const struct row *row, const struct config *config)
{
    int64_t num_kept;
    double scale;

    measure_policies(out, row);
    if (row->correction->rollout_is != RK_ROLLOUT_IS_NONE) {
        rk_rollout_is_raw(row->raw, row->correction, row->log_ratio, row->n);
        measure_weights(out, row);
    }
    rk_rollout_rs_keep(row->keep, row->correction, row->log_ratio, row->n);
    num_kept = measure_rejection(out, row);
    scale =
        row->in->agg_mode == RK_AGG_SEQ_MEAN_TOKEN_MEAN ? (double)row->n / (double)RK_MAX(num_kept, 1) : 1.0;
    for (int64_t j = 0; j < row->n; j++) {
        struct rk_pg_token token;

        if (!row->keep[j])
            continue;
        token = token_loss(config, row, j);
        token.loss *= scale;
        token.grad *= scale;
        rk_pg_add(out, row->in, row->in->weight, row->at[j], &token);
    }
}

static void gather(struct row *row, int32_t sequence)
{
    const struct rk_loss_in *in = row->in;

    row->n = 0;
    for (int32_t t = in->cu_seqlens[sequence]; t < in->cu_seqlens[sequence + 1]; t++) {
        if (!in->mask[t])
            continue;
        row->at[row->n] = t;
        row->log_ratio[row->n] = in->outputs[RK_HEAD_LOG_PROBS][t] - in->columns[RK_LOSS_OLD_LOG_PROBS][t];
        row->n++;
    }
}

static void forward_backward(struct rk_loss_out *out, const struct rk_loss_in *in, const void *opaque)
{
    const struct config *config = opaque;
    size_t room = (size_t)in->num_tokens;
    struct row row = {
        .in = in,
        .correction = &config->correction,
        .at = rk_calloc(room, sizeof(*row.at)),
        .log_ratio = rk_calloc(room, sizeof(*row.log_ratio)),
        .raw = rk_calloc(room, sizeof(*row.raw)),
        .keep = rk_calloc(room, sizeof(*row.keep)),
    };

    for (int32_t i = 0; i < in->num_seqs; i++) {
        gather(&row, i);
        add_row(out, &row, config);
    }
    rk_free(row.at);
    rk_free(row.log_ratio);
    rk_free(row.raw);
    rk_free(row.keep);
}

const struct rk_loss_ops rk_loss_bypass_mode = {
    .outputs = RK_HEAD_BIT(RK_HEAD_LOG_PROBS),
    .metrics = metrics,
    .num_metrics = NUM_METRICS,
    .has_metric = has_metric,
    .knobs = knobs,
    .num_knobs = RK_ARRAY_LEN(knobs),
    .config_bytes = sizeof(struct config),
    .check = check,
    .forward_backward = forward_backward,
};
