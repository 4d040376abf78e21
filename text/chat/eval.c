/* Expressions of a template. */
#include "text/chat/render_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

struct rk_status *rk_undefined_error(rk_value_t value)
{
    RK_ASSERT(value.kind == RK_VALUE_UNDEFINED);
    return RK_TEMPLATE_ERROR("'%s' is undefined", value.missing);
}

static struct rk_status *eval_name(struct rk_render *r, const struct rk_node *node, rk_value_t *out)
{
    const struct rk_callable *function;

    for (const struct rk_scope *scope = r->scope; scope; scope = scope->parent) {
        RK_TRY(rk_render_step(r, scope->count / 8));
        for (int32_t i = 0; i < scope->count; i++) {
            if (scope->bindings[i].id == node->id) {
                *out = scope->bindings[i].value;
                return NULL;
            }
        }
    }
    function = rk_jinja_function_find(node->value.string->data);
    if (function)
        *out = (rk_value_t){.kind = RK_VALUE_FUNCTION, .function = function};
    else
        *out = rk_value_undefined(node->value.string->data);
    return NULL;
}

static struct rk_status *eval_sequence(struct rk_render *r, const struct rk_node *node, rk_value_t *out)
{
    RK_TRY(rk_value_new_list(r, out, node->kind == RK_NODE_LIST ? RK_VALUE_LIST : RK_VALUE_TUPLE,
                             node->num_items));
    for (int32_t i = 0; i < node->num_items; i++) {
        rk_value_t item;

        RK_TRY(rk_eval(r, node->items[i], &item));
        RK_TRY(rk_list_append(r, out->list, item));
    }
    return NULL;
}

static struct rk_status *eval_dict(struct rk_render *r, const struct rk_node *node, rk_value_t *out)
{
    RK_TRY(rk_value_new_dict(r, out, RK_VALUE_DICT, node->num_items / 2));
    for (int32_t i = 0; i < node->num_items; i += 2) {
        rk_value_t key, value;

        RK_TRY(rk_eval(r, node->items[i], &key));
        RK_TRY(rk_eval(r, node->items[i + 1], &value));
        RK_TRY(rk_dict_put(r, out->dict, key, value));
    }
    return NULL;
}

static struct rk_status *eval_slice(struct rk_render *r, const struct rk_node *node, rk_value_t *out)
{
    rk_value_t object, bounds[3] = {{.kind = RK_VALUE_UNSET}};

    RK_TRY(rk_eval(r, node->a, &object));
    for (int32_t i = 0; i < 3; i++) {
        if (node->items[i])
            RK_TRY(rk_eval(r, node->items[i], &bounds[i]));
    }
    return rk_get_slice(r, object, bounds, out);
}

/* Evaluates what follows * and ** in a call; both are empty without. */
static struct rk_status *eval_rest(struct rk_render *r, const struct rk_node_args *args, rk_value_t *rest,
                                   rk_value_t *named_rest)
{
    rk_value_t value;

    RK_TRY(rk_value_new_list(r, rest, RK_VALUE_LIST, 0));
    RK_TRY(rk_value_new_dict(r, named_rest, RK_VALUE_DICT, 0));
    if (args->rest) {
        RK_TRY(rk_eval(r, args->rest, &value));
        RK_TRY(rk_value_to_list(r, value, rest));
    }
    if (!args->named_rest)
        return NULL;
    RK_TRY(rk_eval(r, args->named_rest, &value));
    if (value.kind == RK_VALUE_UNDEFINED)
        return rk_undefined_error(value);
    if (value.kind != RK_VALUE_DICT)
        return RK_TEMPLATE_ERROR("an argument behind **: expected a dict, got %s", rk_value_type_name(value));
    *named_rest = value;
    return NULL;
}

/* Appends the members of a dict to the named arguments of a call. */
static struct rk_status *add_named_rest(struct rk_render *r, const struct rk_dict *dict, rk_value_t *names,
                                        rk_value_t *named, int64_t num_named)
{
    for (int64_t i = 0; i < dict->count; i++) {
        if (dict->keys[i].kind != RK_VALUE_STRING)
            return RK_TEMPLATE_ERROR("an argument behind **: expected names, got a key of type %s",
                                     rk_value_type_name(dict->keys[i]));
        for (int64_t k = 0; k < num_named; k++) {
            bool is_same;

            RK_TRY(rk_value_equal(r, names[k], dict->keys[i], &is_same));
            if (is_same)
                return RK_TEMPLATE_ERROR("the argument '%.*s' is given twice",
                                         (int)RK_MIN(dict->keys[i].string->bytes, 64),
                                         dict->keys[i].string->data);
        }
        names[num_named + i] = dict->keys[i];
        named[num_named + i] = dict->values[i];
    }
    return NULL;
}

static struct rk_status *eval_actuals(struct rk_render *r, const struct rk_node_args *args,
                                      struct rk_actuals *out)
{
    rk_value_t *values, *names, *named, rest = {.kind = RK_VALUE_UNSET}, named_rest = rest;
    int64_t num_rest = 0, num_named_rest = 0;
    void *memory;

