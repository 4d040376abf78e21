/* memory_report: the plan of the role's init_model, the memory that the role holds, and that of the device,
 * as meta of an empty batch. All figures are bytes unless they are counts.
 *
 *   planned, held   device memory by kind, "total", and "host": pinned host memory; "offload_host": more of
 * it, for parts that leave the device; "checkpoint_host": host memory that copies of saved checkpoints keep
 *   peak            maximum that a pass used of "activations" and of its pinned "host" memory
 *   overflows       allocations that passes had to make beyond the plan
 *   device          of the whole daemon; "own" is what operators share (workspaces), over all roles */
#include "worker/methods/memory_json_internal.h"
#include "worker/methods/methods.h"

static struct rk_json *format_peak(const struct rk_model_memory *memory)
{
    struct rk_json *object = rk_json_new_object();

    rk_json_set_bytes(object, "activations", memory->activation_peak_bytes);
    rk_json_set_bytes(object, "host", memory->pass_host_peak_bytes);
    return object;
}

struct rk_status *rk_m_memory_report(struct rk_method_call *call)
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
    rk_batch_set_meta(batch, "planned", rk_memory_json(&role->memory_plan.memory));
    rk_batch_set_meta(batch, "held", rk_memory_json(&held));
    rk_batch_set_meta(batch, "peak", format_peak(&held));
    rk_batch_set_meta(batch, "overflows", rk_json_new_int((int64_t)held.step_overflows));
    rk_batch_set_meta(batch, "device", rk_device_json(call->worker->device));
    return NULL;
}
