/* Equality, order and membership, with Python's semantics. */
#include "text/chat/render_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

static struct rk_status *lists_equal(struct rk_render *r, const struct rk_list *a, const struct rk_list *b,
                                     bool *out)
{
    *out = a->count == b->count;
    for (int64_t i = 0; *out && i < a->count; i++)
        RK_TRY(rk_value_equal(r, a->items[i], b->items[i], out));
    return NULL;
}

static struct rk_status *dicts_equal(struct rk_render *r, const struct rk_dict *a, const struct rk_dict *b,
                                     bool *out)
{
    int64_t at;

    *out = a->count == b->count;
    for (int64_t i = 0; *out && i < a->count; i++) {
        RK_TRY(rk_dict_find(r, b, a->keys[i], &at));
        *out = at >= 0;
        if (*out)
            RK_TRY(rk_value_equal(r, a->values[i], b->values[at], out));
    }
    return NULL;
}

static bool numbers_equal(rk_value_t a, rk_value_t b)
{
    int64_t x, y;

    if (rk_value_as_int(a, &x) && rk_value_as_int(b, &y))
        return x == y;
    return rk_value_as_real(a) == rk_value_as_real(b);
}

static bool objects_equal(rk_value_t a, rk_value_t b)
{
    switch (a.kind) {
    case RK_VALUE_UNDEFINED:
    case RK_VALUE_NONE:
        return true;
    case RK_VALUE_STRING:
        return a.string->bytes == b.string->bytes &&
               memcmp(a.string->data, b.string->data, (size_t)a.string->bytes) == 0;
    case RK_VALUE_RANGE:
        return a.range->count == b.range->count &&
               (a.range->count == 0 || a.range->start == b.range->start) &&
               (a.range->count <= 1 || a.range->step == b.range->step);
    case RK_VALUE_FUNCTION:
        return a.function == b.function;
    default: /* an object is equal to itself */
        return a.list == b.list;
    }
}

static struct rk_status *containers_equal(struct rk_render *r, rk_value_t a, rk_value_t b, bool *out)
{
    struct rk_status *st;

    if (++r->depth > RK_JINJA_DEPTH_MAX)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "values are nested deeper than %d", RK_JINJA_DEPTH_MAX);
    if (a.kind == RK_VALUE_DICT)
        st = dicts_equal(r, a.dict, b.dict, out);
    else
        st = lists_equal(r, a.list, b.list, out);
    r->depth--;
    return st;
}

struct rk_status *rk_value_equal(struct rk_render *r, rk_value_t a, rk_value_t b, bool *out)
{
    RK_TRY(rk_render_step(r, 1));
    if (rk_value_is_number(a) && rk_value_is_number(b)) {
        *out = numbers_equal(a, b);
        return NULL;
    }
    *out = false;
    if (a.kind != b.kind)
        return NULL;
    if (a.kind == RK_VALUE_LIST || a.kind == RK_VALUE_TUPLE || a.kind == RK_VALUE_DICT)
        return containers_equal(r, a, b, out);
    *out = objects_equal(a, b);
    return NULL;
}

static struct rk_status *lists_less(struct rk_render *r, const struct rk_list *a, const struct rk_list *b,
                                    bool *out)
{
    bool is_equal;

    for (int64_t i = 0; i < RK_MIN(a->count, b->count); i++) {
        RK_TRY(rk_value_equal(r, a->items[i], b->items[i], &is_equal));
        if (!is_equal)
            return rk_value_less(r, a->items[i], b->items[i], out);
    }
    *out = a->count < b->count;
    return NULL;
}

static bool numbers_less(rk_value_t a, rk_value_t b)
{
    int64_t x, y;

    if (rk_value_as_int(a, &x) && rk_value_as_int(b, &y))
        return x < y;
    return rk_value_as_real(a) < rk_value_as_real(b);
}

/* The byte order of UTF-8 equals the order of code points. */
static bool texts_less(const struct rk_text *a, const struct rk_text *b)
{
    int order = memcmp(a->data, b->data, (size_t)RK_MIN(a->bytes, b->bytes));

    return order != 0 ? order < 0 : a->bytes < b->bytes;
}

struct rk_status *rk_value_less(struct rk_render *r, rk_value_t a, rk_value_t b, bool *out)
{
    struct rk_status *st;

    RK_TRY(rk_render_step(r, 1));
    if (a.kind == RK_VALUE_UNDEFINED || b.kind == RK_VALUE_UNDEFINED)
        return rk_undefined_error(a.kind == RK_VALUE_UNDEFINED ? a : b);
    if (rk_value_is_number(a) && rk_value_is_number(b)) {
        *out = numbers_less(a, b);
        return NULL;
    }
    if (a.kind == RK_VALUE_STRING && b.kind == RK_VALUE_STRING) {
        *out = texts_less(a.string, b.string);
        return NULL;
    }
    if ((a.kind != RK_VALUE_LIST && a.kind != RK_VALUE_TUPLE) || a.kind != b.kind)
        return RK_TEMPLATE_ERROR("values of types %s and %s have no order", rk_value_type_name(a),
                                 rk_value_type_name(b));
    if (++r->depth > RK_JINJA_DEPTH_MAX)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "values are nested deeper than %d", RK_JINJA_DEPTH_MAX);
    st = lists_less(r, a.list, b.list, out);
    r->depth--;
    return st;
}

static struct rk_status *iterates_over(struct rk_render *r, rk_value_t container, rk_value_t item, bool *out)
{
    struct rk_iter *iter;
    bool has_item = true;

    RK_TRY(rk_iter_open(r, &iter, container));
    *out = false;
    while (!*out) {
        rk_value_t other;

        RK_TRY(rk_iter_next(r, iter, &other, &has_item));
        if (!has_item)
            return NULL;
        RK_TRY(rk_value_equal(r, other, item, out));
    }
    return NULL;
}

struct rk_status *rk_value_contains(struct rk_render *r, rk_value_t container, rk_value_t item, bool *out)
{
    int64_t at;

    if (container.kind == RK_VALUE_STRING) {
        if (item.kind != RK_VALUE_STRING)
            return RK_TEMPLATE_ERROR("'in' a string needs a string on the left, got %s",
                                     rk_value_type_name(item));
        RK_TRY(rk_render_step(r, container.string->bytes / 16));
        *out = rk_text_find(container.string, item.string, 0) >= 0;
        return NULL;
    }
    if (container.kind == RK_VALUE_DICT ||
        (container.kind == RK_VALUE_VIEW && container.view->kind == RK_VIEW_KEYS)) {
        RK_TRY(rk_dict_find(r, container.kind == RK_VALUE_DICT ? container.dict : container.view->dict, item,
                            &at));
        *out = at >= 0;
        return NULL;
    }
    return iterates_over(r, container, item, out);
}
