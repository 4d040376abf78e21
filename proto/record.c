/* Conversion between plain structs and the wire, driven by the tables of messages.def.
 *
 * Decoding follows rk_wire_check, so the bytes are known to be valid: a message is walked twice, to count the
 * entries of its lists and to store its fields. The result is compact and refers to nothing else. */
#include "proto/record_internal.h"

#include <string.h>

#include "base/rk_assert.h"
#include "proto/limits.h"

static const struct {
    rk_wire_type_t wire_type;
    size_t bytes; /* in the plain struct */
} kinds[] = {
    [RK_FIELD_BOOL] = {RK_WIRE_VARINT, sizeof(bool)},
    [RK_FIELD_I32] = {RK_WIRE_VARINT, 4},
    [RK_FIELD_U32] = {RK_WIRE_VARINT, 4},
    [RK_FIELD_INDEX] = {RK_WIRE_VARINT, 4},
    [RK_FIELD_I64] = {RK_WIRE_VARINT, 8},
    [RK_FIELD_U64] = {RK_WIRE_VARINT, 8},
    [RK_FIELD_ZIGZAG] = {RK_WIRE_VARINT, 8},
    [RK_FIELD_FIXED64] = {RK_WIRE_FIXED64, 8},
    [RK_FIELD_REAL] = {RK_WIRE_FIXED64, 8},
    [RK_FIELD_ENUM] = {RK_WIRE_VARINT, 4},
    [RK_FIELD_TEXT] = {RK_WIRE_LENGTH, sizeof(char *)},
    [RK_FIELD_CHARS] = {RK_WIRE_LENGTH, 1},
    [RK_FIELD_BYTES] = {RK_WIRE_LENGTH, sizeof(struct rk_bytes)},
    [RK_FIELD_RECORD] = {RK_WIRE_LENGTH, 0},
};

_Static_assert(sizeof(rk_dtype_t) == 4, "enums are copied as 32 bits");

rk_wire_type_t rk_field_wire_type(const struct rk_field *field)
{
    return kinds[field->kind].wire_type;
}

bool rk_field_is_packed(const struct rk_field *field, uint32_t wire_type)
{
    return field->is_list && wire_type == RK_WIRE_LENGTH && rk_field_wire_type(field) == RK_WIRE_VARINT;
}

const struct rk_field *rk_record_find_row(const struct rk_record *record, uint32_t number)
{
    for (size_t i = 0; i < record->num_fields; i++) {
        if (record->fields[i].number == number)
            return &record->fields[i];
    }
    return NULL;
}

static size_t item_bytes_of(const struct rk_field *row)
{
    return row->kind == RK_FIELD_RECORD ? row->record()->struct_bytes : kinds[row->kind].bytes;
}

static size_t count_of(const struct rk_field *row, const void *value)
{
    const char *at = (const char *)value + row->count_offset;
    int64_t count = row->count_bytes == sizeof(int32_t) ? *(const int32_t *)at : *(const int64_t *)at;

    RK_ASSERT(count >= 0);
    return (size_t)count;
}

static void set_count(const struct rk_field *row, void *value, size_t count)
{
    char *at = (char *)value + row->count_offset;

    if (row->count_bytes == sizeof(int32_t))
        *(int32_t *)at = (int32_t)count;
    else
        *(int64_t *)at = (int64_t)count;
}

/* --- encoding --- */

/* The number of a member as a varint or as 8 bytes. */
static uint64_t load_number(rk_field_kind_t kind, const void *member)
{
    uint32_t narrow;
    uint64_t wide;

    switch (kind) {
    case RK_FIELD_BOOL:
        return *(const bool *)member;
    case RK_FIELD_I32:
    case RK_FIELD_ENUM:
        return (uint64_t)(int64_t)(*(const int32_t *)member);
    case RK_FIELD_U32:
    case RK_FIELD_INDEX:
        memcpy(&narrow, member, sizeof(narrow));
        return narrow;
    default:
        memcpy(&wide, member, sizeof(wide));
        if (kind == RK_FIELD_ZIGZAG)
            wide = wide << 1 ^ (wide >> 63 ? UINT64_MAX : 0);
        return wide;
    }
}

static struct rk_bytes load_bytes(rk_field_kind_t kind, const void *member)
{
    const char *text = member;

    if (kind == RK_FIELD_BYTES)
        return *(const struct rk_bytes *)member;
    if (kind == RK_FIELD_TEXT)
        memcpy(&text, member, sizeof(text));
    return (struct rk_bytes){(const uint8_t *)text, text ? strlen(text) : 0};
}

/* Inserts the length of what follows `at`. */
static void insert_length(struct rk_str *out, size_t at)
{
    uint8_t length[RK_WIRE_VARINT_BYTES_MAX];
    size_t body = out->bytes - at, bytes = rk_wire_varint(length, body);

    rk_str_append_bytes(out, (const char *)length, bytes); /* makes room */
    memmove(out->text + at + bytes, out->text + at, body);
    memcpy(out->text + at, length, bytes);
}

