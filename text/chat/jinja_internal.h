/* Jinja for chat templates: values with Python's semantics, the syntax tree, and the state of a rendering.
 *
 * The first error of a parse or a rendering is kept in its state (`error`), with its line. After it the
 * parser sees the end of the text, and functions of a rendering return undefined or empty values, so that
 * only loops look at it; rk_jinja_parse and the function that starts a rendering return it. Values live in
 * the arena of the rendering, and lists and dicts do not change once a template can see them, so they are
 * shared, not copied. */
#ifndef RK_JINJA_INTERNAL_H
#define RK_JINJA_INTERNAL_H

#include "base/rk_arena.h"
#include "base/rk_array.h"
#include "base/rk_json.h"
#include "base/rk_map.h"
#include "base/rk_status.h"
#include "base/rk_str.h"
#include "text/rk_chat.h"

/* --- limits, far above any published template; a malicious template fails with an error --- */
#define RK_JINJA_TEMPLATE_BYTES_MAX (1 << 20)
#define RK_JINJA_NODES_MAX          200000
#define RK_JINJA_NESTING_MAX        64          /* of expressions and statements in the text */
#define RK_JINJA_DEPTH_MAX          200         /* of evaluation: nesting and macros that call macros */
#define RK_JINJA_STEPS_MAX          4000000     /* nodes evaluated, items visited, blocks of bytes copied */
#define RK_JINJA_OUTPUT_BYTES_MAX   (16 << 20)  /* of every text */
#define RK_JINJA_MEMORY_BYTES_MAX   (128 << 20) /* memory of the values of one rendering */
#define RK_JINJA_RANGE_MAX          100000      /* Jinja's sandbox has the same */

/* --- values --- */
struct rk_render;
struct rk_node;
struct rk_scope;

typedef enum rk_value_kind {
    RK_VALUE_UNSET, /* an argument that was not given */
    RK_VALUE_UNDEFINED,
    RK_VALUE_NONE,
    RK_VALUE_BOOL,
    RK_VALUE_INT,
    RK_VALUE_REAL,
    RK_VALUE_STRING,
    RK_VALUE_LIST,
    RK_VALUE_TUPLE,
    RK_VALUE_VIEW, /* keys, values or items of a dict */
    RK_VALUE_RANGE,
    RK_VALUE_ITERATOR, /* of filters like map; its items can be read once */
    RK_VALUE_DICT,
    RK_VALUE_NAMESPACE,
    RK_VALUE_LOOP, /* the variable `loop` */
    RK_VALUE_MACRO,
    RK_VALUE_METHOD,
    RK_VALUE_FUNCTION,
    RK_VALUE_KIND_COUNT
} rk_value_kind_t;

typedef struct rk_value {
    rk_value_kind_t kind;
    union {
        bool boolean;
        int64_t integer;
        double real;
        const char *missing;                /* UNDEFINED: name of the missing member, for messages */
        struct rk_text *string;             /* STRING */
        struct rk_list *list;               /* LIST, TUPLE, VIEW, RANGE, ITERATOR */
        struct rk_dict *dict;               /* DICT, NAMESPACE */
        struct rk_for_loop *loop;           /* LOOP */
        struct rk_macro *macro;             /* MACRO */
        struct rk_bound_method *method;     /* METHOD */
        const struct rk_callable *function; /* FUNCTION */
    };
} rk_value_t;

/* UTF-8, valid; not terminated. Counted in code points. */
struct rk_text {
    const char *data;
    int64_t bytes;
    int64_t chars;  /* code points; -1 until rk_text_chars counts them */
    bool is_markup; /* made by |safe: Jinja's Markup */
};

struct rk_list {
    rk_value_t *items;
    int64_t count, capacity;
    int64_t num_read; /* ITERATOR: items that were read */
};

struct rk_dict {
    rk_value_t *keys, *values; /* in order of insertion */
    int64_t count, capacity;
};

/* Arguments of a call as they were written. */
struct rk_actuals {
    struct rk_list *values;
    struct rk_dict *named;
};

#define RK_CALLABLE_MAX_PARAMS 4

/* Arguments of a row of a table of functions, filters, tests or methods. */
struct rk_row_call {
    rk_value_t self;                         /* the value that is filtered, tested, or has the method */
    rk_value_t args[RK_CALLABLE_MAX_PARAMS]; /* in the order of `params`; UNSET where not given */
    const struct rk_actuals *actuals;        /* for rows with params "*" */
    int variant;                             /* the row's */
};

