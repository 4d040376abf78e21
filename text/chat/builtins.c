/* The methods of texts, dicts and lists, the global functions, and the tests (`x is NAME`) of templates. */
#include "text/chat/jinja_internal.h"

#include <string.h>
#include <time.h>

#include "base/rk_alloc.h"

#define ROW(name) static rk_value_t name(struct rk_render *r, const struct rk_row_call *call)

/* --- texts --- */

ROW(run_strip)
{
    const struct rk_text *chars = rk_arg_text(r, call->args[0], "strip");
    struct rk_text rest;

    (void)rk_render_step(r, call->self.string->bytes / 64);
    rest = rk_text_strip(call->self.string, chars, call->variant);
    return rk_value_new_text(r, rest.data, rest.bytes);
}

ROW(run_text_case)
{
    struct rk_str text = {0};

    if (rk_render_step(r, call->self.string->bytes / 16))
        rk_text_case(call->self.string, (rk_case_t)call->variant, &text);
    return rk_value_take_string(r, &text);
}

ROW(run_text_replace)
{
    const struct rk_text *old = rk_arg_need_text(r, call->args[0], "replace");
    const struct rk_text *new_text = rk_arg_need_text(r, call->args[1], "replace");

    return rk_text_replace(r, call->self.string, old, new_text, rk_arg_int(r, call->args[2], "replace", -1));
}

ROW(run_text_join)
{
    const struct rk_list *items = rk_value_items(r, call->args[0]);
    struct rk_str text = {0};

    for (int64_t i = 0; i < items->count && !r->error; i++) {
        const struct rk_text *item = rk_arg_need_text(r, items->items[i], "join");

        if (i > 0)
            rk_text_append(r, &text, call->self.string->data, call->self.string->bytes);
        rk_text_append(r, &text, item->data, item->bytes);
    }
    return rk_value_take_string(r, &text);
}

static bool has_side(const struct rk_text *text, const struct rk_text *part, bool is_end)
{
    int64_t at = is_end ? text->bytes - part->bytes : 0;

    return part->bytes <= text->bytes &&
           (part->bytes == 0 || memcmp(text->data + at, part->data, (size_t)part->bytes) == 0);
}

/* startswith, endswith: one text, or any of a tuple. */
ROW(run_has_side)
{
    rk_value_t parts = call->args[0], self = call->self;
    bool is_found = false;

    if (call->args[1].kind != RK_VALUE_UNSET) {
        rk_value_t bounds[3] = {call->args[1], call->args[2], {.kind = RK_VALUE_UNSET}};

        self = rk_get_slice(r, self, bounds);
    }
    if (parts.kind != RK_VALUE_TUPLE) {
        parts = rk_value_new_list(r, RK_VALUE_TUPLE);
        rk_list_append(r, parts.list, call->args[0]);
    }
    for (int64_t i = 0; i < parts.list->count && !r->error; i++) {
        const struct rk_text *part = rk_arg_need_text(r, parts.list->items[i], "startswith, endswith");

        is_found = is_found || has_side(self.string, part, call->variant);
    }
    return rk_value_bool(is_found);
}

/* removeprefix, removesuffix */
ROW(run_remove)
{
    const struct rk_text *text = call->self.string, *part = rk_arg_need_text(r, call->args[0], "remove");
    int64_t bytes = has_side(text, part, call->variant) ? part->bytes : 0;

    return rk_value_new_text(r, text->data + (call->variant ? 0 : bytes), text->bytes - bytes);
}

enum find { FIND, RFIND, INDEX };

/* First or last position, in characters. */
ROW(run_find)
{
    const struct rk_text *part = rk_arg_need_text(r, call->args[0], "find");
    struct rk_text head = *call->self.string;
    int64_t found = -1;

    for (int64_t next = 0; next >= 0 && (found < 0 || call->variant == RFIND) && rk_render_step(r, 1);) {
        next = rk_text_find(call->self.string, part, found + 1);
        (void)rk_render_step(r, (next < 0 ? head.bytes - found : next - found) / 16);
        found = next < 0 ? found : next;
        next = next < 0 ? -1 : next;
    }
    if (found < 0 && call->variant == INDEX)
        return RK_RAISE(r, "index: the text is not there");
    head.bytes = found;
    head.chars = -1;
    return rk_value_int(found < 0 ? -1 : rk_text_chars(&head));
}

ROW(run_text_count)
{
    const struct rk_text *part = rk_arg_need_text(r, call->args[0], "count");
    int64_t count = 0, at = 0;

    if (part->bytes == 0)
        return rk_value_int(rk_value_length(r, call->self) + 1);
    (void)rk_render_step(r, call->self.string->bytes / 16);
    for (; (at = rk_text_find(call->self.string, part, at)) >= 0; at += part->bytes)
        count++;
    return rk_value_int(count);
}

