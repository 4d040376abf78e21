/* Rows of the reward table. */
#ifndef RK_REWARDS_INTERNAL_H
#define RK_REWARDS_INTERNAL_H

#include "driver-cli/rk_reward.h"

extern const struct rk_reward_ops rk_reward_digits;
extern const struct rk_reward_ops rk_reward_command;

#endif
