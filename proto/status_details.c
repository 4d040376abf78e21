/* google.rpc.Status for the trailing metadata grpc-status-details-bin: code, message and the reason in an
 * ErrorInfo. */
#include "proto/record_internal.h"

#include "base/rk_alloc.h"
#include "proto/limits.h"
#include "rankd/v1/errors.pb-c.h"

#include <string.h>

#define ERROR_INFO_TYPE "type.googleapis.com/google.rpc.ErrorInfo"
#define ERROR_DOMAIN    "rankd.dev"

struct any {
    const char *type_url;
    struct rk_bytes value;
};
struct rpc_status {
    int32_t code;
    const char *message;
    int64_t num_details;
    struct any *details;
};
struct error_info {
    const char *reason;
    const char *domain;
};

static const struct rk_field any_fields[] = {
    RK_ONE(TEXT, any, "type_url", type_url),
    RK_ONE(BYTES, any, "value", value),
};
static RK_RECORD(record_any, google__rpc__any__descriptor, any, any_fields);

static const struct rk_field rpc_status_fields[] = {
    RK_ONE(I32, rpc_status, "code", code),
    RK_ONE(TEXT, rpc_status, "message", message),
    RK_SUBS(rpc_status, "details", details, num_details, LIST, record_any),
};
static RK_RECORD(record_rpc_status, google__rpc__status__descriptor, rpc_status, rpc_status_fields);

static const struct rk_field error_info_fields[] = {
    RK_ONE(TEXT, error_info, "reason", reason),
    RK_ONE(TEXT, error_info, "domain", domain),
};
static RK_RECORD(record_error_info, google__rpc__error_info__descriptor, error_info, error_info_fields);

/* Length of at most `max_bytes` of the text that does not cut a character. */
static size_t cut_utf8(const char *text, size_t max_bytes)
{
    size_t bytes = strnlen(text, max_bytes + 1);

    if (bytes <= max_bytes)
        return bytes;
    for (bytes = max_bytes; bytes > 0 && ((unsigned char)text[bytes] & 0xc0) == 0x80;)
        bytes--;
    return bytes;
}

void rk_pack_status_details(struct rk_str *out, const struct rk_status *st)
{
    const char *text = rk_status_message(st);
    char *message = rk_strndup(text, cut_utf8(text, RK_LIMIT_STATUS_TEXT_BYTES));
    struct error_info info = {.reason = rk_status_reason(st), .domain = ERROR_DOMAIN};
    struct any detail = {.type_url = ERROR_INFO_TYPE};
    struct rpc_status status = {.code = (int32_t)rk_status_code(st), .message = message, .details = &detail};
    struct rk_str packed = {0};

    if (info.reason[0]) {
        rk_record_pack(&packed, &record_error_info, &info);
        detail.value = (struct rk_bytes){.data = (const uint8_t *)packed.text, .bytes = packed.bytes};
        status.num_details = 1;
    }
    rk_record_pack(out, &record_rpc_status, &status);
    rk_str_fini(&packed);
    rk_free(message);
}

/* The reason, in the arena; NULL when there is none that can be read. */
static const char *find_reason(struct rk_arena *arena, const void *details, size_t bytes)
{
    struct rk_status *st;
    struct rpc_status status;
    struct error_info info;

    st = rk_record_unpack(&status, &record_rpc_status, arena, details, bytes);
    for (int64_t i = 0; !st && i < status.num_details; i++) {
        const struct any *any = &status.details[i];

        if (strcmp(any->type_url, ERROR_INFO_TYPE) != 0)
            continue;
        st = rk_record_unpack(&info, &record_error_info, arena, any->value.data, any->value.bytes);
        if (!st)
            return info.reason;
    }
    RK_IGNORE(st, "unreadable status details leave the code and the message");
    return NULL;
}

struct rk_status *rk_unpack_status_details(rk_code_t code, const char *message, const void *details,
                                           size_t bytes)
{
    struct rk_arena *arena;
    struct rk_status *st;
    const char *reason = NULL;

    if (code == RK_OK)
        return NULL;
    arena = rk_arena_create(4096, 0);
    if (bytes > 0 && bytes <= RK_LIMIT_METADATA_BYTES)
        reason = find_reason(arena, details, bytes);
    st = rk_status_from_wire(code, reason && reason[0] ? reason : NULL, message);
    rk_arena_destroy(arena);
    return st;
}