    if (args->rest || args->named_rest) {
        RK_TRY(eval_rest(r, args, &rest, &named_rest));
        num_rest = rest.list->count;
        num_named_rest = named_rest.dict->count;
    }
    *out = (struct rk_actuals){.num_values = args->num_values + num_rest,
                               .num_named = args->num_named + num_named_rest};
    if (out->num_values + out->num_named == 0)
        return NULL;
    RK_TRY(rk_render_alloc(r, &memory, (size_t)(out->num_values + 2 * out->num_named) * sizeof(*values)));
    values = memory;
    named = values + out->num_values;
    names = named + out->num_named;
    for (int32_t i = 0; i < args->num_values; i++)
        RK_TRY(rk_eval(r, args->values[i], &values[i]));
    for (int64_t i = 0; i < num_rest; i++)
        values[args->num_values + i] = rest.list->items[i];
    for (int32_t i = 0; i < args->num_named; i++) {
        RK_TRY(rk_eval(r, args->named[i], &named[i]));
        names[i] = args->names[i];
    }
    if (num_named_rest > 0)
        RK_TRY(add_named_rest(r, named_rest.dict, names, named, args->num_named));
    out->values = values;
    out->named = named;
    out->names = names;
    return NULL;
}

static struct rk_status *eval_call(struct rk_render *r, const struct rk_node *node, rk_value_t *out)
{
    struct rk_actuals actuals;
    rk_value_t callee;

    RK_TRY(rk_eval(r, node->a, &callee));
    RK_TRY(eval_actuals(r, &node->args, &actuals));
    r->line = node->line;
    return rk_call_value(r, callee, &actuals, out);
}

struct rk_status *rk_unknown_row(const struct rk_node *node)
{
    bool is_filter = node->kind == RK_NODE_FILTER;
    char *name = rk_strndup(node->value.string->data, (size_t)node->value.string->bytes);
    bool is_known = is_filter ? rk_jinja_filter_is_known(name) : rk_jinja_test_is_known(name);
    struct rk_status *st =
        is_known ? RK_FAIL(RK_UNIMPLEMENTED, "%s '%s' is not supported", is_filter ? "filter" : "test", name)
                 : RK_TEMPLATE_ERROR("there is no %s '%s'", is_filter ? "filter" : "test", name);

    rk_free(name);
    return st;
}

static struct rk_status *call_row_of(struct rk_render *r, const struct rk_node *node, rk_value_t input,
                                     rk_value_t *out)
{
    struct rk_actuals actuals;

    RK_TRY(eval_actuals(r, &node->args, &actuals));
    r->line = node->line;
    return node->row ? rk_call_row(r, node->row, input, &actuals, out) : rk_unknown_row(node);
}

struct rk_status *rk_eval_filter(struct rk_render *r, const struct rk_node *node, rk_value_t input,
                                 rk_value_t *out)
{
    if (node->a && node->a->kind == RK_NODE_FILTER)
        RK_TRY(rk_eval_filter(r, node->a, input, &input));
    return call_row_of(r, node, input, out);
}

static struct rk_status *eval_row(struct rk_render *r, const struct rk_node *node, rk_value_t *out)
{
    rk_value_t input;

    RK_TRY(rk_eval(r, node->a, &input));
    return call_row_of(r, node, input, out);
}

static struct rk_status *eval_concat(struct rk_render *r, const struct rk_node *node, rk_value_t *out)
{
    struct rk_str text = {0};
    struct rk_status *st = NULL;

    for (int32_t i = 0; !st && i < node->num_items; i++) {
        rk_value_t item;

        st = rk_eval(r, node->items[i], &item);
        if (!st)
            st = rk_value_format(r, item, &text);
    }
    if (!st)
        return rk_value_take_string(r, out, &text);
    rk_str_fini(&text);
    return st;
}

static struct rk_status *compare(struct rk_render *r, int32_t op, rk_value_t a, rk_value_t b, bool *out)
{
    bool is_equal = false;

    switch (op) {
    case RK_OP2('=', '='):
        return rk_value_equal(r, a, b, out);
    case RK_OP2('!', '='):
        RK_TRY(rk_value_equal(r, a, b, out));
        *out = !*out;
        return NULL;
    case '<':
        return rk_value_less(r, a, b, out);
    case '>':
        return rk_value_less(r, b, a, out);
    case 'i':
        return rk_value_contains(r, b, a, out);
    case 'n':
        RK_TRY(rk_value_contains(r, b, a, out));
        *out = !*out;
        return NULL;
    default:
        break;
    }
    RK_TRY(op == RK_OP2('<', '=') ? rk_value_less(r, a, b, out) : rk_value_less(r, b, a, out));
    RK_TRY(rk_value_equal(r, a, b, &is_equal));
    *out |= is_equal;
    return NULL;
}

/* a < b < c: each operand is evaluated once, and only while the previous comparisons are true. */
static struct rk_status *eval_compare(struct rk_render *r, const struct rk_node *node, rk_value_t *out)
{
    rk_value_t left, right;
    bool is_true = true;

