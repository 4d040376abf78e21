/* Syntax tree of a chat template and the state of one rendering. */
#ifndef RK_RENDER_INTERNAL_H
#define RK_RENDER_INTERNAL_H

#include "base/rk_arena.h"
#include "base/rk_array.h"
#include "base/rk_map.h"
#include "text/chat/value_internal.h"
#include "text/rk_chat.h"

/* --- limits, far above any published template; a malicious template fails with an error --- */
#define RK_JINJA_TEMPLATE_BYTES_MAX (1 << 20)
#define RK_JINJA_NODES_MAX          200000
#define RK_JINJA_NESTING_MAX        64      /* of expressions and statements in the text */
#define RK_JINJA_DEPTH_MAX          200     /* of evaluation: nesting and macros that call macros */
#define RK_JINJA_STEPS_MAX          4000000 /* nodes evaluated, items visited, blocks of bytes copied */
#define RK_JINJA_OUTPUT_BYTES_MAX   (16 << 20)
#define RK_JINJA_MEMORY_BYTES_MAX   (128 << 20) /* memory of the values of one rendering */
#define RK_JINJA_RANGE_MAX          100000      /* Jinja's sandbox has the same */

/* --- lexer.c --- */
typedef enum rk_lex_type {
    RK_LEX_DATA,
    RK_LEX_PRINT_BEGIN,
    RK_LEX_PRINT_END,
    RK_LEX_TAG_BEGIN,
    RK_LEX_TAG_END,
    RK_LEX_NAME,
    RK_LEX_STRING,
    RK_LEX_INT,
    RK_LEX_REAL,
    RK_LEX_OP,
    RK_LEX_END
} rk_lex_type_t;

#define RK_OP2(a, b) ((a) | (b) << 8) /* operators of two characters */

struct rk_jinja_token {
    rk_lex_type_t type;
    int32_t line;
    int32_t op;       /* of OP: '+', RK_OP2('=', '=') */
    const char *text; /* of DATA, NAME, STRING (without escapes) */
    int64_t bytes;
    int64_t integer;
    double real;
};

typedef RK_ARRAY(struct rk_jinja_token) rk_jinja_tokens_t;

struct rk_jinja;

/* The template's text as tokens; the last is END. Text of tokens lives in the template's arena. */
struct rk_status *rk_jinja_lex(struct rk_jinja *jinja, const char *text, size_t bytes,
                               rk_jinja_tokens_t *tokens) RK_NODISCARD;

/* --- syntax tree --- */
typedef enum rk_node_kind {
    /* expressions */
    RK_NODE_CONST,   /* value */
    RK_NODE_NAME,    /* id */
    RK_NODE_TUPLE,   /* items */
    RK_NODE_LIST,    /* items */
    RK_NODE_DICT,    /* items: key, value, key, value ... */
    RK_NODE_ATTR,    /* a.value */
    RK_NODE_ITEM,    /* a[b] */
    RK_NODE_SLICE,   /* a[items[0]:items[1]:items[2]], NULL where left out */
    RK_NODE_CALL,    /* a(args) */
    RK_NODE_FILTER,  /* a | row(args); a NULL: of a block's text */
    RK_NODE_TEST,    /* a is row(args) */
    RK_NODE_NOT,     /* a */
    RK_NODE_NEG,     /* a */
    RK_NODE_POS,     /* a */
    RK_NODE_BINARY,  /* a op b */
    RK_NODE_CONCAT,  /* items */
    RK_NODE_COMPARE, /* a, items: operands, each BINARY with op and b only */
    RK_NODE_AND,     /* a, b */
    RK_NODE_OR,      /* a, b */
    RK_NODE_COND,    /* b if a else c; c NULL */
    /* targets of assignments in addition to NAME and TUPLE */
    RK_NODE_NSREF, /* id.a, a being a NSREF whose value is the name */
    /* statements */
    RK_NODE_DATA,         /* value */
    RK_NODE_PRINT,        /* a */
    RK_NODE_BLOCK,        /* items */
    RK_NODE_IF,           /* items: test, body, test, body ...; a: else or NULL */
    RK_NODE_FOR,          /* for a in b if c: items[0]; else: items[1] or NULL */
    RK_NODE_SET,          /* a = b */
    RK_NODE_SET_BLOCK,    /* a = b, filtered by c or NULL */
    RK_NODE_MACRO,        /* id, items: NAMEs with default a or NULL; b: body; uses */
    RK_NODE_CALL_BLOCK,   /* a: CALL, b: MACRO */
    RK_NODE_FILTER_BLOCK, /* a: body, b: FILTER */
    RK_NODE_WITH,         /* items: target, value ...; a: body */
    RK_NODE_GENERATION,   /* a: body */
    RK_NODE_BREAK,
    RK_NODE_CONTINUE,
    RK_NODE_KIND_COUNT
} rk_node_kind_t;

