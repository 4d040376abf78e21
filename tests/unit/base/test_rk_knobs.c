/* Knobs: rows become fields of a struct and the checked reading of options. */
#include "base/config/rk_knobs.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "tests/support/test.h"

#define KNOBS(K, a, b, c)                                                                            \
    K(a, b, c, is_on, "is_on", BOOL, "false", 0, 0, NULL, 0, "")                                     \
    K(a, b, c, count, "a.count", INT, "null", 1, 0x1p40, NULL, RK_CONFIG_NULLABLE, "")               \
    K(a, b, c, small, "small", INT32, "-1", -1, 100, NULL, 0, "")                                    \
    K(a, b, c, rate, "rate", REAL, "null", 0, 2, NULL, RK_CONFIG_NULLABLE | RK_CONFIG_ABOVE_MIN, "") \
    K(a, b, c, style, "style", STRING, "\"plain\"", 0, 0, "plain|fancy", 0, "")                      \
    K(a, b, c, name, "name", STRING, "null", 0, 0, NULL, RK_CONFIG_NULLABLE, "")                     \
    K(a, b, c, list, "list", TEXT, "null", 0, 0, NULL, RK_CONFIG_NULLABLE, "")                       \
    K(a, b, c, pair, "pair", PAIR, "[0.5, 1]", 0, 0, NULL, 0, "")

struct fields {
    KNOBS(RK_KNOB_FIELD, , , )
};
static const struct rk_knob knobs[] = {KNOBS(RK_KNOB_ROW, struct fields, , )};

static const char defaults[] = "{\"is_on\": false, \"a.count\": null, \"small\": -1, \"rate\": null,"
                               " \"style\": \"plain\", \"name\": null, \"list\": null,"
                               " \"pair\": [0.5, 1]}";

static struct rk_json *parse(const char *text)
{
    struct rk_json *json;

    assert_ok(rk_json_parse(&json, text, strlen(text), "options", 0));
    return json;
}

static void test_knobs_read_fills_the_fields(void **state)
{
    struct rk_json *options =
        parse("{\"is_on\": true, \"a.count\": 1099511627776, \"small\": 100, \"rate\": 2,"
              " \"style\": \"fancy\", \"name\": \"x\", \"pair\": [1, 0.25],"
              " \"list\": \"one,two,three,four,five,six,seven,eight\"}");
    struct fields fields;

    (void)state;
    assert_ok(rk_knobs_read(&fields, knobs, RK_ARRAY_LEN(knobs), options));
    assert_true(fields.is_on);
    assert_true(fields.count == (int64_t)1 << 40);
    assert_int_equal(fields.small, 100);
    assert_true(fields.rate == 2.0);
    assert_string_equal(fields.style, "fancy");
    assert_string_equal(fields.name, "x");
    assert_string_equal(fields.list, "one,two,three,four,five,six,seven,eight");
    assert_true(fields.pair[0] == 1.0 && fields.pair[1] == 0.25);
    rk_json_free(options);
}

static void test_knobs_read_null_is_unset(void **state)
{
    struct rk_json *options = parse(defaults);
    struct fields fields;

    (void)state;
    memset(&fields, 0x55, sizeof(fields));
    assert_ok(rk_knobs_read(&fields, knobs, RK_ARRAY_LEN(knobs), options));
    assert_true(fields.count == 0);
    assert_true(isnan(fields.rate));
    assert_string_equal(fields.name, "");
    rk_json_free(options);
}

static void test_knobs_read_bad_value_names_option_and_expectation(void **state)
{
    static const struct {
        const char *key, *value, *text;
    } cases[] = {
        {"is_on", "1", "is_on: expected true or false, got 1"},
        {"is_on", "null", "is_on: expected true or false, got null"},
        {"a.count", "0", "a.count: expected 1 to 1099511627776, got 0"},
        {"a.count", "1.5", "a.count: expected an integer or null, got 1.5"},
        {"small", "101", "small: expected -1 to 100, got 101"},
        {"small", "null", "small: expected an integer, got null"},
        {"rate", "0", "rate: expected above 0, at most 2, got 0"},
        {"rate", "2.5", "rate: expected above 0, at most 2, got 2.5"},
        {"style", "\"odd\"", "style: expected one of plain|fancy, got \"odd\""},
        {"style", "7", "style: expected a string, got 7"},
        {"name", "\"0123456789012345678901234567890x\"", "name: expected at most 31 bytes, got 32"},
        {"pair", "[1]", "pair: expected two numbers"},
        {"pair", "[1, \"a\"]", "pair: expected two numbers"},
        {"pair", "[1, 2, 3]", "pair: expected two numbers"},
        {"pair", "1", "pair: expected an array, got 1"},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_json *options = parse(defaults), *value;
        struct fields fields;
        char *wrapped = rk_format("[%s]", cases[i].value);

        value = parse(wrapped);
        rk_json_set(options, cases[i].key, rk_json_retain(rk_json_at(value, 0)));
        assert_fails(rk_knobs_read(&fields, knobs, RK_ARRAY_LEN(knobs), options), RK_INVALID_ARGUMENT,
                     cases[i].text);
        rk_free(wrapped);
        rk_json_free(value);
        rk_json_free(options);
    }
}

static void test_knobs_read_long_text_is_refused(void **state)
{
    struct rk_json *options = parse(defaults);
    struct fields fields;
    char text[RK_KNOB_LONG_TEXT_BYTES + 1];

    (void)state;
    memset(text, 'x', sizeof(text));
    text[RK_KNOB_LONG_TEXT_BYTES] = '\0';
    rk_json_set(options, "list", rk_json_new_string(text));
    assert_fails(rk_knobs_read(&fields, knobs, RK_ARRAY_LEN(knobs), options), RK_INVALID_ARGUMENT,
                 "list: expected at most 255 bytes, got 256");
    rk_json_free(options);
}

static void test_knobs_read_missing_option_is_refused(void **state)
{
    struct rk_json *options = parse(defaults);
    struct fields fields;

    (void)state;
    rk_json_remove(options, "small");
    assert_fails(rk_knobs_read(&fields, knobs, RK_ARRAY_LEN(knobs), options), RK_INVALID_ARGUMENT, "small");
    rk_json_free(options);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_knobs_read_fills_the_fields),
        cmocka_unit_test(test_knobs_read_null_is_unset),
        cmocka_unit_test(test_knobs_read_bad_value_names_option_and_expectation),
        cmocka_unit_test(test_knobs_read_long_text_is_refused),
        cmocka_unit_test(test_knobs_read_missing_option_is_refused),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
