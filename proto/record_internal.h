/* Records: how a plain struct of rk_messages.h maps to a message that protoc-c generated.
 *
 * A record is a table with one row per field: its name in the .proto file, its kind, and its offset in the
 * plain struct. The data of the wire (number, wire type, offset in the generated struct) comes from
 * protobuf-c's descriptor, found by the name. Three generic walks use the tables: wire_check.c checks
 * received bytes before anything is allocated, record.c converts both ways. A new message is a new table
 * (messages_*.c), no code. */
#ifndef RK_RECORD_INTERNAL_H
#define RK_RECORD_INTERNAL_H

#include <stddef.h>

#include <protobuf-c/protobuf-c.h>

#include "base/rk_arena.h"
#include "base/rk_status.h"
#include "base/rk_str.h"
#include "proto/rk_messages.h"

/* Type on the wire -> type in the plain struct. */
typedef enum rk_field_kind {
    RK_FIELD_BOOL,   /* bool -> bool */
    RK_FIELD_I32,    /* int32 -> int32_t */
    RK_FIELD_U32,    /* uint32, fixed32 -> uint32_t */
    RK_FIELD_INDEX,  /* uint32 -> int32_t: ranks and sizes */
    RK_FIELD_I64,    /* int64, sint64 -> int64_t */
    RK_FIELD_U64,    /* uint64, fixed64 -> uint64_t */
    RK_FIELD_REAL,   /* double -> double */
    RK_FIELD_ENUM,   /* enum -> an enum type with the same values */
    RK_FIELD_TEXT,   /* string -> const char *, never NULL once unpacked */
    RK_FIELD_CHARS,  /* string -> char [max_bytes + 1] */
    RK_FIELD_BYTES,  /* bytes -> struct rk_bytes */
    RK_FIELD_RECORD, /* message -> a struct, zero when absent */
    /* repeated: an array and its count */
    RK_FIELD_U32S,
    RK_FIELD_INDEXES,
    RK_FIELD_I64S,
    RK_FIELD_TEXTS,
    RK_FIELD_RECORDS
} rk_field_kind_t;

/* Limits on the number of entries, each counted over a whole message (limits.h). */
typedef enum rk_cap {
    RK_CAP_BYTES, /* only the size of the message limits it: packed integers */
    RK_CAP_TENSORS,
    RK_CAP_STRINGS,
    RK_CAP_META,
    RK_CAP_MICRO,
    RK_CAP_ROLES,
    RK_CAP_RANKS,
    RK_CAP_METRICS,
    RK_CAP_LIST,
    RK_CAP_COUNT
} rk_cap_t;

struct rk_record;

struct rk_field {
    const char *name; /* in the .proto file */
    rk_field_kind_t kind;
    size_t offset;         /* of the member in the plain struct */
    size_t count_offset;   /* repeated: of its count */
    size_t count_bytes;    /* repeated: 4 or 8 */
    rk_cap_t cap;          /* repeated */
    size_t max_bytes;      /* TEXT, CHARS, BYTES, TEXTS: longest value; 0: the message's size */
    size_t max_entries;    /* repeated: of one list, below the cap; 0: none */
    int32_t selected_kind; /* member of a oneof: value of the struct's kind */
    const struct rk_record *record;
};

struct rk_record {
    const ProtobufCMessageDescriptor *descriptor;
    size_t struct_bytes;
    const struct rk_field *fields;
    size_t num_fields;
    bool has_kind; /* the message has a oneof; its kind (an enum, 0 for none) is at kind_offset */
    size_t kind_offset;
    /* Checks beyond the types; NULL: none. */
    struct rk_status *(*check)(const void *value);
};

#define RK_RECORD(symbol, pb_descriptor, tag, table, ...)                \
    const struct rk_record symbol = {.descriptor = &(pb_descriptor),     \
                                     .struct_bytes = sizeof(struct tag), \
                                     .fields = (table),                  \
                                     .num_fields = RK_ARRAY_LEN(table),  \
                                     ##__VA_ARGS__}
/* A field; `...` are further designated members. */
#define RK_ONE(kind_, tag, pb_name, member, ...)                                                           \
    {                                                                                                      \
        .name = (pb_name), .kind = RK_FIELD_##kind_, .offset = offsetof(struct tag, member), ##__VA_ARGS__ \
    }
#define RK_SUB(tag, pb_name, member, sub, ...) \
    RK_ONE(RECORD, tag, pb_name, member, .record = &(sub), ##__VA_ARGS__)
#define RK_MANY(kind_, tag, pb_name, member, count, cap_, ...)                                        \
    {                                                                                                 \
        .name = (pb_name), .kind = RK_FIELD_##kind_, .offset = offsetof(struct tag, member),          \
        .count_offset = offsetof(struct tag, count), .count_bytes = sizeof(((struct tag *)0)->count), \
        .cap = RK_CAP_##cap_, ##__VA_ARGS__                                                           \
    }
#define RK_SUBS(tag, pb_name, member, count, cap_, sub, ...) \
    RK_MANY(RECORDS, tag, pb_name, member, count, cap_, .record = &(sub), ##__VA_ARGS__)

/* Checks received bytes: wire format, wire types, text, enum values, counts. *num_fields receives the number
 * of fields and entries, including nested ones. Errors name the field by its path. */
struct rk_status *rk_wire_check(const struct rk_record *record, const void *data, size_t bytes,
                                uint64_t *num_fields) RK_NODISCARD;

void rk_record_pack(struct rk_str *out, const struct rk_record *record, const void *value);
/* value has room for record->struct_bytes; zeroed on failure. */
struct rk_status *rk_record_unpack(void *value, const struct rk_record *record, struct rk_arena *arena,
                                   const void *data, size_t bytes) RK_NODISCARD;

/* The row of a field, NULL when the table has none. */
const struct rk_field *rk_record_find_row(const struct rk_record *record,
                                          const ProtobufCFieldDescriptor *field);
bool rk_field_is_repeated(const struct rk_field *field);

/* messages_batch.c */
extern const struct rk_record rk_record_meta_entry;
extern const struct rk_record rk_record_batch_spec;
extern const struct rk_record rk_record_field_info;
/* messages_group.c */
extern const struct rk_record rk_record_fence;
extern const struct rk_record rk_record_rank_info;
/* messages_execute.c */
extern const struct rk_record rk_record_plan;
extern const struct rk_record rk_record_metric;
extern const struct rk_record rk_record_progress;
/* One for each row of RK_MESSAGE_TABLE, in messages_*.c. */
#define X(name) extern const struct rk_record rk_record_##name;
RK_MESSAGE_TABLE(X)
#undef X

/* meta.c: INVALID_ARGUMENT for a key that occurs twice. */
struct rk_status *rk_meta_check(const struct rk_meta *meta) RK_NODISCARD;
struct rk_status *rk_scalar_check(const void *scalar) RK_NODISCARD;

#endif
