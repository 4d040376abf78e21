/* Counting, and the text of a scrape: from the state of L and the worker's snapshot, so that a scrape is
 * answered while the engine computes or is stuck. */
#include "daemon/metrics/metrics.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_assert.h"
#include "base/rk_time.h"
#include "daemon/daemon_internal.h"
#include "daemon/operation_internal.h"
#include "generated/rk_version.h"

#define OTHER "other"

static const struct rk_histogram_bounds rpc_bounds = {
    .num_bounds = 14,
    .bounds = {0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.1, 0.5, 1, 10, 60, 600}};
static const struct rk_histogram_bounds method_bounds = {
    .num_bounds = 13, .bounds = {0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 180, 600, 1800, 3600}};

static const struct rk_histogram_bounds first_token_bounds = {
    .num_bounds = 13, .bounds = {0.003, 0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 60, 180, 600, 1800}};

/* --- counting --- */

void rk_metrics_count_call(struct rk_metrics *metrics, const struct rk_call_end *end)
{
    struct rk_rpc_metrics *rpc = &metrics->rpcs[end->rpc];

    RK_ASSERT(end->rpc >= 0);
    RK_ASSERT(end->rpc < RK_METRICS_RPCS);
    rpc->by_code[end->code]++;
    if (!end->is_endless)
        rk_histogram_add(&rpc->duration, &rpc_bounds, (double)end->ns / 1e9);
}

/* The series of that role and method; the last place is for further ones. */
static struct rk_method_metrics *find_method(struct rk_metrics *metrics, const struct rk_job *job)
{
    struct rk_method_metrics *row = metrics->methods;

    for (int i = 0; i < metrics->num_methods; i++, row++) {
        if (row->method == job->call.method->name && strcmp(row->role, job->call.role) == 0)
            return row;
    }
    if (metrics->num_methods == RK_METRICS_METHODS_MAX)
        return row - 1;
    if (++metrics->num_methods == RK_METRICS_METHODS_MAX) {
        *row = (struct rk_method_metrics){.role = OTHER, .method = OTHER};
        return row;
    }
    *row = (struct rk_method_metrics){.method = job->call.method->name};
    snprintf(row->role, sizeof(row->role), "%s", job->call.role);
    return row;
}

static void count_failure(struct rk_metrics *metrics, const struct rk_job *job)
{
    const char *reason = rk_status_reason(job->status);
    struct rk_failure_metrics *row = metrics->failures;

    for (int i = 0; i < metrics->num_failures; i++, row++) {
        if (row->method == job->call.method->name && strcmp(row->role, job->call.role) == 0 &&
            strcmp(row->reason, reason) == 0) {
            row->count++;
            return;
        }
    }
    if (metrics->num_failures == RK_METRICS_FAILURES_MAX) {
        row[-1].count++;
        return;
    }
    *row = (struct rk_failure_metrics){.method = job->call.method->name, .count = 1};
    if (++metrics->num_failures == RK_METRICS_FAILURES_MAX) {
        *row = (struct rk_failure_metrics){.role = OTHER, .reason = OTHER, .method = OTHER, .count = 1};
        return;
    }
    snprintf(row->role, sizeof(row->role), "%s", job->call.role);
    snprintf(row->reason, sizeof(row->reason), "%.31s", reason);
}

/* The metrics of the method's last call replace the metrics of the call before. */
static void note_step(struct rk_metrics *metrics, const struct rk_job *job)
{
    int kept = 0;

    for (int i = 0; i < metrics->num_steps; i++) {
        const struct rk_step_metrics *row = &metrics->steps[i];

        if (row->method != job->call.method->name || strcmp(row->role, job->call.role) != 0)
            metrics->steps[kept++] = *row;
    }
    for (int64_t i = 0; i < job->call.num_metrics && kept < RK_METRICS_STEP_MAX; i++) {
        const struct rk_job_metric *metric = &job->call.metrics[i];
        struct rk_step_metrics *row = &metrics->steps[kept++];

        *row = (struct rk_step_metrics){
            .method = job->call.method->name, .reduce = metric->reduce, .value = metric->value};
        snprintf(row->role, sizeof(row->role), "%s", job->call.role);
        snprintf(row->name, sizeof(row->name), "%s", metric->name);
    }
    metrics->num_steps = kept;
}

