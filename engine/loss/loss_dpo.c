/* Losses on pairs of a chosen and a rejected response, sequences 2i and 2i + 1 of the micro-batch.
 *
 * With x = sum of log_prob - ref_log_prob over the tokens of a response that count, c for the chosen and r
 * for the rejected one, D = x_c - x_r, n their numbers of tokens, Dn = x_c / n_c - x_r / n_r, s the logistic
 * function, b = beta and e = label_smoothing:
 *
 *   sigmoid       -(1 - e) ln s(b D) - e ln s(-b D)
 *   robust        (-(1 - e) ln s(b D) + e ln s(-b D)) / (1 - 2 e)                   e < 1/2
 *   hinge         max(0, 1 - b D)
 *   ipo           (Dn - 1 / (2 b))^2
 *   ipo_sum       (D - 1 / (2 b))^2
 *   sigmoid_norm  -ln s(b Dn)
 *   exo_pair      s(b D) (ln s(b D) - ln(1 - e)) + s(-b D) (ln s(-b D) - ln e)      e > 0
 *   apo_zero      1 - s(b x_c) + s(b x_r)
 *   apo_down      s(b x_c) + 1 - s(b D)
 *   nca_pair      -ln s(b x_c) - 1/2 ln s(-b x_c) - 1/2 ln s(-b x_r)
 *   sppo_hard     (x_c - 1 / (2 b))^2 + (x_r + 1 / (2 b))^2
 *
 * The loss is their mean over the pairs of the mini-batch, half its sequences. A pair with an empty side adds
 * nothing (the driver refuses such data; padding of a layout looks like that). Metrics, as means over pairs:
 * loss, rewards/chosen b x_c, rewards/rejected b x_r, rewards/margins, rewards/accuracies of x_c > x_r,
 * logps/chosen and logps/rejected. Rafailov et al., arXiv:2305.18290; names and formulas as in TRL. */
#include "engine/loss/loss_internal.h"

#include <string.h>

#include "base/rk_assert.h"

struct config;

/* A pair's loss and its derivatives by x_c and x_r. */
struct slope {
    double loss, chosen, rejected;
};

struct formula {
    const char *name;
    bool is_per_token; /* x is divided by the tokens first */
    struct slope (*of)(const struct config *config, double chosen, double rejected);
};

struct config {
    RK_DPO_KNOBS(RK_KNOB_FIELD, , , )
    const struct formula *formula;
};

static const struct rk_knob knobs[] = {RK_DPO_KNOBS(RK_KNOB_ROW, struct config, , )};

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static double log_sigmoid(double x)
{
    return x < 0.0 ? x - log1p(exp(x)) : -log1p(exp(-x));
}

/* Of a loss that depends on the difference alone. */
static struct slope difference(double loss, double by_difference)
{
    return (struct slope){loss, by_difference, -by_difference};
}

static struct slope of_sigmoid(const struct config *config, double chosen, double rejected)
{
    double z = config->beta * (chosen - rejected), e = config->label_smoothing;

    return difference(-(1.0 - e) * log_sigmoid(z) - e * log_sigmoid(-z),
                      config->beta * (e * sigmoid(z) - (1.0 - e) * sigmoid(-z)));
}

static struct slope of_robust(const struct config *config, double chosen, double rejected)
{
    double z = config->beta * (chosen - rejected), e = config->label_smoothing, scale = 1.0 - 2.0 * e;

    return difference((-(1.0 - e) * log_sigmoid(z) + e * log_sigmoid(-z)) / scale,
                      -config->beta * ((1.0 - e) * sigmoid(-z) + e * sigmoid(z)) / scale);
}

static struct slope of_hinge(const struct config *config, double chosen, double rejected)
{
    double room = 1.0 - config->beta * (chosen - rejected);

    return room <= 0.0 ? difference(0.0, 0.0) : difference(room, -config->beta);
}

static struct slope of_ipo(const struct config *config, double chosen, double rejected)
{
    double error = chosen - rejected - 0.5 / config->beta;

    return difference(error * error, 2.0 * error);
}

static struct slope of_sigmoid_norm(const struct config *config, double chosen, double rejected)
{
    double z = config->beta * (chosen - rejected);

    return difference(-log_sigmoid(z), -config->beta * sigmoid(-z));
}

static struct slope of_exo_pair(const struct config *config, double chosen, double rejected)
{
    double z = config->beta * (chosen - rejected), q = sigmoid(z), p = sigmoid(-z);
    double right = log_sigmoid(z) - log1p(-config->label_smoothing);
    double wrong = log_sigmoid(-z) - log(config->label_smoothing);

    return difference(q * right + p * wrong, config->beta * q * p * (right - wrong));
}

static struct slope of_apo_zero(const struct config *config, double chosen, double rejected)
{
    double c = sigmoid(config->beta * chosen), not_c = sigmoid(-config->beta * chosen);
    double r = sigmoid(config->beta * rejected), not_r = sigmoid(-config->beta * rejected);

