/* Tables of the group: fence, lease, mesh, ranks, Configure, Describe, GetStatus. */
#include "proto/record_internal.h"

#include "proto/limits.h"
#include "rankd/v1/common.pb-c.h"
#include "rankd/v1/worker.pb-c.h"

#define ID_BYTES      16 /* lease_id, request_id */
#define COMM_ID_BYTES 4096

static const struct rk_field fence_fields[] = {
    RK_ONE(U64, rk_fence, "epoch", epoch),
    RK_ONE(BYTES, rk_fence, "lease_id", lease_id, .max_bytes = ID_BYTES),
    RK_ONE(U64, rk_fence, "incarnation", incarnation),
};
RK_RECORD(rk_record_fence, rankd__v1__fence__descriptor, rk_fence, fence_fields);

/* --- meshes and ranks --- */
static const struct rk_field mesh_fields[] = {
    RK_ONE(INDEX, rk_mesh_spec, "tp", tp),
    RK_ONE(INDEX, rk_mesh_spec, "cp", cp),
    RK_ONE(INDEX, rk_mesh_spec, "ep", ep),
    RK_ONE(INDEX, rk_mesh_spec, "etp", etp),
    RK_ONE(INDEX, rk_mesh_spec, "dp", dp),
    RK_ONE(INDEX, rk_mesh_spec, "pp", pp),
    RK_ONE(CHARS, rk_mesh_spec, "order", order, .max_bytes = sizeof(((struct rk_mesh_spec *)0)->order) - 1),
    RK_MANY(INDEXES, rk_mesh_spec, "ranks", ranks, num_ranks, RANKS, .max_entries = RK_MESH_MAX_RANKS),
};
static RK_RECORD(record_mesh, rankd__v1__mesh__descriptor, rk_mesh_spec, mesh_fields);

