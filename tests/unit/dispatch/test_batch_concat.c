/* Concatenation of batches: rows, verl's rules for meta, and the reduction of gathered metrics. */
#include "tests/unit/dispatch/batch_util.h"

#define MAX_PARTS 4

static void test_concat_of_chunks_is_the_whole(void **state)
{
    struct rk_batch *batch = make_rich(6), *parts[3], *whole;

    (void)state;
    set_meta(batch, "{\"temperature\": 1.0}");
    assert_ok(rk_batch_chunk(parts, batch, 3));
    assert_ok(rk_batch_concat(&whole, (const struct rk_batch *const *)parts, 3));
    assert_rows(whole, ROWS(0, 1, 2, 3, 4, 5));
    assert_rich(whole);
    assert_json(rk_batch_meta(whole), "{\"temperature\": 1.0}");
    for (int64_t i = 0; i < rk_batch_num_columns(batch); i++)
        assert_true(rk_column_equal(rk_batch_column_at(batch, i), rk_batch_column_at(whole, i)));
    for (int i = 0; i < 3; i++)
        rk_batch_destroy(parts[i]);
    rk_batch_destroy(whole);
    rk_batch_destroy(batch);
}

static void test_concat_every_dtype_keeps_its_bits(void **state)
{
    (void)state;
    for (int dtype = 1; dtype < RK_DTYPE_COUNT; dtype++) {
        int64_t shape[] = {4, 3};
        struct rk_batch *batch, *parts[2], *whole;
        void *data;

        assert_ok(rk_batch_create(&batch, 4));
        assert_ok(rk_batch_add_dense(batch, "x", (rk_dtype_t)dtype, 2, shape, &data));
        for (size_t i = 0; i < 12 * rk_dtype_bytes((rk_dtype_t)dtype); i++)
            ((unsigned char *)data)[i] = (unsigned char)(255 - 7 * i); /* includes -0.0 and NaN payloads */
        assert_ok(rk_batch_chunk(parts, batch, 2));
        assert_ok(rk_batch_concat(&whole, (const struct rk_batch *const *)parts, 2));
        assert_true(rk_column_equal(rk_batch_find(whole, "x"), rk_batch_find(batch, "x")));
        rk_batch_destroy(parts[0]);
        rk_batch_destroy(parts[1]);
        rk_batch_destroy(whole);
        rk_batch_destroy(batch);
    }
}

static void test_concat_batches_without_rows_have_only_meta(void **state)
{
    struct rk_batch *parts[2], *whole;

    (void)state;
    for (int i = 0; i < 2; i++) {
        assert_ok(rk_batch_create(&parts[i], 0));
        set_meta(parts[i], i ? "{\"metrics\": {\"loss\": 2}}" : "{\"metrics\": {\"loss\": 1}}");
    }
    assert_ok(rk_batch_concat(&whole, (const struct rk_batch *const *)parts, 2));
    assert_int_equal(rk_batch_num_rows(whole), 0);
    assert_int_equal(rk_batch_num_columns(whole), 0);
    assert_json(rk_batch_meta(whole), "{\"metrics\": {\"loss\": [1, 2]}}");
    rk_batch_destroy(parts[0]);
    rk_batch_destroy(parts[1]);
    rk_batch_destroy(whole);
}

static void test_concat_columns_that_disagree_are_named(void **state)
{
    struct rk_batch *parts[2], *whole;
    struct rk_column *column;
    void *data;

    (void)state;
    assert_fails(rk_batch_concat(&whole, NULL, 0), RK_INVALID_ARGUMENT, "no batches");
    parts[0] = make_rich(2);
    parts[1] = make_numbered(2);
    assert_fails(rk_batch_concat(&whole, (const struct rk_batch *const *)parts, 2), RK_INVALID_ARGUMENT,
                 "column 'pair' of part 0 is missing in part 1");
    rk_batch_destroy(parts[0]);
    parts[0] = make_numbered(2);
    assert_ok(rk_batch_add_dense(parts[1], "y", RK_DTYPE_F32, 1, (int64_t[]){2}, &data));
    assert_fails(rk_batch_concat(&whole, (const struct rk_batch *const *)parts, 2), RK_INVALID_ARGUMENT,
                 "column 'y' of part 1 is missing in part 0");
    assert_ok(rk_batch_add_dense(parts[0], "y", RK_DTYPE_BF16, 1, (int64_t[]){2}, &data));
    assert_fails(rk_batch_concat(&whole, (const struct rk_batch *const *)parts, 2), RK_INVALID_ARGUMENT,
                 "column 'y': dense bf16 [2] in part 0, dense f32 [2] in part 1");
    assert_ok(rk_batch_add_dense(parts[0], "y", RK_DTYPE_F32, 2, (int64_t[]){2, 3}, &data));
    assert_fails(rk_batch_concat(&whole, (const struct rk_batch *const *)parts, 2), RK_INVALID_ARGUMENT,
                 "column 'y': dense f32 [2, 3] in part 0");
    assert_ok(rk_column_create_strings(&column, 2, (const char *const[]){"1", "2"}, false));
    assert_ok(rk_batch_put_new(parts[0], "y", column));
    assert_ok(rk_column_create_strings(&column, 2, (const char *const[]){"1", "2"}, true));
    assert_ok(rk_batch_put_new(parts[1], "y", column));
    assert_fails(rk_batch_concat(&whole, (const struct rk_batch *const *)parts, 2), RK_INVALID_ARGUMENT,
                 "column 'y': strings in part 0, JSON strings in part 1");
    assert_null(whole);
    rk_batch_destroy(parts[0]);
    rk_batch_destroy(parts[1]);
}

