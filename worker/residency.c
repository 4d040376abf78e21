/* Parts of a role's model that are in host memory between calls: which of them a method needs. They are
 * loaded before it, and the parts that the role's options name are offloaded after it, so that the memory of
 * the device matches the next role's plan. */
#include "worker/worker_internal.h"

#include <stdio.h>

#include "base/rk_time.h"

/* The other methods need no part of a model on the device. */
static const struct need {
    uint32_t parts;       /* enum rk_model_parts */
    bool keeps_gradients; /* for a later call */
} needs[RK_METHOD_COUNT] = {
    [RK_METHOD_GENERATE_SEQUENCES] = {RK_PART_PARAMETERS, false},
    [RK_METHOD_COMPUTE_LOG_PROB] = {RK_PART_PARAMETERS, false},
    [RK_METHOD_COMPUTE_REF_LOG_PROB] = {RK_PART_PARAMETERS, false},
    [RK_METHOD_COMPUTE_TEACHER_LOG_PROB] = {RK_PART_PARAMETERS, false},
    [RK_METHOD_COMPUTE_VALUES] = {RK_PART_PARAMETERS, false},
    [RK_METHOD_COMPUTE_RM_SCORE] = {RK_PART_PARAMETERS, false},
    [RK_METHOD_UPDATE_ACTOR] = {RK_PARTS_ALL, false},
    [RK_METHOD_UPDATE_CRITIC] = {RK_PARTS_ALL, false},
    [RK_METHOD_UPDATE_SFT] = {RK_PARTS_ALL, false},
    [RK_METHOD_UPDATE_DPO] = {RK_PARTS_ALL, false},
    [RK_METHOD_FORWARD_BACKWARD] = {RK_PART_PARAMETERS | RK_PART_GRADIENTS, true},
    [RK_METHOD_OPTIM_STEP] = {RK_PARTS_ALL, false},
    [RK_METHOD_EXPORT_HF] = {RK_PART_PARAMETERS, false},
    [RK_METHOD_VERIFY_REPLICAS] = {RK_PART_PARAMETERS, false},
    [RK_METHOD_SAVE_CHECKPOINT] = {RK_PART_PARAMETERS | RK_PART_OPTIMIZER, false},
    [RK_METHOD_LOAD_CHECKPOINT] = {RK_PART_PARAMETERS | RK_PART_OPTIMIZER, false},
};

bool rk_role_moves(const struct rk_role *role)
{
    return role->offload != 0;
}

static void add_metric(struct rk_method_call *call, const char *name, int64_t since_ns)
{
    char path[64];

    snprintf(path, sizeof(path), "%s/%s_seconds", call->role->name, name);
    rk_job_add_metric(call->job, path, (double)(rk_time_now_ns() - since_ns) / 1e9, "max");
}

struct rk_status *rk_method_call_onload(struct rk_method_call *call)
{
    const struct need *need = &needs[call->job->method->id];
    bool writes = call->job->method->flags & RK_MF_MUTATES;
    struct rk_model *model = call->role->model;
    int64_t since_ns = rk_time_now_ns();

    RK_ASSERT_ENGINE_THREAD(call->worker);
    if (!(need->parts & rk_model_offloaded(model)) && !need->keeps_gradients && !writes)
        return NULL;
    if (need->keeps_gradients)
        RK_TRY(rk_model_reserve_offload(model, RK_PART_GRADIENTS));
    RK_TRY(rk_model_onload(model, need->parts, writes));
    RK_TRY(rk_stream_sync(call->worker->stream)); /* so that the time includes the copies */
    add_metric(call, "onload", since_ns);
    return NULL;
}

struct rk_status *rk_method_call_offload(struct rk_method_call *call)
{
    const struct rk_role *role = call->role;
    int64_t since_ns = rk_time_now_ns();

    RK_ASSERT_ENGINE_THREAD(call->worker);
    if (!rk_role_moves(role) || !(role->offload & ~rk_model_offloaded(role->model)))
        return NULL;
    RK_TRY(rk_model_offload(role->model, role->offload, role->has_gradients));
    add_metric(call, "offload", since_ns);
    return NULL;
}

uint64_t rk_worker_away_bytes(const struct rk_worker *worker, const struct rk_role *role)
{
    uint64_t bytes = 0;

    for (int32_t i = 0; i < worker->num_roles; i++) {
        if (&worker->roles[i] != role)
            bytes = RK_MAX(bytes, worker->roles[i].memory_plan.away_bytes);
    }
    return bytes;
}
