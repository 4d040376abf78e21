/* Expressions of a template, and calls: puts arguments into the order of parameters. */
#include "text/chat/jinja_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

/* --- arguments --- */

static void add_named(struct rk_render *r, struct rk_dict *named, rk_value_t name, rk_value_t value)
{
    if (name.kind != RK_VALUE_STRING)
        RK_RAISE(r, "an argument behind **: expected names, got a key of type %s", rk_value_type_name(name));
    else if (rk_dict_find(r, named, name) >= 0)
        RK_RAISE(r, "the argument '%.*s' is given twice", (int)RK_MIN(name.string->bytes, 64),
                 name.string->data);
    else
        rk_dict_put(r, named, name, value);
}

static void add_rest(struct rk_render *r, const struct rk_node *arg, struct rk_actuals *out)
{
    rk_value_t value = rk_eval(r, arg->a);

    if (arg->kind == RK_NODE_STAR) {
        const struct rk_list *items = rk_value_items(r, value);

        for (int64_t i = 0; i < items->count; i++)
            rk_list_append(r, out->values, items->items[i]);
    } else if (value.kind == RK_VALUE_DICT) {
        for (int64_t i = 0; i < value.dict->count; i++)
            add_named(r, out->named, value.dict->keys[i], value.dict->values[i]);
    } else if (value.kind == RK_VALUE_UNDEFINED) {
        rk_raise_undefined(r, value);
    } else {
        RK_RAISE(r, "an argument behind **: expected a dict, got %s", rk_value_type_name(value));
    }
}

void rk_eval_actuals(struct rk_render *r, const struct rk_node *args, struct rk_actuals *out)
{
    out->values = rk_value_new_list(r, RK_VALUE_LIST).list;
    out->named = rk_value_new_dict(r, RK_VALUE_DICT).dict;
    for (const struct rk_node *arg = args; arg && !r->error; arg = arg->next) {
        if (arg->kind == RK_NODE_NAMED)
            add_named(r, out->named, arg->value, rk_eval(r, arg->a));
        else if (arg->kind == RK_NODE_STAR || arg->kind == RK_NODE_STAR2)
            add_rest(r, arg, out);
        else
            rk_list_append(r, out->values, rk_eval(r, arg));
    }
}

int64_t rk_arg_int(struct rk_render *r, rk_value_t arg, const char *name, int64_t fallback)
{
    int64_t value = fallback;

    if (arg.kind == RK_VALUE_UNDEFINED)
        rk_raise_undefined(r, arg);
    else if (arg.kind != RK_VALUE_UNSET && !rk_value_as_int(arg, &value))
        RK_RAISE(r, "%s: expected an integer, got %s", name, rk_value_type_name(arg));
    return value;
}

bool rk_arg_bool(rk_value_t arg, bool fallback)
{
    return arg.kind == RK_VALUE_UNSET ? fallback : rk_value_truth(arg);
}

struct rk_text *rk_arg_text(struct rk_render *r, rk_value_t arg, const char *name)
{
    if (arg.kind == RK_VALUE_UNSET || arg.kind == RK_VALUE_NONE)
        return NULL;
    return rk_arg_need_text(r, arg, name);
}

struct rk_text *rk_arg_need_text(struct rk_render *r, rk_value_t arg, const char *name)
{
    if (arg.kind == RK_VALUE_STRING)
        return arg.string;
    if (arg.kind == RK_VALUE_UNDEFINED)
        rk_raise_undefined(r, arg);
    else
        RK_RAISE(r, "%s: expected a string, got %s", name, rk_value_type_name(arg));
    return rk_value_new_text(r, "", 0).string;
}

/* --- rows of the tables --- */

int rk_word_find(const char *words, const char *name, int64_t bytes)
{
    int index = 0;

    for (const char *word = words; *word; index++) {
        size_t word_bytes = strcspn(word, " ");

        if (bytes == (int64_t)word_bytes && memcmp(name, word, word_bytes) == 0)
            return index;
        word += word_bytes + (word[word_bytes] == ' ');
    }
    return -1;
}

const struct rk_callable *rk_row_find(const struct rk_callable *rows, const struct rk_text *name)
{
    for (; rows->name; rows++) {
        if ((int64_t)strlen(rows->name) == name->bytes &&
            memcmp(rows->name, name->data, (size_t)name->bytes) == 0)
            return rows;
    }
    return NULL;
}

