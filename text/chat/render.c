/* Statements of a template. Scopes are Jinja's: a loop's body, a macro and the blocks with, filter, call and
 * generation have their own scope; variables set there are not visible outside, and an if has no scope. */
#include "text/chat/jinja_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

/* --- errors, work and memory --- */

rk_value_t rk_raise(struct rk_render *r, struct rk_status *st)
{
    if (r->error)
        rk_status_free(st);
    else
        r->error = RK_WRAP(st, "%s:%d", r->jinja->source, r->line);
    return rk_value_undefined("");
}

rk_value_t rk_raise_undefined(struct rk_render *r, rk_value_t value)
{
    return RK_RAISE(r, "'%s' is undefined", value.missing);
}

bool rk_render_step(struct rk_render *r, int64_t steps)
{
    r->steps += steps;
    if (r->steps > RK_JINJA_STEPS_MAX)
        (void)rk_raise(
            r, RK_FAIL(RK_RESOURCE_EXHAUSTED, "rendering takes more than %d steps", RK_JINJA_STEPS_MAX));
    return r->error == NULL;
}

bool rk_render_enter(struct rk_render *r)
{
    if (++r->depth > RK_JINJA_DEPTH_MAX)
        (void)rk_raise(
            r, RK_FAIL(RK_RESOURCE_EXHAUSTED, "evaluation is nested deeper than %d", RK_JINJA_DEPTH_MAX));
    return rk_render_step(r, 1);
}

/* What is running when the limit is reached still gets a little memory, since it looks at the error only when
 * it is done. */
void *rk_render_alloc(struct rk_render *r, size_t bytes)
{
    void *memory = rk_arena_alloc(r->arena, bytes);

    if (memory)
        return memory;
    (void)rk_raise(r,
                   RK_FAIL(RK_RESOURCE_EXHAUSTED, "values of more than %d bytes", RK_JINJA_MEMORY_BYTES_MAX));
    memory = rk_arena_alloc(r->reserve, bytes);
    RK_ASSERT(memory != NULL);
    return memory;
}

/* --- scopes and assignment --- */

void rk_scope_push(struct rk_render *r, struct rk_scope *parent)
{
    r->scope = rk_render_alloc(r, sizeof(*r->scope));
    r->scope->parent = parent;
}

void rk_scope_put(struct rk_render *r, int32_t id, rk_value_t value)
{
    struct rk_scope *scope = r->scope;
    int32_t at = 0;

    while (at < scope->count && scope->bindings[at].id != id)
        at++;
    if (at == scope->capacity) {
        struct rk_binding *grown = rk_render_alloc(r, (size_t)(2 * at + 4) * sizeof(*grown));

        if (at > 0)
            memcpy(grown, scope->bindings, (size_t)at * sizeof(*grown));
        scope->bindings = grown;
        scope->capacity = 2 * at + 4;
    }
    scope->count += at == scope->count;
    scope->bindings[at] = (struct rk_binding){id, value};
}

static void assign(struct rk_render *r, const struct rk_node *target, rk_value_t value);

static void assign_member(struct rk_render *r, const struct rk_node *target, rk_value_t value)
{
    struct rk_node name = {.kind = RK_NODE_NAME, .id = target->id, .value = target->value};
    rk_value_t space = rk_eval(r, &name);

    if (space.kind == RK_VALUE_NAMESPACE)
        rk_dict_put(r, space.dict, target->value, value);
    else
        RK_RAISE(r, "cannot set the member '%s' of a %s: it is no namespace", target->value.string->data,
                 rk_value_type_name(space));
}

static void assign_tuple(struct rk_render *r, const struct rk_node *target, rk_value_t value)
{
    const struct rk_list *items = rk_value_items(r, value);
    int64_t count = 0;

    for (const struct rk_node *part = target->items; part; part = part->next)
        count++;
    if (items->count != count) {
        RK_RAISE(r, "cannot unpack %lld values into %lld names", (long long)items->count, (long long)count);
        return;
    }
    count = 0;
    for (const struct rk_node *part = target->items; part; part = part->next)
        assign(r, part, items->items[count++]);
}

