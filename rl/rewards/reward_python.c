/* python: a function of the user's, in the form of verl's compute_score or of TRL's reward functions. The
 * shim share/rankd/python/rankd_reward.py, which needs nothing but Python's standard library, loads it by
 * file and name and speaks protocol 2 with the workers of the pool.
 *
 * Configuration: {"name": "python", "custom_reward_function": {"path": "score.py", "name": "compute_score",
 * "reward_kwargs": {}}, "style": "verl", "verl_batch" or "trl", "python": "python3", and the keys of the
 * workers}. */
#include "rl/rewards/rewards.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "base/rk_small_file.h"
#include "rl/rewards/pool_internal.h"
#include "rl/rk_share.h"

#define SHIM     "python/rankd_reward.py"
#define FUNCTION "reward.custom_reward_function"
#define NUM_ARGS 8

struct function {
    const char *path, *name, *style, *python;
    const struct rk_json *kwargs; /* NULL: none */
};

/* --- configuration --- */

static struct rk_status *read_function(struct function *out, const struct rk_json *config)
{
    static const char *const styles[] = {"verl", "verl_batch", "trl", NULL};
    const struct rk_json *own = rk_json_find(config, "custom_reward_function");

    *out = (struct function){.name = "compute_score", .style = styles[0], .python = "python3"};
    if (!rk_reward_is_given(own))
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       FUNCTION ".path is missing: the file of the function that scores");
    for (void *it = rk_json_iter(own); it; it = rk_json_iter_next(own, it)) {
        const char *key = rk_json_iter_key(it);

        if (strcmp(key, "path") != 0 && strcmp(key, "name") != 0 && strcmp(key, "reward_kwargs") != 0)
            return RK_FAIL(RK_INVALID_ARGUMENT, FUNCTION ".%s: unknown key; it has path, name, reward_kwargs",
                           key);
    }
    RK_TRY(rk_json_get_string(own, FUNCTION, "path", &out->path));
    RK_TRY(rk_json_opt_string(own, FUNCTION, "name", &out->name));
    RK_TRY(rk_json_opt_string(config, "reward", "python", &out->python));
    RK_TRY(rk_reward_opt_choice(config, "style", styles, &out->style));
    out->kwargs = rk_json_find(own, "reward_kwargs");
    if (!rk_json_is_null(out->kwargs) && rk_json_type(out->kwargs) != RK_JSON_OBJECT)
        return RK_FAIL(RK_INVALID_ARGUMENT, FUNCTION ".reward_kwargs: expected an object");
    return NULL;
}

/* verl's forms of a path: "pkg://MODULE", "file://PATH" and a path. rk_free it. */
static char *resolve(const char *path, const char *dir)
{
    static const char file[] = "file://";

    if (rk_str_has_prefix(path, "pkg://"))
        return rk_strdup(path);
    return rk_resolve_path(dir, rk_str_has_prefix(path, file) ? path + sizeof(file) - 1 : path);
}

static struct rk_status *make_argv(char ***out, const struct function *function, const char *dir)
{
    char **argv, *shim;
    int count = 0;

    *out = NULL;
    RK_TRY(rk_share_find(&shim, SHIM));
    argv = rk_calloc(NUM_ARGS + 1, sizeof(*argv));
    argv[count++] = rk_resolve_program(dir, function->python);
    argv[count++] = shim;
    argv[count++] = rk_strdup("--path");
    argv[count++] = resolve(function->path, dir);
    argv[count++] = rk_strdup("--name");
    argv[count++] = rk_strdup(function->name);
    argv[count++] = rk_strdup("--style");
    argv[count++] = rk_strdup(function->style);
    *out = argv;
    return NULL;
}

static struct rk_status *create(void **state, const struct rk_json *config, const char *dir)
{
    struct rk_reward_pool_config pool;
    struct rk_reward_pool *created = NULL;
    struct function function;
    struct rk_status *st;

    *state = NULL;
    RK_TRY(rk_reward_pool_read_config(&pool, config));
    RK_TRY(read_function(&function, config));
    RK_TRY(make_argv(&pool.argv, &function, dir));
    pool.dir = rk_strdup(dir);
    if (rk_reward_is_given(function.kwargs))
        pool.kwargs = rk_json_dump(function.kwargs, 0, false);
    st = rk_reward_pool_create(&created, &pool);
    *state = created;
    return st ? RK_WRAP(st, FUNCTION) : NULL;
}

static void destroy(void *state)
{
    rk_reward_pool_destroy(state);
}

static struct rk_status *score(void *state, const struct rk_reward_call *call)
{
    return rk_reward_pool_score(state, call);
}

static const char *const keys[] = {"custom_reward_function", "style", "python", RK_REWARD_POOL_KEYS, NULL};

const struct rk_reward_ops rk_reward_python = {
    .name = "python",
    .keys = keys,
    .create = create,
    .destroy = destroy,
    .score_items = score,
};
