/* Statements of a template. Scopes are Jinja's: a loop's body, a macro and the blocks with, filter, call and
 * generation have their own scope; variables set there are not visible outside, and an if has no scope. */
#include "text/chat/render_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_assert.h"

struct rk_status *rk_render_alloc(struct rk_render *r, void **out, size_t bytes)
{
    *out = rk_arena_alloc(r->arena, bytes);
    return *out ? NULL
                : RK_FAIL(RK_RESOURCE_EXHAUSTED, "values of more than %d bytes", RK_JINJA_MEMORY_BYTES_MAX);
}

struct rk_status *rk_render_step(struct rk_render *r, int64_t steps)
{
    r->steps += steps;
    return r->steps <= RK_JINJA_STEPS_MAX
               ? NULL
               : RK_FAIL(RK_RESOURCE_EXHAUSTED, "rendering takes more than %d steps", RK_JINJA_STEPS_MAX);
}

/* --- scopes --- */

struct rk_status *rk_scope_push(struct rk_render *r, struct rk_scope *parent)
{
    void *scope;

    RK_TRY(rk_render_alloc(r, &scope, sizeof(*r->scope)));
    r->scope = scope;
    r->scope->parent = parent;
    return NULL;
}

struct rk_status *rk_scope_put(struct rk_render *r, struct rk_scope *scope, int32_t id, rk_value_t value)
{
    void *grown;

    for (int32_t i = 0; i < scope->count; i++) {
        if (scope->bindings[i].id == id) {
            scope->bindings[i].value = value;
            return NULL;
        }
    }
    if (scope->count == scope->capacity) {
        int32_t capacity = RK_MAX(2 * scope->capacity, 4);

        RK_TRY(rk_render_alloc(r, &grown, (size_t)capacity * sizeof(*scope->bindings)));
        if (scope->count > 0)
            memcpy(grown, scope->bindings, (size_t)scope->count * sizeof(*scope->bindings));
        scope->bindings = grown;
        scope->capacity = capacity;
    }
    scope->bindings[scope->count++] = (struct rk_binding){id, value};
    return NULL;
}

/* --- assignment --- */

static struct rk_status *assign_member(struct rk_render *r, const struct rk_node *target, rk_value_t value)
{
    struct rk_node name = *target;
    rk_value_t space;

    name.kind = RK_NODE_NAME;
    RK_TRY(rk_eval(r, &name, &space));
    if (space.kind != RK_VALUE_NAMESPACE)
        return RK_TEMPLATE_ERROR("cannot set the member '%s' of a %s: it is no namespace",
                                 target->a->value.string->data, rk_value_type_name(space));
    return rk_dict_put(r, space.dict, target->a->value, value);
}

static struct rk_status *assign_tuple(struct rk_render *r, const struct rk_node *target, rk_value_t value)
{
    rk_value_t items;

    RK_TRY(rk_value_to_list(r, value, &items));
    if (items.list->count != target->num_items)
        return RK_TEMPLATE_ERROR("cannot unpack %lld values into %d names", (long long)items.list->count,
                                 target->num_items);
    for (int32_t i = 0; i < target->num_items; i++)
        RK_TRY(rk_render_assign(r, target->items[i], items.list->items[i]));
    return NULL;
}

struct rk_status *rk_render_assign(struct rk_render *r, const struct rk_node *target, rk_value_t value)
{
    if (target->kind == RK_NODE_NSREF)
        return assign_member(r, target, value);
    if (target->kind == RK_NODE_TUPLE)
        return assign_tuple(r, target, value);
    RK_ASSERT(target->kind == RK_NODE_NAME);
    return rk_scope_put(r, r->scope, target->id, value);
}

/* --- output --- */

static struct rk_status *write_value(struct rk_render *r, rk_value_t value)
{
    if (value.kind != RK_VALUE_STRING && value.kind != RK_VALUE_UNDEFINED)
        RK_TRY(rk_value_to_string(r, value, &value));
    return rk_value_format(r, value, r->out);
}

/* The output of the block, as a string; in the current scope. */
static struct rk_status *capture(struct rk_render *r, const struct rk_node *node, rk_value_t *out)
{
    struct rk_str text = {0}, *outer = r->out;
    struct rk_status *st;

    r->out = &text;
    st = rk_render_block(r, node);
    r->out = outer;
    if (!st)
        return rk_value_take_string(r, out, &text);
    rk_str_fini(&text);
    return st;
}

