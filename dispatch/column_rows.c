/* Rows of columns: runs share storage, everything else is copied. All operations of the batch are built on
 * these. */
#include "dispatch/batch_internal.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_str.h"

#include <string.h>

static struct rk_status *alloc_cu_seqlens(int64_t **out, int64_t num_rows)
{
    void *memory;

    RK_TRY(rk_try_alloc(&memory, ((size_t)num_rows + 1) * sizeof(int64_t), "cu_seqlens"));
    *out = memory;
    return NULL;
}

static struct rk_status *alloc_texts(const char ***out, int64_t num_rows)
{
    void *memory;

    RK_TRY(rk_try_alloc(&memory, (size_t)num_rows * sizeof(char *), "column"));
    *out = memory;
    return NULL;
}

struct rk_status *rk_column_view(struct rk_column **out, const struct rk_column *column, int64_t begin,
                                 int64_t count)
{
    struct rk_column_info info = column->info;
    struct rk_status *st = NULL;
    struct rk_column *view;
    size_t row_bytes;
    int64_t first = begin;

    *out = NULL;
    RK_ASSERT(begin >= 0);
    RK_ASSERT(count >= 0);
    RK_ASSERT(begin <= info.num_rows - count);
    info.num_rows = count;
    view = rk_column_new(&info, column->storage);
    switch (info.kind) {
    case RK_COLUMN_STRINGS:
        RK_TRY_GOTO(st, alloc_texts(&view->texts, count), out);
        memcpy(view->texts, column->texts + begin, (size_t)count * sizeof(char *));
        break;
    case RK_COLUMN_PACKED:
        RK_TRY_GOTO(st, alloc_cu_seqlens(&view->cu_seqlens, count), out);
        first = column->cu_seqlens[begin];
        for (int64_t i = 0; i <= count; i++)
            view->cu_seqlens[i] = column->cu_seqlens[begin + i] - first;
        view->info.shape[0] = view->cu_seqlens[count];
        break;
    case RK_COLUMN_DENSE:
        view->info.shape[0] = count;
        break;
    }
    if (info.kind != RK_COLUMN_STRINGS) {
        row_bytes = rk_column_row_bytes(column);
        view->offset = column->offset + (size_t)first * row_bytes;
        view->bytes = (size_t)view->info.shape[0] * row_bytes;
    }
    *out = view;
    view = NULL;
out:
    rk_column_release(view);
    return st;
}

/* Runs of values to copy: row i of a DENSE column is one value, of a PACKED one several. */
static void get_run(const struct rk_column *column, int64_t row, int64_t *begin, int64_t *count)
{
    if (column->info.kind == RK_COLUMN_PACKED) {
        *begin = column->cu_seqlens[row];
        *count = column->cu_seqlens[row + 1] - *begin;
    } else {
        *begin = row;
        *count = 1;
    }
}

static struct rk_status *take_values(struct rk_column **out, const struct rk_column *column,
                                     const int64_t *rows, int64_t count)
{
    struct rk_column_info info = column->info;
    size_t row_bytes = rk_column_row_bytes(column);
    int64_t begin, run, *cu_seqlens = NULL;
    struct rk_status *st = NULL;
    unsigned char *dst;

    info.shape[0] = count;
    if (info.kind == RK_COLUMN_PACKED) {
        RK_TRY(alloc_cu_seqlens(&cu_seqlens, count));
        for (int64_t i = 0; i < count; i++) {
            get_run(column, rows[i], &begin, &run);
            cu_seqlens[i + 1] = cu_seqlens[i] + run;
        }
        info.shape[0] = cu_seqlens[count];
        RK_TRY_GOTO(st, rk_column_create_packed(out, info.dtype, count, cu_seqlens, info.rank, info.shape),
                    out);
    } else {
        RK_TRY_GOTO(st, rk_column_create_dense(out, info.dtype, info.rank, info.shape), out);
    }
    dst = rk_column_data(*out);
    for (int64_t i = 0; i < count; i++) {
        get_run(column, rows[i], &begin, &run);
        memcpy(dst, (const unsigned char *)rk_column_values(column) + (size_t)begin * row_bytes,
               (size_t)run * row_bytes);
        dst += (size_t)run * row_bytes;
    }
out:
    rk_free(cu_seqlens);
    return st;
}

