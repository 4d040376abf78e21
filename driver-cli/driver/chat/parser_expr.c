/* Expressions of a template, with Jinja's precedence: conditional, or, and, not, comparisons and in, + -, ~,
 * * / // %, **, unary, postfix, filters and tests. */
#include "driver-cli/driver/chat/render_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

typedef struct rk_status *(*level_fn_t)(struct rk_parser *parser, const struct rk_node **out);

static struct rk_status *parse_or(struct rk_parser *parser, const struct rk_node **out);
static struct rk_status *parse_unary(struct rk_parser *parser, const struct rk_node **out, bool with_filters);

static struct rk_status *expect_op(struct rk_parser *parser, int32_t op)
{
    char expected[4] = {'\'', (char)op, '\'', '\0'};

    return rk_parser_skip_op(parser, op) ? NULL : rk_parser_unexpected(parser, expected);
}

static struct rk_status *new_text(struct rk_parser *parser, rk_value_t *out, const char *data, int64_t bytes)
{
    struct rk_text *text = rk_arena_alloc(parser->jinja->arena, sizeof(*text));

    if (!text)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%s: out of memory", parser->jinja->source);
    *text = (struct rk_text){.data = data, .bytes = bytes, .chars = -1};
    (void)rk_text_chars(text); /* counted now: renderings share it */
    *out = (rk_value_t){.kind = RK_VALUE_STRING, .string = text};
    return NULL;
}

/* --- lists of expressions --- */

/* Expressions up to the closing operator, which is taken too. */
static struct rk_status *parse_items(struct rk_parser *parser, struct rk_node *node, int32_t close,
                                     bool is_dict)
{
    rk_nodes_t items = {0};
    struct rk_status *st = NULL;

    while (!st && !rk_parser_skip_op(parser, close)) {
        const struct rk_node *item = NULL, *value = NULL;

        if (items.count > 0)
            RK_TRY_GOTO(st, expect_op(parser, ','), fail);
        if (rk_parser_skip_op(parser, close))
            break;
        RK_TRY_GOTO(st, rk_parse_expr(parser, &item, true), fail);
        rk_array_append(&items, item);
        if (!is_dict)
            continue;
        RK_TRY_GOTO(st, expect_op(parser, ':'), fail);
        RK_TRY_GOTO(st, rk_parse_expr(parser, &value, true), fail);
        rk_array_append(&items, value);
    }
    return rk_parser_set_items(parser, node, &items);
fail:
    rk_array_fini(&items);
    return st;
}

static bool is_tuple_end(const struct rk_parser *parser, const char *stop)
{
    rk_lex_type_t type = rk_parser_peek(parser)->type;

    return type == RK_LEX_PRINT_END || type == RK_LEX_TAG_END || rk_parser_is_op(parser, ')') ||
           (stop && rk_parser_is_name(parser, stop));
}

typedef struct rk_status *(*item_fn_t)(struct rk_parser *parser, const struct rk_node **out, bool with_cond);

/* item, item ... : one item, or a tuple when there is a comma. */
static struct rk_status *parse_list_of(struct rk_parser *parser, const struct rk_node **out, item_fn_t parse,
                                       bool with_cond, const char *stop)
{
    rk_nodes_t items = {0};
    bool is_tuple = false;
    struct rk_node *node;
    struct rk_status *st = NULL;

    while (!is_tuple_end(parser, stop)) {
        const struct rk_node *item = NULL;

        RK_TRY_GOTO(st, parse(parser, &item, with_cond), fail);
        rk_array_append(&items, item);
        if (!rk_parser_skip_op(parser, ','))
            break;
        is_tuple = true;
    }
    if (!is_tuple && items.count == 1) {
        *out = items.items[0];
        rk_array_fini(&items);
        return NULL;
    }
    if (items.count == 0)
        return rk_parser_unexpected(parser, "an expression");
    RK_TRY_GOTO(st, rk_parser_node(parser, &node, RK_NODE_TUPLE), fail);
    *out = node;
    return rk_parser_set_items(parser, node, &items);
fail:
    rk_array_fini(&items);
    return st;
}

