/* Operators of a template, with Jinja's precedence: conditional, or, and, not, comparisons and in, + -, ~,
 * * / // %, **, unary. Operators that bind tighter are in parser_primary.c and parser_postfix.c. */
#include "text/chat/render_internal.h"

typedef struct rk_status *(*level_fn_t)(struct rk_parser *parser, const struct rk_node **out);

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
        RK_TRY(rk_parse_primary(parser, out));
    }
    RK_TRY(rk_parse_postfix(parser, out));
    return with_filters ? rk_parse_filters_and_tests(parser, out) : NULL;
}

static struct rk_status *parse_operand(struct rk_parser *parser, const struct rk_node **out)
{
    return parse_unary(parser, out, true);
}

/* Left-associative: a sequence of `ops` with operands parsed by `next`. */
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

/* Consumes a comparison operator and returns it; 0 if there is none. */
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

/* All parts of a conditional expression are branches. */
static struct rk_status *parse_cond(struct rk_parser *parser, const struct rk_node **out)
{
    bool was_soft = parser->is_soft, was_unknown = parser->unknown != NULL;

    RK_TRY(parse_or(parser, out));
    while (rk_parser_skip_name(parser, "if")) {
        struct rk_node *node;

        if (!was_unknown) {
            rk_status_free(parser->unknown);
            parser->unknown = NULL;
        }
        parser->is_soft = true;
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
    parser->is_soft = was_soft;
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