    RK_TRY(rk_eval(r, node->a, &left));
    for (int32_t i = 0; is_true && i < node->num_items; i++) {
        RK_TRY(rk_eval(r, node->items[i]->b, &right));
        RK_TRY(compare(r, node->items[i]->op, left, right, &is_true));
        left = right;
    }
    *out = rk_value_bool(is_true);
    return NULL;
}

/* `and` and `or` return one of their operands. */
static struct rk_status *eval_logic(struct rk_render *r, const struct rk_node *node, rk_value_t *out)
{
    bool is_true;

    RK_TRY(rk_eval(r, node->a, out));
    RK_TRY(rk_value_truth(r, *out, &is_true));
    return is_true == (node->kind == RK_NODE_AND) ? rk_eval(r, node->b, out) : NULL;
}

static struct rk_status *eval_cond(struct rk_render *r, const struct rk_node *node, rk_value_t *out)
{
    bool is_true;

    RK_TRY(rk_eval_truth(r, node->a, &is_true));
    if (is_true)
        return rk_eval(r, node->b, out);
    if (node->c)
        return rk_eval(r, node->c, out);
    *out = rk_value_undefined("the value of an if without else");
    return NULL;
}

static struct rk_status *eval_unary(struct rk_render *r, const struct rk_node *node, rk_value_t *out)
{
    rk_value_t value;
    int64_t integer;
    bool is_true;

    if (node->kind == RK_NODE_NOT) {
        RK_TRY(rk_eval_truth(r, node->a, &is_true));
        *out = rk_value_bool(!is_true);
        return NULL;
    }
    RK_TRY(rk_eval(r, node->a, &value));
    if (node->kind == RK_NODE_NEG)
        return rk_negate(r, value, out);
    if (value.kind == RK_VALUE_UNDEFINED)
        return rk_undefined_error(value);
    if (!rk_value_is_number(value))
        return RK_TEMPLATE_ERROR("unary + of a value of type %s", rk_value_type_name(value));
    *out = rk_value_as_int(value, &integer) ? rk_value_int(integer) : value;
    return NULL;
}

static struct rk_status *eval_access(struct rk_render *r, const struct rk_node *node, rk_value_t *out)
{
    rk_value_t object, key;

    RK_TRY(rk_eval(r, node->a, &object));
    if (node->kind == RK_NODE_ATTR) {
        r->line = node->line;
        return rk_get_attr(r, object, node->value, out);
    }
    RK_TRY(rk_eval(r, node->b, &key));
    r->line = node->line;
    return rk_get_item(r, object, key, out);
}

static struct rk_status *eval_binary(struct rk_render *r, const struct rk_node *node, rk_value_t *out)
{
    rk_value_t a, b;

    RK_TRY(rk_eval(r, node->a, &a));
    RK_TRY(rk_eval(r, node->b, &b));
    r->line = node->line;
    return rk_binary(r, node->op, a, b, out);
}

typedef struct rk_status *(*eval_fn_t)(struct rk_render *r, const struct rk_node *node, rk_value_t *out);

static struct rk_status *eval_const(struct rk_render *r, const struct rk_node *node, rk_value_t *out)
{
    (void)r;
    *out = node->value;
    return NULL;
}

static const eval_fn_t evaluators[RK_NODE_KIND_COUNT] = {
    [RK_NODE_CONST] = eval_const,   [RK_NODE_NAME] = eval_name,       [RK_NODE_TUPLE] = eval_sequence,
    [RK_NODE_LIST] = eval_sequence, [RK_NODE_DICT] = eval_dict,       [RK_NODE_ATTR] = eval_access,
    [RK_NODE_ITEM] = eval_access,   [RK_NODE_SLICE] = eval_slice,     [RK_NODE_CALL] = eval_call,
    [RK_NODE_FILTER] = eval_row,    [RK_NODE_TEST] = eval_row,        [RK_NODE_NOT] = eval_unary,
    [RK_NODE_NEG] = eval_unary,     [RK_NODE_POS] = eval_unary,       [RK_NODE_BINARY] = eval_binary,
    [RK_NODE_CONCAT] = eval_concat, [RK_NODE_COMPARE] = eval_compare, [RK_NODE_AND] = eval_logic,
    [RK_NODE_OR] = eval_logic,      [RK_NODE_COND] = eval_cond,
};

struct rk_status *rk_eval(struct rk_render *r, const struct rk_node *node, rk_value_t *out)
{
    struct rk_status *st;

    RK_ASSERT(evaluators[node->kind] != NULL);
    RK_TRY(rk_render_step(r, 1));
    if (++r->depth > RK_JINJA_DEPTH_MAX)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "evaluation is nested deeper than %d", RK_JINJA_DEPTH_MAX);
    st = evaluators[node->kind](r, node, out);
    r->depth--;
    return st;
}

struct rk_status *rk_eval_truth(struct rk_render *r, const struct rk_node *node, bool *out)
{
    rk_value_t value;

    RK_TRY(rk_eval(r, node, &value));
    return rk_value_truth(r, value, out);
}
