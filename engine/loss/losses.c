/* The loss table, and what all policy losses have in common: the KL and the entropy term.
 *
 *   L = sum_t weight[t] * (policy[t] + kl_loss_coef * KL[t] - entropy_coeff * H[t])
 *
 * weight carries the global denominators, so L is a plain sum over tokens, micro-batches and replicas. */
#include "engine/loss/loss_internal.h"

#include <string.h>

#include "base/rk_assert.h"
#include "base/rk_str.h"

static const struct rk_loss_ops *const losses[] = {
    &rk_loss_vanilla,
};

const struct rk_loss_ops *rk_loss_find(const char *name)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(losses); i++) {
        RK_ASSERT(losses[i]->abi == RK_LOSS_ABI);
        if (strcmp(losses[i]->name, name) == 0)
            return losses[i];
    }
    return NULL;
}

char *rk_loss_names(void)
{
    struct rk_str names = {0};

    for (size_t i = 0; i < RK_ARRAY_LEN(losses); i++)
        rk_str_appendf(&names, "%s%s", i ? ", " : "", losses[i]->name);
    return rk_str_take(&names);
}

static void add_kl(struct rk_loss_out *out, const struct rk_loss_in *in, const struct rk_loss_config *config)
{
    for (int64_t t = 0; t < in->num_tokens; t++) {
        double value, grad;

        if (!in->mask[t])
            continue;
        rk_kl_estimate(config->kl_type, config->kl_straight_through, in->log_probs[t], in->ref_log_prob[t],
                       &value, &grad);
        out->dlog_probs[t] += config->kl_loss_coef * in->weight[t] * grad;
        out->metrics.kl_loss += in->weight[t] * value;
    }
}

static void add_entropy(struct rk_loss_out *out, const struct rk_loss_in *in,
                        const struct rk_loss_config *config)
{
    for (int64_t t = 0; t < in->num_tokens; t++) {
        if (out->dentropy)
            out->dentropy[t] = in->mask[t] ? -config->entropy_coeff * in->weight[t] : 0.0;
        if (in->mask[t])
            out->metrics.entropy_loss += in->weight[t] * in->entropy[t];
    }
}

void rk_loss_forward_backward(struct rk_loss_out *out, const struct rk_loss_in *in,
                              const struct rk_loss_config *config)
{
    RK_ASSERT(!(config->ops->inputs & RK_LOSS_IN_OLD_LOG_PROBS) || in->num_tokens == 0 || in->old_log_probs);
    RK_ASSERT(!(config->ops->inputs & RK_LOSS_IN_ADVANTAGES) || in->num_tokens == 0 || in->advantages);
    RK_ASSERT(!config->use_kl_loss || in->num_tokens == 0 || in->ref_log_prob);
    RK_ASSERT(!out->dentropy || in->num_tokens == 0 || in->entropy);

    config->ops->forward_backward(out, in, config);
    if (config->use_kl_loss)
        add_kl(out, in, config);
    if (in->entropy)
        add_entropy(out, in, config);
}