typedef rk_value_t (*rk_run_fn_t)(struct rk_render *r, const struct rk_row_call *call);

struct rk_callable {
    const char *name;
    rk_run_fn_t run;
    const char *params; /* names separated by blanks; "*": the row reads the actuals itself */
    int num_required;
    int variant; /* for the function, which several rows may share */
};

struct rk_bound_method {
    rk_value_t self;
    const struct rk_callable *row;
};

struct rk_macro {
    const struct rk_node *node;
    struct rk_scope *scope; /* scope in which it was defined */
};

static inline rk_value_t rk_value_none(void)
{
    return (rk_value_t){.kind = RK_VALUE_NONE};
}

static inline rk_value_t rk_value_bool(bool value)
{
    return (rk_value_t){.kind = RK_VALUE_BOOL, .boolean = value};
}

static inline rk_value_t rk_value_int(int64_t value)
{
    return (rk_value_t){.kind = RK_VALUE_INT, .integer = value};
}

static inline rk_value_t rk_value_real(double value)
{
    return (rk_value_t){.kind = RK_VALUE_REAL, .real = value};
}

static inline rk_value_t rk_value_undefined(const char *missing)
{
    return (rk_value_t){.kind = RK_VALUE_UNDEFINED, .missing = missing};
}

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
    int32_t op;       /* OP: '+', RK_OP2('=', '=') */
    const char *text; /* DATA, NAME, STRING (without escapes) */
    int64_t bytes;
    int64_t integer;
    double real;
};

typedef RK_ARRAY(struct rk_jinja_token) rk_jinja_tokens_t;

struct rk_jinja;

/* The template's text as tokens; the last is END. Text of tokens lives in the template's arena. */
struct rk_status *rk_jinja_lex(struct rk_jinja *jinja, rk_jinja_tokens_t *tokens) RK_NODISCARD;

/* --- syntax tree --- */
typedef enum rk_node_kind {
    /* expressions */
    RK_NODE_CONST,   /* value */
    RK_NODE_NAME,    /* id, value */
    RK_NODE_TUPLE,   /* items */
    RK_NODE_LIST,    /* items */
    RK_NODE_DICT,    /* items: key, value, key, value ... */
    RK_NODE_ATTR,    /* a.value */
    RK_NODE_ITEM,    /* a[b] */
    RK_NODE_SLICE,   /* a[items]: start, stop, step */
    RK_NODE_CALL,    /* a(items) */
    RK_NODE_FILTER,  /* a | value(items); a NULL: of a block's text */
    RK_NODE_TEST,    /* a is value(items) */
    RK_NODE_NOT,     /* a */
    RK_NODE_NEG,     /* a */
    RK_NODE_BINARY,  /* a op b */
    RK_NODE_COMPARE, /* a op b */
    RK_NODE_AND,     /* a, b */
    RK_NODE_OR,      /* a, b */
    RK_NODE_COND,    /* b if a else c; c NULL */
    /* arguments that are not just a value */
    RK_NODE_NAMED, /* value = a */
    RK_NODE_STAR,  /* *a */
    RK_NODE_STAR2, /* **a */
    /* target of an assignment in addition to NAME and TUPLE */
    RK_NODE_MEMBER, /* id.value */
    /* statements */
    RK_NODE_DATA,         /* value */
    RK_NODE_PRINT,        /* a */
    RK_NODE_BLOCK,        /* items */
    RK_NODE_IF,           /* items: test, body, test, body ...; a: else or NULL */
    RK_NODE_FOR,          /* for a in b if c: items; else: the second of the items, or none */
    RK_NODE_SET,          /* a = b */
    RK_NODE_SET_BLOCK,    /* a = b, filtered by c or NULL */
    RK_NODE_MACRO,        /* id, items: NAMEs with default a or NULL; b: body; op: uses caller */
    RK_NODE_CALL_BLOCK,   /* a: CALL, b: MACRO */
    RK_NODE_FILTER_BLOCK, /* a: body, b: FILTER */
    RK_NODE_GENERATION,   /* a: body */
    RK_NODE_BREAK,
    RK_NODE_CONTINUE,
    RK_NODE_KIND_COUNT
} rk_node_kind_t;