static void assign(struct rk_render *r, const struct rk_node *target, rk_value_t value)
{
    if (target->kind == RK_NODE_MEMBER)
        assign_member(r, target, value);
    else if (target->kind == RK_NODE_TUPLE)
        assign_tuple(r, target, value);
    else
        rk_scope_put(r, target->id, value);
}

/* --- the variable `loop` --- */

/* Tests items of the source until `count` have passed; false if there are fewer. */
static bool reach(struct rk_render *r, struct rk_for_loop *loop, int64_t count)
{
    struct rk_scope *outer = r->scope;

    while (loop->items->count < count && loop->num_tested < loop->source->count && rk_render_step(r, 1)) {
        rk_value_t item = loop->source->items[loop->num_tested++];

        rk_scope_push(r, loop->scope);
        assign(r, loop->node->a, item);
        if (rk_eval_truth(r, loop->node->c))
            rk_list_append(r, loop->items, item);
        r->scope = outer;
    }
    return loop->items->count >= count;
}

rk_value_t rk_for_loop_attr(struct rk_render *r, struct rk_for_loop *loop, const struct rk_text *name)
{
    static const char names[] = "index index0 first last previtem nextitem length revindex revindex0";
    int64_t i = loop->index0;
    int which = rk_word_find(names, name->data, name->bytes);

    if (which < 0)
        return (rk_value_t){.kind = RK_VALUE_UNSET};
    if (which < 2)
        return rk_value_int(i + 1 - which);
    if (which == 2)
        return rk_value_bool(i == 0);
    if (which == 3)
        return rk_value_bool(!reach(r, loop, i + 2));
    if (which == 4)
        return i > 0 ? loop->items->items[i - 1] : rk_value_undefined("loop.previtem");
    if (which == 5)
        return reach(r, loop, i + 2) ? loop->items->items[i + 1] : rk_value_undefined("loop.nextitem");
    (void)reach(r, loop, INT64_MAX);
    return rk_value_int(loop->items->count - (which == 6 ? 0 : i + which - 7));
}

/* --- output --- */

/* The output of the block, as a string; in the current scope. */
static rk_value_t capture(struct rk_render *r, const struct rk_node *node)
{
    struct rk_str text = {0}, *outer = r->out;

    r->out = &text;
    rk_render_block(r, node);
    r->out = outer;
    return rk_value_take_string(r, &text);
}

rk_value_t rk_render_capture(struct rk_render *r, const struct rk_node *node)
{
    struct rk_scope *outer = r->scope;
    rk_value_t text;

    rk_scope_push(r, outer);
    text = capture(r, node);
    r->scope = outer;
    return text;
}

/* --- statements --- */

static void run_if(struct rk_render *r, const struct rk_node *node)
{
    for (const struct rk_node *test = node->items; test && !r->error; test = test->next->next) {
        if (rk_eval_truth(r, test)) {
            rk_render_block(r, test->next);
            return;
        }
    }
    if (node->a)
        rk_render_block(r, node->a);
}

static void run_for(struct rk_render *r, const struct rk_node *node)
{
    struct rk_for_loop *loop = rk_render_alloc(r, sizeof(*loop));
    struct rk_scope *outer = r->scope;
    rk_value_t variable = {.kind = RK_VALUE_LOOP, .loop = loop};
    rk_flow_signal_t signal = RK_SIGNAL_NONE;
    struct rk_list *source;
    bool is_empty = true; /* until a body runs to its end: Jinja runs `else` after break and continue too */

    source = rk_value_items(r, rk_eval(r, node->b));
    *loop = (struct rk_for_loop){.node = node,
                                 .scope = outer,
                                 .source = source,
                                 .num_tested = node->c ? 0 : source->count,
                                 .items = node->c ? rk_value_new_list(r, RK_VALUE_LIST).list : source};
    for (; signal != RK_SIGNAL_BREAK && reach(r, loop, loop->index0 + 1) && !r->error; loop->index0++) {
        rk_scope_push(r, outer);
        rk_scope_put(r, r->jinja->id_loop, variable);
        assign(r, node->a, loop->items->items[loop->index0]);
        rk_render_block(r, node->items);
        signal = r->signal;
        r->signal = RK_SIGNAL_NONE;
        is_empty = is_empty && signal != RK_SIGNAL_NONE;
    }
    if (is_empty && node->items->next && !r->error) {
        rk_scope_push(r, outer);
        rk_render_block(r, node->items->next);
    }
    r->scope = outer;
}

