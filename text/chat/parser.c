/* Parses the statements of a template to a syntax tree. */
#include "text/chat/render_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

static struct rk_status *expect_name(struct rk_parser *parser, const char *name)
{
    char *quoted;
    struct rk_status *st;

    if (rk_parser_skip_name(parser, name))
        return NULL;
    quoted = rk_format("'%s'", name);
    st = rk_parser_unexpected(parser, quoted);
    rk_free(quoted);
    return st;
}

static struct rk_status *expect_tag_end(struct rk_parser *parser)
{
    if (rk_parser_peek(parser)->type != RK_LEX_TAG_END)
        return rk_parser_unexpected(parser, "'%}'");
    parser->at++;
    return NULL;
}

/* --- blocks --- */

static struct rk_status *parse_statement(struct rk_parser *parser, const struct rk_node **out);

static struct rk_status *parse_data(struct rk_parser *parser, const struct rk_node **out)
{
    const struct rk_jinja_token *token = rk_parser_peek(parser);
    struct rk_text *text = rk_arena_alloc(parser->jinja->arena, sizeof(*text));
    struct rk_node *node;

    RK_TRY(rk_parser_node(parser, &node, RK_NODE_DATA));
    if (!text)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%s: out of memory", parser->jinja->source);
    *text = (struct rk_text){.data = token->text, .bytes = token->bytes, .chars = -1};
    (void)rk_text_chars(text); /* counted now, because renderings share the text */
    node->value = (rk_value_t){.kind = RK_VALUE_STRING, .string = text};
    parser->at++;
    *out = node;
    return NULL;
}

static struct rk_status *parse_print(struct rk_parser *parser, const struct rk_node **out)
{
    struct rk_node *node;

    RK_TRY(rk_parser_node(parser, &node, RK_NODE_PRINT));
    parser->at++;
    RK_TRY(rk_parse_tuple(parser, &node->a, true, NULL));
    if (rk_parser_peek(parser)->type != RK_LEX_PRINT_END)
        return rk_parser_unexpected(parser, "'}}'");
    parser->at++;
    *out = node;
    return NULL;
}

/* Whether the next tokens are "{%" and one of the names. */
static bool is_end(const struct rk_parser *parser, const char *const *ends)
{
    const struct rk_jinja_token *token = rk_parser_peek(parser);

    if (token->type != RK_LEX_TAG_BEGIN)
        return false;
    for (; ends && *ends; ends++) {
        if (token[1].type == RK_LEX_NAME && rk_parser_is_text(&token[1], *ends))
            return true;
    }
    return false;
}

static struct rk_status *parse_part(struct rk_parser *parser, const struct rk_node **out)
{
    rk_lex_type_t type = rk_parser_peek(parser)->type;

    if (type == RK_LEX_DATA)
        return parse_data(parser, out);
    if (type == RK_LEX_PRINT_BEGIN)
        return parse_print(parser, out);
    RK_ASSERT(type == RK_LEX_TAG_BEGIN);
    parser->at++;
    RK_TRY(parse_statement(parser, out));
    return expect_tag_end(parser);
}

/* Parses up to one of `ends` (NULL-terminated; NULL: the end of the template), whose name is the next
 * token. */
static struct rk_status *parse_block(struct rk_parser *parser, const struct rk_node **out,
                                     const char *const *ends)
{
    rk_nodes_t items = {0};
    struct rk_node *node;
    struct rk_status *st = rk_parser_node(parser, &node, RK_NODE_BLOCK);

    if (!st && parser->at > 0)
        node->line = parser->tokens.items[parser->at - 1].line; /* line of the preceding tag */
    while (!st && !is_end(parser, ends) && rk_parser_peek(parser)->type != RK_LEX_END) {
        const struct rk_node *part = NULL;

        st = parse_part(parser, &part);
        if (!st)
            rk_array_append(&items, part);
    }
    if (!st && ends && rk_parser_peek(parser)->type == RK_LEX_END)
        st = RK_TEMPLATE_ERROR("%s:%d: the block that begins here has no {%% %s %%}", parser->jinja->source,
                               node->line, ends[0]);
    if (st) {
        rk_array_fini(&items);
        return st;
    }
    parser->at += ends != NULL;
    *out = node;
    return rk_parser_set_items(parser, node, &items);
}

