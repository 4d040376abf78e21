/* Batches on disk: round trips, files written by the safetensors library, and files that are not batches. */
#include "tests/unit/dispatch/batch_util.h"

#include "base/format/rk_safetensors.h"

static void assert_same(const struct rk_batch *a, const struct rk_batch *b)
{
    assert_int_equal(rk_batch_num_rows(a), rk_batch_num_rows(b));
    assert_int_equal(rk_batch_num_columns(a), rk_batch_num_columns(b));
    for (int64_t i = 0; i < rk_batch_num_columns(a); i++) {
        const struct rk_column *other = rk_batch_find(b, rk_batch_name_at(a, i));

        assert_non_null(other);
        assert_true(rk_column_equal(rk_batch_column_at(a, i), other));
    }
    assert_true(rk_json_equal(rk_batch_meta(a), rk_batch_meta(b)));
}

static void check_round_trip(const struct rk_batch *batch)
{
    char *path = rk_test_temp_path("batch.safetensors");
    struct rk_batch *again;

    assert_ok(rk_batch_write_file(batch, path));
    assert_ok(rk_batch_read_file(&again, path));
    assert_same(batch, again);
    rk_batch_destroy(again);
    rk_free(path);
}

static void test_round_trip_every_kind_of_column(void **state)
{
    struct rk_batch *batch = make_rich(5), *part;
    struct rk_column *column;

    (void)state;
    set_meta(batch,
             "{\"temperature\": 1.0, \"steps\": 3, \"list\": [1, {\"a\": null}], \"text\": \"\\u00e4\"}");
    /* A JSON column whose values are all strings remains a JSON column. */
    assert_ok(rk_column_create_strings(
        &column, 5, (const char *const[]){"\"a\"", "\"b\"", "\"\"", "\"\\u0000\"", "\"d\""}, true));
    assert_ok(rk_batch_put_new(batch, "json_strings", column));
    assert_ok(rk_column_create_strings(
        &column, 5, (const char *const[]){"1", "null", "{\"a\":1.0}", "true", "\"x\""}, true));
    assert_ok(rk_batch_put_new(batch, "mixed", column));
    check_round_trip(batch);
    assert_ok(rk_batch_slice(&part, batch, 1, 4, 2)); /* a slice with an offset into its storage */
    check_round_trip(part);
    rk_batch_destroy(part);
    rk_batch_destroy(batch);
}

static void test_round_trip_without_rows_or_columns(void **state)
{
    struct rk_batch *rows = make_rich(0), *nothing;

    (void)state;
    check_round_trip(rows);
    assert_ok(rk_batch_create(&nothing, 0));
    set_meta(nothing, "{\"metrics\": {\"loss\": 1.5}}");
    check_round_trip(nothing);
    rk_batch_destroy(rows);
    rk_batch_destroy(nothing);
}

static void test_round_trip_every_dtype(void **state)
{
    struct rk_batch *batch;

    (void)state;
    assert_ok(rk_batch_create(&batch, 2));
    for (int dtype = 1; dtype < RK_DTYPE_COUNT; dtype++) {
        char *name = rk_format("column_%s", rk_dtype_name((rk_dtype_t)dtype));
        size_t bytes = 6 * rk_dtype_bytes((rk_dtype_t)dtype);
        void *data;

        assert_ok(rk_batch_add_dense(batch, name, (rk_dtype_t)dtype, 2, (int64_t[]){2, 3}, &data));
        for (size_t i = 0; i < bytes; i++)
            ((unsigned char *)data)[i] = (unsigned char)(dtype == RK_DTYPE_BOOL ? i % 2 : 255 - 3 * i);
        rk_free(name);
    }
    check_round_trip(batch);
    rk_batch_destroy(batch);
}

/* Writes a safetensors file of one JSON header; its data are zeros. */
static char *write_file(const char *header, size_t data_bytes)
{
    char *path = rk_test_temp_path("given.safetensors");
    struct rk_str file = {0};
    uint64_t bytes = strlen(header);

    rk_str_append_bytes(&file, (const char *)&bytes, sizeof(bytes));
    rk_str_append(&file, header);
    for (size_t i = 0; i < data_bytes; i++)
        rk_str_append_bytes(&file, "", 1);
    rk_test_write_file(path, file.text, file.bytes);
    rk_str_fini(&file);
    return path;
}

#define I64(name, shape, begin, end) \
    "\"" name "\": {\"dtype\": \"I64\", \"shape\": " shape ", \"data_offsets\": [" begin ", " end "]}"
#define METADATA(text) "\"__metadata__\": {" text "}"

static void test_read_file_of_the_stock_library(void **state)
{
    char *path = write_file("{" METADATA("\"format\": \"pt\"") ", " I64("x", "[2, 3]", "0", "48") "}", 48);
    struct rk_batch *batch;

    (void)state;
    assert_ok(rk_batch_read_file(&batch, path));
    assert_int_equal(rk_batch_num_rows(batch), 2);
    assert_int_equal(rk_batch_num_columns(batch), 1);
    assert_json(rk_batch_meta(batch), "{}");
    rk_batch_destroy(batch);
    rk_free(path);
}

