/* Entropy bonus, -entropy_coeff * H. Metrics entropy_loss: H; entropy: H of the first pass. With
 * calculate_entropy and a coefficient of 0 it only measures. */
#include "engine/loss/loss_internal.h"

struct entropy_config {
    RK_ENTROPY_KNOBS(RK_KNOB_FIELD, , , )
};

static const struct rk_knob knobs[] = {RK_ENTROPY_KNOBS(RK_KNOB_ROW, struct entropy_config, , )};

enum { ENTROPY_LOSS, ENTROPY };

static const struct rk_loss_metric metrics[] = {
    [ENTROPY_LOSS] = {"entropy_loss", RK_LOSS_SUM, 0},
    [ENTROPY] = {"entropy", RK_LOSS_FIRST, 0},
};

static bool is_enabled(const void *opaque)
{
    const struct entropy_config *config = opaque;

    return config->entropy_coeff != 0.0 || config->calculate_entropy;
}

static uint32_t measures(const void *opaque)
{
    const struct entropy_config *config = opaque;

    return config->entropy_coeff == 0.0 ? RK_HEAD_BIT(RK_HEAD_ENTROPY) : 0;
}

static double coefficient(const void *opaque)
{
    const struct entropy_config *config = opaque;

    return -config->entropy_coeff;
}

static void forward_backward(struct rk_loss_out *out, const struct rk_loss_in *in, const void *opaque)
{
    const struct entropy_config *config = opaque;

    for (int64_t t = 0; t < in->num_tokens; t++) {
        if (!in->mask[t])
            continue;
        out->grads[RK_HEAD_ENTROPY][t] -= config->entropy_coeff * in->weight[t];
        out->metrics[ENTROPY_LOSS] += in->weight[t] * in->outputs[RK_HEAD_ENTROPY][t];
        if (in->is_first_pass)
            out->metrics[ENTROPY] += in->weight[t] * in->outputs[RK_HEAD_ENTROPY][t];
    }
}

const struct rk_loss_ops rk_loss_entropy = {
    .outputs = RK_HEAD_BIT(RK_HEAD_ENTROPY),
    .metrics = metrics,
    .num_metrics = RK_ARRAY_LEN(metrics),
    .coefficient = coefficient,
    .knobs = knobs,
    .num_knobs = RK_ARRAY_LEN(knobs),
    .config_bytes = sizeof(struct entropy_config),
    .is_enabled = is_enabled,
    .measures = measures,
    .forward_backward = forward_backward,
};
