/* Operators: arithmetic, comparisons, and members. As in Jinja, a.b is the attribute before the item, a["b"]
 * the item before the attribute, and a missing member is undefined. */
#include "text/chat/jinja_internal.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"

/* --- numbers --- */

static int64_t floor_div(int64_t a, int64_t b)
{
    int64_t quotient = a / b;

    return quotient - (a % b != 0 && (a % b < 0) != (b < 0));
}

static int64_t floor_rest(int64_t a, int64_t b)
{
    int64_t rest = a % b;

    return rest != 0 && (rest < 0) != (b < 0) ? rest + b : rest;
}

static double floor_mod(double a, double b)
{
    double rest = fmod(a, b);

    if (rest != 0.0 && (rest < 0) != (b < 0))
        return rest + b;
    return rest != 0.0 ? rest : copysign(0.0, b);
}

static rk_value_t int_binary(struct rk_render *r, int32_t op, int64_t a, int64_t b)
{
    int64_t result = 0;
    bool is_right = true;

    if (op == '+')
        is_right = rk_add_i64(a, b, &result);
    else if (op == '-')
        is_right = !__builtin_sub_overflow(a, b, &result);
    else if (op == '*')
        is_right = rk_mul_i64(a, b, &result);
    else if (b == 0)
        return RK_RAISE(r, "division by zero");
    else if (op == '/')
        return rk_value_real((double)a / (double)b);
    else if (a == INT64_MIN && b == -1)
        is_right = false;
    else
        result = op == '%' ? floor_rest(a, b) : floor_div(a, b);
    return is_right ? rk_value_int(result) : RK_REFUSE(r, "integers beyond 64 bits are not supported");
}

static rk_value_t real_binary(struct rk_render *r, int32_t op, double a, double b)
{
    if (op == '+')
        return rk_value_real(a + b);
    if (op == '-')
        return rk_value_real(a - b);
    if (op == '*')
        return rk_value_real(a * b);
    if (b == 0.0)
        return RK_RAISE(r, "division by zero");
    if (op == '/')
        return rk_value_real(a / b);
    return rk_value_real(op == '%' ? floor_mod(a, b) : floor((a - floor_mod(a, b)) / b + 0.5));
}

/* --- texts and lists --- */

/* Markup escapes the text added to it. */
static rk_value_t add_texts(struct rk_render *r, const struct rk_text *a, const struct rk_text *b)
{
    bool is_markup = a->is_markup || b->is_markup;
    struct rk_str text = {0};
    rk_value_t sum;

    if (is_markup && !a->is_markup)
        rk_text_escape(a, &text);
    else
        rk_text_append(r, &text, a->data, a->bytes);
    if (is_markup && !b->is_markup)
        rk_text_escape(b, &text);
    else
        rk_text_append(r, &text, b->data, b->bytes);
    sum = rk_value_take_string(r, &text);
    if (sum.kind == RK_VALUE_STRING)
        sum.string->is_markup = is_markup;
    return sum;
}

static rk_value_t repeat(struct rk_render *r, rk_value_t value, int64_t times)
{
    struct rk_str text = {0};
    rk_value_t result;

    if (value.kind == RK_VALUE_STRING) {
        for (int64_t i = 0; i < times && value.string->bytes > 0 && rk_render_step(r, 1); i++)
            rk_text_append(r, &text, value.string->data, value.string->bytes);
        result = rk_value_take_string(r, &text);
        if (result.kind == RK_VALUE_STRING)
            result.string->is_markup = value.string->is_markup;
        return result;
    }
    result = rk_value_new_list(r, value.kind);
    for (int64_t i = 0; i < times && value.list->count > 0 && !r->error; i++) {
        for (int64_t k = 0; k < value.list->count; k++)
            rk_list_append(r, result.list, value.list->items[k]);
    }
    return result;
}

static bool is_list(rk_value_t value)
{
    return value.kind == RK_VALUE_LIST || value.kind == RK_VALUE_TUPLE;
}

