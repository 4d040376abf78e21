/* Options and meta between JSON objects and wire entries. */
#include "tests/support/test.h"

#include "base/rk_alloc.h"
#include "base/rk_compiler.h"
#include "proto/rk_messages.h"

#include <math.h>
#include <string.h>

static struct rk_arena *arena;

static int setup(void **state)
{
    (void)state;
    arena = rk_arena_create(4096, 0);
    return 0;
}

static int teardown(void **state)
{
    (void)state;
    rk_arena_destroy(arena);
    return 0;
}

/* JSON -> entries -> bytes -> entries -> JSON. */
static const struct {
    const char *json;
    rk_scalar_kind_t kind;
} values[] = {
    {"0", RK_SCALAR_INT},
    {"-1", RK_SCALAR_INT},
    {"9223372036854775807", RK_SCALAR_INT},
    {"-9223372036854775808", RK_SCALAR_INT},
    {"0.0", RK_SCALAR_REAL},
    {"-0.0", RK_SCALAR_REAL},
    {"1.0", RK_SCALAR_REAL},
    {"0.1", RK_SCALAR_REAL},
    {"1e-300", RK_SCALAR_REAL},
    {"true", RK_SCALAR_BOOL},
    {"false", RK_SCALAR_BOOL},
    {"\"\"", RK_SCALAR_STRING},
    {"\"text \\u00e4 \\\" \\n\"", RK_SCALAR_STRING},
    {"\"a\\u0000b\"", RK_SCALAR_JSON},
    {"null", RK_SCALAR_JSON},
    {"[]", RK_SCALAR_JSON},
    {"[0.9, 0.999]", RK_SCALAR_JSON},
    {"{\"a\": [1, {\"b\": null}], \"c\": 1.0}", RK_SCALAR_JSON},
};

static void check_value(const char *text, rk_scalar_kind_t kind)
{
    struct rk_json *value, *object = rk_json_new_object(), *again;
    struct rk_execute_request request = {.kind = RK_EXECUTE_HEADER}, got;
    struct rk_str packed = {0};

    print_message("%s\n", text);
    assert_ok(rk_json_parse(&value, text, strlen(text), "test", RK_JSON_ALLOW_NUL));
    rk_json_set(object, "optim.lr", value);
    request.header.options = rk_meta_from_json(arena, object);
    assert_int_equal(request.header.options.count, 1);
    assert_int_equal(request.header.options.entries[0].value.kind, kind);
    rk_pack_execute_request(&packed, &request);
    assert_ok(rk_unpack_execute_request(&got, arena, packed.text, packed.bytes));
    again = rk_meta_to_json(&got.header.options);
    assert_true(rk_json_equal(object, again));
    assert_int_equal(signbit(rk_json_as_real(rk_json_find(again, "optim.lr"), 0.0)),
                     signbit(rk_json_as_real(value, 0.0)));
    rk_json_free(again);
    rk_json_free(object);
    rk_str_fini(&packed);
}

static void test_round_trip_of_every_type(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(values); i++)
        check_value(values[i].json, values[i].kind);
}

static void test_from_json_null_and_empty_have_no_entries(void **state)
{
    struct rk_json *empty = rk_json_new_object();
    struct rk_json *json;
    struct rk_meta meta;

    (void)state;
    assert_int_equal(rk_meta_from_json(arena, NULL).count, 0);
    meta = rk_meta_from_json(arena, empty);
    assert_int_equal(meta.count, 0);
    json = rk_meta_to_json(&meta);
    assert_true(rk_json_equal(json, empty));
    rk_json_free(json);
    rk_json_free(empty);
}

static void test_from_json_keeps_the_order_of_the_members(void **state)
{
    static const char text[] = "{\"z\": 1, \"a\": 2, \"m\": 3}";
    struct rk_json *object;
    struct rk_meta meta;

    (void)state;
    assert_ok(rk_json_parse(&object, text, strlen(text), "test", 0));
    meta = rk_meta_from_json(arena, object);
    assert_int_equal(meta.count, 3);
    assert_string_equal(meta.entries[0].key, "z");
    assert_string_equal(meta.entries[2].key, "m");
    rk_json_free(object);
}

static struct rk_status *send_entries(struct rk_meta_entry *entries, int64_t count)
{
    struct rk_execute_request request = {.kind = RK_EXECUTE_HEADER, .header = {.options = {count, entries}}},
                              got;
    struct rk_str packed = {0};
    struct rk_status *st;

    rk_pack_execute_request(&packed, &request);
    st = rk_unpack_execute_request(&got, arena, packed.text, packed.bytes);
    rk_str_fini(&packed);
    return st;
}

static const struct {
    const char *label;
    struct rk_meta_entry entries[2];
    int64_t count;
    const char *error;
} refused[] = {
    {"no value", {{.key = "k"}}, 1, "a meta value must be"},
    {"NaN", {{.key = "k", .value = {.kind = RK_SCALAR_REAL, .real = NAN}}}, 1, "expected a finite number"},
    {"infinity",
     {{.key = "k", .value = {.kind = RK_SCALAR_REAL, .real = -INFINITY}}},
     1,
     "expected a finite number"},
    {"cut JSON", {{.key = "k", .value = {.kind = RK_SCALAR_JSON, .json = "[1,"}}}, 1, "meta value"},
    {"empty JSON", {{.key = "k", .value = {.kind = RK_SCALAR_JSON, .json = ""}}}, 1, "meta value"},
    {"text behind JSON", {{.key = "k", .value = {.kind = RK_SCALAR_JSON, .json = "{} x"}}}, 1, "meta value"},
    {"key twice",
     {{.key = "k", .value = {.kind = RK_SCALAR_INT, .integer = 1}},
      {.key = "k", .value = {.kind = RK_SCALAR_INT, .integer = 1}}},
     2,
     "meta key 'k'"},
};

static void test_unpack_refuses_what_has_no_json_value(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(refused); i++) {
        struct rk_meta_entry entries[2];

        print_message("%s\n", refused[i].label);
        memcpy(entries, refused[i].entries, sizeof(entries));
        assert_fails(send_entries(entries, refused[i].count), RK_INVALID_ARGUMENT, refused[i].error);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip_of_every_type),
        cmocka_unit_test(test_from_json_null_and_empty_have_no_entries),
        cmocka_unit_test(test_from_json_keeps_the_order_of_the_members),
        cmocka_unit_test(test_unpack_refuses_what_has_no_json_value),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