/* Fills args in the order of the row's parameters, which are separated by blanks. */
static void bind_row(struct rk_render *r, const struct rk_callable *row, struct rk_row_call *call)
{
    const struct rk_list *values = call->actuals->values;
    int64_t num_named = 0;
    int count = 0;

    for (const char *p = row->params; *p; count++) {
        size_t bytes = strcspn(p, " ");
        const rk_value_t *named = rk_dict_find_text(call->actuals->named, p, bytes);

        RK_ASSERT(count < RK_CALLABLE_MAX_PARAMS);
        if (count < values->count)
            call->args[count] = values->items[count];
        else if (named)
            call->args[count] = *named;
        num_named += count >= values->count && named;
        if (count < row->num_required && call->args[count].kind == RK_VALUE_UNSET)
            RK_RAISE(r, "%s: argument %d of '%s' is missing", row->name, count + 1, row->params);
        p += bytes + (p[bytes] == ' ');
    }
    if (values->count > count || num_named != call->actuals->named->count)
        RK_RAISE(r, "%s: expected the arguments '%s'", row->name, row->params);
}

rk_value_t rk_call_row(struct rk_render *r, const struct rk_callable *row, rk_value_t self,
                       const struct rk_actuals *actuals)
{
    struct rk_row_call call = {.self = self, .actuals = actuals, .variant = row->variant};

    if (strcmp(row->params, "*") != 0)
        bind_row(r, row, &call);
    return r->error ? rk_value_undefined("") : row->run(r, &call);
}

rk_value_t rk_raise_unknown(struct rk_render *r, const struct rk_text *name, bool is_filter)
{
    static const char known[] =
        "abs attr batch center e escape filesizeformat float forceescape format groupby "
        "max min pprint random round slice striptags sum truncate urlencode urlize "
        "wordcount wordwrap xmlattr escaped filter lower test upper";
    const char *what = is_filter ? "filter" : "test";
    int bytes = (int)RK_MIN(name->bytes, 64);

    if (rk_word_find(known, name->data, name->bytes) >= 0)
        return RK_REFUSE(r, "the %s '%.*s' is not supported", what, bytes, name->data);
    return RK_RAISE(r, "there is no %s '%.*s'", what, bytes, name->data);
}

/* The filter or test of the node, applied to `input`. */
static rk_value_t call_node(struct rk_render *r, const struct rk_node *node, rk_value_t input)
{
    struct rk_actuals actuals;

    rk_eval_actuals(r, node->items, &actuals);
    r->line = node->line;
    return node->row ? rk_call_row(r, node->row, input, &actuals)
                     : rk_raise_unknown(r, node->value.string, node->kind == RK_NODE_FILTER);
}

static rk_value_t eval_row(struct rk_render *r, const struct rk_node *node)
{
    return call_node(r, node, rk_eval(r, node->a));
}

rk_value_t rk_eval_filters(struct rk_render *r, const struct rk_node *node, rk_value_t input)
{
    bool is_bounded = rk_render_enter(r);

    if (is_bounded && node->a)
        input = rk_eval_filters(r, node->a, input);
    if (is_bounded)
        input = call_node(r, node, input);
    r->depth--;
    return input;
}

/* --- macros --- */

/* Takes the member out of the dict; UNSET if there is none. */
static rk_value_t take_named(struct rk_dict *dict, const struct rk_text *name)
{
    const rk_value_t *found = rk_dict_find_text(dict, name->data, (size_t)name->bytes);
    rk_value_t value = {.kind = RK_VALUE_UNSET};
    int64_t at = found ? found - dict->values : dict->count;

    if (!found)
        return value;
    value = *found;
    dict->count--;
    memmove(dict->keys + at, dict->keys + at + 1, (size_t)(dict->count - at) * sizeof(value));
    memmove(dict->values + at, dict->values + at + 1, (size_t)(dict->count - at) * sizeof(value));
    return value;
}

