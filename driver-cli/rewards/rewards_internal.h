/* Rows of the reward table. */
#ifndef RK_REWARDS_INTERNAL_H
#define RK_REWARDS_INTERNAL_H

#include "driver-cli/rk_reward.h"

extern const struct rk_reward_ops rk_reward_digits;
extern const struct rk_reward_ops rk_reward_command;

/* Refuses members of a row's configuration that are not among `keys` (NULL-terminated). */
struct rk_status *rk_reward_check_keys(const struct rk_json *config, const char *const *keys) RK_NODISCARD;

#endif