void rk_metrics_count_job(struct rk_metrics *metrics, const struct rk_job *job)
{
    struct rk_method_metrics *row = find_method(metrics, job);

    row->by_code[rk_status_code(job->status)]++;
    rk_histogram_add(&row->duration, &method_bounds, (double)job->device_ns / 1e9);
    if (job->status) {
        count_failure(metrics, job);
        return;
    }
    row->num_tokens += job->call.num_tokens;
    note_step(metrics, job);
    metrics->num_prompt_tokens += job->call.num_prompt_tokens;
    for (int64_t i = 0; i < job->call.num_first_tokens; i++)
        rk_histogram_add(&metrics->first_token, &first_token_bounds, job->call.first_token_seconds[i]);
    if (job->call.checkpoint_bytes > 0) {
        metrics->checkpoint_bytes += job->call.checkpoint_bytes;
        rk_histogram_add(&metrics->checkpoint_duration, &method_bounds, job->call.checkpoint_seconds);
        metrics->checkpoint_unix_ns = rk_time_unix_ns();
    }
}

/* --- the text --- */

static void put_bool(struct rk_metrics_text *text, rk_metric_id_t id, bool value)
{
    rk_metrics_put_int(text, id, NULL, 0, value);
}

static void put_daemon(struct rk_metrics_text *text, const struct rk_daemon *daemon)
{
    char slot[16];
    const struct rk_metric_label build[] = {{"version", RK_VERSION},
                                            {"commit", RK_GIT_COMMIT},
                                            {"device", daemon->settings.device},
                                            {"slot", slot}};

    snprintf(slot, sizeof(slot), "%d", (int)daemon->settings.slot);
    rk_metrics_put_int(text, RK_METRIC_BUILD_INFO, build, RK_ARRAY_LEN(build), 1);
    for (int state = 0; state < RK_DAEMON_STATE_COUNT; state++) {
        const struct rk_metric_label label = {"state", rk_daemon_state_name((rk_daemon_state_t)state)};

        rk_metrics_put_int(text, RK_METRIC_STATE, &label, 1, state == (int)daemon->state);
    }
    rk_metrics_put_real(text, RK_METRIC_UPTIME, NULL, 0,
                        (double)(rk_time_now_ns() - daemon->started_ns) / 1e9);
    if (daemon->group.world_size > 0)
        rk_metrics_put_int(text, RK_METRIC_RANK, NULL, 0, (uint64_t)daemon->group.rank);
    rk_metrics_put_int(text, RK_METRIC_WORLD_SIZE, NULL, 0, (uint64_t)daemon->group.world_size);
    rk_metrics_put_int(text, RK_METRIC_RELOAD_FAILURES, NULL, 0, daemon->metrics.reload_failures);
    put_bool(text, RK_METRIC_INSECURE, daemon->settings.is_insecure && !daemon->settings.listen.is_local);
    rk_metrics_put_int(text, RK_METRIC_SCRAPES, NULL, 0, daemon->metrics.scrapes);
}

static void put_lease(struct rk_metrics_text *text, const struct rk_daemon *daemon)
{
    int64_t now_ms = rk_time_boot_ms();
    bool is_live = rk_lease_is_live(&daemon->lease, now_ms);

    put_bool(text, RK_METRIC_LEASE_HELD, is_live);
    rk_metrics_put_int(text, RK_METRIC_LEASE_EPOCH, NULL, 0, daemon->lease.epoch);
    rk_metrics_put_real(text, RK_METRIC_LEASE_REMAINING, NULL, 0,
                        is_live ? (double)(daemon->lease.expires_ms - now_ms) / 1e3 : 0.0);
}

/* The path without its first slash; one metric per column, so one loop for each. */
static struct rk_metric_label rpc_label(int rpc)
{
    return (struct rk_metric_label){"rpc",
                                    rpc == RK_RPC_COUNT ? OTHER : rk_rpc_get((rk_rpc_id_t)rpc)->path + 1};
}

