/* Postfix operators of a template's expressions: attributes, items, slices, calls, filters and tests. */
#include "text/chat/render_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

/* --- attributes, items, slices, calls --- */

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
    return rk_parser_text(parser, &node->value, token->text, token->bytes);
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
        return rk_parser_expect_op(parser, ']');
    }
    node->kind = RK_NODE_SLICE;
    for (; count < 3 && rk_parser_skip_op(parser, ':'); count++) {
        if (!is_bound_end(parser))
            RK_TRY(rk_parse_expr(parser, &bounds[count], true));
    }
    for (int i = 0; i < 3; i++)
        rk_array_append(&items, bounds[i]);
    RK_TRY(rk_parser_set_items(parser, node, &items));
    return rk_parser_expect_op(parser, ']');
}

static bool is_keyword_argument(const struct rk_parser *parser)
{
    const struct rk_jinja_token *token = rk_parser_peek(parser);

    return token->type == RK_LEX_NAME && token[1].type == RK_LEX_OP && token[1].op == '=';
}

struct arguments {
    rk_nodes_t values, named;
    RK_ARRAY(rk_value_t) names;
    const struct rk_node *rest, *named_rest;
};

static struct rk_status *parse_argument(struct rk_parser *parser, struct arguments *arguments)
{
    const struct rk_jinja_token *token = rk_parser_peek(parser);
    const struct rk_node *value = NULL;
    rk_value_t name;

    if (arguments->named_rest)
        return rk_parser_unexpected(parser, "')' behind the argument with **");
    if (rk_parser_skip_op(parser, RK_OP2('*', '*')))
        return rk_parse_expr(parser, &arguments->named_rest, true);
    if (rk_parser_is_op(parser, '*')) {
        if (arguments->rest)
            return rk_parser_unexpected(parser, "one argument with *");
        parser->at++;
        return rk_parse_expr(parser, &arguments->rest, true);
    }
    if (is_keyword_argument(parser)) {
        RK_TRY(rk_parser_text(parser, &name, token->text, token->bytes));
        parser->at += 2;
        RK_TRY(rk_parse_expr(parser, &value, true));
        rk_array_append(&arguments->names, name);
        rk_array_append(&arguments->named, value);
        return NULL;
    }
    if (arguments->named.count > 0 || arguments->rest)
        return rk_parser_unexpected(parser, "a named argument, as the one before is named or has a *");
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
                                       .num_named = named.num_items,
                                       .rest = arguments->rest,
                                       .named_rest = arguments->named_rest};
    node->args.names = rk_arena_calloc(parser->jinja->arena, num_names + 1, sizeof(*node->args.names));
    if (!node->args.names)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%s: out of memory", parser->jinja->source);
    if (num_names > 0)
        memcpy(node->args.names, arguments->names.items, num_names * sizeof(*node->args.names));
    return NULL;
}

/* Parses from after "(" to after ")". */
static struct rk_status *parse_arguments(struct rk_parser *parser, struct rk_node *node)
{
    struct arguments arguments = {.names = {0}};
    bool is_first = true;
    struct rk_status *st = NULL;

    while (!st && !rk_parser_skip_op(parser, ')')) {
        if (!is_first)
            RK_TRY_GOTO(st, rk_parser_expect_op(parser, ','), out);
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

/* Unsupported Python methods are reported here, when the template is compiled. */
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

struct rk_status *rk_parse_postfix(struct rk_parser *parser, const struct rk_node **out)
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

/* A name without a row is kept until the whole template is parsed, since a conditional expression shows only
 * later that it is one. */
static struct rk_status *find_row(struct rk_parser *parser, struct rk_node *node)
{
    const struct rk_jinja_token *token = rk_parser_peek(parser);
    bool is_filter = node->kind == RK_NODE_FILTER;
    char *name;

    if (token->type != RK_LEX_NAME)
        return rk_parser_unexpected(parser, is_filter ? "the name of a filter" : "the name of a test");
    RK_TRY(rk_parser_text(parser, &node->value, token->text, token->bytes));
    name = rk_strndup(token->text, (size_t)token->bytes);
    node->row = is_filter ? rk_jinja_filter_find(name) : rk_jinja_test_find(name);
    rk_free(name);
    if (!node->row && !parser->is_soft && !parser->unknown)
        parser->unknown = RK_WRAP(rk_unknown_row(node), "%s:%d", parser->jinja->source, token->line);
    parser->at++;
    return NULL;
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
        RK_TRY(find_row(parser, filter));
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

/* Parses from after "is". */
static struct rk_status *parse_test(struct rk_parser *parser, const struct rk_node **out)
{
    bool is_negated = rk_parser_skip_name(parser, "not");
    struct arguments arguments = {.names = {0}};
    const struct rk_node *argument = NULL;
    struct rk_node *test, *negation;

    RK_TRY(rk_parser_node(parser, &test, RK_NODE_TEST));
    test->a = *out;
    RK_TRY(find_row(parser, test));
    if (rk_parser_skip_op(parser, '(')) {
        RK_TRY(parse_arguments(parser, test));
    } else if (begins_test_argument(parser)) {
        if (rk_parser_is_name(parser, "is"))
            return rk_parser_unexpected(parser, "one test: tests cannot be chained");
        RK_TRY(rk_parse_primary(parser, &argument));
        RK_TRY(rk_parse_postfix(parser, &argument));
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

struct rk_status *rk_parse_filters_and_tests(struct rk_parser *parser, const struct rk_node **out)
{
    for (;;) {
        if (rk_parser_is_op(parser, '|'))
            RK_TRY(rk_parse_filters(parser, *out, false, out));
        else if (rk_parser_skip_name(parser, "is"))
            RK_TRY(parse_test(parser, out));
        else if (rk_parser_is_op(parser, '('))
            RK_TRY(rk_parse_postfix(parser, out));
        else
            return NULL;
    }
}
