/* Parses the statements of a template to a syntax tree. */
#include "text/chat/jinja_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

static void expect_name(struct rk_parser *p, const char *name)
{
    char quoted[32];

    snprintf(quoted, sizeof(quoted), "'%s'", name);
    if (!rk_parser_skip_name(p, name))
        rk_parser_unexpected(p, quoted);
}

static void expect(struct rk_parser *p, rk_lex_type_t type, const char *what)
{
    if (rk_parser_peek(p)->type == type)
        rk_parser_next(p);
    else
        rk_parser_unexpected(p, what);
}

/* --- blocks --- */

static struct rk_node *parse_statement(struct rk_parser *p);

static struct rk_node *parse_part(struct rk_parser *p)
{
    const struct rk_jinja_token *token = rk_parser_peek(p);
    struct rk_node *node;

    if (token->type == RK_LEX_DATA) {
        node = rk_parser_node(p, RK_NODE_DATA);
        node->value = rk_parser_text(p, token->text, token->bytes);
        rk_parser_next(p);
    } else if (token->type == RK_LEX_PRINT_BEGIN) {
        node = rk_parser_node(p, RK_NODE_PRINT);
        rk_parser_next(p);
        node->a = rk_parse_tuple(p, true, NULL);
        expect(p, RK_LEX_PRINT_END, "'}}'");
    } else {
        rk_parser_next(p);
        node = parse_statement(p);
        expect(p, RK_LEX_TAG_END, "'%}'");
    }
    return node;
}

/* Whether the next tokens are "{%" and one of the names, which are separated by blanks. */
static bool is_end(const struct rk_parser *p, const char *ends)
{
    const struct rk_jinja_token *token = rk_parser_peek(p);

    return token->type == RK_LEX_TAG_BEGIN && token[1].type == RK_LEX_NAME &&
           rk_word_find(ends, token[1].text, token[1].bytes) >= 0;
}

/* Parses up to one of `ends`, whose name is the next token; "": the end of the template. */
static struct rk_node *parse_block(struct rk_parser *p, const char *ends)
{
    struct rk_node *node = rk_parser_node(p, RK_NODE_BLOCK), *part;
    const struct rk_node **tail = &node->items;

    if (p->at > 0)
        node->line = p->tokens.items[p->at - 1].line; /* line of the preceding tag */
    while (!p->error && !is_end(p, ends) && rk_parser_peek(p)->type != RK_LEX_END) {
        *tail = part = parse_part(p);
        tail = &part->next;
    }
    if (*ends && rk_parser_peek(p)->type == RK_LEX_END && !p->error)
        p->error = RK_FAIL(RK_INVALID_ARGUMENT, "%s:%d: the block that begins here has no {%% %.*s %%}",
                           p->jinja->source, node->line, (int)strcspn(ends, " "), ends);
    if (*ends)
        rk_parser_next(p);
    return node;
}

/* The body of a statement: "%}" or ":%}", then a block. */
static struct rk_node *parse_body(struct rk_parser *p, const char *ends)
{
    struct rk_node *node;

    (void)rk_parser_skip_op(p, ':');
    expect(p, RK_LEX_TAG_END, "'%}'");
    rk_parser_enter(p);
    node = parse_block(p, ends);
    p->nesting--;
    return node;
}

/* --- statements; each is parsed from after its name --- */

static void parse_if(struct rk_parser *p, struct rk_node *node)
{
    const struct rk_node **tail = &node->items;

    do {
        struct rk_node *test = rk_parse_tuple(p, false, NULL), *body = parse_body(p, "endif elif else");

        *tail = test;
        test->next = body;
        tail = &body->next;
    } while (rk_parser_skip_name(p, "elif"));
    if (rk_parser_skip_name(p, "else"))
        node->a = parse_body(p, "endif");
    expect_name(p, "endif");
}

static void parse_for(struct rk_parser *p, struct rk_node *node)
{
    struct rk_node *body;

    node->a = rk_parse_target(p, "in");
    expect_name(p, "in");
    node->b = rk_parse_tuple(p, false, "recursive");
    if (rk_parser_skip_name(p, "if"))
        node->c = rk_parse_expr(p, true);
    if (rk_parser_is_name(p, "recursive"))
        rk_parser_unsupported(p, "loop option", "recursive");
    p->loop_nesting++;
    node->items = body = parse_body(p, "endfor else");
    p->loop_nesting--;
    if (rk_parser_skip_name(p, "else"))
        body->next = parse_body(p, "endfor");
    expect_name(p, "endfor");
}

static void parse_set(struct rk_parser *p, struct rk_node *node)
{
    node->a = rk_parse_target(p, NULL);
    if (rk_parser_skip_op(p, '=')) {
        node->b = rk_parse_tuple(p, true, NULL);
        return;
    }
    node->kind = RK_NODE_SET_BLOCK;
    node->c = rk_parse_filters(p, NULL, false);
    node->b = parse_body(p, "endset");
    expect_name(p, "endset");
}

