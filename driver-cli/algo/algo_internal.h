/* Rows of the advantage table and what they share. */
#ifndef RK_ALGO_INTERNAL_H
#define RK_ALGO_INTERNAL_H

#include "driver-cli/rk_algo.h"

extern const struct rk_adv_ops rk_adv_grpo;

/* takes_part[i]: row i has a token that the mask counts. What is dropped from the loss has none, and no
 * influence on the other rows of its group. */
void rk_adv_takes_part(bool *takes_part, const struct rk_adv_in *in);
/* Groups of rows with equal uid: group_of[num_rows] receives indices from 0; returns the number of groups. */
int64_t rk_adv_groups(int64_t *group_of, const char *const *uid, int64_t num_rows);
/* scores[i] = sum over t of token_level_rewards[i, t], not masked. */
void rk_adv_outcome_scores(double *scores, const struct rk_adv_in *in);
/* advantages = returns = scores[i] on the tokens of row i that the mask counts, 0 elsewhere. */
void rk_adv_spread(const struct rk_adv_out *out, const struct rk_adv_in *in, const double *scores);

#endif
