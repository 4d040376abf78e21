#include "base/rk_json.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_rng.h"
#include "base/rk_str.h"
#include "tests/support/test.h"

static struct rk_json *parse(const char *text)
{
    struct rk_json *json;

    assert_ok(rk_json_parse(&json, text, strlen(text), "test", 0));
    return json;
}

static char *nested(int depth)
{
    struct rk_str text = {0};

    for (int i = 0; i < depth; i++)
        rk_str_append(&text, i % 2 ? "[" : "{\"a\":");
    rk_str_append(&text, "1");
    for (int i = depth - 1; i >= 0; i--)
        rk_str_append(&text, i % 2 ? "]" : "}");
    return rk_str_take(&text);
}

static void test_json_parse_accepts_table(void **state)
{
    static const struct {
        const char *text;
        rk_json_type_t type;
    } cases[] = {
        {"null", RK_JSON_NULL},        {" true ", RK_JSON_BOOL},      {"-3", RK_JSON_INT},
        {"3.0", RK_JSON_REAL},         {"1e3", RK_JSON_REAL},         {"\"\"", RK_JSON_STRING},
        {"[1,[2,{}]]", RK_JSON_ARRAY}, {"{\"a\":1}", RK_JSON_OBJECT}, {"9223372036854775807", RK_JSON_INT},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_json *json = parse(cases[i].text);

        assert_int_equal(rk_json_type(json), cases[i].type);
        rk_json_free(json);
    }
}

