/* Values of chat templates, with Python's semantics: text counts in code points, True is 1, dicts keep their
 * order, iterators can be read once. Values of a rendering are in its arena and are freed with it. */
#ifndef RK_VALUE_INTERNAL_H
#define RK_VALUE_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rk_json.h"
#include "base/rk_status.h"
#include "base/rk_str.h"

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
    RK_VALUE_DICT,
    RK_VALUE_VIEW, /* of a dict: keys, values, items */
    RK_VALUE_NAMESPACE,
    RK_VALUE_RANGE,
    RK_VALUE_ITERATOR,
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
        struct rk_list *list;               /* LIST, TUPLE */
        struct rk_dict *dict;               /* DICT, NAMESPACE */
        struct rk_view *view;               /* VIEW */
        struct rk_range *range;             /* RANGE */
        struct rk_iter *iter;               /* ITERATOR */
        struct rk_for_loop *loop;           /* LOOP */
        struct rk_macro *macro;             /* MACRO */
        struct rk_bound_method *method;     /* METHOD */
        const struct rk_callable *function; /* FUNCTION */
    };
} rk_value_t;

/* UTF-8, valid; not terminated. */
struct rk_text {
    const char *data;
    int64_t bytes;
    int64_t chars;  /* code points; -1 until rk_text_chars counts them */
    bool is_markup; /* made by |safe or |escape: Jinja's Markup */
};

struct rk_list {
    rk_value_t *items;
    int64_t count, capacity;
};

struct rk_dict {
    rk_value_t *keys, *values; /* in order of insertion */
    int64_t count, capacity;
};

typedef enum rk_view_kind { RK_VIEW_KEYS, RK_VIEW_VALUES, RK_VIEW_ITEMS } rk_view_kind_t;

struct rk_view {
    rk_view_kind_t kind;
    struct rk_dict *dict;
};

struct rk_range {
    int64_t start, step, count;
};

/* A Python iterator: `next` returns its items one by one. */
struct rk_iter {
    struct rk_status *(*next)(struct rk_render *r, struct rk_iter *iter, rk_value_t *out, bool *has_item);
    rk_value_t source; /* of the iterators over one value */
    int64_t at;
    struct rk_iter *inner; /* of the iterators over another one's items (filters_lazy.c) */
    const struct rk_lazy *lazy;
};

/* Arguments of a call as they were written. */
struct rk_actuals {
    const rk_value_t *values;
    int64_t num_values;
    const rk_value_t *names; /* strings */
    const rk_value_t *named;
    int64_t num_named;
};

#define RK_CALLABLE_MAX_PARAMS 6

/* The arguments of a row of a table of functions, filters, tests or methods. */
struct rk_row_call {
    rk_value_t self;                         /* the value that is filtered, tested, or has the method */
    rk_value_t args[RK_CALLABLE_MAX_PARAMS]; /* in the order of `params`; UNSET where not given */
    const struct rk_actuals *actuals;        /* of rows with params "*" */
};

