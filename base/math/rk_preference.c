#include "base/math/rk_preference.h"

#include <math.h>
#include <string.h>

#include "base/math/formulas.def"
#include "base/rk_assert.h"

struct rk_preference_loss {
    const char *name;
    bool is_per_token; /* x is divided by the tokens first */
    struct rk_preference_slope (*of)(const struct rk_preference *pair, double chosen, double rejected);
    bool needs_smoothing;
};

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static double log_sigmoid(double x)
{
    return x < 0.0 ? x - log1p(exp(x)) : -log1p(exp(-x));
}

/* Slopes of a loss that depends on the difference alone. */
static struct rk_preference_slope difference(double loss, double by_difference)
{
    return (struct rk_preference_slope){loss, by_difference, -by_difference};
}

static struct rk_preference_slope of_sigmoid(const struct rk_preference *pair, double chosen, double rejected)
{
    double z = pair->beta * (chosen - rejected), e = pair->label_smoothing;

    return difference(-(1.0 - e) * log_sigmoid(z) - e * log_sigmoid(-z),
                      pair->beta * (e * sigmoid(z) - (1.0 - e) * sigmoid(-z)));
}

static struct rk_preference_slope of_robust(const struct rk_preference *pair, double chosen, double rejected)
{
    double z = pair->beta * (chosen - rejected), e = pair->label_smoothing, scale = 1.0 - 2.0 * e;

    return difference((-(1.0 - e) * log_sigmoid(z) + e * log_sigmoid(-z)) / scale,
                      -pair->beta * ((1.0 - e) * sigmoid(-z) + e * sigmoid(z)) / scale);
}

static struct rk_preference_slope of_hinge(const struct rk_preference *pair, double chosen, double rejected)
{
    double room = 1.0 - pair->beta * (chosen - rejected);

    return room <= 0.0 ? difference(0.0, 0.0) : difference(room, -pair->beta);
}

static struct rk_preference_slope of_ipo(const struct rk_preference *pair, double chosen, double rejected)
{
    double error = chosen - rejected - 0.5 / pair->beta;

    return difference(error * error, 2.0 * error);
}

static struct rk_preference_slope of_sigmoid_norm(const struct rk_preference *pair, double chosen,
                                                  double rejected)
{
    double z = pair->beta * (chosen - rejected);

    return difference(-log_sigmoid(z), -pair->beta * sigmoid(-z));
}

static struct rk_preference_slope of_exo_pair(const struct rk_preference *pair, double chosen,
                                              double rejected)
{
    double z = pair->beta * (chosen - rejected), q = sigmoid(z), p = sigmoid(-z);
    double right = log_sigmoid(z) - log1p(-pair->label_smoothing);
    double wrong = log_sigmoid(-z) - log(pair->label_smoothing);

    return difference(q * right + p * wrong, pair->beta * q * p * (right - wrong));
}

static struct rk_preference_slope of_apo_zero(const struct rk_preference *pair, double chosen,
                                              double rejected)
{
    double c = sigmoid(pair->beta * chosen), not_c = sigmoid(-pair->beta * chosen);
    double r = sigmoid(pair->beta * rejected), not_r = sigmoid(-pair->beta * rejected);

    return (struct rk_preference_slope){not_c + r, -pair->beta * c * not_c, pair->beta * r * not_r};
}

static struct rk_preference_slope of_apo_down(const struct rk_preference *pair, double chosen,
                                              double rejected)
{
    double z = pair->beta * (chosen - rejected), q = sigmoid(z), p = sigmoid(-z);
    double c = sigmoid(pair->beta * chosen), not_c = sigmoid(-pair->beta * chosen);

    return (struct rk_preference_slope){c + p, pair->beta * (c * not_c - q * p), pair->beta * q * p};
}

static struct rk_preference_slope of_nca_pair(const struct rk_preference *pair, double chosen,
                                              double rejected)
{
    double c = pair->beta * chosen, r = pair->beta * rejected;

    return (struct rk_preference_slope){
        .loss = -log_sigmoid(c) - 0.5 * log_sigmoid(-c) - 0.5 * log_sigmoid(-r),
        .chosen = pair->beta * (0.5 * sigmoid(c) - sigmoid(-c)),
        .rejected = 0.5 * pair->beta * sigmoid(r),
    };
}

static struct rk_preference_slope of_sppo_hard(const struct rk_preference *pair, double chosen,
                                               double rejected)
{
    double c = chosen - 0.5 / pair->beta, r = rejected + 0.5 / pair->beta;

    return (struct rk_preference_slope){c * c + r * r, 2.0 * c, 2.0 * r};
}

static const struct rk_preference_loss losses[] = {
#define ROW(name, formula, is_per_token, needs_smoothing) \
    {#name, is_per_token, of_##formula, needs_smoothing},
    RK_PREFERENCE_TABLE(ROW)
#undef ROW
};

struct rk_status *rk_preference_read(struct rk_preference *out, const char *loss_type, double beta,
                                     double label_smoothing)
{
    *out = (struct rk_preference){.beta = beta, .label_smoothing = label_smoothing};
    for (size_t i = 0; i < RK_ARRAY_LEN(losses); i++) {
        if (strcmp(losses[i].name, loss_type) == 0)
            out->loss = &losses[i];
    }
    if (!out->loss)
        return RK_FAIL(RK_INVALID_ARGUMENT, "loss_type: expected one of %s, got \"%s\"",
                       RK_PREFERENCE_CHOICES, loss_type);
    if (out->loss->needs_smoothing && label_smoothing == 0.0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "label_smoothing: loss_type %s needs a number above 0, got 0",
                       loss_type);
    return NULL;
}

struct rk_preference_slope rk_preference_of(const struct rk_preference *pair,
                                            const struct rk_preference_side *chosen,
                                            const struct rk_preference_side *rejected)
{
    double by_chosen = pair->loss->is_per_token ? 1.0 / chosen->num_tokens : 1.0;
    double by_rejected = pair->loss->is_per_token ? 1.0 / rejected->num_tokens : 1.0;
    struct rk_preference_slope slope =
        pair->loss->of(pair, chosen->log_ratio * by_chosen, rejected->log_ratio * by_rejected);

    slope.chosen *= by_chosen;
    slope.rejected *= by_rejected;
    return slope;
}