enum rk_macro_uses {
    RK_MACRO_USES_CALLER = 1u << 0,
    RK_MACRO_USES_VARARGS = 1u << 1,
    RK_MACRO_USES_KWARGS = 1u << 2
};

struct rk_node_args {
    const struct rk_node **values;
    int32_t num_values;
    rk_value_t *names; /* strings */
    const struct rk_node **named;
    int32_t num_named;
    const struct rk_node *rest, *named_rest; /* *rest, **named_rest; NULL: none */
};

struct rk_node {
    rk_node_kind_t kind;
    int32_t line;
    int32_t op; /* BINARY: the operator; "in" is 'i', "not in" is 'n' */
    int32_t id; /* of names: index into the template's table */
    uint32_t uses;
    const struct rk_node *a, *b, *c;
    const struct rk_node **items;
    int32_t num_items;
    struct rk_node_args args;
    const struct rk_callable *row; /* FILTER, TEST: NULL if there is none of the name `value` */
    rk_value_t value;
};

/* A compiled template. Immutable; several renderings may share it. */
struct rk_jinja {
    char *source; /* named in messages */
    char *text;   /* as it was read */
    size_t text_bytes;
    struct rk_arena *arena;
    struct rk_map *names; /* identifier -> id + 1 */
    int32_t id_loop, id_caller, id_varargs, id_kwargs;
    const struct rk_node *body;
};

/* --- parser.c, parser_expr.c --- */
struct rk_parser {
    struct rk_jinja *jinja;
    rk_jinja_tokens_t tokens;
    int64_t at;
    int32_t nesting, loop_nesting;
    int64_t num_nodes;
    uint32_t macro_uses; /* of the macro that is being parsed */
    bool is_soft;        /* in a branch: an unknown filter or test fails only when it is run, as in Jinja */
    struct rk_status *unknown; /* the first error outside of branches; NULL: none */
};

struct rk_status *rk_jinja_parse(struct rk_parser *parser) RK_NODISCARD;
const struct rk_jinja_token *rk_parser_peek(const struct rk_parser *parser);
/* Whether the token has this text. */
bool rk_parser_is_text(const struct rk_jinja_token *token, const char *text);
bool rk_parser_is_name(const struct rk_parser *parser, const char *name);
bool rk_parser_is_op(const struct rk_parser *parser, int32_t op);
bool rk_parser_skip_name(struct rk_parser *parser, const char *name);
bool rk_parser_skip_op(struct rk_parser *parser, int32_t op);
/* INVALID_ARGUMENT "SOURCE:LINE: ..." about the current token. */
struct rk_status *rk_parser_unexpected(const struct rk_parser *parser, const char *expected) RK_NODISCARD;
/* UNIMPLEMENTED "SOURCE:LINE: NAME is not supported". */
struct rk_status *rk_parser_unsupported(const struct rk_parser *parser, const char *what,
                                        const char *name) RK_NODISCARD;
struct rk_status *rk_parser_node(struct rk_parser *parser, struct rk_node **out,
                                 rk_node_kind_t kind) RK_NODISCARD;
typedef RK_ARRAY(const struct rk_node *) rk_nodes_t;
/* Moves the list into the node; the array is emptied. */
struct rk_status *rk_parser_set_items(struct rk_parser *parser, struct rk_node *node,
                                      rk_nodes_t *items) RK_NODISCARD;
struct rk_status *rk_parser_enter(struct rk_parser *parser) RK_NODISCARD; /* one level deeper */
/* Consumes a NAME token and returns its id and text. */
struct rk_status *rk_parser_take_name(struct rk_parser *parser, struct rk_node *node) RK_NODISCARD;
struct rk_status *rk_parser_expect_op(struct rk_parser *parser, int32_t op) RK_NODISCARD;
/* A string of the tree; `data` is borrowed. */
struct rk_status *rk_parser_text(struct rk_parser *parser, rk_value_t *out, const char *data,
                                 int64_t bytes) RK_NODISCARD;
