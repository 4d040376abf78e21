/* Columns: creation, lifetime, reading. */
#include "dispatch/batch_internal.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_str.h"

#include <inttypes.h>
#include <string.h>

struct rk_column *rk_column_new(const struct rk_column_info *info, struct rk_storage *storage)
{
    struct rk_column *column = rk_calloc(1, sizeof(*column));

    atomic_init(&column->refs, 1);
    atomic_fetch_add(&storage->refs, 1);
    column->info = *info;
    column->storage = storage;
    return column;
}

struct rk_column *rk_column_retain(struct rk_column *column)
{
    RK_ASSERT(atomic_fetch_add(&column->refs, 1) > 0);
    return column;
}

void rk_column_release(struct rk_column *column)
{
    if (!column || atomic_fetch_sub(&column->refs, 1) > 1)
        return;
    rk_storage_release(column->storage);
    rk_free(column->cu_seqlens);
    rk_free(column->texts);
    rk_free(column);
}

/* Bytes of all values; checked. */
static struct rk_status *size_of_values(size_t *out, rk_dtype_t dtype, int32_t rank, const int64_t *shape)
{
    size_t bytes;

    if (!rk_dtype_is_valid((int)dtype))
        return RK_FAIL(RK_INVALID_ARGUMENT, "dtype %d is unknown", (int)dtype);
    if (rank < 1 || rank > RK_COLUMN_MAX_RANK)
        return RK_FAIL(RK_INVALID_ARGUMENT, "a column has 1 to %d dimensions, got %d", RK_COLUMN_MAX_RANK,
                       rank);
    bytes = rk_dtype_bytes(dtype);
    for (int32_t i = 0; i < rank; i++) {
        if (shape[i] < 0)
            return RK_FAIL(RK_INVALID_ARGUMENT, "shape[%d]=%" PRId64 " is negative", i, shape[i]);
        if (!rk_mul_size(bytes, (size_t)shape[i], &bytes))
            return RK_FAIL(RK_INVALID_ARGUMENT, "the shape overflows");
    }
    *out = bytes;
    return NULL;
}

static struct rk_status *create_values(struct rk_column **out, const struct rk_column_info *info,
                                       rk_fill_t fill)
{
    struct rk_storage *storage;
    size_t bytes;

    RK_TRY(size_of_values(&bytes, info->dtype, info->rank, info->shape));
    RK_TRY(rk_storage_create(&storage, bytes, fill));
    *out = rk_column_new(info, storage);
    (*out)->bytes = bytes;
    rk_storage_release(storage);
    return NULL;
}

static struct rk_status *create_dense(struct rk_column **out, rk_dtype_t dtype, int32_t rank,
                                      const int64_t *shape, rk_fill_t fill)
{
    struct rk_column_info info = {.kind = RK_COLUMN_DENSE, .dtype = dtype, .rank = rank};

    *out = NULL;
    for (int32_t i = 0; i < RK_MIN(rank, RK_COLUMN_MAX_RANK); i++)
        info.shape[i] = shape[i];
    info.num_rows = info.shape[0];
    return create_values(out, &info, fill);
}

struct rk_status *rk_column_create_dense(struct rk_column **out, rk_dtype_t dtype, int32_t rank,
                                         const int64_t *shape)
{
    return create_dense(out, dtype, rank, shape, RK_FILL_ZERO);
}

static struct rk_status *check_cu_seqlens(int64_t num_rows, const int64_t *cu_seqlens)
{
    if (num_rows < 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "num_rows=%" PRId64 " is negative", num_rows);
    if (cu_seqlens[0] != 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "cu_seqlens begins with %" PRId64 ", expected 0", cu_seqlens[0]);
    for (int64_t i = 0; i < num_rows; i++) {
        if (cu_seqlens[i + 1] < cu_seqlens[i])
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "cu_seqlens falls from %" PRId64 " to %" PRId64 " at %" PRId64, cu_seqlens[i],
                           cu_seqlens[i + 1], i + 1);
    }
    return NULL;
}

static struct rk_status *create_packed(struct rk_column **out, rk_dtype_t dtype, int64_t num_rows,
                                       const int64_t *cu_seqlens, int32_t rank, const int64_t *shape,
                                       rk_fill_t fill)
{
    struct rk_column_info info = {
        .kind = RK_COLUMN_PACKED, .num_rows = num_rows, .dtype = dtype, .rank = rank};
    struct rk_status *st = NULL;
    struct rk_column *column = NULL;
    void *copy;

    *out = NULL;
    RK_TRY(check_cu_seqlens(num_rows, cu_seqlens));
    for (int32_t i = 0; i < RK_MIN(rank, RK_COLUMN_MAX_RANK); i++)
        info.shape[i] = shape[i];
    if (rank >= 1 && shape[0] != cu_seqlens[num_rows])
        return RK_FAIL(RK_INVALID_ARGUMENT, "%" PRId64 " values, but cu_seqlens ends with %" PRId64, shape[0],
                       cu_seqlens[num_rows]);
    RK_TRY_GOTO(st, create_values(&column, &info, fill), out);
    RK_TRY_GOTO(st, rk_try_alloc(&copy, ((size_t)num_rows + 1) * sizeof(int64_t), "cu_seqlens"), out);
    memcpy(copy, cu_seqlens, ((size_t)num_rows + 1) * sizeof(int64_t));
    column->cu_seqlens = copy;
    *out = column;
    column = NULL;
out:
    rk_column_release(column);
    return st;
}

struct rk_status *rk_column_create_packed(struct rk_column **out, rk_dtype_t dtype, int64_t num_rows,
                                          const int64_t *cu_seqlens, int32_t rank, const int64_t *shape)
{
    return create_packed(out, dtype, num_rows, cu_seqlens, rank, shape, RK_FILL_ZERO);
}