static void put_codes(struct rk_metrics_text *text, rk_metric_id_t id, struct rk_metric_label *labels,
                      int num_labels, const uint64_t by_code[RK_CODE_COUNT])
{
    for (int code = 0; code < RK_CODE_COUNT; code++) {
        if (by_code[code] == 0)
            continue;
        labels[num_labels] = (struct rk_metric_label){"code", rk_code_name((rk_code_t)code)};
        rk_metrics_put_int(text, id, labels, num_labels + 1, by_code[code]);
    }
}

static void put_rpcs(struct rk_metrics_text *text, const struct rk_daemon *daemon)
{
    const struct rk_rpc_metrics *rpcs = daemon->metrics.rpcs;
    struct rk_metric_label labels[2];
    int in_flight[RK_METRICS_RPCS] = {0};

    rk_server_count_calls(daemon->server, in_flight);
    if (daemon->health_server)
        rk_server_count_calls(daemon->health_server, in_flight);
    for (int i = 0; i < RK_METRICS_RPCS; i++) {
        labels[0] = rpc_label(i);
        put_codes(text, RK_METRIC_RPC_CALLS, labels, 1, rpcs[i].by_code);
    }
    for (int i = 0; i < RK_METRICS_RPCS; i++) {
        labels[0] = rpc_label(i);
        if (rpcs[i].duration.count > 0)
            rk_metrics_put_histogram(text, RK_METRIC_RPC_DURATION, labels, 1, &rpcs[i].duration, &rpc_bounds);
    }
    for (int i = 0; i < RK_METRICS_RPCS; i++) {
        labels[0] = rpc_label(i);
        rk_metrics_put_int(text, RK_METRIC_RPC_IN_FLIGHT, labels, 1, (uint64_t)in_flight[i]);
    }
    for (int i = 0; i < RK_METRICS_RPCS; i++) {
        labels[0] = rpc_label(i);
        rk_metrics_put_int(text, RK_METRIC_RPC_RECEIVED, labels, 1, rpcs[i].received_bytes);
    }
    for (int i = 0; i < RK_METRICS_RPCS; i++) {
        labels[0] = rpc_label(i);
        rk_metrics_put_int(text, RK_METRIC_RPC_SENT, labels, 1, rpcs[i].sent_bytes);
    }
}

static void put_connections(struct rk_metrics_text *text, const struct rk_daemon *daemon)
{
    struct rk_guard_stats stats;

    rk_server_get_guard_stats(daemon->server, &stats);
    rk_metrics_put_int(text, RK_METRIC_CONNECTIONS, NULL, 0, (uint64_t)stats.num_connections);
    rk_metrics_put_int(text, RK_METRIC_CONNECTIONS_MAX, NULL, 0, (uint64_t)stats.max_connections);
    rk_metrics_put_int(text, RK_METRIC_CONNECTIONS_ACCEPTED, NULL, 0, (uint64_t)stats.num_accepted);
    rk_metrics_put_int(text, RK_METRIC_CONNECTIONS_REFUSED, NULL, 0, (uint64_t)stats.num_refused);
    rk_metrics_put_int(text, RK_METRIC_CONNECTIONS_CUT, NULL, 0, (uint64_t)stats.num_cut);
}