/* A name, a constant, a list, a dict, or an expression in parentheses. */
struct rk_status *rk_parse_primary(struct rk_parser *parser, const struct rk_node **out) RK_NODISCARD;
/* Parses after the expression *out attributes, items, slices and calls, then filters and tests; *out becomes
 * the whole expression. */
struct rk_status *rk_parse_postfix(struct rk_parser *parser, const struct rk_node **out) RK_NODISCARD;
struct rk_status *rk_parse_filters_and_tests(struct rk_parser *parser,
                                             const struct rk_node **out) RK_NODISCARD;
struct rk_status *rk_parse_expr(struct rk_parser *parser, const struct rk_node **out,
                                bool with_cond) RK_NODISCARD;
/* A tuple without parentheses, or one expression. `stop`: a name that ends it, or NULL. */
struct rk_status *rk_parse_tuple(struct rk_parser *parser, const struct rk_node **out, bool with_cond,
                                 const char *stop) RK_NODISCARD;
/* NAME, NAME.NAME, or a tuple of such targets. */
struct rk_status *rk_parse_target(struct rk_parser *parser, const struct rk_node **out,
                                  const char *stop) RK_NODISCARD;
/* The filters that follow: `node` may be NULL (a block's text); with is_inline the first has no "|".
 */
struct rk_status *rk_parse_filters(struct rk_parser *parser, const struct rk_node *node, bool is_inline,
                                   const struct rk_node **out) RK_NODISCARD;

/* --- rendering --- */
struct rk_binding {
    int32_t id;
    rk_value_t value;
};

struct rk_scope {
    struct rk_scope *parent;
    struct rk_binding *bindings;
    int32_t count, capacity;
};

typedef enum rk_flow_signal { RK_SIGNAL_NONE, RK_SIGNAL_BREAK, RK_SIGNAL_CONTINUE } rk_flow_signal_t;

struct rk_for_loop {
    struct rk_iter *iter;
    const struct rk_node *node;        /* FOR: its test */
    struct rk_scope *scope;            /* enclosing scope */
    bool is_drained;                   /* iter iterates over items that have already passed the test */
    rk_value_t before, current, after; /* after: UNSET until it is read ahead */
    bool is_at_end;                    /* read ahead, and there was no further item */
    int64_t index0, length;            /* length -1: unknown */
    rk_value_t changed;
};

struct rk_render {
    const struct rk_jinja *jinja;
    struct rk_arena *arena;
    struct rk_str *out;
    struct rk_scope *scope;
    int64_t steps;
    int32_t depth, line;
    rk_flow_signal_t signal;
    int64_t now_s;                     /* strftime_now */
    const struct rk_str *whole;        /* the output itself; `out` is a different string inside a capture */
    struct rk_chat_spans *generations; /* or NULL */
};

/* --- render.c --- */
struct rk_status *rk_render_alloc(struct rk_render *r, void **out, size_t bytes) RK_NODISCARD;
/* Counts work; RESOURCE_EXHAUSTED beyond the bound. */
struct rk_status *rk_render_step(struct rk_render *r, int64_t steps) RK_NODISCARD;
struct rk_status *rk_render_block(struct rk_render *r, const struct rk_node *node) RK_NODISCARD;
/* Runs the block in a new scope and returns its output. */
struct rk_status *rk_render_capture(struct rk_render *r, const struct rk_node *node,
                                    rk_value_t *out) RK_NODISCARD;
struct rk_status *rk_scope_push(struct rk_render *r, struct rk_scope *parent) RK_NODISCARD;
struct rk_status *rk_scope_put(struct rk_render *r, struct rk_scope *scope, int32_t id,
                               rk_value_t value) RK_NODISCARD;
struct rk_status *rk_render_assign(struct rk_render *r, const struct rk_node *target,
                                   rk_value_t value) RK_NODISCARD;

/* --- loop.c --- */
struct rk_status *rk_for_loop_next(struct rk_render *r, struct rk_for_loop *loop,
                                   bool *has_item) RK_NODISCARD;
/* A member of the variable `loop`; UNSET if there is none of this name. */
struct rk_status *rk_for_loop_attr(struct rk_render *r, struct rk_for_loop *loop, const char *name,
                                   rk_value_t *out) RK_NODISCARD;

