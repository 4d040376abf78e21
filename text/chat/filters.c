/* The filters of templates: `x | NAME`. */
#include "text/chat/jinja_internal.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"

#define FILTER(name) static rk_value_t name(struct rk_render *r, const struct rk_row_call *call)

/* The member of the item that the argument `attribute` names: "name", "a.b" or a number; UNSET, None: the
 * item. */
static rk_value_t attribute_of(struct rk_render *r, rk_value_t attribute, rk_value_t item)
{
    const struct rk_text *path = attribute.string;

    if (attribute.kind == RK_VALUE_UNSET || attribute.kind == RK_VALUE_NONE)
        return item;
    if (attribute.kind != RK_VALUE_STRING)
        return rk_get_item(r, item, attribute);
    for (int64_t at = 0, end; at <= path->bytes && !r->error; at = end + 1) {
        const char *part = path->data + at, *dot = memchr(part, '.', (size_t)(path->bytes - at));
        char digits[20] = {0};

        end = dot ? dot - path->data : path->bytes;
        memcpy(digits, part, (size_t)RK_MIN(end - at, 18));
        if (end > at && end - at < 18 && (int64_t)strspn(digits, "0123456789") == end - at)
            item = rk_get_item(r, item, rk_value_int(strtoll(digits, NULL, 10)));
        else
            item = rk_get_item(r, item, rk_value_new_text(r, part, end - at));
    }
    return item;
}

/* The item for comparisons: strings in lower case unless case_sensitive. */
static rk_value_t fold(struct rk_render *r, rk_value_t item, bool case_sensitive)
{
    struct rk_str text = {0};

    if (case_sensitive || item.kind != RK_VALUE_STRING || !rk_render_step(r, item.string->bytes / 16))
        return item;
    rk_text_case(item.string, RK_CASE_LOWER, &text);
    return rk_value_take_string(r, &text);
}

/* --- texts --- */

/* A new text with the same bytes or a part of them that is markup if the other is. */
static rk_value_t text_like(rk_value_t text, const struct rk_text *like)
{
    if (text.kind == RK_VALUE_STRING)
        text.string->is_markup = like->is_markup;
    return text;
}

FILTER(run_case)
{
    rk_value_t source = rk_value_to_string(r, call->self);
    struct rk_str text = {0};

    if (r->error || !rk_render_step(r, source.string->bytes / 16))
        return source;
    rk_text_case(source.string, (rk_case_t)call->variant, &text);
    return text_like(rk_value_take_string(r, &text), source.string);
}

FILTER(run_string)
{
    return rk_value_to_string(r, call->self);
}

FILTER(run_trim)
{
    const struct rk_text *chars = rk_arg_text(r, call->args[0], "trim");
    rk_value_t source = rk_value_to_string(r, call->self);
    struct rk_text rest;

    if (r->error || !rk_render_step(r, source.string->bytes / 16))
        return source;
    rest = rk_text_strip(source.string, chars, RK_STRIP_BOTH);
    return text_like(rk_value_new_text(r, rest.data, rest.bytes), source.string);
}

FILTER(run_replace)
{
    int64_t count = call->args[2].kind == RK_VALUE_NONE ? -1 : rk_arg_int(r, call->args[2], "replace", -1);
    rk_value_t text = rk_value_to_string(r, call->self), old = rk_value_to_string(r, call->args[0]);
    rk_value_t new_text = rk_value_to_string(r, call->args[1]);

    if (r->error)
        return text;
    if (text.string->is_markup)
        return RK_REFUSE(r, "replace: the result of |safe is not supported");
    return rk_text_replace(r, text.string, old.string, new_text.string, count);
}

FILTER(run_safe)
{
    rk_value_t text = rk_value_to_string(r, call->self);

    if (r->error)
        return text;
    text = rk_value_new_text(r, text.string->data, text.string->bytes);
    text.string->is_markup = true;
    return text;
}

