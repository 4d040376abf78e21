/* The critic's loss, PPO's clipped squared error. Per token, with c = cliprange_value:
 *
 *   l = max((v - R)^2, (clamp(v, V - c, V + c) - R)^2) / 2      V: value before the update, R: return
 *   dl/dv = v - R where the first is the larger or they are equal; else 0, since the clamp acts then
 *
 * Metrics: vf_loss; vf_clipfrac, the share of tokens whose second square is the larger; vpred_mean, the mean
 * of v. Schulman et al., arXiv:1707.06347; names as in verl. */
#include "engine/loss/loss_internal.h"

struct value_config {
    RK_VALUE_LOSS_KNOBS(RK_KNOB_FIELD, , , )
};

static const struct rk_knob knobs[] = {RK_VALUE_LOSS_KNOBS(RK_KNOB_ROW, struct value_config, , )};

enum { VF_LOSS, VF_CLIPFRAC, VPRED_MEAN };

static const struct rk_loss_metric metrics[] = {
    [VF_LOSS] = {"vf_loss", RK_LOSS_SUM, 0},
    [VF_CLIPFRAC] = {"vf_clipfrac", RK_LOSS_SUM, 0},
    [VPRED_MEAN] = {"vpred_mean", RK_LOSS_SUM, 0},
};

static void forward_backward(struct rk_loss_out *out, const struct rk_loss_in *in, const void *opaque)
{
    const struct value_config *config = opaque;
    const double *values = in->columns[RK_LOSS_VALUES], *returns = in->columns[RK_LOSS_RETURNS];
    double clip = config->cliprange_value;

    for (int64_t t = 0; t < in->num_tokens; t++) {
        double v, error, clipped_error;

        if (!in->mask[t])
            continue;
        v = in->outputs[RK_HEAD_VALUES][t];
        error = v - returns[t];
        clipped_error = rk_loss_clamp(v, values[t] - clip, values[t] + clip) - returns[t];
        out->metrics[VPRED_MEAN] += in->token_weight[t] * v;
        if (clipped_error * clipped_error > error * error) {
            out->metrics[VF_LOSS] += in->weight[t] * 0.5 * clipped_error * clipped_error;
            out->metrics[VF_CLIPFRAC] += in->token_weight[t];
        } else {
            out->metrics[VF_LOSS] += in->weight[t] * 0.5 * error * error;
            out->grads[RK_HEAD_VALUES][t] += in->weight[t] * error;
        }
    }
}

const struct rk_loss_ops rk_loss_value = {
    .outputs = RK_HEAD_BIT(RK_HEAD_VALUES),
    .metrics = metrics,
    .num_metrics = RK_ARRAY_LEN(metrics),
    .knobs = knobs,
    .num_knobs = RK_ARRAY_LEN(knobs),
    .config_bytes = sizeof(struct value_config),
    .forward_backward = forward_backward,
};
