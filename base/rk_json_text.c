/* JSON as text: dumping, nesting depth, the line of a member. Uses the values of rk_json.h only. The scanners
 * that run before parsing work on any bytes; rk_json_find_line wants text that has been parsed. */
#include "base/rk_json_internal.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_assert.h"

#define MAX_DESCRIBE_BYTES 60

/* --- dumping --- */

struct dumper {
    struct rk_str *out;
    int indent;
    bool sort_keys;
};

static void put_string(struct rk_str *out, const char *text, size_t bytes)
{
    static const char escapes[][2] = {{'"', '"'},  {'\\', '\\'}, {'\b', 'b'}, {'\f', 'f'},
                                      {'\n', 'n'}, {'\r', 'r'},  {'\t', 't'}};

    rk_str_append(out, "\"");
    for (size_t i = 0; i < bytes; i++) {
        char letter = 0;

        for (size_t k = 0; k < RK_ARRAY_LEN(escapes); k++) {
            if (text[i] == escapes[k][0])
                letter = escapes[k][1];
        }
        if (letter)
            rk_str_appendf(out, "\\%c", letter);
        else if ((unsigned char)text[i] < 0x20)
            rk_str_appendf(out, "\\u%04x", (unsigned)text[i]);
        else
            rk_str_append_bytes(out, text + i, 1);
    }
    rk_str_append(out, "\"");
}

/* The fewest digits that read back as the same number, and a mark that it is a real. */
static void put_real(struct rk_str *out, double value)
{
    char text[40];

    for (int digits = 15; digits <= 17; digits++) {
        snprintf(text, sizeof(text), "%.*g", digits, value);
        if (strtod(text, NULL) == value)
            break;
    }
    rk_str_append(out, text);
    if (!strpbrk(text, ".e"))
        rk_str_append(out, ".0");
}

static void put_newline(const struct dumper *dumper, int depth)
{
    if (dumper->indent > 0)
        rk_str_appendf(dumper->out, "\n%*s", depth * dumper->indent, "");
}

static void put_value(const struct dumper *dumper, const struct rk_json *json, int depth);

static void put_array(const struct dumper *dumper, const struct rk_json *array, int depth)
{
    int64_t count = rk_json_count(array);

    rk_str_append(dumper->out, "[");
    for (int64_t i = 0; i < count; i++) {
        rk_str_append(dumper->out, i ? "," : "");
        put_newline(dumper, depth + 1);
        put_value(dumper, rk_json_at(array, i), depth + 1);
    }
    if (count > 0)
        put_newline(dumper, depth);
    rk_str_append(dumper->out, "]");
}

