/* Conversion between plain structs and generated messages, driven by the tables of record_internal.h.
 *
 * Unpacking: rk_wire_check, then protobuf-c into a scratch arena with a budget, then copied into the caller's
 * arena. The copy is compact and refers to nothing else; protobuf-c's structs and bookkeeping are freed at
 * once. Packing: messages are built in a scratch arena, their strings and arrays borrowed from the plain
 * structs.
 */
#include "proto/record_internal.h"

#include "base/rk_assert.h"
#include "proto/limits.h"

#include <string.h>

/* Small enough for malloc's cache of the thread: most messages are small. */
#define SCRATCH_BLOCK_BYTES 960

_Static_assert(sizeof(rk_dtype_t) == sizeof(int), "enums are copied as int");
_Static_assert(sizeof(protobuf_c_boolean) == sizeof(int),
               "enums and booleans have one size in generated structs");

/* The linker merges equal literals, so that equal names usually are one. */
static bool has_name(const struct rk_field *row, const ProtobufCFieldDescriptor *field)
{
    return row->name == field->name || strcmp(row->name, field->name) == 0;
}

bool rk_field_is_repeated(const struct rk_field *field)
{
    return field->kind >= RK_FIELD_U32S;
}

/* A table has the fields in the order of the .proto file, as a rule, and protobuf-c has them by number: so
 * the field is usually at the same position. */
const struct rk_field *rk_record_find_row(const struct rk_record *record,
                                          const ProtobufCFieldDescriptor *field)
{
    size_t place = (size_t)(field - record->descriptor->fields);

    if (place < record->num_fields && has_name(&record->fields[place], field))
        return &record->fields[place];
    for (size_t i = 0; i < record->num_fields; i++) {
        if (has_name(&record->fields[i], field))
            return &record->fields[i];
    }
    return NULL;
}

static const ProtobufCFieldDescriptor *descriptor_of(const struct rk_record *record,
                                                     const struct rk_field *row)
{
    size_t place = (size_t)(row - record->fields);
    const ProtobufCFieldDescriptor *field = &record->descriptor->fields[place];

    if (place >= record->descriptor->n_fields || !has_name(row, field))
        field = protobuf_c_message_descriptor_get_field_by_name(record->descriptor, row->name);
    RK_ASSERT(field != NULL);
    RK_ASSERT((field->label == PROTOBUF_C_LABEL_REPEATED) == rk_field_is_repeated(row));
    return field;
}

static int32_t kind_of(const struct rk_record *record, const void *value)
{
    int32_t kind;

    memcpy(&kind, (const char *)value + record->kind_offset, sizeof(kind));
    return kind;
}