struct rk_status *rk_parse_tuple(struct rk_parser *parser, const struct rk_node **out, bool with_cond,
                                 const char *stop)
{
    return parse_list_of(parser, out, rk_parse_expr, with_cond, stop);
}

/* --- targets of assignments --- */

static bool is_constant_name(const struct rk_parser *parser)
{
    static const char *const names[] = {"true", "false", "none", "True", "False", "None"};

    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++) {
        if (rk_parser_is_name(parser, names[i]))
            return true;
    }
    return false;
}

static struct rk_status *parse_one_target(struct rk_parser *parser, const struct rk_node **out,
                                          bool with_cond)
{
    struct rk_node *node, *attr;
    struct rk_status *st;

    if (rk_parser_skip_op(parser, '(')) {
        RK_TRY(rk_parser_enter(parser));
        st = parse_list_of(parser, out, parse_one_target, with_cond, NULL);
        parser->nesting--;
        return st ? st : expect_op(parser, ')');
    }
    if (is_constant_name(parser))
        return rk_parser_unexpected(parser, "a name that can be assigned to");
    RK_TRY(rk_parser_node(parser, &node, RK_NODE_NAME));
    RK_TRY(rk_parser_take_name(parser, node));
    *out = node;
    if (!rk_parser_skip_op(parser, '.'))
        return NULL;
    RK_TRY(rk_parser_node(parser, &attr, RK_NODE_NSREF));
    RK_TRY(rk_parser_take_name(parser, attr));
    if (attr->value.string->data[0] == '_')
        return rk_parser_unexpected(parser, "a name of a namespace without '_' in front");
    node->kind = RK_NODE_NSREF; /* keeps the id of the namespace */
    node->a = attr;
    return NULL;
}

struct rk_status *rk_parse_target(struct rk_parser *parser, const struct rk_node **out, const char *stop)
{
    return parse_list_of(parser, out, parse_one_target, true, stop);
}

/* --- primary expressions --- */

static struct rk_status *parse_name(struct rk_parser *parser, struct rk_node *node)
{
    static const struct {
        const char *name;
        uint32_t use;
    } special[] = {{"caller", RK_MACRO_USES_CALLER},
                   {"varargs", RK_MACRO_USES_VARARGS},
                   {"kwargs", RK_MACRO_USES_KWARGS}};

    if (is_constant_name(parser)) {
        char first = rk_parser_peek(parser)->text[0];

        node->kind = RK_NODE_CONST;
        node->value =
            first == 'n' || first == 'N' ? rk_value_none() : rk_value_bool(first == 't' || first == 'T');
        parser->at++;
        return NULL;
    }
    for (size_t i = 0; i < RK_ARRAY_LEN(special); i++) {
        if (rk_parser_is_name(parser, special[i].name))
            parser->macro_uses |= special[i].use;
    }
    node->kind = RK_NODE_NAME;
    return rk_parser_take_name(parser, node);
}

/* Strings that stand next to each other are one. */
static struct rk_status *parse_string(struct rk_parser *parser, struct rk_node *node)
{
    int64_t first = parser->at, bytes = 0;
    char *joined;

    while (rk_parser_peek(parser)->type == RK_LEX_STRING)
        bytes += parser->tokens.items[parser->at++].bytes;
    joined = rk_arena_alloc(parser->jinja->arena, (size_t)bytes + 1);
    if (!joined)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%s: out of memory", parser->jinja->source);
    bytes = 0;
    for (int64_t i = first; i < parser->at; i++) {
        memcpy(joined + bytes, parser->tokens.items[i].text, (size_t)parser->tokens.items[i].bytes);
        bytes += parser->tokens.items[i].bytes;
    }
    node->kind = RK_NODE_CONST;
    return new_text(parser, &node->value, joined, bytes);
}

