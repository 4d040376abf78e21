/* The reward of a job: verl's names for it, and the paths in it. */
#include "rl/rk_job.h"

#include <inttypes.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "base/rk_small_file.h"
#include "rl/rewards/rewards.h"

#define FUNCTION     "custom_reward_function"
#define OLD_PATH     "custom_reward_function.path"
#define NEW_PATH     "reward.custom_reward_function.path"
#define FILE_PREFIX  "file://"
#define MODULE_FIRST "pkg://"
#define BATCH_SIZE   1024 /* responses of a call of a function that takes lists */

static bool has_custom_function(const struct rk_config *job)
{
    return !rk_config_is_null(job, OLD_PATH) || !rk_config_is_null(job, NEW_PATH);
}

bool rk_job_has_reward_function(const struct rk_config *job)
{
    return !rk_job_wants_reward_model(job) || !rk_config_is_null(job, "reward.name") ||
           has_custom_function(job);
}

bool rk_job_reward_takes_columns(const struct rk_config *job)
{
    return strcmp(rk_json_as_string(rk_json_find_path(rk_config_tree(job), "reward.style"), ""), "trl") == 0;
}

/* verl's reward manager "batch" calls the function with the whole batch. */
static void set_batch_style(struct rk_json *reward)
{
    if (rk_json_is_null(rk_json_find(reward, "style")))
        rk_json_set(reward, "style", rk_json_new_string("verl_batch"));
    if (rk_json_is_null(rk_json_find(reward, "batch_size")))
        rk_json_set(reward, "batch_size", rk_json_new_int(BATCH_SIZE));
}

struct rk_json *rk_job_reward(const struct rk_config *job)
{
    const struct rk_json *tree = rk_config_tree(job);
    struct rk_json *reward = rk_json_clone(rk_json_find(tree, "reward"));
    bool has_old = !rk_config_is_null(job, OLD_PATH), has_function = has_custom_function(job);

    rk_json_remove(reward, "reward_model");   /* of the flow: rk_flow_add_rm_scores */
    rk_json_remove(reward, "reward_manager"); /* of the flow: rk_overlong_apply */
    rk_json_remove(reward, "reward_kwargs");
    if (has_old)
        rk_json_set(reward, FUNCTION, rk_json_clone(rk_json_find(tree, FUNCTION)));
    if (!has_function && strcmp(rk_json_as_string(rk_json_find(reward, "name"), ""), "python") != 0)
        rk_json_remove(reward, FUNCTION); /* a name without a file, which verl's default configuration has */
    if (rk_config_is_null(job, "reward.name"))
        rk_json_set(reward, "name", rk_json_new_string(has_function ? "python" : "auto"));
    if (has_function && strcmp(rk_config_string(job, "reward.reward_manager.name"), "batch") == 0)
        set_batch_style(reward);
    return reward;
}

char *rk_job_resolve_python(const char *path, const char *dir)
{
    if (rk_str_has_prefix(path, MODULE_FIRST))
        return rk_strdup(path);
    return rk_resolve_path(dir, rk_str_has_prefix(path, FILE_PREFIX) ? path + strlen(FILE_PREFIX) : path);
}

/* Resolves the path `key` of the tree in `dir`; modules and names of programs are unchanged. */
static void make_absolute(struct rk_json *tree, const char *key, const char *dir, bool is_program)
{
    const char *path = rk_json_as_string(rk_json_find_path(tree, key), NULL);
    char *full;

    if (!path || (is_program && !strchr(path, '/')))
        return;
    full = rk_job_resolve_python(path, dir);
    rk_json_set_path(tree, key, rk_json_new_string(full));
    rk_free(full);
}

void rk_job_reward_make_absolute(struct rk_json *tree, const char *dir)
{
    const char *name = rk_json_as_string(rk_json_find_path(tree, "reward.name"), "");

    if (strcmp(name, "command") == 0 && rk_json_is_null(rk_json_find_path(tree, "reward.dir")))
        rk_json_set_path(tree, "reward.dir", rk_json_new_string(dir));
    make_absolute(tree, "reward.dir", dir, false);
    make_absolute(tree, "reward.python", dir, true);
    make_absolute(tree, "reward.token_file", dir, false);
    make_absolute(tree, NEW_PATH, dir, false);
    make_absolute(tree, OLD_PATH, dir, false);
    make_absolute(tree, "data.custom_cls.path", dir, false);
}

int64_t rk_job_overlong_max_len(const struct rk_config *job)
{
    return rk_job_int_or(job, RK_JOB_REWARD_KWARGS "max_resp_len",
                         rk_config_int(job, "data.max_response_length"));
}

static void check_overlong(const struct rk_config *job, struct rk_str *problems)
{
    int64_t max_len = rk_job_overlong_max_len(job);
    int64_t len = rk_job_int_or(job, RK_JOB_OVERLONG "len", 0);

    if (!rk_config_bool(job, RK_JOB_OVERLONG "enable"))
        return;
    if (strcmp(rk_config_string(job, "reward.reward_manager.name"), "dapo") != 0)
        rk_str_append(problems, RK_JOB_OVERLONG "enable needs reward.reward_manager.name=dapo\n");
    if (len == 0 || max_len < len)
        rk_str_appendf(problems,
                       RK_JOB_OVERLONG "len: expected 1 to " RK_JOB_REWARD_KWARGS "max_resp_len, got %" PRId64
                                       " and %" PRId64 "%s\n",
                       len, max_len, len == 0 ? " (0: not given)" : "");
}

void rk_job_reward_check(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    (void)world_size;
    check_overlong(job, problems);
    if (rk_reward_url_has_user(rk_config_is_null(job, "reward.url") ? ""
                                                                    : rk_config_string(job, "reward.url")))
        rk_str_append(problems, RK_REWARD_URL_USER "\n");
    if (!rk_config_is_null(job, OLD_PATH) && !rk_config_is_null(job, NEW_PATH))
        rk_str_append(problems, OLD_PATH " and " NEW_PATH " are the same key; set one of them\n");
}
