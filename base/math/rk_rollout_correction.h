/* Rollout correction: importance weights of tokens, and rejection of tokens and responses, from the
 * difference between the log-probs of the policy that is trained and of the rollout that sampled. The driver
 * applies it to whole batches, the loss bypass_mode to the rows of a micro-batch.
 *
 * A row is the counted tokens of one response, packed: log_ratio[n] = log pi_train - log pi_rollout, n >= 0.
 * "Clamped" means to +-RK_ROLLOUT_LOG_RATIO_MAX. Names and formulas are verl's (rollout_corr_helper.py). */
#ifndef RK_ROLLOUT_CORRECTION_H
#define RK_ROLLOUT_CORRECTION_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_status.h"

RK_BEGIN_DECLS

#define RK_ROLLOUT_LOG_RATIO_MAX 20.0

typedef enum rk_rollout_is {
    RK_ROLLOUT_IS_NONE,
    RK_ROLLOUT_IS_TOKEN,
    RK_ROLLOUT_IS_SEQUENCE
} rk_rollout_is_t;

/* Statistics for the rejection of tokens and rows, with the clamped log-ratio l: k1 = -l, k2 = l^2 / 2,
 * k3 = e^l - 1 - l. */
typedef enum rk_rollout_rs {
    RK_ROLLOUT_RS_TOKEN_K1,
    RK_ROLLOUT_RS_TOKEN_K2,
    RK_ROLLOUT_RS_TOKEN_K3,
    RK_ROLLOUT_RS_SEQ_SUM_K1,
    RK_ROLLOUT_RS_SEQ_SUM_K2,
    RK_ROLLOUT_RS_SEQ_SUM_K3,
    RK_ROLLOUT_RS_SEQ_MEAN_K1,
    RK_ROLLOUT_RS_SEQ_MEAN_K2,
    RK_ROLLOUT_RS_SEQ_MEAN_K3,
    RK_ROLLOUT_RS_SEQ_MAX_K2,
    RK_ROLLOUT_RS_SEQ_MAX_K3,
    RK_ROLLOUT_RS_COUNT
} rk_rollout_rs_t;

/* Kept where lower <= statistic <= upper. */
struct rk_rollout_rs_rule {
    rk_rollout_rs_t option;
    double lower, upper; /* k1: logarithms of the bounds that were given; others: lower is -INFINITY */
};

typedef enum rk_bypass_loss { RK_BYPASS_PPO_CLIP, RK_BYPASS_REINFORCE } rk_bypass_loss_t;

/* The keys, as texts; NULL: not given. */
struct rk_rollout_correction_keys {
    const char *rollout_is, *rollout_is_threshold, *rollout_rs, *rollout_rs_threshold, *loss_type;
    bool rollout_is_batch_normalize, bypass_mode;
};

struct rk_rollout_correction {
    rk_rollout_is_t rollout_is;
    double is_lower,
        is_upper; /* is_lower 0: weights end at is_upper; above 0 (IcePop): weights outside are 0 */
    bool is_batch_normalize;
    int32_t num_rules;
    struct rk_rollout_rs_rule rules[RK_ROLLOUT_RS_COUNT]; /* in the order given, each option once */
    bool bypass_mode;
    rk_bypass_loss_t loss_type;
};

/* INVALID_ARGUMENT names "rollout_correction.KEY", the value and the expectation. A threshold without the key
 * that uses it is not read; rollout_is_threshold not given is 2.0. */
struct rk_status *rk_rollout_correction_parse(struct rk_rollout_correction *out,
                                              const struct rk_rollout_correction_keys *keys) RK_NODISCARD;

const char *rk_rollout_rs_name(rk_rollout_rs_t option); /* "seq_mean_k1" */
bool rk_rollout_rs_is_token(rk_rollout_rs_t option);
bool rk_rollout_rs_is_k1(rk_rollout_rs_t option);

/* sum / count as verl's masked_mean has it: 0 of nothing. */
static inline double rk_masked_mean(double sum, double count)
{
    return sum / (count + 1e-8);
}

/* raw[n]: e to the clamped log-ratio of the token, or to the clamped sum of the row's. Not without
 * rollout_is. */
void rk_rollout_is_raw(double *raw, const struct rk_rollout_correction *config, const double *log_ratio,
                       int64_t n);
/* The weight that a raw one becomes, before a normalisation over the batch. */
double rk_rollout_is_weight(const struct rk_rollout_correction *config, double raw);
/* values[n] of a token option. */
void rk_rollout_rs_token_values(double *values, rk_rollout_rs_t option, const double *log_ratio, int64_t n);
/* Value of a row, for the other options; 0 without tokens. */
double rk_rollout_rs_row_value(rk_rollout_rs_t option, const double *log_ratio, int64_t n);
bool rk_rollout_rs_keeps(const struct rk_rollout_rs_rule *rule, double value);
/* keep[n]: 1 where all rules keep the token. */
void rk_rollout_rs_keep(uint8_t *keep, const struct rk_rollout_correction *config, const double *log_ratio,
                        int64_t n);

RK_END_DECLS

#endif