static struct rk_status *parse_parenthesised(struct rk_parser *parser, struct rk_node *node,
                                             const struct rk_node **out)
{
    if (rk_parser_skip_op(parser, ')')) {
        rk_nodes_t none = {0};

        node->kind = RK_NODE_TUPLE;
        return rk_parser_set_items(parser, node, &none);
    }
    RK_TRY(rk_parse_tuple(parser, out, true, NULL));
    return expect_op(parser, ')');
}

static struct rk_status *parse_primary(struct rk_parser *parser, const struct rk_node **out)
{
    const struct rk_jinja_token *token = rk_parser_peek(parser);
    struct rk_node *node;

    RK_TRY(rk_parser_node(parser, &node, RK_NODE_CONST));
    *out = node;
    switch (token->type) {
    case RK_LEX_NAME:
        return parse_name(parser, node);
    case RK_LEX_STRING:
        return parse_string(parser, node);
    case RK_LEX_INT:
        node->value = rk_value_int(token->integer);
        parser->at++;
        return NULL;
    case RK_LEX_REAL:
        node->value = rk_value_real(token->real);
        parser->at++;
        return NULL;
    default:
        break;
    }
    if (rk_parser_skip_op(parser, '('))
        return parse_parenthesised(parser, node, out);
    node->kind = rk_parser_is_op(parser, '[') ? RK_NODE_LIST : RK_NODE_DICT;
    if (rk_parser_skip_op(parser, '['))
        return parse_items(parser, node, ']', false);
    if (rk_parser_skip_op(parser, '{'))
        return parse_items(parser, node, '}', true);
    return rk_parser_unexpected(parser, "an expression");
}

/* --- postfix: attributes, items, slices, calls --- */

static struct rk_status *parse_attribute(struct rk_parser *parser, struct rk_node *node)
{
    const struct rk_jinja_token *token = rk_parser_peek(parser);
    struct rk_node *key;

    if (token->type == RK_LEX_INT) {
        RK_TRY(rk_parser_node(parser, &key, RK_NODE_CONST));
        key->value = rk_value_int(token->integer);
        node->kind = RK_NODE_ITEM;
        node->b = key;
        parser->at++;
        return NULL;
    }
    if (token->type != RK_LEX_NAME)
        return rk_parser_unexpected(parser, "a name or a number behind '.'");
    node->kind = RK_NODE_ATTR;
    parser->at++;
    return new_text(parser, &node->value, token->text, token->bytes);
}

static bool is_bound_end(const struct rk_parser *parser)
{
    return rk_parser_is_op(parser, ':') || rk_parser_is_op(parser, ']') || rk_parser_is_op(parser, ',');
}

static struct rk_status *parse_subscript(struct rk_parser *parser, struct rk_node *node)
{
    const struct rk_node *bounds[3] = {NULL, NULL, NULL};
    rk_nodes_t items = {0};
    int count = 1;

    if (!is_bound_end(parser))
        RK_TRY(rk_parse_expr(parser, &bounds[0], true));
    if (!rk_parser_is_op(parser, ':')) {
        if (rk_parser_is_op(parser, ','))
            return rk_parser_unsupported(parser, "subscript", ",");
        if (!bounds[0])
            return rk_parser_unexpected(parser, "an index");
        node->kind = RK_NODE_ITEM;
        node->b = bounds[0];
        return expect_op(parser, ']');
    }
    node->kind = RK_NODE_SLICE;
    for (; count < 3 && rk_parser_skip_op(parser, ':'); count++) {
        if (!is_bound_end(parser))
            RK_TRY(rk_parse_expr(parser, &bounds[count], true));
    }
    for (int i = 0; i < 3; i++)
        rk_array_append(&items, bounds[i]);
    RK_TRY(rk_parser_set_items(parser, node, &items));
    return expect_op(parser, ']');
}

