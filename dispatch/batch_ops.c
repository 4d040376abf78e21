/* Operations on batches. Rows are moved by an index list and one function: rk_batch_select_idxs shares
 * storage if the list is a run, and copies otherwise. */
#include "dispatch/batch_internal.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

#include <inttypes.h>

/* --- columns and meta --- */

struct rk_status *rk_batch_clone(struct rk_batch **out, const struct rk_batch *batch)
{
    return rk_batch_select(out, batch, NULL, NULL);
}

/* The entries of `meta` with these keys. */
static struct rk_json *select_meta(const struct rk_json *meta, const char *const *keys)
{
    struct rk_json *object = rk_json_new_object();

    for (; *keys; keys++) {
        const struct rk_json *value = rk_json_find(meta, *keys);

        if (value)
            rk_json_set(object, *keys, rk_json_clone(value));
    }
    return object;
}

struct rk_status *rk_batch_select(struct rk_batch **out, const struct rk_batch *batch,
                                  const char *const *columns, const char *const *meta_keys)
{
    struct rk_batch *selected = rk_batch_new_like(batch, batch->num_rows);
    struct rk_status *st = NULL;

    *out = NULL;
    for (int64_t i = 0; !columns && i < batch->columns.count; i++)
        RK_TRY_GOTO(st, rk_batch_put(selected, batch->columns.items[i].name, batch->columns.items[i].column),
                    out);
    for (; columns && *columns; columns++) {
        struct rk_column *column = rk_batch_find(batch, *columns);

        if (!column)
            RK_TRY_GOTO(st, RK_FAIL(RK_NOT_FOUND, "the batch has no column '%s'", *columns), out);
        RK_TRY_GOTO(st, rk_batch_put(selected, *columns, column), out);
    }
    if (meta_keys)
        rk_batch_take_meta(selected, select_meta(rk_batch_meta(batch), meta_keys));
    *out = selected;
    selected = NULL;
out:
    rk_batch_destroy(selected);
    return st;
}

static struct rk_status *check_union(const struct rk_batch *batch, const struct rk_batch *other)
{
    const struct rk_json *meta = rk_batch_meta(other);

    if (batch->num_rows != other->num_rows)
        return RK_FAIL(RK_INVALID_ARGUMENT, "union of batches with %" PRId64 " and %" PRId64 " rows",
                       batch->num_rows, other->num_rows);
    for (int64_t i = 0; i < other->columns.count; i++) {
        const struct rk_column *mine = rk_batch_find(batch, other->columns.items[i].name);

        if (mine && !rk_column_equal(mine, other->columns.items[i].column))
            return RK_FAIL(RK_INVALID_ARGUMENT, "column '%s' differs between the two batches of a union",
                           other->columns.items[i].name);
    }
    for (void *it = rk_json_iter(meta); it; it = rk_json_iter_next(meta, it)) {
        const struct rk_json *mine = rk_json_find(rk_batch_meta(batch), rk_json_iter_key(it));

        if (mine && !rk_json_equal(mine, rk_json_iter_value(it)))
            return RK_FAIL(RK_INVALID_ARGUMENT, "meta '%s' differs between the two batches of a union",
                           rk_json_iter_key(it));
    }
    return NULL;
}

struct rk_status *rk_batch_union(struct rk_batch *batch, const struct rk_batch *other)
{
    const struct rk_json *meta = rk_batch_meta(other);

    RK_TRY(check_union(batch, other));
    for (int64_t i = 0; i < other->columns.count; i++) {
        if (!rk_batch_find(batch, other->columns.items[i].name))
            RK_TRY(rk_batch_put(batch, other->columns.items[i].name, other->columns.items[i].column));
    }
    for (void *it = rk_json_iter(meta); it; it = rk_json_iter_next(meta, it)) {
        if (!rk_json_find(rk_batch_meta(batch), rk_json_iter_key(it)))
            rk_batch_set_meta(batch, rk_json_iter_key(it), rk_json_clone(rk_json_iter_value(it)));
    }
    return NULL;
}

/* --- rows --- */

static bool is_run(const int64_t *rows, int64_t count)
{
    for (int64_t i = 1; i < count; i++) {
        if (rows[i] != rows[0] + i)
            return false;
    }
    return true;
}

