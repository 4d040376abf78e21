/* Values over jansson. struct rk_json is never defined: a pointer to it is a json_t pointer under another
 * name, so that other files do not depend on the library's type. */
#include "base/rk_json.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include <jansson.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_file_io.h"
#include "base/rk_file_kind.h"
#include "base/rk_json_internal.h"

#define BYTE_ORDER_MARK "\xef\xbb\xbf"

static json_t *unwrap(const struct rk_json *json)
{
    return (json_t *)(uintptr_t)json; /* jansson counts references in values that are otherwise constant */
}

static struct rk_json *wrap(json_t *value)
{
    return (struct rk_json *)value;
}

/* Check of the constructors: jansson returns NULL when memory is exhausted. */
static struct rk_json *wrap_new(json_t *value)
{
    RK_ASSERT(value != NULL);
    return wrap(value);
}

/* " near 'TEXT'" of the parser's message; "" when it names none. */
static const char *near_of(const json_error_t *error)
{
    const char *near = strstr(error->text, " near ");

    return near ? near : "";
}

static char *explain(const json_error_t *error)
{
    const char *near = near_of(error);

    switch (json_error_code(error)) {
    case json_error_duplicate_key:
        return rk_strdup("occurs twice; remove one of them, or give it another name");
    case json_error_numeric_overflow:
        return rk_strdup(strstr(error->text, "integer")
                             ? "the integer is beyond 64 bits; write it as a string, or with a decimal point"
                             : "the number is beyond the range of 64-bit floating point");
    case json_error_null_character:
        return rk_strdup("text with a NUL character (\\u0000); remove it");
    case json_error_null_byte_in_key:
        return rk_strdup("a name with a NUL character (\\u0000); remove it");
    case json_error_invalid_utf8:
        return rk_strdup("the text is not valid UTF-8");
    case json_error_premature_end_of_input:
        return rk_strdup("the text ends inside of a value");
    case json_error_end_of_input_expected:
        return rk_format("expected the end of the text%s", near);
    default:
        break;
    }
    if (strstr(near, "'NaN") || strstr(near, "'Infinity") || strcmp(near, " near '-'") == 0)
        return rk_format("expected a value%s: JSON has no NaN and no infinity; write null, or a string",
                         near);
    return rk_format("%s", error->text);
}

static struct rk_status *parse_error(const json_error_t *error, const char *text, size_t bytes,
                                     const char *source)
{
    size_t at = error->position > 0 ? (size_t)error->position : 0;
    char *place = source ? rk_format("%s:%d:%d: ", source, error->line, error->column) : rk_strdup("");
    char *path = rk_json_path_at(text, bytes, at);
    char *what = explain(error);
    struct rk_status *st;

    if (json_error_code(error) == json_error_out_of_memory)
        st = RK_FAIL(RK_RESOURCE_EXHAUSTED, "%sout of host memory while parsing", place);
    else
        st = RK_FAIL(RK_INVALID_ARGUMENT, "%s%s%s%s", place, path, *path ? ": " : "", what);
    rk_free(place);
    rk_free(path);
    rk_free(what);
    return st;
}

struct rk_status *rk_json_parse(struct rk_json **out, const char *text, size_t bytes, const char *source,
                                uint32_t flags)
{
    size_t options = JSON_REJECT_DUPLICATES | JSON_DECODE_ANY;
    struct rk_str mended = {0};
    struct rk_status *st = NULL;
    json_error_t error;

    *out = NULL;
    if (flags & RK_JSON_ALLOW_NUL)
        options |= JSON_ALLOW_NUL;
    if (bytes >= strlen(BYTE_ORDER_MARK) && memcmp(text, BYTE_ORDER_MARK, strlen(BYTE_ORDER_MARK)) == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s%sbegins with a byte order mark; save it as UTF-8 without one",
                       source ? source : "", source ? ":1:1: " : "");
    if (rk_json_is_too_deep(text, bytes))
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s%snested deeper than %d", source ? source : "",
                       source ? ": " : "", RK_JSON_MAX_DEPTH);
    *out = wrap(json_loadb(text, bytes, options, &error));
    if (!*out && (flags & (RK_JSON_BIG_INT_AS_REAL | RK_JSON_NAN_AS_NULL))) {
        rk_json_mend(&mended, text, bytes, flags);
        *out = wrap(json_loadb(rk_str_text(&mended), mended.bytes, options, &error));
        if (!*out)
            st = parse_error(&error, rk_str_text(&mended), mended.bytes, source);
        rk_str_fini(&mended);
        return st;
    }
    return *out ? NULL : parse_error(&error, text, bytes, source);
}