static bool is_keyword_argument(const struct rk_parser *parser)
{
    const struct rk_jinja_token *token = rk_parser_peek(parser);

    return token->type == RK_LEX_NAME && token[1].type == RK_LEX_OP && token[1].op == '=';
}

struct arguments {
    rk_nodes_t values, named;
    RK_ARRAY(rk_value_t) names;
};

static struct rk_status *parse_argument(struct rk_parser *parser, struct arguments *arguments)
{
    const struct rk_jinja_token *token = rk_parser_peek(parser);
    const struct rk_node *value = NULL;
    rk_value_t name;

    if (rk_parser_is_op(parser, '*') || rk_parser_is_op(parser, RK_OP2('*', '*')))
        return rk_parser_unsupported(parser, "argument list", token->op == '*' ? "*" : "**");
    if (is_keyword_argument(parser)) {
        RK_TRY(new_text(parser, &name, token->text, token->bytes));
        parser->at += 2;
        RK_TRY(rk_parse_expr(parser, &value, true));
        rk_array_append(&arguments->names, name);
        rk_array_append(&arguments->named, value);
        return NULL;
    }
    if (arguments->named.count > 0)
        return rk_parser_unexpected(parser, "a named argument, as the one before is named");
    RK_TRY(rk_parse_expr(parser, &value, true));
    rk_array_append(&arguments->values, value);
    return NULL;
}

static struct rk_status *keep_arguments(struct rk_parser *parser, struct rk_node *node,
                                        struct arguments *arguments)
{
    struct rk_node values = {.num_items = 0}, named = {.num_items = 0};
    size_t num_names = (size_t)arguments->names.count;

    RK_TRY(rk_parser_set_items(parser, &values, &arguments->values));
    RK_TRY(rk_parser_set_items(parser, &named, &arguments->named));
    node->args = (struct rk_node_args){.values = values.items,
                                       .num_values = values.num_items,
                                       .named = named.items,
                                       .num_named = named.num_items};
    node->args.names = rk_arena_calloc(parser->jinja->arena, num_names + 1, sizeof(*node->args.names));
    if (!node->args.names)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%s: out of memory", parser->jinja->source);
    if (num_names > 0)
        memcpy(node->args.names, arguments->names.items, num_names * sizeof(*node->args.names));
    return NULL;
}

/* From behind "(" to behind ")". */
static struct rk_status *parse_arguments(struct rk_parser *parser, struct rk_node *node)
{
    struct arguments arguments = {.names = {0}};
    bool is_first = true;
    struct rk_status *st = NULL;

    while (!st && !rk_parser_skip_op(parser, ')')) {
        if (!is_first)
            RK_TRY_GOTO(st, expect_op(parser, ','), out);
        if (!is_first && rk_parser_skip_op(parser, ')'))
            break;
        is_first = false;
        st = parse_argument(parser, &arguments);
    }
    if (!st)
        st = keep_arguments(parser, node, &arguments);
out:
    rk_array_fini(&arguments.values);
    rk_array_fini(&arguments.named);
    rk_array_fini(&arguments.names);
    return st;
}

/* Methods of Python that this interpreter does not have are found here, not in the middle of a run. */
static struct rk_status *parse_call(struct rk_parser *parser, struct rk_node *node)
{
    const struct rk_node *callee = node->a;

    node->kind = RK_NODE_CALL;
    if (callee->kind == RK_NODE_ATTR) {
        char *name = rk_strndup(callee->value.string->data, (size_t)callee->value.string->bytes);
        struct rk_status *st =
            rk_jinja_method_is_known(name) ? rk_parser_unsupported(parser, "method", name) : NULL;

        rk_free(name);
        if (st)
            return st;
    }
    return parse_arguments(parser, node);
}

