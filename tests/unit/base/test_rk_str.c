#include "base/rk_str.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "tests/support/test.h"

static void test_str_append_grows_and_stays_terminated(void **state)
{
    struct rk_str str = {0};

    (void)state;
    assert_string_equal(rk_str_text(&str), "");
    for (int i = 0; i < 1000; i++)
        rk_str_appendf(&str, "%d,", i % 10);
    rk_str_append_bytes(&str, "a\0b", 3);
    assert_int_equal(str.bytes, 2003);
    assert_int_equal(str.text[2003], '\0');
    assert_memory_equal(str.text + 1998, "9,a\0b", 5);
    rk_str_clear(&str);
    assert_string_equal(rk_str_text(&str), "");
    rk_str_append(&str, "x");
    assert_string_equal(rk_str_text(&str), "x");
    rk_str_fini(&str);
}

static void test_str_take_empties_the_builder(void **state)
{
    struct rk_str str = {0};
    char *empty = rk_str_take(&str), *text;

    (void)state;
    assert_string_equal(empty, "");
    rk_str_append(&str, "abc");
    text = rk_str_take(&str);
    assert_string_equal(text, "abc");
    assert_null(str.text);
    rk_free(empty);
    rk_free(text);
}

static void test_path_join_gives_one_slash(void **state)
{
    static const struct {
        const char *dir, *name, *expected;
    } cases[] = {
        {"a", "b", "a/b"}, {"a/", "b", "a/b"}, {"a//", "//b", "a/b"}, {"/", "b", "/b"}, {"", "b", "b"}};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *joined = rk_path_join(cases[i].dir, cases[i].name);

        assert_string_equal(joined, cases[i].expected);
        rk_free(joined);
    }
}

static void test_path_dir_table(void **state)
{
    static const struct {
        const char *path, *expected;
    } cases[] = {{"a/b", "a"}, {"a/b/c", "a/b"}, {"/a/b", "/a"}, {"/b", "/"}, {"b", "."}, {"a/", "a"}};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *dir = rk_path_dir(cases[i].path);

        assert_string_equal(dir, cases[i].expected);
        rk_free(dir);
    }
}

static void test_utf8_control_bytes_table(void **state)
{
    static const struct {
        const char *text;
        int bytes;
    } cases[] = {{"", 0},         {"a", 0},        {"\n", 1},       {"\x1b[2J", 1}, {"\x7f", 1},    {" ", 0},
                 {"\xc2\x80", 2}, {"\xc2\x9f", 2}, {"\xc2\xa0", 0}, {"\xc2", 0},    {"\xc3\xbc", 0}};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++)
        assert_int_equal(rk_utf8_control_bytes(cases[i].text), cases[i].bytes);
}

static void test_has_prefix_and_suffix_table(void **state)
{
    (void)state;
    assert_true(rk_str_has_prefix("abc", "ab"));
    assert_true(rk_str_has_prefix("abc", ""));
    assert_false(rk_str_has_prefix("ab", "abc"));
    assert_true(rk_str_has_suffix("a.json", ".json"));
    assert_false(rk_str_has_suffix("json", ".json"));
    assert_false(rk_str_has_suffix("a.jso", ".json"));
}

/* Method: boundary code points of every length, and every kind of malformed sequence. */
static void test_utf8_is_valid_table(void **state)
{
    static const struct {
        const char *label, *data;
        size_t bytes;
        bool expected;
    } cases[] = {
        {"empty", "", 0, true},
        {"ascii", "abc", 3, true},
        {"U+0080", "\xc2\x80", 2, true},
        {"U+07FF", "\xdf\xbf", 2, true},
        {"U+0800", "\xe0\xa0\x80", 3, true},
        {"U+D7FF", "\xed\x9f\xbf", 3, true},
        {"U+E000", "\xee\x80\x80", 3, true},
        {"U+10000", "\xf0\x90\x80\x80", 4, true},
        {"U+10FFFF", "\xf4\x8f\xbf\xbf", 4, true},
        {"NUL", "a\0b", 3, false},
        {"lone continuation", "\x80", 1, false},
        {"overlong slash", "\xc0\xaf", 2, false},
        {"overlong two", "\xc1\xbf", 2, false},
        {"overlong three", "\xe0\x9f\xbf", 3, false},
        {"overlong four", "\xf0\x8f\xbf\xbf", 4, false},
        {"surrogate", "\xed\xa0\x80", 3, false},
        {"beyond", "\xf4\x90\x80\x80", 4, false},
        {"F5", "\xf5\x80\x80\x80", 4, false},
        {"cut two", "\xc2", 1, false},
        {"cut three", "a\xe0\xa0", 3, false},
        {"cut four", "\xf0\x90\x80", 3, false},
        {"bad second", "\xc2\x41", 2, false},
        {"bad third", "\xe1\x80\x41", 3, false},
        {"bad fourth", "\xf1\x80\x80\xc0", 4, false},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        if (rk_utf8_is_valid(cases[i].data, cases[i].bytes) != cases[i].expected)
            fail_msg("%s", cases[i].label);
    }
}

