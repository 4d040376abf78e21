/* Functions of the template parser for tokens and for nodes of the tree. */
#include "text/chat/render_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

/* --- tokens --- */

const struct rk_jinja_token *rk_parser_peek(const struct rk_parser *parser)
{
    RK_ASSERT(parser->at < parser->tokens.count);
    return &parser->tokens.items[parser->at];
}

bool rk_parser_is_text(const struct rk_jinja_token *token, const char *text)
{
    return token->bytes == (int64_t)strlen(text) && memcmp(token->text, text, (size_t)token->bytes) == 0;
}

bool rk_parser_is_name(const struct rk_parser *parser, const char *name)
{
    const struct rk_jinja_token *token = rk_parser_peek(parser);

    return token->type == RK_LEX_NAME && rk_parser_is_text(token, name);
}

bool rk_parser_is_op(const struct rk_parser *parser, int32_t op)
{
    const struct rk_jinja_token *token = rk_parser_peek(parser);

    return token->type == RK_LEX_OP && token->op == op;
}

bool rk_parser_skip_name(struct rk_parser *parser, const char *name)
{
    bool is_there = rk_parser_is_name(parser, name);

    parser->at += is_there;
    return is_there;
}

bool rk_parser_skip_op(struct rk_parser *parser, int32_t op)
{
    bool is_there = rk_parser_is_op(parser, op);

    parser->at += is_there;
    return is_there;
}

struct rk_status *rk_parser_unexpected(const struct rk_parser *parser, const char *expected)
{
    static const char *const names[] = {"text",     "'{{'",        "'}}'",     "'{%'",
                                        "'%}'",     "a name",      "a string", "an integer",
                                        "a number", "an operator", "the end"};
    const struct rk_jinja_token *token = rk_parser_peek(parser);
    const char *source = parser->jinja->source;

    if (token->type == RK_LEX_NAME)
        return RK_TEMPLATE_ERROR("%s:%d: expected %s, got '%.*s'", source, token->line, expected,
                                 (int)RK_MIN(token->bytes, 64), token->text);
    if (token->type == RK_LEX_OP)
        return RK_TEMPLATE_ERROR("%s:%d: expected %s, got '%c%c'", source, token->line, expected,
                                 token->op & 0xff, token->op > 0xff ? token->op >> 8 : ' ');
    return RK_TEMPLATE_ERROR("%s:%d: expected %s, got %s", source, token->line, expected, names[token->type]);
}

struct rk_status *rk_parser_unsupported(const struct rk_parser *parser, const char *what, const char *name)
{
    return RK_FAIL(RK_UNIMPLEMENTED, "%s:%d: %s '%s' is not supported", parser->jinja->source,
                   rk_parser_peek(parser)->line, what, name);
}

struct rk_status *rk_parser_expect_op(struct rk_parser *parser, int32_t op)
{
    char expected[4] = {'\'', (char)op, '\'', '\0'};

    return rk_parser_skip_op(parser, op) ? NULL : rk_parser_unexpected(parser, expected);
}

struct rk_status *rk_parser_text(struct rk_parser *parser, rk_value_t *out, const char *data, int64_t bytes)
{
    struct rk_text *text = rk_arena_alloc(parser->jinja->arena, sizeof(*text));

    if (!text)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%s: out of memory", parser->jinja->source);
    *text = (struct rk_text){.data = data, .bytes = bytes, .chars = -1};
    (void)rk_text_chars(text); /* counted now, because renderings share the text */
    *out = (rk_value_t){.kind = RK_VALUE_STRING, .string = text};
    return NULL;
}

/* --- nodes --- */

struct rk_status *rk_parser_node(struct rk_parser *parser, struct rk_node **out, rk_node_kind_t kind)
{
    struct rk_node *node = rk_arena_alloc(parser->jinja->arena, sizeof(*node));

    *out = node;
    if (!node || ++parser->num_nodes > RK_JINJA_NODES_MAX)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%s: the template has more than %d parts",
                       parser->jinja->source, RK_JINJA_NODES_MAX);
    node->kind = kind;
    node->line = rk_parser_peek(parser)->line;
    return NULL;
}

struct rk_status *rk_parser_set_items(struct rk_parser *parser, struct rk_node *node, rk_nodes_t *items)
{
    node->num_items = (int32_t)items->count;
    node->items = rk_arena_calloc(parser->jinja->arena, (size_t)items->count + 1, sizeof(*node->items));
    if (node->items && items->count > 0)
        memcpy(node->items, items->items, (size_t)items->count * sizeof(*node->items));
    rk_array_fini(items);
    return node->items ? NULL : RK_FAIL(RK_RESOURCE_EXHAUSTED, "%s: out of memory", parser->jinja->source);
}

struct rk_status *rk_parser_enter(struct rk_parser *parser)
{
    if (++parser->nesting > RK_JINJA_NESTING_MAX)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%s:%d: nested deeper than %d", parser->jinja->source,
                       rk_parser_peek(parser)->line, RK_JINJA_NESTING_MAX);
    return NULL;
}

struct rk_status *rk_parser_take_name(struct rk_parser *parser, struct rk_node *node)
{
    const struct rk_jinja_token *token = rk_parser_peek(parser);
    struct rk_text *text;
    intptr_t id;
    char *name;

    if (token->type != RK_LEX_NAME)
        return rk_parser_unexpected(parser, "a name");
    name = rk_arena_strndup(parser->jinja->arena, token->text, (size_t)token->bytes);
    text = rk_arena_alloc(parser->jinja->arena, sizeof(*text));
    if (!name || !text)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%s: out of memory", parser->jinja->source);
    *text = (struct rk_text){.data = name, .bytes = token->bytes, .chars = token->bytes};
    node->value = (rk_value_t){.kind = RK_VALUE_STRING, .string = text};
    id = (intptr_t)rk_map_find(parser->jinja->names, name);
    if (id == 0) {
        id = rk_map_count(parser->jinja->names) + 1;
        (void)rk_map_put(parser->jinja->names, name, (void *)id);
    }
    node->id = (int32_t)(id - 1);
    parser->at++;
    return NULL;
}
