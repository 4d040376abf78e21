/* Covariance of advantages and log-probs; clip_cov and kl_cov select tokens by it.
 *
 * As in verl, the statistics and the number of selected tokens are those of a micro-batch: the log-probs of
 * later micro-batches are not known when its loss is computed. So these two losses depend on how a mini-batch
 * is split. */
#ifndef RK_LOSS_COV_H
#define RK_LOSS_COV_H

#include "engine/loss/policy.h"

/* Means over the tokens in the loss mask. */
struct rk_cov {
    const struct rk_loss_in *in;
    double mean_advantage, mean_log_prob;
    int64_t num_tokens;
};
struct rk_cov rk_cov_begin(const struct rk_loss_in *in);
/* (A - mean A) (log_prob - mean log_prob) of a token in the loss mask. */
double rk_cov_at(const struct rk_cov *cov, int64_t t);

/* max(1, floor(ratio * tokens in the loss mask)) */
int64_t rk_cov_count(const struct rk_cov *cov, double ratio);

/* Selection order of a loss: smallest keys first, equal keys by position. Called only for tokens in the loss
 * mask. */
#define RK_COV_NEVER UINT64_MAX
typedef uint64_t (*rk_cov_key_fn)(const struct rk_cov *cov, int32_t seq, int64_t t, const void *config);

/* The first `count` tokens in that order without those of key NEVER. Needs no memory: it selects the tokens
 * with a key below the limit, and the first num_equal tokens whose key equals it. */
struct rk_cov_choice {
    uint64_t limit;
    int64_t num_equal;
};
struct rk_cov_choice rk_cov_choose(const struct rk_cov *cov, int64_t count, rk_cov_key_fn key,
                                   const void *config);
/* Whether a token with this key is selected; call once per token, in order of position. */
bool rk_cov_is_chosen(struct rk_cov_choice *choice, uint64_t key);

#endif
