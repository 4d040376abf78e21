/* Rows of the reward table and their common functions. */
#ifndef RK_RL_REWARDS_H
#define RK_RL_REWARDS_H

#include "base/rk_status.h"
#include "rl/rewards/rewards.def"
#include "rl/rk_reward.h"

#define X(name) extern const struct rk_reward_ops rk_reward_##name;
RK_REWARD_TABLE(X)
#undef X

/* The result of an item that has no score. */
void rk_reward_fail(struct rk_reward_result *result, rk_reward_outcome_t outcome, const char *fmt, ...)
    RK_PRINTF(3, 4);
/* The member has a value: not null, and not an object whose members all have no value. */
bool rk_reward_is_given(const struct rk_json *value);
/* The URL has "user@" or "user:password@". Messages must not repeat it. */
bool rk_reward_url_has_user(const char *url);
#define RK_REWARD_URL_USER                                                                             \
    "reward.url: a user or password in the URL would be stored with the run and its checkpoints; set " \
    "reward.user, and reward.token_file to a file of mode 0600 with the password"
bool rk_reward_is_cancelled(const struct rk_reward_watch *watch);
/* INVALID_ARGUMENT when the item has no ground truth. */
struct rk_status *rk_reward_need_truth(const void *state, const struct rk_reward_item *item) RK_NODISCARD;
/* Reads config.key, a duration such as "30s" of at most 24h; *out_ms keeps its value when it is not given. */
struct rk_status *rk_reward_opt_duration(const struct rk_json *config, const char *key,
                                         int64_t *out_ms) RK_NODISCARD;
/* Reads config.key, one of `choices` (NULL-terminated); *out keeps its value when it is not given. */
struct rk_status *rk_reward_opt_choice(const struct rk_json *config, const char *key,
                                       const char *const *choices, const char **out) RK_NODISCARD;
/* score (of a right answer, default 1) and format_score (of a wrong one in the right form, default 0), as in
 * verl's functions. */
struct rk_reward_points {
    double score, format_score;
};
struct rk_status *rk_reward_read_points(struct rk_reward_points *out,
                                        const struct rk_json *config) RK_NODISCARD;

#endif
