/* Keys of roles that a job does not have, and so without an effect: most likely the key that adds the role is
 * missing. Values that verl's default configuration has are no problem, since its users pass it whole; nor
 * are the keys of a role that is switched off by name (critic.enable=false). */
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_json.h"
#include "base/rk_log.h"
#include "rl/rk_flow.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

struct role_keys {
    uint32_t role;
    const char *section;
    const char *switches[2]; /* keys that have the role, or not */
    const char *advice;      /* how a job gets the role */
};

static const struct role_keys refused[] = {
    {RK_ROLE_CRITIC,
     RK_JOB_CRITIC,
     {RK_JOB_CRITIC "enable"},
     "set algorithm.adv_estimator=gae, or critic.enable=true"},
    {RK_ROLE_REWARD,
     RK_JOB_REWARD_MODEL,
     {RK_JOB_REWARD_MODEL "enable"},
     "set " RK_JOB_REWARD_MODEL "enable=true"},
    {RK_ROLE_TEACHER,
     "distillation.",
     {"distillation.enabled", "algorithm.use_opd"},
     "set distillation.enabled=true, or algorithm.use_opd=true"},
};

static bool has_verl_value(const struct rk_config *job, const char *key)
{
    int64_t count;
    const struct rk_verl_default *defaults = rk_job_verl_defaults(&count);
    char *text = rk_json_dump(rk_json_find_path(rk_config_tree(job), key), 0, false);
    bool is_equal = false;

    for (int64_t i = 0; i < count && !is_equal; i++)
        is_equal = strcmp(defaults[i].path, key) == 0 && strcmp(defaults[i].value, text) == 0;
    rk_free(text);
    return is_equal;
}

/* "critic.optim.lr" has the actor's value: it says nothing that the actor's key does not. */
static bool has_actors_value(const struct rk_config *job, const char *section, const char *key)
{
    char *actors = rk_format(RK_JOB_ACTOR "%s", key + strlen(section));
    const struct rk_json *tree = rk_config_tree(job), *value = rk_json_find_path(tree, actors);
    bool is_equal = value && rk_json_equal(value, rk_json_find_path(tree, key));

    rk_free(actors);
    return is_equal;
}

/* The keys of the section that a job sets, up to the end of the table. NULL: no more. */
static const char *next_key(const struct rk_config *job, const char *section, int64_t *at)
{
    int64_t count;
    const struct rk_config_key *keys = rk_job_keys(&count);

    while (*at < count) {
        const char *key = keys[(*at)++].path;

        if (rk_str_has_prefix(key, section) && !rk_config_is_default(job, key) && !has_verl_value(job, key) &&
            !has_actors_value(job, section, key))
            return key;
    }
    return NULL;
}

static bool is_switched_off(const struct rk_config *job, const struct role_keys *row)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(row->switches) && row->switches[i]; i++) {
        const char *key = row->switches[i];

        if (!rk_config_is_null(job, key) && !rk_config_bool(job, key) &&
            strcmp(rk_config_origin(job, key), "default") != 0)
            return true;
    }
    return false;
}

static void refuse_keys(const struct rk_config *job, const struct role_keys *row, struct rk_str *problems)
{
    const char *name = rk_job_role(row->role)->name, *type = rk_config_string(job, "algorithm.type");
    bool can_have = (rk_flow_of(job)->optional_roles & row->role) != 0;
    const char *key;
    int64_t at = 0;

    if (rk_job_role_enabled(job, row->role) || is_switched_off(job, row))
        return;
    while ((key = next_key(job, row->section, &at)) != NULL) {
        if (can_have)
            rk_str_appendf(problems, "%s has no effect, since the job has no %s: %s\n", key, name,
                           row->advice);
        else
            rk_str_appendf(problems, "%s has no effect: algorithm.type=%s has no %s\n", key, type, name);
    }
}

/* Keys that verl's scripts set whether they have an effect or not. */
static void warn_of_keys(const struct rk_config *job, const char *section, const char *why)
{
    int64_t at = 0;
    const char *key = next_key(job, section, &at);

    if (key)
        RK_WARN("%s has no effect: %s", key, why);
}

/* A teacher without a model, in a job that has another one. */
static void refuse_incomplete_teachers(const struct rk_config *job, struct rk_str *problems)
{
    int64_t num_roles;
    const struct rk_job_role *roles = rk_job_roles(&num_roles);

    for (int64_t i = 0; i < num_roles && rk_job_teachers(job).count > 0; i++) {
        int64_t at = 0;
        const char *key = roles[i].bit & RK_ROLE_TEACHERS ? next_key(job, roles[i].section, &at) : NULL;

        if (key && !rk_job_role_needed(job, roles[i].bit))
            rk_str_appendf(problems, "%s has no effect: set %s, the model of that teacher\n", key,
                           roles[i].model);
    }
}

void rk_job_role_keys_check(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    (void)world_size;
    for (size_t i = 0; i < RK_ARRAY_LEN(refused); i++)
        refuse_keys(job, &refused[i], problems);
    refuse_incomplete_teachers(job, problems);
    if (!rk_job_role_needed(job, RK_ROLE_REF))
        warn_of_keys(job, RK_JOB_REF,
                     "without " RK_JOB_ACTOR
                     "use_kl_loss and algorithm.use_kl_in_reward there is no reference");
    if (rk_config_is_null(job, "data.val_files"))
        warn_of_keys(job, RK_JOB_ROLLOUT "val_kwargs.", "without data.val_files there is no validation");
}