static struct rk_status *parse_postfix(struct rk_parser *parser, const struct rk_node **out)
{
    for (;;) {
        struct rk_node *node;
        struct rk_status *st;

        if (!rk_parser_is_op(parser, '.') && !rk_parser_is_op(parser, '[') && !rk_parser_is_op(parser, '('))
            return NULL;
        RK_TRY(rk_parser_node(parser, &node, RK_NODE_ATTR));
        node->a = *out;
        if (rk_parser_skip_op(parser, '.'))
            st = parse_attribute(parser, node);
        else if (rk_parser_skip_op(parser, '['))
            st = parse_subscript(parser, node);
        else
            st = rk_parser_skip_op(parser, '(') ? parse_call(parser, node) : NULL;
        if (st)
            return st;
        *out = node;
    }
}

/* --- filters and tests --- */

static struct rk_status *find_row(struct rk_parser *parser, struct rk_node *node, bool is_filter)
{
    const struct rk_jinja_token *token = rk_parser_peek(parser);
    const char *what = is_filter ? "filter" : "test";
    struct rk_status *st = NULL;
    char *name;

    if (token->type != RK_LEX_NAME)
        return rk_parser_unexpected(parser, is_filter ? "the name of a filter" : "the name of a test");
    name = rk_strndup(token->text, (size_t)token->bytes);
    node->row = is_filter ? rk_jinja_filter_find(name) : rk_jinja_test_find(name);
    if (!node->row && (is_filter ? rk_jinja_filter_is_known(name) : rk_jinja_test_is_known(name)))
        st = rk_parser_unsupported(parser, what, name);
    else if (!node->row)
        st = RK_TEMPLATE_ERROR("%s:%d: there is no %s '%s'", parser->jinja->source, token->line, what, name);
    rk_free(name);
    parser->at++;
    return st;
}

struct rk_status *rk_parse_filters(struct rk_parser *parser, const struct rk_node *node, bool is_inline,
                                   const struct rk_node **out)
{
    *out = node;
    while (is_inline || rk_parser_skip_op(parser, '|')) {
        struct rk_node *filter;

        is_inline = false;
        RK_TRY(rk_parser_node(parser, &filter, RK_NODE_FILTER));
        filter->a = *out;
        RK_TRY(find_row(parser, filter, true));
        if (rk_parser_skip_op(parser, '('))
            RK_TRY(parse_arguments(parser, filter));
        *out = filter;
    }
    return NULL;
}

static bool begins_test_argument(const struct rk_parser *parser)
{
    const struct rk_jinja_token *token = rk_parser_peek(parser);

    if (token->type == RK_LEX_NAME)
        return !rk_parser_is_name(parser, "else") && !rk_parser_is_name(parser, "or") &&
               !rk_parser_is_name(parser, "and");
    return token->type == RK_LEX_STRING || token->type == RK_LEX_INT || token->type == RK_LEX_REAL ||
           rk_parser_is_op(parser, '[') || rk_parser_is_op(parser, '{');
}

/* From behind "is". */
static struct rk_status *parse_test(struct rk_parser *parser, const struct rk_node **out)
{
    bool is_negated = rk_parser_skip_name(parser, "not");
    struct arguments arguments = {.names = {0}};
    const struct rk_node *argument = NULL;
    struct rk_node *test, *negation;

    RK_TRY(rk_parser_node(parser, &test, RK_NODE_TEST));
    test->a = *out;
    RK_TRY(find_row(parser, test, false));
    if (rk_parser_skip_op(parser, '(')) {
        RK_TRY(parse_arguments(parser, test));
    } else if (begins_test_argument(parser)) {
        if (rk_parser_is_name(parser, "is"))
            return rk_parser_unexpected(parser, "one test: tests cannot be chained");
        RK_TRY(parse_primary(parser, &argument));
        RK_TRY(parse_postfix(parser, &argument));
        rk_array_append(&arguments.values, argument);
        RK_TRY(keep_arguments(parser, test, &arguments));
    }
    *out = test;
    if (!is_negated)
        return NULL;
    RK_TRY(rk_parser_node(parser, &negation, RK_NODE_NOT));
    negation->a = test;
    *out = negation;
    return NULL;
}

