/* google.rpc.Status for the trailing metadata grpc-status-details-bin: code, message, and as far as they are
 * known the reason (ErrorInfo), the field of the request (BadRequest) and when to try again (RetryInfo). */
#include "proto/record_internal.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "proto/limits.h"

#include <stdio.h>
#include <string.h>

#define TYPE_PREFIX           "type.googleapis.com/google.rpc."
#define ERROR_INFO_TYPE       TYPE_PREFIX "ErrorInfo"
#define BAD_REQUEST_TYPE      TYPE_PREFIX "BadRequest"
#define RETRY_INFO_TYPE       TYPE_PREFIX "RetryInfo"
#define ERROR_DOMAIN          "rankd.dev"
#define DETAILS_MAX           3
#define DESCRIPTION_BYTES_MAX 512 /* message and details are metadata, of which stock clients take 8 KiB */

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

/* --- packing --- */

struct details {
    int64_t count;
    struct rk_any list[DETAILS_MAX];
    struct rk_str values[DETAILS_MAX];
};

static void add_detail(struct details *details, const char *type_url, const struct rk_record *record,
                       const void *message)
{
    struct rk_str *value = &details->values[details->count];
    struct rk_any *any = &details->list[details->count];

    RK_ASSERT(details->count < DETAILS_MAX);
    rk_record_pack(value, record, message);
    any->type_url = type_url;
    any->value = (struct rk_bytes){.data = (const uint8_t *)rk_str_text(value), .bytes = value->bytes};
    details->count++;
}

/* Besides the reason, programs may need the rank where a failure of several ranks began. */
static void add_reason(struct details *details, const struct rk_status *st)
{
    char rank[16];
    struct rk_error_metadata entry = {.key = "rank", .value = rank};
    struct rk_error_info info = {.reason = rk_status_reason(st), .domain = ERROR_DOMAIN, .entries = &entry};

    if (!info.reason[0])
        return;
    if (rk_status_blamed_rank(st) >= 0) {
        snprintf(rank, sizeof(rank), "%d", (int)rk_status_blamed_rank(st));
        info.num_entries = 1;
    }
    add_detail(details, ERROR_INFO_TYPE, rk_record_error_info(), &info);
}

static void add_field(struct details *details, const struct rk_status *st)
{
    const char *text = rk_status_message(st), *field = rk_status_field(st);
    bool is_request =
        rk_status_code(st) == RK_INVALID_ARGUMENT || strcmp(rk_status_reason(st), "BAD_FIELD") == 0;
    struct rk_field_violation violation;
    struct rk_bad_request request = {.num_violations = 1, .violations = &violation};
    char *name, *description;

    if (!is_request || !field[0])
        return;
    name = rk_strndup(field, cut_utf8(field, RK_LIMIT_NAME_BYTES));
    description = rk_strndup(text, cut_utf8(text, DESCRIPTION_BYTES_MAX));
    violation = (struct rk_field_violation){.field = name, .description = description};
    add_detail(details, BAD_REQUEST_TYPE, rk_record_bad_request(), &request);
    rk_free(description);
    rk_free(name);
}

static void add_retry(struct details *details, const struct rk_status *st)
{
    int64_t ms = rk_status_retry_ms(st);
    struct rk_retry_info info = {
        .retry_delay = {.seconds = ms / 1000, .nanos = (int32_t)(ms % 1000) * 1000000}};

    if (ms >= 0)
        add_detail(details, RETRY_INFO_TYPE, rk_record_retry_info(), &info);
}

void rk_pack_status_details(struct rk_str *out, const struct rk_status *st)
{
    const char *text = rk_status_message(st);
    char *message = rk_strndup(text, cut_utf8(text, RK_LIMIT_STATUS_TEXT_BYTES));
    struct rk_rpc_status status = {.code = (int32_t)rk_status_code(st), .message = message};
    struct details details = {0};

    add_reason(&details, st);
    add_field(&details, st);
    add_retry(&details, st);
    status.num_details = details.count;
    status.details = details.list;
    rk_record_pack(out, rk_record_rpc_status(), &status);
    for (int64_t i = 0; i < details.count; i++)
        rk_str_fini(&details.values[i]);
    rk_free(message);
}

/* --- unpacking --- */

/* The reason, in the arena; NULL when there is none that can be read. */
static const char *find_reason(struct rk_arena *arena, const void *details, size_t bytes)
{
    struct rk_status *st;
    struct rk_rpc_status status;
    struct rk_error_info info;

    st = rk_record_unpack(&status, rk_record_rpc_status(), arena, details, bytes);
    for (int64_t i = 0; !st && i < status.num_details; i++) {
        const struct rk_any *any = &status.details[i];

        if (strcmp(any->type_url, ERROR_INFO_TYPE) != 0)
            continue;
        st = rk_record_unpack(&info, rk_record_error_info(), arena, any->value.data, any->value.bytes);
        if (!st)
            return info.reason;
    }
    RK_IGNORE(st, "code and message are used without the unreadable status details");
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