/* The body of a statement: "%}" or ":%}", then a block, which is a branch of an `if` or a scope of its own.
 */
static struct rk_status *parse_body_as(struct rk_parser *parser, const struct rk_node **out,
                                       const char *const *ends, bool is_soft)
{
    bool was_soft = parser->is_soft;
    struct rk_status *st;

    (void)rk_parser_skip_op(parser, ':');
    RK_TRY(expect_tag_end(parser));
    RK_TRY(rk_parser_enter(parser));
    parser->is_soft = is_soft;
    st = parse_block(parser, out, ends);
    parser->is_soft = was_soft;
    parser->nesting--;
    return st;
}

static struct rk_status *parse_body(struct rk_parser *parser, const struct rk_node **out,
                                    const char *const *ends)
{
    return parse_body_as(parser, out, ends, false);
}

/* --- statements; each is parsed from after its name --- */

static struct rk_status *parse_if(struct rk_parser *parser, struct rk_node *node)
{
    static const char *const ends[] = {"endif", "elif", "else", NULL}, *const end_if[] = {"endif", NULL};
    bool was_soft = parser->is_soft;
    rk_nodes_t items = {0};
    struct rk_status *st;

    node->kind = RK_NODE_IF;
    parser->is_soft = true;
    do {
        const struct rk_node *test = NULL, *body = NULL;

        RK_TRY_GOTO(st, rk_parse_tuple(parser, &test, false, NULL), fail);
        RK_TRY_GOTO(st, parse_body_as(parser, &body, ends, true), fail);
        rk_array_append(&items, test);
        rk_array_append(&items, body);
    } while (rk_parser_skip_name(parser, "elif"));
    if (rk_parser_skip_name(parser, "else"))
        RK_TRY_GOTO(st, parse_body_as(parser, &node->a, end_if, true), fail);
    parser->is_soft = was_soft;
    RK_TRY_GOTO(st, expect_name(parser, "endif"), fail);
    return rk_parser_set_items(parser, node, &items);
fail:
    rk_array_fini(&items);
    return st;
}

/* An expression that is always evaluated with its statement, so that it is no branch even in a branch. */
static struct rk_status *parse_own_expr(struct rk_parser *parser, const struct rk_node **out)
{
    bool was_soft = parser->is_soft;
    struct rk_status *st;

    parser->is_soft = false;
    st = rk_parse_expr(parser, out, true);
    parser->is_soft = was_soft;
    return st;
}

static struct rk_status *parse_own_filters(struct rk_parser *parser, bool is_inline,
                                           const struct rk_node **out)
{
    bool was_soft = parser->is_soft;
    struct rk_status *st;

    parser->is_soft = false;
    st = rk_parse_filters(parser, NULL, is_inline, out);
    parser->is_soft = was_soft;
    return st;
}

static struct rk_status *parse_for(struct rk_parser *parser, struct rk_node *node)
{
    static const char *const ends[] = {"endfor", "else", NULL}, *const end_for[] = {"endfor", NULL};
    rk_nodes_t items = {0};
    const struct rk_node *body = NULL, *otherwise = NULL;
    struct rk_status *st;

    node->kind = RK_NODE_FOR;
    RK_TRY(rk_parse_target(parser, &node->a, "in"));
    RK_TRY(expect_name(parser, "in"));
    RK_TRY(rk_parse_tuple(parser, &node->b, false, "recursive"));
    if (rk_parser_skip_name(parser, "if"))
        RK_TRY(parse_own_expr(parser, &node->c));
    if (rk_parser_is_name(parser, "recursive"))
        return rk_parser_unsupported(parser, "loop option", "recursive");
    parser->loop_nesting++;
    st = parse_body(parser, &body, ends);
    parser->loop_nesting--;
    if (st)
        return st;
    if (rk_parser_skip_name(parser, "else"))
        RK_TRY(parse_body(parser, &otherwise, end_for));
    RK_TRY(expect_name(parser, "endfor"));
    rk_array_append(&items, body);
    rk_array_append(&items, otherwise);
    return rk_parser_set_items(parser, node, &items);
}

