/* First check of received bytes, before anything is allocated for them: text with NULs or invalid UTF-8,
 * unknown enum values, floods of tiny fields or entries. This walk uses the tables of the record, allocates
 * nothing, and recurses only into messages of the record (the schema has no recursive ones; unknown fields
 * are skipped unread). */
#include "proto/record_internal.h"

#include "base/rk_assert.h"
#include "proto/limits.h"

#include <inttypes.h>
#include <stdio.h>

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
    int64_t num_surplus; /* unknown fields, and repeated single ones */
    int64_t counts[RK_CAP_COUNT];
};

/* One message of the recursion, and its current field. */
struct level {
    const struct level *up;
    const struct rk_record *record;
    const struct rk_field *row;
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
                          level->record->name);
}

static struct rk_status *count_surplus(struct walk *walk, const struct level *level)
{
    if (++walk->num_surplus > RK_LIMIT_UNKNOWN_FIELDS)
        return RK_FAIL_REASON(RK_RESOURCE_EXHAUSTED, "BAD_FIELD",
                              "%s: more than %d unknown or repeated single fields", level->record->name,
                              RK_LIMIT_UNKNOWN_FIELDS);
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

static struct rk_status *check_text(const struct level *level, struct rk_bytes value)
{
    const struct rk_field *row = level->row;
    char problem[96];

    if (row->max && value.bytes > row->max) {
        snprintf(problem, sizeof(problem), "%zu bytes, at most %zu are allowed", value.bytes, row->max);
        return bad_field(RK_RESOURCE_EXHAUSTED, level, problem);
    }
    if (row->kind != RK_FIELD_BYTES && !rk_utf8_is_valid((const char *)value.data, value.bytes))
        return bad_field(RK_INVALID_ARGUMENT, level, "not valid UTF-8 text without NUL");
    return NULL;
}

static struct rk_status *check_number(const struct level *level, uint64_t number)
{
    const struct rk_field *row = level->row;
    char problem[96];

    if (row->kind == RK_FIELD_ENUM && number > row->max) {
        snprintf(problem, sizeof(problem), "unknown value %d", (int)number);
        return bad_field(RK_INVALID_ARGUMENT, level, problem);
    }
    if (row->kind == RK_FIELD_INDEX && (uint32_t)number > INT32_MAX) {
        snprintf(problem, sizeof(problem), "%" PRIu64 " is out of range", number);
        return bad_field(RK_INVALID_ARGUMENT, level, problem);
    }
    return NULL;
}

/* A packed list of varints. */
static struct rk_status *check_packed(struct walk *walk, const struct level *level, struct rk_bytes value,
                                      size_t *in_list)
{
    uint64_t number;

    while (value.bytes) {
        if (!rk_wire_read_varint(&value, RK_WIRE_VARINT_BYTES_MAX, &number))
            return truncated(level);
        RK_TRY(check_number(level, number));
        RK_TRY(count_entry(walk, level, level->row->cap, in_list));
    }
    return NULL;
}

static struct rk_status *check_message(struct walk *walk, struct level *level, struct rk_bytes in);

static struct rk_status *check_field(struct walk *walk, const struct level *level,
                                     const struct rk_wire_field *field, size_t *in_list)
{
    const struct rk_field *row = level->row;
    struct level below = {.up = level};

    if (rk_field_is_packed(row, field->type))
        return check_packed(walk, level, field->bytes, in_list);
    if (field->type != rk_field_wire_type(row))
        return bad_field(RK_INVALID_ARGUMENT, level, "wrong wire type");
    /* Unpacked integers cost as much as fields; encoders pack long lists. */
    if (row->is_list)
        RK_TRY(count_entry(walk, level, row->cap == RK_CAP_BYTES ? RK_CAP_LIST : row->cap, in_list));
    if (field->type != RK_WIRE_LENGTH)
        return check_number(level, field->value);
    if (row->kind != RK_FIELD_RECORD)
        return check_text(level, field->bytes);
    below.record = row->record();
    return check_message(walk, &below, field->bytes);
}

static struct rk_status *check_message(struct walk *walk, struct level *level, struct rk_bytes in)
{
    const struct rk_record *record = level->record;
    size_t in_list[RK_RECORD_FIELDS_MAX] = {0};
    struct rk_wire_field field;
    uint64_t seen = 0;

    RK_ASSERT(record->num_fields <= RK_RECORD_FIELDS_MAX);
    while (in.bytes) {
        size_t i;

        if (!rk_wire_next(&in, &field))
            return truncated(level);
        level->row = rk_record_find_row(record, field.number);
        if (!level->row) {
            RK_TRY(count_surplus(walk, level));
            continue;
        }
        i = (size_t)(level->row - record->fields);
        if (!level->row->is_list && (seen & (1ull << i)))
            RK_TRY(count_surplus(walk, level));
        seen |= 1ull << i;
        RK_TRY(check_field(walk, level, &field, &in_list[i]));
    }
    return NULL;
}

struct rk_status *rk_wire_check(const struct rk_record *record, const void *data, size_t bytes)
{
    struct walk walk = {0};
    struct level top = {.record = record};

    return check_message(&walk, &top, (struct rk_bytes){data, bytes});
}
