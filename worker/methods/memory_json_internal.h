/* Figures of memory as JSON, as methods report them: bytes, and counts. */
#ifndef RK_MEMORY_JSON_INTERNAL_H
#define RK_MEMORY_JSON_INTERNAL_H

#include "worker/worker_internal.h"

void rk_json_set_bytes(struct rk_json *object, const char *key, uint64_t bytes);
/* Device memory by kind, "total"; "host": pinned host memory; "checkpoint_host". */
struct rk_json *rk_memory_json(const struct rk_model_memory *memory);
/* Memory of the whole daemon. "free" is below the daemon's limit, "shared_free" is shared by all processes
 * with the same "memory_domain", "own" is held by operators over all roles. */
struct rk_json *rk_device_json(const struct rk_device *device);

#endif
