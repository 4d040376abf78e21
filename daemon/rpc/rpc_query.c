/* ListMethods, Describe, GetStatus: read-only, answered from the state of L and the worker's snapshot, so
 * they are answered while the engine is stuck. */
#include <string.h>

#include "base/rk_assert.h"
#include "base/rk_time.h"
#include "daemon/daemon_internal.h"
#include "daemon/operation_internal.h"
#include "generated/rk_version.h"

static struct rk_status *list_methods(struct rk_call *call, struct rk_bytes request, struct rk_str *reply)
{
    struct rk_list_methods_response response;

    (void)request; /* has no fields */
    rk_methods_describe(&response, rk_call_arena(call));
    rk_pack_list_methods_response(reply, &response);
    return NULL;
}

static struct rk_status *describe(struct rk_call *call, struct rk_bytes request, struct rk_str *reply)
{
    static const char *const api[] = {"rankd.v1"};
    static const char *const features[] = {"two-phase"};
    struct rk_daemon *daemon = rk_call_daemon(call);
    struct rk_arena *arena = rk_call_arena(call);
    struct rk_worker_snapshot snapshot;
    struct rk_describe_response response = {
        .version = RK_VERSION,
        .git_commit = RK_GIT_COMMIT,
        .num_api = RK_ARRAY_LEN(api),
        .api = api,
        .num_features = RK_ARRAY_LEN(features),
        .features = features,
        .incarnation = daemon->incarnation,
        .max_chunk = RK_LIMIT_CHUNK_BYTES_MAX,
        .max_inflight_bytes = (uint64_t)daemon->settings.max_inflight_bytes,
        .backend = rk_arena_strndup(arena, daemon->settings.device, strcspn(daemon->settings.device, ":")),
    };

    (void)request; /* has no fields */
    rk_worker_get_snapshot(daemon->worker, &snapshot);
    response.rank = rk_group_describe(daemon, &snapshot, arena);
    response.device_model = rk_arena_strdup(arena, snapshot.device_model);
    rk_pack_describe_response(reply, &response);
    return NULL;
}

#define NUM_METRICS 8

static void add_metric(struct rk_worker_status *status, const char *name, double value, const char *unit)
{
    RK_ASSERT(status->num_metrics < NUM_METRICS);
    status->metrics[status->num_metrics++] =
        (struct rk_metric){.name = name, .value = value, .unit = unit, .reduce = "last"};
}

static void add_bytes(struct rk_worker_status *status, const char *name, uint64_t value)
{
    add_metric(status, name, (double)value, "bytes");
}

/* The last sample of NVML, if there is a GPU. */
static void add_gpu(struct rk_worker_status *status, const struct rk_daemon *daemon)
{
    struct rk_gpu_sample sample;

    if (!daemon->gpu)
        return;
    rk_gpu_get_sample(daemon->gpu, &sample);
    if (sample.is_fresh && sample.has_utilization)
        add_metric(status, "gpu_utilization", sample.utilization, "ratio");
    if (sample.is_fresh && sample.has_temperature)
        add_metric(status, "gpu_temperature", sample.temperature_celsius, "celsius");
}

static void add_metrics(struct rk_worker_status *status, const struct rk_daemon *daemon,
                        const struct rk_worker_snapshot *snapshot, struct rk_arena *arena)
{
    status->metrics = rk_arena_calloc(arena, NUM_METRICS, sizeof(*status->metrics));
    RK_ASSERT(status->metrics);
    add_bytes(status, "device_allocated", snapshot->device_allocated_bytes);
    add_bytes(status, "device_peak", snapshot->device_peak_bytes);
    add_bytes(status, "device_total", snapshot->device_total_bytes);
    add_bytes(status, "inflight", daemon->inflight_bytes);
    add_bytes(status, "stored_results", daemon->requests.stored_bytes);
    if (daemon->tokens_per_second > 0)
        add_metric(status, "tokens_per_second", daemon->tokens_per_second, "tokens/s");
    add_gpu(status, daemon);
}

static void add_running(struct rk_worker_status *status, const struct rk_daemon *daemon,
                        const struct rk_worker_snapshot *snapshot)
{
    const struct rk_operation *first = rk_operations_find_first(daemon);

    if (!first)
        return;
    status->method = first->name;
    status->request_id = (struct rk_bytes){.data = first->request.id, .bytes = RK_REQUEST_ID_BYTES};
    if (snapshot->running != first->job)
        return; /* the engine has not started it, or has just ended it */
    status->running_ms = (uint64_t)(rk_time_now_ns() - snapshot->running_since_ns) / 1000000;
    status->progress = (struct rk_progress){.phase = snapshot->phase,
                                            .done = snapshot->progress_done,
                                            .total = snapshot->progress_total,
                                            .monotonic_ns = (uint64_t)rk_time_now_ns()};
}

struct rk_worker_status rk_query_status(struct rk_daemon *daemon, struct rk_arena *arena)
{
    bool is_live = rk_lease_is_live(&daemon->lease, rk_time_boot_ms());
    struct rk_worker_snapshot *snapshot = rk_arena_calloc(arena, 1, sizeof(*snapshot));
    struct rk_worker_status status;

    RK_ASSERT(snapshot);
    rk_daemon_update(daemon);
    rk_worker_get_snapshot(daemon->worker, snapshot);
    status = (struct rk_worker_status){
        .rank = rk_group_describe(daemon, snapshot, arena),
        .state = rk_daemon_state_name(daemon->state),
        .incarnation = daemon->incarnation,
        .epoch = daemon->lease.epoch,
        .driver_id = is_live ? daemon->lease.driver_id : "",
        .last_seq = daemon->lease.finished_seq,
        .mesh_generation = snapshot->mesh_generation,
        .last_error = daemon->last_error,
        .uptime_ms = (uint64_t)(rk_time_now_ns() - daemon->started_ns) / 1000000,
        .collective_seq = snapshot->collective_seq,
        .collective_name = snapshot->collective_name,
        .recording = rk_recorder_describe(daemon->recorder, arena),
        .monotonic_ns = (uint64_t)rk_time_now_ns(),
    };
    add_metrics(&status, daemon, snapshot, arena);
    add_running(&status, daemon, snapshot);
    return status;
}

static struct rk_status *get_status(struct rk_call *call, struct rk_bytes request, struct rk_str *reply)
{
    struct rk_worker_status status = rk_query_status(rk_call_daemon(call), rk_call_arena(call));

    (void)request; /* has no fields */
    rk_pack_worker_status(reply, &status);
    return NULL;
}

const struct rk_rpc_handler rk_rpc_list_methods = {.unary = list_methods};
const struct rk_rpc_handler rk_rpc_describe = {.unary = describe};
const struct rk_rpc_handler rk_rpc_get_status = {.unary = get_status};
