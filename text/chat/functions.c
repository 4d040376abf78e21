/* The global functions and the tests (`x is NAME`) of templates. */
#include "text/chat/jinja_internal.h"

#include <string.h>
#include <time.h>

#include "base/rk_alloc.h"

#define FUNCTION(name) static rk_value_t name(struct rk_render *r, const struct rk_row_call *call)

FUNCTION(run_range)
{
    bool has_start = call->args[1].kind != RK_VALUE_UNSET;
    int64_t first = rk_arg_int(r, call->args[0], "range", 0);
    int64_t start = has_start ? first : 0, stop = rk_arg_int(r, call->args[1], "range", first);
    int64_t step = rk_arg_int(r, call->args[2], "range", 1), limit = INT64_C(1) << 60;
    rk_value_t range = rk_value_new_list(r, RK_VALUE_RANGE);

    if (step == 0)
        return RK_RAISE(r, "range: the step is 0");
    step = RK_MIN(RK_MAX(step, -limit), limit);
    stop = RK_MIN(RK_MAX(stop, -limit), limit);
    for (int64_t i = RK_MIN(RK_MAX(start, -limit), limit); (step > 0 ? i < stop : i > stop) && !r->error;
         i += step) {
        if (range.list->count == RK_JINJA_RANGE_MAX)
            return RK_RAISE(r, "range: more than %d items", RK_JINJA_RANGE_MAX);
        rk_list_append(r, range.list, rk_value_int(i));
    }
    return range;
}

/* dict() and namespace(): the members of a dict, or pairs, then named members. */
FUNCTION(run_dict)
{
    const struct rk_list *values = call->actuals->values, *pairs;
    const struct rk_dict *named = call->actuals->named;
    rk_value_t dict = rk_value_new_dict(r, (rk_value_kind_t)call->variant), first;

    if (values->count > 1)
        return RK_RAISE(r, "dict: expected at most 1 argument without a name");
    first = values->count > 0 ? values->items[0] : rk_value_undefined("");
    pairs = first.kind == RK_VALUE_DICT ? rk_dict_view(r, first.dict, 'i').list : rk_value_items(r, first);
    for (int64_t i = 0; i < pairs->count && !r->error; i++) {
        const struct rk_list *pair = rk_value_items(r, pairs->items[i]);

        if (pair->count != 2)
            return RK_RAISE(r, "dict: item %lld is no pair", (long long)i);
        rk_dict_put(r, dict.dict, pair->items[0], pair->items[1]);
    }
    for (int64_t i = 0; i < named->count; i++)
        rk_dict_put(r, dict.dict, named->keys[i], named->values[i]);
    for (int64_t i = 0; dict.kind == RK_VALUE_NAMESPACE && i < dict.dict->count; i++) {
        rk_value_t key = dict.dict->keys[i];

        if (key.kind == RK_VALUE_STRING && key.string->bytes > 0 && key.string->data[0] == '_')
            return RK_RAISE(r, "namespace: the name '%.*s' begins with '_'",
                            (int)RK_MIN(key.string->bytes, 64), key.string->data);
    }
    return dict;
}

FUNCTION(run_raise)
{
    struct rk_str text = {0};
    rk_value_t nothing;

    rk_value_format(r, call->args[0], &text);
    nothing = RK_RAISE(r, "the template raised: %s", rk_str_text(&text));
    rk_str_fini(&text);
    return nothing;
}

/* Local time, as datetime.now().strftime(). */
FUNCTION(run_strftime)
{
    const struct rk_text *format = rk_arg_need_text(r, call->args[0], "strftime_now");
    time_t now = (time_t)r->now_s;
    char pattern[256], text[1024];
    struct tm local;
    size_t bytes;

    if (format->bytes >= (int64_t)sizeof(pattern) - 1)
        return RK_RAISE(r, "strftime_now: expected a format of less than %zu bytes", sizeof(pattern));
    memcpy(pattern, format->data, (size_t)format->bytes);
    memcpy(pattern + format->bytes, "!", 2); /* so that an empty result is distinguishable from a failure */
    if (strstr(pattern, "%f"))
        return RK_REFUSE(r, "strftime_now: %%f is not supported");
    if (!localtime_r(&now, &local))
        return RK_RAISE(r, "strftime_now: the time is out of range");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    bytes = strftime(text, sizeof(text), pattern, &local);
#pragma GCC diagnostic pop
    if (bytes == 0)
        return RK_RAISE(r, "strftime_now: the result is longer than %zu bytes", sizeof(text));
    return rk_value_new_string(r, text, bytes - 1);
}

static const struct rk_callable functions[] = {
    {"range", run_range, "start stop step", 1, 0},       {"dict", run_dict, "*", 0, RK_VALUE_DICT},
    {"namespace", run_dict, "*", 0, RK_VALUE_NAMESPACE}, {"raise_exception", run_raise, "message", 1, 0},
    {"strftime_now", run_strftime, "format", 1, 0},      {NULL, NULL, NULL, 0, 0},
};

