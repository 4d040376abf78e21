/* The tests of templates: `x is NAME`. */
#include "text/chat/render_internal.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"

#define TEST(name) \
    static struct rk_status *name(struct rk_render *r, rk_value_t *out, const struct rk_row_call *call)

#define KIND_TEST(name, condition)       \
    TEST(name)                           \
    {                                    \
        rk_value_t x = call->self;       \
                                         \
        (void)r;                         \
        *out = rk_value_bool(condition); \
        return NULL;                     \
    }

KIND_TEST(is_defined, x.kind != RK_VALUE_UNDEFINED)
KIND_TEST(is_undefined, x.kind == RK_VALUE_UNDEFINED)
KIND_TEST(is_none, x.kind == RK_VALUE_NONE)
KIND_TEST(is_boolean, x.kind == RK_VALUE_BOOL)
KIND_TEST(is_true, x.kind == RK_VALUE_BOOL && x.boolean)
KIND_TEST(is_false, x.kind == RK_VALUE_BOOL && !x.boolean)
KIND_TEST(is_integer, x.kind == RK_VALUE_INT)
KIND_TEST(is_float, x.kind == RK_VALUE_REAL)
KIND_TEST(is_number, rk_value_is_number(x))
KIND_TEST(is_string, x.kind == RK_VALUE_STRING)
KIND_TEST(is_mapping, x.kind == RK_VALUE_DICT)
KIND_TEST(is_iterable, rk_value_is_iterable(x))
KIND_TEST(is_sequence, rk_value_has_length(x) && x.kind != RK_VALUE_VIEW)
KIND_TEST(is_escaped, x.kind == RK_VALUE_STRING && x.string->is_markup)
KIND_TEST(is_callable, x.kind == RK_VALUE_UNDEFINED || x.kind == RK_VALUE_MACRO ||
                           x.kind == RK_VALUE_METHOD || x.kind == RK_VALUE_FUNCTION)

static struct rk_status *remainder_is(struct rk_render *r, rk_value_t x, rk_value_t divisor, int64_t expected,
                                      rk_value_t *out)
{
    rk_value_t rest;
    bool is_equal;

    if (x.kind == RK_VALUE_STRING)
        return RK_TEMPLATE_ERROR("even, odd, divisibleby: expected a number, got str");
    RK_TRY(rk_binary(r, '%', x, divisor, &rest));
    RK_TRY(rk_value_equal(r, rest, rk_value_int(expected), &is_equal));
    *out = rk_value_bool(is_equal);
    return NULL;
}

TEST(is_even)
{
    return remainder_is(r, call->self, rk_value_int(2), 0, out);
}

TEST(is_odd)
{
    return remainder_is(r, call->self, rk_value_int(2), 1, out);
}

TEST(is_divisible)
{
    return remainder_is(r, call->self, call->args[0], 0, out);
}

/* Whether there are cased characters and changing the case changes nothing. */
static struct rk_status *has_case(struct rk_render *r, const struct rk_row_call *call, bool is_upper,
                                  rk_value_t *out)
{
    struct rk_str same = {0}, other = {0};
    rk_value_t text;

    RK_TRY(rk_value_to_string(r, call->self, &text));
    (is_upper ? rk_text_upper : rk_text_lower)(text.string->data, text.string->bytes, &same);
    (is_upper ? rk_text_lower : rk_text_upper)(text.string->data, text.string->bytes, &other);
    *out = rk_value_bool(
        (int64_t)same.bytes == text.string->bytes &&
        memcmp(rk_str_text(&same), text.string->data, same.bytes) == 0 &&
        (same.bytes != other.bytes || memcmp(rk_str_text(&same), rk_str_text(&other), same.bytes) != 0));
    rk_str_fini(&same);
    rk_str_fini(&other);
    return NULL;
}

TEST(is_lower)
{
    return has_case(r, call, false, out);
}

TEST(is_upper)
{
    return has_case(r, call, true, out);
}