    return (struct slope){not_c + r, -config->beta * c * not_c, config->beta * r * not_r};
}

static struct slope of_apo_down(const struct config *config, double chosen, double rejected)
{
    double z = config->beta * (chosen - rejected), q = sigmoid(z), p = sigmoid(-z);
    double c = sigmoid(config->beta * chosen), not_c = sigmoid(-config->beta * chosen);

    return (struct slope){c + p, config->beta * (c * not_c - q * p), config->beta * q * p};
}

static struct slope of_nca_pair(const struct config *config, double chosen, double rejected)
{
    double c = config->beta * chosen, r = config->beta * rejected;

    return (struct slope){
        .loss = -log_sigmoid(c) - 0.5 * log_sigmoid(-c) - 0.5 * log_sigmoid(-r),
        .chosen = config->beta * (0.5 * sigmoid(c) - sigmoid(-c)),
        .rejected = 0.5 * config->beta * sigmoid(r),
    };
}

static struct slope of_sppo_hard(const struct config *config, double chosen, double rejected)
{
    double c = chosen - 0.5 / config->beta, r = rejected + 0.5 / config->beta;

    return (struct slope){c * c + r * r, 2.0 * c, 2.0 * r};
}

static const struct formula formulas[] = {
    {"sigmoid", false, of_sigmoid},     {"robust", false, of_robust},
    {"hinge", false, of_hinge},         {"ipo", true, of_ipo},
    {"ipo_sum", false, of_ipo},         {"sigmoid_norm", true, of_sigmoid_norm},
    {"exo_pair", false, of_exo_pair},   {"apo_zero", false, of_apo_zero},
    {"apo_down", false, of_apo_down},   {"nca_pair", false, of_nca_pair},
    {"sppo_hard", false, of_sppo_hard},
};

static struct rk_status *check(void *opaque)
{
    struct config *config = opaque;

    for (size_t i = 0; i < RK_ARRAY_LEN(formulas); i++) {
        if (strcmp(formulas[i].name, config->loss_type) == 0)
            config->formula = &formulas[i];
    }
    RK_ASSERT(config->formula); /* the key's choices are the names of the table */
    if (config->formula->of == of_exo_pair && config->label_smoothing == 0.0)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "label_smoothing: loss_type exo_pair needs a number above 0, got 0");
    return NULL;
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
    double log_prob, log_ratio; /* sums over tokens that count */
    double count, scale;        /* what log_ratio is multiplied by before the formula */
};

static struct side sum_side(const struct rk_loss_in *in, int32_t seq, bool is_per_token)
{
    struct side side = {.begin = in->cu_seqlens[seq], .end = in->cu_seqlens[seq + 1], .scale = 1.0};

    for (int32_t t = side.begin; t < side.end; t++) {
        double log_prob;

        if (!in->mask[t])
            continue;
        log_prob = in->outputs[RK_HEAD_LOG_PROBS][t];
        side.log_prob += log_prob;
        side.log_ratio += log_prob - in->columns[RK_LOSS_REF_LOG_PROB][t];
        side.count += 1.0;
    }
    if (is_per_token && side.count > 0.0)
        side.scale = 1.0 / side.count;
    return side;
}

static void add_grads(struct rk_loss_out *out, const struct rk_loss_in *in, const struct side *side,
                      double grad)
{
    for (int32_t t = side->begin; t < side->end; t++) {
        if (in->mask[t])
            out->grads[RK_HEAD_LOG_PROBS][t] += grad * side->scale;
    }
}

static void add_pair(struct rk_loss_out *out, const struct rk_loss_in *in, int32_t seq,
                     const struct config *config)
{
    struct side chosen = sum_side(in, seq, config->formula->is_per_token);
    struct side rejected = sum_side(in, seq + 1, config->formula->is_per_token);
    double weight = 2.0 / in->num_sequences, c = config->beta * chosen.log_ratio;
    double r = config->beta * rejected.log_ratio;
    struct slope slope;

    if (chosen.count == 0.0 || rejected.count == 0.0)
        return;
    slope = config->formula->of(config, chosen.log_ratio * chosen.scale, rejected.log_ratio * rejected.scale);
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
    .name = "dpo",
    .abi = RK_LOSS_ABI,
    .kind = RK_OBJECTIVE_DPO,
    .outputs = RK_HEAD_BIT(RK_HEAD_LOG_PROBS),
    .columns = RK_LOSS_BIT(RK_LOSS_REF_LOG_PROB),
    .metrics = metrics,
    .num_metrics = RK_ARRAY_LEN(metrics),
    .knobs = knobs,
    .num_knobs = RK_ARRAY_LEN(knobs),
    .config_bytes = sizeof(struct config),
    .check = check,
    .forward_backward = forward_backward,
};
