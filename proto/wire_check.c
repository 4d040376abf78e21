/* First check of received bytes, before anything is allocated for them.
 *
 * protobuf-c accepts harmful input: text with NULs or invalid UTF-8, unknown enum values, and
 * floods of tiny fields, each of which costs it 40 bytes and more. This walk uses the tables of the record,
 * allocates nothing, and recurses only into messages of the record (the schema has no recursive ones; unknown
 * fields are skipped unread). */
#include "proto/record_internal.h"

#include "base/rk_assert.h"
#include "proto/limits.h"

#include <inttypes.h>
#include <stdio.h>

#define MAX_RECORD_FIELDS 64 /* of one message: one bit each */
#define MAX_VARINT_BYTES  10
#define MAX_KEY_BYTES     5 /* keys and lengths */

/* Wire types. Groups (3 and 4) are not part of proto3. */
enum { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_LENGTH = 2, WIRE_FIXED32 = 5 };

static const struct {
    const char *what;
    int64_t max;
} caps[RK_CAP_COUNT] = {
    [RK_CAP_BYTES] = {"entries", INT64_MAX},
    [RK_CAP_TENSORS] = {"tensors or columns", RK_LIMIT_TENSORS},
    [RK_CAP_STRINGS] = {"strings", RK_LIMIT_STRINGS},
    [RK_CAP_META] = {"options and meta entries", RK_LIMIT_META_ENTRIES},
    [RK_CAP_MICRO] = {"mini- and micro-batches", RK_LIMIT_MICRO_BATCHES},
    [RK_CAP_ROLES] = {"roles", RK_LIMIT_ROLES},
    [RK_CAP_RANKS] = {"ranks", RK_MESH_MAX_RANKS},
    [RK_CAP_METRICS] = {"metrics", RK_LIMIT_METRICS},
    [RK_CAP_LIST] = {"list entries", RK_LIMIT_LIST},
};

struct walk {
    uint64_t num_fields;
    int64_t num_surplus; /* unknown fields, and repeated single ones */
    int64_t counts[RK_CAP_COUNT];
};

/* One message of the recursion, and its current field. */
struct level {
    const struct level *up;
    const struct rk_record *record;
    const struct rk_field *row;
    const ProtobufCFieldDescriptor *field;
};

struct span {
    const uint8_t *data;
    size_t bytes;
};

static void append_path(struct rk_str *out, const struct level *level)
{
    if (level->up) {
        append_path(out, level->up);
        rk_str_append(out, ".");
    }
    rk_str_append(out, level->row->name);
}

static struct rk_status *bad_field(rk_code_t code, const struct level *level, const char *problem)
{
    struct rk_str path = {0};
    struct rk_status *st;

    append_path(&path, level);
    st = RK_FAIL_REASON(code, "BAD_FIELD", "%s: %s", rk_str_text(&path), problem);
    st = rk_status_at_field(st, rk_str_text(&path));
    rk_str_fini(&path);
    return st;
}

static struct rk_status *truncated(const struct level *level)
{
    return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "%s: not a protobuf message, or truncated",
                          level->record->descriptor->name);
}

static bool read_varint(struct span *in, size_t max_bytes, uint64_t *out)
{
    uint64_t value = 0;

    for (size_t i = 0; i < max_bytes && i < in->bytes; i++) {
        value |= (uint64_t)(in->data[i] & 0x7f) << (7 * i);
        if (in->data[i] & 0x80)
            continue;
        in->data += i + 1;
        in->bytes -= i + 1;
        *out = value;
        return true;
    }
    return false;
}

/* Takes the value of a field of that wire type; *number holds a varint's value. */
static bool read_value(struct span *in, uint32_t wire_type, struct span *value, uint64_t *number)
{
    uint64_t bytes;

    *number = 0;
    switch (wire_type) {
    case WIRE_VARINT:
        value->data = in->data;
        if (!read_varint(in, MAX_VARINT_BYTES, number))
            return false;
        value->bytes = (size_t)(in->data - value->data);
        return true;
    case WIRE_FIXED64:
        bytes = 8;
        break;
    case WIRE_FIXED32:
        bytes = 4;
        break;
    case WIRE_LENGTH:
        if (!read_varint(in, MAX_KEY_BYTES, &bytes))
            return false;
        break;
    default:
        return false;
    }
    if (bytes > in->bytes)
        return false;
    *value = (struct span){in->data, (size_t)bytes};
    in->data += bytes;
    in->bytes -= bytes;
    return true;
}

static uint32_t wire_type_of(ProtobufCType type)
{
    switch (type) {
    case PROTOBUF_C_TYPE_FIXED32:
    case PROTOBUF_C_TYPE_SFIXED32:
    case PROTOBUF_C_TYPE_FLOAT:
        return WIRE_FIXED32;
    case PROTOBUF_C_TYPE_FIXED64:
    case PROTOBUF_C_TYPE_SFIXED64:
    case PROTOBUF_C_TYPE_DOUBLE:
        return WIRE_FIXED64;
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
    case PROTOBUF_C_TYPE_MESSAGE:
        return WIRE_LENGTH;
    default:
        return WIRE_VARINT;
    }
}

static struct rk_status *count_surplus(struct walk *walk, const struct level *level)
{
    if (++walk->num_surplus > RK_LIMIT_UNKNOWN_FIELDS)
        return RK_FAIL_REASON(RK_RESOURCE_EXHAUSTED, "BAD_FIELD",
                              "%s: more than %d unknown or repeated single fields",
                              level->record->descriptor->name, RK_LIMIT_UNKNOWN_FIELDS);
    return NULL;
}

