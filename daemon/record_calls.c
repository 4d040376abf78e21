/* Entries that L passes to the recorder: the messages of a call as the driver sent and received them, without
 * data that is valid only in the run itself (fence, secrets of the communicators, addresses). */
#include <string.h>

#include "base/rk_log.h"
#include "base/rk_random.h"
#include "base/rk_time.h"
#include "daemon/daemon_internal.h"
#include "daemon/operation_internal.h"

/* A call that cannot be recorded is omitted; replay detects the gap in the numbers. */
static void put(struct rk_daemon *daemon, struct rk_recording_entry *entry, struct rk_status *st)
{
    if (!st) {
        rk_recorder_put(daemon->recorder, entry);
        return;
    }
    RK_WARN("an entry of the recording is omitted kind=%s err=\"%s\"", rk_recording_kind_name(entry->kind),
            rk_status_message(st));
    rk_status_free(st);
    rk_recording_entry_destroy(entry);
}

static void set_number(struct rk_json *meta, const char *key, uint64_t value)
{
    rk_json_set(meta, key, rk_json_new_int((int64_t)value));
}

static struct rk_recording_entry *create(struct rk_daemon *daemon, rk_recording_kind_t kind)
{
    struct rk_recording_entry *entry = rk_recording_entry_create(kind);

    set_number(entry->meta, "epoch", daemon->lease.epoch);
    rk_json_set(entry->meta, "unix_ms", rk_json_new_int(rk_time_unix_ns() / 1000000));
    return entry;
}

static void set_request(struct rk_json *meta, const struct rk_operation *operation)
{
    char hex[2 * RK_REQUEST_ID_BYTES + 1];

    rk_json_set(meta, "request_id",
                rk_json_new_string(rk_hex(operation->request.id, RK_REQUEST_ID_BYTES, hex)));
    set_number(meta, "epoch", operation->epoch);
    set_number(meta, "seq", operation->seq);
}

void rk_record_lease(struct rk_daemon *daemon)
{
    struct rk_recording_entry *entry;

    if (!rk_recorder_is_on(daemon->recorder))
        return;
    entry = create(daemon, RK_RECORDING_LEASE);
    rk_json_set(entry->meta, "driver_id", rk_json_new_string(daemon->lease.driver_id));
    put(daemon, entry, NULL);
}

void rk_record_configure(struct rk_daemon *daemon, const struct rk_job_configure *job)
{
    struct rk_role_mesh meshes[RK_LIMIT_ROLES];
    struct rk_configure_request request = {.mesh_generation = job->mesh_generation,
                                           .num_meshes = job->num_meshes,
                                           .meshes = meshes,
                                           .rank = (uint32_t)job->rank,
                                           .world_size = (uint32_t)job->world_size};
    struct rk_recording_entry *entry;

    if (!rk_recorder_is_on(daemon->recorder))
        return;
    for (int64_t i = 0; i < job->num_meshes; i++)
        meshes[i] = (struct rk_role_mesh){job->meshes[i].role, rk_mesh_get_spec(job->meshes[i].mesh)};
    entry = create(daemon, RK_RECORDING_CONFIGURE);
    rk_pack_configure_request(&entry->message, &request);
    put(daemon, entry, NULL);
}

void rk_record_call(struct rk_operation *operation)
{
    struct rk_daemon *daemon = operation->daemon;
    struct rk_execute_request request = {.kind = RK_EXECUTE_HEADER, .header = operation->header};
    struct rk_recording_entry *entry;
    struct rk_status *st = NULL;

    if (!rk_recorder_is_on(daemon->recorder))
        return;
    entry = create(daemon, RK_RECORDING_CALL);
    set_request(entry->meta, operation);
    request.header.fence = (struct rk_fence){0};
    if (operation->job->call.input)
        st = rk_recording_entry_set_batch(entry, &request.header.input, operation->job->call.input, NULL);
    if (!st)
        rk_pack_execute_request(&entry->message, &request);
    put(daemon, entry, st);
}

static void set_metrics(struct rk_execute_result *result, const struct rk_job *job, struct rk_metric *metrics)
{
    for (int64_t i = 0; i < job->call.num_metrics; i++)
        metrics[i] = (struct rk_metric){.name = job->call.metrics[i].name,
                                        .value = job->call.metrics[i].value,
                                        .reduce = job->call.metrics[i].reduce};
    result->metrics = metrics;
    result->num_metrics = job->call.num_metrics;
}

/* The columns that the driver requested, as a list that ends with NULL; NULL for all. */
static const char **list_want(const struct rk_execute_header *header, struct rk_arena *arena)
{
    const char **want;

    if (header->num_want == 0)
        return NULL;
    want = rk_arena_calloc(arena, (size_t)header->num_want + 1, sizeof(*want));
    for (int64_t i = 0; want && i < header->num_want; i++)
        want[i] = header->want[i];
    return want;
}

void rk_record_result(struct rk_operation *operation, const struct rk_job *job)
{
    struct rk_daemon *daemon = operation->daemon;
    struct rk_execute_response response = {.kind = RK_RESPONSE_RESULT};
    struct rk_metric metrics[RK_JOB_MAX_METRICS];
    struct rk_recording_entry *entry;
    struct rk_status *st = NULL;

    if (!rk_recorder_is_on(daemon->recorder))
        return;
    entry = create(daemon, RK_RECORDING_RESULT);
    set_request(entry->meta, operation);
    set_number(entry->meta, "code", rk_status_code(job->status));
    rk_json_set(entry->meta, "reason", rk_json_new_string(rk_status_reason(job->status)));
    rk_json_set(entry->meta, "message",
                rk_json_new_string(job->status ? rk_status_message(job->status) : ""));
    if (job->call.output && job->call.collect)
        st = rk_recording_entry_set_batch(entry, &response.result.output, job->call.output,
                                          list_want(&operation->header, entry->arena));
    set_metrics(&response.result, job, metrics);
    response.result.device_ns = job->device_ns;
    response.result.peak_device_bytes = job->peak_device_bytes;
    response.result.state = "";
    if (!st)
        rk_pack_execute_response(&entry->message, &response);
    put(daemon, entry, st);
}