/* A field with the value 0 is absent, except in a list or a oneof (is_kept). */
static void put_one(struct rk_str *out, const struct rk_field *row, const void *member, bool is_kept)
{
    size_t begin = out->bytes, body;
    struct rk_bytes bytes;
    uint64_t number;

    if (row->kind == RK_FIELD_RECORD) {
        rk_wire_put_key(out, row->number, RK_WIRE_LENGTH);
        body = out->bytes;
        rk_record_pack(out, row->record(), member);
        if (out->bytes > body || is_kept)
            insert_length(out, body);
        else
            out->text[out->bytes = begin] = '\0';
    } else if (rk_field_wire_type(row) == RK_WIRE_LENGTH) {
        bytes = load_bytes(row->kind, member);
        if (bytes.bytes || is_kept)
            rk_wire_put_bytes(out, row->number, bytes.data, bytes.bytes);
    } else {
        number = load_number(row->kind, member);
        if (!number && !is_kept)
            return;
        rk_wire_put_key(out, row->number, rk_field_wire_type(row));
        if (rk_field_wire_type(row) == RK_WIRE_FIXED64)
            rk_wire_put_fixed(out, number, 8);
        else
            rk_wire_put_varint(out, number);
    }
}

static void put_packed(struct rk_str *out, const struct rk_field *row, const char *items, size_t count)
{
    uint8_t block[512];
    size_t used = 0, body;

    rk_wire_put_key(out, row->number, RK_WIRE_LENGTH);
    body = out->bytes;
    for (size_t i = 0; i < count; i++) {
        used += rk_wire_varint(block + used, load_number(row->kind, items + i * kinds[row->kind].bytes));
        if (i + 1 < count && used + RK_WIRE_VARINT_BYTES_MAX <= sizeof(block))
            continue;
        rk_str_append_bytes(out, (const char *)block, used);
        used = 0;
    }
    insert_length(out, body);
}

static void put_list(struct rk_str *out, const struct rk_field *row, const void *value)
{
    size_t count = count_of(row, value), bytes = item_bytes_of(row);
    const char *items;

    memcpy(&items, (const char *)value + row->offset, sizeof(items));
    if (count > 0 && rk_field_wire_type(row) == RK_WIRE_VARINT) {
        put_packed(out, row, items, count);
        return;
    }
    for (size_t i = 0; i < count; i++)
        put_one(out, row, items + i * bytes, true);
}

void rk_record_pack(struct rk_str *out, const struct rk_record *record, const void *value)
{
    for (size_t i = 0; i < record->num_fields; i++) {
        const struct rk_field *row = &record->fields[i];
        int32_t kind = 0;

        if (row->is_list) {
            put_list(out, row, value);
            continue;
        }
        if (row->selected_kind) {
            memcpy(&kind, (const char *)value + row->kind_offset, sizeof(kind));
            if (kind != row->selected_kind)
                continue;
        }
        put_one(out, row, (const char *)value + row->offset, kind != 0);
    }
}

/* --- decoding --- */

static struct rk_status *decode(void *value, const struct rk_record *record, struct rk_arena *arena,
                                struct rk_bytes in);

static void store_number(rk_field_kind_t kind, void *member, uint64_t number)
{
    uint32_t narrow = (uint32_t)number;

    if (kind == RK_FIELD_BOOL)
        *(bool *)member = number != 0;
    else if (kinds[kind].bytes == sizeof(narrow))
        memcpy(member, &narrow, sizeof(narrow));
    else {
        if (kind == RK_FIELD_ZIGZAG)
            number = number >> 1 ^ (number & 1 ? UINT64_MAX : 0);
        memcpy(member, &number, sizeof(number));
    }
}

static struct rk_status *store_one(const struct rk_field *row, void *member, struct rk_arena *arena,
                                   const struct rk_wire_field *field)
{
    struct rk_bytes bytes = field->bytes;
    char *copy;

    if (row->kind == RK_FIELD_RECORD)
        return decode(member, row->record(), arena, bytes);
    if (field->type != RK_WIRE_LENGTH) {
        store_number(row->kind, member, field->value);
        return NULL;
    }
    copy = row->kind == RK_FIELD_CHARS ? member : rk_arena_alloc(arena, bytes.bytes + 1);
    if (!copy)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "no memory for %zu bytes of a message", bytes.bytes);
    memcpy(copy, bytes.data, bytes.bytes);
    copy[bytes.bytes] = '\0';
    if (row->kind == RK_FIELD_BYTES)
        *(struct rk_bytes *)member = (struct rk_bytes){(const uint8_t *)copy, bytes.bytes};
    else if (row->kind == RK_FIELD_TEXT)
        memcpy(member, &copy, sizeof(copy));
    return NULL;
}

