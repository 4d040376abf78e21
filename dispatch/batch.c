/* The batch as a container: columns by name, and meta that is copied on write. */
#include "dispatch/batch_internal.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_str.h"
#include "proto/limits.h"

#include <inttypes.h>
#include <string.h>

static struct rk_batch_meta *meta_new(struct rk_json *object)
{
    struct rk_batch_meta *meta = rk_calloc(1, sizeof(*meta));

    atomic_init(&meta->refs, 1);
    meta->object = object;
    return meta;
}

static void meta_release(struct rk_batch_meta *meta)
{
    if (atomic_fetch_sub(&meta->refs, 1) > 1)
        return;
    rk_json_free(meta->object);
    rk_free(meta);
}

struct rk_batch *rk_batch_new_like(const struct rk_batch *source, int64_t num_rows)
{
    struct rk_batch *batch = rk_calloc(1, sizeof(*batch));

    batch->num_rows = num_rows;
    batch->meta = source->meta;
    atomic_fetch_add(&batch->meta->refs, 1);
    return batch;
}

struct rk_status *rk_batch_create(struct rk_batch **out, int64_t num_rows)
{
    *out = NULL;
    if (num_rows < 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "num_rows=%" PRId64 " is negative", num_rows);
    *out = rk_calloc(1, sizeof(**out));
    (*out)->num_rows = num_rows;
    (*out)->meta = meta_new(rk_json_new_object());
    return NULL;
}

void rk_batch_destroy(struct rk_batch *batch)
{
    if (!batch)
        return;
    for (int64_t i = 0; i < batch->columns.count; i++) {
        rk_free(batch->columns.items[i].name);
        rk_column_release(batch->columns.items[i].column);
    }
    rk_array_fini(&batch->columns);
    meta_release(batch->meta);
    rk_free(batch);
}

int64_t rk_batch_num_rows(const struct rk_batch *batch)
{
    return batch->num_rows;
}

int64_t rk_batch_num_columns(const struct rk_batch *batch)
{
    return batch->columns.count;
}

const char *rk_batch_name_at(const struct rk_batch *batch, int64_t i)
{
    RK_ASSERT(i >= 0);
    RK_ASSERT(i < batch->columns.count);
    return batch->columns.items[i].name;
}

struct rk_column *rk_batch_column_at(const struct rk_batch *batch, int64_t i)
{
    RK_ASSERT(i >= 0);
    RK_ASSERT(i < batch->columns.count);
    return batch->columns.items[i].column;
}

int64_t rk_batch_find_index(const struct rk_batch *batch, const char *name)
{
    for (int64_t i = 0; i < batch->columns.count; i++) {
        if (strcmp(batch->columns.items[i].name, name) == 0)
            return i;
    }
    return -1;
}

struct rk_column *rk_batch_find(const struct rk_batch *batch, const char *name)
{
    int64_t i = rk_batch_find_index(batch, name);

    return i < 0 ? NULL : batch->columns.items[i].column;
}

struct rk_status *rk_batch_check_name(const char *name)
{
    size_t bytes = strlen(name);

    if (bytes == 0 || bytes > RK_LIMIT_NAME_BYTES || !rk_utf8_is_valid(name, bytes))
        return RK_FAIL(RK_INVALID_ARGUMENT, "a column name is UTF-8 of 1 to %d bytes, got %zu",
                       RK_LIMIT_NAME_BYTES, bytes);
    return NULL;
}

static struct rk_status *check_put(const struct rk_batch *batch, const char *name,
                                   const struct rk_column *column)
{
    RK_TRY(rk_batch_check_name(name));
    if (column->info.num_rows != batch->num_rows)
        return RK_FAIL(RK_INVALID_ARGUMENT, "column '%s' has %" PRId64 " rows, the batch has %" PRId64, name,
                       column->info.num_rows, batch->num_rows);
    return NULL;
}

struct rk_status *rk_batch_put_new(struct rk_batch *batch, const char *name, struct rk_column *column)
{
    struct rk_status *st = check_put(batch, name, column);
    int64_t i;

    if (st) {
        rk_column_release(column);
        return st;
    }
    i = rk_batch_find_index(batch, name);
    if (i >= 0) {
        rk_column_release(batch->columns.items[i].column);
        batch->columns.items[i].column = column;
    } else {
        rk_array_append(&batch->columns, (struct rk_batch_column){.name = rk_strdup(name), .column = column});
    }
    return NULL;
}

struct rk_status *rk_batch_put(struct rk_batch *batch, const char *name, struct rk_column *column)
{
    return rk_batch_put_new(batch, name, rk_column_retain(column));
}

void rk_batch_remove(struct rk_batch *batch, const char *name)
{
    int64_t i = rk_batch_find_index(batch, name);

    if (i < 0)
        return;
    rk_free(batch->columns.items[i].name);
    rk_column_release(batch->columns.items[i].column);
    batch->columns.count--;
    memmove(&batch->columns.items[i], &batch->columns.items[i + 1],
            (size_t)(batch->columns.count - i) * sizeof(batch->columns.items[0]));
}

struct rk_status *rk_batch_add_dense(struct rk_batch *batch, const char *name, rk_dtype_t dtype, int32_t rank,
                                     const int64_t *shape, void **data)
{
    struct rk_column *column;
    struct rk_status *st = rk_column_create_dense(&column, dtype, rank, shape);

    *data = NULL;
    if (st)
        return RK_WRAP(st, "column '%s'", name);
    RK_TRY(rk_batch_put_new(batch, name, column));
    *data = rk_column_data(column);
    return NULL;
}

struct rk_status *rk_batch_get_dense(const struct rk_batch *batch, const char *name, rk_dtype_t dtype,
                                     int32_t rank, int64_t *shape, const void **data)
{
    const struct rk_column *column = rk_batch_find(batch, name);
    struct rk_status *st;
    char *text;

    *data = NULL;
    if (!column)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "the batch has no column '%s'", name);
    if (column->info.kind != RK_COLUMN_DENSE || column->info.dtype != dtype || column->info.rank != rank) {
        text = rk_column_describe(column);
        st = RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                            "column '%s' is %s, expected dense %s with %d dimensions", name, text,
                            rk_dtype_name(dtype), rank);
        rk_free(text);
        return st;
    }
    if (shape)
        memcpy(shape, column->info.shape, (size_t)rank * sizeof(int64_t));
    *data = rk_column_values(column);
    return NULL;
}

const struct rk_json *rk_batch_meta(const struct rk_batch *batch)
{
    return batch->meta->object;
}

void rk_batch_take_meta(struct rk_batch *batch, struct rk_json *object)
{
    struct rk_batch_meta *old = batch->meta;

    batch->meta = meta_new(object);
    meta_release(old);
}

/* The batch's own object, for writing. */
static struct rk_json *own_meta(struct rk_batch *batch)
{
    if (atomic_load(&batch->meta->refs) > 1)
        rk_batch_take_meta(batch, rk_json_clone(batch->meta->object));
    return batch->meta->object;
}

void rk_batch_set_meta(struct rk_batch *batch, const char *key, struct rk_json *value)
{
    rk_json_set(own_meta(batch), key, value);
}