struct rk_status *rk_json_parse_file(struct rk_json **out, const char *path, size_t max_bytes, uint32_t flags)
{
    struct rk_status *st;
    const char *kind;
    size_t bytes;
    char *text;

    *out = NULL;
    RK_TRY(rk_file_read(&text, &bytes, path, max_bytes));
    st = rk_json_parse(out, text, bytes, path, flags);
    kind = st ? rk_file_kind_of(text, RK_MIN(bytes, (size_t)RK_FILE_KIND_BYTES)) : NULL;
    rk_free(text);
    if (!kind)
        return st;
    rk_status_free(st);
    return RK_FAIL(RK_INVALID_ARGUMENT, "'%s' %s", path, kind);
}

void rk_json_free(struct rk_json *json)
{
    json_decref(unwrap(json));
}

struct rk_json *rk_json_retain(const struct rk_json *json)
{
    return wrap(json_incref(unwrap(json)));
}

struct rk_json *rk_json_clone(const struct rk_json *json)
{
    return json ? wrap_new(json_deep_copy(unwrap(json))) : NULL;
}

bool rk_json_equal(const struct rk_json *a, const struct rk_json *b)
{
    return json_equal(unwrap(a), unwrap(b));
}

rk_json_type_t rk_json_type(const struct rk_json *json)
{
    if (!json)
        return RK_JSON_NULL;
    switch (json_typeof(unwrap(json))) {
    case JSON_OBJECT:
        return RK_JSON_OBJECT;
    case JSON_ARRAY:
        return RK_JSON_ARRAY;
    case JSON_STRING:
        return RK_JSON_STRING;
    case JSON_INTEGER:
        return RK_JSON_INT;
    case JSON_REAL:
        return RK_JSON_REAL;
    case JSON_TRUE:
    case JSON_FALSE:
        return RK_JSON_BOOL;
    default:
        return RK_JSON_NULL;
    }
}

const char *rk_json_type_name(rk_json_type_t type)
{
    static const char *const names[] = {"null",     "true or false", "an integer", "a number",
                                        "a string", "an array",      "an object"};

    RK_ASSERT((size_t)type < RK_ARRAY_LEN(names));
    return names[type];
}

struct rk_json *rk_json_new_null(void)
{
    return wrap_new(json_null());
}

struct rk_json *rk_json_new_bool(bool value)
{
    return wrap_new(json_boolean(value));
}

struct rk_json *rk_json_new_int(int64_t value)
{
    return wrap_new(json_integer(value));
}

struct rk_json *rk_json_new_real(double value)
{
    RK_ASSERT(isfinite(value));
    return wrap_new(json_real(value));
}

struct rk_json *rk_json_new_string(const char *text)
{
    return rk_json_new_string_bytes(text, strlen(text));
}

struct rk_json *rk_json_new_string_bytes(const char *text, size_t bytes)
{
    json_t *value = json_stringn(text, bytes);

    return value ? wrap(value) : rk_json_new_null();
}

struct rk_json *rk_json_new_array(void)
{
    return wrap_new(json_array());
}

struct rk_json *rk_json_new_object(void)
{
    return wrap_new(json_object());
}

void rk_json_set(struct rk_json *object, const char *key, struct rk_json *value)
{
    RK_ASSERT(json_object_set_new(unwrap(object), key, unwrap(value)) == 0);
}

void rk_json_set_path(struct rk_json *object, const char *path, struct rk_json *value)
{
    const char *dot = strchr(path, '.');
    struct rk_json *child;
    char *key;

    if (!dot) {
        rk_json_set(object, path, value);
        return;
    }
    key = rk_strndup(path, (size_t)(dot - path));
    child = rk_json_find(object, key);
    if (rk_json_type(child) != RK_JSON_OBJECT) {
        child = rk_json_new_object();
        rk_json_set(object, key, child);
    }
    rk_free(key);
    rk_json_set_path(child, dot + 1, value);
}