/* --- eval.c --- */
struct rk_status *rk_eval(struct rk_render *r, const struct rk_node *node, rk_value_t *out) RK_NODISCARD;
struct rk_status *rk_eval_truth(struct rk_render *r, const struct rk_node *node, bool *out) RK_NODISCARD;
/* The error for a filter or test that is unknown or not supported. */
struct rk_status *rk_unknown_row(const struct rk_node *node) RK_NODISCARD;
/* `input` | the filter of `node` (its a is not read). */
struct rk_status *rk_eval_filter(struct rk_render *r, const struct rk_node *node, rk_value_t input,
                                 rk_value_t *out) RK_NODISCARD;
/* INVALID_ARGUMENT: what Python reports as a TypeError or the like. */
#define RK_TEMPLATE_ERROR(...) RK_FAIL(RK_INVALID_ARGUMENT, __VA_ARGS__)
struct rk_status *rk_undefined_error(rk_value_t value) RK_NODISCARD; /* of an UNDEFINED */

/* --- operators.c --- */
struct rk_status *rk_binary(struct rk_render *r, int32_t op, rk_value_t a, rk_value_t b,
                            rk_value_t *out) RK_NODISCARD;
struct rk_status *rk_negate(struct rk_render *r, rk_value_t a, rk_value_t *out) RK_NODISCARD;

/* --- access.c --- */
struct rk_status *rk_get_attr(struct rk_render *r, rk_value_t object, rk_value_t name,
                              rk_value_t *out) RK_NODISCARD;
struct rk_status *rk_get_item(struct rk_render *r, rk_value_t object, rk_value_t key,
                              rk_value_t *out) RK_NODISCARD;
/* bounds: start, stop, step; UNSET or None where left out. */
struct rk_status *rk_get_slice(struct rk_render *r, rk_value_t object, const rk_value_t *bounds,
                               rk_value_t *out) RK_NODISCARD;

/* --- call.c --- */
struct rk_status *rk_call_value(struct rk_render *r, rk_value_t callee, const struct rk_actuals *actuals,
                                rk_value_t *out) RK_NODISCARD;
/* Puts the actuals into the order of the row's parameters and runs it. */
struct rk_status *rk_call_row(struct rk_render *r, const struct rk_callable *row, rk_value_t self,
                              const struct rk_actuals *actuals, rk_value_t *out) RK_NODISCARD;
struct rk_status *rk_call_macro(struct rk_render *r, const struct rk_macro *macro,
                                const struct rk_actuals *actuals, rk_value_t *out) RK_NODISCARD;

/* --- the tables; NULL if there is no such row --- */
const struct rk_callable *rk_jinja_filter_find(const char *name);
const struct rk_callable *rk_jinja_test_find(const char *name);
const struct rk_callable *rk_jinja_function_find(const char *name);
const struct rk_callable *rk_jinja_method_find(rk_value_kind_t kind, const char *name);
/* Methods of strings; each list ends with a row without a name. */
extern const struct rk_callable rk_jinja_change_methods[], rk_jinja_search_methods[],
    rk_jinja_split_methods[];
/* Names of Jinja or Python that this interpreter does not support: refused when a template is compiled. */
bool rk_jinja_filter_is_known(const char *name);
bool rk_jinja_test_is_known(const char *name);
bool rk_jinja_method_is_known(const char *name);
/* Parts of the filter table by file; they end with a row without name. */
extern const struct rk_callable rk_filters_text[];
extern const struct rk_callable rk_filters_list[];
extern const struct rk_callable rk_filters_lazy[];
extern const struct rk_callable rk_filters_number[];

/* Arguments of rows: a value of the kind, or the default if it was not given. `name` is for messages. */
struct rk_status *rk_arg_int(rk_value_t arg, const char *name, int64_t fallback, int64_t *out) RK_NODISCARD;
struct rk_status *rk_arg_bool(struct rk_render *r, rk_value_t arg, bool fallback, bool *out) RK_NODISCARD;
/* NULL when it was not given or is None. */
struct rk_status *rk_arg_text(rk_value_t arg, const char *name, struct rk_text **out) RK_NODISCARD;
/* rk_arg_text for a required argument. */
struct rk_status *rk_arg_need_text(rk_value_t arg, const char *name, struct rk_text **out) RK_NODISCARD;

#endif
