/* Makes small batches and compares their rows. */
#ifndef RK_TEST_BATCH_UTIL_H
#define RK_TEST_BATCH_UTIL_H

#include "tests/support/test.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_compiler.h"
#include "dispatch/rk_batch.h"

/* A batch with column "x", i64 [num_rows], of these values. */
static inline struct rk_batch *make_batch(int64_t num_rows, const int64_t *values)
{
    struct rk_batch *batch;
    void *data;

    assert_ok(rk_batch_create(&batch, num_rows));
    assert_ok(rk_batch_add_dense(batch, "x", RK_DTYPE_I64, 1, &num_rows, &data));
    if (num_rows)
        memcpy(data, values, (size_t)num_rows * sizeof(*values));
    return batch;
}

/* Column "x" = 0, 1, 2, ... */
static inline struct rk_batch *make_numbered(int64_t num_rows)
{
    struct rk_batch *batch;
    int64_t *data;
    void *memory;

    assert_ok(rk_batch_create(&batch, num_rows));
    assert_ok(rk_batch_add_dense(batch, "x", RK_DTYPE_I64, 1, &num_rows, &memory));
    data = memory;
    for (int64_t i = 0; i < num_rows; i++)
        data[i] = i;
    return batch;
}

/* The numbered batch with a column of every kind whose rows follow from "x":
 * "pair" f32 [rows, 2] = (x, -x); "list" packed i32 with x values x; "uid" strings "u<x>"; "json" JSON [x].
 */
static inline struct rk_batch *make_rich(int64_t num_rows)
{
    struct rk_batch *batch = make_numbered(num_rows);
    int64_t *cu_seqlens = rk_calloc((size_t)num_rows + 1, sizeof(*cu_seqlens));
    char **uids = rk_calloc((size_t)num_rows, sizeof(*uids)),
         **jsons = rk_calloc((size_t)num_rows, sizeof(*jsons));
    struct rk_column *column;
    void *pair;

    assert_ok(rk_batch_add_dense(batch, "pair", RK_DTYPE_F32, 2, (int64_t[]){num_rows, 2}, &pair));
    for (int64_t i = 0; i < num_rows; i++) {
        ((float *)pair)[2 * i] = (float)i;
        ((float *)pair)[2 * i + 1] = -(float)i;
        cu_seqlens[i + 1] = cu_seqlens[i] + i;
        uids[i] = rk_format("u%lld", (long long)i);
        jsons[i] = rk_format("[%lld]", (long long)i);
    }
    assert_ok(rk_column_create_packed(&column, RK_DTYPE_I32, num_rows, cu_seqlens, 1, &cu_seqlens[num_rows]));
    for (int64_t i = 0; i < num_rows; i++) {
        for (int64_t k = cu_seqlens[i]; k < cu_seqlens[i + 1]; k++)
            ((int32_t *)rk_column_data(column))[k] = (int32_t)i;
    }
    assert_ok(rk_batch_put_new(batch, "list", column));
    assert_ok(rk_column_create_strings(&column, num_rows, (const char *const *)uids, false));
    assert_ok(rk_batch_put_new(batch, "uid", column));
    assert_ok(rk_column_create_strings(&column, num_rows, (const char *const *)jsons, true));
    assert_ok(rk_batch_put_new(batch, "json", column));
    for (int64_t i = 0; i < num_rows; i++) {
        rk_free(uids[i]);
        rk_free(jsons[i]);
    }
    rk_free(uids);
    rk_free(jsons);
    rk_free(cu_seqlens);
    return batch;
}

static inline void assert_rows(const struct rk_batch *batch, int64_t num_rows, const int64_t *values)
{
    const void *data;
    int64_t shape[1];

    assert_int_equal(rk_batch_num_rows(batch), num_rows);
    assert_ok(rk_batch_get_dense(batch, "x", RK_DTYPE_I64, 1, shape, &data));
    assert_int_equal(shape[0], num_rows);
    if (num_rows)
        assert_memory_equal(data, values, (size_t)num_rows * sizeof(*values));
}

/* All columns of a batch cut from make_rich agree with its "x". */
static inline void assert_rich(const struct rk_batch *batch)
{
    const struct rk_column *list = rk_batch_find(batch, "list");
    const void *x, *pair;

    assert_ok(rk_batch_get_dense(batch, "x", RK_DTYPE_I64, 1, NULL, &x));
    assert_ok(rk_batch_get_dense(batch, "pair", RK_DTYPE_F32, 2, NULL, &pair));
    assert_non_null(list);
    for (int64_t i = 0; i < rk_batch_num_rows(batch); i++) {
        int64_t value = ((const int64_t *)x)[i];
        const int64_t *cu_seqlens = rk_column_cu_seqlens(list);
        char *uid = rk_format("u%lld", (long long)value), *json = rk_format("[%lld]", (long long)value);

        assert_true(((const float *)pair)[2 * i] == (float)value);
        assert_true(((const float *)pair)[2 * i + 1] == -(float)value);
        assert_int_equal(cu_seqlens[i + 1] - cu_seqlens[i], value);
        for (int64_t k = cu_seqlens[i]; k < cu_seqlens[i + 1]; k++)
            assert_int_equal(((const int32_t *)rk_column_values(list))[k], value);
        assert_string_equal(rk_column_string(rk_batch_find(batch, "uid"), i), uid);
        assert_string_equal(rk_column_string(rk_batch_find(batch, "json"), i), json);
        rk_free(uid);
        rk_free(json);
    }
}

static inline struct rk_json *parse_json(const char *text)
{
    struct rk_json *json;

    assert_ok(rk_json_parse(&json, text, strlen(text), "test", 0));
    return json;
}

/* meta as JSON text. */
static inline void set_meta(struct rk_batch *batch, const char *text)
{
    struct rk_json *object = parse_json(text);

    for (void *it = rk_json_iter(object); it; it = rk_json_iter_next(object, it))
        rk_batch_set_meta(batch, rk_json_iter_key(it), rk_json_clone(rk_json_iter_value(it)));
    rk_json_free(object);
}

static inline void assert_json(const struct rk_json *json, const char *text)
{
    struct rk_json *expected = parse_json(text);
    char *got = rk_json_dump(json, 0, false);

    if (!rk_json_equal(json, expected))
        fail_msg("got %s, expected %s", got, text);
    rk_free(got);
    rk_json_free(expected);
}

#define ROWS(...) RK_ARRAY_LEN(((int64_t[]){__VA_ARGS__})), ((int64_t[]){__VA_ARGS__})

#endif
