/* Advantages and related functions, computed by the driver on whole batches. [B, R] arrays are row-major
 * f32. */
#ifndef RK_ALGO_H
#define RK_ALGO_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_status.h"

RK_BEGIN_DECLS

/* Inputs of an estimator in addition to rewards, mask and uid. */
enum rk_adv_needs {
    RK_ADV_NEEDS_VALUES = 1u << 0,           /* of the critic */
    RK_ADV_NEEDS_REWARD_BASELINES = 1u << 1, /* scores of greedy responses to the same prompts */
    RK_ADV_NEEDS_OLD_LOG_PROBS = 1u << 2,
    RK_ADV_NEEDS_SUM_PI_SQUARED = 1u << 3,
    RK_ADV_NEEDS_KEY_REWARDS = 1u << 4, /* numbers of the reward under algorithm.gdpo_reward_keys */
};

/* Inputs that an estimator does not need may be NULL. Columns are read where the mask is set. */
struct rk_adv_in {
    int64_t num_rows, response_length;
    const float *token_level_rewards; /* [B, R] */
    const int64_t *response_mask;     /* [B, R] */
    const char *const *uid;           /* [B]: rows with equal uid are one group */
    bool norm_adv_by_std;             /* norm_adv_by_std_in_grpo */
    double gamma, lam;
    const float *values;             /* [B, R] */
    const float *reward_baselines;   /* [B] */
    const float *old_log_probs;      /* [B, R] */
    const float *sum_pi_squared;     /* [B, R]: sum over the vocabulary of pi^2 */
    const float *rollout_is_weights; /* [B, R]; NULL: 1. Optional for estimators that need sum_pi_squared */
    int64_t num_reward_keys;
    const double *const *key_rewards; /* [num_reward_keys][B]; read for rows that take part */
    const double *reward_weights;     /* [num_reward_keys] */
    const int64_t
        *group_mask; /* [B, R]: a row without a mark takes no part in its group; NULL: response_mask */
};

/* returns are 0 outside the mask only for estimators whose returns are their advantages. The returns of gae
 * continue outside the mask: read them together with the mask. */
struct rk_adv_out {
    float *advantages, *returns; /* [B, R] */
};

/* A row of the estimator table: docs/algorithms.md. */
struct rk_adv_ops {
    const char *name;  /* algorithm.adv_estimator: "grpo" */
    uint32_t needs;    /* enum rk_adv_needs */
    int32_t min_group; /* rows of a group: 0 when rows are not compared with others of their prompt */
    struct rk_status *(*compute)(const struct rk_adv_out *out, const struct rk_adv_in *in);
};

const struct rk_adv_ops *rk_adv_find(const char *name); /* NULL when unknown */
const char *rk_adv_names(void);                         /* "grpo, rloo" for messages */
/* ABORTED (reason NON_FINITE) as rk_check_finite for the columns that the row reads; INVALID_ARGUMENT names a
 * group with fewer rows than min_group; ABORTED when only one token counts, which has no deviation to
 * whiten by. Without a token that counts all advantages are 0. */
struct rk_status *rk_adv_compute(const struct rk_adv_ops *ops, const struct rk_adv_out *out,
                                 const struct rk_adv_in *in) RK_NODISCARD;

/* Metrics variance_proxy/ of a batch that was trained on; arrays are [num_rows, width], read where the mask
 * is set. Rows without a mark take no part. */
struct rk_variance_in {
    int64_t num_rows, width;
    const int64_t *response_mask;
    const float *advantages, *old_log_probs, *sum_pi_squared;
    const float *rollout_is_weights; /* NULL: 1 */
    double grad_norm;                /* of the update */
};
struct rk_variance_proxy {
    double signal_strength, total_power, pure_noise, expected_a_squared, expected_w;
};
/* Returns the number of rows that take part. */
int64_t rk_variance_proxy_measure(struct rk_variance_proxy *out, const struct rk_variance_in *in);

/* [num_rows, width]: ABORTED (reason NON_FINITE) with the row and place of a marked value that is not finite:
 * the model that computed it is broken. */
struct rk_status *rk_check_finite(const char *name, const float *values, const int64_t *mask,
                                  int64_t num_rows, int64_t width) RK_NODISCARD;

/* KL in the reward: rewards = scores - kl_coef * KL(old || ref) * mask; estimator names as in the losses
 * ("kl", "abs", "mse", "low_var_kl", with "+" too). *current_kl is the mean over the rows that have a marked
 * token of the row's masked mean. INVALID_ARGUMENT for an unknown name; ABORTED as rk_check_finite. */
struct rk_kl_reward_in {
    int64_t num_rows, response_length;
    const float *scores, *old_log_probs, *ref_log_prob;
    const int64_t *response_mask;
    const char *kl_penalty;
    double kl_coef;
};
struct rk_status *rk_kl_reward_apply(float *rewards, double *current_kl,
                                     const struct rk_kl_reward_in *in) RK_NODISCARD;

/* Controller of kl_coef. Adaptive (Ziegler et al., arXiv:1909.08593): after each batch
 *
 *   kl_coef *= 1 + clamp(current_kl / target_kl - 1, -0.2, 0.2) * num_rows / horizon
 *
 * which keeps its sign while num_rows is below 5 horizon. num_rows: those that take part. */
struct rk_kl_ctrl {
    bool is_adaptive;
    double kl_coef, target_kl, horizon; /* above 0 where it is adaptive */
};
void rk_kl_ctrl_update(struct rk_kl_ctrl *ctrl, double current_kl, int64_t num_rows);

RK_END_DECLS

#endif