/* Binds parameters, and the variable caller of macros that use it. */
static void bind_macro(struct rk_render *r, const struct rk_node *macro, const struct rk_actuals *actuals)
{
    static const struct rk_text caller = {.data = "caller", .bytes = 6, .chars = 6};
    bool has_caller = false;
    int64_t i = 0;

    for (const struct rk_node *param = macro->items; param && !r->error; param = param->next, i++) {
        rk_value_t value = i < actuals->values->count ? actuals->values->items[i]
                                                      : take_named(actuals->named, param->value.string);

        if (value.kind == RK_VALUE_UNSET)
            value = param->a ? rk_eval(r, param->a) : rk_value_undefined(param->value.string->data);
        has_caller = has_caller || param->id == r->jinja->id_caller;
        rk_scope_put(r, param->id, value);
    }
    if (macro->op && !has_caller) {
        rk_value_t value = take_named(actuals->named, &caller);

        if (value.kind == RK_VALUE_UNSET || value.kind == RK_VALUE_NONE)
            value = rk_value_undefined("caller");
        rk_scope_put(r, r->jinja->id_caller, value);
    }
    if (actuals->values->count > i)
        RK_RAISE(r, "the macro takes %lld arguments, got %lld", (long long)i,
                 (long long)actuals->values->count);
    if (actuals->named->count > 0)
        RK_RAISE(r, "the macro has no argument '%.*s'",
                 (int)RK_MIN(actuals->named->keys[0].string->bytes, 64),
                 actuals->named->keys[0].string->data);
}

static rk_value_t call_macro(struct rk_render *r, const struct rk_macro *macro,
                             const struct rk_actuals *actuals)
{
    struct rk_scope *outer = r->scope;
    rk_value_t text = rk_value_undefined("");

    rk_scope_push(r, macro->scope);
    bind_macro(r, macro->node, actuals);
    if (!r->error)
        text = rk_render_capture(r, macro->node->b);
    r->scope = outer;
    return text;
}

rk_value_t rk_call_value(struct rk_render *r, rk_value_t callee, const struct rk_actuals *actuals)
{
    const struct rk_bound_method *method = callee.kind == RK_VALUE_METHOD ? callee.method : NULL;

    if (callee.kind == RK_VALUE_UNDEFINED)
        return rk_raise_undefined(r, callee);
    if (callee.kind == RK_VALUE_FUNCTION)
        return rk_call_row(r, callee.function, rk_value_none(), actuals);
    if (callee.kind == RK_VALUE_MACRO)
        return call_macro(r, callee.macro, actuals);
    if (!method)
        return RK_RAISE(r, "a value of type %s cannot be called", rk_value_type_name(callee));
    if (method->self.kind == RK_VALUE_STRING && method->self.string->is_markup)
        return RK_REFUSE(r, "methods of the result of |safe are not supported");
    return rk_call_row(r, method->row, method->self, actuals);
}

/* --- expressions --- */

static rk_value_t eval_name(struct rk_render *r, const struct rk_node *node)
{
    const struct rk_callable *function;

    for (const struct rk_scope *scope = r->scope; scope; scope = scope->parent) {
        (void)rk_render_step(r, scope->count / 8);
        for (int32_t i = 0; i < scope->count; i++) {
            if (scope->bindings[i].id == node->id)
                return scope->bindings[i].value;
        }
    }
    function = rk_jinja_function_find(node->value.string);
    return function ? (rk_value_t){.kind = RK_VALUE_FUNCTION, .function = function}
                    : rk_value_undefined(node->value.string->data);
}

static rk_value_t eval_sequence(struct rk_render *r, const struct rk_node *node)
{
    rk_value_t list = rk_value_new_list(r, node->kind == RK_NODE_LIST ? RK_VALUE_LIST : RK_VALUE_TUPLE);

    for (const struct rk_node *item = node->items; item && !r->error; item = item->next)
        rk_list_append(r, list.list, rk_eval(r, item));
    return list;
}

static rk_value_t eval_dict(struct rk_render *r, const struct rk_node *node)
{
    rk_value_t dict = rk_value_new_dict(r, RK_VALUE_DICT);

    for (const struct rk_node *key = node->items; key && !r->error; key = key->next->next) {
        rk_value_t name = rk_eval(r, key);

        rk_dict_put(r, dict.dict, name, rk_eval(r, key->next));
    }
    return dict;
}