/* The argument `width` or `indent`: a text, or the number of blanks. */
static rk_value_t read_width(struct rk_render *r, rk_value_t width, const char *name)
{
    int64_t count;
    struct rk_str blanks = {0};

    if (width.kind == RK_VALUE_STRING)
        return width;
    count = rk_arg_int(r, width, name, 4);
    for (int64_t i = 0; i < count && rk_render_step(r, 1); i++)
        rk_text_append(r, &blanks, " ", 1);
    return rk_value_take_string(r, &blanks);
}

FILTER(run_indent)
{
    rk_value_t width = read_width(r, call->args[0], "indent"), lines;
    const struct rk_text *text = rk_arg_need_text(r, call->self, "indent");
    bool first = rk_arg_bool(call->args[1], false), blank = rk_arg_bool(call->args[2], false);
    struct rk_str result = {0};

    if (r->error)
        return width;
    rk_text_append(r, &result, text->data, text->bytes);
    rk_text_append(r, &result, "\n", 1); /* which keeps a last empty line */
    lines = rk_value_take_string(r, &result);
    if (r->error)
        return lines;
    lines = rk_text_lines(r, lines.string);
    for (int64_t i = 0; i < lines.list->count && !r->error; i++) {
        const struct rk_text *line = lines.list->items[i].string;

        if (i > 0)
            rk_text_append(r, &result, "\n", 1);
        if (i == 0 ? first : blank || line->bytes > 0)
            rk_text_append(r, &result, width.string->data, width.string->bytes);
        rk_text_append(r, &result, line->data, line->bytes);
    }
    return rk_value_take_string(r, &result);
}

FILTER(run_tojson)
{
    struct rk_json_style style = {.ensure_ascii = rk_arg_bool(call->args[0], false),
                                  .sort_keys = rk_arg_bool(call->args[3], false),
                                  .item_sep = {.data = ", ", .bytes = 2},
                                  .key_sep = {.data = ": ", .bytes = 2}};
    struct rk_str text = {0};

    if (call->args[1].kind > RK_VALUE_NONE) {
        rk_value_t indent = read_width(r, call->args[1], "tojson");

        style.indent = indent.kind == RK_VALUE_STRING ? indent.string : NULL;
        style.item_sep.bytes = 1;
    }
    if (call->args[2].kind > RK_VALUE_NONE) {
        const struct rk_list *pair = rk_value_items(r, call->args[2]);

        if (pair->count != 2)
            return RK_RAISE(r, "tojson: separators: expected two strings");
        style.item_sep = *rk_arg_need_text(r, pair->items[0], "tojson: separators");
        style.key_sep = *rk_arg_need_text(r, pair->items[1], "tojson: separators");
    }
    rk_value_to_json(r, call->self, &style, &text);
    return rk_value_take_string(r, &text);
}

/* --- sequences --- */

FILTER(run_default)
{
    bool by_truth = rk_arg_bool(call->args[1], false);

    if (call->self.kind != RK_VALUE_UNDEFINED && (!by_truth || rk_value_truth(call->self)))
        return call->self;
    return call->args[0].kind == RK_VALUE_UNSET ? rk_value_new_text(r, "", 0) : call->args[0];
}

FILTER(run_length)
{
    return rk_value_int(rk_value_length(r, call->self));
}

FILTER(run_list)
{
    return (rk_value_t){.kind = RK_VALUE_LIST, .list = rk_value_items(r, call->self)};
}

/* first, last */
FILTER(run_end)
{
    bool is_last = call->variant, is_iterator = call->self.kind == RK_VALUE_ITERATOR;
    struct rk_list *items = is_iterator ? call->self.list : rk_value_items(r, call->self);

    if (is_iterator && is_last)
        return RK_RAISE(r, "last: expected a sequence, got an iterator; use |list|last");
    if (items->num_read == items->count)
        return rk_value_undefined("an item of an empty sequence");
    return items->items[is_last ? items->count - 1 : is_iterator ? items->num_read++ : 0];
}

FILTER(run_join)
{
    rk_value_t separator = call->args[0].kind == RK_VALUE_UNSET ? rk_value_new_text(r, "", 0)
                                                                : rk_value_to_string(r, call->args[0]);
    const struct rk_list *items = rk_value_items(r, call->self);
    struct rk_str text = {0};

    for (int64_t i = 0; i < items->count && !r->error; i++) {
        if (i > 0)
            rk_text_append(r, &text, separator.string->data, separator.string->bytes);
        rk_value_format(r, attribute_of(r, call->args[1], items->items[i]), &text);
    }
    return rk_value_take_string(r, &text);
}