struct rk_node {
    rk_node_kind_t kind;
    int32_t line;
    int32_t op; /* BINARY, COMPARE: the operator; "in" is 'i', "not in" is 'n' */
    int32_t id; /* names: index into the template's table */
    const struct rk_node *a, *b, *c;
    const struct rk_node *items, *next; /* a list, and the next one of the list that the node is in */
    const struct rk_callable *row;      /* FILTER, TEST: NULL if there is none of the name `value` */
    rk_value_t value;
};

/* A compiled template. Immutable; several renderings may share it. */
struct rk_jinja {
    char *source; /* named in messages */
    char *text;   /* as it was read */
    size_t text_bytes;
    struct rk_arena *arena;
    struct rk_map *names; /* identifier -> id + 1 */
    int32_t id_loop, id_caller;
    const struct rk_node *body;
};

int32_t rk_jinja_intern(struct rk_jinja *jinja, const char *name);

/* --- parse_expr.c, parse.c --- */
struct rk_parser {
    struct rk_jinja *jinja;
    rk_jinja_tokens_t tokens;
    int64_t at;
    int32_t nesting, loop_nesting;
    int64_t num_nodes;
    bool is_in_macro, uses_caller; /* of the macro that is being parsed */
    struct rk_node spare;          /* where new nodes go after an error */
    struct rk_status *error;
};

struct rk_status *rk_jinja_parse(struct rk_parser *p) RK_NODISCARD;
const struct rk_jinja_token *rk_parser_peek(const struct rk_parser *p);
bool rk_parser_is_name(const struct rk_parser *p, const char *name);
bool rk_parser_is_op(const struct rk_parser *p, int32_t op);
bool rk_parser_skip_name(struct rk_parser *p, const char *name);
bool rk_parser_skip_op(struct rk_parser *p, int32_t op);
void rk_parser_expect_op(struct rk_parser *p, int32_t op);
void rk_parser_next(struct rk_parser *p); /* consumes a token */
/* Keeps the status as the error, with the line of the current token, unless there is an earlier one. */
void rk_parser_fail(struct rk_parser *p, struct rk_status *st);
void rk_parser_unexpected(struct rk_parser *p, const char *expected);
void rk_parser_unsupported(struct rk_parser *p, const char *what, const char *name);
struct rk_node *rk_parser_node(struct rk_parser *p, rk_node_kind_t kind);
/* One level deeper; p->nesting-- leaves it. */
void rk_parser_enter(struct rk_parser *p);
/* Consumes a NAME; the node gets its id and text. */
void rk_parser_take_name(struct rk_parser *p, struct rk_node *node);
rk_value_t rk_parser_text(struct rk_parser *p, const char *data, int64_t bytes); /* borrows the data */
/* An expression; with_cond: it may be conditional. */
struct rk_node *rk_parse_expr(struct rk_parser *p, bool with_cond);
/* A tuple without parentheses, or one expression. `stop`: a name that ends it, or NULL. */
struct rk_node *rk_parse_tuple(struct rk_parser *p, bool with_cond, const char *stop);
/* NAME, NAME.NAME, or a tuple of such targets. */
struct rk_node *rk_parse_target(struct rk_parser *p, const char *stop);
/* The filters that follow: `node` may be NULL (a block's text); with is_inline the first has no "|". */
struct rk_node *rk_parse_filters(struct rk_parser *p, struct rk_node *node, bool is_inline);

/* --- rendering --- */
struct rk_scope {
    struct rk_scope *parent;
    struct rk_binding {
        int32_t id;
        rk_value_t value;
    } * bindings;
    int32_t count, capacity;
};

typedef enum rk_flow_signal { RK_SIGNAL_NONE, RK_SIGNAL_BREAK, RK_SIGNAL_CONTINUE } rk_flow_signal_t;

/* A loop's test is evaluated only as far as the loop has run or looked ahead. */
struct rk_for_loop {
    const struct rk_node *node; /* FOR */
    struct rk_scope *scope;     /* enclosing scope */
    const struct rk_list *source;
    int64_t num_tested;    /* items of the source that were tested */
    struct rk_list *items; /* those that passed */
    int64_t index0;
};

struct rk_render {
    const struct rk_jinja *jinja;
    struct rk_arena *arena, *reserve; /* reserve: what is still allocated after the limit was reached */
    struct rk_status *error;
    struct rk_str *out;
    struct rk_scope *scope;
    int64_t steps;
    int32_t depth, line;
    rk_flow_signal_t signal;
    int64_t now_s;                     /* strftime_now */
    const struct rk_str *whole;        /* the output itself; `out` is a different string inside a capture */
    struct rk_chat_spans *generations; /* or NULL */
};

