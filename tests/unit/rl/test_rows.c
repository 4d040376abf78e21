/* Rows of data files: what is taken beyond strict JSON, what is refused and how, and limits. */
#include "rl/data/rows_internal.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "tests/support/test.h"

static struct rk_status *keep(void *user, struct rk_json *row, const struct rk_row_place *place,
                              bool *is_enough)
{
    char *text = rk_row_place_text(place);

    rk_json_set(row, "place", rk_json_new_string(text));
    rk_json_append(user, row);
    rk_free(text);
    *is_enough = false;
    return NULL;
}

static struct rk_status *read_text(struct rk_json *rows, const char *name, const char *text)
{
    char *path = rk_test_temp_path(name);
    struct rk_status *st;

    rk_test_write_file(path, text, strlen(text));
    st = rk_rows_read(path, keep, rows);
    rk_free(path);
    return st;
}

static void test_read_rows_of_python_are_taken(void **state)
{
    static const char text[] =
        "{\"x\": {\"ratio\": NaN, \"NaN\": \"NaN\"}}\n\n"
        "{\"big\": 18446744073709551615, \"least\": -9223372036854775808, \"most\": 9223372036854775807}\n"
        "{\"t\": \"a\\u0000b\"}\n";
    struct rk_json *rows = rk_json_new_array();
    const struct rk_json *row;

    (void)state;
    assert_ok(read_text(rows, "data.jsonl", text));
    assert_int_equal(rk_json_count(rows), 3);
    row = rk_json_find(rk_json_at(rows, 0), "x");
    assert_non_null(rk_json_find(row, "ratio"));
    assert_true(rk_json_is_null(rk_json_find(row, "ratio")));
    assert_string_equal(rk_json_as_string(rk_json_find(row, "NaN"), ""), "NaN");
    row = rk_json_at(rows, 1);
    assert_true(rk_json_as_real(rk_json_find(row, "big"), 0) == 18446744073709551616.0);
    assert_int_equal(rk_json_type(rk_json_find(row, "least")), RK_JSON_INT);
    assert_int_equal(rk_json_as_int(rk_json_find(row, "least"), 0), INT64_MIN);
    assert_int_equal(rk_json_as_int(rk_json_find(row, "most"), 0), INT64_MAX);
    assert_non_null(strstr(rk_json_as_string(rk_json_find(row, "place"), ""), "data.jsonl:3"));
    assert_int_equal(rk_json_string_bytes(rk_json_find(rk_json_at(rows, 2), "t")), 3);
    rk_json_free(rows);
}

static const struct {
    const char *label, *text, *message;
} bad_rows[] = {
    {"a member twice", "{\"a\": 1}\n{\"x\": {\"a\": [{\"b\": 1, \"b\": 2}]}}\n",
     "data.jsonl:2: x.a[0].b: occurs twice; remove one"},
    {"infinity", "{\"x\": {\"max\": -Infinity}}\n",
     "data.jsonl:1: x.max: expected a value near '-': JSON has no NaN and no infinity"},
    {"beyond double", "{\"x\": [1, 1e999]}\n", "data.jsonl:1: x[1]: the number is beyond the range"},
    {"NUL in a name", "{\"a\\u0000\": 1}\n", "data.jsonl:1: a\\u0000: a name with a NUL character"},
    {"end inside of a value", "{\"x\": {\"k\": [1,\n",
     "data.jsonl:1: x.k[1]: the text ends inside of a value"},
    {"no JSON", "{\"a\": 1}\nhello\n", "data.jsonl:2: "},
    {"bytes", "{\"a\": \"\xff\"}\n", "data.jsonl:1: a: the text is not valid UTF-8"},
};

static void test_read_bad_rows_name_member_and_remedy(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(bad_rows); i++) {
        struct rk_json *rows = rk_json_new_array();

        print_message("  %s\n", bad_rows[i].label);
        assert_fails(read_text(rows, "data.jsonl", bad_rows[i].text), RK_INVALID_ARGUMENT,
                     bad_rows[i].message);
        rk_json_free(rows);
    }
}

static void make_endless_files(void)
{
    char *zero = rk_test_temp_path("zero"), *fifo = rk_test_temp_path("pipe");
    char *dir = rk_test_temp_path("directory"), *sparse = rk_test_temp_path("sparse");
    char *line = rk_test_temp_path("long"), *array = rk_test_temp_path("array");
    char *row = rk_malloc(RK_ROW_BYTES_MAX + 2);

    assert_int_equal(symlink("/dev/zero", zero), 0);
    assert_int_equal(mkfifo(fifo, 0600), 0);
    assert_int_equal(mkdir(dir, 0700), 0);
    rk_test_write_file(sparse, "", 0);
    assert_int_equal(truncate(sparse, (off_t)200 << 30), 0);
    memset(row, '1', RK_ROW_BYTES_MAX + 2);
    rk_test_write_file(line, row, RK_ROW_BYTES_MAX + 2);
    row[0] = '[';
    rk_test_write_file(array, row, RK_ROW_BYTES_MAX + 2);
    rk_free(row);
    rk_free(zero);
    rk_free(fifo);
    rk_free(dir);
    rk_free(sparse);
    rk_free(line);
    rk_free(array);
}

/* Goal: what has no end, or one far away, is refused soon and with little memory. */
static void test_read_endless_files_are_refused(void **state)
{
    static const struct {
        const char *name;
        rk_code_t code;
        const char *message;
    } cases[] = {
        {"zero", RK_INVALID_ARGUMENT, "is a device, expected a file"},
        {"pipe", RK_INVALID_ARGUMENT, "is a pipe, expected a file"},
        {"directory", RK_INVALID_ARGUMENT, "is a directory, expected a file"},
        {"sparse", RK_INVALID_ARGUMENT, "sparse:1: a NUL byte"},
        {"long", RK_RESOURCE_EXHAUSTED, "long:1: the row has more than 16777216 bytes"},
        {"array", RK_RESOURCE_EXHAUSTED, "array:1: the row has more than 16777216 bytes"},
    };
    struct rk_json *rows = rk_json_new_array();

    (void)state;
    make_endless_files();
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *path = rk_test_temp_path(cases[i].name);

        assert_fails(rk_rows_read(path, keep, rows), cases[i].code, cases[i].message);
        rk_free(path);
    }
    rk_json_free(rows);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_read_rows_of_python_are_taken),
        cmocka_unit_test(test_read_bad_rows_name_member_and_remedy),
        cmocka_unit_test(test_read_endless_files_are_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