void rk_json_remove(struct rk_json *object, const char *key)
{
    json_object_del(unwrap(object), key);
}

void rk_json_append(struct rk_json *array, struct rk_json *value)
{
    RK_ASSERT(json_array_append_new(unwrap(array), unwrap(value)) == 0);
}

struct rk_json *rk_json_find(const struct rk_json *object, const char *key)
{
    return wrap(json_object_get(unwrap(object), key));
}

struct rk_json *rk_json_find_path(const struct rk_json *object, const char *dotted_path)
{
    struct rk_json *found = rk_json_find(object, dotted_path);
    int64_t index;

    if (!found && rk_json_type(object) == RK_JSON_ARRAY && rk_parse_i64(dotted_path, &index))
        found = rk_json_at(object, index);
    /* Any dot may be the one that ends the first key, because keys may hold dots themselves. */
    for (const char *dot = strchr(dotted_path, '.'); dot && !found; dot = strchr(dot + 1, '.')) {
        char *key = rk_strndup(dotted_path, (size_t)(dot - dotted_path));
        const struct rk_json *child = rk_json_find(object, key);

        if (!child && rk_json_type(object) == RK_JSON_ARRAY && rk_parse_i64(key, &index))
            child = rk_json_at(object, index);
        if (child)
            found = rk_json_find_path(child, dot + 1);
        rk_free(key);
    }
    return found;
}

struct rk_json *rk_json_at(const struct rk_json *array, int64_t i)
{
    return i < 0 ? NULL : wrap(json_array_get(unwrap(array), (size_t)i));
}

int64_t rk_json_count(const struct rk_json *container)
{
    return (int64_t)(rk_json_type(container) == RK_JSON_ARRAY ? json_array_size(unwrap(container))
                                                              : json_object_size(unwrap(container)));
}

bool rk_json_is_null(const struct rk_json *json)
{
    return rk_json_type(json) == RK_JSON_NULL;
}

bool rk_json_as_bool(const struct rk_json *json, bool fallback)
{
    return rk_json_type(json) == RK_JSON_BOOL ? json_is_true(unwrap(json)) : fallback;
}

/* Integers, and reals that are integral and fit. */
static bool read_integer(const struct rk_json *json, int64_t *out)
{
    double real;

    if (rk_json_type(json) == RK_JSON_INT) {
        *out = json_integer_value(unwrap(json));
        return true;
    }
    if (rk_json_type(json) != RK_JSON_REAL)
        return false;
    real = json_real_value(unwrap(json));
    if (real != floor(real) || real < -0x1p63 || real >= 0x1p63)
        return false;
    *out = (int64_t)real;
    return true;
}

int64_t rk_json_as_int(const struct rk_json *json, int64_t fallback)
{
    int64_t value;

    return read_integer(json, &value) ? value : fallback;
}

double rk_json_as_real(const struct rk_json *json, double fallback)
{
    return json_is_number(unwrap(json)) ? json_number_value(unwrap(json)) : fallback;
}

const char *rk_json_as_string(const struct rk_json *json, const char *fallback)
{
    return rk_json_type(json) == RK_JSON_STRING ? json_string_value(unwrap(json)) : fallback;
}

size_t rk_json_string_bytes(const struct rk_json *json)
{
    return json_string_length(unwrap(json));
}

void *rk_json_iter(const struct rk_json *object)
{
    return json_object_iter(unwrap(object));
}

void *rk_json_iter_next(const struct rk_json *object, void *iter)
{
    return json_object_iter_next(unwrap(object), iter);
}

const char *rk_json_iter_key(void *iter)
{
    return json_object_iter_key(iter);
}

struct rk_json *rk_json_iter_value(void *iter)
{
    return wrap(json_object_iter_value(iter));
}

static struct rk_status *bad_value(const char *where, const char *key, const char *expected,
                                   const struct rk_json *got)
{
    char *path = rk_json_join_path(where, key);
    char *text = rk_json_describe(got);
    struct rk_status *st = RK_FAIL(RK_INVALID_ARGUMENT, "%s: expected %s, got %s", path, expected, text);

    rk_free(text);
    rk_free(path);
    return st;
}