struct rk_callable {
    const char *name;
    struct rk_status *(*run)(struct rk_render *r, rk_value_t *out, const struct rk_row_call *call);
    const char *params; /* names separated by blanks; "*": the row reads the actuals itself */
    int num_required;
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

/* --- value.c --- */
const char *rk_value_type_name(rk_value_t value); /* Python's: "str", "NoneType" */
/* RESOURCE_EXHAUSTED when the arena of the rendering is full; for all functions that create values. */
struct rk_status *rk_value_new_string(struct rk_render *r, rk_value_t *out, const char *text,
                                      size_t bytes) RK_NODISCARD;
/* Takes the content of the builder and empties it, on failure too. */
struct rk_status *rk_value_take_string(struct rk_render *r, rk_value_t *out,
                                       struct rk_str *text) RK_NODISCARD;
/* A part of another string: shares its bytes. */
struct rk_status *rk_value_new_substring(struct rk_render *r, rk_value_t *out, const struct rk_text *whole,
                                         int64_t offset, int64_t bytes) RK_NODISCARD;
struct rk_status *rk_value_new_list(struct rk_render *r, rk_value_t *out, rk_value_kind_t kind,
                                    int64_t capacity) RK_NODISCARD;
struct rk_status *rk_list_append(struct rk_render *r, struct rk_list *list, rk_value_t item) RK_NODISCARD;
struct rk_status *rk_value_new_pair(struct rk_render *r, rk_value_t *out, rk_value_t first,
                                    rk_value_t second) RK_NODISCARD;
struct rk_status *rk_value_new_dict(struct rk_render *r, rk_value_t *out, rk_value_kind_t kind,
                                    int64_t capacity) RK_NODISCARD;
/* Position of the key, -1 when absent. INVALID_ARGUMENT for a key that Python cannot hash. */
struct rk_status *rk_dict_find(struct rk_render *r, const struct rk_dict *dict, rk_value_t key,
                               int64_t *at) RK_NODISCARD;
/* NULL when absent. */
const rk_value_t *rk_dict_find_text(const struct rk_dict *dict, const char *key, size_t bytes);
struct rk_status *rk_dict_put(struct rk_render *r, struct rk_dict *dict, rk_value_t key,
                              rk_value_t value) RK_NODISCARD;
/* Strings are borrowed from the JSON value. */
struct rk_status *rk_value_from_json(struct rk_render *r, rk_value_t *out,
                                     const struct rk_json *json) RK_NODISCARD;
struct rk_status *rk_value_truth(struct rk_render *r, rk_value_t value, bool *out) RK_NODISCARD;
/* len(); INVALID_ARGUMENT when Python's len() raises. */
struct rk_status *rk_value_length(struct rk_render *r, rk_value_t value, int64_t *out) RK_NODISCARD;
bool rk_value_has_length(rk_value_t value);
bool rk_value_is_number(rk_value_t value); /* bool, int, float */
/* An int or a bool as a number. */
bool rk_value_as_int(rk_value_t value, int64_t *out);
double rk_value_as_real(rk_value_t value); /* of a number */

/* --- compare.c --- */
struct rk_status *rk_value_equal(struct rk_render *r, rk_value_t a, rk_value_t b, bool *out) RK_NODISCARD;
/* a < b; INVALID_ARGUMENT for kinds that Python does not order. */
struct rk_status *rk_value_less(struct rk_render *r, rk_value_t a, rk_value_t b, bool *out) RK_NODISCARD;
struct rk_status *rk_value_contains(struct rk_render *r, rk_value_t container, rk_value_t item,
                                    bool *out) RK_NODISCARD;

/* --- iter.c --- */
bool rk_value_is_iterable(rk_value_t value);
/* iter(); INVALID_ARGUMENT for values that are not iterable in Python. */
struct rk_status *rk_iter_open(struct rk_render *r, struct rk_iter **out, rk_value_t value) RK_NODISCARD;
struct rk_status *rk_iter_next(struct rk_render *r, struct rk_iter *iter, rk_value_t *out,
                               bool *has_item) RK_NODISCARD;
/* list(): all remaining items. */
struct rk_status *rk_iter_drain(struct rk_render *r, struct rk_iter *iter, rk_value_t *out) RK_NODISCARD;
struct rk_status *rk_value_to_list(struct rk_render *r, rk_value_t value, rk_value_t *out) RK_NODISCARD;

/* --- value_text.c: str(), repr() --- */
struct rk_status *rk_value_format(struct rk_render *r, rk_value_t value, struct rk_str *out) RK_NODISCARD;
struct rk_status *rk_value_repr(struct rk_render *r, rk_value_t value, struct rk_str *out) RK_NODISCARD;
/* str() as a value; a string is itself. */
struct rk_status *rk_value_to_string(struct rk_render *r, rk_value_t value, rk_value_t *out) RK_NODISCARD;
/* Python's repr() of a float. */
void rk_real_format(double value, struct rk_str *out);

/* --- value_json.c: json.dumps() --- */
struct rk_json_style {
    bool ensure_ascii, sort_keys;
    const struct rk_text *indent; /* NULL: one line */
    struct rk_text item_sep, key_sep;
};
struct rk_status *rk_value_to_json(struct rk_render *r, rk_value_t value, const struct rk_json_style *style,
                                   struct rk_str *out) RK_NODISCARD;

/* --- unicode.c --- */
/* Byte offset of the i-th code point, 0 <= i <= chars. */
int64_t rk_text_offset(struct rk_text *text, int64_t i);
int64_t rk_text_chars(struct rk_text *text);
bool rk_code_point_is_space(uint32_t code);     /* str.isspace */
bool rk_code_point_is_printable(uint32_t code); /* str.isprintable */
bool rk_code_point_is_alpha(uint32_t code);
bool rk_code_point_is_alnum(uint32_t code);
bool rk_code_point_is_digit(uint32_t code);
/* str.strip and its sides; chars NULL: white space. */
enum rk_strip_sides { RK_STRIP_LEFT = 1, RK_STRIP_RIGHT = 2, RK_STRIP_BOTH = 3 };
void rk_text_strip(const struct rk_text *text, const struct rk_text *chars, enum rk_strip_sides sides,
                   int64_t *offset, int64_t *bytes);
void rk_text_upper(const char *text, int64_t bytes, struct rk_str *out);
void rk_text_lower(const char *text, int64_t bytes, struct rk_str *out);
void rk_text_capitalize(const char *text, int64_t bytes, struct rk_str *out);
void rk_text_title(const char *text, int64_t bytes, struct rk_str *out);  /* str.title */
void rk_text_escape(const char *text, int64_t bytes, struct rk_str *out); /* &, <, >, quotes for HTML */
/* Offset of `what` at or after `from`; -1 when absent. */
int64_t rk_text_find(const struct rk_text *text, const struct rk_text *what, int64_t from);
bool rk_text_has_prefix(const struct rk_text *text, const struct rk_text *prefix);
bool rk_text_has_suffix(const struct rk_text *text, const struct rk_text *suffix);

#endif