static void test_json_parse_rejects_table(void **state)
{
    static const struct {
        const char *text, *message;
    } cases[] = {
        {"", "test:1:"},
        {"{\"a\":1,\n\"a\":2}", "test:2:3: a: occurs twice"},
        {"{\"a\":1} x", "test:1:"},
        {"{\n\"a\":\n}", "test:3:"},
        {"{'a':1}", "test:1:"},
        {"{\"a\":1,}", "test:1:"},
        {"[1,2", "test:1:"},
        {"01", "test:1:"},
        {"+1", "test:1:"},
        {"NaN", "test:1:"},
        {"Infinity", "test:1:"},
        {"1e999", "test:1:"},
        {"9223372036854775808", "test:1:"},
        {"\"\\u0000\"", "test:1:"},
        {"\"\xff\"", "test:1:"},
        {"\"\\ud800\"", "test:1:"},
        {"\"a\nb\"", "test:1:"},
        {"\xef\xbb\xbf{}", "test:1:1: begins with a byte order mark"},
        {"// comment\n{}", "test:1:"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_json *json = (struct rk_json *)&cases;

        assert_fails(rk_json_parse(&json, cases[i].text, strlen(cases[i].text), "test", 0),
                     RK_INVALID_ARGUMENT, cases[i].message);
        assert_null(json);
    }
}

static void test_json_parse_depth_over_32_is_refused(void **state)
{
    char *deepest = nested(32), *deeper = nested(33);
    struct rk_json *json = parse(deepest);
    struct rk_str bomb = {0};

    (void)state;
    rk_json_free(json);
    assert_fails(rk_json_parse(&json, deeper, strlen(deeper), "test", 0), RK_INVALID_ARGUMENT,
                 "nested deeper than 32");
    for (int i = 0; i < 1000000; i++)
        rk_str_append(&bomb, "[");
    assert_code(rk_json_parse(&json, bomb.text, bomb.bytes, "test", 0), RK_INVALID_ARGUMENT);
    json = parse("\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\\\"[[[[[[[[[[[[[[\""); /* brackets in a string */
    rk_json_free(json);
    rk_str_fini(&bomb);
    rk_free(deepest);
    rk_free(deeper);
}

static void test_json_parse_flags(void **state)
{
    static const char nul[] = "{\"a\":\"x\\u0000y\"}";
    static const char big[] =
        "{\"model_max_length\":1000000000000000019884624838656,\"n\":7,\"s\":"
        "\"1000000000000000019884624838656\",\"f\":1.25e-3,\"neg\":-99999999999999999999}";
    struct rk_json *json;

    (void)state;
    assert_ok(rk_json_parse(&json, nul, strlen(nul), "test", RK_JSON_ALLOW_NUL));
    assert_int_equal(rk_json_string_bytes(rk_json_find(json, "a")), 3);
    rk_json_free(json);
    assert_code(rk_json_parse(&json, big, strlen(big), "test", 0), RK_INVALID_ARGUMENT);
    assert_ok(rk_json_parse(&json, big, strlen(big), "test", RK_JSON_BIG_INT_AS_REAL));
    assert_true(rk_json_as_real(rk_json_find(json, "model_max_length"), 0) == 1e30);
    assert_int_equal(rk_json_type(rk_json_find(json, "n")), RK_JSON_INT);
    assert_string_equal(rk_json_as_string(rk_json_find(json, "s"), ""), "1000000000000000019884624838656");
    assert_true(rk_json_as_real(rk_json_find(json, "f"), 0) == 1.25e-3);
    assert_true(rk_json_as_real(rk_json_find(json, "neg"), 0) == -1e20);
    rk_json_free(json);
}

static void test_json_parse_file_errors(void **state)
{
    char *path = rk_test_temp_path("a.json");
    struct rk_json *json;

    (void)state;
    assert_code(rk_json_parse_file(&json, path, 100, 0), RK_NOT_FOUND);
    rk_test_write_file(path, "{\"a\": 1}", 8);
    assert_ok(rk_json_parse_file(&json, path, 8, 0));
    rk_json_free(json);
    assert_fails(rk_json_parse_file(&json, path, 7, 0), RK_RESOURCE_EXHAUSTED, "larger than 7 bytes");
    rk_test_write_file(path, "{\n\"a\": }", 8);
    assert_fails(rk_json_parse_file(&json, path, 8, 0), RK_INVALID_ARGUMENT, "a.json:2:");
    assert_fails(rk_json_parse_file(&json, rk_test_temp_dir(), 8, 0), RK_INVALID_ARGUMENT, "directory");
    rk_free(path);
}

static void test_json_dump_table(void **state)
{
    static const struct {
        const char *text, *expected;
    } cases[] = {
        {"null", "null"},
        {"[ true , false ]", "[true,false]"},
        {"1.0", "1.0"},
        {"0.1", "0.1"},
        {"1e-05", "1e-05"},
        {"100000.0", "100000.0"},
        {"1e22", "1e+22"},
        {"0.30000000000000004", "0.30000000000000004"},
        {"-0.0", "-0.0"},
        {"9007199254740993", "9007199254740993"},
        {"\"\\u0001\\u001f\\\"\\\\/\\b\\f\\n\\r\\t\\u00e9\"",
         "\"\\u0001\\u001f\\\"\\\\/\\b\\f\\n\\r\\t\xc3\xa9\""},
        {"{\"b\":[],\"a\":{}}", "{\"b\":[],\"a\":{}}"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_json *json = parse(cases[i].text), *again;
        char *text = rk_json_dump(json, 0, false);

        assert_string_equal(text, cases[i].expected);
        again = parse(text);
        assert_true(rk_json_equal(json, again));
        rk_json_free(again);
        rk_json_free(json);
        rk_free(text);
    }
}

static void test_json_dump_indent_and_sorted_keys(void **state)
{
    struct rk_json *json = parse("{\"b\":[1,2],\"a\":{},\"c\":{\"d\":null}}");
    char *text = rk_json_dump(json, 2, true);

    (void)state;
    assert_string_equal(
        text, "{\n  \"a\": {},\n  \"b\": [\n    1,\n    2\n  ],\n  \"c\": {\n    \"d\": null\n  }\n}");
    rk_free(text);
    rk_json_free(json);
}

/* Goal: reals are unchanged by conversion to text and back, bit for bit. */
static void test_json_dump_random_reals_round_trip(void **state)
{
    struct rk_rng rng;

    (void)state;
    rk_rng_init(&rng, rk_test_seed(), 7);
    for (int i = 0; i < 20000; i++) {
        uint64_t bits = (uint64_t)rk_rng_next_u32(&rng) << 32 | rk_rng_next_u32(&rng);
        struct rk_json *json, *again;
        double value;
        char *text;

        memcpy(&value, &bits, sizeof(value));
        if (!isfinite(value) || fpclassify(value) == FP_SUBNORMAL) /* jansson rejects values that underflow */
            continue;
        json = rk_json_new_real(value);
        text = rk_json_dump(json, 0, false);
        again = parse(text);
        if (rk_json_as_real(again, 0) != value)
            fail_msg("%s", text);
        rk_json_free(json);
        rk_json_free(again);
        rk_free(text);
    }
}

static void test_json_find_line_table(void **state)
{
    static const char text[] = "{\n"
                               "  \"a\": 1, \"skip\": \"}\\\"{\",\n"
                               "  \"b\": {\"c\": [1,\n"
                               "    {\"d\": true},\n"
                               "    \"x\"],\n"
                               "  \"e\": -1.5e3 },\n"
                               "  \"dotted.key\":\n"
                               "     {\"f\": null},\n"
                               "  \"esc\\u0061ped\": [\n"
                               "  [], {}, 3]\n"
                               "}\n";
    static const struct {
        const char *path;
        int line;
    } cases[] = {
        {"", 1},        {"a", 2},          {"skip", 2},    {"b", 3},   {"b.c", 3},        {"b.c.0", 3},
        {"b.c.1", 4},   {"b.c.1.d", 4},    {"b.c.2", 5},   {"b.e", 6}, {"dotted.key", 7}, {"dotted.key.f", 8},
        {"escaped", 9}, {"escaped.2", 10}, {"nothing", 0}, {"a.b", 0}, {"b.c.3", 0},      {"b.c.1.e", 0},
        {"dotted", 0},  {"b.c.x", 0},
    };
    struct rk_json *json = parse(text);

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        int line = rk_json_find_line(text, strlen(text), cases[i].path);

        if (line != cases[i].line)
            fail_msg("%s: line %d", cases[i].path, line);
        /* The values agree with the scanner about existing paths. */
        if (*cases[i].path)
            assert_int_equal(rk_json_find_path(json, cases[i].path) != NULL, cases[i].line != 0);
    }
    rk_json_free(json);
}

static void test_json_set_path_makes_parents(void **state)
{
    struct rk_json *json = parse("{\"a\":{\"x\":1},\"s\":3}");
    char *text;

    (void)state;
    rk_json_set_path(json, "a.b.c", rk_json_new_int(5));
    rk_json_set_path(json, "top", rk_json_new_bool(true));
    rk_json_set_path(json, "s.t", rk_json_new_null());
    text = rk_json_dump(json, 0, false);
    assert_string_equal(text, "{\"a\":{\"x\":1,\"b\":{\"c\":5}},\"s\":{\"t\":null},\"top\":true}");
    rk_free(text);
    rk_json_remove(json, "s");
    rk_json_remove(json, "absent");
    assert_null(rk_json_find(json, "s"));
    rk_json_free(json);
}

static void test_json_looking_at_wrong_types_gives_fallbacks(void **state)
{
    struct rk_json *json =
        parse("{\"s\":\"x\",\"i\":3,\"r\":2.5,\"e\":4.0,\"h\":1e300,\"a\":[1],\"n\":null}");

    (void)state;
    assert_int_equal(rk_json_as_int(rk_json_find(json, "i"), -1), 3);
    assert_int_equal(rk_json_as_int(rk_json_find(json, "e"), -1), 4);
    assert_int_equal(rk_json_as_int(rk_json_find(json, "r"), -1), -1);
    assert_int_equal(rk_json_as_int(rk_json_find(json, "h"), -1), -1);
    assert_int_equal(rk_json_as_int(rk_json_find(json, "s"), -1), -1);
    assert_int_equal(rk_json_as_int(NULL, -1), -1);
    assert_true(rk_json_as_real(rk_json_find(json, "i"), 0) == 3.0);
    assert_true(rk_json_as_real(rk_json_find(json, "s"), 7) == 7.0);
    assert_true(rk_json_as_bool(rk_json_find(json, "i"), true));
    assert_string_equal(rk_json_as_string(rk_json_find(json, "i"), "f"), "f");
    assert_null(rk_json_find(rk_json_find(json, "s"), "x"));
    assert_null(rk_json_find(NULL, "x"));
    assert_null(rk_json_at(json, 0));
    assert_null(rk_json_at(rk_json_find(json, "a"), 1));
    assert_null(rk_json_at(rk_json_find(json, "a"), -1));
    assert_true(rk_json_is_null(rk_json_find(json, "n")));
    assert_true(rk_json_is_null(NULL));
    assert_int_equal(rk_json_count(rk_json_find(json, "s")), 0);
    assert_int_equal(rk_json_count(NULL), 0);
    rk_json_free(json);
    rk_json_free(NULL);
}

static void test_json_values_are_shared_and_cloned(void **state)
{
    struct rk_json *json = parse("{\"a\":[1]}"), *same = rk_json_retain(json), *copy = rk_json_clone(json);
    struct rk_json *one = rk_json_new_int(1), *one_real = rk_json_new_real(1.0);

    (void)state;
    assert_ptr_equal(same, json);
    rk_json_free(same);
    rk_json_append(rk_json_find(json, "a"), rk_json_new_string("x"));
    assert_int_equal(rk_json_count(rk_json_find(copy, "a")), 1);
    assert_false(rk_json_equal(json, copy));
    assert_false(rk_json_equal(one, one_real));
    assert_null(rk_json_clone(NULL));
    rk_json_free(one);
    rk_json_free(one_real);
    rk_json_free(copy);
    rk_json_free(json);
}

static void test_json_new_string_invalid_utf8_is_null(void **state)
{
    struct rk_json *bad = rk_json_new_string("\xff"), *nul = rk_json_new_string_bytes("a\0b", 3);

    (void)state;
    assert_int_equal(rk_json_type(bad), RK_JSON_NULL);
    assert_int_equal(rk_json_string_bytes(nul), 3);
    rk_json_free(bad);
    rk_json_free(nul);
}

static void test_json_typed_reads_accept(void **state)
{
    struct rk_json *json = parse("{\"b\":true,\"i\":5,\"e\":1e3,\"r\":0.5,\"s\":\"text\",\"n\":null}");
    const char *text = "kept";
    int64_t integer = -1;
    double real = -1;
    bool flag = false;

    (void)state;
    assert_ok(rk_json_get_bool(json, "", "b", &flag));
    assert_true(flag);
    assert_ok(rk_json_get_i64(json, "", "i", 5, 5, &integer));
    assert_int_equal(integer, 5);
    assert_ok(rk_json_get_i64(json, "", "e", INT64_MIN, INT64_MAX, &integer));
    assert_int_equal(integer, 1000);
    assert_ok(rk_json_get_f64(json, "", "i", &real));
    assert_true(real == 5.0);
    assert_ok(rk_json_get_string(json, "", "s", &text));
    assert_string_equal(text, "text");
    /* Absent or null: the value is unchanged. */
    assert_ok(rk_json_opt_bool(json, "", "absent", &flag));
    assert_ok(rk_json_opt_i64(json, "", "n", 0, 1, &integer));
    assert_ok(rk_json_opt_f64(json, "", "n", &real));
    assert_ok(rk_json_opt_string(json, "", "absent", &text));
    assert_true(flag);
    assert_int_equal(integer, 1000);
    assert_true(real == 5.0);
    assert_string_equal(text, "text");
    rk_json_free(json);
}

static void test_json_typed_reads_name_path_and_value(void **state)
{
    struct rk_json *json =
        parse("{\"b\":1,\"i\":9,\"h\":2.5,\"r\":\"x\",\"s\":[],\"n\":null,\"long\":"
              "\"a very long text that goes on and on far beyond what fits into a message\"}");
    const char *text;
    int64_t integer;
    double real;
    bool flag;

    (void)state;
    assert_fails(rk_json_get_bool(json, "rpc", "b", &flag), RK_INVALID_ARGUMENT,
                 "rpc.b: expected true or false, got 1");
    assert_fails(rk_json_get_i64(json, "", "i", 1, 8, &integer), RK_INVALID_ARGUMENT,
                 "i: expected an integer from 1 to 8, got 9");
    assert_fails(rk_json_opt_i64(json, "a", "h", INT64_MIN, INT64_MAX, &integer), RK_INVALID_ARGUMENT,
                 "a.h: expected an integer, got 2.5");
    assert_fails(rk_json_get_f64(json, "", "r", &real), RK_INVALID_ARGUMENT,
                 "r: expected a number, got \"x\"");
    assert_fails(rk_json_get_string(json, "", "s", &text), RK_INVALID_ARGUMENT,
                 "s: expected a string, got an array");
    assert_fails(rk_json_get_string(json, "", "n", &text), RK_INVALID_ARGUMENT,
                 "n: expected a string, got null");
    assert_fails(rk_json_get_i64(json, "a.b", "none", 0, 1, &integer), RK_INVALID_ARGUMENT,
                 "a.b.none: missing");
    assert_fails(rk_json_get_f64(json, "", "long", &real), RK_INVALID_ARGUMENT, "what fits i...");
    assert_fails(rk_json_opt_bool(rk_json_find(json, "s"), "s", "x", &flag), RK_INVALID_ARGUMENT,
                 "s: expected an object with 'x', got an array");
    assert_fails(rk_json_get_bool(NULL, "", "x", &flag), RK_INVALID_ARGUMENT,
                 "the top level: expected an object");
    rk_json_free(json);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_json_parse_accepts_table),
        cmocka_unit_test(test_json_parse_rejects_table),
        cmocka_unit_test(test_json_parse_depth_over_32_is_refused),
        cmocka_unit_test(test_json_parse_flags),
        cmocka_unit_test(test_json_parse_file_errors),
        cmocka_unit_test(test_json_dump_table),
        cmocka_unit_test(test_json_dump_indent_and_sorted_keys),
        cmocka_unit_test(test_json_dump_random_reals_round_trip),
        cmocka_unit_test(test_json_find_line_table),
        cmocka_unit_test(test_json_set_path_makes_parents),
        cmocka_unit_test(test_json_looking_at_wrong_types_gives_fallbacks),
        cmocka_unit_test(test_json_values_are_shared_and_cloned),
        cmocka_unit_test(test_json_new_string_invalid_utf8_is_null),
        cmocka_unit_test(test_json_typed_reads_accept),
        cmocka_unit_test(test_json_typed_reads_name_path_and_value),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
