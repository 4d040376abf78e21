/* The messages of rankd.v1 as plain structs, and their encoding.
 *
 * Unpacking is for untrusted bytes: before anything is allocated, strings are checked to be UTF-8 without
 * NUL, enum values, counts and lengths are checked against proto/limits.h, and too many unknown or repeated
 * single fields are refused. The result lives in the given arena and refers to nothing else. Packing appends
 * to an rk_str used as a byte buffer; its input is borrowed. Absent messages are zero structs, absent
 * strings "" (packing takes NULL as ""). */
#ifndef RK_MESSAGES_H
#define RK_MESSAGES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_arena.h"
#include "base/rk_dtype.h"
#include "base/rk_json.h"
#include "base/layout/rk_mesh.h"
#include "base/rk_status.h"
#include "base/rk_str.h"

RK_BEGIN_DECLS

struct rk_bytes {
    const uint8_t *data;
    size_t bytes;
};

/* --- options and meta. On the wire flat entries of scalars; in the product JSON objects. Lists, objects and
 * null are sent as JSON text. --- */
typedef enum rk_scalar_kind {
    RK_SCALAR_NONE, /* refused when it is received */
    RK_SCALAR_REAL,
    RK_SCALAR_INT,
    RK_SCALAR_BOOL,
    RK_SCALAR_STRING,
    RK_SCALAR_JSON
} rk_scalar_kind_t;

struct rk_scalar {
    rk_scalar_kind_t kind;
    double real;      /* REAL; finite */
    int64_t integer;  /* INT */
    bool boolean;     /* BOOL */
    const char *text; /* STRING */
    const char *json; /* JSON; valid JSON text once it was unpacked */
};

struct rk_meta_entry {
    const char *key;
    struct rk_scalar value;
};

struct rk_meta {
    int64_t count;
    struct rk_meta_entry *entries; /* unpacked ones have no key twice */
};

/* The members of `object` (NULL: none). Array and JSON text live in the arena (asserts that it has room, so
 * use one without limit), keys and strings are borrowed from the object. */
struct rk_meta rk_meta_from_json(struct rk_arena *arena, const struct rk_json *object);
/* New object with all entries; caller owns it. For a meta that was unpacked or made by rk_meta_from_json. */
struct rk_json *rk_meta_to_json(const struct rk_meta *meta);

/* --- common.proto --- */
struct rk_tensor_spec {
    const char *name;
    rk_dtype_t dtype;
    int32_t rank;
    const int64_t *shape;
    int64_t num_cu_seqlens; /* 0: dense */
    const int64_t *cu_seqlens;
    uint64_t byte_size;
};

struct rk_string_column {
    const char *name;
    int64_t num_values;
    const char *const *values;
    bool is_json;
};

struct rk_batch_spec { /* DataProtoSpec */
    int64_t batch_size;
    int64_t num_tensors;
    struct rk_tensor_spec *tensors;
    int64_t num_columns;
    struct rk_string_column *columns;
    struct rk_meta meta;
};

struct rk_role_mesh {
    const char *role;
    struct rk_mesh_spec mesh;
};

struct rk_role_rank {
    const char *role;
    struct rk_mesh_spec mesh;
    int32_t tp_rank, cp_rank, ep_rank, etp_rank, dp_rank, pp_rank;
    bool is_collect;
    const char *state; /* of the role's model here: EMPTY, AWAKE */
    uint64_t weight_version;
};

struct rk_rank_info {
    int32_t rank, world_size;
    const char *host;
    int64_t num_roles;
    struct rk_role_rank *roles;
    const char *device;
    const char *device_uuid;
    uint64_t device_mem_total;
};

/* The driver's micro-batch plan: the same bytes for every rank. micro lists the replicas one after the other,
 * num_micro each. */
struct rk_micro_batch {
    int64_t num_rows;     /* 0: the empty one */
    const uint32_t *rows; /* rows of that replica's chunk */
    uint64_t num_tokens;
};

struct rk_mini_batch {
    int32_t num_micro;
    int64_t num_entries; /* num_micro * replicas */
    struct rk_micro_batch *micro;
    uint64_t num_tokens, num_sequences; /* global denominators of the loss */
};

struct rk_plan {
    int64_t num_mini;
    struct rk_mini_batch *mini;
};

struct rk_metric {
    const char *name;
    double value;
    const char *unit;
    const char *reduce; /* "mean", "sum", "max", "min", "last" */
};

struct rk_progress {
    const char *phase;
    uint64_t done, total;
    int64_t num_metrics;
    struct rk_metric *metrics;
    uint64_t monotonic_ns;
};