static struct rk_status *relation(struct rk_render *r, rk_value_t *out, rk_value_t a, rk_value_t b,
                                  bool or_equal)
{
    bool is_less, is_equal = false;

    RK_TRY(rk_value_less(r, a, b, &is_less));
    if (or_equal)
        RK_TRY(rk_value_equal(r, a, b, &is_equal));
    *out = rk_value_bool(is_less || is_equal);
    return NULL;
}

TEST(is_less)
{
    return relation(r, out, call->self, call->args[0], false);
}

TEST(is_at_most)
{
    return relation(r, out, call->self, call->args[0], true);
}

TEST(is_greater)
{
    return relation(r, out, call->args[0], call->self, false);
}

TEST(is_at_least)
{
    return relation(r, out, call->args[0], call->self, true);
}

TEST(is_equal_to)
{
    bool is_equal;

    RK_TRY(rk_value_equal(r, call->self, call->args[0], &is_equal));
    *out = rk_value_bool(is_equal);
    return NULL;
}

TEST(is_not_equal_to)
{
    RK_TRY(is_equal_to(r, out, call));
    out->boolean = !out->boolean;
    return NULL;
}

/* Identity, defined for constants only; whether other values share an object in Python is unspecified. */
TEST(is_same)
{
    rk_value_t a = call->self, b = call->args[0];

    (void)r;
    if (a.kind == b.kind && a.kind != RK_VALUE_NONE && a.kind != RK_VALUE_BOOL &&
        a.kind != RK_VALUE_UNDEFINED)
        return RK_FAIL(RK_UNIMPLEMENTED, "sameas is supported for true, false and none only");
    *out = rk_value_bool(a.kind == b.kind && a.kind != RK_VALUE_UNDEFINED &&
                         (a.kind == RK_VALUE_NONE || a.boolean == b.boolean));
    return NULL;
}

TEST(is_in)
{
    bool is_inside;

    RK_TRY(rk_value_contains(r, call->args[0], call->self, &is_inside));
    *out = rk_value_bool(is_inside);
    return NULL;
}

static const struct rk_callable tests[] = {
    {"defined", is_defined, "", 0},
    {"undefined", is_undefined, "", 0},
    {"none", is_none, "", 0},
    {"boolean", is_boolean, "", 0},
    {"true", is_true, "", 0},
    {"false", is_false, "", 0},
    {"integer", is_integer, "", 0},
    {"float", is_float, "", 0},
    {"number", is_number, "", 0},
    {"string", is_string, "", 0},
    {"mapping", is_mapping, "", 0},
    {"iterable", is_iterable, "", 0},
    {"sequence", is_sequence, "", 0},
    {"escaped", is_escaped, "", 0},
    {"callable", is_callable, "", 0},
    {"even", is_even, "", 0},
    {"odd", is_odd, "", 0},
    {"divisibleby", is_divisible, "num", 1},
    {"lower", is_lower, "", 0},
    {"upper", is_upper, "", 0},
    {"sameas", is_same, "other", 1},
    {"in", is_in, "seq", 1},
    {"eq", is_equal_to, "other", 1},
    {"equalto", is_equal_to, "other", 1},
    {"==", is_equal_to, "other", 1},
    {"ne", is_not_equal_to, "other", 1},
    {"!=", is_not_equal_to, "other", 1},
    {"lt", is_less, "other", 1},
    {"lessthan", is_less, "other", 1},
    {"<", is_less, "other", 1},
    {"le", is_at_most, "other", 1},
    {"<=", is_at_most, "other", 1},
    {"gt", is_greater, "other", 1},
    {"greaterthan", is_greater, "other", 1},
    {">", is_greater, "other", 1},
    {"ge", is_at_least, "other", 1},
    {">=", is_at_least, "other", 1},
};

const struct rk_callable *rk_jinja_test_find(const char *name)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(tests); i++) {
        if (strcmp(tests[i].name, name) == 0)
            return &tests[i];
    }
    return NULL;
}

bool rk_jinja_test_is_known(const char *name)
{
    return strcmp(name, "filter") == 0 || strcmp(name, "test") == 0;
}