rk_value_t rk_binary(struct rk_render *r, int32_t op, rk_value_t a, rk_value_t b)
{
    char text[3] = {(char)(op & 0xff), (char)(op >> 8), '\0'};
    int64_t x, y;

    if (rk_value_as_int(a, &x) && rk_value_as_int(b, &y))
        return int_binary(r, op, x, y);
    if (rk_value_is_number(a) && rk_value_is_number(b))
        return real_binary(r, op, rk_value_as_real(a), rk_value_as_real(b));
    if (op == '+' && a.kind == RK_VALUE_STRING && b.kind == RK_VALUE_STRING)
        return add_texts(r, a.string, b.string);
    if (op == '+' && is_list(a) && a.kind == b.kind) {
        rk_value_t sum = repeat(r, a, 1);

        for (int64_t i = 0; i < b.list->count; i++)
            rk_list_append(r, sum.list, b.list->items[i]);
        return sum;
    }
    if (op == '*' && (a.kind == RK_VALUE_STRING || is_list(a)) && rk_value_as_int(b, &y))
        return repeat(r, a, y);
    if (op == '*' && (b.kind == RK_VALUE_STRING || is_list(b)) && rk_value_as_int(a, &x))
        return repeat(r, b, x);
    if (op == '%' && a.kind == RK_VALUE_STRING)
        return RK_REFUSE(r, "the operator %% on a string (printf) is not supported");
    if (a.kind == RK_VALUE_UNDEFINED || b.kind == RK_VALUE_UNDEFINED)
        return rk_raise_undefined(r, a.kind == RK_VALUE_UNDEFINED ? a : b);
    return RK_RAISE(r, "cannot compute %s %s %s", rk_value_type_name(a), text, rk_value_type_name(b));
}

rk_value_t rk_negate(struct rk_render *r, rk_value_t a)
{
    int64_t integer;

    if (a.kind == RK_VALUE_REAL)
        return rk_value_real(-a.real);
    if (rk_value_as_int(a, &integer))
        return int_binary(r, '-', 0, integer);
    return a.kind == RK_VALUE_UNDEFINED ? rk_raise_undefined(r, a)
                                        : RK_RAISE(r, "a sign of a value of type %s", rk_value_type_name(a));
}

/* --- equality --- */

static bool numbers_equal(rk_value_t a, rk_value_t b)
{
    int64_t x, y;

    if (rk_value_as_int(a, &x) && rk_value_as_int(b, &y))
        return x == y;
    return rk_value_as_real(a) == rk_value_as_real(b);
}

static bool lists_equal(struct rk_render *r, const struct rk_list *a, const struct rk_list *b)
{
    bool is_equal = a->count == b->count && rk_render_enter(r);

    for (int64_t i = 0; is_equal && i < a->count; i++)
        is_equal = rk_value_equal(r, a->items[i], b->items[i]);
    r->depth -= a->count == b->count;
    return is_equal;
}

static bool dicts_equal(struct rk_render *r, const struct rk_dict *a, const struct rk_dict *b)
{
    bool is_equal = a->count == b->count && rk_render_enter(r);

    for (int64_t i = 0; is_equal && i < a->count; i++) {
        int64_t at = rk_dict_find(r, b, a->keys[i]);

        is_equal = at >= 0 && rk_value_equal(r, a->values[i], b->values[at]);
    }
    r->depth -= a->count == b->count;
    return is_equal;
}

bool rk_value_equal(struct rk_render *r, rk_value_t a, rk_value_t b)
{
    if (!rk_render_step(r, 1))
        return false;
    if (rk_value_is_number(a) && rk_value_is_number(b))
        return numbers_equal(a, b);
    if (a.kind != b.kind)
        return false;
    switch (a.kind) {
    case RK_VALUE_UNDEFINED:
    case RK_VALUE_NONE:
        return true;
    case RK_VALUE_STRING:
        return a.string->bytes == b.string->bytes &&
               memcmp(a.string->data, b.string->data, (size_t)a.string->bytes) == 0;
    case RK_VALUE_LIST:
    case RK_VALUE_TUPLE:
    case RK_VALUE_RANGE:
        return lists_equal(r, a.list, b.list);
    case RK_VALUE_DICT:
        return dicts_equal(r, a.dict, b.dict);
    default: /* an object is equal to itself */
        return a.list == b.list;
    }
}

/* --- order and membership --- */

static bool lists_less(struct rk_render *r, const struct rk_list *a, const struct rk_list *b)
{
    bool is_less = a->count < b->count, is_equal = rk_render_enter(r);

    for (int64_t i = 0; is_equal && i < RK_MIN(a->count, b->count); i++) {
        is_equal = rk_value_equal(r, a->items[i], b->items[i]);
        if (!is_equal)
            is_less = rk_value_less(r, a->items[i], b->items[i]);
    }
    r->depth--;
    return is_less;
}

