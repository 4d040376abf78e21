/* memory_report: what the role's init_model planned, what the role holds, and what the device has, as meta of
 * an empty batch. All figures are bytes unless they are counts.
 *
 *   planned, held   device memory by kind, "total", and "host": pinned host memory; "checkpoint_host": host
 *                   memory that copies of saved checkpoints keep
 *   peak            most that a pass used of "activations" and of its pinned "host" memory
 *   overflows       allocations that passes had to make beyond the plan
 *   device          of the whole daemon; "own" is what operators share (workspaces), over all roles */
#include "worker/methods/methods_internal.h"

static void set_bytes(struct rk_json *object, const char *key, uint64_t bytes)
{
    rk_json_set(object, key, rk_json_new_int((int64_t)bytes));
}

static struct rk_json *format_memory(const struct rk_model_memory *memory)
{
    struct rk_json *object = rk_json_new_object();

    for (int kind = 0; kind < RK_MEMORY_KIND_COUNT; kind++)
        set_bytes(object, rk_memory_kind_name((rk_memory_kind_t)kind),
                  rk_memory_kind_bytes(memory, (rk_memory_kind_t)kind));
    set_bytes(object, "total", rk_memory_total_bytes(memory));
    set_bytes(object, "host", memory->pass_host_bytes + memory->rollout_host_bytes);
    set_bytes(object, "checkpoint_host", memory->checkpoint_host_bytes);
    return object;
}

static struct rk_json *format_peak(const struct rk_model_memory *memory)
{
    struct rk_json *object = rk_json_new_object();

    set_bytes(object, "activations", memory->activation_peak_bytes);
    set_bytes(object, "host", memory->pass_host_peak_bytes);
    return object;
}

static struct rk_json *format_device(const struct rk_device *device)
{
    struct rk_device_stats stats = rk_device_get_stats(device);
    struct rk_device_info info = rk_device_get_info(device);
    struct rk_json *object = rk_json_new_object();

    rk_json_set(object, "name", rk_json_new_string(info.name));
    set_bytes(object, "total", info.memory_total_bytes);
    set_bytes(object, "free", rk_device_free_bytes(device));
    set_bytes(object, "allocated", stats.allocated_bytes);
    set_bytes(object, "own", stats.own_bytes);
    set_bytes(object, "host", stats.host_bytes);
    set_bytes(object, "num_allocations", stats.num_allocations);
    return object;
}

struct rk_status *rk_m_memory_report(struct rk_call *call)
{
    const struct rk_role *role = call->role;
    struct rk_model_memory held = {0};
    struct rk_batch *batch;

    if (role->model)
        held = rk_model_get_memory(role->model);
    RK_TRY(rk_batch_create(&call->job->output, 0));
    batch = call->job->output;
    rk_batch_set_meta(batch, "rank", rk_json_new_int(call->worker->rank));
    rk_batch_set_meta(batch, "state", rk_json_new_string(rk_role_state_name(role->state)));
    rk_batch_set_meta(batch, "planned", format_memory(&role->memory_plan.memory));
    rk_batch_set_meta(batch, "held", format_memory(&held));
    rk_batch_set_meta(batch, "peak", format_peak(&held));
    rk_batch_set_meta(batch, "overflows", rk_json_new_int((int64_t)held.step_overflows));
    rk_batch_set_meta(batch, "device", format_device(call->worker->device));
    return NULL;
}