static struct rk_status *count_entry(struct walk *walk, const struct level *level, rk_cap_t cap,
                                     size_t *in_list)
{
    const struct rk_field *row = level->row;
    char problem[128];

    if (++walk->counts[cap] > caps[cap].max) {
        snprintf(problem, sizeof(problem), "more than %" PRId64 " %s in one message", caps[cap].max,
                 caps[cap].what);
        return bad_field(RK_RESOURCE_EXHAUSTED, level, problem);
    }
    if (++*in_list > row->max_entries && row->max_entries) {
        snprintf(problem, sizeof(problem), "more than %zu entries", row->max_entries);
        return bad_field(RK_RESOURCE_EXHAUSTED, level, problem);
    }
    return NULL;
}

static struct rk_status *check_text(const struct level *level, struct span value)
{
    const struct rk_field *row = level->row;
    char problem[96];

    if (row->max_bytes && value.bytes > row->max_bytes) {
        snprintf(problem, sizeof(problem), "%zu bytes, at most %zu are allowed", value.bytes, row->max_bytes);
        return bad_field(RK_RESOURCE_EXHAUSTED, level, problem);
    }
    if (row->kind != RK_FIELD_BYTES && !rk_utf8_is_valid((const char *)value.data, value.bytes))
        return bad_field(RK_INVALID_ARGUMENT, level, "not valid UTF-8 text without NUL");
    return NULL;
}

static struct rk_status *check_number(const struct level *level, uint64_t number)
{
    rk_field_kind_t kind = level->row->kind;
    char problem[96];

    if (kind == RK_FIELD_ENUM &&
        !protobuf_c_enum_descriptor_get_value(level->field->descriptor, (int)number)) {
        snprintf(problem, sizeof(problem), "unknown value %d", (int)number);
        return bad_field(RK_INVALID_ARGUMENT, level, problem);
    }
    if ((kind == RK_FIELD_INDEX || kind == RK_FIELD_INDEXES) && (uint32_t)number > INT32_MAX) {
        snprintf(problem, sizeof(problem), "%" PRIu64 " is out of range", number);
        return bad_field(RK_INVALID_ARGUMENT, level, problem);
    }
    return NULL;
}

/* A packed list of varints. */
static struct rk_status *check_packed(struct walk *walk, const struct level *level, struct span value,
                                      size_t *in_list)
{
    uint64_t number;

    while (value.bytes) {
        if (!read_varint(&value, MAX_VARINT_BYTES, &number))
            return truncated(level);
        RK_TRY(check_number(level, number));
        RK_TRY(count_entry(walk, level, level->row->cap, in_list));
    }
    return NULL;
}

static struct rk_status *check_message(struct walk *walk, struct level *level, struct span in);

static struct rk_status *check_field(struct walk *walk, const struct level *level, uint32_t wire_type,
                                     struct span value, uint64_t number, size_t *in_list)
{
    bool is_repeated = rk_field_is_repeated(level->row);
    uint32_t expected = wire_type_of(level->field->type);
    struct level below = {.up = level, .record = level->row->record};

    if (is_repeated && wire_type == WIRE_LENGTH && expected == WIRE_VARINT)
        return check_packed(walk, level, value, in_list);
    if (wire_type != expected)
        return bad_field(RK_INVALID_ARGUMENT, level, "wrong wire type");
    /* Unpacked integers cost as much as fields; encoders pack long lists. */
    if (is_repeated)
        RK_TRY(count_entry(walk, level, level->row->cap == RK_CAP_BYTES ? RK_CAP_LIST : level->row->cap,
                           in_list));
    switch (level->field->type) {
    case PROTOBUF_C_TYPE_MESSAGE:
        return check_message(walk, &below, value);
    case PROTOBUF_C_TYPE_STRING:
    case PROTOBUF_C_TYPE_BYTES:
        return check_text(level, value);
    default:
        return check_number(level, number);
    }
}

static struct rk_status *check_message(struct walk *walk, struct level *level, struct span in)
{
    const struct rk_record *record = level->record;
    size_t in_list[MAX_RECORD_FIELDS] = {0};
    uint64_t seen = 0, key, number;
    struct span value;

    RK_ASSERT(record->num_fields <= MAX_RECORD_FIELDS);
    while (in.bytes) {
        size_t i;

        if (!read_varint(&in, MAX_KEY_BYTES, &key) || key >> 3 == 0 || key > UINT32_MAX ||
            !read_value(&in, (uint32_t)(key & 7), &value, &number))
            return truncated(level);
        walk->num_fields++;
        level->field = protobuf_c_message_descriptor_get_field(record->descriptor, (unsigned)(key >> 3));
        level->row = level->field ? rk_record_find_row(record, level->field) : NULL;
        if (!level->row) {
            RK_TRY(count_surplus(walk, level));
            continue;
        }
        i = (size_t)(level->row - record->fields);
        if (!rk_field_is_repeated(level->row) && (seen & (1ull << i)))
            RK_TRY(count_surplus(walk, level));
        seen |= 1ull << i;
        RK_TRY(check_field(walk, level, (uint32_t)(key & 7), value, number, &in_list[i]));
    }
    return NULL;
}

struct rk_status *rk_wire_check(const struct rk_record *record, const void *data, size_t bytes,
                                uint64_t *num_fields)
{
    struct walk walk = {0};
    struct level top = {.record = record};

    RK_TRY(check_message(&walk, &top, (struct span){data, bytes}));
    *num_fields = walk.num_fields;
    return NULL;
}