static size_t count_of(const struct rk_field *row, const void *value)
{
    const char *at = (const char *)value + row->count_offset;
    int64_t count;

    if (row->count_bytes == sizeof(int32_t))
        count = *(const int32_t *)at;
    else
        count = *(const int64_t *)at;
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

/* --- plain struct -> generated message
 * ------------------------------------------------------------------------- */

/* Control plane: running out of memory here ends the process, like rk_malloc. */
static void *must_alloc(struct rk_arena *scratch, size_t count, size_t bytes)
{
    void *ptr = rk_arena_calloc(scratch, count, bytes);

    RK_ASSERT(ptr != NULL);
    return ptr;
}

static ProtobufCMessage *build(const struct rk_record *record, const void *value, struct rk_arena *scratch);

static void build_list(const struct rk_field *row, void *list, const void *member, size_t count,
                       struct rk_arena *scratch)
{
    const char *items;

    memcpy(&items, member, sizeof(items));
    if (row->kind == RK_FIELD_RECORDS) {
        ProtobufCMessage **messages = must_alloc(scratch, count, sizeof(*messages));

        for (size_t i = 0; i < count; i++)
            messages[i] = build(row->record, items + i * row->record->struct_bytes, scratch);
        memcpy(list, &messages, sizeof(messages));
    } else if (row->kind == RK_FIELD_TEXTS) {
        const char **texts = must_alloc(scratch, count, sizeof(*texts));

        for (size_t i = 0; i < count; i++) {
            memcpy(&texts[i], items + i * sizeof(char *), sizeof(char *));
            if (!texts[i])
                texts[i] = "";
        }
        memcpy(list, &texts, sizeof(texts));
    } else {
        memcpy(list, &items, sizeof(items)); /* integers have the same layout on both sides */
    }
}

static void build_one(const struct rk_field *row, void *dst, const void *member, struct rk_arena *scratch)
{
    const char *text;
    ProtobufCMessage *message;
    const struct rk_bytes *bytes;

    switch (row->kind) {
    case RK_FIELD_BOOL:
        *(protobuf_c_boolean *)dst = *(const bool *)member;
        break;
    case RK_FIELD_I32:
    case RK_FIELD_U32:
    case RK_FIELD_INDEX:
    case RK_FIELD_ENUM:
        memcpy(dst, member, 4);
        break;
    case RK_FIELD_I64:
    case RK_FIELD_U64:
    case RK_FIELD_REAL:
        memcpy(dst, member, 8);
        break;
    case RK_FIELD_TEXT:
        memcpy(&text, member, sizeof(text));
        text = text ? text : "";
        memcpy(dst, &text, sizeof(text));
        break;
    case RK_FIELD_CHARS:
        text = member;
        memcpy(dst, &text, sizeof(text));
        break;
    case RK_FIELD_BYTES:
        bytes = member;
        *(ProtobufCBinaryData *)dst =
            (ProtobufCBinaryData){.len = bytes->bytes, .data = (uint8_t *)bytes->data};
        break;
    default:
        RK_ASSERT(row->kind == RK_FIELD_RECORD);
        message = build(row->record, member, scratch);
        /* A zero struct is an absent message, except for members of a oneof. */
        if (row->selected_kind || protobuf_c_message_get_packed_size(message) > 0)
            memcpy(dst, &message, sizeof(message));
        break;
    }
}

static ProtobufCMessage *build(const struct rk_record *record, const void *value, struct rk_arena *scratch)
{
    ProtobufCMessage *message = must_alloc(scratch, 1, record->descriptor->sizeof_message);

    record->descriptor->message_init(message);
    for (size_t i = 0; i < record->num_fields; i++) {
        const struct rk_field *row = &record->fields[i];
        const ProtobufCFieldDescriptor *field = descriptor_of(record, row);
        char *quantifier = (char *)message + field->quantifier_offset;
        const char *member = (const char *)value + row->offset;

        if (rk_field_is_repeated(row)) {
            size_t count = count_of(row, value);

            memcpy(quantifier, &count, sizeof(count));
            if (count > 0)
                build_list(row, (char *)message + field->offset, member, count, scratch);
            continue;
        }
        if (row->selected_kind) {
            RK_ASSERT(record->has_kind);
            if (kind_of(record, value) != row->selected_kind)
                continue;
            memcpy(quantifier, &field->id, sizeof(field->id));
        }
        build_one(row, (char *)message + field->offset, member, scratch);
    }
    return message;
}

void rk_record_pack(struct rk_str *out, const struct rk_record *record, const void *value)
{
    struct rk_arena *scratch = rk_arena_create(SCRATCH_BLOCK_BYTES, 0);
    const ProtobufCMessage *message = build(record, value, scratch);
    size_t bytes = protobuf_c_message_get_packed_size(message);
    uint8_t *packed = rk_arena_alloc(scratch, bytes);

    RK_ASSERT(packed != NULL || bytes == 0);
    rk_str_append_bytes(out, (const char *)packed, protobuf_c_message_pack(message, packed));
    rk_arena_destroy(scratch);
}

/* --- generated message -> plain struct
 * ------------------------------------------------------------------------- */

static struct rk_status *alloc_items(void **out, struct rk_arena *arena, size_t count, size_t bytes)
{
    *out = rk_arena_calloc(arena, count, bytes);
    if (!*out)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "no memory for %zu entries of a message", count);
    return NULL;
}