FILTER(run_items)
{
    rk_value_t items;

    if (call->self.kind != RK_VALUE_DICT && call->self.kind != RK_VALUE_UNDEFINED)
        return RK_RAISE(r, "items: expected a dict, got %s", rk_value_type_name(call->self));
    items = call->self.kind == RK_VALUE_DICT ? rk_dict_view(r, call->self.dict, 'i')
                                             : rk_value_new_list(r, RK_VALUE_VIEW);
    items.kind = RK_VALUE_ITERATOR;
    return items;
}

FILTER(run_reverse)
{
    static const rk_value_t bounds[3] = {
        {.kind = RK_VALUE_NONE}, {.kind = RK_VALUE_NONE}, {.kind = RK_VALUE_INT, .integer = -1}};
    rk_value_t items = call->self;

    if (items.kind != RK_VALUE_STRING)
        items = (rk_value_t){.kind = RK_VALUE_LIST, .list = rk_value_items(r, items)};
    items = rk_get_slice(r, items, bounds);
    if (call->self.kind != RK_VALUE_STRING && call->self.kind != RK_VALUE_ITERATOR && !r->error)
        items.kind = RK_VALUE_ITERATOR;
    return items;
}

/* --- map, select, reject, selectattr, rejectattr --- */

/* Calls the row that the first actual names with the others. */
static rk_value_t call_named(struct rk_render *r, const struct rk_actuals *actuals, int64_t first,
                             bool is_filter, rk_value_t item)
{
    const struct rk_text *name = rk_arg_need_text(r, actuals->values->items[first], "the name");
    const struct rk_callable *row = is_filter ? rk_jinja_filter_find(name) : rk_jinja_test_find(name);
    struct rk_list values = {.items = actuals->values->items + first + 1,
                             .count = actuals->values->count - first - 1};
    struct rk_actuals rest = {.values = &values, .named = actuals->named};

    return row ? rk_call_row(r, row, item, &rest) : rk_raise_unknown(r, name, is_filter);
}

/* Items of the value; a false value gives none, even if it is not iterable. */
static const struct rk_list *source_of(struct rk_render *r, rk_value_t value)
{
    return rk_value_items(r, rk_value_truth(value) ? value : rk_value_undefined(""));
}

FILTER(run_map)
{
    const struct rk_dict *named = call->actuals->named;
    const rk_value_t *attribute = rk_dict_find_text(named, "attribute", 9);
    const rk_value_t *fallback = rk_dict_find_text(named, "default", 7);
    bool has_filter = call->actuals->values->count > 0;
    const struct rk_list *items = source_of(r, call->self);
    rk_value_t mapped = rk_value_new_list(r, RK_VALUE_ITERATOR);

    if (!has_filter && (!attribute || named->count > 1 + (fallback != NULL)))
        return RK_RAISE(r, "map: expected the name of a filter, or attribute= and default=");
    for (int64_t i = 0; i < items->count && !r->error; i++) {
        rk_value_t item = has_filter ? call_named(r, call->actuals, 0, true, items->items[i])
                                     : attribute_of(r, *attribute, items->items[i]);

        if (!has_filter && item.kind == RK_VALUE_UNDEFINED && fallback && fallback->kind != RK_VALUE_NONE)
            item = *fallback;
        rk_list_append(r, mapped.list, item);
    }
    return mapped;
}

enum select { KEEPS = 1, BY_ATTRIBUTE = 2 };

FILTER(run_select)
{
    const struct rk_list *args = call->actuals->values, *items = source_of(r, call->self);
    rk_value_t selected = rk_value_new_list(r, RK_VALUE_ITERATOR), attribute = {.kind = RK_VALUE_UNSET};
    int64_t first = (call->variant & BY_ATTRIBUTE) != 0;

    if (args->count < first)
        return RK_RAISE(r, "selectattr, rejectattr: expected the name of an attribute");
    if (first)
        attribute = args->items[0];
    for (int64_t i = 0; i < items->count && !r->error; i++) {
        rk_value_t value = attribute_of(r, attribute, items->items[i]);

        if (args->count > first)
            value = call_named(r, call->actuals, first, false, value);
        if (rk_value_truth(value) == (call->variant & KEEPS))
            rk_list_append(r, selected.list, items->items[i]);
    }
    return selected;
}