/* Columns as a Python user writes them: the header does not state which ones are JSON. */
static void test_read_columns_without_rankd_json(void **state)
{
    char *path = write_file("{" METADATA("\"rankd.columns\": \"{\\\"uid\\\": [\\\"a\\\", \\\"b\\\"], "
                                         "\\\"info\\\": [{\\\"k\\\": 1}, \\\"text\\\"]}\", "
                                         "\"rankd.meta\": \"{\\\"n\\\": 2}\"") "}",
                            0);
    struct rk_batch *batch;

    (void)state;
    assert_ok(rk_batch_read_file(&batch, path));
    assert_int_equal(rk_batch_num_rows(batch), 2);
    assert_false(rk_column_get_info(rk_batch_find(batch, "uid")).is_json);
    assert_string_equal(rk_column_string(rk_batch_find(batch, "uid"), 1), "b");
    assert_true(rk_column_get_info(rk_batch_find(batch, "info")).is_json);
    assert_string_equal(rk_column_string(rk_batch_find(batch, "info"), 1), "\"text\"");
    assert_json(rk_batch_meta(batch), "{\"n\": 2}");
    rk_batch_destroy(batch);
    rk_free(path);
}

static const struct {
    const char *label;
    const char *header;
    size_t data_bytes;
    rk_code_t code;
    const char *error;
} bad_files[] = {
    {"rows differ", "{" I64("a", "[2]", "0", "16") ", " I64("b", "[3]", "16", "40") "}", 40,
     RK_INVALID_ARGUMENT, "column 'b' has 3 rows, the batch has 2"},
    {"a scalar", "{" I64("a", "[]", "0", "8") "}", 8, RK_INVALID_ARGUMENT, "1 to 4 dimensions, got 0"},
    {"five dimensions", "{" I64("a", "[1, 1, 1, 1, 1]", "0", "8") "}", 8, RK_INVALID_ARGUMENT, "got 5"},
    {"columns are no object", "{" METADATA("\"rankd.columns\": \"[]\"") "}", 0, RK_INVALID_ARGUMENT,
     "'rankd.columns' is an array, expected an object"},
    {"columns are no JSON", "{" METADATA("\"rankd.columns\": \"{\"") "}", 0, RK_INVALID_ARGUMENT,
     "rankd.columns"},
    {"a column is no array", "{" METADATA("\"rankd.columns\": \"{\\\"u\\\": 3}\"") "}", 0,
     RK_INVALID_ARGUMENT, "column 'u' of 'rankd.columns' is an integer"},
    {"strings of other length",
     "{" METADATA("\"rankd.columns\": \"{\\\"u\\\": [\\\"a\\\"]}\"") ", " I64("x", "[2]", "0", "16") "}", 16,
     RK_INVALID_ARGUMENT, "column 'u' has 1 rows, the batch has 2"},
    {"NUL in a string", "{" METADATA("\"rankd.columns\": \"{\\\"u\\\": [\\\"a\\\\u0000\\\"]}\"") "}", 0,
     RK_INVALID_ARGUMENT, "row 0 holds a NUL"},
    {"one name, two columns",
     "{" METADATA("\"rankd.columns\": \"{\\\"x\\\": [\\\"a\\\", \\\"b\\\"]}\"") ", " I64("x", "[2]", "0",
                                                                                         "16") "}",
     16, RK_INVALID_ARGUMENT, "column 'x'"},
    {"meta is no object", "{" METADATA("\"rankd.meta\": \"3\"") "}", 0, RK_INVALID_ARGUMENT,
     "'rankd.meta' is an integer"},
    {"prefix sums of another total",
     "{" I64("p.values", "[3]", "0", "24") ", " I64("p.cu_seqlens", "[2]", "24", "40") "}", 40,
     RK_INVALID_ARGUMENT, "3 values, but cu_seqlens ends with 0"},
    {"prefix sums without entries",
     "{" I64("p.values", "[0]", "0", "0") ", " I64("p.cu_seqlens", "[0]", "0", "0") "}", 0,
     RK_INVALID_ARGUMENT, "tensor 'p.cu_seqlens' must be i64 [rows + 1]"},
    {"prefix sums with two dimensions",
     "{" I64("p.values", "[0]", "0", "0") ", " I64("p.cu_seqlens", "[1, 1]", "0", "8") "}", 8,
     RK_INVALID_ARGUMENT, "must be i64 [rows + 1]"},
    {"torn file", "{" I64("x", "[2]", "0", "16") "}", 15, RK_DATA_LOSS, "given.safetensors"},
};

static void test_read_bad_files_are_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(bad_files); i++) {
        char *path = write_file(bad_files[i].header, bad_files[i].data_bytes);
        struct rk_batch *batch;

        print_message("%s\n", bad_files[i].label);
        assert_fails(rk_batch_read_file(&batch, path), bad_files[i].code, bad_files[i].error);
        assert_null(batch);
        rk_free(path);
    }
}

static void test_read_missing_file_is_not_found(void **state)
{
    char *path = rk_test_temp_path("nowhere.safetensors");
    struct rk_batch *batch;

    (void)state;
    assert_fails(rk_batch_read_file(&batch, path), RK_NOT_FOUND, "reading the batch");
    assert_null(batch);
    rk_free(path);
}

static void test_write_to_missing_directory_leaves_nothing(void **state)
{
    char *path = rk_test_temp_path("no/such/directory.safetensors");
    struct rk_batch *batch = make_rich(2);
    struct rk_status *st = rk_batch_write_file(batch, path);

    (void)state;
    assert_non_null(st);
    assert_message_contains(st, "writing the batch");
    rk_batch_destroy(batch);
    rk_free(path);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip_every_kind_of_column),
        cmocka_unit_test(test_round_trip_without_rows_or_columns),
        cmocka_unit_test(test_round_trip_every_dtype),
        cmocka_unit_test(test_read_file_of_the_stock_library),
        cmocka_unit_test(test_read_columns_without_rankd_json),
        cmocka_unit_test(test_read_bad_files_are_refused),
        cmocka_unit_test(test_read_missing_file_is_not_found),
        cmocka_unit_test(test_write_to_missing_directory_leaves_nothing),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
