/* The loss table, and what all policy losses have in common: the weights of the aggregation modes, the KL and
 * the entropy term.
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

static int64_t count_mask(const uint8_t *mask, int32_t begin, int32_t end)
{
    int64_t count = 0;

    for (int32_t t = begin; t < end; t++)
        count += mask[t] != 0;
    return count;
}

/* What the loss of a sequence with `length` counted tokens is divided by; 0 when nothing counts. */
static double denominator_of(rk_loss_agg_mode_t mode, int64_t length,
                             const struct rk_loss_denominators *global)
{
    switch (mode) {
    case RK_AGG_TOKEN_MEAN:
        return global->num_tokens;
    case RK_AGG_TOKEN_SUM:
        return 1.0;
    case RK_AGG_SEQ_MEAN_TOKEN_SUM:
        return global->num_sequences;
    case RK_AGG_SEQ_MEAN_TOKEN_MEAN:
        return (double)length * global->num_sequences;
    case RK_AGG_SEQ_MEAN_TOKEN_SUM_NORM:
        return global->scale * global->num_sequences;
    case RK_AGG_COUNT:
        break;
    }
    RK_ASSERT(!"not an aggregation mode");
    return 0.0;
}

void rk_loss_weights(double *weight, rk_loss_agg_mode_t mode, const uint8_t *mask, const int32_t *cu_seqlens,
                     int32_t num_seqs, const struct rk_loss_denominators *denominators)
{
    RK_ASSERT(num_seqs == 0 || cu_seqlens[0] == 0);
    for (int32_t i = 0; i < num_seqs; i++) {
        int64_t length = count_mask(mask, cu_seqlens[i], cu_seqlens[i + 1]);
        double denominator = denominator_of(mode, length, denominators);

        for (int32_t t = cu_seqlens[i]; t < cu_seqlens[i + 1]; t++)
            weight[t] = mask[t] && denominator > 0.0 ? 1.0 / denominator : 0.0;
    }
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
