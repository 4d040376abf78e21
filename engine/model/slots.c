/* Slots: memory of the micro-batches in flight. */
#include "engine/model/model.h"

#include "base/rk_alloc.h"

static void destroy(struct rk_slot *slot)
{
    rk_step_arena_destroy(slot->memory.arena);
    rk_arena_destroy(slot->memory.host);
    rk_event_destroy(slot->has_arrived);
    rk_event_destroy(slot->is_free);
    rk_free(slot);
}

void rk_model_destroy_slots(struct rk_model *model)
{
    for (int64_t i = 0; i < model->slots.count; i++)
        destroy(model->slots.items[i]);
    rk_array_fini(&model->slots);
}

struct rk_status *rk_model_add_slot(struct rk_model *model, struct rk_slot **out)
{
    struct rk_device *device = rk_stream_device(model->core->stream);
    struct rk_slot *slot = rk_calloc(1, sizeof(*slot));
    struct rk_status *st;

    slot->memory.arena = rk_step_arena_create(device);
    slot->memory.host = rk_arena_create(RK_PASS_HOST_BLOCK_BYTES, 0);
    st = rk_event_create(&slot->is_free, device);
    if (!st)
        st = rk_event_create(&slot->has_arrived, device);
    if (st) {
        destroy(slot);
        return st;
    }
    rk_array_append(&model->slots, slot);
    *out = slot;
    return model->slot_bytes > 0 || model->slot_host_bytes > 0
               ? rk_step_arena_reserve(slot->memory.arena, model->slot_bytes, model->slot_host_bytes)
               : NULL;
}

void rk_model_add_slot_memory(const struct rk_model *model, struct rk_model_memory *memory)
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

struct rk_status *rk_model_reserve_slots(struct rk_model *model, const struct rk_model_memory *plan)
{
    model->slot_bytes = plan->slot_peak_bytes;
    model->slot_host_bytes = plan->slot_host_peak_bytes;
    while (model->slots.count < plan->num_slots) {
        struct rk_slot *slot;

        RK_TRY(rk_model_add_slot(model, &slot));
    }
    return NULL;
}
