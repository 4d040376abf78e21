/* KL to the reference policy, kl_loss_coef * KL: estimators in base/math/rk_kl.h. Metric kl_loss: the KL
 * without its coefficient. */
#include "engine/loss/loss_internal.h"

#include "base/math/rk_kl.h"

struct kl_config {
    RK_KL_LOSS_KNOBS(RK_KNOB_FIELD, , , )
    rk_kl_type_t type;
    bool straight_through; /* "+" forms: gradient of k2 */
};

static const struct rk_knob knobs[] = {RK_KL_LOSS_KNOBS(RK_KNOB_ROW, struct kl_config, , )};

enum { KL_LOSS, KL_COEF };

static const struct rk_loss_metric metrics[] = {
    [KL_LOSS] = {"kl_loss", RK_LOSS_SUM, 0},
    [KL_COEF] = {"kl_coef", RK_LOSS_CONFIG, offsetof(struct kl_config, kl_loss_coef)},
};

static struct rk_status *check(void *opaque)
{
    struct kl_config *config = opaque;

    return rk_kl_type_parse("kl_loss_type", config->kl_loss_type, &config->type, &config->straight_through);
}

static double coefficient(const void *opaque)
{
    const struct kl_config *config = opaque;

    return config->kl_loss_coef;
}

static void forward_backward(struct rk_loss_out *out, const struct rk_loss_in *in, const void *opaque)
{
    const struct kl_config *config = opaque;
    const double *log_probs = in->outputs[RK_HEAD_LOG_PROBS], *ref = in->columns[RK_LOSS_REF_LOG_PROB];

    for (int64_t t = 0; t < in->num_tokens; t++) {
        double value, grad;

        if (!in->mask[t])
            continue;
        rk_kl_estimate(config->type, config->straight_through, log_probs[t], ref[t], &value, &grad);
        out->grads[RK_HEAD_LOG_PROBS][t] += config->kl_loss_coef * in->weight[t] * grad;
        out->metrics[KL_LOSS] += in->weight[t] * value;
    }
}

const struct rk_loss_ops rk_loss_kl = {
    .outputs = RK_HEAD_BIT(RK_HEAD_LOG_PROBS),
    .metrics = metrics,
    .num_metrics = RK_ARRAY_LEN(metrics),
    .coefficient = coefficient,
    .knobs = knobs,
    .num_knobs = RK_ARRAY_LEN(knobs),
    .config_bytes = sizeof(struct kl_config),
    .check = check,
    .forward_backward = forward_backward,
};
