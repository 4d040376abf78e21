/* Iteration over one value. The iterators of lazy filters are in filters_lazy.c. */
#include "text/chat/render_internal.h"

static struct rk_status *next_list(struct rk_render *r, struct rk_iter *iter, rk_value_t *out, bool *has_item)
{
    (void)r;
    *has_item = iter->at < iter->source.list->count;
    if (*has_item)
        *out = iter->source.list->items[iter->at++];
    return NULL;
}

static struct rk_status *next_char(struct rk_render *r, struct rk_iter *iter, rk_value_t *out, bool *has_item)
{
    const struct rk_text *text = iter->source.string;
    int64_t at = iter->at;
    int bytes;

    *has_item = at < text->bytes;
    if (!*has_item)
        return NULL;
    (void)rk_utf8_read(text->data + at, &bytes);
    iter->at += bytes;
    return rk_value_new_substring(r, out, text, at, bytes);
}

static struct rk_status *next_view(struct rk_render *r, struct rk_iter *iter, rk_value_t *out, bool *has_item)
{
    const struct rk_view *view = iter->source.view;
    int64_t at = iter->at++;

    *has_item = at < view->dict->count;
    if (!*has_item)
        return NULL;
    if (view->kind == RK_VIEW_ITEMS)
        return rk_value_new_pair(r, out, view->dict->keys[at], view->dict->values[at]);
    *out = view->kind == RK_VIEW_KEYS ? view->dict->keys[at] : view->dict->values[at];
    return NULL;
}

static struct rk_status *next_key(struct rk_render *r, struct rk_iter *iter, rk_value_t *out, bool *has_item)
{
    (void)r;
    *has_item = iter->at < iter->source.dict->count;
    if (*has_item)
        *out = iter->source.dict->keys[iter->at++];
    return NULL;
}

static struct rk_status *next_number(struct rk_render *r, struct rk_iter *iter, rk_value_t *out,
                                     bool *has_item)
{
    const struct rk_range *range = iter->source.range;

    (void)r;
    *has_item = iter->at < range->count;
    if (*has_item)
        *out = rk_value_int(range->start + iter->at++ * range->step);
    return NULL;
}

static struct rk_status *next_nothing(struct rk_render *r, struct rk_iter *iter, rk_value_t *out,
                                      bool *has_item)
{
    (void)r;
    (void)iter;
    (void)out;
    *has_item = false;
    return NULL;
}

typedef struct rk_status *(*next_fn_t)(struct rk_render *r, struct rk_iter *iter, rk_value_t *out,
                                       bool *has_item);

static const next_fn_t next_of[RK_VALUE_KIND_COUNT] = {
    [RK_VALUE_UNDEFINED] = next_nothing, [RK_VALUE_STRING] = next_char, [RK_VALUE_LIST] = next_list,
    [RK_VALUE_TUPLE] = next_list,        [RK_VALUE_DICT] = next_key,    [RK_VALUE_VIEW] = next_view,
    [RK_VALUE_RANGE] = next_number,
};

bool rk_value_is_iterable(rk_value_t value)
{
    return next_of[value.kind] || value.kind == RK_VALUE_ITERATOR || value.kind == RK_VALUE_LOOP;
}

struct rk_status *rk_iter_open(struct rk_render *r, struct rk_iter **out, rk_value_t value)
{
    void *iter;

    *out = NULL;
    if (value.kind == RK_VALUE_ITERATOR) {
        *out = value.iter;
        return NULL;
    }
    if (value.kind == RK_VALUE_LOOP)
        return RK_FAIL(RK_UNIMPLEMENTED, "iterating over the variable 'loop' is not supported");
    if (!next_of[value.kind])
        return RK_TEMPLATE_ERROR("a value of type %s cannot be iterated over", rk_value_type_name(value));
    RK_TRY(rk_render_alloc(r, &iter, sizeof(**out)));
    *out = iter;
    **out = (struct rk_iter){.next = next_of[value.kind], .source = value};
    return NULL;
}

struct rk_status *rk_iter_next(struct rk_render *r, struct rk_iter *iter, rk_value_t *out, bool *has_item)
{
    struct rk_status *st;

    RK_TRY(rk_render_step(r, 1));
    if (++r->depth > RK_JINJA_DEPTH_MAX)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "iterators are nested deeper than %d", RK_JINJA_DEPTH_MAX);
    st = iter->next(r, iter, out, has_item);
    r->depth--;
    return st;
}

struct rk_status *rk_iter_drain(struct rk_render *r, struct rk_iter *iter, rk_value_t *out)
{
    RK_TRY(rk_value_new_list(r, out, RK_VALUE_LIST, 8));
    for (;;) {
        rk_value_t item;
        bool has_item;

        RK_TRY(rk_iter_next(r, iter, &item, &has_item));
        if (!has_item)
            return NULL;
        RK_TRY(rk_list_append(r, out->list, item));
    }
}

struct rk_status *rk_value_to_list(struct rk_render *r, rk_value_t value, rk_value_t *out)
{
    struct rk_iter *iter;

    RK_TRY(rk_iter_open(r, &iter, value));
    return rk_iter_drain(r, iter, out);
}
