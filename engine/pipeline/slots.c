/* Slots: memory of the micro-batches in flight. */
#include "engine/pipeline/run_internal.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_fault.h"

bool rk_run_is_hit(const struct rk_pipeline_run *run, const char *fault)
{
    (void)fault; /* in builds without fault points */
    return !rk_comm_group_is_dry(rk_mesh_comms_group(run->model->core->mesh, RK_GROUP_PP)) && RK_FAULT(fault);
}

static void slot_destroy(struct rk_pipeline_slot *slot)
{
    rk_step_arena_destroy(slot->memory.arena);
    rk_arena_destroy(slot->memory.host);
    rk_event_destroy(slot->has_arrived);
    rk_event_destroy(slot->is_free);
    rk_free(slot);
}

void rk_pipeline_slots_destroy(struct rk_model *model)
{
    for (int64_t i = 0; i < model->slots.count; i++)
        slot_destroy(model->slots.items[i]);
    rk_array_fini(&model->slots);
    rk_event_destroy(model->is_ready);
    rk_event_destroy(model->is_done);
    rk_stream_destroy(model->messages);
    model->messages = NULL;
    model->is_ready = model->is_done = NULL;
}

static struct rk_status *add_slot(struct rk_model *model, struct rk_pipeline_slot **out)
{
    struct rk_device *device = rk_stream_device(model->core->stream);
    struct rk_pipeline_slot *slot = rk_calloc(1, sizeof(*slot));
    struct rk_status *st;

    slot->memory.arena = rk_step_arena_create(device);
    slot->memory.host = rk_arena_create(RK_PASS_HOST_BLOCK_BYTES, 0);
    st = rk_event_create(&slot->is_free, device);
    if (!st)
        st = rk_event_create(&slot->has_arrived, device);
    if (st) {
        slot_destroy(slot);
        return st;
    }
    rk_array_append(&model->slots, slot);
    *out = slot;
    return model->slot_bytes > 0 || model->slot_host_bytes > 0
               ? rk_step_arena_reserve(slot->memory.arena, model->slot_bytes, model->slot_host_bytes)
               : NULL;
}

void rk_pipeline_add_memory(const struct rk_model *model, struct rk_model_memory *memory)
{
    memory->num_slots = model->slots.count;
    for (int64_t i = 0; i < model->slots.count; i++) {
        struct rk_step_arena_stats step = rk_step_arena_stats(model->slots.items[i]->memory.arena);

        memory->activation_bytes += step.tensors.capacity_bytes;
        memory->pass_host_bytes += step.staging.capacity_bytes;
        memory->slot_peak_bytes = RK_MAX(memory->slot_peak_bytes, step.tensors.peak_bytes);
        memory->slot_host_peak_bytes = RK_MAX(memory->slot_host_peak_bytes, step.staging.peak_bytes);
        memory->step_overflows += step.tensors.overflows + step.staging.overflows;
    }
}

struct rk_status *rk_pipeline_reserve(struct rk_model *model, const struct rk_model_memory *plan)
{
    model->slot_bytes = plan->slot_peak_bytes;
    model->slot_host_bytes = plan->slot_host_peak_bytes;
    while (model->slots.count < plan->num_slots) {
        struct rk_pipeline_slot *slot;

        RK_TRY(add_slot(model, &slot));
    }
    return NULL;
}

struct rk_status *rk_run_bind(struct rk_pipeline_run *run, int64_t i, struct rk_micro_desc *desc)
{
    run->bound = i;
    RK_TRY(run->work->bind(run->work->user, i, desc));
    run->hooks = desc->hooks;
    return NULL;
}

struct rk_status *rk_run_take_slot(struct rk_pipeline_run *run, struct rk_pipeline_step step,
                                   struct rk_pipeline_slot **out)
{
    struct rk_model *model = run->model;
    struct rk_pipeline_slot *slot = NULL;
    struct rk_micro_desc desc;

    for (int64_t i = 0; i < model->slots.count && !slot; i++) {
        if (!model->slots.items[i]->is_taken)
            slot = model->slots.items[i];
    }
    if (!slot)
        RK_TRY(add_slot(model, &slot));
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

struct rk_pipeline_slot *rk_run_find_slot(const struct rk_pipeline_run *run, struct rk_pipeline_step step)
{
    for (int64_t i = 0; i < run->model->slots.count; i++) {
        struct rk_pipeline_slot *slot = run->model->slots.items[i];

        if (slot->is_taken && slot->micro_batch == step.micro_batch && slot->chunk == step.chunk)
            return slot;
    }
    return NULL;
}

struct rk_status *rk_slot_give_back(struct rk_pipeline_slot *slot, struct rk_stream *stream)
{
    slot->is_taken = false;
    return rk_event_record(slot->is_free, stream);
}
