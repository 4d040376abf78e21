/* Losses on pairs of a chosen and a rejected response, sequences 2i and 2i + 1 of the micro-batch; the
 * formulas: base/math/rk_preference.h.
 *
 * The loss is their mean over the pairs of the mini-batch, half its sequences. A pair with an empty response
 * adds nothing (the driver rejects such data, but the padding of a layout has this form). Metrics, as means
 * over pairs, named as in TRL: loss, rewards/chosen beta x_c, rewards/rejected beta x_r, rewards/margins,
 * rewards/accuracies of x_c > x_r, logps/chosen and logps/rejected. */
#include "engine/loss/loss_internal.h"

#include "base/math/rk_preference.h"

struct config {
    RK_DPO_KNOBS(RK_KNOB_FIELD, , , )
    struct rk_preference pair;
};

static const struct rk_knob knobs[] = {RK_DPO_KNOBS(RK_KNOB_ROW, struct config, , )};

static struct rk_status *check(void *opaque)
{
    struct config *config = opaque;

    return rk_preference_read(&config->pair, config->loss_type, config->beta, config->label_smoothing);
}

enum { LOSS, REWARD_CHOSEN, REWARD_REJECTED, MARGIN, ACCURACY, LOGP_CHOSEN, LOGP_REJECTED };

static const struct rk_loss_metric metrics[] = {
    [LOSS] = {"loss", RK_LOSS_SUM, 0},
    [REWARD_CHOSEN] = {"rewards/chosen", RK_LOSS_SUM, 0},
    [REWARD_REJECTED] = {"rewards/rejected", RK_LOSS_SUM, 0},
    [MARGIN] = {"rewards/margins", RK_LOSS_SUM, 0},
    [ACCURACY] = {"rewards/accuracies", RK_LOSS_SUM, 0},
    [LOGP_CHOSEN] = {"logps/chosen", RK_LOSS_SUM, 0},
    [LOGP_REJECTED] = {"logps/rejected", RK_LOSS_SUM, 0},
};

/* One response. */
struct side {
    int32_t begin, end;
    double log_prob; /* sum over the tokens in the loss mask */
    struct rk_preference_side ratio;
};

static struct side sum_side(const struct rk_loss_in *in, int32_t seq)
{
    struct side side = {.begin = in->cu_seqlens[seq], .end = in->cu_seqlens[seq + 1]};

    for (int32_t t = side.begin; t < side.end; t++) {
        double log_prob;

        if (!in->mask[t])
            continue;
        log_prob = in->outputs[RK_HEAD_LOG_PROBS][t];
        side.log_prob += log_prob;
        side.ratio.log_ratio += log_prob - in->columns[RK_LOSS_REF_LOG_PROB][t];
        side.ratio.num_tokens += 1.0;
    }
    return side;
}

static void add_grads(struct rk_loss_out *out, const struct rk_loss_in *in, const struct side *side,
                      double grad)
{
    for (int32_t t = side->begin; t < side->end; t++) {
        if (in->mask[t])
            out->grads[RK_HEAD_LOG_PROBS][t] += grad;
    }
}

static void add_pair(struct rk_loss_out *out, const struct rk_loss_in *in, int32_t seq,
                     const struct config *config)
{
    struct side chosen = sum_side(in, seq), rejected = sum_side(in, seq + 1);
    double weight = 2.0 / in->num_sequences, c = config->beta * chosen.ratio.log_ratio;
    double r = config->beta * rejected.ratio.log_ratio;
    struct rk_preference_slope slope;

    if (chosen.ratio.num_tokens == 0.0 || rejected.ratio.num_tokens == 0.0)
        return;
    slope = rk_preference_of(&config->pair, &chosen.ratio, &rejected.ratio);
    add_grads(out, in, &chosen, weight * slope.chosen);
    add_grads(out, in, &rejected, weight * slope.rejected);
    out->metrics[LOSS] += weight * slope.loss;
    out->metrics[REWARD_CHOSEN] += weight * c;
    out->metrics[REWARD_REJECTED] += weight * r;
    out->metrics[MARGIN] += weight * (c - r);
    out->metrics[ACCURACY] += c > r ? weight : 0.0;
    out->metrics[LOGP_CHOSEN] += weight * chosen.log_prob;
    out->metrics[LOGP_REJECTED] += weight * rejected.log_prob;
}

static void forward_backward(struct rk_loss_out *out, const struct rk_loss_in *in, const void *config)
{
    for (int32_t i = 0; i + 1 < in->num_seqs; i += 2)
        add_pair(out, in, i, config);
}

const struct rk_loss_ops rk_loss_dpo = {
    .outputs = RK_HEAD_BIT(RK_HEAD_LOG_PROBS),
    .metrics = metrics,
    .num_metrics = RK_ARRAY_LEN(metrics),
    .knobs = knobs,
    .num_knobs = RK_ARRAY_LEN(knobs),
    .config_bytes = sizeof(struct config),
    .check = check,
    .forward_backward = forward_backward,
};