const struct rk_callable *rk_jinja_function_find(const struct rk_text *name)
{
    return rk_row_find(functions, name);
}

/* --- tests --- */

#define KIND_TEST(name, condition)                                              \
    static rk_value_t name(struct rk_render *r, const struct rk_row_call *call) \
    {                                                                           \
        rk_value_t x = call->self;                                              \
                                                                                \
        (void)r;                                                                \
        return rk_value_bool(condition);                                        \
    }

KIND_TEST(is_kind, (int)x.kind == call->variant)
KIND_TEST(is_defined, x.kind != RK_VALUE_UNDEFINED)
KIND_TEST(is_true, x.kind == RK_VALUE_BOOL && x.boolean == (call->variant != 0))
KIND_TEST(is_number, rk_value_is_number(x))
KIND_TEST(is_iterable, rk_value_is_iterable(x))
KIND_TEST(is_sequence, rk_value_has_length(x) && x.kind != RK_VALUE_VIEW)
KIND_TEST(is_callable, x.kind == RK_VALUE_UNDEFINED || x.kind >= RK_VALUE_MACRO)

/* even, odd, divisibleby; the variant is the remainder. */
FUNCTION(is_divisible)
{
    rk_value_t divisor = call->args[0].kind == RK_VALUE_UNSET ? rk_value_int(2) : call->args[0];

    if (call->self.kind == RK_VALUE_STRING)
        return RK_RAISE(r, "even, odd, divisibleby: expected a number, got str");
    return rk_value_bool(
        rk_value_equal(r, rk_binary(r, '%', call->self, divisor), rk_value_int(call->variant)));
}

/* Comparisons; the variant is the operator. */
FUNCTION(is_compared)
{
    return rk_value_bool(rk_compare(r, call->variant, call->self, call->args[0]));
}

/* Identity, defined for constants only; whether other values share an object in Python is unspecified. */
FUNCTION(is_same)
{
    rk_value_t a = call->self, b = call->args[0];

    if (a.kind == b.kind && a.kind != RK_VALUE_NONE && a.kind != RK_VALUE_BOOL &&
        a.kind != RK_VALUE_UNDEFINED)
        return RK_REFUSE(r, "sameas is supported for true, false and none only");
    return rk_value_bool(a.kind == b.kind && a.kind != RK_VALUE_UNDEFINED && rk_value_equal(r, a, b));
}

static const struct rk_callable tests[] = {
    {"boolean", is_kind, "", 0, RK_VALUE_BOOL},
    {"callable", is_callable, "", 0, 0},
    {"defined", is_defined, "", 0, 0},
    {"divisibleby", is_divisible, "num", 1, 0},
    {"eq", is_compared, "other", 1, RK_OP2('=', '=')},
    {"equalto", is_compared, "other", 1, RK_OP2('=', '=')},
    {"==", is_compared, "other", 1, RK_OP2('=', '=')},
    {"even", is_divisible, "", 0, 0},
    {"false", is_true, "", 0, false},
    {"float", is_kind, "", 0, RK_VALUE_REAL},
    {"ge", is_compared, "other", 1, RK_OP2('>', '=')},
    {">=", is_compared, "other", 1, RK_OP2('>', '=')},
    {"greaterthan", is_compared, "other", 1, '>'},
    {"gt", is_compared, "other", 1, '>'},
    {">", is_compared, "other", 1, '>'},
    {"in", is_compared, "seq", 1, 'i'},
    {"integer", is_kind, "", 0, RK_VALUE_INT},
    {"iterable", is_iterable, "", 0, 0},
    {"le", is_compared, "other", 1, RK_OP2('<', '=')},
    {"<=", is_compared, "other", 1, RK_OP2('<', '=')},
    {"lessthan", is_compared, "other", 1, '<'},
    {"lt", is_compared, "other", 1, '<'},
    {"<", is_compared, "other", 1, '<'},
    {"mapping", is_kind, "", 0, RK_VALUE_DICT},
    {"ne", is_compared, "other", 1, RK_OP2('!', '=')},
    {"!=", is_compared, "other", 1, RK_OP2('!', '=')},
    {"none", is_kind, "", 0, RK_VALUE_NONE},
    {"number", is_number, "", 0, 0},
    {"odd", is_divisible, "", 0, 1},
    {"sameas", is_same, "other", 1, 0},
    {"sequence", is_sequence, "", 0, 0},
    {"string", is_kind, "", 0, RK_VALUE_STRING},
    {"true", is_true, "", 0, true},
    {"undefined", is_kind, "", 0, RK_VALUE_UNDEFINED},
    {NULL, NULL, NULL, 0, 0},
};

const struct rk_callable *rk_jinja_test_find(const struct rk_text *name)
{
    return rk_row_find(tests, name);
}