static const struct rk_field role_mesh_fields[] = {
    RK_ONE(TEXT, rk_role_mesh, "role", role, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_SUB(rk_role_mesh, "mesh", mesh, record_mesh),
};
static RK_RECORD(record_role_mesh, rankd__v1__role_mesh__descriptor, rk_role_mesh, role_mesh_fields);

static const struct rk_field role_rank_fields[] = {
    RK_ONE(TEXT, rk_role_rank, "role", role, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_SUB(rk_role_rank, "mesh", mesh, record_mesh),
    RK_ONE(INDEX, rk_role_rank, "tp_rank", tp_rank),
    RK_ONE(INDEX, rk_role_rank, "cp_rank", cp_rank),
    RK_ONE(INDEX, rk_role_rank, "ep_rank", ep_rank),
    RK_ONE(INDEX, rk_role_rank, "etp_rank", etp_rank),
    RK_ONE(INDEX, rk_role_rank, "dp_rank", dp_rank),
    RK_ONE(INDEX, rk_role_rank, "pp_rank", pp_rank),
    RK_ONE(BOOL, rk_role_rank, "is_collect", is_collect),
    RK_ONE(TEXT, rk_role_rank, "state", state, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_ONE(U64, rk_role_rank, "weight_version", weight_version),
};
static RK_RECORD(record_role_rank, rankd__v1__role_rank__descriptor, rk_role_rank, role_rank_fields);

static const struct rk_field rank_info_fields[] = {
    RK_ONE(INDEX, rk_rank_info, "rank", rank),
    RK_ONE(INDEX, rk_rank_info, "world_size", world_size),
    RK_ONE(TEXT, rk_rank_info, "host", host, .max_bytes = RK_LIMIT_DOC_BYTES),
    RK_SUBS(rk_rank_info, "role", roles, num_roles, ROLES, record_role_rank),
    RK_ONE(TEXT, rk_rank_info, "device", device, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_ONE(TEXT, rk_rank_info, "device_uuid", device_uuid, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_ONE(U64, rk_rank_info, "device_mem_total", device_mem_total),
};
RK_RECORD(rk_record_rank_info, rankd__v1__rank_info__descriptor, rk_rank_info, rank_info_fields);

/* --- lease --- */
static const struct rk_field acquire_lease_request_fields[] = {
    RK_ONE(TEXT, rk_acquire_lease_request, "driver_id", driver_id, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_ONE(U64, rk_acquire_lease_request, "epoch", epoch),
    RK_ONE(U32, rk_acquire_lease_request, "ttl_ms", ttl_ms),
    RK_ONE(BOOL, rk_acquire_lease_request, "takeover", takeover),
    RK_ONE(U64, rk_acquire_lease_request, "incarnation", incarnation),
    RK_ONE(BYTES, rk_acquire_lease_request, "driver_key", driver_key, .max_bytes = ID_BYTES),
};
RK_RECORD(rk_record_acquire_lease_request, rankd__v1__acquire_lease_request__descriptor,
          rk_acquire_lease_request, acquire_lease_request_fields);

static const struct rk_field acquire_lease_response_fields[] = {
    RK_SUB(rk_acquire_lease_response, "fence", fence, rk_record_fence),
    RK_ONE(U32, rk_acquire_lease_response, "ttl_ms", ttl_ms),
    RK_ONE(U64, rk_acquire_lease_response, "last_seq", last_seq),
    RK_ONE(TEXT, rk_acquire_lease_response, "previous_driver", previous_driver,
           .max_bytes = RK_LIMIT_NAME_BYTES),
};
RK_RECORD(rk_record_acquire_lease_response, rankd__v1__acquire_lease_response__descriptor,
          rk_acquire_lease_response, acquire_lease_response_fields);

static const struct rk_field keep_alive_request_fields[] = {
    RK_SUB(rk_keep_alive_request, "fence", fence, rk_record_fence),
};
RK_RECORD(rk_record_keep_alive_request, rankd__v1__keep_alive_request__descriptor, rk_keep_alive_request,
          keep_alive_request_fields);

static const struct rk_field keep_alive_response_fields[] = {
    RK_ONE(U32, rk_keep_alive_response, "ttl_ms", ttl_ms),
    RK_ONE(TEXT, rk_keep_alive_response, "state", state, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_ONE(U64, rk_keep_alive_response, "last_seq", last_seq),
};
RK_RECORD(rk_record_keep_alive_response, rankd__v1__keep_alive_response__descriptor, rk_keep_alive_response,
          keep_alive_response_fields);

static const struct rk_field release_lease_request_fields[] = {
    RK_SUB(rk_release_lease_request, "fence", fence, rk_record_fence),
};
RK_RECORD(rk_record_release_lease_request, rankd__v1__release_lease_request__descriptor,
          rk_release_lease_request, release_lease_request_fields);

/* --- Configure --- */
static const struct rk_field peer_fields[] = {
    RK_ONE(U32, rk_peer, "rank", rank),
    RK_ONE(TEXT, rk_peer, "comm_address", comm_address, .max_bytes = RK_LIMIT_DOC_BYTES),
    RK_ONE(U64, rk_peer, "incarnation", incarnation),
};
static RK_RECORD(record_peer, rankd__v1__peer__descriptor, rk_peer, peer_fields);

static const struct rk_field configure_request_fields[] = {
    RK_SUB(rk_configure_request, "fence", fence, rk_record_fence),
    RK_ONE(U64, rk_configure_request, "mesh_generation", mesh_generation),
    RK_SUBS(rk_configure_request, "mesh", meshes, num_meshes, ROLES, record_role_mesh),
    RK_ONE(U32, rk_configure_request, "rank", rank),
    RK_ONE(U32, rk_configure_request, "world_size", world_size),
    RK_SUBS(rk_configure_request, "peer", peers, num_peers, LIST, record_peer,
            .max_entries = RK_MESH_MAX_RANKS),
    RK_ONE(BYTES, rk_configure_request, "comm_id", comm_id, .max_bytes = COMM_ID_BYTES),
    RK_ONE(BOOL, rk_configure_request, "make_comm_id", make_comm_id),
};
RK_RECORD(rk_record_configure_request, rankd__v1__configure_request__descriptor, rk_configure_request,
          configure_request_fields);

static const struct rk_field configure_response_fields[] = {
    RK_SUB(rk_configure_response, "rank", rank, rk_record_rank_info),
    RK_ONE(BYTES, rk_configure_response, "comm_id", comm_id, .max_bytes = COMM_ID_BYTES),
    RK_ONE(TEXT, rk_configure_response, "comm_address", comm_address, .max_bytes = RK_LIMIT_DOC_BYTES),
};
RK_RECORD(rk_record_configure_response, rankd__v1__configure_response__descriptor, rk_configure_response,
          configure_response_fields);

/* --- Describe, GetStatus --- */
static const struct rk_field describe_response_fields[] = {
    RK_ONE(TEXT, rk_describe_response, "version", version, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_ONE(TEXT, rk_describe_response, "git_commit", git_commit, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_MANY(TEXTS, rk_describe_response, "api", api, num_api, LIST, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_MANY(TEXTS, rk_describe_response, "feature", features, num_features, LIST,
            .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_SUB(rk_describe_response, "rank", rank, rk_record_rank_info),
    RK_ONE(U64, rk_describe_response, "incarnation", incarnation),
    RK_ONE(U64, rk_describe_response, "max_chunk", max_chunk),
    RK_ONE(U64, rk_describe_response, "max_inflight_bytes", max_inflight_bytes),
    RK_ONE(TEXT, rk_describe_response, "backend", backend, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_ONE(U32, rk_describe_response, "nccl_version", nccl_version),
    RK_ONE(TEXT, rk_describe_response, "device_model", device_model, .max_bytes = RK_LIMIT_NAME_BYTES),
};
RK_RECORD(rk_record_describe_response, rankd__v1__describe_response__descriptor, rk_describe_response,
          describe_response_fields);

static const struct rk_field worker_status_fields[] = {
    RK_SUB(rk_worker_status, "rank", rank, rk_record_rank_info),
    RK_ONE(TEXT, rk_worker_status, "state", state, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_ONE(U64, rk_worker_status, "incarnation", incarnation),
    RK_ONE(U64, rk_worker_status, "epoch", epoch),
    RK_ONE(TEXT, rk_worker_status, "driver_id", driver_id, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_ONE(U64, rk_worker_status, "last_seq", last_seq),
    RK_ONE(TEXT, rk_worker_status, "method", method, .max_bytes = 2 * RK_LIMIT_NAME_BYTES + 1),
    RK_ONE(BYTES, rk_worker_status, "request_id", request_id, .max_bytes = ID_BYTES),
    RK_ONE(U64, rk_worker_status, "running_ms", running_ms),
    RK_SUB(rk_worker_status, "progress", progress, rk_record_progress),
    RK_ONE(U64, rk_worker_status, "mesh_generation", mesh_generation),
    RK_SUBS(rk_worker_status, "metric", metrics, num_metrics, METRICS, rk_record_metric),
    RK_ONE(TEXT, rk_worker_status, "last_error", last_error),
    RK_ONE(U64, rk_worker_status, "uptime_ms", uptime_ms),
    RK_ONE(U64, rk_worker_status, "collective_seq", collective_seq),
    RK_ONE(TEXT, rk_worker_status, "collective_name", collective_name, .max_bytes = RK_LIMIT_DOC_BYTES),
    RK_ONE(TEXT, rk_worker_status, "recording", recording, .max_bytes = RK_LIMIT_DOC_BYTES),
    RK_ONE(U64, rk_worker_status, "monotonic_ns", monotonic_ns),
};
RK_RECORD(rk_record_worker_status, rankd__v1__worker_status__descriptor, rk_worker_status,
          worker_status_fields);

static const struct rk_field watch_request_fields[] = {
    RK_ONE(U64, rk_watch_request, "from_event", from_event),
    RK_MANY(TEXTS, rk_watch_request, "kind", kinds, num_kinds, LIST, .max_bytes = RK_LIMIT_NAME_BYTES,
            .max_entries = RK_LIMIT_EVENT_KINDS),
    RK_ONE(TEXT, rk_watch_request, "level", level, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_ONE(BOOL, rk_watch_request, "past_only", past_only),
};
RK_RECORD(rk_record_watch_request, rankd__v1__watch_request__descriptor, rk_watch_request,
          watch_request_fields);

static struct rk_status *check_event(const void *value)
{
    const struct rk_watch_event *event = value;

    return rk_meta_check(&event->fields);
}

static const struct rk_field watch_event_fields[] = {
    RK_ONE(U64, rk_watch_event, "id", id),
    RK_ONE(U64, rk_watch_event, "unix_ns", unix_ns),
    RK_ONE(TEXT, rk_watch_event, "kind", kind, .max_bytes = RK_LIMIT_NAME_BYTES),
    RK_ONE(TEXT, rk_watch_event, "message", message, .max_bytes = RK_LIMIT_DOC_BYTES),
    RK_SUBS(rk_watch_event, "field", fields.entries, fields.count, META, rk_record_meta_entry),
    RK_SUB(rk_watch_event, "status", status, rk_record_worker_status),
};
RK_RECORD(rk_record_watch_event, rankd__v1__event__descriptor, rk_watch_event, watch_event_fields,
          .check = check_event);
