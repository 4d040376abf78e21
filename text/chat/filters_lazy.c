/* Filters that return an iterator, which can be read once, item by item. */
#include "text/chat/filters_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

/* The operation of the iterator on each item. */
struct rk_lazy {
    rk_value_t attribute;          /* UNSET: the item itself */
    rk_value_t fallback;           /* of map(attribute=, default=); UNSET: none */
    const struct rk_callable *row; /* filter of map, test of select; NULL: the attribute, or its truth */
    struct rk_actuals actuals;     /* of the row */
    bool keeps;                    /* select keeps items that pass, reject those that do not */
    bool case_sensitive;
    rk_value_t seen; /* unique: a list */
    int64_t batch;
    rk_value_t fill;
};

typedef struct rk_status *(*next_fn_t)(struct rk_render *r, struct rk_iter *iter, rk_value_t *out,
                                       bool *has_item);

static struct rk_status *new_iterator(struct rk_render *r, rk_value_t *out, next_fn_t next, rk_value_t source,
                                      const struct rk_lazy *lazy)
{
    void *iter, *copy = NULL;

    RK_TRY(rk_render_alloc(r, &iter, sizeof(*out->iter)));
    *out = (rk_value_t){.kind = RK_VALUE_ITERATOR, .iter = iter};
    out->iter->next = next;
    RK_TRY(rk_iter_open(r, &out->iter->inner, source));
    if (lazy) {
        RK_TRY(rk_render_alloc(r, &copy, sizeof(*lazy)));
        memcpy(copy, lazy, sizeof(*lazy));
    }
    out->iter->lazy = copy;
    return NULL;
}

static rk_value_t take_named(const struct rk_actuals *actuals, const char *name)
{
    for (int64_t i = 0; i < actuals->num_named; i++) {
        const struct rk_text *given = actuals->names[i].string;

        if (given->bytes == (int64_t)strlen(name) && memcmp(given->data, name, strlen(name)) == 0)
            return actuals->named[i];
    }
    return (rk_value_t){.kind = RK_VALUE_UNSET};
}

/* Reads the row that the argument names, and its arguments, which follow. */
static struct rk_status *read_row(const struct rk_actuals *actuals, int64_t at, bool is_filter,
                                  struct rk_lazy *lazy)
{
    const char *what = is_filter ? "filter" : "test";
    struct rk_text *text;
    char name[32] = {0};

    RK_TRY(rk_arg_text(actuals->values[at], what, &text));
    if (!text || text->bytes >= (int64_t)sizeof(name))
        return RK_TEMPLATE_ERROR("expected the name of a %s", what);
    memcpy(name, text->data, (size_t)text->bytes);
    lazy->row = is_filter ? rk_jinja_filter_find(name) : rk_jinja_test_find(name);
    lazy->actuals = *actuals;
    lazy->actuals.values += at + 1;
    lazy->actuals.num_values -= at + 1;
    if (lazy->row)
        return NULL;
    if (is_filter ? rk_jinja_filter_is_known(name) : rk_jinja_test_is_known(name))
        return RK_FAIL(RK_UNIMPLEMENTED, "%s '%s' is not supported", what, name);
    return RK_TEMPLATE_ERROR("there is no %s '%s'", what, name);
}

/* --- map --- */

static struct rk_status *next_mapped(struct rk_render *r, struct rk_iter *iter, rk_value_t *out,
                                     bool *has_item)
{
    const struct rk_lazy *lazy = iter->lazy;
    rk_value_t item;

    RK_TRY(rk_iter_next(r, iter->inner, &item, has_item));
    if (!*has_item)
        return NULL;
    if (lazy->row)
        return rk_call_row(r, lazy->row, item, &lazy->actuals, out);
    RK_TRY(rk_filter_attribute(r, lazy->attribute, item, out));
    if (out->kind == RK_VALUE_UNDEFINED && lazy->fallback.kind != RK_VALUE_UNSET)
        *out = lazy->fallback;
    return NULL;
}

/* A false value gives no items, even if it is not iterable. */
static struct rk_status *source_of(struct rk_render *r, rk_value_t value, rk_value_t *out)
{
    bool is_true;