static struct rk_status *copy_bytes(void *out, struct rk_arena *arena, const void *data, size_t bytes)
{
    static const char empty[1];
    const void *none = empty;
    void *copy;

    if (bytes == 0) {
        memcpy(out, &none, sizeof(none));
        return NULL;
    }
    RK_TRY(alloc_items(&copy, arena, 1, bytes + 1));
    memcpy(copy, data, bytes);
    memcpy(out, &copy, sizeof(copy));
    return NULL;
}

static struct rk_status *load(void *value, const struct rk_record *record, const ProtobufCMessage *message,
                              struct rk_arena *arena);

static struct rk_status *load_list(const struct rk_field *row, void *member, const void *list, size_t count,
                                   struct rk_arena *arena)
{
    static const size_t item_bytes[] = {
        [RK_FIELD_U32S] = 4, [RK_FIELD_INDEXES] = 4, [RK_FIELD_I64S] = 8, [RK_FIELD_TEXTS] = sizeof(char *)};
    size_t bytes = row->kind == RK_FIELD_RECORDS ? row->record->struct_bytes : item_bytes[row->kind];
    const char *src;
    void *list_copy;
    char *items;

    memcpy(&src, list, sizeof(src));
    RK_TRY(alloc_items(&list_copy, arena, count, bytes));
    memcpy(member, &list_copy, sizeof(list_copy));
    items = list_copy;
    if (row->kind == RK_FIELD_RECORDS) {
        for (size_t i = 0; i < count; i++)
            RK_TRY(load(items + i * bytes, row->record, ((ProtobufCMessage *const *)(const void *)src)[i],
                        arena));
    } else if (row->kind == RK_FIELD_TEXTS) {
        for (size_t i = 0; i < count; i++) {
            const char *text = ((char *const *)(const void *)src)[i];

            RK_TRY(copy_bytes(items + i * bytes, arena, text, strlen(text)));
        }
    } else {
        memcpy(items, src, count * bytes);
    }
    return NULL;
}

static struct rk_status *load_one(const struct rk_field *row, void *member, const void *src,
                                  struct rk_arena *arena)
{
    const ProtobufCBinaryData *bytes;
    const ProtobufCMessage *message;
    const char *text;

    switch (row->kind) {
    case RK_FIELD_BOOL:
        *(bool *)member = *(const protobuf_c_boolean *)src != 0;
        return NULL;
    case RK_FIELD_I32:
    case RK_FIELD_U32:
    case RK_FIELD_INDEX:
    case RK_FIELD_ENUM:
        memcpy(member, src, 4);
        return NULL;
    case RK_FIELD_I64:
    case RK_FIELD_U64:
    case RK_FIELD_REAL:
        memcpy(member, src, 8);
        return NULL;
    case RK_FIELD_TEXT:
        memcpy(&text, src, sizeof(text));
        return copy_bytes(member, arena, text, strlen(text));
    case RK_FIELD_CHARS:
        memcpy(&text, src, sizeof(text));
        RK_ASSERT(strlen(text) <= row->max_bytes);
        memcpy(member, text, strlen(text) + 1);
        return NULL;
    case RK_FIELD_BYTES:
        bytes = src;
        ((struct rk_bytes *)member)->bytes = bytes->len;
        return copy_bytes(&((struct rk_bytes *)member)->data, arena, bytes->data, bytes->len);
    default:
        RK_ASSERT(row->kind == RK_FIELD_RECORD);
        memcpy(&message, src, sizeof(message));
        return load(member, row->record, message, arena);
    }
}

