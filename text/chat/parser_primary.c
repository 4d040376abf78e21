/* Primary expressions of a template: names, constants, lists, dicts, tuples; and targets of assignments. */
#include "text/chat/render_internal.h"

#include <string.h>

/* --- lists of expressions --- */

/* Parses expressions up to and including the closing operator. */
static struct rk_status *parse_items(struct rk_parser *parser, struct rk_node *node, int32_t close,
                                     bool is_dict)
{
    rk_nodes_t items = {0};
    struct rk_status *st = NULL;

    while (!st && !rk_parser_skip_op(parser, close)) {
        const struct rk_node *item = NULL, *value = NULL;

        if (items.count > 0)
            RK_TRY_GOTO(st, rk_parser_expect_op(parser, ','), fail);
        if (rk_parser_skip_op(parser, close))
            break;
        RK_TRY_GOTO(st, rk_parse_expr(parser, &item, true), fail);
        rk_array_append(&items, item);
        if (!is_dict)
            continue;
        RK_TRY_GOTO(st, rk_parser_expect_op(parser, ':'), fail);
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
        return st ? st : rk_parser_expect_op(parser, ')');
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

/* Adjacent strings are concatenated. */
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
    return rk_parser_text(parser, &node->value, joined, bytes);
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
    return rk_parser_expect_op(parser, ')');
}

struct rk_status *rk_parse_primary(struct rk_parser *parser, const struct rk_node **out)
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
