/* Parquet files of pyarrow, pandas and datasets against the rows that pyarrow reads
 * (tests/golden/gen/make_parquet.py), and damaged ones. */
#include <fcntl.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_file.h"
#include "rl/data/parquet_internal.h"
#include "rl/data/rows_internal.h"
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

/* Files by hand, in Thrift's compact protocol: a page at the offset 4, and FileMetaData. The column is
 * "r.x", an INT32. */
#define COLUMNS       "\x2c\x48\x01r\x15\x02\x00\x15\x02\x38\x01x\x00"
#define INT64_LARGEST "\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"

#define BYTES(text) (text), sizeof(text) - 1

static const struct {
    const char *page;
    size_t page_bytes;
    const char *footer;
    size_t footer_bytes;
    const char *message; /* NULL: no rows, and no error */
} crafted[] = {
    /* A map of booleans: a byte for each of them. */
    {BYTES(""), BYTES("\x29" COLUMNS "\x7b\x01\x11\x01\x02\x00"), NULL},
    {BYTES(""), BYTES("\x29" COLUMNS "\x7b\x80\x80\x80\x80\x80\x80\x80\x80\x80\x01\x11\x00"),
     "the footer is damaged: it is not complete"},
    /* A group of 2 rows without a column, and the columns after it. */
    {BYTES(""), BYTES("\x49\x1c\x36\x04\x00\x09\x04" COLUMNS "\x00"),
     "the footer is damaged: row groups before the columns"},
    /* A page whose levels have 2^63 - 1 bytes each. */
    {BYTES("\x15\x06\x15\x00\x15\x00\x5c\x15\x02\x46" INT64_LARGEST "\x16" INT64_LARGEST "\x00\x00"),
     BYTES("\x29" COLUMNS "\x29\x1c\x19\x1c\x3c\x56\x02\x26\x46\x26\x08\x00\x00\x26\x02\x00\x00"),
     "x: a page is damaged"},
};

/* rk_free the path. */
static char *write_crafted(const char *page, size_t page_bytes, const char *footer, size_t footer_bytes)
{
    char *path = rk_test_temp_path("crafted.parquet"), length[4] = {(char)footer_bytes};
    struct rk_str file = {0};

    rk_str_append(&file, "PAR1");
    rk_str_append_bytes(&file, page, page_bytes);
    rk_str_append_bytes(&file, footer, footer_bytes);
    rk_str_append_bytes(&file, length, sizeof(length));
    rk_str_append(&file, "PAR1");
    rk_test_write_file(path, file.text, file.bytes);
    rk_str_fini(&file);
    return path;
}

static void test_read_damaged_metadata_is_refused(void **state)
{
    struct rk_json *rows = rk_json_new_array();

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(crafted); i++) {
        char *path =
            write_crafted(crafted[i].page, crafted[i].page_bytes, crafted[i].footer, crafted[i].footer_bytes);

        if (crafted[i].message)
            assert_fails(rk_rows_read(path, keep, rows), RK_DATA_LOSS, crafted[i].message);
        else
            assert_ok(rk_rows_read(path, keep, rows));
        rk_free(path);
    }
    assert_int_equal(rk_json_count(rows), 0);
    rk_json_free(rows);
}

/* Goal: a row counts once, however many of its values JSON does not have. The columns r.x and r.y share a
 * page with a NaN. */
static void test_read_counts_rows_with_nan(void **state)
{
    static const char page[] = "\x15\x00\x15\x10\x15\x10\x2c\x15\x02\x15\x00\x15\x06\x15\x06\x00\x00"
                               "\x00\x00\x00\x00\x00\x00\xf8\x7f";
    static const char footer[] = "\x29\x3c\x48\x01r\x15\x04\x00\x15\x0a\x38\x01x\x00\x15\x0a\x38\x01y\x00"
                                 "\x29\x1c\x19\x2c\x3c\x56\x02\x26\x32\x26\x08\x00\x00"
                                 "\x3c\x56\x02\x26\x32\x26\x08\x00\x00\x26\x02\x00\x00";
    char *path = write_crafted(BYTES(page), BYTES(footer));
    struct rk_parquet *file;
    struct rk_json *row;
    int64_t count;

    (void)state;
    assert_ok(rk_parquet_open(&file, open(path, O_RDONLY | O_CLOEXEC)));
    assert_ok(rk_parquet_next(file, &row));
    assert_int_equal(rk_json_count(row), 0);
    rk_json_free(row);
    assert_string_equal(rk_parquet_mended(file, &count), "row 0: x: NaN");
    assert_int_equal(count, 1);
    rk_parquet_close(file);
    rk_free(path);
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
        cmocka_unit_test(test_read_damaged_metadata_is_refused),
        cmocka_unit_test(test_read_counts_rows_with_nan),
        cmocka_unit_test(test_read_cut_files_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