    RK_TRY(rk_value_truth(r, value, &is_true));
    *out = is_true ? value : rk_value_undefined("nothing");
    return NULL;
}

RK_FILTER(run_map)
{
    const struct rk_actuals *actuals = call->actuals;
    struct rk_lazy lazy = {.attribute = take_named(actuals, "attribute"),
                           .fallback = take_named(actuals, "default")};
    rk_value_t source;

    if (actuals->num_values > 0) {
        RK_TRY(read_row(actuals, 0, true, &lazy));
    } else if (lazy.attribute.kind == RK_VALUE_UNSET) {
        return RK_TEMPLATE_ERROR("map: expected the name of a filter, or attribute=");
    } else if (actuals->num_named > 1 + (lazy.fallback.kind != RK_VALUE_UNSET)) {
        return RK_TEMPLATE_ERROR("map: an unknown argument");
    }
    if (lazy.fallback.kind == RK_VALUE_NONE)
        lazy.fallback.kind = RK_VALUE_UNSET;
    RK_TRY(source_of(r, call->self, &source));
    return new_iterator(r, out, next_mapped, source, &lazy);
}

/* --- select, reject --- */

static struct rk_status *next_selected(struct rk_render *r, struct rk_iter *iter, rk_value_t *out,
                                       bool *has_item)
{
    const struct rk_lazy *lazy = iter->lazy;
    bool passes = !lazy->keeps;

    while (passes != lazy->keeps) {
        rk_value_t value;

        RK_TRY(rk_iter_next(r, iter->inner, out, has_item));
        if (!*has_item)
            return NULL;
        RK_TRY(rk_filter_attribute(r, lazy->attribute, *out, &value));
        if (lazy->row)
            RK_TRY(rk_call_row(r, lazy->row, value, &lazy->actuals, &value));
        RK_TRY(rk_value_truth(r, value, &passes));
    }
    return NULL;
}

static struct rk_status *select_items(struct rk_render *r, rk_value_t *out, const struct rk_row_call *call,
                                      bool keeps, bool by_attribute)
{
    const struct rk_actuals *actuals = call->actuals;
    struct rk_lazy lazy = {.keeps = keeps};
    rk_value_t source;

    if (by_attribute && actuals->num_values == 0)
        return RK_TEMPLATE_ERROR("selectattr, rejectattr: expected the name of an attribute");
    if (by_attribute)
        lazy.attribute = actuals->values[0];
    if (actuals->num_values > by_attribute)
        RK_TRY(read_row(actuals, by_attribute, false, &lazy));
    RK_TRY(source_of(r, call->self, &source));
    return new_iterator(r, out, next_selected, source, &lazy);
}

RK_FILTER(run_select)
{
    return select_items(r, out, call, true, false);
}

RK_FILTER(run_reject)
{
    return select_items(r, out, call, false, false);
}

RK_FILTER(run_selectattr)
{
    return select_items(r, out, call, true, true);
}

RK_FILTER(run_rejectattr)
{
    return select_items(r, out, call, false, true);
}

/* --- unique --- */

static struct rk_status *is_new(struct rk_render *r, struct rk_list *seen, rk_value_t key, bool *out)
{
    bool is_equal;

    if (key.kind == RK_VALUE_LIST || key.kind == RK_VALUE_DICT)
        return RK_TEMPLATE_ERROR("unique: items of type %s cannot be compared", rk_value_type_name(key));
    *out = false;
    for (int64_t i = 0; i < seen->count; i++) {
        RK_TRY(rk_value_equal(r, seen->items[i], key, &is_equal));
        if (is_equal)
            return NULL;
    }
    *out = true;
    return rk_list_append(r, seen, key);
}

static struct rk_status *next_unique(struct rk_render *r, struct rk_iter *iter, rk_value_t *out,
                                     bool *has_item)
{
    const struct rk_lazy *lazy = iter->lazy;
    bool is_first = false;

    while (!is_first) {
        rk_value_t key;

        RK_TRY(rk_iter_next(r, iter->inner, out, has_item));
        if (!*has_item)
            return NULL;
        RK_TRY(rk_filter_attribute(r, lazy->attribute, *out, &key));
        RK_TRY(rk_filter_fold(r, key, lazy->case_sensitive, &key));
        RK_TRY(is_new(r, lazy->seen.list, key, &is_first));
    }
    return NULL;
}