struct rk_status *rk_render_capture(struct rk_render *r, const struct rk_node *node, rk_value_t *out)
{
    struct rk_scope *outer = r->scope;
    struct rk_status *st = rk_scope_push(r, outer);

    if (!st)
        st = capture(r, node, out);
    r->scope = outer;
    return st;
}

/* --- statements --- */

static struct rk_status *run_if(struct rk_render *r, const struct rk_node *node)
{
    for (int32_t i = 0; i < node->num_items; i += 2) {
        bool is_true;

        RK_TRY(rk_eval_truth(r, node->items[i], &is_true));
        if (is_true)
            return rk_render_block(r, node->items[i + 1]);
    }
    return node->a ? rk_render_block(r, node->a) : NULL;
}

static struct rk_status *run_loop(struct rk_render *r, const struct rk_node *node, struct rk_for_loop *loop,
                                  bool *is_empty)
{
    *is_empty = true; /* until a body runs to its end: in Jinja the else block runs after break and
                       * continue */
    for (;;) {
        rk_flow_signal_t signal;
        bool has_item;

        RK_TRY(rk_for_loop_next(r, loop, &has_item));
        if (!has_item)
            return NULL;
        RK_TRY(rk_scope_push(r, loop->scope));
        RK_TRY(
            rk_scope_put(r, r->scope, r->jinja->id_loop, (rk_value_t){.kind = RK_VALUE_LOOP, .loop = loop}));
        RK_TRY(rk_render_assign(r, node->a, loop->current));
        RK_TRY(rk_render_block(r, node->items[0]));
        signal = r->signal;
        r->signal = RK_SIGNAL_NONE;
        if (signal == RK_SIGNAL_BREAK)
            return NULL;
        if (signal == RK_SIGNAL_NONE)
            *is_empty = false;
    }
}

static struct rk_status *run_for(struct rk_render *r, const struct rk_node *node)
{
    struct rk_scope *outer = r->scope;
    struct rk_for_loop *loop;
    struct rk_status *st;
    bool is_empty = false;
    rk_value_t items;
    void *memory;

    RK_TRY(rk_eval(r, node->b, &items));
    RK_TRY(rk_render_alloc(r, &memory, sizeof(*loop)));
    loop = memory;
    *loop = (struct rk_for_loop){.node = node, .scope = outer, .index0 = -1, .length = -1};
    if (rk_value_has_length(items) && !node->c)
        RK_TRY(rk_value_length(r, items, &loop->length));
    RK_TRY(rk_iter_open(r, &loop->iter, items));
    st = run_loop(r, node, loop, &is_empty);
    r->scope = outer;
    if (st || !is_empty || !node->items[1])
        return st;
    RK_TRY(rk_scope_push(r, outer));
    st = rk_render_block(r, node->items[1]);
    r->scope = outer;
    return st;
}

static struct rk_status *run_set_block(struct rk_render *r, const struct rk_node *node)
{
    rk_value_t text;

    RK_TRY(rk_render_capture(r, node->b, &text));
    if (r->signal != RK_SIGNAL_NONE)
        return NULL;
    if (node->c)
        RK_TRY(rk_eval_filter(r, node->c, text, &text));
    return rk_render_assign(r, node->a, text);
}

static struct rk_status *run_filter_block(struct rk_render *r, const struct rk_node *node)
{
    rk_value_t text;

    RK_TRY(rk_render_capture(r, node->a, &text));
    if (r->signal != RK_SIGNAL_NONE)
        return NULL;
    RK_TRY(rk_eval_filter(r, node->b, text, &text));
    return write_value(r, text);
}

static struct rk_status *make_macro(struct rk_render *r, const struct rk_node *node, rk_value_t *out)
{
    void *memory;

    RK_TRY(rk_render_alloc(r, &memory, sizeof(*out->macro)));
    *out = (rk_value_t){.kind = RK_VALUE_MACRO, .macro = memory};
    *out->macro = (struct rk_macro){.node = node, .scope = r->scope};
    return NULL;
}

static struct rk_status *run_macro(struct rk_render *r, const struct rk_node *node)
{
    rk_value_t macro;

    RK_TRY(make_macro(r, node, &macro));
    return rk_scope_put(r, r->scope, node->id, macro);
}

/* {% call f(...) %} passes the block to f as the argument `caller`. */
static struct rk_status *run_call_block(struct rk_render *r, const struct rk_node *node)
{
    static struct rk_text caller_name = {.data = "caller", .bytes = 6, .chars = 6};
    const struct rk_node_args *args = &node->a->args;
    rk_value_t callee, result, *values, *names, *named;
    struct rk_actuals actuals;
    void *memory;

