/* Columns and batches inside dispatch/.
 *
 * Bytes live in counted storage that views share: a run of rows of a column is another column over the same
 * storage. Counts are atomic, because the last chunk of a call may be released on a thread of gRPC;
 * everything else belongs to one thread at a time. */
#ifndef RK_BATCH_INTERNAL_H
#define RK_BATCH_INTERNAL_H

#include <stdatomic.h>

#include "base/rk_array.h"
#include "dispatch/rk_batch.h"

struct rk_storage {
    atomic_int refs;
    size_t capacity;
    struct rk_storage *next; /* while it is kept for another column */
    int64_t freed_ns;        /* likewise */
    _Alignas(16) unsigned char data[];
};

struct rk_column {
    atomic_int refs;
    struct rk_column_info info;
    struct rk_storage *storage;
    size_t offset;       /* DENSE, PACKED: begin of the values in the storage */
    size_t bytes;        /* DENSE, PACKED: of the values */
    int64_t *cu_seqlens; /* PACKED: [num_rows + 1], from 0; owned */
    const char **texts;  /* STRINGS: [num_rows] into the storage; owned */
};

/* One meta object, shared by the batches that were cut from each other until one of them writes. */
struct rk_batch_meta {
    atomic_int refs;
    struct rk_json *object;
};

struct rk_batch_column {
    char *name;
    struct rk_column *column;
};

struct rk_batch {
    int64_t num_rows;
    RK_ARRAY(struct rk_batch_column) columns;
    struct rk_batch_meta *meta;
};

typedef enum rk_fill {
    RK_FILL_ZERO,
    RK_FILL_NONE /* undefined content: for bytes that will all be written */
} rk_fill_t;

/* --- storage.c --- */
struct rk_status *rk_storage_create(struct rk_storage **out, size_t bytes, rk_fill_t fill) RK_NODISCARD;
void rk_storage_release(struct rk_storage *storage); /* NULL is a no-op */

/* --- column.c --- */
/* As rk_column_create_dense or, with num_cu_seqlens > 0, rk_column_create_packed, but the values are not
 * written. */
struct rk_status *rk_column_from_spec(struct rk_column **out, const struct rk_tensor_spec *spec) RK_NODISCARD;
/* A column without values: info and storage (retained) are set, the caller fills the rest. */
struct rk_column *rk_column_new(const struct rk_column_info *info, struct rk_storage *storage);
/* Bytes of one row of a DENSE column, of one value of a PACKED one. */
size_t rk_column_row_bytes(const struct rk_column *column);
/* "dense f32 [4, 3]", "packed i64 [9]", "strings", "JSON strings" for messages; rk_free it. */
char *rk_column_describe(const struct rk_column *column);

/* --- column_rows.c --- */
/* Rows [begin, begin + count) over the same storage. */
struct rk_status *rk_column_view(struct rk_column **out, const struct rk_column *column, int64_t begin,
                                 int64_t count) RK_NODISCARD;
/* Copies of rows by index; all indices are below num_rows. */
struct rk_status *rk_column_take_rows(struct rk_column **out, const struct rk_column *column,
                                      const int64_t *rows, int64_t count) RK_NODISCARD;
/* Rows appended; INVALID_ARGUMENT describes the two columns that differ. */
struct rk_status *rk_column_concat(struct rk_column **out, const struct rk_column *const *parts,
                                   int64_t num_parts) RK_NODISCARD;

/* --- batch.c --- */
/* An empty batch that shares the meta of `source`. */
struct rk_batch *rk_batch_new_like(const struct rk_batch *source, int64_t num_rows);
/* Replaces the meta object; steals it. */
void rk_batch_take_meta(struct rk_batch *batch, struct rk_json *object);
struct rk_status *rk_batch_check_name(const char *name) RK_NODISCARD;
int64_t rk_batch_find_index(const struct rk_batch *batch, const char *name); /* -1 when absent */

#endif
