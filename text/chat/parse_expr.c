/* Parses the expressions of a template, with Jinja's precedence: conditional, or, and, not, comparisons and
 * in, + -, ~, * / // %, unary, then filters and tests, attributes, items, slices and calls. */
#include "text/chat/jinja_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

/* --- tokens --- */

const struct rk_jinja_token *rk_parser_peek(const struct rk_parser *p)
{
    RK_ASSERT(p->at < p->tokens.count);
    return &p->tokens.items[p->at];
}

static bool is_name(const struct rk_jinja_token *token, const char *name)
{
    return token->type == RK_LEX_NAME && token->bytes == (int64_t)strlen(name) &&
           memcmp(token->text, name, (size_t)token->bytes) == 0;
}

bool rk_parser_is_name(const struct rk_parser *p, const char *name)
{
    return is_name(rk_parser_peek(p), name);
}

bool rk_parser_is_op(const struct rk_parser *p, int32_t op)
{
    return rk_parser_peek(p)->type == RK_LEX_OP && rk_parser_peek(p)->op == op;
}

bool rk_parser_skip_name(struct rk_parser *p, const char *name)
{
    bool is_there = rk_parser_is_name(p, name);

    p->at += is_there;
    return is_there;
}

bool rk_parser_skip_op(struct rk_parser *p, int32_t op)
{
    bool is_there = rk_parser_is_op(p, op);

    p->at += is_there;
    return is_there;
}

void rk_parser_next(struct rk_parser *p)
{
    p->at += p->error == NULL;
}

void rk_parser_fail(struct rk_parser *p, struct rk_status *st)
{
    if (p->error)
        rk_status_free(st);
    else
        p->error = RK_WRAP(st, "%s:%d", p->jinja->source, rk_parser_peek(p)->line);
    p->at = p->tokens.count - 1;
}

void rk_parser_unexpected(struct rk_parser *p, const char *expected)
{
    static const char *const names[] = {"text",     "'{{'",        "'}}'",     "'{%'",
                                        "'%}'",     "a name",      "a string", "an integer",
                                        "a number", "an operator", "the end"};
    const struct rk_jinja_token *token = rk_parser_peek(p);
    char op[3] = {(char)(token->op & 0xff), (char)(token->op >> 8), '\0'};

    if (token->type == RK_LEX_NAME)
        rk_parser_fail(p, RK_FAIL(RK_INVALID_ARGUMENT, "expected %s, got '%.*s'", expected,
                                  (int)RK_MIN(token->bytes, 64), token->text));
    else if (token->type == RK_LEX_OP)
        rk_parser_fail(p, RK_FAIL(RK_INVALID_ARGUMENT, "expected %s, got '%s'", expected, op));
    else
        rk_parser_fail(p, RK_FAIL(RK_INVALID_ARGUMENT, "expected %s, got %s", expected, names[token->type]));
}

void rk_parser_unsupported(struct rk_parser *p, const char *what, const char *name)
{
    rk_parser_fail(p, RK_FAIL(RK_UNIMPLEMENTED, "%s '%s' is not supported", what, name));
}

void rk_parser_expect_op(struct rk_parser *p, int32_t op)
{
    char expected[4] = {'\'', (char)op, '\'', '\0'};

    if (!rk_parser_skip_op(p, op))
        rk_parser_unexpected(p, expected);
}

/* --- nodes --- */

static void *alloc(struct rk_parser *p, size_t bytes)
{
    void *memory = rk_arena_alloc(p->jinja->arena, bytes);

    if (!memory)
        rk_parser_fail(p, RK_FAIL(RK_RESOURCE_EXHAUSTED, "out of memory"));
    return memory;
}

struct rk_node *rk_parser_node(struct rk_parser *p, rk_node_kind_t kind)
{
    struct rk_node *node = p->error ? NULL : alloc(p, sizeof(*node));

