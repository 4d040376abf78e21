#include "engine/loss/cov.h"

struct rk_cov rk_cov_begin(const struct rk_loss_in *in)
{
    struct rk_cov cov = {.in = in};

    for (int64_t t = 0; t < in->num_tokens; t++) {
        if (!in->mask[t])
            continue;
        cov.mean_advantage += in->columns[RK_LOSS_ADVANTAGES][t];
        cov.mean_log_prob += in->outputs[RK_HEAD_LOG_PROBS][t];
        cov.num_tokens++;
    }
    if (cov.num_tokens > 0) {
        cov.mean_advantage /= (double)cov.num_tokens;
        cov.mean_log_prob /= (double)cov.num_tokens;
    }
    return cov;
}

double rk_cov_at(const struct rk_cov *cov, int64_t t)
{
    return (cov->in->columns[RK_LOSS_ADVANTAGES][t] - cov->mean_advantage) *
           (cov->in->outputs[RK_HEAD_LOG_PROBS][t] - cov->mean_log_prob);
}

int64_t rk_cov_count(const struct rk_cov *cov, double ratio)
{
    double count = ratio * (double)cov->num_tokens;

    return count > 1.0 ? (int64_t)count : 1;
}

/* Counts the tokens with a key up to `limit`. */
static int64_t count_keys(const struct rk_cov *cov, uint64_t limit, rk_cov_key_fn key, const void *config)
{
    const struct rk_loss_in *in = cov->in;
    int64_t count = 0;

    for (int32_t i = 0; i < in->num_seqs; i++) {
        for (int64_t t = in->cu_seqlens[i]; t < in->cu_seqlens[i + 1]; t++)
            count += in->mask[t] && key(cov, i, t, config) <= limit;
    }
    return count;
}

struct rk_cov_choice rk_cov_choose(const struct rk_cov *cov, int64_t count, rk_cov_key_fn key,
                                   const void *config)
{
    uint64_t low = 0, high = RK_COV_NEVER - 1;

    if (count_keys(cov, high, key, config) <= count)
        return (struct rk_cov_choice){.limit = RK_COV_NEVER};
    while (low < high) { /* binary search for the smallest limit with at least `count` tokens */
        uint64_t middle = low + (high - low) / 2;

        if (count_keys(cov, middle, key, config) >= count)
            high = middle;
        else
            low = middle + 1;
    }
    return (struct rk_cov_choice){
        .limit = low,
        .num_equal = count - (low > 0 ? count_keys(cov, low - 1, key, config) : 0),
    };
}

bool rk_cov_is_chosen(struct rk_cov_choice *choice, uint64_t key)
{
    if (key != choice->limit)
        return key < choice->limit;
    return choice->num_equal-- > 0;
}
