/* Methods of dicts and lists, as in Python, and the tables of all methods. */
#include "text/chat/filters_internal.h"

#include <string.h>

#define METHOD(name) \
    static struct rk_status *name(struct rk_render *r, rk_value_t *out, const struct rk_row_call *call)

/* --- dicts and lists --- */

static struct rk_status *new_view(struct rk_render *r, rk_value_t *out, const struct rk_row_call *call,
                                  rk_view_kind_t kind)
{
    void *view;

    RK_TRY(rk_render_alloc(r, &view, sizeof(*out->view)));
    *out = (rk_value_t){.kind = RK_VALUE_VIEW, .view = view};
    *out->view = (struct rk_view){kind, call->self.dict};
    return NULL;
}

METHOD(run_keys)
{
    return new_view(r, out, call, RK_VIEW_KEYS);
}

METHOD(run_values)
{
    return new_view(r, out, call, RK_VIEW_VALUES);
}

METHOD(run_items)
{
    return new_view(r, out, call, RK_VIEW_ITEMS);
}

METHOD(run_get)
{
    int64_t at;

    if (call->actuals->num_named > 0)
        return RK_TEMPLATE_ERROR("get: takes no named arguments");
    RK_TRY(rk_dict_find(r, call->self.dict, call->args[0], &at));
    if (at >= 0)
        *out = call->self.dict->values[at];
    else
        *out = call->args[1].kind == RK_VALUE_UNSET ? rk_value_none() : call->args[1];
    return NULL;
}

METHOD(run_copy)
{
    (void)r;
    *out = call->self; /* templates cannot change it */
    return NULL;
}

static struct rk_status *find_item(struct rk_render *r, const struct rk_row_call *call, int64_t *first,
                                   int64_t *count)
{
    const struct rk_list *list = call->self.list;
    bool is_equal;

    *first = -1;
    *count = 0;
    for (int64_t i = 0; i < list->count; i++) {
        RK_TRY(rk_value_equal(r, list->items[i], call->args[0], &is_equal));
        if (is_equal && *first < 0)
            *first = i;
        *count += is_equal;
    }
    return NULL;
}

METHOD(run_list_index)
{
    int64_t first, count;

    RK_TRY(find_item(r, call, &first, &count));
    *out = rk_value_int(first);
    return first < 0 ? RK_TEMPLATE_ERROR("index: the value is not in the list") : NULL;
}

METHOD(run_list_count)
{
    int64_t first, count;

    RK_TRY(find_item(r, call, &first, &count));
    *out = rk_value_int(count);
    return NULL;
}

/* --- tables --- */

static const struct rk_callable dict_methods[] = {
    {"copy", run_copy, "", 0}, {"get", run_get, "key default", 1}, {"items", run_items, "", 0},
    {"keys", run_keys, "", 0}, {"values", run_values, "", 0},      {NULL, NULL, NULL, 0},
};

static const struct rk_callable list_methods[] = {
    {"copy", run_copy, "", 0},
    {"count", run_list_count, "value", 1},
    {"index", run_list_index, "value", 1},
    {NULL, NULL, NULL, 0},
};

static const struct rk_callable *find_row(const struct rk_callable *table, const char *name)
{
    for (; table->name; table++) {
        if (strcmp(table->name, name) == 0)
            return table;
    }
    return NULL;
}

const struct rk_callable *rk_jinja_method_find(rk_value_kind_t kind, const char *name)
{
    static const struct rk_callable *const tables[RK_VALUE_KIND_COUNT][4] = {
        [RK_VALUE_STRING] = {rk_jinja_change_methods, rk_jinja_search_methods, rk_jinja_split_methods},
        [RK_VALUE_DICT] = {dict_methods},
        [RK_VALUE_LIST] = {list_methods},
        [RK_VALUE_TUPLE] = {list_methods + 1}, /* tuples have no copy() */
    };
    const struct rk_callable *row = NULL;

    for (const struct rk_callable *const *table = tables[kind]; *table && !row; table++)
        row = find_row(*table, name);
    return row;
}

bool rk_jinja_method_is_known(const char *name)
{
    static const char *const names[] = {
        "as_integer_ratio", "bit_count",    "bit_length", "casefold",  "conjugate",   "encode",
        "expandtabs",       "format",       "format_map", "fromkeys",  "hex",         "isascii",
        "isdecimal",        "isidentifier", "is_integer", "isnumeric", "isprintable", "istitle",
        "maketrans",        "swapcase",     "to_bytes",   "translate", "zfill"};

    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++) {
        if (strcmp(names[i], name) == 0)
            return true;
    }
    return false;
}