static void append_part(struct rk_render *r, rk_value_t parts, const struct rk_text *text, int64_t begin,
                        int64_t end)
{
    rk_list_append(r, parts.list, rk_value_new_text(r, text->data + begin, end - begin));
}

/* Splits at runs of white space, ignoring it at the ends. The rest after `max` splits is one part. */
static void split_space(struct rk_render *r, const struct rk_text *text, int64_t max, rk_value_t parts)
{
    struct rk_text rest = rk_text_strip(text, NULL, RK_STRIP_LEFT);

    for (; rest.bytes > 0 && rk_render_step(r, 1); max--) {
        int64_t end = 0;
        int size;

        while (max != 0 && end < rest.bytes && !rk_code_point_is_space(rk_utf8_read(rest.data + end, &size)))
            end += size;
        append_part(r, parts, &rest, 0, max == 0 ? rest.bytes : end);
        rest = (struct rk_text){.data = rest.data + end, .bytes = max == 0 ? 0 : rest.bytes - end};
        rest = rk_text_strip(&rest, NULL, RK_STRIP_LEFT);
    }
}

/* split, and rsplit at a separator: splits into all parts, then joins the surplus at the beginning. */
ROW(run_split)
{
    const struct rk_text *text = call->self.string, *separator = rk_arg_text(r, call->args[0], "split");
    int64_t max = rk_arg_int(r, call->args[1], "split", -1), from = 0, found, surplus;
    bool is_right = call->variant;
    rk_value_t parts = rk_value_new_list(r, RK_VALUE_LIST);

    max = RK_MAX(max, -1);
    (void)rk_render_step(r, text->bytes / 16);
    if (!separator && is_right && max >= 0)
        return RK_REFUSE(r, "rsplit at white space with a limit is not supported");
    if (separator && separator->bytes == 0)
        return RK_RAISE(r, "split: the separator is empty");
    if (!separator) {
        split_space(r, text, max, parts);
        return parts;
    }
    for (int64_t left = is_right ? -1 : max; left != 0 && !r->error; left--) {
        found = rk_text_find(text, separator, from);
        if (found < 0)
            break;
        append_part(r, parts, text, from, found);
        from = found + separator->bytes;
    }
    append_part(r, parts, text, from, text->bytes);
    surplus = is_right && max >= 0 ? parts.list->count - 1 - max : 0;
    if (surplus > 0 && !r->error) {
        const struct rk_text *last = parts.list->items[surplus].string;

        parts.list->items += surplus;
        parts.list->count -= surplus;
        parts.list->capacity -= surplus;
        parts.list->items[0] = rk_value_new_text(r, text->data, last->data + last->bytes - text->data);
    }
    return parts;
}

ROW(run_splitlines)
{
    if (rk_arg_bool(call->args[0], false))
        return RK_REFUSE(r, "splitlines with line ends is not supported");
    return rk_text_lines(r, call->self.string);
}

/* --- dicts and lists --- */

ROW(run_view)
{
    return rk_dict_view(r, call->self.dict, (char)call->variant);
}

ROW(run_get)
{
    int64_t at = rk_dict_find(r, call->self.dict, call->args[0]);

    if (at >= 0)
        return call->self.dict->values[at];
    return call->args[1].kind == RK_VALUE_UNSET ? rk_value_none() : call->args[1];
}

ROW(run_copy)
{
    (void)r;
    return call->self; /* templates cannot change it */
}

/* index, count */
ROW(run_list_find)
{
    const struct rk_list *list = call->self.list;
    int64_t first = -1, count = 0;

    for (int64_t i = 0; i < list->count && !r->error; i++) {
        bool is_equal = rk_value_equal(r, list->items[i], call->args[0]);

        first = is_equal && first < 0 ? i : first;
        count += is_equal;
    }
    if (call->variant == INDEX && first < 0)
        return RK_RAISE(r, "index: the value is not in the list");
    return rk_value_int(call->variant == INDEX ? first : count);
}