/* An absent message: `value` is zero, its texts are empty. */
static struct rk_status *load_absent(void *value, const struct rk_record *record, struct rk_arena *arena)
{
    for (size_t i = 0; i < record->num_fields; i++) {
        const struct rk_field *row = &record->fields[i];
        char *member = (char *)value + row->offset;

        if (row->selected_kind)
            continue;
        if (row->kind == RK_FIELD_TEXT)
            RK_TRY(copy_bytes(member, arena, NULL, 0));
        else if (row->kind == RK_FIELD_BYTES)
            RK_TRY(copy_bytes(&((struct rk_bytes *)(void *)member)->data, arena, NULL, 0));
        else if (row->kind == RK_FIELD_RECORD)
            RK_TRY(load_absent(member, row->record, arena));
    }
    return record->check ? record->check(value) : NULL;
}

/* message NULL: an absent one. */
static struct rk_status *load(void *value, const struct rk_record *record, const ProtobufCMessage *message,
                              struct rk_arena *arena)
{
    if (!message)
        return load_absent(value, record, arena);
    for (size_t i = 0; i < record->num_fields; i++) {
        const struct rk_field *row = &record->fields[i];
        const ProtobufCFieldDescriptor *field = descriptor_of(record, row);
        const char *quantifier = (const char *)message + field->quantifier_offset;
        const char *src = (const char *)message + field->offset;
        char *member = (char *)value + row->offset;
        uint32_t selected;
        size_t count;

        if (rk_field_is_repeated(row)) {
            memcpy(&count, quantifier, sizeof(count));
            set_count(row, value, count);
            if (count > 0)
                RK_TRY(load_list(row, member, src, count, arena));
            continue;
        }
        if (row->selected_kind) {
            RK_ASSERT(record->has_kind);
            memcpy(&selected, quantifier, sizeof(selected));
            if (selected != field->id)
                continue;
            memcpy((char *)value + record->kind_offset, &row->selected_kind, sizeof(row->selected_kind));
        }
        RK_TRY(load_one(row, member, src, arena));
    }
    return record->check ? record->check(value) : NULL;
}

static void *scratch_alloc(void *arena, size_t bytes)
{
    return rk_arena_alloc(arena, bytes);
}

static void scratch_free(void *arena, void *ptr)
{
    (void)arena;
    (void)ptr;
}

struct rk_status *rk_record_unpack(void *value, const struct rk_record *record, struct rk_arena *arena,
                                   const void *data, size_t bytes)
{
    struct rk_status *st = NULL;
    struct rk_arena *scratch = NULL;
    ProtobufCAllocator allocator = {.alloc = scratch_alloc, .free = scratch_free};
    ProtobufCMessage *message;
    uint64_t num_fields;
    size_t budget;

    memset(value, 0, record->struct_bytes);
    if (bytes > RK_LIMIT_MESSAGE_BYTES)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%s: %zu bytes, at most %d are allowed",
                       record->descriptor->name, bytes, RK_LIMIT_MESSAGE_BYTES);
    RK_TRY(rk_wire_check(record, data, bytes, &num_fields));
    budget = RK_LIMIT_UNPACK_EXTRA_BYTES + bytes * RK_LIMIT_UNPACK_FACTOR +
             (size_t)num_fields * RK_LIMIT_UNPACK_FIELD_BYTES;
    scratch = rk_arena_create(SCRATCH_BLOCK_BYTES, budget);
    allocator.allocator_data = scratch;
    message = protobuf_c_message_unpack(record->descriptor, &allocator, bytes, data);
    if (!message)
        RK_TRY_GOTO(st,
                    RK_FAIL(RK_RESOURCE_EXHAUSTED, "%s: unpacking needs more than %zu bytes",
                            record->descriptor->name, budget),
                    out);
    RK_TRY_GOTO(st, load(value, record, message, arena), out);
out:
    if (st)
        memset(value, 0, record->struct_bytes);
    rk_arena_destroy(scratch);
    return st;
}