/* --- meta --- */

static const struct {
    const char *label;
    const char *metas[MAX_PARTS];
    const char *expected; /* NULL: refused */
    const char *error;
} meta_cases[] = {
    {"equal values stay",
     {"{\"temperature\": 1.0}", "{\"temperature\": 1.0}"},
     "{\"temperature\": 1.0}",
     NULL},
    {"in one part only", {"{\"a\": 1}", "{\"b\": {\"c\": [2]}}"}, "{\"a\": 1, \"b\": {\"c\": [2]}}", NULL},
    {"metrics of two parts",
     {"{\"metrics\": {\"a\": 1}}", "{\"metrics\": {\"a\": 3}}"},
     "{\"metrics\": {\"a\": [1, 3]}}",
     NULL},
    {"a list of metrics",
     {"{\"metrics\": [{\"a\": 1}, {\"a\": 2}]}", "{\"metrics\": {\"a\": 5}}"},
     "{\"metrics\": {\"a\": [1, 2, 5]}}",
     NULL},
    {"values that are lists already",
     {"{\"metrics\": {\"a\": [1, 2]}}", "{\"metrics\": {\"a\": [3]}}"},
     "{\"metrics\": {\"a\": [[1, 2], [3]]}}",
     NULL},
    {"null is ignored",
     {"{\"metrics\": null}", "{\"metrics\": {\"a\": 5}}"},
     "{\"metrics\": {\"a\": [5]}}",
     NULL},
    {"null everywhere", {"{\"metrics\": null}", "{\"metrics\": [null]}"}, "{}", NULL},
    {"a part without metrics", {"{\"metrics\": {\"a\": 5}}", "{}"}, "{\"metrics\": {\"a\": [5]}}", NULL},
    {"a key that later parts miss",
     {"{\"metrics\": {\"a\": 1, \"b\": 2}}", "{\"metrics\": {\"a\": 3}}"},
     "{\"metrics\": {\"a\": [1, 3], \"b\": [2]}}",
     NULL},
    {"a key that the first part misses",
     {"{\"metrics\": {\"a\": 1}}", "{\"metrics\": {\"a\": 1, \"b\": 2}}"},
     NULL,
     "metric 'b' is missing in the first part"},
    {"conflict",
     {"{\"temperature\": 1.0}", "{\"temperature\": 0.7}"},
     NULL,
     "Conflicting values for meta_info key 'temperature'"},
    {"conflict of the third part", {"{\"a\": 1}", "{}", "{\"a\": 2}"}, NULL, "meta_info key 'a'"},
    {"conflict of types", {"{\"a\": 1}", "{\"a\": \"1\"}"}, NULL, "meta_info key 'a'"},
    {"metrics that are no object",
     {"{}", "{\"metrics\": 3}"},
     NULL,
     "meta 'metrics' of part 1 is an integer"},
    {"a list with a number", {"{\"metrics\": [3]}"}, NULL, "meta 'metrics' of part 0 is an integer"},
};

static void run_meta_case(size_t i)
{
    struct rk_batch *parts[MAX_PARTS], *whole;
    int64_t count = 0;

    print_message("%s\n", meta_cases[i].label);
    for (; count < MAX_PARTS && meta_cases[i].metas[count]; count++) {
        parts[count] = make_numbered(1);
        set_meta(parts[count], meta_cases[i].metas[count]);
    }
    if (meta_cases[i].error) {
        assert_fails(rk_batch_concat(&whole, (const struct rk_batch *const *)parts, count),
                     RK_INVALID_ARGUMENT, meta_cases[i].error);
        assert_null(whole);
    } else {
        assert_ok(rk_batch_concat(&whole, (const struct rk_batch *const *)parts, count));
        assert_json(rk_batch_meta(whole), meta_cases[i].expected);
        rk_batch_destroy(whole);
    }
    for (int64_t k = 0; k < count; k++)
        rk_batch_destroy(parts[k]);
}

static void test_concat_meta(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(meta_cases); i++)
        run_meta_case(i);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_concat_of_chunks_is_the_whole),
        cmocka_unit_test(test_concat_every_dtype_keeps_its_bits),
        cmocka_unit_test(test_concat_batches_without_rows_have_only_meta),
        cmocka_unit_test(test_concat_columns_that_disagree_are_named),
        cmocka_unit_test(test_concat_meta),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
