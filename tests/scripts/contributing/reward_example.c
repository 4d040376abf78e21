/* example: 3 for every response.
 *
 * A template of CONTRIBUTING.md (tests/scripts/test_contributing.py). */
#include "rl/rewards/rewards.h"

static struct rk_status *create(void **state, const struct rk_json *config, const char *dir)
{
    (void)config;
    (void)dir;
    *state = NULL;
    return NULL;
}

static void score_item(void *state, const struct rk_reward_item *item, struct rk_reward_result *result)
{
    (void)state;
    (void)item;
    result->score = 3.0;
}

static const char *const keys[] = {NULL};

const struct rk_reward_ops rk_reward_example = {
    .name = "example",
    .keys = keys,
    .create = create,
    .score_item = score_item,
};