static const struct rk_callable text_methods[] = {
    {"capitalize", run_text_case, "", 0, RK_CASE_CAPITALIZE},
    {"count", run_text_count, "sub", 1, 0},
    {"endswith", run_has_side, "suffix start end", 1, true},
    {"find", run_find, "sub", 1, FIND},
    {"index", run_find, "sub", 1, INDEX},
    {"join", run_text_join, "iterable", 1, 0},
    {"lower", run_text_case, "", 0, RK_CASE_LOWER},
    {"lstrip", run_strip, "chars", 0, RK_STRIP_LEFT},
    {"removeprefix", run_remove, "prefix", 1, false},
    {"removesuffix", run_remove, "suffix", 1, true},
    {"replace", run_text_replace, "old new count", 2, 0},
    {"rfind", run_find, "sub", 1, RFIND},
    {"rsplit", run_split, "sep maxsplit", 0, true},
    {"rstrip", run_strip, "chars", 0, RK_STRIP_RIGHT},
    {"split", run_split, "sep maxsplit", 0, false},
    {"splitlines", run_splitlines, "keepends", 0, 0},
    {"startswith", run_has_side, "prefix start end", 1, false},
    {"strip", run_strip, "chars", 0, RK_STRIP_BOTH},
    {"title", run_text_case, "", 0, RK_CASE_TITLE},
    {"upper", run_text_case, "", 0, RK_CASE_UPPER},
    {NULL, NULL, NULL, 0, 0},
};

static const struct rk_callable dict_methods[] = {
    {"copy", run_copy, "", 0, 0},   {"get", run_get, "key default", 1, 0}, {"items", run_view, "", 0, 'i'},
    {"keys", run_view, "", 0, 'k'}, {"values", run_view, "", 0, 'v'},      {NULL, NULL, NULL, 0, 0},
};

static const struct rk_callable list_methods[] = {
    {"copy", run_copy, "", 0, 0}, /* not of tuples */
    {"count", run_list_find, "value", 1, FIND},
    {"index", run_list_find, "value", 1, INDEX},
    {NULL, NULL, NULL, 0, 0},
};

/* Methods by kind of value, and the names of members that are not supported, or that Jinja's sandbox hides
 * because they change their object. */
static const struct {
    const struct rk_callable *rows;
    const char *unsupported, *hidden;
} tables[RK_VALUE_KIND_COUNT] = {
    [RK_VALUE_STRING] =
        {text_methods,
         "casefold center encode expandtabs format format_map isalnum isalpha isascii isdecimal "
         "isdigit isidentifier islower isnumeric isprintable isspace istitle isupper ljust "
         "maketrans partition rindex rjust rpartition swapcase translate zfill",
         ""},
    [RK_VALUE_DICT] = {dict_methods, "fromkeys", "clear pop popitem setdefault update"},
    [RK_VALUE_LIST] = {list_methods, "", "append clear extend insert pop remove reverse sort"},
    [RK_VALUE_TUPLE] = {list_methods + 1, "", ""},
    [RK_VALUE_RANGE] = {list_methods + 3, "count index", ""},
    [RK_VALUE_LOOP] = {list_methods + 3, "changed cycle depth depth0", ""},
};

rk_value_t rk_method_of(struct rk_render *r, rk_value_t object, const struct rk_text *name)
{
    const struct rk_callable *row =
        tables[object.kind].rows ? rk_row_find(tables[object.kind].rows, name) : NULL;
    rk_value_t method = {.kind = RK_VALUE_UNSET};

    if (row) {
        method = (rk_value_t){.kind = RK_VALUE_METHOD, .method = rk_render_alloc(r, sizeof(*method.method))};
        *method.method = (struct rk_bound_method){object, row};
    } else if (tables[object.kind].rows) {
        if (rk_word_find(tables[object.kind].unsupported, name->data, name->bytes) >= 0)
            return RK_REFUSE(r, "the member '%.*s' of a %s is not supported", (int)name->bytes, name->data,
                             rk_value_type_name(object));
        if (rk_word_find(tables[object.kind].hidden, name->data, name->bytes) >= 0)
            return rk_value_undefined("a method that changes its object");
    }
    return method;
}

/* --- global functions --- */

ROW(run_range)
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
ROW(run_dict)
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

ROW(run_raise)
{
    struct rk_str text = {0};
    rk_value_t nothing;

    rk_value_format(r, call->args[0], &text);
    nothing = RK_RAISE(r, "the template raised: %s", rk_str_text(&text));
    rk_str_fini(&text);
    return nothing;
}

/* Local time, as datetime.now().strftime(). */
ROW(run_strftime)
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
ROW(is_divisible)
{
    rk_value_t divisor = call->args[0].kind == RK_VALUE_UNSET ? rk_value_int(2) : call->args[0];

    if (call->self.kind == RK_VALUE_STRING)
        return RK_RAISE(r, "even, odd, divisibleby: expected a number, got str");
    return rk_value_bool(
        rk_value_equal(r, rk_binary(r, '%', call->self, divisor), rk_value_int(call->variant)));
}

/* Comparisons; the variant is the operator. */
ROW(is_compared)
{
    return rk_value_bool(rk_compare(r, call->variant, call->self, call->args[0]));
}

/* Identity, defined for constants only; whether other values share an object in Python is unspecified. */
ROW(is_same)
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