/* The member to read. With `is_optional`, *out is NULL for one that is absent or null. */
static struct rk_status *find_member(const struct rk_json **out, const struct rk_json *object,
                                     const char *where, const char *key, bool is_optional)
{
    *out = NULL;
    if (rk_json_type(object) != RK_JSON_OBJECT) {
        char *text = rk_json_describe(object);
        struct rk_status *st = RK_FAIL(RK_INVALID_ARGUMENT, "%s: expected an object with '%s', got %s",
                                       *where ? where : "the top level", key, text);

        rk_free(text);
        return st;
    }
    *out = rk_json_find(object, key);
    if (is_optional && rk_json_is_null(*out)) {
        *out = NULL;
        return NULL;
    }
    if (!*out) {
        char *path = rk_json_join_path(where, key);
        struct rk_status *st = RK_FAIL(RK_INVALID_ARGUMENT, "%s: missing", path);

        rk_free(path);
        return st;
    }
    return NULL;
}

static struct rk_status *read_bool(const struct rk_json *object, const char *where, const char *key,
                                   bool *out, bool is_optional)
{
    const struct rk_json *value;

    RK_TRY(find_member(&value, object, where, key, is_optional));
    if (value && rk_json_type(value) != RK_JSON_BOOL)
        return bad_value(where, key, "true or false", value);
    if (value)
        *out = rk_json_as_bool(value, false);
    return NULL;
}

static struct rk_status *read_i64(const struct rk_json *value, const char *where, const char *key,
                                  int64_t min, int64_t max, int64_t *out)
{
    char expected[96];
    int64_t number;

    if (min == INT64_MIN && max == INT64_MAX)
        snprintf(expected, sizeof(expected), "an integer");
    else
        snprintf(expected, sizeof(expected), "an integer from %" PRId64 " to %" PRId64, min, max);
    if (!read_integer(value, &number) || number < min || number > max)
        return bad_value(where, key, expected, value);
    *out = number;
    return NULL;
}

static struct rk_status *read_f64(const struct rk_json *object, const char *where, const char *key,
                                  double *out, bool is_optional)
{
    const struct rk_json *value;

    RK_TRY(find_member(&value, object, where, key, is_optional));
    if (value && !json_is_number(unwrap(value)))
        return bad_value(where, key, "a number", value);
    if (value)
        *out = rk_json_as_real(value, 0.0);
    return NULL;
}

static struct rk_status *read_string(const struct rk_json *object, const char *where, const char *key,
                                     const char **out, bool is_optional)
{
    const struct rk_json *value;

    RK_TRY(find_member(&value, object, where, key, is_optional));
    if (value && rk_json_type(value) != RK_JSON_STRING)
        return bad_value(where, key, "a string", value);
    if (value)
        *out = rk_json_as_string(value, NULL);
    return NULL;
}

struct rk_status *rk_json_get_bool(const struct rk_json *object, const char *where, const char *key,
                                   bool *out)
{
    return read_bool(object, where, key, out, false);
}

struct rk_status *rk_json_get_i64(const struct rk_json *object, const char *where, const char *key,
                                  int64_t min, int64_t max, int64_t *out)
{
    const struct rk_json *value;

    RK_TRY(find_member(&value, object, where, key, false));
    return read_i64(value, where, key, min, max, out);
}

struct rk_status *rk_json_get_f64(const struct rk_json *object, const char *where, const char *key,
                                  double *out)
{
    return read_f64(object, where, key, out, false);
}

struct rk_status *rk_json_get_string(const struct rk_json *object, const char *where, const char *key,
                                     const char **out)
{
    return read_string(object, where, key, out, false);
}

struct rk_status *rk_json_opt_bool(const struct rk_json *object, const char *where, const char *key,
                                   bool *out)
{
    return read_bool(object, where, key, out, true);
}

struct rk_status *rk_json_opt_i64(const struct rk_json *object, const char *where, const char *key,
                                  int64_t min, int64_t max, int64_t *out)
{
    const struct rk_json *value;

    RK_TRY(find_member(&value, object, where, key, true));
    return value ? read_i64(value, where, key, min, max, out) : NULL;
}

struct rk_status *rk_json_opt_f64(const struct rk_json *object, const char *where, const char *key,
                                  double *out)
{
    return read_f64(object, where, key, out, true);
}

struct rk_status *rk_json_opt_string(const struct rk_json *object, const char *where, const char *key,
                                     const char **out)
{
    return read_string(object, where, key, out, true);
}