static void put_methods(struct rk_metrics_text *text, const struct rk_metrics *metrics)
{
    struct rk_metric_label labels[4];

    for (int i = 0; i < metrics->num_methods; i++) {
        labels[0] = (struct rk_metric_label){"role", metrics->methods[i].role};
        labels[1] = (struct rk_metric_label){"method", metrics->methods[i].method};
        put_codes(text, RK_METRIC_METHOD_CALLS, labels, 2, metrics->methods[i].by_code);
    }
    for (int i = 0; i < metrics->num_methods; i++) {
        labels[0] = (struct rk_metric_label){"role", metrics->methods[i].role};
        labels[1] = (struct rk_metric_label){"method", metrics->methods[i].method};
        rk_metrics_put_histogram(text, RK_METRIC_METHOD_DURATION, labels, 2, &metrics->methods[i].duration,
                                 &method_bounds);
    }
    for (int i = 0; i < metrics->num_failures; i++) {
        const struct rk_failure_metrics *row = &metrics->failures[i];

        labels[0] = (struct rk_metric_label){"role", row->role};
        labels[1] = (struct rk_metric_label){"method", row->method};
        labels[2] = (struct rk_metric_label){"reason", row->reason};
        rk_metrics_put_int(text, RK_METRIC_METHOD_FAILURES, labels, 3, row->count);
    }
    for (int i = 0; i < metrics->num_steps; i++) {
        const struct rk_step_metrics *row = &metrics->steps[i];

        labels[0] = (struct rk_metric_label){"role", row->role};
        labels[1] = (struct rk_metric_label){"method", row->method};
        labels[2] = (struct rk_metric_label){"metric", row->name};
        labels[3] = (struct rk_metric_label){"reduce", row->reduce};
        rk_metrics_put_real(text, RK_METRIC_METHOD_METRIC, labels, 4, row->value);
    }
}

static void put_tokens(struct rk_metrics_text *text, const struct rk_metrics *metrics)
{
    for (int i = 0; i < metrics->num_methods; i++) {
        const struct rk_metric_label labels[] = {{"role", metrics->methods[i].role},
                                                 {"method", metrics->methods[i].method}};

        if (metrics->methods[i].num_tokens > 0)
            rk_metrics_put_int(text, RK_METRIC_METHOD_TOKENS, labels, RK_ARRAY_LEN(labels),
                               metrics->methods[i].num_tokens);
    }
    if (metrics->first_token.count == 0)
        return;
    rk_metrics_put_int(text, RK_METRIC_ROLLOUT_PROMPT_TOKENS, NULL, 0, metrics->num_prompt_tokens);
    rk_metrics_put_histogram(text, RK_METRIC_ROLLOUT_FIRST_TOKEN, NULL, 0, &metrics->first_token,
                             &first_token_bounds);
}

static void put_checkpoints(struct rk_metrics_text *text, const struct rk_metrics *metrics)
{
    if (metrics->checkpoint_duration.count == 0)
        return;
    rk_metrics_put_int(text, RK_METRIC_CHECKPOINT_BYTES, NULL, 0, metrics->checkpoint_bytes);
    rk_metrics_put_histogram(text, RK_METRIC_CHECKPOINT_SECONDS, NULL, 0, &metrics->checkpoint_duration,
                             &method_bounds);
    rk_metrics_put_real(text, RK_METRIC_CHECKPOINT_SUCCESS, NULL, 0,
                        (double)metrics->checkpoint_unix_ns / 1e9);
}

static void put_rollout(struct rk_metrics_text *text, const struct rk_worker_snapshot *snapshot)
{
    if (snapshot->kv_blocks == 0)
        return;
    rk_metrics_put_int(text, RK_METRIC_ROLLOUT_RUNNING, NULL, 0, snapshot->rollout_running);
    rk_metrics_put_int(text, RK_METRIC_ROLLOUT_WAITING, NULL, 0, snapshot->rollout_waiting);
    rk_metrics_put_real(text, RK_METRIC_KV_CACHE_USAGE, NULL, 0,
                        (double)snapshot->kv_blocks_used / (double)snapshot->kv_blocks);
}

/* The method that runs: a label with its name, while there is one. */
static void put_running(struct rk_metrics_text *text, const struct rk_daemon *daemon,
                        const struct rk_worker_snapshot *snapshot)
{
    const struct rk_operation *first = rk_operations_find_first(daemon);
    const struct rk_metric_label label = {"method", first ? first->name : ""};

    if (!first || snapshot->running != first->job)
        return;
    rk_metrics_put_real(text, RK_METRIC_METHOD_RUNNING, &label, 1,
                        (double)(rk_time_now_ns() - snapshot->running_since_ns) / 1e9);
    if (snapshot->progress_total > 0)
        rk_metrics_put_real(text, RK_METRIC_METHOD_PROGRESS, &label, 1,
                            (double)snapshot->progress_done / (double)snapshot->progress_total);
}