    if (node && ++p->num_nodes > RK_JINJA_NODES_MAX)
        rk_parser_fail(
            p, RK_FAIL(RK_RESOURCE_EXHAUSTED, "the template has more than %d parts", RK_JINJA_NODES_MAX));
    if (!node || p->error) {
        node = &p->spare;
        *node = (struct rk_node){.kind = RK_NODE_CONST};
    }
    node->kind = kind;
    node->line = rk_parser_peek(p)->line;
    return node;
}

void rk_parser_enter(struct rk_parser *p)
{
    if (++p->nesting > RK_JINJA_NESTING_MAX)
        rk_parser_fail(p, RK_FAIL(RK_RESOURCE_EXHAUSTED, "nested deeper than %d", RK_JINJA_NESTING_MAX));
}

rk_value_t rk_parser_text(struct rk_parser *p, const char *data, int64_t bytes)
{
    struct rk_text *text = alloc(p, sizeof(*text));

    if (!text)
        return rk_value_none();
    *text = (struct rk_text){.data = data, .bytes = bytes, .chars = -1};
    (void)rk_text_chars(text); /* counted now, because renderings share the text */
    return (rk_value_t){.kind = RK_VALUE_STRING, .string = text};
}

void rk_parser_take_name(struct rk_parser *p, struct rk_node *node)
{
    const struct rk_jinja_token *token = rk_parser_peek(p);
    char *name = token->type == RK_LEX_NAME ? alloc(p, (size_t)token->bytes + 1) : NULL;

    if (!name) {
        rk_parser_unexpected(p, "a name");
        return;
    }
    memcpy(name, token->text, (size_t)token->bytes);
    node->value = rk_parser_text(p, name, token->bytes);
    node->id = rk_jinja_intern(p->jinja, name);
    rk_parser_next(p);
}

/* --- lists of expressions --- */

/* Whether a list that `close` ends has another item, behind a comma unless it is the first. */
static bool has_more(struct rk_parser *p, int32_t close, bool is_first)
{
    if (p->error || rk_parser_skip_op(p, close))
        return false;
    if (!is_first)
        rk_parser_expect_op(p, ',');
    return !p->error && (is_first || !rk_parser_skip_op(p, close));
}

/* Parses expressions up to and including the closing operator. */
static struct rk_node *parse_items(struct rk_parser *p, rk_node_kind_t kind, int32_t close)
{
    struct rk_node *node = rk_parser_node(p, kind), *item;
    const struct rk_node **tail = &node->items;

    while (has_more(p, close, !node->items)) {
        *tail = item = rk_parse_expr(p, true);
        tail = &item->next;
        if (kind != RK_NODE_DICT)
            continue;
        rk_parser_expect_op(p, ':');
        *tail = item = rk_parse_expr(p, true);
        tail = &item->next;
    }
    return node;
}

typedef struct rk_node *(*item_fn_t)(struct rk_parser *p, bool with_cond);

/* item, item ... : one item, or a tuple when there is a comma. */
static struct rk_node *parse_list_of(struct rk_parser *p, item_fn_t parse, bool with_cond, const char *stop)
{
    struct rk_node *tuple = NULL, *item = NULL;
    const struct rk_node **tail = NULL;

    for (;;) {
        rk_lex_type_t type = rk_parser_peek(p)->type;

        if (type == RK_LEX_PRINT_END || type == RK_LEX_TAG_END || rk_parser_is_op(p, ')') ||
            (stop && rk_parser_is_name(p, stop)))
            break;
        item = parse(p, with_cond);
        if (tuple)
            *tail = item;
        if (!rk_parser_is_op(p, ','))
            break;
        if (!tuple) {
            tuple = rk_parser_node(p, RK_NODE_TUPLE);
            tuple->items = item;
        }
        tail = &item->next;
        rk_parser_next(p);
    }
    if (!item) {
        rk_parser_unexpected(p, "an expression");
        item = rk_parser_node(p, RK_NODE_CONST);
    }
    return tuple ? tuple : item;
}

