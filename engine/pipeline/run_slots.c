/* Takes and releases the slots of micro-batches in flight. */
#include "engine/pipeline/run_internal.h"

#include "base/rk_assert.h"
#include "base/rk_fault.h"

bool rk_run_is_hit(const struct rk_pipeline_run *run, const char *fault)
{
    (void)fault; /* in builds without fault points */
    return !rk_comm_group_is_dry(rk_mesh_comms_group(run->model->core->mesh, RK_GROUP_PP)) && RK_FAULT(fault);
}

struct rk_status *rk_run_bind(struct rk_pipeline_run *run, int64_t i, struct rk_micro_desc *desc)
{
    run->bound = i;
    RK_TRY(run->work->bind(run->work->user, i, desc));
    run->hooks = desc->hooks;
    return NULL;
}

struct rk_status *rk_run_take_slot(struct rk_pipeline_run *run, struct rk_pipeline_step step,
                                   struct rk_slot **out)
{
    struct rk_model *model = run->model;
    struct rk_slot *slot = NULL;
    struct rk_micro_desc desc;

    for (int64_t i = 0; i < model->slots.count && !slot; i++) {
        if (!model->slots.items[i]->is_taken)
            slot = model->slots.items[i];
    }
    if (!slot)
        RK_TRY(rk_model_add_slot(model, &slot));
    if (step.micro_batch > 0 && rk_run_is_hit(run, "pipeline.memory"))
        return RK_FAIL_REASON(RK_RESOURCE_EXHAUSTED, "DEVICE_OOM", "fault point pipeline.memory");
    if (slot->was_used)
        RK_TRY(rk_event_sync(slot->is_free));
    slot->is_taken = slot->was_used = true;
    slot->micro_batch = step.micro_batch;
    slot->chunk = step.chunk;
    slot->in = slot->out = slot->dout = slot->din = (rk_tensor_t){0};
    RK_TRY(rk_run_bind(run, step.micro_batch, &desc));
    *out = slot;
    return rk_micro_begin(&slot->micro, model, run->schedule.pp > 1 ? &slot->memory : NULL, &desc);
}

struct rk_slot *rk_run_find_slot(const struct rk_pipeline_run *run, struct rk_pipeline_step step)
{
    for (int64_t i = 0; i < run->model->slots.count; i++) {
        struct rk_slot *slot = run->model->slots.items[i];

        if (slot->is_taken && slot->micro_batch == step.micro_batch && slot->chunk == step.chunk)
            return slot;
    }
    return NULL;
}

struct rk_status *rk_slot_give_back(struct rk_slot *slot, struct rk_stream *stream)
{
    slot->is_taken = false;
    return rk_event_record(slot->is_free, stream);
}