static int compare_keys(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void put_object(const struct dumper *dumper, const struct rk_json *object, int depth)
{
    RK_ARRAY(const char *) keys = {0};

    for (void *it = rk_json_iter(object); it; it = rk_json_iter_next(object, it))
        rk_array_append(&keys, rk_json_iter_key(it));
    if (dumper->sort_keys && keys.count > 0)
        qsort(keys.items, (size_t)keys.count, sizeof(*keys.items), compare_keys);
    rk_str_append(dumper->out, "{");
    for (int64_t i = 0; i < keys.count; i++) {
        rk_str_append(dumper->out, i ? "," : "");
        put_newline(dumper, depth + 1);
        put_string(dumper->out, keys.items[i], strlen(keys.items[i]));
        rk_str_append(dumper->out, dumper->indent > 0 ? ": " : ":");
        put_value(dumper, rk_json_find(object, keys.items[i]), depth + 1);
    }
    if (keys.count > 0)
        put_newline(dumper, depth);
    rk_str_append(dumper->out, "}");
    rk_array_fini(&keys);
}

static void put_value(const struct dumper *dumper, const struct rk_json *json, int depth)
{
    switch (rk_json_type(json)) {
    case RK_JSON_NULL:
        rk_str_append(dumper->out, "null");
        break;
    case RK_JSON_BOOL:
        rk_str_append(dumper->out, rk_json_as_bool(json, false) ? "true" : "false");
        break;
    case RK_JSON_INT:
        rk_str_appendf(dumper->out, "%lld", (long long)rk_json_as_int(json, 0));
        break;
    case RK_JSON_REAL:
        put_real(dumper->out, rk_json_as_real(json, 0.0));
        break;
    case RK_JSON_STRING:
        put_string(dumper->out, rk_json_as_string(json, ""), rk_json_string_bytes(json));
        break;
    case RK_JSON_ARRAY:
        put_array(dumper, json, depth);
        break;
    case RK_JSON_OBJECT:
        put_object(dumper, json, depth);
        break;
    }
}

char *rk_json_dump(const struct rk_json *json, int indent, bool sort_keys)
{
    struct rk_str out = {0};
    struct dumper dumper = {.out = &out, .indent = indent, .sort_keys = sort_keys};

    put_value(&dumper, json, 0);
    return rk_str_take(&out);
}

char *rk_json_describe(const struct rk_json *json)
{
    rk_json_type_t type = rk_json_type(json);
    size_t cut = MAX_DESCRIBE_BYTES;
    char *whole, *text;

    if (type == RK_JSON_ARRAY || type == RK_JSON_OBJECT)
        return rk_strdup(rk_json_type_name(type));
    whole = rk_json_dump(json, 0, false);
    if (strlen(whole) <= cut)
        return whole;
    while (!rk_utf8_is_valid(whole, cut))
        cut--;
    text = rk_format("%.*s...", (int)cut, whole);
    rk_free(whole);
    return text;
}

char *rk_json_join_path(const char *where, const char *key)
{
    return rk_format("%s%s%s", where, *where ? "." : "", key);
}

/* --- scanning --- */

/* One past the string whose opening quote is at `at`; `bytes` when it does not end. */
static size_t skip_string(const char *text, size_t bytes, size_t at)
{
    for (at++; at < bytes; at++) {
        if (text[at] == '\\')
            at++;
        else if (text[at] == '"')
            return at + 1;
    }
    return bytes;
}

bool rk_json_is_too_deep(const char *text, size_t bytes)
{
    int64_t depth = 0;
    size_t at = 0;

    while (at < bytes) {
        if (text[at] == '"') {
            at = skip_string(text, bytes, at);
            continue;
        }
        if (text[at] == '[' || text[at] == '{')
            depth++;
        else if (text[at] == ']' || text[at] == '}')
            depth--;
        if (depth > RK_JSON_MAX_DEPTH)
            return true;
        at++;
    }
    return false;
}

/* Whether `digits` digits at the text, without a fraction and an exponent, are an integer beyond 64 bits. */
static bool is_big(const char *digits, size_t count, bool is_negative)
{
    const char *limit = is_negative ? "9223372036854775808" : "9223372036854775807";

    for (; count > 1 && *digits == '0'; count--)
        digits++;
    return count > strlen(limit) || (count == strlen(limit) && memcmp(digits, limit, count) > 0);
}

/* One past the number at `at`; *num_digits is 0 when it has a fraction or an exponent. */
static size_t skip_number(const char *text, size_t bytes, size_t at, size_t *num_digits)
{
    size_t end = at;

    for (; end < bytes && isdigit((unsigned char)text[end]); end++)
        continue;
    *num_digits = end - at;
    for (; end < bytes && text[end] && strchr("0123456789.eE+-", text[end]); end++)
        *num_digits = 0;
    return end;
}

void rk_json_mend(struct rk_str *out, const char *text, size_t bytes, uint32_t flags)
{
    size_t at = 0;

    while (at < bytes) {
        size_t end = at + 1, num_digits = 0;

        if (text[at] == '"')
            end = skip_string(text, bytes, at);
        else if (isdigit((unsigned char)text[at]))
            end = skip_number(text, bytes, at, &num_digits);
        if ((flags & RK_JSON_NAN_AS_NULL) && bytes - at >= 3 && memcmp(text + at, "NaN", 3) == 0) {
            rk_str_append(out, "null");
            at += 3;
            continue;
        }
        rk_str_append_bytes(out, text + at, end - at);
        if ((flags & RK_JSON_BIG_INT_AS_REAL) && num_digits > 0 &&
            is_big(text + at, num_digits, at > 0 && text[at - 1] == '-'))
            rk_str_append(out, ".0");
        at = end;
    }
}

/* An open container on the way to a position. */
struct step {
    bool is_object;
    int64_t index;     /* of the element */
    size_t begin, end; /* the name of the member, without its quotes */
};

static char *join_steps(const char *text, const struct step *steps, int depth)
{
    struct rk_str path = {0};

    for (int i = 0; i < depth; i++) {
        if (!steps[i].is_object) {
            rk_str_appendf(&path, "[%lld]", (long long)steps[i].index);
            continue;
        }
        if (steps[i].end > steps[i].begin) {
            rk_str_append(&path, path.bytes > 0 ? "." : "");
            rk_str_append_utf8(&path, text + steps[i].begin, steps[i].end - steps[i].begin);
        }
    }
    return rk_str_take(&path);
}

char *rk_json_path_at(const char *text, size_t bytes, size_t offset)
{
    struct step steps[RK_JSON_MAX_DEPTH + 1];
    bool is_name = false; /* the next string is the name of a member */
    int depth = 0;

    for (size_t at = 0; at < RK_MIN(bytes, offset); at++) {
        char c = text[at];

        if (c == '"') {
            size_t end = skip_string(text, bytes, at);

            if (is_name && depth > 0) {
                steps[depth - 1].begin = at + 1;
                steps[depth - 1].end = RK_MAX(end - 1, at + 1);
                is_name = false;
            }
            at = end - 1;
        } else if ((c == '{' || c == '[') && depth <= RK_JSON_MAX_DEPTH) {
            steps[depth++] = (struct step){.is_object = c == '{'};
            is_name = c == '{';
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--;
        } else if (c == ',' && depth > 0) {
            steps[depth - 1].index++;
            is_name = steps[depth - 1].is_object;
        }
    }
    return join_steps(text, steps, depth);
}

struct scanner {
    const char *text;
    size_t bytes;
    size_t at;
};

static void skip_space(struct scanner *scan)
{
    while (scan->at < scan->bytes && strchr(" \t\r\n", scan->text[scan->at]))
        scan->at++;
}

/* The next byte after white space; 0 at the end. */
static char peek(struct scanner *scan)
{
    skip_space(scan);
    return scan->at < scan->bytes ? scan->text[scan->at] : '\0';
}

static void skip_value(struct scanner *scan)
{
    int depth = 0;

    do {
        char c = peek(scan);

        if (c == '\0')
            return;
        if (c == '"') {
            scan->at = skip_string(scan->text, scan->bytes, scan->at);
            continue;
        }
        if (c == '{' || c == '[')
            depth++;
        if (c == '}' || c == ']')
            depth--;
        scan->at++;
        if (strchr("{}[],:", c))
            continue;
        while (scan->at < scan->bytes && !strchr(" \t\r\n{}[],:\"", scan->text[scan->at]))
            scan->at++;
    } while (depth > 0);
}

/* The key at the position, decoded; rk_free it. Advances past its colon. */
static char *take_key(struct scanner *scan)
{
    size_t begin = scan->at, end = skip_string(scan->text, scan->bytes, begin);
    char *key = rk_strndup(scan->text + begin + 1, end - begin - 2);
    struct rk_json *decoded = NULL;

    scan->at = end;
    if (peek(scan) == ':')
        scan->at++;
    if (strchr(key, '\\')) {
        struct rk_status *st = rk_json_parse(&decoded, scan->text + begin, end - begin, "key", 0);

        if (!st) {
            rk_free(key);
            key = rk_strdup(rk_json_as_string(decoded, ""));
        }
        rk_json_free(decoded);
        RK_IGNORE(st, "the whole text was parsed before");
    }
    return key;
}

/* Whether `path` names the member `key` (*rest is "") or a member below it (*rest is the remaining path). */
static bool path_enters(const char *path, const char *key, const char **rest)
{
    size_t bytes = strlen(key);

    if (strncmp(path, key, bytes) != 0 || (path[bytes] && path[bytes] != '.'))
        return false;
    *rest = path + bytes + (path[bytes] == '.');
    return true;
}

/* Offset of the member that `path` names in the container at the position, or SIZE_MAX. */
static size_t find_member(struct scanner *scan, const char *path)
{
    char open = peek(scan);
    int64_t index = 0;

    if (open != '{' && open != '[')
        return SIZE_MAX;
    scan->at++;
    for (char c = peek(scan); c && c != '}' && c != ']'; c = peek(scan), index++) {
        size_t begin = scan->at, found = SIZE_MAX;
        struct scanner inside;
        const char *rest;
        char *key = open == '{' ? take_key(scan) : rk_format("%lld", (long long)index);
        bool is_entered = path_enters(path, key, &rest);

        rk_free(key);
        inside = *scan;
        if (is_entered)
            found = *rest ? find_member(&inside, rest) : begin;
        if (found != SIZE_MAX)
            return found;
        skip_value(scan);
        if (peek(scan) == ',')
            scan->at++;
    }
    return SIZE_MAX;
}

int rk_json_find_line(const char *text, size_t bytes, const char *path)
{
    struct scanner scan = {.text = text, .bytes = bytes};
    size_t at = *path ? find_member(&scan, path) : 0;
    int line = 1;

    if (at == SIZE_MAX)
        return 0;
    for (size_t i = 0; i < at; i++)
        line += text[i] == '\n';
    return line;
}