struct rk_status *rk_column_from_spec(struct rk_column **out, const struct rk_tensor_spec *spec)
{
    if (spec->num_cu_seqlens)
        return create_packed(out, spec->dtype, spec->num_cu_seqlens - 1, spec->cu_seqlens, spec->rank,
                             spec->shape, RK_FILL_NONE);
    return create_dense(out, spec->dtype, spec->rank, spec->shape, RK_FILL_NONE);
}

static struct rk_status *check_json(const char *text, int64_t row)
{
    struct rk_json *json = NULL;
    struct rk_status *st = rk_json_parse(&json, text, strlen(text), "value", RK_JSON_ALLOW_NUL);

    rk_json_free(json);
    return st ? RK_WRAP(st, "row %" PRId64, row) : NULL;
}

static struct rk_status *size_of_texts(size_t *out, int64_t num_rows, const char *const *values, bool is_json)
{
    size_t bytes = 0;

    for (int64_t i = 0; i < num_rows; i++) {
        size_t text_bytes = strlen(values[i]);

        if (!rk_utf8_is_valid(values[i], text_bytes))
            return RK_FAIL(RK_INVALID_ARGUMENT, "row %" PRId64 ": not valid UTF-8", i);
        if (is_json)
            RK_TRY(check_json(values[i], i));
        bytes += text_bytes + 1;
    }
    *out = bytes;
    return NULL;
}

struct rk_status *rk_column_create_strings(struct rk_column **out, int64_t num_rows,
                                           const char *const *values, bool is_json)
{
    struct rk_column_info info = {.kind = RK_COLUMN_STRINGS, .num_rows = num_rows, .is_json = is_json};
    struct rk_status *st = NULL;
    struct rk_storage *storage = NULL;
    struct rk_column *column = NULL;
    void *texts;
    size_t bytes;
    char *next;

    *out = NULL;
    RK_ASSERT(num_rows >= 0);
    RK_TRY(size_of_texts(&bytes, num_rows, values, is_json));
    RK_TRY_GOTO(st, rk_storage_create(&storage, bytes, RK_FILL_ZERO), out);
    column = rk_column_new(&info, storage);
    RK_TRY_GOTO(st, rk_try_alloc(&texts, (size_t)num_rows * sizeof(char *), "column"), out);
    column->texts = texts;
    next = (char *)storage->data;
    for (int64_t i = 0; i < num_rows; i++) {
        size_t text_bytes = strlen(values[i]) + 1;

        column->texts[i] = memcpy(next, values[i], text_bytes);
        next += text_bytes;
    }
    *out = column;
    column = NULL;
out:
    rk_column_release(column);
    rk_storage_release(storage);
    return st;
}

struct rk_column_info rk_column_get_info(const struct rk_column *column)
{
    return column->info;
}

void *rk_column_data(struct rk_column *column)
{
    RK_ASSERT(column->info.kind != RK_COLUMN_STRINGS);
    return column->storage->data + column->offset;
}

const void *rk_column_values(const struct rk_column *column)
{
    RK_ASSERT(column->info.kind != RK_COLUMN_STRINGS);
    return column->storage->data + column->offset;
}

size_t rk_column_bytes(const struct rk_column *column)
{
    return column->bytes;
}

const int64_t *rk_column_cu_seqlens(const struct rk_column *column)
{
    RK_ASSERT(column->info.kind == RK_COLUMN_PACKED);
    return column->cu_seqlens;
}

const char *rk_column_string(const struct rk_column *column, int64_t row)
{
    RK_ASSERT(column->info.kind == RK_COLUMN_STRINGS);
    RK_ASSERT(row >= 0);
    RK_ASSERT(row < column->info.num_rows);
    return column->texts[row];
}

size_t rk_column_row_bytes(const struct rk_column *column)
{
    size_t bytes = rk_dtype_bytes(column->info.dtype);

    for (int32_t i = 1; i < column->info.rank; i++)
        bytes *= (size_t)column->info.shape[i];
    return bytes;
}

char *rk_column_describe(const struct rk_column *column)
{
    struct rk_str text = {0};

    if (column->info.kind == RK_COLUMN_STRINGS)
        return rk_strdup(column->info.is_json ? "JSON strings" : "strings");
    rk_str_appendf(&text, "%s %s [", column->info.kind == RK_COLUMN_DENSE ? "dense" : "packed",
                   rk_dtype_name(column->info.dtype));
    for (int32_t i = 0; i < column->info.rank; i++)
        rk_str_appendf(&text, "%s%" PRId64, i ? ", " : "", column->info.shape[i]);
    rk_str_append(&text, "]");
    return rk_str_take(&text);
}

bool rk_column_equal(const struct rk_column *a, const struct rk_column *b)
{
    if (a->info.kind != b->info.kind || a->info.num_rows != b->info.num_rows)
        return false;
    if (a->info.kind == RK_COLUMN_STRINGS) {
        if (a->info.is_json != b->info.is_json)
            return false;
        for (int64_t i = 0; i < a->info.num_rows; i++) {
            if (strcmp(a->texts[i], b->texts[i]) != 0)
                return false;
        }
        return true;
    }
    if (a->info.dtype != b->info.dtype || a->info.rank != b->info.rank ||
        memcmp(a->info.shape, b->info.shape, (size_t)a->info.rank * sizeof(int64_t)) != 0)
        return false;
    if (a->info.kind == RK_COLUMN_PACKED &&
        memcmp(a->cu_seqlens, b->cu_seqlens, ((size_t)a->info.num_rows + 1) * sizeof(int64_t)) != 0)
        return false;
    return memcmp(rk_column_values(a), rk_column_values(b), a->bytes) == 0;
}