static struct rk_status *parse_filter_expr(struct rk_parser *parser, const struct rk_node **out)
{
    for (;;) {
        if (rk_parser_is_op(parser, '|'))
            RK_TRY(rk_parse_filters(parser, *out, false, out));
        else if (rk_parser_skip_name(parser, "is"))
            RK_TRY(parse_test(parser, out));
        else if (rk_parser_is_op(parser, '('))
            RK_TRY(parse_postfix(parser, out));
        else
            return NULL;
    }
}

/* --- operators --- */

static struct rk_status *parse_unary(struct rk_parser *parser, const struct rk_node **out, bool with_filters)
{
    struct rk_node *node;
    bool is_negative = rk_parser_is_op(parser, '-');

    if (is_negative || rk_parser_is_op(parser, '+')) {
        RK_TRY(rk_parser_node(parser, &node, is_negative ? RK_NODE_NEG : RK_NODE_POS));
        parser->at++;
        RK_TRY(rk_parser_enter(parser));
        RK_TRY(parse_unary(parser, &node->a, false));
        parser->nesting--;
        *out = node;
    } else {
        RK_TRY(parse_primary(parser, out));
    }
    RK_TRY(parse_postfix(parser, out));
    return with_filters ? parse_filter_expr(parser, out) : NULL;
}

static struct rk_status *parse_operand(struct rk_parser *parser, const struct rk_node **out)
{
    return parse_unary(parser, out, true);
}

/* Left-associative: `ops` in a row over what `next` reads. */
static struct rk_status *parse_binary(struct rk_parser *parser, const struct rk_node **out,
                                      const int32_t *ops, level_fn_t next)
{
    RK_TRY(next(parser, out));
    for (;;) {
        const int32_t *op = ops;
        struct rk_node *node;

        while (*op && !rk_parser_is_op(parser, *op))
            op++;
        if (!*op)
            return NULL;
        RK_TRY(rk_parser_node(parser, &node, RK_NODE_BINARY));
        parser->at++;
        node->op = *op;
        node->a = *out;
        RK_TRY(next(parser, &node->b));
        *out = node;
    }
}

static struct rk_status *parse_pow(struct rk_parser *parser, const struct rk_node **out)
{
    static const int32_t ops[] = {RK_OP2('*', '*'), 0};

    return parse_binary(parser, out, ops, parse_operand);
}

static struct rk_status *parse_product(struct rk_parser *parser, const struct rk_node **out)
{
    static const int32_t ops[] = {'*', '/', RK_OP2('/', '/'), '%', 0};

    return parse_binary(parser, out, ops, parse_pow);
}

static struct rk_status *parse_concat(struct rk_parser *parser, const struct rk_node **out)
{
    rk_nodes_t items = {0};
    const struct rk_node *item = NULL;
    struct rk_node *node;
    struct rk_status *st;

    RK_TRY(parse_product(parser, out));
    if (!rk_parser_is_op(parser, '~'))
        return NULL;
    RK_TRY(rk_parser_node(parser, &node, RK_NODE_CONCAT));
    rk_array_append(&items, *out);
    while (rk_parser_skip_op(parser, '~')) {
        st = parse_product(parser, &item);
        if (st) {
            rk_array_fini(&items);
            return st;
        }
        rk_array_append(&items, item);
    }
    *out = node;
    return rk_parser_set_items(parser, node, &items);
}

static struct rk_status *parse_sum(struct rk_parser *parser, const struct rk_node **out)
{
    static const int32_t ops[] = {'+', '-', 0};

    return parse_binary(parser, out, ops, parse_concat);
}

