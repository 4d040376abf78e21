/* Filters over sequences that read all of them at once. */
#include "text/chat/filters_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

RK_FILTER(run_default)
{
    bool by_truth, is_true = true;

    RK_TRY(rk_arg_bool(r, call->args[1], false, &by_truth));
    if (by_truth && call->self.kind != RK_VALUE_UNDEFINED)
        RK_TRY(rk_value_truth(r, call->self, &is_true));
    if (call->self.kind != RK_VALUE_UNDEFINED && is_true)
        *out = call->self;
    else if (call->args[0].kind != RK_VALUE_UNSET)
        *out = call->args[0];
    else
        return rk_value_new_string(r, out, "", 0);
    return NULL;
}

RK_FILTER(run_length)
{
    int64_t length;

    RK_TRY(rk_value_length(r, call->self, &length));
    *out = rk_value_int(length);
    return NULL;
}

RK_FILTER(run_list)
{
    return rk_value_to_list(r, call->self, out);
}

RK_FILTER(run_first)
{
    struct rk_iter *iter;
    bool has_item;

    RK_TRY(rk_iter_open(r, &iter, call->self));
    RK_TRY(rk_iter_next(r, iter, out, &has_item));
    if (!has_item)
        *out = rk_value_undefined("the first item of an empty sequence");
    return NULL;
}

RK_FILTER(run_last)
{
    rk_value_t items;

    if (call->self.kind == RK_VALUE_ITERATOR)
        return RK_TEMPLATE_ERROR("last: expected a sequence, got an iterator; use |list|last");
    RK_TRY(rk_value_to_list(r, call->self, &items));
    if (items.list->count > 0)
        *out = items.list->items[items.list->count - 1];
    else
        *out = rk_value_undefined("the last item of an empty sequence");
    return NULL;
}

RK_FILTER(run_join)
{
    rk_value_t separator = call->args[0];

    if (separator.kind == RK_VALUE_UNSET)
        RK_TRY(rk_value_new_string(r, &separator, "", 0));
    RK_TRY(rk_value_to_string(r, separator, &separator));
    return rk_text_join(r, separator.string, call->self, false, call->args[1], out);
}

/* --- sorting: stable; reverse keeps the order of equals, as Python does --- */

struct entry {
    rk_value_t key, item;
};

static struct rk_status *goes_before(struct rk_render *r, const struct entry *a, const struct entry *b,
                                     bool reverse, bool *out)
{
    return reverse ? rk_value_less(r, b->key, a->key, out) : rk_value_less(r, a->key, b->key, out);
}

static struct rk_status *merge(struct rk_render *r, struct entry *out, const struct entry *a, int64_t num_a,
                               const struct entry *b, int64_t num_b, bool reverse)
{
    int64_t i = 0, k = 0;

    while (i < num_a || k < num_b) {
        bool takes_b = i == num_a;

        if (i < num_a && k < num_b)
            RK_TRY(goes_before(r, &b[k], &a[i], reverse, &takes_b));
        *out++ = takes_b ? b[k++] : a[i++];
    }
    return NULL;
}

static struct rk_status *sort_entries(struct rk_render *r, struct entry *entries, int64_t count, bool reverse)
{
    struct entry *spare, *from = entries, *to;
    void *memory;

    RK_TRY(rk_render_alloc(r, &memory, (size_t)RK_MAX(count, 1) * sizeof(*entries)));
    to = spare = memory;
    for (int64_t width = 1; width < count; width *= 2) {
        struct entry *swap = from;

        for (int64_t i = 0; i < count; i += 2 * width) {
            int64_t num_a = RK_MIN(width, count - i), num_b = RK_MIN(width, count - i - num_a);

            RK_TRY(merge(r, to + i, from + i, num_a, from + i + num_a, num_b, reverse));
        }
        from = to;
        to = swap;
    }
    if (from == spare)
        memcpy(entries, spare, (size_t)count * sizeof(*entries));
    return NULL;
}

typedef struct rk_status *(*key_fn_t)(struct rk_render *r, const struct rk_row_call *call, rk_value_t item,
                                      rk_value_t *key);

static struct rk_status *sort_items(struct rk_render *r, const struct rk_row_call *call,
                                    const struct rk_list *items, key_fn_t key_of, bool reverse,
                                    rk_value_t *out)
{
    struct entry *entries;
    void *memory;

    RK_TRY(rk_render_alloc(r, &memory, (size_t)RK_MAX(items->count, 1) * sizeof(*entries)));
    entries = memory;
    for (int64_t i = 0; i < items->count; i++) {
        entries[i].item = items->items[i];
        RK_TRY(key_of(r, call, entries[i].item, &entries[i].key));
    }
    RK_TRY(sort_entries(r, entries, items->count, reverse));
    RK_TRY(rk_value_new_list(r, out, RK_VALUE_LIST, items->count));
    for (int64_t i = 0; i < items->count; i++)
        RK_TRY(rk_list_append(r, out->list, entries[i].item));
    return NULL;
}

