/* command: scores from worker processes of the user's program, by protocol 2 (docs/rewards.md).
 *
 * Configuration: {"name": "command", "command": ["python3", "score.py"], "num_workers": 8, "batch_size": 1,
 * "timeout": "30s", "start_timeout": "60s", "dir": "scorers"}: the program and its arguments, started without
 * a shell; `dir` is where it runs, by default the job's directory. */
#include "rl/rewards/rewards.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_small_file.h"
#include "rl/rewards/pool_internal.h"

static void free_argv(char **argv)
{
    for (char **word = argv; word && *word; word++)
        rk_free(*word);
    rk_free(argv);
}

static struct rk_status *read_argv(char ***out, const struct rk_json *config)
{
    const struct rk_json *list = rk_json_find(config, "command");
    int64_t count = rk_json_count(list);
    char **argv;

    *out = NULL;
    if (!list || rk_json_type(list) != RK_JSON_ARRAY || count == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "reward.command: expected a list of strings, the program and its arguments");
    argv = rk_calloc((size_t)count + 1, sizeof(*argv));
    for (int64_t i = 0; i < count; i++) {
        const char *word = rk_json_as_string(rk_json_at(list, i), NULL);

        if (!word) {
            free_argv(argv);
            return RK_FAIL(RK_INVALID_ARGUMENT, "reward.command[%lld]: expected a string", (long long)i);
        }
        argv[i] = rk_strdup(word);
    }
    *out = argv;
    return NULL;
}

static struct rk_status *create(void **state, const struct rk_json *config, const char *dir)
{
    struct rk_reward_pool_config pool;
    const char *chosen = ".";
    struct rk_reward_pool *created = NULL;
    struct rk_status *st;

    *state = NULL;
    RK_TRY(rk_reward_pool_read_config(&pool, config));
    RK_TRY(rk_json_opt_string(config, "reward", "dir", &chosen));
    RK_TRY(read_argv(&pool.argv, config));
    pool.dir = strcmp(chosen, ".") == 0 ? rk_strdup(dir) : rk_resolve_path(dir, chosen);
    st = rk_reward_pool_create(&created, &pool);
    *state = created;
    return st ? RK_WRAP(st, "reward.command") : NULL;
}

static void destroy(void *state)
{
    rk_reward_pool_destroy(state);
}

static struct rk_status *score(void *state, const struct rk_reward_call *call)
{
    return rk_reward_pool_score(state, call);
}

static const char *const keys[] = {"command", "dir", RK_REWARD_POOL_KEYS, NULL};

const struct rk_reward_ops rk_reward_command = {
    .name = "command",
    .keys = keys,
    .create = create,
    .destroy = destroy,
    .score_items = score,
};
