/* Rows of the advantage table and their common functions. Sums are f64. */
#ifndef RK_ALGO_INTERNAL_H
#define RK_ALGO_INTERNAL_H

#include "rl/rk_algo.h"

#define X(name) extern const struct rk_adv_ops rk_adv_##name;
#include "rl/algo/advantages.def"
#undef X

/* --- rows and their groups (adv_rows.c) --- */

/* The rows of one prompt that take part. As in verl, a group of one has mean 0 and std 1. */
struct rk_adv_group {
    int64_t count;
    double sum, mean, std; /* std with n - 1 */
};

struct rk_adv_rows {
    int64_t num_rows, num_groups;
    double *scores;    /* [num_rows] */
    int64_t *group_of; /* [num_rows] */
    bool *takes_part;  /* [num_rows]: it has a token that the mask counts. What is dropped from the loss has
                          none, and no influence on the other rows of its group. */
    struct rk_adv_group *groups; /* [num_groups], of the scores when they were measured */
};

/* scores[i] = sum over t of token_level_rewards[i, t], masked or not; measured. */
void rk_adv_rows_init(struct rk_adv_rows *rows, const struct rk_adv_in *in);
void rk_adv_rows_fini(struct rk_adv_rows *rows);
void rk_adv_rows_measure(struct rk_adv_rows *rows);
/* scores of rows that take part become (s - mean) / (std + 1e-6), or s - mean, of their group. */
void rk_adv_rows_normalise(struct rk_adv_rows *rows, bool by_std);
/* advantages = returns = scores[i] on the tokens of row i that the mask counts, 0 elsewhere. */
void rk_adv_rows_spread(const struct rk_adv_out *out, const struct rk_adv_in *in,
                        const struct rk_adv_rows *rows);
/* rk_adv_rows_spread, whitened over the tokens of the batch. */
struct rk_status *rk_adv_rows_spread_whitened(const struct rk_adv_out *out, const struct rk_adv_in *in,
                                              const struct rk_adv_rows *rows) RK_NODISCARD;

/* --- over the tokens of a row --- */
/* Expected square of the norm of the score function of a token: 1 - 2 pi + sum over the vocabulary of pi^2.
 */
double rk_adv_token_variance(double old_log_prob, double sum_pi_squared);
/* returns[t] = sum from t on of the row's rewards where the mask is set. */
void rk_adv_rewards_to_go(double *returns, const struct rk_adv_in *in, int64_t row);

/* --- masked statistics, verl's (masked.c): values where the mask is not set are never read --- */
int64_t rk_mask_count(const int64_t *mask, int64_t count);
double rk_mask_mean(const double *values, const int64_t *mask, int64_t count); /* rk_masked_mean */
/* Standard deviation with n - 1; n above 1. */
double rk_mask_var(const double *values, const int64_t *mask, int64_t count);
/* (x - mean) / sqrt(var + 1e-8) of every value, masked ones too; `keep_mean` adds the mean again. ABORTED
 * when one value counts; all values become 0 when none does. */
struct rk_status *rk_mask_whiten(double *values, const int64_t *mask, int64_t count,
                                 bool keep_mean) RK_NODISCARD;

#endif
