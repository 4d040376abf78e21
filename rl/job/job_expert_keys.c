/* Keys of layers of experts, which have no effect on a model without such layers. */
#include <string.h>

#include "base/rk_alloc.h"
#include "base/config/rk_knobs.h"
#include "base/rk_log.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

struct expert_key {
    uint32_t roles;
    const char *section; /* NULL: the role's */
    const char *name;
    int64_t without; /* the number that a model without experts may have */
    const char *expected;
    bool exchanges; /* without effect also on a model with experts, if a rank has all experts */
};

/* Roles with a mesh of their own keys. */
#define MESH_ROLES (RK_ROLE_ACTOR | RK_ROLE_REF | RK_ROLE_CRITIC | RK_ROLE_REWARD | RK_ROLE_TEACHERS)
#define TRAINED    (RK_ROLE_ACTOR | RK_ROLE_CRITIC)

static const struct expert_key expert_keys[] = {
    {MESH_ROLES, NULL, RK_JOB_EP, 1, "1", false},
    {MESH_ROLES, NULL, RK_JOB_ETP, 1, "null or 1", false},
    {MESH_ROLES, NULL, RK_KNOB_DISPATCH_TOKENS, 0, "null", true},
    {MESH_ROLES, NULL, RK_KNOB_KEEP_DISPATCHED, 0, "false", true},
    {TRAINED, NULL, RK_KNOB_AUX_LOSS, 0, "0", false},
    {TRAINED, NULL, RK_KNOB_Z_LOSS, 0, "0", false},
    {TRAINED, NULL, RK_KNOB_EXPERT_BIAS, 0, "false", false},
    {RK_ROLE_ACTOR, RK_JOB_MODELS, RK_KNOB_FREEZE_ROUTER, 0, "false", false},
    {RK_ROLE_CRITIC, NULL, RK_KNOB_FREEZE_ROUTER, 0, "false", false},
    {RK_ROLE_ACTOR | RK_ROLE_REF, NULL, RK_KNOB_REPLAY, 0, "disabled", false},
    {RK_ROLE_ROLLOUT, RK_JOB_MODELS, RK_KNOB_CAPTURES_ROUTES, 0, "false", false},
};

/* Whether the value has the effect of an absent key. */
static bool is_off(const struct rk_json *value, const struct expert_key *key)
{
    return !rk_json_as_bool(value, false) &&
           rk_json_as_real(value, (double)key->without) == (double)key->without &&
           strcmp(rk_json_as_string(value, key->expected), key->expected) == 0;
}

/* Value allowed for a dense model. With tp > 1 only null: etp=1 would give the rollout a second copy of the
 * same weights. */
static struct expert_key for_role(const struct expert_key *key, const struct rk_config *job,
                                  const struct rk_job_role *role)
{
    struct expert_key own = *key;

    if (strcmp(key->name, RK_JOB_ETP) == 0 && rk_job_role_size(job, role->bit, RK_AXIS_TP) > 1) {
        own.without = 0;
        own.expected = "null";
    }
    return own;
}

static struct rk_status *refuse(const char *path, const char *value, const struct rk_job_role *role,
                                const char *expected, const char *model_type)
{
    return RK_FAIL(RK_INVALID_ARGUMENT,
                   "%s=%s of role %s: expected %s for a model without layers of experts (model_type %.64s)",
                   path, value, role->name, expected, model_type);
}

static struct rk_status *check_value(const struct rk_config *job, const struct rk_job_role *role,
                                     const struct expert_key *key, const char *path, const char *model_type)
{
    const struct rk_json *value = rk_json_find_path(rk_config_tree(job), path);
    struct expert_key own = for_role(key, job, role);
    char *text = rk_json_dump(value, 0, false);
    struct rk_status *st = NULL;

    if (!is_off(value, &own)) {
        if (model_type)
            st = refuse(path, rk_json_as_string(value, text), role, own.expected, model_type);
        else if (key->exchanges && rk_job_role_size(job, role->bit, RK_AXIS_EP) <= 1)
            RK_WARN("%s=%s of role %s has no effect with %s" RK_JOB_EP "=1", path, text, role->name,
                    role->section);
    }
    rk_free(text);
    return st;
}

/* model_type: of a model without experts; NULL: it has experts. */
static struct rk_status *check_key(const struct rk_config *job, const struct rk_job_role *role,
                                   const struct expert_key *key, const char *model_type)
{
    char *path = rk_format("%s%s", key->section ? key->section : role->section, key->name);
    struct rk_status *st = NULL;

    if (!rk_config_is_null(job, path))
        st = check_value(job, role, key, path, model_type);
    rk_free(path);
    return st;
}

struct rk_status *rk_job_check_expert_keys(const struct rk_config *job, uint32_t role, bool has_experts,
                                           const char *model_type)
{
    if (!rk_job_role_needed(job, role))
        return NULL;
    for (size_t i = 0; i < RK_ARRAY_LEN(expert_keys); i++) {
        if (expert_keys[i].roles & role)
            RK_TRY(check_key(job, rk_job_role(role), &expert_keys[i], has_experts ? NULL : model_type));
    }
    return NULL;
}