static void put_queue(struct rk_metrics_text *text, const struct rk_daemon *daemon)
{
    rk_metrics_put_int(text, RK_METRIC_QUEUE, NULL, 0, (uint64_t)rk_requests_num_running(&daemon->requests));
    rk_metrics_put_int(text, RK_METRIC_QUEUE_BYTES, NULL, 0, daemon->inflight_bytes);
    rk_metrics_put_int(text, RK_METRIC_QUEUE_LIMIT, NULL, 0, (uint64_t)daemon->settings.max_inflight_bytes);
    rk_metrics_put_int(text, RK_METRIC_RESULT_BYTES, NULL, 0, daemon->requests.stored_bytes);
}

static void put_roles(struct rk_metrics_text *text, const struct rk_worker_snapshot *snapshot)
{
    for (int32_t i = 0; i < snapshot->num_roles; i++) {
        for (int state = 0; state < RK_ROLE_STATE_COUNT; state++) {
            const struct rk_metric_label labels[] = {{"role", snapshot->roles[i].role},
                                                     {"state", rk_role_state_name((rk_role_state_t)state)}};

            rk_metrics_put_int(text, RK_METRIC_ROLE_STATE, labels, RK_ARRAY_LEN(labels),
                               state == (int)snapshot->roles[i].state);
        }
    }
    for (int32_t i = 0; i < snapshot->num_roles; i++) {
        const struct rk_metric_label label = {"role", snapshot->roles[i].role};

        if (snapshot->roles[i].state != RK_ROLE_STATE_EMPTY)
            rk_metrics_put_int(text, RK_METRIC_WEIGHT_VERSION, &label, 1, snapshot->roles[i].weight_version);
    }
}

static void put_memory(struct rk_metrics_text *text, const struct rk_worker_snapshot *snapshot)
{
    for (int32_t i = 0; i < snapshot->num_roles; i++) {
        for (int kind = 0; kind < RK_WORKER_MEMORY_KINDS; kind++) {
            const struct rk_metric_label labels[] = {{"role", snapshot->roles[i].role},
                                                     {"kind", snapshot->roles[i].memory[kind].kind}};

            rk_metrics_put_int(text, RK_METRIC_ROLE_MEMORY, labels, RK_ARRAY_LEN(labels),
                               snapshot->roles[i].memory[kind].bytes);
        }
    }
    for (int32_t i = 0; i < snapshot->num_roles; i++) {
        const struct rk_metric_label label = {"role", snapshot->roles[i].role};

        rk_metrics_put_int(text, RK_METRIC_ROLE_HOST_MEMORY, &label, 1, snapshot->roles[i].host_bytes);
    }
}

static void put_collectives(struct rk_metrics_text *text, const struct rk_worker_snapshot *snapshot)
{
    bool has_times = snapshot->has_collective_times;

    for (int i = 0; i < RK_WORKER_COLLECTIVES && snapshot->collectives[i].name; i++) {
        const struct rk_metric_label label = {"operation", snapshot->collectives[i].name};

        rk_metrics_put_int(text, RK_METRIC_COMM_OPERATIONS, &label, 1, snapshot->collectives[i].count);
    }
    for (int i = 0; i < RK_WORKER_COLLECTIVES && has_times; i++) {
        const struct rk_metric_label label = {"operation", snapshot->collectives[i].name};

        rk_metrics_put_real(text, RK_METRIC_COMM_SECONDS, &label, 1,
                            (double)snapshot->collectives[i].ns / 1e9);
    }
    put_bool(text, RK_METRIC_COMM_UP, snapshot->is_configured);
    rk_metrics_put_real(text, RK_METRIC_COMM_WAITING, NULL, 0,
                        snapshot->collective_name[0]
                            ? (double)(rk_time_now_ns() - snapshot->collective_since_ns) / 1e9
                            : 0.0);
}