struct rk_status *rk_column_take_rows(struct rk_column **out, const struct rk_column *column,
                                      const int64_t *rows, int64_t count)
{
    struct rk_column_info info = column->info;
    struct rk_column *taken;
    struct rk_status *st;

    *out = NULL;
    for (int64_t i = 0; i < count; i++) {
        RK_ASSERT(rows[i] >= 0);
        RK_ASSERT(rows[i] < info.num_rows);
    }
    if (info.kind != RK_COLUMN_STRINGS)
        return take_values(out, column, rows, count);
    /* Texts are immutable, so they are not copied. */
    info.num_rows = count;
    taken = rk_column_new(&info, column->storage);
    st = alloc_texts(&taken->texts, count);
    if (st) {
        rk_column_release(taken);
        return st;
    }
    for (int64_t i = 0; i < count; i++)
        taken->texts[i] = column->texts[rows[i]];
    *out = taken;
    return NULL;
}

static bool has_same_form(const struct rk_column *a, const struct rk_column *b)
{
    if (a->info.kind != b->info.kind)
        return false;
    if (a->info.kind == RK_COLUMN_STRINGS)
        return a->info.is_json == b->info.is_json;
    return a->info.dtype == b->info.dtype && a->info.rank == b->info.rank &&
           memcmp(a->info.shape + 1, b->info.shape + 1, (size_t)(a->info.rank - 1) * sizeof(int64_t)) == 0;
}

static struct rk_status *check_same_form(const struct rk_column *const *parts, int64_t num_parts)
{
    for (int64_t i = 1; i < num_parts; i++) {
        char *first, *other;
        struct rk_status *st;

        if (has_same_form(parts[0], parts[i]))
            continue;
        first = rk_column_describe(parts[0]);
        other = rk_column_describe(parts[i]);
        st = RK_FAIL(RK_INVALID_ARGUMENT, "%s in part 0, %s in part %lld", first, other, (long long)i);
        rk_free(first);
        rk_free(other);
        return st;
    }
    return NULL;
}

static struct rk_status *concat_strings(struct rk_column **out, const struct rk_column *const *parts,
                                        int64_t num_parts, int64_t num_rows)
{
    struct rk_status *st;
    const char **texts;
    int64_t next = 0;

    RK_TRY(alloc_texts(&texts, num_rows));
    for (int64_t i = 0; i < num_parts; i++) {
        for (int64_t k = 0; k < parts[i]->info.num_rows; k++)
            texts[next++] = parts[i]->texts[k];
    }
    st = rk_column_create_strings(out, num_rows, texts, parts[0]->info.is_json);
    rk_free(texts);
    return st;
}

static struct rk_status *concat_values(struct rk_column **out, const struct rk_column *const *parts,
                                       int64_t num_parts, int64_t num_rows)
{
    struct rk_column_info info = parts[0]->info;
    int64_t *cu_seqlens = NULL, row = 0;
    struct rk_status *st = NULL;
    unsigned char *dst;

    info.shape[0] = 0;
    for (int64_t i = 0; i < num_parts; i++)
        info.shape[0] += parts[i]->info.shape[0];
    if (info.kind == RK_COLUMN_PACKED) {
        RK_TRY(alloc_cu_seqlens(&cu_seqlens, num_rows));
        for (int64_t i = 0; i < num_parts; i++) {
            for (int64_t k = 0; k < parts[i]->info.num_rows; k++, row++)
                cu_seqlens[row + 1] = cu_seqlens[row] + parts[i]->cu_seqlens[k + 1] - parts[i]->cu_seqlens[k];
        }
        RK_TRY_GOTO(st, rk_column_create_packed(out, info.dtype, num_rows, cu_seqlens, info.rank, info.shape),
                    out);
    } else {
        RK_TRY_GOTO(st, rk_column_create_dense(out, info.dtype, info.rank, info.shape), out);
    }
    dst = rk_column_data(*out);
    for (int64_t i = 0; i < num_parts; i++) {
        memcpy(dst, rk_column_values(parts[i]), parts[i]->bytes);
        dst += parts[i]->bytes;
    }
out:
    rk_free(cu_seqlens);
    return st;
}

struct rk_status *rk_column_concat(struct rk_column **out, const struct rk_column *const *parts,
                                   int64_t num_parts)
{
    int64_t num_rows = 0;

    *out = NULL;
    RK_ASSERT(num_parts > 0);
    RK_TRY(check_same_form(parts, num_parts));
    for (int64_t i = 0; i < num_parts; i++)
        num_rows += parts[i]->info.num_rows;
    if (parts[0]->info.kind == RK_COLUMN_STRINGS)
        return concat_strings(out, parts, num_parts, num_rows);
    return concat_values(out, parts, num_parts, num_rows);
}
