/* Kinds of memory, and the check that plans fit into free device memory. */
#include "engine/rk_memory.h"

#include "base/rk_assert.h"
#include "base/rk_str.h"

static const struct {
    const char *name;
    size_t offset; /* in struct rk_model_memory */
} kinds[] = {
    [RK_MEMORY_PARAMETERS] = {"parameters", offsetof(struct rk_model_memory, param_bytes)},
    [RK_MEMORY_MASTERS] = {"masters", offsetof(struct rk_model_memory, master_bytes)},
    [RK_MEMORY_GRADIENTS] = {"gradients", offsetof(struct rk_model_memory, grad_bytes)},
    [RK_MEMORY_OPTIMIZER] = {"optimizer", offsetof(struct rk_model_memory, optimizer_bytes)},
    [RK_MEMORY_ACTIVATIONS] = {"activations", offsetof(struct rk_model_memory, activation_bytes)},
    [RK_MEMORY_KV_CACHE] = {"kv_cache", offsetof(struct rk_model_memory, kv_cache_bytes)},
    [RK_MEMORY_WORKSPACE] = {"workspace", offsetof(struct rk_model_memory, workspace_bytes)},
    [RK_MEMORY_STAGING] = {"staging", offsetof(struct rk_model_memory, staging_bytes)},
};
_Static_assert(RK_ARRAY_LEN(kinds) == RK_MEMORY_KIND_COUNT, "one row per kind");

const char *rk_memory_kind_name(rk_memory_kind_t kind)
{
    RK_ASSERT(kind < RK_MEMORY_KIND_COUNT);
    return kinds[kind].name;
}

uint64_t rk_memory_kind_bytes(const struct rk_model_memory *memory, rk_memory_kind_t kind)
{
    RK_ASSERT(kind < RK_MEMORY_KIND_COUNT);
    return *(const uint64_t *)(const void *)((const char *)memory + kinds[kind].offset);
}

uint64_t rk_memory_total_bytes(const struct rk_model_memory *memory)
{
    uint64_t total = 0;

    for (int kind = 0; kind < RK_MEMORY_KIND_COUNT; kind++)
        total += rk_memory_kind_bytes(memory, (rk_memory_kind_t)kind);
    return total;
}

static rk_memory_kind_t largest_kind(const struct rk_model_memory *memory)
{
    rk_memory_kind_t largest = RK_MEMORY_PARAMETERS;

    for (int kind = 0; kind < RK_MEMORY_KIND_COUNT; kind++) {
        if (rk_memory_kind_bytes(memory, (rk_memory_kind_t)kind) > rk_memory_kind_bytes(memory, largest))
            largest = (rk_memory_kind_t)kind;
    }
    return largest;
}

static uint64_t workspace_bytes(const struct rk_workspace *workspace)
{
    return (uint64_t)workspace->scratch_bytes + workspace->kept_bytes;
}

struct rk_memory_room rk_memory_room_of(const struct rk_device *device)
{
    return (struct rk_memory_room){.free_bytes = (int64_t)rk_device_free_bytes(device),
                                   .own_bytes = rk_device_get_stats(device).own_bytes};
}

uint64_t rk_memory_room_bytes(const struct rk_memory_room *room, const struct rk_memory_plan *plan)
{
    uint64_t shared = RK_MIN(room->own_bytes, workspace_bytes(&plan->workspace));
    int64_t bytes = room->free_bytes + (int64_t)shared + (int64_t)RK_MIN(room->away_bytes, plan->away_bytes);

    return bytes > 0 ? (uint64_t)bytes : 0;
}

void rk_memory_room_keep(struct rk_memory_room *room, uint64_t away_bytes)
{
    if (away_bytes <= room->away_bytes)
        return;
    room->free_bytes -= (int64_t)(away_bytes - room->away_bytes);
    room->away_bytes = away_bytes;
}

void rk_memory_room_take(struct rk_memory_room *room, const struct rk_memory_plan *plan)
{
    uint64_t total = rk_memory_total_bytes(&plan->memory), shared = workspace_bytes(&plan->workspace), own;

    RK_ASSERT(total >= shared);
    room->workspace.scratch_bytes = RK_MAX(room->workspace.scratch_bytes, plan->workspace.scratch_bytes);
    room->workspace.kept_bytes = RK_MAX(room->workspace.kept_bytes, plan->workspace.kept_bytes);
    own = RK_MAX(room->own_bytes, workspace_bytes(&room->workspace));
    room->free_bytes -= (int64_t)(total - plan->away_bytes - shared + own - room->own_bytes);
    room->own_bytes = own;
    rk_memory_room_keep(room, plan->away_bytes);
}

int32_t rk_memory_plan_fit_blocks(const struct rk_memory_plan *plan, const struct rk_memory_room *room,
                                  double share)
{
    const struct rk_model_memory *memory = &plan->memory;
    double budget = share * (double)rk_memory_room_bytes(room, plan) -
                    (double)(rk_memory_total_bytes(memory) - memory->kv_cache_bytes);
    double block_bytes, count;

    RK_ASSERT(plan->num_kv_blocks > 0);
    block_bytes = (double)memory->kv_cache_bytes / plan->num_kv_blocks;
    count = budget / block_bytes;
    return count < 1.0 ? 1 : (int32_t)RK_MIN(count, (double)plan->num_kv_blocks);
}

struct rk_status *rk_memory_plan_check(const struct rk_memory_plan *plan, const struct rk_memory_room *room)
{
    uint64_t free_bytes = rk_memory_room_bytes(room, plan);
    uint64_t total = rk_memory_total_bytes(&plan->memory);
    rk_memory_kind_t largest = largest_kind(&plan->memory);
    struct rk_str parts = {0};
    struct rk_status *st;

    if (total <= free_bytes)
        return NULL;
    for (int kind = 0; kind < RK_MEMORY_KIND_COUNT; kind++) {
        uint64_t bytes = rk_memory_kind_bytes(&plan->memory, (rk_memory_kind_t)kind);

        if (bytes > 0)
            rk_str_appendf(&parts, "%s%s %llu", parts.bytes ? ", " : "",
                           rk_memory_kind_name((rk_memory_kind_t)kind), (unsigned long long)bytes);
    }
    st = RK_FAIL_REASON(RK_RESOURCE_EXHAUSTED, "DEVICE_OOM",
                        "%llu bytes of device memory wanted, %llu free; largest: %s; in all: %s",
                        (unsigned long long)total, (unsigned long long)free_bytes,
                        rk_memory_kind_name(largest), rk_str_text(&parts));
    rk_str_fini(&parts);
    return st;
}
