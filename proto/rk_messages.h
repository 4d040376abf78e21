/* The messages of rankd.v1 as plain structs (messages.def), and their encoding.
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

struct rk_meta {
    int64_t count;
    struct rk_meta_entry *entries; /* unpacked ones have no key twice */
};

/* The members of `object` (NULL: none). Array and JSON text live in the arena (asserts that it has room, so
 * use one without limit), keys and strings are borrowed from the object. */
struct rk_meta rk_meta_from_json(struct rk_arena *arena, const struct rk_json *object);
/* New object with all entries; caller owns it. For a meta that was unpacked or made by rk_meta_from_json. */
struct rk_json *rk_meta_to_json(const struct rk_meta *meta);

typedef enum rk_execute_request_kind {
    RK_EXECUTE_NONE,
    RK_EXECUTE_HEADER,
    RK_EXECUTE_COMMIT,
    RK_EXECUTE_CANCEL,
    RK_EXECUTE_CHUNK /* only from rk_stream */
} rk_execute_request_kind_t;

typedef enum rk_execute_response_kind {
    RK_RESPONSE_NONE,
    RK_RESPONSE_ACCEPTED,
    RK_RESPONSE_PROGRESS,
    RK_RESPONSE_RESULT,
    RK_RESPONSE_CHUNK
} rk_execute_response_kind_t;

typedef enum rk_serving_status {
    RK_SERVING_UNKNOWN = 0,
    RK_SERVING = 1,
    RK_NOT_SERVING = 2,
    RK_SERVICE_UNKNOWN = 3
} rk_serving_status_t;

typedef enum rk_reflection_kind {
    RK_REFLECTION_NONE,
    RK_REFLECTION_FILE,
    RK_REFLECTION_SYMBOL,
    RK_REFLECTION_EXTENSION,
    RK_REFLECTION_EXTENSION_NUMBERS,
    RK_REFLECTION_SERVICES
} rk_reflection_kind_t;

/* --- the messages --- */
#define RK_MESSAGE(tag, name)   struct rk_##tag {
#define RK_DECLARE(declaration) declaration;
#define RK_ROW(...)
#define RK_END(check) \
    }                 \
    ;
#include "proto/messages.def"

struct rk_tensor_chunk { /* without its data: see proto/rk_stream.h */
    uint32_t tensor;
    uint64_t offset;
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