bool rk_value_less(struct rk_render *r, rk_value_t a, rk_value_t b)
{
    int64_t x, y;
    int order;

    if (!rk_render_step(r, 1))
        return false;
    if (rk_value_as_int(a, &x) && rk_value_as_int(b, &y))
        return x < y;
    if (rk_value_is_number(a) && rk_value_is_number(b))
        return rk_value_as_real(a) < rk_value_as_real(b);
    if (a.kind == RK_VALUE_STRING && b.kind == RK_VALUE_STRING) { /* UTF-8 has the order of code points */
        order = memcmp(a.string->data, b.string->data, (size_t)RK_MIN(a.string->bytes, b.string->bytes));
        return order != 0 ? order < 0 : a.string->bytes < b.string->bytes;
    }
    if (is_list(a) && a.kind == b.kind)
        return lists_less(r, a.list, b.list);
    if (a.kind == RK_VALUE_UNDEFINED || b.kind == RK_VALUE_UNDEFINED)
        rk_raise_undefined(r, a.kind == RK_VALUE_UNDEFINED ? a : b);
    else
        RK_RAISE(r, "values of types %s and %s have no order", rk_value_type_name(a), rk_value_type_name(b));
    return false;
}

static bool contains(struct rk_render *r, rk_value_t container, rk_value_t item)
{
    const struct rk_list *items;

    if (container.kind == RK_VALUE_STRING) {
        (void)rk_render_step(r, container.string->bytes / 16);
        return rk_text_find(container.string, rk_arg_need_text(r, item, "in"), 0) >= 0;
    }
    if (container.kind == RK_VALUE_DICT)
        return rk_dict_find(r, container.dict, item) >= 0;
    items = rk_value_items(r, container);
    for (int64_t i = 0; i < items->count && !r->error; i++) {
        if (rk_value_equal(r, items->items[i], item))
            return true;
    }
    return false;
}

bool rk_compare(struct rk_render *r, int32_t op, rk_value_t a, rk_value_t b)
{
    switch (op) {
    case RK_OP2('=', '='):
        return rk_value_equal(r, a, b);
    case RK_OP2('!', '='):
        return !rk_value_equal(r, a, b);
    case '<':
        return rk_value_less(r, a, b);
    case '>':
        return rk_value_less(r, b, a);
    case 'i':
        return contains(r, b, a);
    case 'n':
        return !contains(r, b, a);
    case RK_OP2('<', '='):
        return rk_value_less(r, a, b) || rk_value_equal(r, a, b);
    default:
        return rk_value_less(r, b, a) || rk_value_equal(r, a, b);
    }
}

/* --- attributes and items --- */

static rk_value_t missing(struct rk_render *r, rk_value_t name)
{
    struct rk_str text = {0};
    char *copy;

    rk_value_format(r, name, &text);
    copy = rk_render_alloc(r, 65);
    memcpy(copy, rk_str_text(&text), RK_MIN(text.bytes, (size_t)64));
    rk_str_fini(&text);
    return rk_value_undefined(copy);
}

/* A Python attribute of the object; UNSET if it has none of this name. */
static rk_value_t attr_of(struct rk_render *r, rk_value_t object, const struct rk_text *name)
{
    rk_value_t value = {.kind = RK_VALUE_UNSET};

    if (object.kind == RK_VALUE_NAMESPACE) {
        const rk_value_t *member = rk_dict_find_text(object.dict, name->data, (size_t)name->bytes);

        return member ? *member : value;
    }
    if (object.kind == RK_VALUE_LOOP)
        value = rk_for_loop_attr(r, object.loop, name);
    return value.kind == RK_VALUE_UNSET ? rk_method_of(r, object, name) : value;
}

rk_value_t rk_get_attr(struct rk_render *r, rk_value_t object, rk_value_t name)
{
    const rk_value_t *member = NULL;
    rk_value_t value;

    if (object.kind == RK_VALUE_UNDEFINED)
        return rk_raise_undefined(r, object);
    value = attr_of(r, object, name.string);
    if (value.kind != RK_VALUE_UNSET)
        return value;
    if (object.kind == RK_VALUE_DICT)
        member = rk_dict_find_text(object.dict, name.string->data, (size_t)name.string->bytes);
    return member ? *member : missing(r, name);
}

/* Item of a sequence by index; UNSET if there is no such item or the object is not a sequence. */
static rk_value_t item_at(struct rk_render *r, rk_value_t object, int64_t i)
{
    bool is_text = object.kind == RK_VALUE_STRING;
    int64_t count, begin;

    if (!is_text && object.kind != RK_VALUE_LIST && object.kind != RK_VALUE_TUPLE &&
        object.kind != RK_VALUE_RANGE)
        return (rk_value_t){.kind = RK_VALUE_UNSET};
    count = rk_value_length(r, object);
    i += i < 0 ? count : 0;
    if (i < 0 || i >= count)
        return (rk_value_t){.kind = RK_VALUE_UNSET};
    if (!is_text)
        return object.list->items[i];
    begin = rk_text_offset(object.string, i);
    (void)rk_render_step(r, begin / 64);
    return rk_value_new_text(r, object.string->data + begin, rk_text_offset(object.string, i + 1) - begin);
}