struct rk_node *rk_parse_tuple(struct rk_parser *p, bool with_cond, const char *stop)
{
    return parse_list_of(p, rk_parse_expr, with_cond, stop);
}

/* --- primary expressions and targets --- */

static bool is_constant_name(const struct rk_parser *p)
{
    const struct rk_jinja_token *token = rk_parser_peek(p);

    return token->type == RK_LEX_NAME &&
           rk_word_find("true false none True False None", token->text, token->bytes) >= 0;
}

static struct rk_node *parse_one_target(struct rk_parser *p, bool with_cond)
{
    struct rk_node *node;

    if (rk_parser_skip_op(p, '(')) {
        rk_parser_enter(p);
        node = parse_list_of(p, parse_one_target, with_cond, NULL);
        p->nesting--;
        rk_parser_expect_op(p, ')');
        return node;
    }
    node = rk_parser_node(p, RK_NODE_NAME);
    if (is_constant_name(p))
        rk_parser_unexpected(p, "a name that can be assigned to");
    rk_parser_take_name(p, node);
    if (rk_parser_skip_op(p, '.')) {
        struct rk_node member = {.kind = RK_NODE_NAME};

        rk_parser_take_name(p, &member);
        node->kind = RK_NODE_MEMBER; /* keeps the id of the namespace */
        node->value = member.value;
        if (!p->error && member.value.string->data[0] == '_')
            rk_parser_unexpected(p, "a name of a namespace without '_' in front");
    }
    return node;
}

struct rk_node *rk_parse_target(struct rk_parser *p, const char *stop)
{
    return parse_list_of(p, parse_one_target, true, stop);
}

static struct rk_node *parse_name(struct rk_parser *p)
{
    const struct rk_jinja_token *token = rk_parser_peek(p);
    struct rk_node *node = rk_parser_node(p, RK_NODE_NAME);

    if (is_constant_name(p)) {
        char first = (char)(token->text[0] | 32);

        node->kind = RK_NODE_CONST;
        node->value = first == 'n' ? rk_value_none() : rk_value_bool(first == 't');
        rk_parser_next(p);
        return node;
    }
    p->uses_caller = p->uses_caller || rk_parser_is_name(p, "caller");
    if (p->is_in_macro && (rk_parser_is_name(p, "varargs") || rk_parser_is_name(p, "kwargs")))
        rk_parser_fail(p, RK_FAIL(RK_UNIMPLEMENTED, "the variable '%.*s' of macros is not supported",
                                  (int)token->bytes, token->text));
    rk_parser_take_name(p, node);
    return node;
}

/* Adjacent strings are concatenated. */
static struct rk_node *parse_string(struct rk_parser *p)
{
    struct rk_node *node = rk_parser_node(p, RK_NODE_CONST);
    int64_t first = p->at, bytes = 0;
    char *joined;

    while (rk_parser_peek(p)->type == RK_LEX_STRING)
        bytes += p->tokens.items[p->at++].bytes;
    joined = alloc(p, (size_t)bytes + 1);
    bytes = 0;
    for (int64_t i = first; i < p->at && joined; i++) {
        memcpy(joined + bytes, p->tokens.items[i].text, (size_t)p->tokens.items[i].bytes);
        bytes += p->tokens.items[i].bytes;
    }
    node->value = rk_parser_text(p, joined, bytes);
    return node;
}

static struct rk_node *parse_number(struct rk_parser *p)
{
    const struct rk_jinja_token *token = rk_parser_peek(p);
    struct rk_node *node = rk_parser_node(p, RK_NODE_CONST);

    node->value = token->type == RK_LEX_INT ? rk_value_int(token->integer) : rk_value_real(token->real);
    rk_parser_next(p);
    return node;
}

/* A name, a constant, a list, a dict, or an expression in parentheses. */
static struct rk_node *parse_primary(struct rk_parser *p)
{
    struct rk_node *node;

