/* On-policy distillation on the sampled tokens, added to the policy loss or instead of it: the value of a
 * token is e(x), an estimator of base/math/rk_kl.h with x = log_prob - teacher_log_probs; distill.h defines
 * the loss from it. k1 has a constant gradient and is rejected without use_policy_gradient.
 *
 * Metrics: those of distill.h, and abs_loss, the mean of |e|. Names as in verl; GKD, arXiv:2306.13649. */
#include "engine/loss/distill.h"

enum { ABS_LOSS = RK_DISTILL_NUM_METRICS };

static const struct rk_loss_metric metrics[] = {
    RK_DISTILL_METRICS,
    [ABS_LOSS] = {"distillation/abs_loss", RK_LOSS_SUM, 0},
};

static bool is_enabled(const void *opaque)
{
    const struct rk_distill_config *config = opaque;

    return !config->is_topk;
}

static void forward_backward(struct rk_loss_out *out, const struct rk_loss_in *in, const void *opaque)
{
    const struct rk_distill_config *config = opaque;

    for (int64_t t = 0; t < in->num_tokens; t++) {
        double value, grad, factor;

        if (!in->mask[t])
            continue;
        rk_kl_estimate(config->kl_type, false, in->outputs[RK_HEAD_LOG_PROBS][t],
                       in->columns[RK_LOSS_TEACHER_LOG_PROBS][t], &value, &grad);
        factor = rk_distill_add(out, in, config, t, value);
        out->grads[RK_HEAD_LOG_PROBS][t] += factor * grad;
        out->metrics[ABS_LOSS] += in->token_weight[t] * fabs(value);
    }
}

const struct rk_loss_ops rk_loss_distill = {
    RK_DISTILL_FIELDS,
    .metrics = metrics,
    .num_metrics = RK_ARRAY_LEN(metrics),
    .is_enabled = is_enabled,
    .forward_backward = forward_backward,
};