/* Goal: one U+FFFD per maximal subpart, as in CPython and Rust; NUL is an ordinary character. */
static void test_append_utf8_replaces_maximal_subparts(void **state)
{
#define R "\xef\xbf\xbd"
    static const struct {
        const char *data;
        size_t bytes;
        const char *expected;
        size_t expected_bytes;
    } cases[] = {
        {"", 0, "", 0},
        {"a\0b", 3, "a\0b", 3},
        {"\xf0\x9f\x98", 3, R, 3},
        {"\xe0\x80\x80", 3, R R R, 9},
        {"\xed\xa0\x80", 3, R R R, 9},
        {"\xf4\x90\x80\x80", 4, R R R R, 12},
        {"\xe4\xb8\xe4\xb8\xad\x80", 6, R "\xe4\xb8\xad" R, 9},
        {"\xc3\xc3\xa9", 3, R "\xc3\xa9", 5},
        {"\xf0\x9f\x98x\xff", 5, R "x" R, 7},
    };
#undef R

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_str out = {0};

        rk_str_append_utf8(&out, cases[i].data, cases[i].bytes);
        assert_int_equal(out.bytes, cases[i].expected_bytes);
        assert_memory_equal(rk_str_text(&out), cases[i].expected, cases[i].expected_bytes);
        rk_str_fini(&out);
    }
}

static void test_distance_table(void **state)
{
    static const struct {
        const char *a, *b;
        int cap, expected;
    } cases[] = {{"", "", 3, 0},       {"lr", "lr", 3, 0},          {"lr", "l", 3, 1},
                 {"abc", "acb", 3, 2}, {"kitten", "sitting", 9, 3}, {"kitten", "sitting", 2, 2},
                 {"", "abcd", 9, 4},   {"listen", "silent", 9, 4}};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        assert_int_equal(rk_str_distance(cases[i].a, cases[i].b, cases[i].cap), cases[i].expected);
        assert_int_equal(rk_str_distance(cases[i].b, cases[i].a, cases[i].cap), cases[i].expected);
    }
}

static void test_distance_of_long_text_is_capped(void **state)
{
    char a[400], b[400];

    (void)state;
    memset(a, 'a', sizeof(a));
    memset(b, 'a', sizeof(b));
    a[399] = b[399] = '\0';
    assert_int_equal(rk_str_distance(a, b, 3), 0);
    b[200] = 'b';
    assert_int_equal(rk_str_distance(a, b, 3), 3);
}

static void test_suggest_finds_the_closest_within_two(void **state)
{
    static const char *const names[] = {"learning_rate", "lr", "weight_decay", "clip_grad"};

    (void)state;
    assert_string_equal(rk_str_suggest("learing_rate", names, 4), "learning_rate");
    assert_string_equal(rk_str_suggest("weight-decay", names, 4), "weight_decay");
    assert_string_equal(rk_str_suggest("lrr", names, 4), "lr");
    assert_null(rk_str_suggest("weightdecays_", names, 4));
    assert_null(rk_str_suggest("xy", names, 4)); /* two letters, both wrong */
    assert_null(rk_str_suggest("", names, 4));
    assert_null(rk_str_suggest("lr", names, 0));
}

static void test_parse_i64_table(void **state)
{
    static const struct {
        const char *text;
        bool is_valid;
        int64_t value;
    } cases[] = {
        {"0", true, 0},
        {"-7", true, -7},
        {"007", true, 7},
        {"9223372036854775807", true, INT64_MAX},
        {"-9223372036854775808", true, INT64_MIN},
        {"9223372036854775808", false, 0},
        {"-9223372036854775809", false, 0},
        {"99999999999999999999999", false, 0},
        {"", false, 0},
        {"-", false, 0},
        {"+1", false, 0},
        {" 1", false, 0},
        {"1 ", false, 0},
        {"1.0", false, 0},
        {"0x10", false, 0},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        int64_t value = 0;

        if (rk_parse_i64(cases[i].text, &value) != cases[i].is_valid || value != cases[i].value)
            fail_msg("'%s' -> %lld", cases[i].text, (long long)value);
    }
}