/* Keeps the first error, with the line; returns an undefined value. */
rk_value_t rk_raise(struct rk_render *r, struct rk_status *st);
/* RK_RAISE: an error that Python raises too, such as a TypeError. RK_REFUSE: a feature that is not supported.
 */
#define RK_RAISE(r, ...)  rk_raise((r), RK_FAIL(RK_INVALID_ARGUMENT, __VA_ARGS__))
#define RK_REFUSE(r, ...) rk_raise((r), RK_FAIL(RK_UNIMPLEMENTED, __VA_ARGS__))
rk_value_t rk_raise_undefined(struct rk_render *r, rk_value_t value); /* about an UNDEFINED */
/* Counts work; false when there is an error. */
bool rk_render_step(struct rk_render *r, int64_t steps);
/* One level deeper, false when there is an error; r->depth-- leaves it in both cases. */
bool rk_render_enter(struct rk_render *r);
void *rk_render_alloc(struct rk_render *r, size_t bytes); /* zeroed; never NULL */

/* --- render.c --- */
void rk_render_block(struct rk_render *r, const struct rk_node *node);
/* Runs the block in a new scope and returns its output. */
rk_value_t rk_render_capture(struct rk_render *r, const struct rk_node *node);
void rk_scope_push(struct rk_render *r, struct rk_scope *parent);
void rk_scope_put(struct rk_render *r, int32_t id, rk_value_t value);
/* A member of the variable `loop`; UNSET if there is none of this name. */
rk_value_t rk_for_loop_attr(struct rk_render *r, struct rk_for_loop *loop, const struct rk_text *name);

/* --- eval.c --- */
rk_value_t rk_eval(struct rk_render *r, const struct rk_node *node);
bool rk_eval_truth(struct rk_render *r, const struct rk_node *node);
void rk_eval_actuals(struct rk_render *r, const struct rk_node *args, struct rk_actuals *out);
/* `input` | the filter of `node` and those before it. */
rk_value_t rk_eval_filters(struct rk_render *r, const struct rk_node *node, rk_value_t input);
rk_value_t rk_call_value(struct rk_render *r, rk_value_t callee, const struct rk_actuals *actuals);
/* Puts the actuals into the order of the row's parameters and runs it. */
rk_value_t rk_call_row(struct rk_render *r, const struct rk_callable *row, rk_value_t self,
                       const struct rk_actuals *actuals);

/* --- operators.c --- */
rk_value_t rk_binary(struct rk_render *r, int32_t op, rk_value_t a, rk_value_t b);
rk_value_t rk_negate(struct rk_render *r, rk_value_t a);
bool rk_compare(struct rk_render *r, int32_t op, rk_value_t a, rk_value_t b); /* the op of a COMPARE */
bool rk_value_equal(struct rk_render *r, rk_value_t a, rk_value_t b);
bool rk_value_less(struct rk_render *r, rk_value_t a, rk_value_t b);
rk_value_t rk_get_attr(struct rk_render *r, rk_value_t object, rk_value_t name);
rk_value_t rk_get_item(struct rk_render *r, rk_value_t object, rk_value_t key);
rk_value_t rk_get_slice(struct rk_render *r, rk_value_t object, const rk_value_t *bounds);

/* --- value.c --- */
const char *rk_value_type_name(rk_value_t value); /* Python's: "str", "NoneType" */
rk_value_t rk_value_new_text(struct rk_render *r, const char *data, int64_t bytes); /* borrows the data */
rk_value_t rk_value_new_string(struct rk_render *r, const char *data, size_t bytes);
rk_value_t rk_value_take_string(struct rk_render *r, struct rk_str *text); /* empties it */
rk_value_t rk_value_new_list(struct rk_render *r, rk_value_kind_t kind);
void rk_list_append(struct rk_render *r, struct rk_list *list, rk_value_t item);
rk_value_t rk_value_new_dict(struct rk_render *r, rk_value_kind_t kind);
bool rk_value_is_hashable(rk_value_t value);
int64_t rk_dict_find(struct rk_render *r, const struct rk_dict *dict, rk_value_t key); /* -1: absent */
const rk_value_t *rk_dict_find_text(const struct rk_dict *dict, const char *key, size_t bytes);
void rk_dict_put(struct rk_render *r, struct rk_dict *dict, rk_value_t key, rk_value_t value);
rk_value_t rk_dict_view(struct rk_render *r, const struct rk_dict *dict, char part); /* 'k', 'v', 'i' */
rk_value_t rk_value_from_json(struct rk_render *r, const struct rk_json *json);      /* borrows strings */
bool rk_value_truth(rk_value_t value);
int64_t rk_value_length(struct rk_render *r, rk_value_t value); /* len() */
bool rk_value_has_length(rk_value_t value);
bool rk_value_is_iterable(rk_value_t value);
/* list(): all items, those that are left of an iterator. */
struct rk_list *rk_value_items(struct rk_render *r, rk_value_t value);
bool rk_value_is_number(rk_value_t value);            /* bool, int, float */
bool rk_value_as_int(rk_value_t value, int64_t *out); /* an int or a bool */
double rk_value_as_real(rk_value_t value);            /* of a number */

