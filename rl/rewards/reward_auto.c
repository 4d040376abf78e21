/* auto: the row that verl's default_compute_score takes for the data_source of each item. */
#include "rl/rewards/rewards.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

/* One row for each way of scoring, with the configuration that verl gives it. */
static const struct {
    const struct rk_reward_ops *ops; /* NULL: verl has it, rankd does not */
    const char *config;
} ways[] = {
    {&rk_reward_gsm8k, "{}"},
    {&rk_reward_math, "{}"},
    {&rk_reward_math_dapo, "{}"},
    {&rk_reward_exact, "{\"method\": \"qa_em\"}"},
    {NULL, NULL},
};
enum { WAY_GSM8K, WAY_MATH, WAY_DAPO, WAY_QA, WAY_MISSING };

static const struct {
    const char *data_source;
    int way;
    bool is_prefix;
} sources[] = {
    {"openai/gsm8k", WAY_GSM8K, false},
    {"lighteval/MATH", WAY_MATH, false},
    {"DigitalLearningGmbH/MATH-lighteval", WAY_MATH, false},
    {"HuggingFaceH4/MATH-500", WAY_MATH, false},
    {"math_dapo", WAY_DAPO, false},
    {"math", WAY_DAPO, false},
    {"math_dapo_reasoning", WAY_DAPO, false},
    {"aime", WAY_DAPO, true},
    {"searchR1_nq", WAY_QA, false},
    {"searchR1_triviaqa", WAY_QA, false},
    {"searchR1_popqa", WAY_QA, false},
    {"searchR1_hotpotqa", WAY_QA, false},
    {"searchR1_2wikimultihopqa", WAY_QA, false},
    {"searchR1_musique", WAY_QA, false},
    {"searchR1_bamboogle", WAY_QA, false},
    {"numina_aops_forum", WAY_MISSING, false},
    {"numina_synthetic_math", WAY_MISSING, false},
    {"numina_amc_aime", WAY_MISSING, false},
    {"numina_synthetic_amc", WAY_MISSING, false},
    {"numina_cn_k12", WAY_MISSING, false},
    {"numina_olympiads", WAY_MISSING, false},
    {"codecontests", WAY_MISSING, false},
    {"apps", WAY_MISSING, false},
    {"codeforces", WAY_MISSING, false},
    {"taco", WAY_MISSING, false},
    {"hiyouga/geometry3k", WAY_MISSING, false},
};

struct scorers {
    void *states[WAY_MISSING];
};

static void destroy(void *state)
{
    struct scorers *scorers = state;

    for (int i = 0; scorers && i < WAY_MISSING; i++) {
        if (ways[i].ops->destroy)
            ways[i].ops->destroy(scorers->states[i]);
    }
    rk_free(scorers);
}

static struct rk_status *create(void **state, const struct rk_json *config, const char *dir)
{
    struct scorers *scorers = rk_calloc(1, sizeof(*scorers));
    struct rk_status *st = NULL;

    (void)config;
    *state = scorers;
    for (int i = 0; i < WAY_MISSING && !st; i++) {
        struct rk_json *own = NULL;

        st = rk_json_parse(&own, ways[i].config, strlen(ways[i].config), "reward", 0);
        if (!st)
            st = ways[i].ops->create(&scorers->states[i], own, dir);
        rk_json_free(own);
    }
    if (st) {
        destroy(scorers);
        *state = NULL;
    }
    return st;
}

/* -1 for a data source that verl's table does not have. */
static int find_way(const char *data_source)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(sources); i++) {
        const char *name = sources[i].data_source;

        if (sources[i].is_prefix ? strncmp(name, data_source, strlen(name)) == 0
                                 : strcmp(name, data_source) == 0)
            return sources[i].way;
    }
    return -1;
}

static struct rk_status *check(const void *state, const struct rk_reward_item *item)
{
    const struct scorers *scorers = state;
    int way = find_way(item->data_source);

    if (way == WAY_MISSING)
        return RK_FAIL(RK_UNIMPLEMENTED,
                       "data_source '%s': this version has no reward for it; use verl's function with "
                       "custom_reward_function.path and .name",
                       item->data_source);
    if (way < 0)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "data_source '%s' selects no reward; set reward.name (gsm8k, math, ...) or "
                       "custom_reward_function.path",
                       item->data_source);
    return ways[way].ops->check(scorers->states[way], item);
}

static void score_item(void *state, const struct rk_reward_item *item, struct rk_reward_result *result)
{
    struct scorers *scorers = state;
    int way = find_way(item->data_source);

    RK_ASSERT(way >= 0);
    RK_ASSERT(way < WAY_MISSING); /* checked before */
    ways[way].ops->score_item(scorers->states[way], item, result);
}

static const char *const keys[] = {NULL};

const struct rk_reward_ops rk_reward_auto = {
    .name = "auto",
    .keys = keys,
    .create = create,
    .destroy = destroy,
    .check = check,
    .score_item = score_item,
};
