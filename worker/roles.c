/* Roles: the meaning of their names, and their states.
 *
 *   EMPTY --init_model--> AWAKE
 *   AWAKE --init_model again, mesh changed, models dropped--> EMPTY
 *
 * EMPTY    the role has a mesh and no model.
 * AWAKE    the parts that a method needs are on the device, or are loaded when it runs (residency.c). */
#include "worker/worker_internal.h"

#include <string.h>

#include "base/rk_log.h"
#include "base/rk_str.h"

static const struct rk_role_kind kinds[] = {
    {.bit = RK_ROLE_ACTOR, .head = "lm", .can_train = true, .sends_weights = true},
    {.bit = RK_ROLE_ROLLOUT, .head = "lm", .generates = true},
    {.bit = RK_ROLE_REF, .head = "lm"},
    {.bit = RK_ROLE_CRITIC, .head = "value", .can_train = true},
    {.bit = RK_ROLE_REWARD, .head = "score"},
    {.bit = RK_ROLE_TEACHER, .head = "lm"},
    {.bit = RK_ROLE_TEACHER_2, .head = "lm"},
    {.bit = RK_ROLE_TEACHER_3, .head = "lm"},
    {.bit = RK_ROLE_TEACHER_4, .head = "lm"},
};

const char *rk_role_state_name(rk_role_state_t state)
{
    static const char *const names[RK_ROLE_STATE_COUNT] = {
        [RK_ROLE_STATE_EMPTY] = "EMPTY",
        [RK_ROLE_STATE_AWAKE] = "AWAKE",
    };

    RK_ASSERT(state < RK_ROLE_STATE_COUNT);
    return names[state];
}

static void set_state(struct rk_worker *worker, struct rk_role *role, rk_role_state_t next)
{
    RK_ASSERT_ENGINE_THREAD(worker);
    RK_ASSERT(role->state != next);
    role->state = next;
}

const struct rk_role_kind *rk_role_kind_find(const char *name)
{
    uint32_t bit = rk_role_parse(name);

    for (size_t i = 0; i < RK_ARRAY_LEN(kinds); i++)
        if (kinds[i].bit == bit)
            return &kinds[i];
    return NULL;
}

struct rk_role *rk_role_find(struct rk_worker *worker, const char *name)
{
    for (int32_t i = 0; i < worker->num_roles; i++)
        if (strcmp(worker->roles[i].name, name) == 0)
            return &worker->roles[i];
    return NULL;
}

char *rk_role_names(const struct rk_worker *worker)
{
    struct rk_str names = {0};

    for (int32_t i = 0; i < worker->num_roles; i++)
        rk_str_appendf(&names, "%s%s", i ? ", " : "", worker->roles[i].name);
    if (worker->num_roles == 0)
        rk_str_append(&names, "none");
    return rk_str_take(&names);
}

void rk_role_wake(struct rk_worker *worker, struct rk_role *role)
{
    RK_ASSERT(role->model);
    RK_ASSERT(role->weights);
    set_state(worker, role, RK_ROLE_STATE_AWAKE);
}

void rk_role_drop_model(struct rk_worker *worker, struct rk_role *role)
{
    if (role->state == RK_ROLE_STATE_EMPTY)
        return;
    for (int32_t i = 0; i < worker->num_roles; i++) {
        if (!rk_role_uses_weights_of(&worker->roles[i], role))
            continue;
        RK_DEBUG_LOG("dropping the model of role %s, which uses the weights of %s", worker->roles[i].name,
                     role->name);
        rk_role_drop_model(worker, &worker->roles[i]);
    }
    rk_rollout_destroy(role->rollout);
    rk_saver_destroy(role->saver);
    rk_trainer_destroy(role->trainer);
    rk_model_destroy(role->model);
    if (rk_role_owns_weights(role))
        rk_weights_destroy(role->weights);
    role->rollout = NULL;
    role->saver = NULL;
    role->trainer = NULL;
    role->model = NULL;
    role->memory_plan = (struct rk_memory_plan){0};
    role->limits = (struct rk_memory_limits){0};
    role->layout = (struct rk_model_layout){0};
    role->weights = NULL;
    role->offload = 0;
    role->has_gradients = false;
    set_state(worker, role, RK_ROLE_STATE_EMPTY);
}

void rk_role_fini(struct rk_role *role)
{
    RK_ASSERT(!role->model);
    rk_mesh_comms_destroy(role->comms);
    rk_mesh_destroy(role->mesh);
    *role = (struct rk_role){0};
}