    switch (rk_parser_peek(p)->type) {
    case RK_LEX_NAME:
        return parse_name(p);
    case RK_LEX_STRING:
        return parse_string(p);
    case RK_LEX_INT:
    case RK_LEX_REAL:
        return parse_number(p);
    default:
        break;
    }
    if (rk_parser_skip_op(p, '[')) {
        node = parse_items(p, RK_NODE_LIST, ']');
    } else if (rk_parser_skip_op(p, '{')) {
        node = parse_items(p, RK_NODE_DICT, '}');
    } else if (!rk_parser_skip_op(p, '(')) {
        rk_parser_unexpected(p, "an expression");
        node = rk_parser_node(p, RK_NODE_CONST);
    } else if (rk_parser_skip_op(p, ')')) {
        node = rk_parser_node(p, RK_NODE_TUPLE);
    } else {
        node = rk_parse_tuple(p, true, NULL);
        rk_parser_expect_op(p, ')');
    }
    return node;
}

/* --- attributes, items, slices, calls --- */

static void parse_attribute(struct rk_parser *p, struct rk_node *node)
{
    const struct rk_jinja_token *token = rk_parser_peek(p);

    if (token->type == RK_LEX_INT) {
        node->kind = RK_NODE_ITEM;
        node->b = parse_number(p);
    } else if (token->type == RK_LEX_NAME) {
        node->kind = RK_NODE_ATTR;
        node->value = rk_parser_text(p, token->text, token->bytes);
        rk_parser_next(p);
    } else {
        rk_parser_unexpected(p, "a name or a number behind '.'");
    }
}

static void parse_subscript(struct rk_parser *p, struct rk_node *node)
{
    const struct rk_node **tail = &node->items;

    node->kind = RK_NODE_SLICE;
    for (int i = 0; i < 3; i++) {
        bool is_given = !rk_parser_is_op(p, ':') && !rk_parser_is_op(p, ']') && !rk_parser_is_op(p, ',');
        struct rk_node *bound = is_given ? rk_parse_expr(p, true) : rk_parser_node(p, RK_NODE_CONST);

        if (!is_given)
            bound->value = rk_value_none();
        if (i == 0 && !rk_parser_is_op(p, ':')) {
            node->kind = RK_NODE_ITEM;
            node->b = bound;
            if (rk_parser_is_op(p, ','))
                rk_parser_unsupported(p, "subscript", ",");
            else if (!is_given)
                rk_parser_unexpected(p, "an index");
            break;
        }
        *tail = bound;
        tail = &bound->next;
        if (i < 2)
            (void)rk_parser_skip_op(p, ':');
    }
    rk_parser_expect_op(p, ']');
}

static struct rk_node *parse_argument(struct rk_parser *p, const struct rk_node *before)
{
    const struct rk_jinja_token *token = rk_parser_peek(p);
    struct rk_node *node;

    if (before && before->kind == RK_NODE_STAR2)
        rk_parser_unexpected(p, "')' behind the argument with **");
    if (rk_parser_is_op(p, '*') || rk_parser_is_op(p, RK_OP2('*', '*'))) {
        node = rk_parser_node(p, rk_parser_is_op(p, '*') ? RK_NODE_STAR : RK_NODE_STAR2);
        if (before && before->kind == RK_NODE_STAR && node->kind == RK_NODE_STAR)
            rk_parser_unexpected(p, "one argument with *");
        rk_parser_next(p);
        node->a = rk_parse_expr(p, true);
    } else if (token->type == RK_LEX_NAME && token[1].type == RK_LEX_OP && token[1].op == '=') {
        node = rk_parser_node(p, RK_NODE_NAMED);
        node->value = rk_parser_text(p, token->text, token->bytes);
        rk_parser_next(p);
        rk_parser_next(p);
        node->a = rk_parse_expr(p, true);
    } else {
        if (before && (before->kind == RK_NODE_NAMED || before->kind == RK_NODE_STAR))
            rk_parser_unexpected(p, "a named argument, as the one before is named or has a *");
        node = rk_parse_expr(p, true);
    }
    return node;
}