RK_FILTER(run_unique)
{
    struct rk_lazy lazy = {.attribute = call->args[1]};

    RK_TRY(rk_arg_bool(r, call->args[0], false, &lazy.case_sensitive));
    RK_TRY(rk_value_new_list(r, &lazy.seen, RK_VALUE_LIST, 8));
    return new_iterator(r, out, next_unique, call->self, &lazy);
}

/* --- items, reverse, batch --- */

static struct rk_status *next_same(struct rk_render *r, struct rk_iter *iter, rk_value_t *out, bool *has_item)
{
    return rk_iter_next(r, iter->inner, out, has_item);
}

RK_FILTER(run_items)
{
    rk_value_t source = call->self;
    void *view;

    if (source.kind == RK_VALUE_DICT) {
        RK_TRY(rk_render_alloc(r, &view, sizeof(*source.view)));
        source = (rk_value_t){.kind = RK_VALUE_VIEW, .view = view};
        *source.view = (struct rk_view){.kind = RK_VIEW_ITEMS, .dict = call->self.dict};
    } else if (source.kind != RK_VALUE_UNDEFINED) {
        return RK_TEMPLATE_ERROR("items: expected a dict, got %s", rk_value_type_name(source));
    }
    return new_iterator(r, out, next_same, source, NULL);
}

RK_FILTER(run_reverse)
{
    static const rk_value_t bounds[3] = {
        {.kind = RK_VALUE_NONE}, {.kind = RK_VALUE_NONE}, {.kind = RK_VALUE_INT, .integer = -1}};
    rk_value_t items, reversed;

    if (call->self.kind == RK_VALUE_STRING)
        return rk_get_slice(r, call->self, bounds, out);
    RK_TRY(rk_value_to_list(r, call->self, &items));
    RK_TRY(rk_get_slice(r, items, bounds, &reversed));
    if (call->self.kind != RK_VALUE_ITERATOR)
        return new_iterator(r, out, next_same, reversed, NULL);
    *out = reversed;
    return NULL;
}

static struct rk_status *next_batch(struct rk_render *r, struct rk_iter *iter, rk_value_t *out,
                                    bool *has_item)
{
    const struct rk_lazy *lazy = iter->lazy;
    bool has_more = true;
    rk_value_t item;

    RK_TRY(rk_value_new_list(r, out, RK_VALUE_LIST, 8));
    while (has_more && out->list->count < lazy->batch) {
        RK_TRY(rk_iter_next(r, iter->inner, &item, &has_more));
        if (has_more)
            RK_TRY(rk_list_append(r, out->list, item));
    }
    *has_item = out->list->count > 0;
    while (*has_item && lazy->fill.kind != RK_VALUE_UNSET && out->list->count < lazy->batch)
        RK_TRY(rk_list_append(r, out->list, lazy->fill));
    return NULL;
}

RK_FILTER(run_batch)
{
    struct rk_lazy lazy = {.fill = call->args[1]};

    RK_TRY(rk_arg_int(call->args[0], "batch", 1, &lazy.batch));
    if (lazy.batch < 1)
        return RK_FAIL(RK_UNIMPLEMENTED, "batch: fewer than 1 item a batch is not supported");
    if (lazy.fill.kind == RK_VALUE_NONE)
        lazy.fill.kind = RK_VALUE_UNSET;
    return new_iterator(r, out, next_batch, call->self, &lazy);
}

const struct rk_callable rk_filters_lazy[] = {
    {"batch", run_batch, "linecount fill_with", 1},
    {"items", run_items, "", 0},
    {"map", run_map, "*", 0},
    {"reject", run_reject, "*", 0},
    {"rejectattr", run_rejectattr, "*", 0},
    {"reverse", run_reverse, "", 0},
    {"select", run_select, "*", 0},
    {"selectattr", run_selectattr, "*", 0},
    {"unique", run_unique, "case_sensitive attribute", 0},
    {NULL, NULL, NULL, 0},
};