static void put_worker(struct rk_metrics_text *text, const struct rk_daemon *daemon)
{
    struct rk_worker_snapshot snapshot;

    if (!daemon->worker)
        return; /* shutting down */
    rk_worker_get_snapshot(daemon->worker, &snapshot);
    put_running(text, daemon, &snapshot);
    put_rollout(text, &snapshot);
    rk_metrics_put_int(text, RK_METRIC_WATCHDOG_TRIPS, NULL, 0, snapshot.num_watchdog_verdicts);
    put_roles(text, &snapshot);
    rk_metrics_put_int(text, RK_METRIC_DEVICE_ALLOCATED, NULL, 0, snapshot.device_allocated_bytes);
    rk_metrics_put_int(text, RK_METRIC_DEVICE_PEAK, NULL, 0, snapshot.device_peak_bytes);
    rk_metrics_put_int(text, RK_METRIC_DEVICE_TOTAL, NULL, 0, snapshot.device_total_bytes);
    put_memory(text, &snapshot);
    put_collectives(text, &snapshot);
}

static void put_gpu_health(struct rk_metrics_text *text, const struct rk_gpu_sample *sample)
{
    const struct rk_metric_label power = {"reason", "power"}, thermal = {"reason", "thermal"};

    if (sample->has_temperature)
        rk_metrics_put_real(text, RK_METRIC_GPU_TEMPERATURE, NULL, 0, sample->temperature_celsius);
    if (sample->has_power)
        rk_metrics_put_real(text, RK_METRIC_GPU_POWER, NULL, 0, sample->power_watts);
    if (sample->has_ecc)
        rk_metrics_put_int(text, RK_METRIC_GPU_ECC, NULL, 0, sample->ecc_uncorrected);
    if (sample->has_throttle) {
        rk_metrics_put_int(text, RK_METRIC_GPU_THROTTLED, &power, 1, sample->is_throttled_power);
        rk_metrics_put_int(text, RK_METRIC_GPU_THROTTLED, &thermal, 1, sample->is_throttled_thermal);
    }
    for (int i = 0; i < sample->num_xids; i++) {
        char xid[24] = OTHER;
        const struct rk_metric_label label = {"xid", xid};

        if (sample->xids[i].xid != 0)
            snprintf(xid, sizeof(xid), "%llu", (unsigned long long)sample->xids[i].xid);
        rk_metrics_put_int(text, RK_METRIC_GPU_XID, &label, 1, sample->xids[i].count);
    }
}

static void put_gpu(struct rk_metrics_text *text, const struct rk_daemon *daemon)
{
    const struct rk_metric_label sm = {"clock", "sm"}, memory = {"clock", "memory"};
    struct rk_gpu_sample sample;

    if (!daemon->gpu)
        return;
    rk_gpu_get_sample(daemon->gpu, &sample);
    if (!sample.is_fresh)
        return;
    if (sample.has_utilization) {
        rk_metrics_put_real(text, RK_METRIC_GPU_UTILIZATION, NULL, 0, sample.utilization);
        rk_metrics_put_real(text, RK_METRIC_GPU_MEMORY_UTILIZATION, NULL, 0, sample.memory_utilization);
    }
    if (sample.has_memory) {
        rk_metrics_put_int(text, RK_METRIC_GPU_MEMORY_USED, NULL, 0, sample.memory_used_bytes);
        rk_metrics_put_int(text, RK_METRIC_GPU_MEMORY_TOTAL, NULL, 0, sample.memory_total_bytes);
    }
    if (sample.has_clocks) {
        rk_metrics_put_real(text, RK_METRIC_GPU_CLOCK, &sm, 1, sample.sm_clock_hertz);
        rk_metrics_put_real(text, RK_METRIC_GPU_CLOCK, &memory, 1, sample.memory_clock_hertz);
    }
    put_gpu_health(text, &sample);
}

void rk_metrics_render(struct rk_daemon *daemon, struct rk_str *out)
{
    struct rk_metrics_text text = {.out = out};

    daemon->metrics.scrapes++;
    put_daemon(&text, daemon);
    put_lease(&text, daemon);
    put_rpcs(&text, daemon);
    put_connections(&text, daemon);
    put_methods(&text, &daemon->metrics);
    put_tokens(&text, &daemon->metrics);
    put_checkpoints(&text, &daemon->metrics);
    put_queue(&text, daemon);
    put_worker(&text, daemon);
    put_gpu(&text, daemon);
    rk_metrics_put_process(&text, rk_time_now_ns() - daemon->started_ns);
}