static struct rk_status *parse_set(struct rk_parser *parser, struct rk_node *node)
{
    static const char *const ends[] = {"endset", NULL};

    RK_TRY(rk_parse_target(parser, &node->a, NULL));
    if (rk_parser_skip_op(parser, '=')) {
        node->kind = RK_NODE_SET;
        return rk_parse_tuple(parser, &node->b, true, NULL);
    }
    node->kind = RK_NODE_SET_BLOCK;
    RK_TRY(parse_own_filters(parser, false, &node->c));
    RK_TRY(parse_body(parser, &node->b, ends));
    return expect_name(parser, "endset");
}

/* (name, name=default ...) */
static struct rk_status *parse_parameters(struct rk_parser *parser, struct rk_node *macro)
{
    rk_nodes_t items = {0};
    struct rk_status *st = NULL;
    bool has_default = false;

    if (!rk_parser_skip_op(parser, '('))
        return rk_parser_unexpected(parser, "'('");
    while (!st && !rk_parser_skip_op(parser, ')')) {
        struct rk_node *name = NULL;

        if (items.count > 0 && !rk_parser_skip_op(parser, ',')) {
            st = rk_parser_unexpected(parser, "',' or ')'");
            break;
        }
        RK_TRY_GOTO(st, rk_parser_node(parser, &name, RK_NODE_NAME), fail);
        RK_TRY_GOTO(st, rk_parser_take_name(parser, name), fail);
        if (rk_parser_skip_op(parser, '=')) {
            has_default = true;
            st = parse_own_expr(parser, &name->a);
        } else if (has_default) {
            st = rk_parser_unexpected(parser, "a default, as the parameter before has one");
        }
        rk_array_append(&items, name);
    }
    if (!st)
        return rk_parser_set_items(parser, macro, &items);
fail:
    rk_array_fini(&items);
    return st;
}

/* Body of a macro, of a call block or of a generation block: its content is a separate function. */
static struct rk_status *parse_function_body(struct rk_parser *parser, const char *const *ends,
                                             const struct rk_node **body, uint32_t *uses)
{
    uint32_t outer_uses = parser->macro_uses;
    int32_t outer_loops = parser->loop_nesting;
    struct rk_status *st;

    parser->macro_uses = 0;
    parser->loop_nesting = 0;
    st = parse_body(parser, body, ends);
    if (uses)
        *uses = parser->macro_uses;
    parser->macro_uses = outer_uses | (uses ? 0 : parser->macro_uses);
    parser->loop_nesting = outer_loops;
    return st ? st : expect_name(parser, ends[0]);
}

static struct rk_status *parse_macro(struct rk_parser *parser, struct rk_node *node)
{
    static const char *const ends[] = {"endmacro", NULL};

    node->kind = RK_NODE_MACRO;
    RK_TRY(rk_parser_take_name(parser, node));
    RK_TRY(parse_parameters(parser, node));
    return parse_function_body(parser, ends, &node->b, &node->uses);
}

static struct rk_status *parse_call(struct rk_parser *parser, struct rk_node *node)
{
    static const char *const ends[] = {"endcall", NULL};
    struct rk_node *caller;

    node->kind = RK_NODE_CALL_BLOCK;
    RK_TRY(rk_parser_node(parser, &caller, RK_NODE_MACRO));
    caller->id = parser->jinja->id_caller;
    if (rk_parser_is_op(parser, '('))
        RK_TRY(parse_parameters(parser, caller));
    RK_TRY(rk_parse_expr(parser, &node->a, true));
    if (node->a->kind != RK_NODE_CALL)
        return rk_parser_unexpected(parser, "the call of a macro");
    node->b = caller;
    return parse_function_body(parser, ends, &caller->b, &caller->uses);
}

