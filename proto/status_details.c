/* google.rpc.Status for the trailing metadata grpc-status-details-bin: code, message, and as far as they are
 * known the reason (ErrorInfo), the field of the request (BadRequest) and when to try again (RetryInfo). */
#include "proto/record_internal.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "proto/limits.h"
#include "rankd/v1/errors.pb-c.h"

#include <stdio.h>
#include <string.h>

#define TYPE_PREFIX           "type.googleapis.com/google.rpc."
#define ERROR_INFO_TYPE       TYPE_PREFIX "ErrorInfo"
#define BAD_REQUEST_TYPE      TYPE_PREFIX "BadRequest"
#define RETRY_INFO_TYPE       TYPE_PREFIX "RetryInfo"
#define ERROR_DOMAIN          "rankd.dev"
#define DETAILS_MAX           3
#define DESCRIPTION_BYTES_MAX 512 /* message and details are metadata, of which stock clients take 8 KiB */

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
struct entry { /* of a map */
    const char *key, *value;
};
struct error_info {
    const char *reason;
    const char *domain;
    int64_t num_entries;
    struct entry *entries;
};
struct violation {
    const char *field, *description;
};
struct bad_request {
    int64_t num_violations;
    struct violation *violations;
};
struct duration {
    int64_t seconds;
    int32_t nanos;
};
struct retry_info {
    struct duration delay;
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

static const struct rk_field entry_fields[] = {
    RK_ONE(TEXT, entry, "key", key),
    RK_ONE(TEXT, entry, "value", value),
};
static RK_RECORD(record_entry, google__rpc__error_info__metadata_entry__descriptor, entry, entry_fields);

static const struct rk_field error_info_fields[] = {
    RK_ONE(TEXT, error_info, "reason", reason),
    RK_ONE(TEXT, error_info, "domain", domain),
    RK_SUBS(error_info, "metadata", entries, num_entries, LIST, record_entry),
};
static RK_RECORD(record_error_info, google__rpc__error_info__descriptor, error_info, error_info_fields);

static const struct rk_field violation_fields[] = {
    RK_ONE(TEXT, violation, "field", field),
    RK_ONE(TEXT, violation, "description", description),
};
static RK_RECORD(record_violation, google__rpc__field_violation__descriptor, violation, violation_fields);

static const struct rk_field bad_request_fields[] = {
    RK_SUBS(bad_request, "field_violations", violations, num_violations, LIST, record_violation),
};
static RK_RECORD(record_bad_request, google__rpc__bad_request__descriptor, bad_request, bad_request_fields);

static const struct rk_field duration_fields[] = {
    RK_ONE(I64, duration, "seconds", seconds),
    RK_ONE(I32, duration, "nanos", nanos),
};
static RK_RECORD(record_duration, google__rpc__duration__descriptor, duration, duration_fields);

static const struct rk_field retry_info_fields[] = {
    RK_SUB(retry_info, "retry_delay", delay, record_duration),
};
static RK_RECORD(record_retry_info, google__rpc__retry_info__descriptor, retry_info, retry_info_fields);

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
    struct any list[DETAILS_MAX];
    struct rk_str values[DETAILS_MAX];
};

static void add_detail(struct details *details, const char *type_url, const struct rk_record *record,
                       const void *message)
{
    struct rk_str *value = &details->values[details->count];
    struct any *any = &details->list[details->count];

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
    struct entry entry = {.key = "rank", .value = rank};
    struct error_info info = {.reason = rk_status_reason(st), .domain = ERROR_DOMAIN, .entries = &entry};

    if (!info.reason[0])
        return;
    if (rk_status_blamed_rank(st) >= 0) {
        snprintf(rank, sizeof(rank), "%d", (int)rk_status_blamed_rank(st));
        info.num_entries = 1;
    }
    add_detail(details, ERROR_INFO_TYPE, &record_error_info, &info);
}

static void add_field(struct details *details, const struct rk_status *st)
{
    const char *text = rk_status_message(st), *field = rk_status_field(st);
    bool is_request =
        rk_status_code(st) == RK_INVALID_ARGUMENT || strcmp(rk_status_reason(st), "BAD_FIELD") == 0;
    struct violation violation;
    struct bad_request request = {.num_violations = 1, .violations = &violation};
    char *name, *description;

    if (!is_request || !field[0])
        return;
    name = rk_strndup(field, cut_utf8(field, RK_LIMIT_NAME_BYTES));
    description = rk_strndup(text, cut_utf8(text, DESCRIPTION_BYTES_MAX));
    violation = (struct violation){.field = name, .description = description};
    add_detail(details, BAD_REQUEST_TYPE, &record_bad_request, &request);
    rk_free(description);
    rk_free(name);
}

static void add_retry(struct details *details, const struct rk_status *st)
{
    int64_t ms = rk_status_retry_ms(st);
    struct retry_info info = {.delay = {.seconds = ms / 1000, .nanos = (int32_t)(ms % 1000) * 1000000}};

    if (ms >= 0)
        add_detail(details, RETRY_INFO_TYPE, &record_retry_info, &info);
}

void rk_pack_status_details(struct rk_str *out, const struct rk_status *st)
{
    const char *text = rk_status_message(st);
    char *message = rk_strndup(text, cut_utf8(text, RK_LIMIT_STATUS_TEXT_BYTES));
    struct rpc_status status = {.code = (int32_t)rk_status_code(st), .message = message};
    struct details details = {0};

    add_reason(&details, st);
    add_field(&details, st);
    add_retry(&details, st);
    status.num_details = details.count;
    status.details = details.list;
    rk_record_pack(out, &record_rpc_status, &status);
    for (int64_t i = 0; i < details.count; i++)
        rk_str_fini(&details.values[i]);
    rk_free(message);
}

/* --- unpacking --- */

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