/* The comparison that stands here, taken; 0 when there is none. */
static int32_t take_comparison(struct rk_parser *parser)
{
    static const int32_t ops[] = {RK_OP2('=', '='), RK_OP2('!', '='), '<', RK_OP2('<', '='), '>',
                                  RK_OP2('>', '=')};

    for (size_t i = 0; i < RK_ARRAY_LEN(ops); i++) {
        if (rk_parser_skip_op(parser, ops[i]))
            return ops[i];
    }
    if (rk_parser_skip_name(parser, "in"))
        return 'i';
    if (!rk_parser_skip_name(parser, "not"))
        return 0;
    if (rk_parser_skip_name(parser, "in"))
        return 'n';
    parser->at--;
    return 0;
}

static struct rk_status *parse_compare(struct rk_parser *parser, const struct rk_node **out)
{
    rk_nodes_t items = {0};
    struct rk_node *node, *operand;
    struct rk_status *st;
    int32_t op;

    RK_TRY(parse_sum(parser, out));
    while ((op = take_comparison(parser)) != 0) {
        RK_TRY_GOTO(st, rk_parser_node(parser, &operand, RK_NODE_BINARY), fail);
        operand->op = op;
        rk_array_append(&items, operand);
        RK_TRY_GOTO(st, parse_sum(parser, &operand->b), fail);
    }
    if (items.count == 0)
        return NULL;
    RK_TRY_GOTO(st, rk_parser_node(parser, &node, RK_NODE_COMPARE), fail);
    node->a = *out;
    *out = node;
    return rk_parser_set_items(parser, node, &items);
fail:
    rk_array_fini(&items);
    return st;
}

static struct rk_status *parse_not(struct rk_parser *parser, const struct rk_node **out)
{
    struct rk_node *node;

    if (!rk_parser_skip_name(parser, "not"))
        return parse_compare(parser, out);
    RK_TRY(rk_parser_node(parser, &node, RK_NODE_NOT));
    RK_TRY(rk_parser_enter(parser));
    RK_TRY(parse_not(parser, &node->a));
    parser->nesting--;
    *out = node;
    return NULL;
}

static struct rk_status *parse_logic(struct rk_parser *parser, const struct rk_node **out, const char *word,
                                     rk_node_kind_t kind, level_fn_t next)
{
    RK_TRY(next(parser, out));
    while (rk_parser_skip_name(parser, word)) {
        struct rk_node *node;

        RK_TRY(rk_parser_node(parser, &node, kind));
        node->a = *out;
        RK_TRY(next(parser, &node->b));
        *out = node;
    }
    return NULL;
}

static struct rk_status *parse_and(struct rk_parser *parser, const struct rk_node **out)
{
    return parse_logic(parser, out, "and", RK_NODE_AND, parse_not);
}

static struct rk_status *parse_or(struct rk_parser *parser, const struct rk_node **out)
{
    return parse_logic(parser, out, "or", RK_NODE_OR, parse_and);
}

static struct rk_status *parse_cond(struct rk_parser *parser, const struct rk_node **out)
{
    RK_TRY(parse_or(parser, out));
    while (rk_parser_skip_name(parser, "if")) {
        struct rk_node *node;

        RK_TRY(rk_parser_node(parser, &node, RK_NODE_COND));
        node->b = *out;
        RK_TRY(parse_or(parser, &node->a));
        if (rk_parser_skip_name(parser, "else")) {
            RK_TRY(rk_parser_enter(parser));
            RK_TRY(parse_cond(parser, &node->c));
            parser->nesting--;
        }
        *out = node;
    }
    return NULL;
}

struct rk_status *rk_parse_expr(struct rk_parser *parser, const struct rk_node **out, bool with_cond)
{
    struct rk_status *st;

    RK_TRY(rk_parser_enter(parser));
    st = with_cond ? parse_cond(parser, out) : parse_or(parser, out);
    parser->nesting--;
    return st;
}