/* Key of `sort`: the list of the attributes, of which there may be several ("a,b.c"). */
static struct rk_status *sort_key(struct rk_render *r, const struct rk_row_call *call, rk_value_t item,
                                  rk_value_t *key)
{
    rk_value_t attribute = call->args[2], part, value;
    const struct rk_text *paths;
    bool case_sensitive;

    RK_TRY(rk_arg_bool(r, call->args[1], false, &case_sensitive));
    if (attribute.kind != RK_VALUE_STRING ||
        !memchr(attribute.string->data, ',', (size_t)attribute.string->bytes)) {
        RK_TRY(rk_filter_attribute(r, attribute, item, &value));
        return rk_filter_fold(r, value, case_sensitive, key);
    }
    paths = attribute.string;
    RK_TRY(rk_value_new_list(r, key, RK_VALUE_LIST, 4));
    for (int64_t at = 0; at <= paths->bytes;) {
        const char *comma = memchr(paths->data + at, ',', (size_t)(paths->bytes - at));
        int64_t end = comma ? comma - paths->data : paths->bytes;

        RK_TRY(rk_value_new_substring(r, &part, paths, at, end - at));
        RK_TRY(rk_filter_attribute(r, part, item, &value));
        RK_TRY(rk_filter_fold(r, value, case_sensitive, &value));
        RK_TRY(rk_list_append(r, key->list, value));
        at = end + 1;
    }
    return NULL;
}

RK_FILTER(run_sort)
{
    rk_value_t items;
    bool reverse;

    RK_TRY(rk_arg_bool(r, call->args[0], false, &reverse));
    RK_TRY(rk_value_to_list(r, call->self, &items));
    return sort_items(r, call, items.list, sort_key, reverse, out);
}

static struct rk_status *dictsort_key(struct rk_render *r, const struct rk_row_call *call, rk_value_t item,
                                      rk_value_t *key)
{
    struct rk_text *by;
    bool case_sensitive;

    RK_TRY(rk_arg_bool(r, call->args[0], false, &case_sensitive));
    RK_TRY(rk_arg_text(call->args[1], "dictsort", &by));
    return rk_filter_fold(r, item.list->items[by && by->bytes == 5], case_sensitive, key);
}

RK_FILTER(run_dictsort)
{
    struct rk_view view = {.kind = RK_VIEW_ITEMS, .dict = call->self.dict};
    struct rk_text *by;
    rk_value_t items;
    bool reverse;

    if (call->self.kind == RK_VALUE_UNDEFINED)
        return rk_undefined_error(call->self);
    if (call->self.kind != RK_VALUE_DICT)
        return RK_TEMPLATE_ERROR("dictsort: expected a dict, got %s", rk_value_type_name(call->self));
    RK_TRY(rk_arg_text(call->args[1], "dictsort", &by));
    if (by && !(by->bytes == 3 && memcmp(by->data, "key", 3) == 0) &&
        !(by->bytes == 5 && memcmp(by->data, "value", 5) == 0))
        return RK_TEMPLATE_ERROR("dictsort: by: expected 'key' or 'value'");
    RK_TRY(rk_arg_bool(r, call->args[2], false, &reverse));
    RK_TRY(rk_value_to_list(r, (rk_value_t){.kind = RK_VALUE_VIEW, .view = &view}, &items));
    return sort_items(r, call, items.list, dictsort_key, reverse, out);
}

/* --- min, max, sum --- */

static struct rk_status *extreme(struct rk_render *r, rk_value_t *out, const struct rk_row_call *call,
                                 bool is_max)
{
    rk_value_t items, best = {.kind = RK_VALUE_UNSET}, key;
    bool case_sensitive, is_better = true;

    RK_TRY(rk_arg_bool(r, call->args[0], false, &case_sensitive));
    RK_TRY(rk_value_to_list(r, call->self, &items));
    *out = rk_value_undefined("an item of an empty sequence");
    for (int64_t i = 0; i < items.list->count; i++) {
        RK_TRY(rk_filter_attribute(r, call->args[1], items.list->items[i], &key));
        RK_TRY(rk_filter_fold(r, key, case_sensitive, &key));
        if (i > 0)
            RK_TRY(is_max ? rk_value_less(r, best, key, &is_better)
                          : rk_value_less(r, key, best, &is_better));
        if (is_better) {
            best = key;
            *out = items.list->items[i];
        }
    }
    return NULL;
}

RK_FILTER(run_min)
{
    return extreme(r, out, call, false);
}

RK_FILTER(run_max)
{
    return extreme(r, out, call, true);
}

RK_FILTER(run_sum)
{
    rk_value_t items, item;

    *out = call->args[1].kind == RK_VALUE_UNSET ? rk_value_int(0) : call->args[1];
    if (out->kind == RK_VALUE_STRING)
        return RK_TEMPLATE_ERROR("sum: cannot add strings; use |join");
    RK_TRY(rk_value_to_list(r, call->self, &items));
    for (int64_t i = 0; i < items.list->count; i++) {
        RK_TRY(rk_filter_attribute(r, call->args[0], items.list->items[i], &item));
        RK_TRY(rk_binary(r, '+', *out, item, out));
    }
    return NULL;
}

const struct rk_callable rk_filters_list[] = {
    {"count", run_length, "", 0},
    {"d", run_default, "default_value boolean", 0},
    {"default", run_default, "default_value boolean", 0},
    {"dictsort", run_dictsort, "case_sensitive by reverse", 0},
    {"first", run_first, "", 0},
    {"join", run_join, "d attribute", 0},
    {"last", run_last, "", 0},
    {"length", run_length, "", 0},
    {"list", run_list, "", 0},
    {"max", run_max, "case_sensitive attribute", 0},
    {"min", run_min, "case_sensitive attribute", 0},
    {"sort", run_sort, "reverse case_sensitive attribute", 0},
    {"sum", run_sum, "attribute start", 0},
    {NULL, NULL, NULL, 0},
};
