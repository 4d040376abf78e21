/* The variable `loop`, which may look one item ahead, and the test of a for loop, which is evaluated item by
 * item as the loop runs. */
#include "text/chat/render_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

/* Whether the item passes the loop's `if`. */
static struct rk_status *passes(struct rk_render *r, struct rk_for_loop *loop, rk_value_t item, bool *out)
{
    struct rk_scope *outer = r->scope;
    struct rk_status *st = rk_scope_push(r, loop->scope);

    if (!st)
        st = rk_render_assign(r, loop->node->a, item);
    if (!st)
        st = rk_eval_truth(r, loop->node->c, out);
    r->scope = outer;
    return st;
}

static struct rk_status *fetch(struct rk_render *r, struct rk_for_loop *loop, rk_value_t *out, bool *has_item)
{
    bool has_test = loop->node->c && !loop->is_drained, is_taken = !has_test;

    do {
        RK_TRY(rk_iter_next(r, loop->iter, out, has_item));
        if (*has_item && has_test)
            RK_TRY(passes(r, loop, *out, &is_taken));
    } while (*has_item && !is_taken);
    return NULL;
}

static struct rk_status *look_ahead(struct rk_render *r, struct rk_for_loop *loop)
{
    bool has_item;

    if (loop->after.kind != RK_VALUE_UNSET || loop->is_at_end)
        return NULL;
    RK_TRY(fetch(r, loop, &loop->after, &has_item));
    if (!has_item) {
        loop->after = (rk_value_t){.kind = RK_VALUE_UNSET};
        loop->is_at_end = true;
    }
    return NULL;
}

struct rk_status *rk_for_loop_next(struct rk_render *r, struct rk_for_loop *loop, bool *has_item)
{
    rk_value_t item = loop->after;

    if (item.kind != RK_VALUE_UNSET)
        *has_item = true;
    else if (loop->is_at_end)
        *has_item = false;
    else
        RK_TRY(fetch(r, loop, &item, has_item));
    if (!*has_item)
        return NULL;
    loop->after = (rk_value_t){.kind = RK_VALUE_UNSET};
    loop->before = loop->current;
    loop->current = item;
    loop->index0++;
    return NULL;
}

/* Reads the rest when the number of items is not known. */
static struct rk_status *length(struct rk_render *r, struct rk_for_loop *loop, int64_t *out)
{
    rk_value_t rest;
    bool has_item = true;

    if (loop->length < 0) {
        RK_TRY(rk_value_new_list(r, &rest, RK_VALUE_LIST, 8));
        while (has_item && !loop->is_at_end) {
            rk_value_t item;

            RK_TRY(fetch(r, loop, &item, &has_item));
            if (has_item)
                RK_TRY(rk_list_append(r, rest.list, item));
        }
        loop->length = rest.list->count + loop->index0 + 1 + (loop->after.kind != RK_VALUE_UNSET);
        RK_TRY(rk_iter_open(r, &loop->iter, rest));
        loop->is_at_end = loop->is_at_end || (rest.list->count == 0 && loop->after.kind == RK_VALUE_UNSET);
        loop->is_drained = true;
    }
    *out = loop->length;
    return NULL;
}

static struct rk_status *cycle(struct rk_render *r, rk_value_t *out, const struct rk_row_call *call)
{
    const struct rk_actuals *actuals = call->actuals;

    (void)r;
    if (actuals->num_values == 0 || actuals->num_named > 0)
        return RK_TEMPLATE_ERROR("loop.cycle: expected values");
    *out = actuals->values[call->self.loop->index0 % actuals->num_values];
    return NULL;
}

static struct rk_status *changed(struct rk_render *r, rk_value_t *out, const struct rk_row_call *call)
{
    const struct rk_actuals *actuals = call->actuals;
    struct rk_for_loop *loop = call->self.loop;
    rk_value_t values;
    bool is_equal = false;

    RK_TRY(rk_value_new_list(r, &values, RK_VALUE_TUPLE, actuals->num_values));
    for (int64_t i = 0; i < actuals->num_values; i++)
        RK_TRY(rk_list_append(r, values.list, actuals->values[i]));
    if (loop->changed.kind != RK_VALUE_UNSET)
        RK_TRY(rk_value_equal(r, loop->changed, values, &is_equal));
    loop->changed = values;
    *out = rk_value_bool(!is_equal);
    return NULL;
}

static const struct rk_callable methods[] = {{"cycle", cycle, "*", 0}, {"changed", changed, "*", 0}};

static struct rk_status *bind_method(struct rk_render *r, struct rk_for_loop *loop, const char *name,
                                     rk_value_t *out)
{
    void *memory;

    *out = (rk_value_t){.kind = RK_VALUE_UNSET};
    for (size_t i = 0; i < RK_ARRAY_LEN(methods); i++) {
        if (strcmp(name, methods[i].name) != 0)
            continue;
        RK_TRY(rk_render_alloc(r, &memory, sizeof(*out->method)));
        *out = (rk_value_t){.kind = RK_VALUE_METHOD, .method = memory};
        *out->method = (struct rk_bound_method){{.kind = RK_VALUE_LOOP, .loop = loop}, &methods[i]};
    }
    return NULL;
}

static struct rk_status *from_end(struct rk_render *r, struct rk_for_loop *loop, const char *name,
                                  rk_value_t *out)
{
    int64_t count;

    RK_TRY(length(r, loop, &count));
    if (strcmp(name, "length") == 0)
        *out = rk_value_int(count);
    else
        *out = rk_value_int(count - loop->index0 - (strcmp(name, "revindex0") == 0));
    return NULL;
}

static struct rk_status *neighbour(struct rk_render *r, struct rk_for_loop *loop, const char *name,
                                   rk_value_t *out)
{
    if (strcmp(name, "previtem") == 0) {
        *out = loop->index0 > 0 ? loop->before : rk_value_undefined("loop.previtem");
        return NULL;
    }
    RK_TRY(look_ahead(r, loop));
    if (strcmp(name, "last") == 0)
        *out = rk_value_bool(loop->after.kind == RK_VALUE_UNSET);
    else
        *out = loop->after.kind == RK_VALUE_UNSET ? rk_value_undefined("loop.nextitem") : loop->after;
    return NULL;
}

struct rk_status *rk_for_loop_attr(struct rk_render *r, struct rk_for_loop *loop, const char *name,
                                   rk_value_t *out)
{
    if (strcmp(name, "index") == 0)
        *out = rk_value_int(loop->index0 + 1);
    else if (strcmp(name, "index0") == 0)
        *out = rk_value_int(loop->index0);
    else if (strcmp(name, "first") == 0)
        *out = rk_value_bool(loop->index0 == 0);
    else if (strcmp(name, "depth") == 0 || strcmp(name, "depth0") == 0)
        *out = rk_value_int(name[5] == '\0');
    else if (strcmp(name, "length") == 0 || strcmp(name, "revindex") == 0 || strcmp(name, "revindex0") == 0)
        return from_end(r, loop, name, out);
    else if (strcmp(name, "last") == 0 || strcmp(name, "previtem") == 0 || strcmp(name, "nextitem") == 0)
        return neighbour(r, loop, name, out);
    else
        return bind_method(r, loop, name, out);
    return NULL;
}