struct rk_status *rk_batch_select_idxs(struct rk_batch **out, const struct rk_batch *batch,
                                       const int64_t *rows, int64_t num_rows)
{
    struct rk_batch *selected = NULL;
    struct rk_status *st = NULL;

    *out = NULL;
    RK_ASSERT(num_rows >= 0);
    for (int64_t i = 0; i < num_rows; i++) {
        if (rows[i] < 0 || rows[i] >= batch->num_rows)
            return RK_FAIL(RK_OUT_OF_RANGE, "row %" PRId64 " of a batch with %" PRId64 " rows", rows[i],
                           batch->num_rows);
    }
    selected = rk_batch_new_like(batch, num_rows);
    for (int64_t i = 0; i < batch->columns.count; i++) {
        const struct rk_batch_column *column = &batch->columns.items[i];
        struct rk_column *part;

        if (is_run(rows, num_rows))
            RK_TRY_GOTO(st, rk_column_view(&part, column->column, num_rows ? rows[0] : 0, num_rows), out);
        else
            RK_TRY_GOTO(st, rk_column_take_rows(&part, column->column, rows, num_rows), out);
        RK_TRY_GOTO(st, rk_batch_put_new(selected, column->name, part), out);
    }
    *out = selected;
    selected = NULL;
out:
    rk_batch_destroy(selected);
    return st;
}

static struct rk_status *alloc_rows(int64_t **out, int64_t count)
{
    void *memory;
    size_t bytes;

    if (!rk_mul_size((size_t)count, sizeof(int64_t), &bytes))
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%" PRId64 " rows", count);
    RK_TRY(rk_try_alloc(&memory, bytes, "row indices"));
    *out = memory;
    return NULL;
}

/* Takes ownership of an index list. */
static struct rk_status *select_and_free(struct rk_batch **out, const struct rk_batch *batch, int64_t *rows,
                                         int64_t count)
{
    struct rk_status *st = rk_batch_select_idxs(out, batch, rows, count);

    rk_free(rows);
    return st;
}

static struct rk_status *select_run(struct rk_batch **out, const struct rk_batch *batch, int64_t begin,
                                    int64_t count)
{
    int64_t *rows;

    *out = NULL;
    RK_TRY(alloc_rows(&rows, count));
    for (int64_t i = 0; i < count; i++)
        rows[i] = begin + i;
    return select_and_free(out, batch, rows, count);
}

/* Python's rule for one bound of a slice. */
static int64_t clamp_bound(int64_t bound, int64_t num_rows, int64_t lowest, int64_t highest)
{
    if (bound < 0)
        bound = bound < -num_rows ? -1 : bound + num_rows;
    return RK_MIN(RK_MAX(bound, lowest), highest);
}

struct rk_status *rk_batch_slice(struct rk_batch **out, const struct rk_batch *batch, int64_t begin,
                                 int64_t end, int64_t step)
{
    int64_t lowest = step < 0 ? -1 : 0;
    int64_t highest = step < 0 ? batch->num_rows - 1 : batch->num_rows;
    int64_t *rows, count = 0;

    *out = NULL;
    if (step == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "a slice with step 0");
    begin = clamp_bound(begin, batch->num_rows, lowest, highest);
    end = clamp_bound(end, batch->num_rows, lowest, highest);
    RK_TRY(alloc_rows(&rows, batch->num_rows));
    for (int64_t row = begin; step > 0 ? row < end : row > end;) {
        rows[count++] = row;
        if (__builtin_add_overflow(row, step, &row))
            break;
    }
    return select_and_free(out, batch, rows, count);
}

struct rk_status *rk_batch_select_mask(struct rk_batch **out, const struct rk_batch *batch, const bool *keep)
{
    int64_t *rows, count = 0;

    *out = NULL;
    RK_TRY(alloc_rows(&rows, batch->num_rows));
    for (int64_t i = 0; i < batch->num_rows; i++) {
        if (keep[i])
            rows[count++] = i;
    }
    return select_and_free(out, batch, rows, count);
}