/* Parses from after "(" to after ")". */
static void parse_arguments(struct rk_parser *p, struct rk_node *node)
{
    const struct rk_node *before = NULL, **tail = &node->items;

    while (has_more(p, ')', !before)) {
        struct rk_node *argument = parse_argument(p, before);

        *tail = before = argument;
        tail = &argument->next;
    }
}

static struct rk_node *parse_postfix(struct rk_parser *p, struct rk_node *node)
{
    while (rk_parser_is_op(p, '.') || rk_parser_is_op(p, '[') || rk_parser_is_op(p, '(')) {
        struct rk_node *outer = rk_parser_node(p, RK_NODE_CALL);

        outer->a = node;
        if (rk_parser_skip_op(p, '.'))
            parse_attribute(p, outer);
        else if (rk_parser_skip_op(p, '['))
            parse_subscript(p, outer);
        else if (rk_parser_skip_op(p, '('))
            parse_arguments(p, outer);
        node = outer;
    }
    return node;
}

/* --- filters and tests: an unknown name is an error when it is evaluated --- */

static void take_row(struct rk_parser *p, struct rk_node *node)
{
    const struct rk_jinja_token *token = rk_parser_peek(p);
    struct rk_text name = {.data = token->text, .bytes = token->bytes};

    if (token->type != RK_LEX_NAME) {
        rk_parser_unexpected(p, node->kind == RK_NODE_FILTER ? "the name of a filter" : "the name of a test");
        return;
    }
    node->value = rk_parser_text(p, token->text, token->bytes);
    node->row = node->kind == RK_NODE_FILTER ? rk_jinja_filter_find(&name) : rk_jinja_test_find(&name);
    rk_parser_next(p);
}

struct rk_node *rk_parse_filters(struct rk_parser *p, struct rk_node *node, bool is_inline)
{
    while (is_inline || rk_parser_skip_op(p, '|')) {
        struct rk_node *filter = rk_parser_node(p, RK_NODE_FILTER);

        is_inline = false;
        filter->a = node;
        take_row(p, filter);
        if (rk_parser_skip_op(p, '('))
            parse_arguments(p, filter);
        node = filter;
    }
    return node;
}

static bool begins_test_argument(const struct rk_parser *p)
{
    switch (rk_parser_peek(p)->type) {
    case RK_LEX_NAME:
        return !rk_parser_is_name(p, "else") && !rk_parser_is_name(p, "or") && !rk_parser_is_name(p, "and");
    case RK_LEX_STRING:
    case RK_LEX_INT:
    case RK_LEX_REAL:
        return true;
    default:
        return rk_parser_is_op(p, '[') || rk_parser_is_op(p, '{');
    }
}

/* Parses from after "is". */
static struct rk_node *parse_test(struct rk_parser *p, struct rk_node *node)
{
    bool is_negated = rk_parser_skip_name(p, "not");
    struct rk_node *test = rk_parser_node(p, RK_NODE_TEST), *negation;

    test->a = node;
    take_row(p, test);
    if (rk_parser_skip_op(p, '(')) {
        parse_arguments(p, test);
    } else if (begins_test_argument(p)) {
        if (rk_parser_is_name(p, "is"))
            rk_parser_unexpected(p, "one test: tests cannot be chained");
        test->items = parse_postfix(p, parse_primary(p));
    }
    if (!is_negated)
        return test;
    negation = rk_parser_node(p, RK_NODE_NOT);
    negation->a = test;
    return negation;
}

/* --- operators --- */

static struct rk_node *parse_unary(struct rk_parser *p, bool with_filters)
{
    struct rk_node *node;

    if (rk_parser_is_op(p, '-')) {
        node = rk_parser_node(p, RK_NODE_NEG);
        rk_parser_next(p);
        rk_parser_enter(p);
        node->a = parse_unary(p, false);
        p->nesting--;
    } else {
        node = parse_primary(p);
    }
    node = parse_postfix(p, node);
    while (with_filters) {
        if (rk_parser_is_op(p, '|'))
            node = rk_parse_filters(p, node, false);
        else if (rk_parser_skip_name(p, "is"))
            node = parse_test(p, node);
        else if (rk_parser_is_op(p, '('))
            node = parse_postfix(p, node);
        else
            break;
    }
    return node;
}

