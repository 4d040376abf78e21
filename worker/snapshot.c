/* The snapshot that any thread may read: E publishes at the ends of jobs and at progress ticks; the rest is
 * read live. */
#include "worker/worker_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_flight.h"
#include "base/rk_log.h"
#include "base/rk_time.h"

static void publish_device(struct rk_worker *worker)
{
    struct rk_device_stats stats = rk_device_get_stats(worker->device);

    worker->snapshot.device_allocated_bytes = stats.allocated_bytes;
    worker->snapshot.device_peak_bytes = stats.peak_bytes;
}

_Static_assert(RK_WORKER_MEMORY_KINDS == RK_MEMORY_KIND_COUNT, "one entry per kind");
_Static_assert(RK_WORKER_COLLECTIVES == RK_COMM_STATS_ROWS, "one entry per operation");

static void publish_memory(struct rk_worker_snapshot *snapshot, int32_t i, const struct rk_role *role)
{
    struct rk_model_memory memory = {0};

    if (role->model)
        memory = rk_model_get_memory(role->model);
    for (int kind = 0; kind < RK_MEMORY_KIND_COUNT; kind++) {
        snapshot->roles[i].memory[kind].kind = rk_memory_kind_name((rk_memory_kind_t)kind);
        snapshot->roles[i].memory[kind].bytes = rk_memory_kind_bytes(&memory, (rk_memory_kind_t)kind);
    }
    snapshot->roles[i].host_bytes = memory.pass_host_bytes + memory.rollout_host_bytes +
                                    memory.offload_host_bytes + memory.checkpoint_host_bytes;
}

void rk_worker_add_collectives(struct rk_worker_snapshot *snapshot, const struct rk_comm_world *world)
{
    struct rk_comm_stats stats;

    rk_comm_world_stats(world, &stats);
    snapshot->has_collective_times = stats.has_times;
    for (int i = 0; i < RK_COMM_STATS_ROWS; i++) {
        snapshot->collectives[i].name = stats.rows[i].name;
        snapshot->collectives[i].count += stats.rows[i].count;
        snapshot->collectives[i].ns += stats.rows[i].ns;
    }
}

void rk_worker_publish(struct rk_worker *worker)
{
    struct rk_worker_snapshot *snapshot = &worker->snapshot;
    struct rk_device_info info = rk_device_get_info(worker->device);

    RK_ASSERT_ENGINE_THREAD(worker);
    pthread_mutex_lock(&worker->lock);
    snapshot->num_roles = worker->num_roles;
    for (int32_t i = 0; i < worker->num_roles; i++) {
        const struct rk_role *role = &worker->roles[i];

        snprintf(snapshot->roles[i].role, sizeof(snapshot->roles[i].role), "%s", role->name);
        snapshot->roles[i].state = role->state;
        snapshot->roles[i].weight_version = role->model ? rk_model_weight_version(role->model) : 0;
        publish_memory(snapshot, i, role);
    }
    snapshot->device_total_bytes = info.memory_total_bytes;
    snprintf(snapshot->device_uuid, sizeof(snapshot->device_uuid), "%s", info.uuid);
    snprintf(snapshot->device_model, sizeof(snapshot->device_model), "%s", info.model);
    publish_device(worker);
    pthread_mutex_unlock(&worker->lock);
}

void rk_worker_fail_locked(struct rk_worker *worker, const char *failure, const char *text)
{
    struct rk_worker_snapshot *snapshot = &worker->snapshot;

    if (snapshot->failure)
        return;
    RK_ERROR("%s: %s", failure, text);
    rk_flight_note(&(struct rk_flight_entry){.kind = RK_FLIGHT_ERROR, .what = failure, .where = text},
                   RK_INTERNAL);
    snapshot->failure = failure;
    snprintf(snapshot->failure_text, sizeof(snapshot->failure_text), "%s", text);
}

/* A phase lasts until the next one begins. */
static void begin_phase(struct rk_worker *worker, const char *phase, uint64_t total)
{
    struct rk_flight_entry entry = {.kind = RK_FLIGHT_PHASE, .what = phase, .where = "", .seq = total};

    if (worker->flight_phase)
        rk_flight_end(worker->flight_phase, RK_OK);
    worker->flight_phase = rk_flight_begin(&entry);
}

void rk_worker_tick(struct rk_worker *worker, const char *phase, uint64_t done, uint64_t total)
{
    struct rk_running_job *running = &worker->running;

    RK_ASSERT_ENGINE_THREAD(worker);
    if (!worker->flight_phase || strcmp(running->phase, phase) != 0)
        begin_phase(worker, phase, total);
    pthread_mutex_lock(&worker->lock);
    running->last_tick_ns = rk_time_now_ns();
    snprintf(running->phase, sizeof(running->phase), "%s", phase);
    running->progress_done = done;
    running->progress_total = total;
    publish_device(worker);
    pthread_mutex_unlock(&worker->lock);
}

void rk_worker_get_snapshot(struct rk_worker *worker, struct rk_worker_snapshot *out)
{
    pthread_mutex_lock(&worker->lock);
    *out = worker->snapshot;
    out->is_configured = worker->world && !worker->is_world_aborted;
    out->running = worker->running.job;
    if (worker->running.job) {
        out->running_since_ns = worker->running.since_ns;
        snprintf(out->phase, sizeof(out->phase), "%s", worker->running.phase);
        out->progress_done = worker->running.progress_done;
        out->progress_total = worker->running.progress_total;
    }
    if (worker->world) {
        struct rk_comm_activity activity;

        _Static_assert(sizeof(out->collective_name) >= sizeof(activity.name), "names fit");
        rk_worker_add_collectives(out, worker->world);
        rk_comm_world_activity(worker->world, &activity);
        out->collective_seq = activity.seq;
        out->collective_since_ns = activity.started_ns;
        if (activity.in_operation)
            snprintf(out->collective_name, sizeof(out->collective_name), "%s", activity.name);
    }
    pthread_mutex_unlock(&worker->lock);
}