struct rk_fence {
    uint64_t epoch;
    struct rk_bytes lease_id; /* 16 bytes */
    uint64_t incarnation;
};

struct rk_field_info {
    const char *name;
    rk_dtype_t dtype;
    const char *dims; /* for an option: its type and default, "REAL = 1e-6" */
    bool is_required;
    const char *doc;
};

struct rk_method_info {
    const char *name, *doc;
    int64_t num_roles, num_aliases;
    const char *const *roles, *const *aliases;
    const char *dispatch, *execute;
    bool is_pure, is_mutating, needs_plan;
    int64_t num_input, num_output, num_options;
    struct rk_field_info *input, *output, *options;
};

/* --- worker.proto. Requests without fields have no struct: pack an empty message. --- */
struct rk_list_methods_response {
    int64_t num_methods;
    struct rk_method_info *methods;
};

struct rk_describe_response {
    const char *version, *git_commit;
    int64_t num_api, num_features;
    const char *const *api;
    const char *const *features;
    struct rk_rank_info rank;
    uint64_t incarnation, max_chunk, max_inflight_bytes;
    const char *backend;
    uint32_t nccl_version;
    const char *device_model;
};

struct rk_acquire_lease_request {
    const char *driver_id;
    uint64_t epoch;
    uint32_t ttl_ms;
    bool takeover;
    uint64_t incarnation;
    struct rk_bytes driver_key;
};

struct rk_acquire_lease_response {
    struct rk_fence fence;
    uint32_t ttl_ms;
    uint64_t last_seq;
    const char *previous_driver;
};

struct rk_keep_alive_request {
    struct rk_fence fence;
};

struct rk_keep_alive_response {
    uint32_t ttl_ms;
    const char *state;
    uint64_t last_seq;
};

struct rk_release_lease_request {
    struct rk_fence fence;
};

struct rk_peer {
    uint32_t rank;
    const char *comm_address;
    uint64_t incarnation;
};

struct rk_configure_request {
    struct rk_fence fence;
    uint64_t mesh_generation;
    int64_t num_meshes;
    struct rk_role_mesh *meshes;
    uint32_t rank, world_size;
    int64_t num_peers;
    struct rk_peer *peers;
    struct rk_bytes comm_id;
    bool make_comm_id;
};

struct rk_configure_response {
    struct rk_rank_info rank;
    struct rk_bytes comm_id;
    const char *comm_address;
};

struct rk_execute_header {
    struct rk_fence fence;
    struct rk_bytes request_id; /* 16 bytes */
    uint64_t seq, mesh_generation;
    const char *role, *method;
    struct rk_batch_spec input;
    struct rk_meta options;
    struct rk_plan plan;
    uint32_t timeout_ms;
    bool two_phase;
    bool collect;
    int64_t num_want;
    const char *const *want;
    bool brief; /* the result is the only message of the daemon; needs no Commit and no seq (RK_MF_ALONE) */
};

struct rk_tensor_chunk { /* without its data: see proto/rk_stream.h */
    uint32_t tensor;
    uint64_t offset;
};

typedef enum rk_execute_request_kind {
    RK_EXECUTE_NONE,
    RK_EXECUTE_HEADER,
    RK_EXECUTE_COMMIT,
    RK_EXECUTE_CANCEL,
    RK_EXECUTE_CHUNK /* only from rk_stream */
} rk_execute_request_kind_t;

struct rk_execute_request {
    rk_execute_request_kind_t kind;
    struct rk_execute_header header; /* HEADER */
    const char *cancel_reason;       /* CANCEL */
};

struct rk_accepted {
    uint64_t seq;
    bool is_replayed;
    struct rk_bytes plan_hash;
};

struct rk_execute_result {
    struct rk_batch_spec output;
    int64_t num_metrics;
    struct rk_metric *metrics;
    uint64_t device_ns, peak_device_bytes;
    const char *state;
};

typedef enum rk_execute_response_kind {
    RK_RESPONSE_NONE,
    RK_RESPONSE_ACCEPTED,
    RK_RESPONSE_PROGRESS,
    RK_RESPONSE_RESULT,
    RK_RESPONSE_CHUNK
} rk_execute_response_kind_t;

struct rk_execute_response {
    rk_execute_response_kind_t kind;
    struct rk_accepted accepted;
    struct rk_progress progress;
    struct rk_execute_result result;
};

struct rk_cancel_request {
    struct rk_fence fence;
    struct rk_bytes request_id;
    bool abort_comm;
    const char *reason;
};

struct rk_cancel_response {
    const char *outcome; /* not_found | queued_removed | flagged | aborted | already_done */
};

