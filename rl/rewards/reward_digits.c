/* digits: closeness of an answer made of digits and separators to the right one (examples/digits).
 *
 * Characters are compared position by position: an equal one counts 1, a wrong digit in a digit's place
 * counts 0.5 * max(0, 1 - distance / 3) with the distance on the circle of ten digits; ending in the right
 * place counts like one more character. The score is the sum over (the longer length + 1): 1 for the exact
 * answer, 0 for nothing right. */
#include "rl/rewards/rewards.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static double credit(char got, char want)
{
    int distance;

    if (got == want)
        return 1.0;
    if (!is_digit(got) || !is_digit(want))
        return 0.0;
    distance = abs(got - want);
    distance = RK_MIN(distance, 10 - distance);
    return distance < 3 ? 0.5 * (1.0 - distance / 3.0) : 0.0;
}

static double score_answer(const char *got, size_t got_bytes, const char *want)
{
    size_t want_bytes = strlen(want);
    size_t common = RK_MIN(got_bytes, want_bytes);
    double sum = got_bytes == want_bytes ? 1.0 : 0.0;

    for (size_t i = 0; i < common; i++)
        sum += credit(got[i], want[i]);
    return sum / (double)(RK_MAX(got_bytes, want_bytes) + 1);
}

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
    result->score = score_answer(item->solution_str, item->solution_bytes, item->ground_truth);
}

static const char *const keys[] = {NULL};

const struct rk_reward_ops rk_reward_digits = {
    .name = "digits",
    .keys = keys,
    .create = create,
    .check = rk_reward_need_truth, /* otherwise an empty answer would have the best score */
    .score_item = score_item,
};