static struct rk_status *store_entries(const struct rk_field *row, void *value, struct rk_arena *arena,
                                       const struct rk_wire_field *field)
{
    size_t bytes = item_bytes_of(row), count = count_of(row, value);
    struct rk_bytes rest = field->bytes;
    uint64_t number;
    char *items;

    memcpy(&items, (char *)value + row->offset, sizeof(items));
    if (!rk_field_is_packed(row, field->type)) {
        set_count(row, value, count + 1);
        return store_one(row, items + count * bytes, arena, field);
    }
    while (rk_wire_read_varint(&rest, RK_WIRE_VARINT_BYTES_MAX, &number))
        store_number(row->kind, items + count++ * bytes, number);
    set_count(row, value, count);
    return NULL;
}

/* Room for `more` entries, after those of an earlier field of the same message. */
static struct rk_status *grow_list(const struct rk_field *row, void *value, struct rk_arena *arena,
                                   size_t more)
{
    size_t bytes = item_bytes_of(row), count = count_of(row, value);
    void *old, *items = rk_arena_calloc(arena, count + more, bytes);

    if (!items)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "no memory for %zu entries of a message", count + more);
    memcpy(&old, (char *)value + row->offset, sizeof(old));
    if (count)
        memcpy(items, old, count * bytes);
    memcpy((char *)value + row->offset, &items, sizeof(items));
    return NULL;
}

/* Makes room for the entries of all lists. *picked is the last field of a oneof, the one that counts. */
static struct rk_status *make_lists(void *value, const struct rk_record *record, struct rk_arena *arena,
                                    struct rk_bytes in, uint32_t *picked)
{
    size_t counts[RK_RECORD_FIELDS_MAX] = {0};
    struct rk_wire_field field;

    *picked = 0;
    while (rk_wire_next(&in, &field)) {
        const struct rk_field *row = rk_record_find_row(record, field.number);

        if (!row)
            continue;
        if (row->selected_kind)
            *picked = field.number;
        if (!rk_field_is_packed(row, field.type)) {
            counts[row - record->fields]++;
            continue;
        }
        for (size_t i = 0; i < field.bytes.bytes; i++) /* the last byte of a varint has no high bit */
            counts[row - record->fields] += !(field.bytes.data[i] & 0x80);
    }
    for (size_t i = 0; i < record->num_fields; i++) {
        if (record->fields[i].is_list && counts[i])
            RK_TRY(grow_list(&record->fields[i], value, arena, counts[i]));
    }
    return NULL;
}

/* Gives absent texts and messages their values, and checks what is beyond the types. */
static struct rk_status *complete(void *value, const struct rk_record *record, struct rk_arena *arena,
                                  uint64_t seen)
{
    static const char *const none = "";

    for (size_t i = 0; i < record->num_fields; i++) {
        const struct rk_field *row = &record->fields[i];
        char *member = (char *)value + row->offset;
        const char *text;

        if (row->cap == RK_CAP_META)
            RK_TRY(rk_meta_check((const struct rk_meta *)(void *)((char *)value + row->count_offset)));
        if (row->is_list || row->selected_kind)
            continue;
        if (row->kind == RK_FIELD_RECORD && !(seen & 1ull << i))
            RK_TRY(decode(member, row->record(), arena, (struct rk_bytes){0}));
        if (row->kind == RK_FIELD_TEXT || row->kind == RK_FIELD_BYTES) { /* both begin with the pointer */
            memcpy(&text, member, sizeof(text));
            memcpy(member, text ? &text : &none, sizeof(text));
        }
    }
    return record->check ? record->check(value) : NULL;
}

static struct rk_status *decode(void *value, const struct rk_record *record, struct rk_arena *arena,
                                struct rk_bytes in)
{
    struct rk_wire_field field;
    uint32_t picked;
    uint64_t seen = 0;

    RK_TRY(make_lists(value, record, arena, in, &picked));
    while (rk_wire_next(&in, &field)) {
        const struct rk_field *row = rk_record_find_row(record, field.number);

        if (!row || (row->selected_kind && field.number != picked))
            continue;
        seen |= 1ull << (row - record->fields);
        if (row->selected_kind)
            memcpy((char *)value + row->kind_offset, &row->selected_kind, sizeof(row->selected_kind));
        if (row->is_list)
            RK_TRY(store_entries(row, value, arena, &field));
        else
            RK_TRY(store_one(row, (char *)value + row->offset, arena, &field));
    }
    return complete(value, record, arena, seen);
}

struct rk_status *rk_record_unpack(void *value, const struct rk_record *record, struct rk_arena *arena,
                                   const void *data, size_t bytes)
{
    struct rk_status *st;

    memset(value, 0, record->struct_bytes);
    if (bytes > RK_LIMIT_MESSAGE_BYTES)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%s: %zu bytes, at most %d are allowed", record->name, bytes,
                       RK_LIMIT_MESSAGE_BYTES);
    RK_TRY(rk_wire_check(record, data, bytes));
    st = decode(value, record, arena, (struct rk_bytes){data, bytes});
    if (st)
        memset(value, 0, record->struct_bytes);
    return st;
}