static void test_parse_f64_table(void **state)
{
    static const struct {
        const char *text;
        bool is_valid;
        double value;
    } cases[] = {
        {"0.25", true, 0.25}, {"-1e-3", true, -1e-3}, {"3", true, 3.0},    {"", false, 0.0},
        {"nan", false, 0.0},  {"inf", false, 0.0},    {"1e999", false, 0}, {"0x1p3", false, 0.0},
        {"1 ", false, 0.0},   {" 1", false, 0.0},     {"1e", false, 0.0},  {"1..2", false, 0.0},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        double value = 0.0;

        if (rk_parse_f64(cases[i].text, &value) != cases[i].is_valid || value != cases[i].value)
            fail_msg("'%s' -> %g", cases[i].text, value);
    }
}

static void test_parse_bytes_table(void **state)
{
    static const struct {
        const char *text;
        bool is_valid;
        int64_t value;
    } cases[] = {
        {"8GiB", true, 8ll << 30},
        {"2MiB", true, 2 << 20},
        {"512KiB", true, 512 << 10},
        {"1000B", true, 1000},
        {"1TiB", true, 1ll << 40},
        {"5GB", true, 5000000000ll},
        {"0", true, 0},
        {"0GiB", true, 0},
        {"8", false, 0},
        {"8Q", false, 0},
        {"8 GiB", false, 0},
        {"GiB", false, 0},
        {"-1B", false, 0},
        {"1.5GiB", false, 0},
        {"", false, 0},
        {"8gib", false, 0},
        {"9223372036854775807B", true, INT64_MAX},
        {"8388608TiB", false, 0},
        {"9223372036854775808B", false, 0},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        int64_t value = 0;

        if (rk_parse_bytes(cases[i].text, &value) != cases[i].is_valid || value != cases[i].value)
            fail_msg("'%s' -> %lld", cases[i].text, (long long)value);
    }
}

static void test_parse_duration_table(void **state)
{
    static const struct {
        const char *text;
        bool is_valid;
        int64_t value;
    } cases[] = {
        {"30s", true, 30000},  {"10min", true, 600000}, {"500ms", true, 500},
        {"1h", true, 3600000}, {"0", true, 0},          {"30", false, 0},
        {"1d", false, 0},      {"s", false, 0},         {"-1s", false, 0},
        {"1m", false, 0},      {"1s ", false, 0},       {"9223372036854775807h", false, 0},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        int64_t value = 0;

        if (rk_parse_duration_ms(cases[i].text, &value) != cases[i].is_valid || value != cases[i].value)
            fail_msg("'%s' -> %lld", cases[i].text, (long long)value);
    }
}

/* Goal: code points at the edges of the lengths become valid UTF-8 and are read back. */
static void test_utf8_append_and_read_are_inverse(void **state)
{
    static const struct {
        int32_t code;
        const char *text;
    } cases[] = {
        {'a', "a"},
        {0x7f, "\x7f"},
        {0x80, "\xc2\x80"},
        {0x7ff, "\xdf\xbf"},
        {0x800, "\xe0\xa0\x80"},
        {0xffff, "\xef\xbf\xbf"},
        {0x10000, "\xf0\x90\x80\x80"},
        {0x10ffff, "\xf4\x8f\xbf\xbf"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_str str = {0};
        int bytes;

        rk_utf8_append(&str, cases[i].code);
        assert_string_equal(rk_str_text(&str), cases[i].text);
        assert_true(rk_utf8_is_valid(str.text, str.bytes));
        assert_int_equal(rk_utf8_read(str.text, &bytes), cases[i].code);
        assert_int_equal(bytes, str.bytes);
        rk_str_fini(&str);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_str_append_grows_and_stays_terminated),
        cmocka_unit_test(test_str_take_empties_the_builder),
        cmocka_unit_test(test_path_join_gives_one_slash),
        cmocka_unit_test(test_path_dir_table),
        cmocka_unit_test(test_utf8_control_bytes_table),
        cmocka_unit_test(test_has_prefix_and_suffix_table),
        cmocka_unit_test(test_utf8_is_valid_table),
        cmocka_unit_test(test_append_utf8_replaces_maximal_subparts),
        cmocka_unit_test(test_distance_table),
        cmocka_unit_test(test_distance_of_long_text_is_capped),
        cmocka_unit_test(test_suggest_finds_the_closest_within_two),
        cmocka_unit_test(test_parse_i64_table),
        cmocka_unit_test(test_parse_f64_table),
        cmocka_unit_test(test_parse_bytes_table),
        cmocka_unit_test(test_utf8_append_and_read_are_inverse),
        cmocka_unit_test(test_parse_duration_table),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