rk_value_t rk_get_item(struct rk_render *r, rk_value_t object, rk_value_t key)
{
    rk_value_t value = {.kind = RK_VALUE_UNSET};
    int64_t i;

    if (object.kind == RK_VALUE_UNDEFINED)
        return rk_raise_undefined(r, object);
    if (object.kind == RK_VALUE_DICT) { /* a key that is not hashable is a missing item in Jinja */
        i = rk_value_is_hashable(key) ? rk_dict_find(r, object.dict, key) : -1;
        if (i >= 0)
            return object.dict->values[i];
    } else if (rk_value_as_int(key, &i)) {
        value = item_at(r, object, i);
    }
    if (value.kind == RK_VALUE_UNSET && key.kind == RK_VALUE_STRING)
        value = attr_of(r, object, key.string);
    return value.kind == RK_VALUE_UNSET ? missing(r, key) : value;
}

/* --- slices --- */

struct slice {
    int64_t start, step, count;
};

/* A bound by Python's rules: negative ones count from the end, and all are clamped to low..high. */
static int64_t read_bound(struct rk_render *r, rk_value_t bound, int64_t length, int64_t fallback,
                          int64_t low, int64_t high)
{
    int64_t value;

    if (bound.kind == RK_VALUE_NONE || bound.kind == RK_VALUE_UNSET)
        return fallback;
    value = rk_arg_int(r, bound, "a slice", 0);
    return RK_MIN(RK_MAX(value + (value < 0 ? length : 0), low), high);
}

static struct slice read_slice(struct rk_render *r, const rk_value_t *bounds, int64_t length)
{
    int64_t step = read_bound(r, bounds[2], 0, 1, -INT64_MAX / 4, INT64_MAX / 4), low, high, start, stop;
    struct slice slice = {.step = step};

    low = step < 0 ? -1 : 0;
    high = step < 0 ? length - 1 : length;
    start = read_bound(r, bounds[0], length, step < 0 ? high : low, low, high);
    stop = read_bound(r, bounds[1], length, step < 0 ? low : high, low, high);
    slice.start = start;
    if (step == 0)
        RK_RAISE(r, "the step of a slice is 0");
    else if (step > 0 && stop > start)
        slice.count = (stop - start - 1) / step + 1;
    else if (step < 0 && start > stop)
        slice.count = (start - stop - 1) / -step + 1;
    return slice;
}

static rk_value_t slice_text(struct rk_render *r, struct rk_text *text, const struct slice *slice)
{
    struct rk_str result = {0};

    if (slice->step == 1) {
        int64_t begin = slice->count ? rk_text_offset(text, slice->start) : 0;
        int64_t end = slice->count ? rk_text_offset(text, slice->start + slice->count) : 0;

        return rk_value_new_text(r, text->data + begin, end - begin);
    }
    for (int64_t i = 0; i < slice->count && !r->error; i++) {
        int64_t at = slice->start + i * slice->step, offset = rk_text_offset(text, at);

        rk_str_append_bytes(&result, text->data + offset, (size_t)(rk_text_offset(text, at + 1) - offset));
        (void)rk_render_step(r, 1 + (text->chars == text->bytes ? 0 : offset / 32));
    }
    return rk_value_take_string(r, &result);
}

rk_value_t rk_get_slice(struct rk_render *r, rk_value_t object, const rk_value_t *bounds)
{
    struct slice slice;
    rk_value_t part;

    if (object.kind == RK_VALUE_UNDEFINED)
        return rk_raise_undefined(r, object);
    if (object.kind == RK_VALUE_RANGE)
        return RK_REFUSE(r, "slices of a range are not supported");
    if (object.kind != RK_VALUE_STRING && object.kind != RK_VALUE_LIST && object.kind != RK_VALUE_TUPLE)
        return RK_RAISE(r, "a value of type %s has no slices", rk_value_type_name(object));
    slice = read_slice(r, bounds, rk_value_length(r, object));
    if (object.kind == RK_VALUE_STRING) {
        part = slice_text(r, object.string, &slice);
        if (part.kind == RK_VALUE_STRING)
            part.string->is_markup = object.string->is_markup;
        return part;
    }
    part = rk_value_new_list(r, object.kind);
    for (int64_t i = 0; i < slice.count && !r->error; i++)
        rk_list_append(r, part.list, object.list->items[slice.start + i * slice.step]);
    return part;
}