static struct rk_status *check_permutation(const int64_t *order, int64_t count)
{
    struct rk_status *st = NULL;
    void *memory;
    bool *seen;

    RK_TRY(rk_try_alloc(&memory, (size_t)count, "permutation"));
    seen = memory;
    for (int64_t i = 0; i < count && !st; i++) {
        if (order[i] < 0 || order[i] >= count)
            st = RK_FAIL(RK_INVALID_ARGUMENT, "reorder: row %" PRId64 " of a batch with %" PRId64 " rows",
                         order[i], count);
        else if (seen[order[i]])
            st = RK_FAIL(RK_INVALID_ARGUMENT, "reorder: row %" PRId64 " comes twice", order[i]);
        else
            seen[order[i]] = true;
    }
    rk_free(memory);
    return st;
}

struct rk_status *rk_batch_reorder(struct rk_batch *batch, const int64_t *order)
{
    struct rk_batch *reordered, swap;

    RK_TRY(check_permutation(order, batch->num_rows));
    RK_TRY(rk_batch_select_idxs(&reordered, batch, order, batch->num_rows));
    swap = *batch;
    *batch = *reordered;
    *reordered = swap;
    rk_batch_destroy(reordered);
    return NULL;
}

struct rk_status *rk_batch_chunk(struct rk_batch **out, const struct rk_batch *batch, int64_t k)
{
    struct rk_status *st = NULL;

    if (k < 1 || batch->num_rows % k != 0)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "only support equal chunk: %" PRId64 " rows into %" PRId64 " chunks", batch->num_rows,
                       k);
    for (int64_t i = 0; i < k; i++)
        out[i] = NULL;
    for (int64_t i = 0; i < k && !st; i++)
        st = select_run(&out[i], batch, i * (batch->num_rows / k), batch->num_rows / k);
    for (int64_t i = 0; st && i < k; i++) {
        rk_batch_destroy(out[i]);
        out[i] = NULL;
    }
    return st;
}

/* All rows, then `k` more: row `from`, from + step, from + 2 step, ... modulo the rows. */
static struct rk_status *append_rows(struct rk_batch **out, const struct rk_batch *batch, int64_t k,
                                     int64_t from, int64_t step)
{
    int64_t *rows, count;

    *out = NULL;
    if (!rk_add_i64(batch->num_rows, k, &count))
        return RK_FAIL(RK_INVALID_ARGUMENT, "padding by %" PRId64 " rows", k);
    RK_TRY(alloc_rows(&rows, count));
    for (int64_t i = 0; i < count; i++)
        rows[i] = i < batch->num_rows ? i : (from + (i - batch->num_rows) * step) % batch->num_rows;
    return select_and_free(out, batch, rows, count);
}

struct rk_status *rk_batch_pad(struct rk_batch **out, const struct rk_batch *batch, int64_t k, bool use_first)
{
    *out = NULL;
    if (k < 0 || (k > 0 && batch->num_rows == 0))
        return RK_FAIL(RK_INVALID_ARGUMENT, "padding of %" PRId64 " rows by %" PRId64, batch->num_rows, k);
    return append_rows(out, batch, k, use_first ? 0 : batch->num_rows - 1, 0);
}

struct rk_status *rk_batch_pad_to_divisor(struct rk_batch **out, const struct rk_batch *batch,
                                          int64_t divisor, int64_t *num_padded)
{
    *out = NULL;
    *num_padded = 0;
    if (divisor < 1)
        return RK_FAIL(RK_INVALID_ARGUMENT, "padding to a multiple of %" PRId64, divisor);
    /* An empty batch divides already. */
    if (batch->num_rows % divisor)
        *num_padded = divisor - batch->num_rows % divisor;
    return append_rows(out, batch, *num_padded, 0, 1);
}

struct rk_status *rk_batch_unpad(struct rk_batch **out, const struct rk_batch *batch, int64_t num_padded)
{
    *out = NULL;
    if (num_padded < 0 || num_padded > batch->num_rows)
        return RK_FAIL(RK_INVALID_ARGUMENT, "dropping %" PRId64 " of %" PRId64 " rows", num_padded,
                       batch->num_rows);
    return select_run(out, batch, 0, batch->num_rows - num_padded);
}
