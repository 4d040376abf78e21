/* Supervised fine-tuning: l = -log_prob of the tokens in the loss mask. Metric loss: its mean. */
#include "engine/loss/loss_internal.h"

enum { LOSS };

static const struct rk_loss_metric metrics[] = {[LOSS] = {"loss", RK_LOSS_SUM, 0}};

static void forward_backward(struct rk_loss_out *out, const struct rk_loss_in *in, const void *config)
{
    (void)config;
    for (int64_t t = 0; t < in->num_tokens; t++) {
        if (!in->mask[t])
            continue;
        out->grads[RK_HEAD_LOG_PROBS][t] -= in->weight[t];
        out->metrics[LOSS] -= in->weight[t] * in->outputs[RK_HEAD_LOG_PROBS][t];
    }
}

const struct rk_loss_ops rk_loss_sft = {
    .outputs = RK_HEAD_BIT(RK_HEAD_LOG_PROBS),
    .metrics = metrics,
    .num_metrics = RK_ARRAY_LEN(metrics),
    .forward_backward = forward_backward,
};