FILTER(run_unique)
{
    bool case_sensitive = rk_arg_bool(call->args[0], false);
    const struct rk_list *items = rk_value_items(r, call->self);
    rk_value_t unique = rk_value_new_list(r, RK_VALUE_ITERATOR), seen = rk_value_new_dict(r, RK_VALUE_DICT);

    for (int64_t i = 0; i < items->count && !r->error; i++) {
        rk_value_t key = fold(r, attribute_of(r, call->args[1], items->items[i]), case_sensitive);

        if (rk_dict_find(r, seen.dict, key) < 0)
            rk_list_append(r, unique.list, items->items[i]);
        rk_dict_put(r, seen.dict, key, key);
    }
    return unique;
}

/* --- sorting: stable; reverse keeps the order of equals, as Python does --- */

struct entry {
    rk_value_t key, item;
};

static void sort_entries(struct rk_render *r, struct entry *entries, int64_t count, bool reverse)
{
    struct entry *from = entries, *to = rk_render_alloc(r, (size_t)count * sizeof(*entries));

    for (int64_t width = 1; width < count && !r->error; width *= 2) {
        struct entry *swap = from;

        for (int64_t begin = 0; begin < count; begin += 2 * width) {
            int64_t middle = RK_MIN(begin + width, count), end = RK_MIN(middle + width, count);
            int64_t a = begin, b = middle;

            for (int64_t i = begin; i < end; i++) {
                bool takes_b = a == middle;

                if (a < middle && b < end)
                    takes_b = reverse ? rk_value_less(r, from[a].key, from[b].key)
                                      : rk_value_less(r, from[b].key, from[a].key);
                to[i] = from[takes_b ? b++ : a++];
            }
        }
        from = to;
        to = swap;
    }
    if (from != entries)
        memcpy(entries, from, (size_t)count * sizeof(*entries));
}

static rk_value_t sort_items(struct rk_render *r, const struct rk_list *items, rk_value_t attribute,
                             bool case_sensitive, bool reverse)
{
    struct entry *entries = rk_render_alloc(r, (size_t)items->count * sizeof(*entries));
    rk_value_t sorted = rk_value_new_list(r, RK_VALUE_LIST);

    for (int64_t i = 0; i < items->count; i++)
        entries[i] = (struct entry){fold(r, attribute_of(r, attribute, items->items[i]), case_sensitive),
                                    items->items[i]};
    sort_entries(r, entries, items->count, reverse);
    for (int64_t i = 0; i < items->count; i++)
        rk_list_append(r, sorted.list, entries[i].item);
    return sorted;
}

FILTER(run_sort)
{
    rk_value_t by = call->args[2];

    if (by.kind == RK_VALUE_STRING && by.string->bytes > 0 &&
        memchr(by.string->data, ',', (size_t)by.string->bytes))
        return RK_REFUSE(r, "sort: several attributes are not supported");
    return sort_items(r, rk_value_items(r, call->self), by, rk_arg_bool(call->args[1], false),
                      rk_arg_bool(call->args[0], false));
}

FILTER(run_dictsort)
{
    const struct rk_text *by = rk_arg_text(r, call->args[1], "dictsort");
    bool by_value = by && by->bytes == 5 && memcmp(by->data, "value", 5) == 0;

    if (by && !by_value && !(by->bytes == 3 && memcmp(by->data, "key", 3) == 0))
        return RK_RAISE(r, "dictsort: by: expected 'key' or 'value'");
    if (call->self.kind == RK_VALUE_UNDEFINED)
        return rk_raise_undefined(r, call->self);
    if (call->self.kind != RK_VALUE_DICT)
        return RK_RAISE(r, "dictsort: expected a dict, got %s", rk_value_type_name(call->self));
    return sort_items(r, rk_dict_view(r, call->self.dict, 'i').list, rk_value_int(by_value),
                      rk_arg_bool(call->args[0], false), rk_arg_bool(call->args[2], false));
}

