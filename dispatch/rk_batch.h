/* rk_batch: verl's DataProto. Named columns with a common first dimension and a meta object.
 *
 * A column is a dense tensor [B, ...] in host memory, a packed one (values + cu_seqlens: row i is
 * values[cu_seqlens[i] .. cu_seqlens[i + 1])), or strings (UTF-8 or JSON). Columns are counted and immutable
 * once they are in a batch, so select, slice and chunk share storage. meta is copied on write: a slice never
 * changes the meta of its source. Not thread-safe, but reference counts are atomic: batches that share
 * columns may be used and destroyed on different threads. Semantics of every operation: docs/dispatch.md. */
#ifndef RK_BATCH_H
#define RK_BATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_dtype.h"
#include "base/rk_json.h"
#include "base/rk_status.h"
#include "proto/rk_messages.h"
#include "proto/rk_methods.h"

RK_BEGIN_DECLS

#define RK_COLUMN_MAX_RANK 4

struct rk_batch;
struct rk_column;

typedef enum rk_column_kind { RK_COLUMN_DENSE, RK_COLUMN_PACKED, RK_COLUMN_STRINGS } rk_column_kind_t;

/* Description of a column. For PACKED, shape is the shape of the values [total, ...]. */
struct rk_column_info {
    rk_column_kind_t kind;
    int64_t num_rows;
    rk_dtype_t dtype; /* unused for STRINGS */
    int32_t rank;
    int64_t shape[RK_COLUMN_MAX_RANK];
    bool is_json; /* STRINGS: each value is JSON text */
};

/* --- columns --- */
/* Zeroed, to be filled through rk_column_data before it is put. shape[0] is the number of rows. */
struct rk_status *rk_column_create_dense(struct rk_column **out, rk_dtype_t dtype, int32_t rank,
                                         const int64_t *shape) RK_NODISCARD;
/* cu_seqlens [num_rows + 1] is copied and checked (from 0, non-decreasing); shape[0] of the values is its
 * last entry. */
struct rk_status *rk_column_create_packed(struct rk_column **out, rk_dtype_t dtype, int64_t num_rows,
                                          const int64_t *cu_seqlens, int32_t rank,
                                          const int64_t *shape) RK_NODISCARD;
/* Copies the strings; JSON text is checked. */
struct rk_status *rk_column_create_strings(struct rk_column **out, int64_t num_rows,
                                           const char *const *values, bool is_json) RK_NODISCARD;
struct rk_column *rk_column_retain(struct rk_column *column);
void rk_column_release(struct rk_column *column); /* NULL is a no-op */
struct rk_column_info rk_column_get_info(const struct rk_column *column);
void *rk_column_data(struct rk_column *column); /* DENSE, PACKED: the values; writable before it is put */
const void *rk_column_values(const struct rk_column *column);
size_t rk_column_bytes(const struct rk_column *column);                    /* of the values */
const int64_t *rk_column_cu_seqlens(const struct rk_column *column);       /* PACKED */
const char *rk_column_string(const struct rk_column *column, int64_t row); /* STRINGS */
/* Shapes, dtypes and bytes equal (NaN equals the same NaN); strings equal. */
bool rk_column_equal(const struct rk_column *a, const struct rk_column *b);

/* --- the batch --- */
struct rk_status *rk_batch_create(struct rk_batch **out, int64_t num_rows) RK_NODISCARD;
void rk_batch_destroy(struct rk_batch *batch); /* NULL is a no-op */
int64_t rk_batch_num_rows(const struct rk_batch *batch);
int64_t rk_batch_num_columns(const struct rk_batch *batch);
const char *rk_batch_name_at(const struct rk_batch *batch, int64_t i); /* insertion order */
struct rk_column *rk_batch_column_at(const struct rk_batch *batch, int64_t i);
struct rk_column *rk_batch_find(const struct rk_batch *batch,
                                const char *name); /* borrowed; NULL when absent */
/* Retains / steals (on failure too) the column. Replaces one of the same name. INVALID_ARGUMENT names column,
 * its rows and the batch's when they differ. */
struct rk_status *rk_batch_put(struct rk_batch *batch, const char *name,
                               struct rk_column *column) RK_NODISCARD;
struct rk_status *rk_batch_put_new(struct rk_batch *batch, const char *name,
                                   struct rk_column *column) RK_NODISCARD;
void rk_batch_remove(struct rk_batch *batch, const char *name); /* no-op when absent */
/* Shorthand: makes a dense column and returns where to write it. dims of rank - 1 follow the rows. */
struct rk_status *rk_batch_add_dense(struct rk_batch *batch, const char *name, rk_dtype_t dtype, int32_t rank,
                                     const int64_t *shape, void **data) RK_NODISCARD;
/* The dense column of that dtype and rank, or INVALID_ARGUMENT naming the actual column. shape may be
 * NULL. */
struct rk_status *rk_batch_get_dense(const struct rk_batch *batch, const char *name, rk_dtype_t dtype,
                                     int32_t rank, int64_t *shape, const void **data) RK_NODISCARD;