/* {% set x %}, {% filter f %}: the text of the block, filtered. */
static void run_captured(struct rk_render *r, const struct rk_node *node)
{
    bool is_set = node->kind == RK_NODE_SET_BLOCK;
    const struct rk_node *filters = is_set ? node->c : node->b;
    rk_value_t text = rk_render_capture(r, is_set ? node->b : node->a);

    if (r->signal != RK_SIGNAL_NONE || r->error)
        return;
    if (filters)
        text = rk_eval_filters(r, filters, text);
    if (is_set)
        assign(r, node->a, text);
    else
        rk_value_format(r, text, r->out);
}

static rk_value_t new_macro(struct rk_render *r, const struct rk_node *node)
{
    struct rk_macro *macro = rk_render_alloc(r, sizeof(*macro));

    *macro = (struct rk_macro){.node = node, .scope = r->scope};
    return (rk_value_t){.kind = RK_VALUE_MACRO, .macro = macro};
}

/* {% call f(...) %} passes the block to f as the argument `caller`. */
static void run_call_block(struct rk_render *r, const struct rk_node *node)
{
    struct rk_actuals actuals;
    rk_value_t callee = rk_eval(r, node->a->a);

    rk_eval_actuals(r, node->a->items, &actuals);
    rk_dict_put(r, actuals.named, rk_value_new_text(r, "caller", 6), new_macro(r, node->b));
    rk_value_format(r, rk_call_value(r, callee, &actuals), r->out);
}

static void run_generation(struct rk_render *r, const struct rk_node *node)
{
    size_t begin = r->out->bytes;

    rk_value_format(r, rk_render_capture(r, node->a), r->out);
    if (r->generations && r->out == r->whole)
        rk_array_append(r->generations, (struct rk_chat_span){begin, r->out->bytes});
    else if (r->generations)
        r->generations->is_partial = true;
}

static void run_statement(struct rk_render *r, const struct rk_node *node)
{
    switch (node->kind) {
    case RK_NODE_DATA:
        rk_value_format(r, node->value, r->out);
        break;
    case RK_NODE_PRINT:
        rk_value_format(r, rk_eval(r, node->a), r->out);
        break;
    case RK_NODE_IF:
        run_if(r, node);
        break;
    case RK_NODE_FOR:
        run_for(r, node);
        break;
    case RK_NODE_SET:
        assign(r, node->a, rk_eval(r, node->b));
        break;
    case RK_NODE_SET_BLOCK:
    case RK_NODE_FILTER_BLOCK:
        run_captured(r, node);
        break;
    case RK_NODE_MACRO:
        rk_scope_put(r, node->id, new_macro(r, node));
        break;
    case RK_NODE_CALL_BLOCK:
        run_call_block(r, node);
        break;
    case RK_NODE_GENERATION:
        run_generation(r, node);
        break;
    default:
        RK_ASSERT(node->kind == RK_NODE_BREAK || node->kind == RK_NODE_CONTINUE);
        r->signal = node->kind == RK_NODE_BREAK ? RK_SIGNAL_BREAK : RK_SIGNAL_CONTINUE;
    }
}

void rk_render_block(struct rk_render *r, const struct rk_node *node)
{
    RK_ASSERT(node->kind == RK_NODE_BLOCK);
    if (rk_render_enter(r)) {
        for (node = node->items; node && r->signal == RK_SIGNAL_NONE && rk_render_step(r, 1);
             node = node->next) {
            r->line = node->line;
            run_statement(r, node);
        }
    }
    r->depth--;
}
