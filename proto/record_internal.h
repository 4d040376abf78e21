/* Records: the tables of messages.def. A record has one row per field of a message: its number and name in
 * the .proto file, its kind, its place in the plain struct, its limits. wire_check.c checks received bytes by
 * them before anything is allocated, record.c converts both ways. A new message needs only rows. */
#ifndef RK_RECORD_INTERNAL_H
#define RK_RECORD_INTERNAL_H

#include <stddef.h>

#include "base/rk_arena.h"
#include "base/rk_status.h"
#include "base/rk_str.h"
#include "proto/rk_messages.h"
#include "proto/rk_wire.h"

/* Type on the wire -> type in the plain struct. */
typedef enum rk_field_kind {
    RK_FIELD_BOOL,    /* bool -> bool */
    RK_FIELD_I32,     /* int32 -> int32_t */
    RK_FIELD_U32,     /* uint32 -> uint32_t */
    RK_FIELD_INDEX,   /* uint32 -> int32_t: ranks and sizes */
    RK_FIELD_I64,     /* int64 -> int64_t */
    RK_FIELD_U64,     /* uint64 -> uint64_t */
    RK_FIELD_ZIGZAG,  /* sint64 -> int64_t */
    RK_FIELD_FIXED64, /* fixed64 -> uint64_t */
    RK_FIELD_REAL,    /* double -> double */
    RK_FIELD_ENUM,    /* enum -> an enum type with the same values */
    RK_FIELD_TEXT,    /* string -> const char *, never NULL once unpacked */
    RK_FIELD_CHARS,   /* string -> char [max + 1] */
    RK_FIELD_BYTES,   /* bytes -> struct rk_bytes */
    RK_FIELD_RECORD   /* message -> a struct, zero when absent */
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
    uint32_t number;
    const char *name; /* in the .proto file */
    rk_field_kind_t kind;
    size_t offset; /* of the member in the plain struct */
    size_t max;    /* TEXT, CHARS, BYTES: bytes, 0: the message's size; ENUM: value */
    const struct rk_record *(*record)(void);
    bool is_list; /* the member points to an array */
    size_t count_offset, count_bytes;
    rk_cap_t cap;
    size_t max_entries;    /* of one list, below the cap; 0: none */
    int32_t selected_kind; /* field of a oneof: the value at kind_offset, else 0 */
    size_t kind_offset;
};

struct rk_record {
    const char *name; /* with its package */
    size_t struct_bytes;
    const struct rk_field *fields; /* by number */
    size_t num_fields;
    struct rk_status *(*check)(const void *value); /* checks beyond the types; NULL: none */
};

#define RK_RECORD_FIELDS_MAX 64 /* of one message: one bit each */

/* Checks received bytes: wire format, wire types, text, enum values, counts. Errors name the field by its
 * path. */
struct rk_status *rk_wire_check(const struct rk_record *record, const void *data, size_t bytes) RK_NODISCARD;

void rk_record_pack(struct rk_str *out, const struct rk_record *record, const void *value);
/* value has room for record->struct_bytes; zeroed on failure. */
struct rk_status *rk_record_unpack(void *value, const struct rk_record *record, struct rk_arena *arena,
                                   const void *data, size_t bytes) RK_NODISCARD;

/* The row of a field, NULL when the table has none. */
const struct rk_field *rk_record_find_row(const struct rk_record *record, uint32_t number);
rk_wire_type_t rk_field_wire_type(const struct rk_field *field);
/* Whether this field of a list holds many entries. */
bool rk_field_is_packed(const struct rk_field *field, uint32_t wire_type);

/* messages.c */
const struct rk_record *rk_record_empty(void);
const struct rk_record *rk_record_mesh_spec(void);
#define RK_MESSAGE(tag, name) const struct rk_record *rk_record_##tag(void);
#define RK_DECLARE(declaration)
#define RK_ROW(...)
#define RK_END(check)
#include "proto/messages.def"

/* meta.c: INVALID_ARGUMENT for a key that occurs twice. */
struct rk_status *rk_meta_check(const struct rk_meta *meta) RK_NODISCARD;
struct rk_status *rk_scalar_check(const void *scalar) RK_NODISCARD;

#endif