static struct rk_status *parse_filter_block(struct rk_parser *parser, struct rk_node *node)
{
    static const char *const ends[] = {"endfilter", NULL};

    node->kind = RK_NODE_FILTER_BLOCK;
    RK_TRY(parse_own_filters(parser, true, &node->b));
    RK_TRY(parse_body(parser, &node->a, ends));
    return expect_name(parser, ends[0]);
}

static struct rk_status *parse_with(struct rk_parser *parser, struct rk_node *node)
{
    static const char *const ends[] = {"endwith", NULL};
    rk_nodes_t items = {0};
    struct rk_status *st = NULL;

    node->kind = RK_NODE_WITH;
    while (!st && rk_parser_peek(parser)->type != RK_LEX_TAG_END) {
        const struct rk_node *target = NULL, *value = NULL;

        if (items.count > 0 && !rk_parser_skip_op(parser, ',')) {
            st = rk_parser_unexpected(parser, "',' or '%}'");
            break;
        }
        RK_TRY_GOTO(st, rk_parse_target(parser, &target, NULL), fail);
        if (!rk_parser_skip_op(parser, '='))
            st = rk_parser_unexpected(parser, "'='");
        else
            st = rk_parse_expr(parser, &value, true);
        rk_array_append(&items, target);
        rk_array_append(&items, value);
    }
    if (!st) {
        RK_TRY(rk_parser_set_items(parser, node, &items));
        RK_TRY(parse_body(parser, &node->a, ends));
        return expect_name(parser, ends[0]);
    }
fail:
    rk_array_fini(&items);
    return st;
}

static struct rk_status *parse_generation(struct rk_parser *parser, struct rk_node *node)
{
    static const char *const ends[] = {"endgeneration", NULL};

    node->kind = RK_NODE_GENERATION;
    return parse_function_body(parser, ends, &node->a, NULL);
}

static struct rk_status *parse_break(struct rk_parser *parser, struct rk_node *node)
{
    node->kind = RK_NODE_BREAK;
    return parser->loop_nesting > 0 ? NULL : rk_parser_unexpected(parser, "break to stand in a for loop");
}

static struct rk_status *parse_continue(struct rk_parser *parser, struct rk_node *node)
{
    node->kind = RK_NODE_CONTINUE;
    return parser->loop_nesting > 0 ? NULL : rk_parser_unexpected(parser, "continue to stand in a for loop");
}

static const struct {
    const char *name;
    struct rk_status *(*parse)(struct rk_parser *parser, struct rk_node *node); /* NULL: not supported */
} statements[] = {
    {"if", parse_if},       {"for", parse_for},
    {"set", parse_set},     {"macro", parse_macro},
    {"call", parse_call},   {"filter", parse_filter_block},
    {"with", parse_with},   {"generation", parse_generation},
    {"break", parse_break}, {"continue", parse_continue},
    {"block", NULL},        {"extends", NULL},
    {"include", NULL},      {"import", NULL},
    {"from", NULL},         {"autoescape", NULL},
    {"print", NULL},
};

static struct rk_status *parse_statement(struct rk_parser *parser, const struct rk_node **out)
{
    struct rk_node *node;

    RK_TRY(rk_parser_node(parser, &node, RK_NODE_BLOCK));
    *out = node;
    for (size_t i = 0; i < RK_ARRAY_LEN(statements); i++) {
        if (!rk_parser_is_name(parser, statements[i].name))
            continue;
        if (!statements[i].parse)
            return rk_parser_unsupported(parser, "statement", statements[i].name);
        parser->at++;
        return statements[i].parse(parser, node);
    }
    return rk_parser_unexpected(parser, "the name of a statement");
}

struct rk_status *rk_jinja_parse(struct rk_parser *parser)
{
    struct rk_status *st = parse_block(parser, &parser->jinja->body, NULL);

    if (!st)
        return parser->unknown;
    rk_status_free(parser->unknown);
    return st;
}
