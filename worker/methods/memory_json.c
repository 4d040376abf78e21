#include "worker/methods/memory_json_internal.h"

void rk_json_set_bytes(struct rk_json *object, const char *key, uint64_t bytes)
{
    rk_json_set(object, key, rk_json_new_int((int64_t)bytes));
}

struct rk_json *rk_memory_json(const struct rk_model_memory *memory)
{
    struct rk_json *object = rk_json_new_object();

    for (int kind = 0; kind < RK_MEMORY_KIND_COUNT; kind++)
        rk_json_set_bytes(object, rk_memory_kind_name((rk_memory_kind_t)kind),
                          rk_memory_kind_bytes(memory, (rk_memory_kind_t)kind));
    rk_json_set_bytes(object, "total", rk_memory_total_bytes(memory));
    rk_json_set_bytes(object, "host", memory->pass_host_bytes + memory->rollout_host_bytes);
    rk_json_set_bytes(object, "offload_host", memory->offload_host_bytes);
    rk_json_set_bytes(object, "checkpoint_host", memory->checkpoint_host_bytes);
    return object;
}

struct rk_json *rk_device_json(const struct rk_device *device)
{
    struct rk_device_stats stats = rk_device_get_stats(device);
    struct rk_device_info info = rk_device_get_info(device);
    struct rk_json *object = rk_json_new_object();

    rk_json_set(object, "name", rk_json_new_string(info.name));
    rk_json_set(object, "uuid", rk_json_new_string(info.uuid));
    rk_json_set(object, "memory_domain", rk_json_new_string(info.memory_domain));
    rk_json_set_bytes(object, "total", info.memory_total_bytes);
    rk_json_set_bytes(object, "free", rk_device_free_bytes(device));
    rk_json_set_bytes(object, "shared_free", rk_device_shared_free_bytes(device));
    rk_json_set_bytes(object, "allocated", stats.allocated_bytes);
    rk_json_set_bytes(object, "own", stats.own_bytes);
    rk_json_set_bytes(object, "host", stats.host_bytes);
    rk_json_set_bytes(object, "num_allocations", stats.num_allocations);
    return object;
}