/* Left-associative operators, from those that bind loosest. */
static struct rk_node *parse_binary(struct rk_parser *p, int level)
{
    static const int32_t ops[3][5] = {{'+', '-'}, {'~'}, {'*', '/', RK_OP2('/', '/'), '%'}};
    struct rk_node *node = level < 2 ? parse_binary(p, level + 1) : parse_unary(p, true);

    for (;;) {
        const int32_t *op = ops[level];
        struct rk_node *outer;

        while (*op && !rk_parser_is_op(p, *op))
            op++;
        if (!*op) {
            if (rk_parser_is_op(p, RK_OP2('*', '*')))
                rk_parser_unsupported(p, "operator", "**");
            return node;
        }
        outer = rk_parser_node(p, RK_NODE_BINARY);
        rk_parser_next(p);
        outer->op = *op;
        outer->a = node;
        outer->b = level < 2 ? parse_binary(p, level + 1) : parse_unary(p, true);
        node = outer;
    }
}

/* Consumes a comparison operator and returns it; 0 if there is none. */
static int32_t take_comparison(struct rk_parser *p)
{
    static const int32_t ops[] = {RK_OP2('=', '='), RK_OP2('!', '='), '<', RK_OP2('<', '='), '>',
                                  RK_OP2('>', '=')};

    for (size_t i = 0; i < RK_ARRAY_LEN(ops); i++) {
        if (rk_parser_skip_op(p, ops[i]))
            return ops[i];
    }
    if (rk_parser_skip_name(p, "in"))
        return 'i';
    if (!rk_parser_is_name(p, "not") || !is_name(rk_parser_peek(p) + 1, "in"))
        return 0;
    p->at += 2;
    return 'n';
}

static struct rk_node *parse_compare(struct rk_parser *p)
{
    struct rk_node *node = parse_binary(p, 0), *outer;
    int32_t op = take_comparison(p);

    if (op == 0)
        return node;
    outer = rk_parser_node(p, RK_NODE_COMPARE);
    outer->op = op;
    outer->a = node;
    outer->b = parse_binary(p, 0);
    if (take_comparison(p))
        rk_parser_fail(p, RK_FAIL(RK_UNIMPLEMENTED, "chains of comparisons are not supported"));
    return outer;
}

static struct rk_node *parse_not(struct rk_parser *p)
{
    struct rk_node *node;

    if (!rk_parser_skip_name(p, "not"))
        return parse_compare(p);
    node = rk_parser_node(p, RK_NODE_NOT);
    rk_parser_enter(p);
    node->a = parse_not(p);
    p->nesting--;
    return node;
}

static struct rk_node *parse_logic(struct rk_parser *p, bool is_or)
{
    struct rk_node *node = is_or ? parse_logic(p, false) : parse_not(p);

    while (rk_parser_skip_name(p, is_or ? "or" : "and")) {
        struct rk_node *outer = rk_parser_node(p, is_or ? RK_NODE_OR : RK_NODE_AND);

        outer->a = node;
        outer->b = is_or ? parse_logic(p, false) : parse_not(p);
        node = outer;
    }
    return node;
}

struct rk_node *rk_parse_expr(struct rk_parser *p, bool with_cond)
{
    struct rk_node *node;

    rk_parser_enter(p);
    node = parse_logic(p, true);
    while (with_cond && rk_parser_skip_name(p, "if")) {
        struct rk_node *outer = rk_parser_node(p, RK_NODE_COND);

        outer->b = node;
        outer->a = parse_logic(p, true);
        if (rk_parser_skip_name(p, "else"))
            outer->c = rk_parse_expr(p, true);
        node = outer;
    }
    p->nesting--;
    return node;
}