/* --- format.c: str(), repr(), json.dumps() --- */
void rk_value_format(struct rk_render *r, rk_value_t value, struct rk_str *out);
rk_value_t rk_value_to_string(struct rk_render *r, rk_value_t value);
void rk_text_append(struct rk_render *r, struct rk_str *out, const char *data, int64_t bytes); /* bounded */
struct rk_json_style {
    bool ensure_ascii, sort_keys;
    const struct rk_text *indent; /* NULL: one line */
    struct rk_text item_sep, key_sep;
};
void rk_value_to_json(struct rk_render *r, rk_value_t value, const struct rk_json_style *style,
                      struct rk_str *out);

/* --- texts.c --- */
int64_t rk_text_chars(struct rk_text *text);
int64_t rk_text_offset(struct rk_text *text, int64_t i); /* byte offset of a code point, 0 <= i <= chars */
bool rk_code_point_is_space(int32_t code);               /* str.isspace */
bool rk_code_point_is_printable(int32_t code);           /* str.isprintable */
enum rk_strip_sides { RK_STRIP_LEFT = 1, RK_STRIP_RIGHT = 2, RK_STRIP_BOTH = 3 };
/* str.strip and its sides; chars NULL: white space. */
struct rk_text rk_text_strip(const struct rk_text *text, const struct rk_text *chars, int sides);
typedef enum rk_case {
    RK_CASE_UPPER,
    RK_CASE_LOWER,
    RK_CASE_CAPITALIZE,
    RK_CASE_TITLE,
    RK_CASE_WORDS
} rk_case_t;
/* Appends the text in upper or lower case, as str.capitalize, str.title, or Jinja's title (WORDS). */
void rk_text_case(const struct rk_text *text, rk_case_t to, struct rk_str *out);
void rk_text_escape(const struct rk_text *text, struct rk_str *out); /* &, <, >, quotes for HTML */
/* Offset of `what` at or after `from`; -1 when absent. */
int64_t rk_text_find(const struct rk_text *text, const struct rk_text *what, int64_t from);
rk_value_t rk_text_replace(struct rk_render *r, const struct rk_text *text, const struct rk_text *old,
                           const struct rk_text *new_text, int64_t count);
rk_value_t rk_text_lines(struct rk_render *r, const struct rk_text *text); /* str.splitlines() */

/* --- the tables; NULL if there is no such row --- */
const struct rk_callable *rk_row_find(const struct rk_callable *rows, const struct rk_text *name);
const struct rk_callable *rk_jinja_filter_find(const struct rk_text *name);
const struct rk_callable *rk_jinja_test_find(const struct rk_text *name);
const struct rk_callable *rk_jinja_function_find(const struct rk_text *name);
/* The bound method; UNSET if the object has none of the name. */
rk_value_t rk_method_of(struct rk_render *r, rk_value_t object, const struct rk_text *name);
/* The error for a filter or test without a row. */
rk_value_t rk_raise_unknown(struct rk_render *r, const struct rk_text *name, bool is_filter);
/* Position of the name among the words, which are separated by blanks; -1: it is none of them. */
int rk_word_find(const char *words, const char *name, int64_t bytes);

/* Arguments of rows: a value of the kind, or the default if it was not given. `name` is for messages. */
int64_t rk_arg_int(struct rk_render *r, rk_value_t arg, const char *name, int64_t fallback);
bool rk_arg_bool(rk_value_t arg, bool fallback);
/* NULL when it was not given or is None, and after an error. */
struct rk_text *rk_arg_text(struct rk_render *r, rk_value_t arg, const char *name);
struct rk_text *rk_arg_need_text(struct rk_render *r, rk_value_t arg, const char *name); /* never NULL */

#endif