/* (name, name=default ...) */
static void parse_parameters(struct rk_parser *p, struct rk_node *macro)
{
    const struct rk_node **tail = &macro->items;
    bool has_default = false;

    rk_parser_expect_op(p, '(');
    while (!rk_parser_skip_op(p, ')') && !p->error) {
        struct rk_node *name = rk_parser_node(p, RK_NODE_NAME);

        if (macro->items)
            rk_parser_expect_op(p, ',');
        rk_parser_take_name(p, name);
        if (rk_parser_skip_op(p, '=')) {
            has_default = true;
            name->a = rk_parse_expr(p, true);
        } else if (has_default) {
            rk_parser_unexpected(p, "a default, as the parameter before has one");
        }
        *tail = name;
        tail = &name->next;
    }
}

/* The body of a macro, which is a function: loops around it are not its own. */
static void parse_macro_body(struct rk_parser *p, const char *end, struct rk_node *macro)
{
    struct rk_parser outer = *p;

    p->loop_nesting = 0;
    p->is_in_macro = true;
    p->uses_caller = false;
    macro->b = parse_body(p, end);
    macro->op = p->uses_caller;
    p->loop_nesting = outer.loop_nesting;
    p->is_in_macro = outer.is_in_macro;
    p->uses_caller = outer.uses_caller;
    expect_name(p, end);
}

static void parse_macro(struct rk_parser *p, struct rk_node *node)
{
    rk_parser_take_name(p, node);
    parse_parameters(p, node);
    parse_macro_body(p, "endmacro", node);
}

static void parse_call(struct rk_parser *p, struct rk_node *node)
{
    struct rk_node *caller = rk_parser_node(p, RK_NODE_MACRO);

    caller->id = p->jinja->id_caller;
    if (rk_parser_is_op(p, '('))
        parse_parameters(p, caller);
    node->a = rk_parse_expr(p, true);
    if (node->a->kind != RK_NODE_CALL)
        rk_parser_unexpected(p, "the call of a macro");
    node->b = caller;
    parse_macro_body(p, "endcall", caller);
}

static void parse_filter(struct rk_parser *p, struct rk_node *node)
{
    node->b = rk_parse_filters(p, NULL, true);
    node->a = parse_body(p, "endfilter");
    expect_name(p, "endfilter");
}

static void parse_generation(struct rk_parser *p, struct rk_node *node)
{
    int32_t outer_loops = p->loop_nesting;

    p->loop_nesting = 0;
    node->a = parse_body(p, "endgeneration");
    p->loop_nesting = outer_loops;
    expect_name(p, "endgeneration");
}

static void parse_jump(struct rk_parser *p, struct rk_node *node)
{
    (void)node;
    if (p->loop_nesting == 0)
        rk_parser_unexpected(p, "break and continue to stand in a for loop");
}

static const struct {
    const char *name;
    rk_node_kind_t kind;
    void (*parse)(struct rk_parser *p, struct rk_node *node);
} statements[] = {
    {"if", RK_NODE_IF, parse_if},
    {"for", RK_NODE_FOR, parse_for},
    {"set", RK_NODE_SET, parse_set},
    {"macro", RK_NODE_MACRO, parse_macro},
    {"call", RK_NODE_CALL_BLOCK, parse_call},
    {"filter", RK_NODE_FILTER_BLOCK, parse_filter},
    {"generation", RK_NODE_GENERATION, parse_generation},
    {"break", RK_NODE_BREAK, parse_jump},
    {"continue", RK_NODE_CONTINUE, parse_jump},
};

static struct rk_node *parse_statement(struct rk_parser *p)
{
    const struct rk_jinja_token *token = rk_parser_peek(p);
    struct rk_node *node = rk_parser_node(p, RK_NODE_BLOCK);

    for (size_t i = 0; i < RK_ARRAY_LEN(statements); i++) {
        if (rk_parser_skip_name(p, statements[i].name)) {
            node->kind = statements[i].kind;
            statements[i].parse(p, node);
            return node;
        }
    }
    if (token->type == RK_LEX_NAME &&
        rk_word_find("autoescape block extends from import include print raw with", token->text,
                     token->bytes) >= 0)
        rk_parser_fail(p, RK_FAIL(RK_UNIMPLEMENTED, "the statement '%.*s' is not supported",
                                  (int)token->bytes, token->text));
    else
        rk_parser_unexpected(p, "the name of a statement");
    return node;
}

struct rk_status *rk_jinja_parse(struct rk_parser *p)
{
    p->jinja->body = parse_block(p, "");
    return p->error;
}
