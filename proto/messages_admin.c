/* Tables of the Admin service. */
#include "proto/record_internal.h"

#include "proto/limits.h"
#include "rankd/v1/admin.pb-c.h"

static const struct rk_field drain_request_fields[] = {
    RK_ONE(U32, rk_drain_request, "timeout_ms", timeout_ms),
    RK_ONE(BOOL, rk_drain_request, "undo", undo),
    RK_ONE(TEXT, rk_drain_request, "reason", reason, .max_bytes = RK_LIMIT_DOC_BYTES),
};
RK_RECORD(rk_record_drain_request, rankd__v1__drain_request__descriptor, rk_drain_request,
          drain_request_fields);

static const struct rk_field drain_response_fields[] = {
    RK_ONE(TEXT, rk_drain_response, "state", state, .max_bytes = RK_LIMIT_NAME_BYTES),
};
RK_RECORD(rk_record_drain_response, rankd__v1__drain_response__descriptor, rk_drain_response,
          drain_response_fields);

static const struct rk_field shutdown_request_fields[] = {
    RK_ONE(U32, rk_shutdown_request, "grace_ms", grace_ms),
    RK_ONE(BOOL, rk_shutdown_request, "force", force),
    RK_ONE(TEXT, rk_shutdown_request, "reason", reason, .max_bytes = RK_LIMIT_DOC_BYTES),
};
RK_RECORD(rk_record_shutdown_request, rankd__v1__shutdown_request__descriptor, rk_shutdown_request,
          shutdown_request_fields);

static const struct rk_field dump_chunk_fields[] = {
    RK_ONE(BYTES, rk_dump_chunk, "json", json),
};
RK_RECORD(rk_record_dump_chunk, rankd__v1__dump_chunk__descriptor, rk_dump_chunk, dump_chunk_fields);