static rk_value_t eval_access(struct rk_render *r, const struct rk_node *node)
{
    rk_value_t object = rk_eval(r, node->a), keys[3] = {{.kind = RK_VALUE_UNSET}};
    const struct rk_node *bound = node->items;

    if (node->kind == RK_NODE_ITEM)
        keys[0] = rk_eval(r, node->b);
    for (int i = 0; bound; bound = bound->next, i++)
        keys[i] = rk_eval(r, bound);
    r->line = node->line;
    if (r->error)
        return object;
    if (node->kind == RK_NODE_SLICE)
        return rk_get_slice(r, object, keys);
    return node->kind == RK_NODE_ITEM ? rk_get_item(r, object, keys[0]) : rk_get_attr(r, object, node->value);
}

static rk_value_t eval_call(struct rk_render *r, const struct rk_node *node)
{
    rk_value_t callee = rk_eval(r, node->a);
    struct rk_actuals actuals;

    rk_eval_actuals(r, node->items, &actuals);
    r->line = node->line;
    return r->error ? callee : rk_call_value(r, callee, &actuals);
}

static rk_value_t eval_concat(struct rk_render *r, const struct rk_node *node)
{
    struct rk_str text = {0};

    rk_value_format(r, rk_eval(r, node->a), &text);
    rk_value_format(r, rk_eval(r, node->b), &text);
    return rk_value_take_string(r, &text);
}

static rk_value_t eval_binary(struct rk_render *r, const struct rk_node *node)
{
    rk_value_t a, b;

    if (node->op == '~')
        return eval_concat(r, node);
    a = rk_eval(r, node->a);
    b = rk_eval(r, node->b);
    r->line = node->line;
    if (r->error)
        return a;
    return node->kind == RK_NODE_COMPARE ? rk_value_bool(rk_compare(r, node->op, a, b))
                                         : rk_binary(r, node->op, a, b);
}

/* `and` and `or` return one of their operands. */
static rk_value_t eval_logic(struct rk_render *r, const struct rk_node *node)
{
    rk_value_t value = rk_eval(r, node->a);

    return rk_value_truth(value) == (node->kind == RK_NODE_AND) ? rk_eval(r, node->b) : value;
}

static rk_value_t eval_cond(struct rk_render *r, const struct rk_node *node)
{
    if (rk_eval_truth(r, node->a))
        return rk_eval(r, node->b);
    return node->c ? rk_eval(r, node->c) : rk_value_undefined("the value of an if without else");
}

static rk_value_t eval_not(struct rk_render *r, const struct rk_node *node)
{
    return rk_value_bool(!rk_eval_truth(r, node->a));
}

static rk_value_t eval_negative(struct rk_render *r, const struct rk_node *node)
{
    return rk_negate(r, rk_eval(r, node->a));
}

static rk_value_t eval_const(struct rk_render *r, const struct rk_node *node)
{
    (void)r;
    return node->value;
}

typedef rk_value_t (*eval_fn_t)(struct rk_render *r, const struct rk_node *node);

static const eval_fn_t evaluators[RK_NODE_KIND_COUNT] = {
    [RK_NODE_CONST] = eval_const,   [RK_NODE_NAME] = eval_name,     [RK_NODE_TUPLE] = eval_sequence,
    [RK_NODE_LIST] = eval_sequence, [RK_NODE_DICT] = eval_dict,     [RK_NODE_ATTR] = eval_access,
    [RK_NODE_ITEM] = eval_access,   [RK_NODE_SLICE] = eval_access,  [RK_NODE_CALL] = eval_call,
    [RK_NODE_FILTER] = eval_row,    [RK_NODE_TEST] = eval_row,      [RK_NODE_NOT] = eval_not,
    [RK_NODE_NEG] = eval_negative,  [RK_NODE_BINARY] = eval_binary, [RK_NODE_COMPARE] = eval_binary,
    [RK_NODE_AND] = eval_logic,     [RK_NODE_OR] = eval_logic,      [RK_NODE_COND] = eval_cond,
};

rk_value_t rk_eval(struct rk_render *r, const struct rk_node *node)
{
    rk_value_t value = rk_value_undefined("");

    RK_ASSERT(evaluators[node->kind] != NULL);
    if (rk_render_enter(r))
        value = evaluators[node->kind](r, node);
    r->depth--;
    return value;
}

bool rk_eval_truth(struct rk_render *r, const struct rk_node *node)
{
    return rk_value_truth(rk_eval(r, node));
}
