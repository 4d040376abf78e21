/* Cancellation of a pipeline run: which ranks agree on a request to stop, and the placeholder results after
 * it. */
#include "engine/pipeline/run_internal.h"

/* Whether one of the ranks of these groups was asked to stop; the result is the same on all of them. */
static struct rk_status *ask(struct rk_pipeline_run *run, const rk_mesh_group_kind_t *kinds, size_t num_kinds)
{
    const struct rk_engine_hooks *hooks = run->hooks;
    int32_t goes_on = 1;

    if (!hooks || !hooks->is_cancelled || run->schedule.pp == 1)
        return NULL;
    if (run->is_cancelled || hooks->is_cancelled(hooks->user))
        goes_on = 0;
    for (size_t i = 0; i < num_kinds; i++) {
        if (rk_comm_group_size(rk_mesh_comms_group(run->model->core->mesh, kinds[i])) > 1)
            RK_TRY(rk_model_min(run->model, kinds[i], &goes_on, 1));
    }
    run->is_cancelled = !goes_on;
    return NULL;
}

struct rk_status *rk_run_ask_replica(struct rk_pipeline_run *run)
{
    static const rk_mesh_group_kind_t kinds[] = {RK_GROUP_TP_CP};

    return run->is_cancelled ? NULL : ask(run, kinds, RK_ARRAY_LEN(kinds));
}

struct rk_status *rk_run_ask_stage(struct rk_pipeline_run *run)
{
    static const rk_mesh_group_kind_t kinds[] = {RK_GROUP_TP_CP, RK_GROUP_DP};

    if (run->has_asked_stage)
        return NULL;
    run->has_asked_stage = true;
    return ask(run, kinds, RK_ARRAY_LEN(kinds));
}

struct rk_status *rk_run_ask_all(struct rk_pipeline_run *run)
{
    static const rk_mesh_group_kind_t kinds[] = {RK_GROUP_ALL};

    RK_TRY(ask(run, kinds, RK_ARRAY_LEN(kinds)));
    return run->is_cancelled ? RK_FAIL(RK_CANCELLED, "cancelled") : NULL;
}

/* Placeholder for a result that another stage waits for. */
static struct rk_status *make_zeros(const struct rk_slot *slot, rk_tensor_t *out)
{
    const struct rk_pass *pass = &slot->micro.pass;

    RK_TRY(rk_step_2d(slot->memory.arena, out, pass->dtype, pass->num_rows, pass->hidden_size));
    return pass->num_rows > 0 ? rk_stream_zero(pass->stream, out->data, rk_tensor_bytes(*out)) : NULL;
}

struct rk_status *rk_run_skip_forward(const struct rk_pipeline_run *run, struct rk_slot *slot, bool has_head)
{
    if (!has_head)
        return make_zeros(slot, &slot->out);
    return run->work->trains ? NULL : rk_slot_give_back(slot, run->model->core->stream);
}

struct rk_status *rk_run_skip_backward(const struct rk_pipeline_run *run, struct rk_slot *slot,
                                       bool has_embedding)
{
    return has_embedding ? rk_slot_give_back(slot, run->model->core->stream) : make_zeros(slot, &slot->din);
}