/* meta: an object, never NULL. Borrowed for reading; set replaces one entry (steals the value). */
const struct rk_json *rk_batch_meta(const struct rk_batch *batch);
void rk_batch_set_meta(struct rk_batch *batch, const char *key, struct rk_json *value);

/* --- operations. New batches share columns where they can. Name lists are NULL-terminated. --- */
struct rk_status *rk_batch_clone(struct rk_batch **out, const struct rk_batch *batch) RK_NODISCARD;
/* Only these columns (NULL keeps all) and meta keys (NULL keeps all; unknown meta keys are ignored).
 * NOT_FOUND names a missing column. */
struct rk_status *rk_batch_select(struct rk_batch **out, const struct rk_batch *batch,
                                  const char *const *columns, const char *const *meta_keys) RK_NODISCARD;
/* Adds other's columns and meta. Equal names must have equal values; nothing changes on failure. */
struct rk_status *rk_batch_union(struct rk_batch *batch, const struct rk_batch *other) RK_NODISCARD;
/* Python's slice rules; step != 0. */
struct rk_status *rk_batch_slice(struct rk_batch **out, const struct rk_batch *batch, int64_t begin,
                                 int64_t end, int64_t step) RK_NODISCARD;
/* Rows by index, order and repeats kept. OUT_OF_RANGE names the index. */
struct rk_status *rk_batch_select_idxs(struct rk_batch **out, const struct rk_batch *batch,
                                       const int64_t *rows, int64_t num_rows) RK_NODISCARD;
struct rk_status *rk_batch_select_mask(struct rk_batch **out, const struct rk_batch *batch,
                                       const bool *keep) RK_NODISCARD;
/* In place; `order` is a permutation of the rows (checked). */
struct rk_status *rk_batch_reorder(struct rk_batch *batch, const int64_t *order) RK_NODISCARD;
/* k equal parts into out[k]; INVALID_ARGUMENT "only support equal chunk" with size and k otherwise. */
struct rk_status *rk_batch_chunk(struct rk_batch **out, const struct rk_batch *batch, int64_t k) RK_NODISCARD;
/* Rows appended. Columns must agree. meta: "metrics" becomes an object of lists, other keys must be equal
 * in all parts that have them. */
struct rk_status *rk_batch_concat(struct rk_batch **out, const struct rk_batch *const *parts,
                                  int64_t num_parts) RK_NODISCARD;
/* Appends k copies of the last (or first) row. */
struct rk_status *rk_batch_pad(struct rk_batch **out, const struct rk_batch *batch, int64_t k,
                               bool use_first) RK_NODISCARD;
/* Appends rows 0, 1, 2, ... cyclically until the rows divide by `divisor`. *num_padded receives their number.
 */
struct rk_status *rk_batch_pad_to_divisor(struct rk_batch **out, const struct rk_batch *batch,
                                          int64_t divisor, int64_t *num_padded) RK_NODISCARD;
/* Drops the last `num_padded` rows. */
struct rk_status *rk_batch_unpad(struct rk_batch **out, const struct rk_batch *batch,
                                 int64_t num_padded) RK_NODISCARD;

/* --- files: safetensors; strings and meta in __metadata__ (docs/formats.md) --- */
struct rk_status *rk_batch_read_file(struct rk_batch **out, const char *path) RK_NODISCARD;
struct rk_status *rk_batch_write_file(const struct rk_batch *batch, const char *path) RK_NODISCARD;

/* --- wire --- */
/* Describes the batch (only the columns of `want`, NULL = all). Lives in the arena (one without limit),
 * borrows from the batch. Tensor i of the spec has its bytes at rk_column_values of the column `columns[i]`
 * (array in the arena; may be NULL). RESOURCE_EXHAUSTED when it exceeds the limits of the wire
 * (proto/limits.h). */
struct rk_status *rk_batch_describe(struct rk_batch_spec *out, const struct rk_column ***columns,
                                    struct rk_arena *arena, const struct rk_batch *batch,
                                    const char *const *want) RK_NODISCARD;
/* A batch with all columns allocated from a spec that passed rk_assembler_create. The bytes are received
 * later, and must be received completely, because the memory may hold bytes of an earlier batch
 * (rk_batch_keep_memory): data[i] (array of num_tensors in the arena) is the destination of tensor i. */
struct rk_status *rk_batch_from_spec(struct rk_batch **out, void ***data, struct rk_arena *arena,
                                     const struct rk_batch_spec *spec) RK_NODISCARD;
/* From now on the process keeps the memory of freed large columns, up to this number of bytes, for the
 * columns of rk_batch_from_spec: new pages of the system cost more than the copy into them. 0: none, the
 * default. Any thread, also for the next function. */
void rk_batch_keep_memory(size_t max_bytes);
/* Gives memory back that was kept for longer than that. Returns the bytes that are still kept. */
size_t rk_batch_trim_memory(int64_t age_ms);
/* Checks a received spec against a method's input columns: present, dtype, dims, rows. Extra columns are
 * refused. INVALID_ARGUMENT (reason BAD_FIELD) names the column, its value and the expected one. */
struct rk_status *rk_batch_spec_check(const struct rk_batch_spec *spec,
                                      const struct rk_method *method) RK_NODISCARD;

RK_END_DECLS

#endif