    RK_TRY(
        rk_render_alloc(r, &memory, (size_t)(args->num_values + 2 * args->num_named + 2) * sizeof(*values)));
    values = memory;
    names = values + args->num_values;
    named = names + args->num_named + 1;
    RK_TRY(rk_eval(r, node->a->a, &callee));
    for (int32_t i = 0; i < args->num_values; i++)
        RK_TRY(rk_eval(r, args->values[i], &values[i]));
    for (int32_t i = 0; i < args->num_named; i++) {
        names[i] = args->names[i];
        RK_TRY(rk_eval(r, args->named[i], &named[i]));
    }
    names[args->num_named] = (rk_value_t){.kind = RK_VALUE_STRING, .string = &caller_name};
    RK_TRY(make_macro(r, node->b, &named[args->num_named]));
    actuals = (struct rk_actuals){.values = values,
                                  .num_values = args->num_values,
                                  .names = names,
                                  .named = named,
                                  .num_named = args->num_named + 1};
    RK_TRY(rk_call_value(r, callee, &actuals, &result));
    return write_value(r, result);
}

static struct rk_status *run_with(struct rk_render *r, const struct rk_node *node)
{
    struct rk_scope *outer = r->scope, *inner;
    struct rk_status *st = rk_scope_push(r, outer);

    inner = r->scope;
    for (int32_t i = 0; !st && i < node->num_items; i += 2) {
        rk_value_t value;

        r->scope = outer; /* the values cannot refer to each other */
        st = rk_eval(r, node->items[i + 1], &value);
        r->scope = inner;
        if (!st)
            st = rk_render_assign(r, node->items[i], value);
    }
    if (!st)
        st = rk_render_block(r, node->a);
    r->scope = outer;
    return st;
}

static struct rk_status *run_generation(struct rk_render *r, const struct rk_node *node)
{
    size_t begin = r->out->bytes;
    rk_value_t value;

    RK_TRY(rk_render_capture(r, node->a, &value));
    RK_TRY(write_value(r, value));
    if (r->generations && r->out == r->whole)
        rk_array_append(r->generations, (struct rk_chat_span){begin, r->out->bytes});
    else if (r->generations)
        r->generations->is_partial = true;
    return NULL;
}

static struct rk_status *run_statement(struct rk_render *r, const struct rk_node *node)
{
    rk_value_t value;

    switch (node->kind) {
    case RK_NODE_DATA:
        return rk_value_format(r, node->value, r->out);
    case RK_NODE_PRINT:
        RK_TRY(rk_eval(r, node->a, &value));
        return write_value(r, value);
    case RK_NODE_IF:
        return run_if(r, node);
    case RK_NODE_FOR:
        return run_for(r, node);
    case RK_NODE_SET:
        RK_TRY(rk_eval(r, node->b, &value));
        return rk_render_assign(r, node->a, value);
    case RK_NODE_SET_BLOCK:
        return run_set_block(r, node);
    case RK_NODE_MACRO:
        return run_macro(r, node);
    case RK_NODE_CALL_BLOCK:
        return run_call_block(r, node);
    case RK_NODE_FILTER_BLOCK:
        return run_filter_block(r, node);
    case RK_NODE_WITH:
        return run_with(r, node);
    case RK_NODE_GENERATION:
        return run_generation(r, node);
    default:
        RK_ASSERT(node->kind == RK_NODE_BREAK || node->kind == RK_NODE_CONTINUE);
        r->signal = node->kind == RK_NODE_BREAK ? RK_SIGNAL_BREAK : RK_SIGNAL_CONTINUE;
        return NULL;
    }
}

struct rk_status *rk_render_block(struct rk_render *r, const struct rk_node *node)
{
    struct rk_status *st = NULL;

    RK_ASSERT(node->kind == RK_NODE_BLOCK);
    if (++r->depth > RK_JINJA_DEPTH_MAX)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "evaluation is nested deeper than %d", RK_JINJA_DEPTH_MAX);
    for (int32_t i = 0; !st && i < node->num_items && r->signal == RK_SIGNAL_NONE; i++) {
        r->line = node->items[i]->line;
        st = rk_render_step(r, 1);
        if (!st)
            st = run_statement(r, node->items[i]);
    }
    r->depth--;
    return st;
}