/* --- numbers --- */

/* int(text), else int(float(text)): decimal digits between blanks. */
static bool parse_int(struct rk_render *r, const struct rk_text *text, int64_t *out)
{
    struct rk_text digits = rk_text_strip(text, NULL, RK_STRIP_BOTH);
    char number[64] = {0}, *end = number;
    double real;

    if (digits.bytes == 0 || digits.bytes >= (int64_t)sizeof(number) ||
        memchr(digits.data, '_', (size_t)digits.bytes)) {
        if (digits.bytes > 0)
            RK_REFUSE(r, "int: the number '%.*s' is not supported", (int)RK_MIN(digits.bytes, 64),
                      digits.data);
        return false;
    }
    memcpy(number, digits.data, (size_t)digits.bytes);
    if (strspn(number, "+-.0123456789eE") != (size_t)digits.bytes)
        return false;
    errno = 0;
    *out = strtoll(number, &end, 10);
    if (errno == 0 && *end == '\0')
        return true;
    real = strtod(number, &end);
    if (*end != '\0' || end == number)
        return false;
    if (fabs(real) >= 9e18)
        RK_REFUSE(r, "int: integers beyond 64 bits are not supported");
    else
        *out = (int64_t)real;
    return true;
}

FILTER(run_int)
{
    int64_t result;

    if (call->self.kind == RK_VALUE_UNDEFINED)
        return rk_raise_undefined(r, call->self);
    if (rk_value_as_int(call->self, &result) ||
        (call->self.kind == RK_VALUE_STRING && parse_int(r, call->self.string, &result)))
        return rk_value_int(result);
    if (call->self.kind == RK_VALUE_REAL && fabs(call->self.real) >= 9e18)
        return RK_REFUSE(r, "int: integers beyond 64 bits are not supported");
    if (call->self.kind == RK_VALUE_REAL && !isnan(call->self.real))
        return rk_value_int((int64_t)call->self.real);
    return call->args[0].kind == RK_VALUE_UNSET ? rk_value_int(0) : call->args[0];
}

static const struct rk_callable filters[] = {
    {"capitalize", run_case, "", 0, RK_CASE_CAPITALIZE},
    {"count", run_length, "", 0, 0},
    {"d", run_default, "default_value boolean", 0, 0},
    {"default", run_default, "default_value boolean", 0, 0},
    {"dictsort", run_dictsort, "case_sensitive by reverse", 0, 0},
    {"first", run_end, "", 0, false},
    {"indent", run_indent, "width first blank", 0, 0},
    {"int", run_int, "default", 0, 0},
    {"items", run_items, "", 0, 0},
    {"join", run_join, "d attribute", 0, 0},
    {"last", run_end, "", 0, true},
    {"length", run_length, "", 0, 0},
    {"list", run_list, "", 0, 0},
    {"lower", run_case, "", 0, RK_CASE_LOWER},
    {"map", run_map, "*", 0, 0},
    {"reject", run_select, "*", 0, 0},
    {"rejectattr", run_select, "*", 0, BY_ATTRIBUTE},
    {"replace", run_replace, "old new count", 2, 0},
    {"reverse", run_reverse, "", 0, 0},
    {"safe", run_safe, "", 0, 0},
    {"select", run_select, "*", 0, KEEPS},
    {"selectattr", run_select, "*", 0, KEEPS | BY_ATTRIBUTE},
    {"sort", run_sort, "reverse case_sensitive attribute", 0, 0},
    {"string", run_string, "", 0, 0},
    {"title", run_case, "", 0, RK_CASE_WORDS},
    {"tojson", run_tojson, "ensure_ascii indent separators sort_keys", 0, 0},
    {"trim", run_trim, "chars", 0, 0},
    {"unique", run_unique, "case_sensitive attribute", 0, 0},
    {"upper", run_case, "", 0, RK_CASE_UPPER},
    {NULL, NULL, NULL, 0, 0},
};

const struct rk_callable *rk_jinja_filter_find(const struct rk_text *name)
{
    return rk_row_find(filters, name);
}