struct rk_worker_status {
    struct rk_rank_info rank;
    const char *state;
    uint64_t incarnation, epoch;
    const char *driver_id;
    uint64_t last_seq;
    const char *method; /* "role.method"; "" when idle */
    struct rk_bytes request_id;
    uint64_t running_ms;
    struct rk_progress progress;
    uint64_t mesh_generation;
    int64_t num_metrics;
    struct rk_metric *metrics;
    const char *last_error;
    uint64_t uptime_ms, collective_seq;
    const char *collective_name;
    const char *recording;
    uint64_t monotonic_ns;
};

struct rk_watch_request {
    uint64_t from_event;
    int64_t num_kinds;
    const char *const *kinds;
    const char *level; /* "" for info */
    bool past_only;
};

/* The message Event. */
struct rk_watch_event {
    uint64_t id, unix_ns;
    const char *kind, *message;
    struct rk_meta fields;
    struct rk_worker_status status; /* of the first event of a stream; else zero */
};

/* --- admin.proto --- */
struct rk_drain_request {
    uint32_t timeout_ms;
    bool undo;
    const char *reason;
};

struct rk_drain_response {
    const char *state;
};

struct rk_shutdown_request {
    uint32_t grace_ms;
    bool force;
    const char *reason;
};

struct rk_dump_chunk {
    struct rk_bytes json; /* a piece of the text */
};

/* --- health.proto --- */
struct rk_health_check_request {
    const char *service;
};

typedef enum rk_serving_status {
    RK_SERVING_UNKNOWN = 0,
    RK_SERVING = 1,
    RK_NOT_SERVING = 2,
    RK_SERVICE_UNKNOWN = 3
} rk_serving_status_t;

struct rk_health_check_response {
    rk_serving_status_t status;
};

/* --- reflection.proto, of v1 and v1alpha alike. Responses are encoded where they are created
 * (daemon/rpc/rpc_reflect.c): they hold descriptors, which are encoded already. --- */
typedef enum rk_reflection_kind {
    RK_REFLECTION_NONE,
    RK_REFLECTION_FILE,
    RK_REFLECTION_SYMBOL,
    RK_REFLECTION_EXTENSION,
    RK_REFLECTION_EXTENSION_NUMBERS,
    RK_REFLECTION_SERVICES
} rk_reflection_kind_t;

struct rk_extension_request {
    const char *containing_type;
    int32_t extension_number;
};

struct rk_reflection_request {
    const char *host;
    rk_reflection_kind_t kind;
    const char *name;                      /* FILE, SYMBOL, EXTENSION_NUMBERS; NULL for the others */
    struct rk_extension_request extension; /* EXTENSION */
};

#define RK_MESSAGE_TABLE(X)   \
    X(list_methods_response)  \
    X(describe_response)      \
    X(acquire_lease_request)  \
    X(acquire_lease_response) \
    X(keep_alive_request)     \
    X(keep_alive_response)    \
    X(release_lease_request)  \
    X(configure_request)      \
    X(configure_response)     \
    X(execute_request)        \
    X(execute_response)       \
    X(cancel_request)         \
    X(cancel_response)        \
    X(worker_status)          \
    X(watch_request)          \
    X(watch_event)            \
    X(drain_request)          \
    X(drain_response)         \
    X(shutdown_request)       \
    X(dump_chunk)             \
    X(health_check_request)   \
    X(health_check_response)  \
    X(reflection_request)

/* rk_pack_cancel_request(out, &msg) appends; rk_unpack_cancel_request(&msg, arena, data, bytes) is
 * INVALID_ARGUMENT or RESOURCE_EXHAUSTED naming the field, and leaves *out zeroed on failure. */
#define X(name)                                                                                         \
    void rk_pack_##name(struct rk_str *out, const struct rk_##name *msg);                               \
    struct rk_status *rk_unpack_##name(struct rk_##name *out, struct rk_arena *arena, const void *data, \
                                       size_t bytes) RK_NODISCARD;
RK_MESSAGE_TABLE(X)
#undef X

/* The encoding of a micro-batch plan alone, for its hash: equal plans give equal bytes. */
void rk_pack_plan(struct rk_str *out, const struct rk_plan *plan);

/* google.rpc.Status for grpc-status-details-bin, with ErrorInfo (domain "rankd.dev"), BadRequest and
 * RetryInfo as far as the status has them, and back. */
void rk_pack_status_details(struct rk_str *out, const struct rk_status *st);
/* The status of a received call; `details` may be empty or invalid (then only code and message
 * are used). */
struct rk_status *rk_unpack_status_details(rk_code_t code, const char *message, const void *details,
                                           size_t bytes) RK_NODISCARD;

RK_END_DECLS

#endif
