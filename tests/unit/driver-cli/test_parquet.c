/* Parquet files of pyarrow, pandas and datasets against the rows that pyarrow reads
 * (tests/golden/gen/make_parquet.py), and damaged ones. */
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_file.h"
#include "driver-cli/driver/data/rows_internal.h"
#include "tests/support/test.h"

#define FILE_BYTES_MAX (1 << 20)

static char *golden_path(const char *name, const char *suffix)
{
    char *relative = rk_format("../tests/golden/parquet/%s.%s", name, suffix);
    char *path = rk_test_fixture_path(relative);

    rk_free(relative);
    return path;
}

static struct rk_status *keep(void *user, struct rk_json *row, const struct rk_row_place *place,
                              bool *is_enough)
{
    (void)place;
    (void)is_enough;
    rk_json_append(user, row);
    return NULL;
}

static struct rk_status *read_golden(struct rk_json *rows, const char *name, const char *suffix)
{
    char *path = golden_path(name, suffix);
    struct rk_status *st = rk_rows_read(path, keep, rows);

    rk_free(path);
    return st;
}

static const struct {
    const char *name;
    const char *rows; /* of this file; NULL: of its own */
} good_files[] = {
    {"rl_none", NULL},
    {"rl_snappy", "rl_none"},
    {"rl_gzip", "rl_none"},
    {"rl_brotli", "rl_none"},
    {"rl_zstd", "rl_none"},
    {"rl_lz4", "rl_none"},
    {"rl_groups", "rl_none"},
    {"rl_pages", "rl_none"},
    {"rl_v2_plain", "rl_none"},
    {"rl_checksums", "rl_none"},
    {"typed", NULL},
    {"typed_v2", "typed"},
    {"typed_plain", "typed"},
    {"typed_1_0", NULL},
    {"int96", NULL},
    {"delta_integers", NULL},
    {"delta_length", NULL},
    {"delta_bytes", NULL},
    {"split", NULL},
    {"old_lists", NULL},
    {"empty", NULL},
    {"pandas_rl", NULL},
    {"pandas_sft", NULL},
    {"datasets_rl", NULL},
    {"datasets_sft", NULL},
};

static void test_read_rows_are_those_of_pyarrow(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(good_files); i++) {
        struct rk_json *expected = rk_json_new_array(), *rows = rk_json_new_array();

        print_message("  %s\n", good_files[i].name);
        assert_ok(
            read_golden(expected, good_files[i].rows ? good_files[i].rows : good_files[i].name, "jsonl"));
        assert_ok(read_golden(rows, good_files[i].name, "parquet"));
        assert_int_equal(rk_json_count(rows), rk_json_count(expected));
        assert_true(rk_json_equal(rows, expected));
        rk_json_free(expected);
        rk_json_free(rows);
    }
}

static void test_read_long_texts_and_numbers_beyond_json(void **state)
{
    struct rk_json *rows = rk_json_new_array();

    (void)state;
    assert_ok(read_golden(rows, "long_text", "parquet"));
    assert_int_equal(rk_json_count(rows), 3);
    assert_int_equal(rk_json_string_bytes(rk_json_find(rk_json_at(rows, 0), "text")), 3 << 20);
    assert_string_equal(rk_json_as_string(rk_json_find(rk_json_at(rows, 1), "text"), ""), "short");
    assert_ok(read_golden(rows, "nan", "parquet"));
    assert_true(rk_json_as_real(rk_json_find_path(rk_json_at(rows, 3), "x.ratio"), 0) == 1.5);
    assert_int_equal(rk_json_count(rk_json_find(rk_json_at(rows, 4), "x")),
                     0); /* null members are left out */
    assert_ok(read_golden(rows, "big", "parquet"));
    assert_true(rk_json_as_real(rk_json_find(rk_json_at(rows, 6), "x"), 0) == 18446744073709551616.0);
    rk_json_free(rows);
}

static const struct {
    const char *name;
    rk_code_t code;
    const char *message;
} bad_files[] = {
    {"infinity", RK_INVALID_ARGUMENT, "infinity.parquet:row 0: x.list: JSON has no infinity"},
    {"bytes", RK_INVALID_ARGUMENT, "bytes.parquet:row 0: x.raw: bytes have no JSON form"},
    {"twins", RK_INVALID_ARGUMENT, "twins.parquet: two columns have the name 'x'"},
    {"long_row", RK_RESOURCE_EXHAUSTED, "long_row.parquet:row 0: x: the row has more than 16777216 bytes"},
    {"rl_damaged", RK_DATA_LOSS, "a page is damaged: its checksum differs"},
};

static void test_read_bad_files_are_named(void **state)
{
    struct rk_json *rows = rk_json_new_array();

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(bad_files); i++)
        assert_fails(read_golden(rows, bad_files[i].name, "parquet"), bad_files[i].code,
                     bad_files[i].message);
    rk_json_free(rows);
}

/* Goal: a file that is cut anywhere is refused. */
static void test_read_cut_files_are_refused(void **state)
{
    char *path = golden_path("delta_bytes", "parquet"), *cut = rk_test_temp_path("cut.parquet"), *text;
    struct rk_json *rows = rk_json_new_array();
    size_t bytes;

    (void)state;
    assert_ok(rk_file_read(&text, &bytes, path, FILE_BYTES_MAX));
    for (size_t i = 4; i < bytes; i += 7) {
        rk_test_write_file(cut, text, i);
        assert_fails(rk_rows_read(cut, keep, rows), RK_DATA_LOSS, "cut.parquet: ");
    }
    rk_json_free(rows);
    rk_free(text);
    rk_free(path);
    rk_free(cut);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_rows_are_those_of_pyarrow),
        cmocka_unit_test(test_read_long_texts_and_numbers_beyond_json),
        cmocka_unit_test(test_read_bad_files_are_named),
        cmocka_unit_test(test_read_cut_files_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
