/* The table of rewards and the checked entry points. */
#include "driver-cli/rewards/rewards_internal.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_str.h"

static const struct rk_reward_ops *const rows[] = {
    &rk_reward_digits,
    &rk_reward_command,
};

struct rk_reward {
    const struct rk_reward_ops *ops;
    void *state; /* the row's */
};

static struct rk_status *unknown_row(const char *name)
{
    struct rk_str names = {0};
    struct rk_status *st;

    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++)
        rk_str_appendf(&names, "%s%s", i ? ", " : "", rows[i]->name);
    st = RK_FAIL(RK_NOT_FOUND, "reward.name: unknown reward '%s' (known: %s)", name, rk_str_text(&names));
    rk_str_fini(&names);
    return st;
}

struct rk_status *rk_reward_check_keys(const struct rk_json *config, const char *const *keys)
{
    for (void *it = rk_json_iter(config); it; it = rk_json_iter_next(config, it)) {
        const char *const *key = keys;

        while (*key && strcmp(*key, rk_json_iter_key(it)) != 0)
            key++;
        if (!*key)
            return RK_FAIL(RK_INVALID_ARGUMENT, "reward.%s: unknown key", rk_json_iter_key(it));
    }
    return NULL;
}

struct rk_status *rk_reward_create(struct rk_reward **out, const struct rk_json *config, const char *dir)
{
    const char *name = NULL;
    const struct rk_reward_ops *ops = NULL;
    struct rk_status *st;

    *out = NULL;
    RK_TRY(rk_json_get_string(config, "reward", "name", &name));
    for (size_t i = 0; i < RK_ARRAY_LEN(rows) && !ops; i++) {
        if (strcmp(rows[i]->name, name) == 0)
            ops = rows[i];
    }
    if (!ops)
        return unknown_row(name);
    RK_ASSERT(ops->abi == RK_REWARD_ABI);

    *out = rk_calloc(1, sizeof(**out));
    (*out)->ops = ops;
    st = ops->create(&(*out)->state, config, dir);
    if (st) {
        rk_free(*out);
        *out = NULL;
    }
    return st;
}

void rk_reward_destroy(struct rk_reward *reward)
{
    if (!reward)
        return;
    if (reward->ops->destroy)
        reward->ops->destroy(reward->state);
    rk_free(reward);
}

struct rk_status *rk_reward_score(struct rk_reward *reward, const struct rk_reward_item *items,
                                  int64_t num_items, struct rk_reward_result *results,
                                  const struct rk_reward_watch *watch)
{
    static const struct rk_reward_watch none = {0};

    memset(results, 0, (size_t)num_items * sizeof(*results));
    RK_TRY(reward->ops->score(reward->state, items, num_items, results, watch ? watch : &none));
    for (int64_t i = 0; i < num_items; i++) {
        if (!isfinite(results[i].score))
            return RK_FAIL(RK_INTERNAL, "reward '%s': item %lld got a score that is not a finite number",
                           reward->ops->name, (long long)i);
    }
    return NULL;
}

void rk_reward_results_fini(struct rk_reward_result *results, int64_t count)
{
    for (int64_t i = 0; i < count; i++)
        rk_json_free(results[i].extra);
}
