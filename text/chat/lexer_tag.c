/* Tokens inside "{% %}" and "{{ }}". */
#include "text/chat/lexer_internal.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"

static bool is_digit_at(const struct rk_lexer *lexer, size_t at, int base)
{
    char c = at < lexer->bytes ? lexer->text[at] : '\0';

    return isxdigit((unsigned char)c) && (c > '9' ? (c | 32) - 'a' + 10 : c - '0') < base;
}

/* Digits that underscores may separate. */
static size_t digits_end(const struct rk_lexer *lexer, size_t at, int base)
{
    size_t end = at;

    for (;;) {
        size_t next = end + (end > at && rk_lexer_looks_at(lexer, end, "_"));

        if (!is_digit_at(lexer, next, base))
            return end;
        end = next + 1;
    }
}

static char *copy_digits(const struct rk_lexer *lexer, size_t from, size_t to)
{
    char *copy = rk_malloc(to - from + 1);
    size_t out = 0;

    for (size_t i = from; i < to; i++) {
        if (lexer->text[i] != '_')
            copy[out++] = lexer->text[i];
    }
    copy[out] = '\0';
    return copy;
}

static struct rk_status *put_int(struct rk_lexer *lexer, size_t from, size_t end, int base)
{
    char *digits = copy_digits(lexer, from, end);
    struct rk_jinja_token token = {.type = RK_LEX_INT};
    bool is_zero = strspn(digits, "0") == strlen(digits);
    struct rk_status *st = NULL;

    errno = 0;
    token.integer = strtoll(digits, NULL, base);
    if (errno != 0)
        st = RK_FAIL(RK_UNIMPLEMENTED, "%s:%d: integers beyond 64 bits are not supported (%s)",
                     lexer->jinja->source, lexer->line, digits);
    else if (base == 10 && digits[0] == '0' && !is_zero)
        st = rk_lexer_error(lexer, "an integer must not begin with 0");
    rk_free(digits);
    if (st)
        return st;
    token.text = lexer->text + from;
    token.bytes = (int64_t)(end - from);
    rk_lexer_put(lexer, token);
    rk_lexer_advance(lexer, end);
    return NULL;
}

/* End of a float that begins with the digits up to `whole`; 0 when it is an integer. */
static size_t float_end(const struct rk_lexer *lexer, size_t whole)
{
    size_t end = whole, exponent;
    bool is_float = false;

    if (lexer->at > 0 && lexer->text[lexer->at - 1] == '.')
        return 0;
    if (rk_lexer_looks_at(lexer, end, ".") && digits_end(lexer, end + 1, 10) > end + 1) {
        end = digits_end(lexer, end + 1, 10);
        is_float = true;
    }
    if (end < lexer->bytes && (lexer->text[end] | 32) == 'e') {
        exponent = end + 1;
        exponent += rk_lexer_looks_at(lexer, exponent, "+") || rk_lexer_looks_at(lexer, exponent, "-");
        if (digits_end(lexer, exponent, 10) > exponent)
            return digits_end(lexer, exponent, 10);
    }
    return is_float ? end : 0;
}

static struct rk_status *lex_number(struct rk_lexer *lexer)
{
    size_t at = lexer->at, whole = digits_end(lexer, at, 10), end = float_end(lexer, whole);
    char mark = at + 1 < lexer->bytes && lexer->text[at] == '0' ? (char)(lexer->text[at + 1] | 32) : '\0';
    int base = mark == 'x' ? 16 : mark == 'o' ? 8 : mark == 'b' ? 2 : 10;
    struct rk_jinja_token token = {.type = RK_LEX_REAL};
    char *digits;

    if (end > 0) {
        digits = copy_digits(lexer, at, end);
        token.real = strtod(digits, NULL);
        rk_free(digits);
        rk_lexer_put(lexer, token);
        rk_lexer_advance(lexer, end);
        return NULL;
    }
    if (base != 10 && digits_end(lexer, at + 2, base) > at + 2)
        return put_int(lexer, at + 2, digits_end(lexer, at + 2, base), base);
    return put_int(lexer, at, whole, 10);
}

/* --- strings --- */

static int hex_value(const char *text, size_t digits, uint32_t *out)
{
    *out = 0;
    for (size_t i = 0; i < digits; i++) {
        char c = text[i];

        if (!isxdigit((unsigned char)c))
            return -1;
        *out = *out * 16 + (uint32_t)(c > '9' ? (c | 32) - 'a' + 10 : c - '0');
    }
    return 0;
}

/* "\xHH", "\uHHHH", "\UHHHHHHHH". */
static struct rk_status *unescape_hex(struct rk_lexer *lexer, const char *text, size_t left,
                                      struct rk_str *out, size_t *used)
{
    size_t digits = text[1] == 'x' ? 2 : text[1] == 'u' ? 4 : 8;
    uint32_t code;

    if (left < 2 + digits || hex_value(text + 2, digits, &code) != 0)
        return rk_lexer_error(lexer, "truncated \\x, \\u or \\U escape in a string");
    if (code > 0x10ffff)
        return rk_lexer_error(lexer, "a \\U escape beyond U+10FFFF");
    if (code >= 0xd800 && code < 0xe000)
        return RK_FAIL(RK_UNIMPLEMENTED, "%s:%d: surrogates (\\u%04x) in strings are not supported",
                       lexer->jinja->source, lexer->line, code);
    rk_utf8_append(out, code);
    *used = 2 + digits;
    return NULL;
}

/* The result of Python's "unicode-escape" for a backslash before a non-ASCII character. */
static void unescape_foreign(const char *text, struct rk_str *out, size_t *used)
{
    int bytes;
    uint32_t code = rk_utf8_read(text + 1, &bytes);

    if (code < 0x100)
        rk_str_appendf(out, "\\x%02x", code);
    else if (code < 0x10000)
        rk_str_appendf(out, "\\u%04x", code);
    else
        rk_str_appendf(out, "\\U%08x", code);
    *used = 1 + (size_t)bytes;
}

static void unescape_octal(const char *text, size_t left, struct rk_str *out, size_t *used)
{
    uint32_t code = 0;
    size_t i = 1;

    for (; i < left && i <= 3 && text[i] >= '0' && text[i] <= '7'; i++)
        code = code * 8 + (uint32_t)(text[i] - '0');
    rk_utf8_append(out, code);
    *used = i;
}

/* The escape at `text`, which begins with a backslash and is followed by at least one character. */
static struct rk_status *unescape(struct rk_lexer *lexer, const char *text, size_t left, struct rk_str *out,
                                  size_t *used)
{
    static const char plain[] = "\\'\"abfnrtv", meaning[] = "\\'\"\a\b\f\n\r\t\v";
    const char *known = text[1] ? strchr(plain, text[1]) : NULL;

    *used = 2;
    if (known)
        rk_str_append_bytes(out, &meaning[known - plain], 1);
    else if (text[1] == '\n')
        ; /* a continued line */
    else if (text[1] >= '0' && text[1] <= '7')
        unescape_octal(text, left, out, used);
    else if (text[1] == 'x' || text[1] == 'u' || text[1] == 'U')
        return unescape_hex(lexer, text, left, out, used);
    else if (text[1] == 'N')
        return RK_FAIL(RK_UNIMPLEMENTED, "%s:%d: \\N{...} in strings is not supported", lexer->jinja->source,
                       lexer->line);
    else if ((unsigned char)text[1] >= 0x80)
        unescape_foreign(text, out, used);
    else
        rk_str_append_bytes(out, text, 2);
    return NULL;
}

static struct rk_status *unescape_all(struct rk_lexer *lexer, const char *text, size_t bytes,
                                      struct rk_str *out)
{
    for (size_t i = 0; i < bytes;) {
        size_t used = 1;

        if (text[i] == '\\')
            RK_TRY(unescape(lexer, text + i, bytes - i, out, &used));
        else
            rk_str_append_bytes(out, text + i, 1);
        i += used;
    }
    return NULL;
}

static struct rk_status *lex_string(struct rk_lexer *lexer)
{
    char quote = lexer->text[lexer->at];
    size_t begin = lexer->at + 1, end = begin;
    struct rk_jinja_token token = {.type = RK_LEX_STRING};
    struct rk_str text = {0};
    struct rk_status *st;
    char *copy;

    while (end < lexer->bytes && lexer->text[end] != quote)
        end += lexer->text[end] == '\\' ? 2 : 1;
    if (end >= lexer->bytes)
        return rk_lexer_error(lexer, "a string has no closing quote");
    st = unescape_all(lexer, lexer->text + begin, end - begin, &text);
    copy = st ? NULL : rk_arena_alloc(lexer->jinja->arena, text.bytes + 1);
    if (copy) {
        memcpy(copy, rk_str_text(&text), text.bytes);
        token.text = copy;
        token.bytes = (int64_t)text.bytes;
        rk_lexer_put(lexer, token);
        rk_lexer_advance(lexer, end + 1);
    } else if (!st) {
        st = RK_FAIL(RK_RESOURCE_EXHAUSTED, "%s: out of memory", lexer->jinja->source);
    }
    rk_str_fini(&text);
    return st;
}

/* --- names and operators --- */

static struct rk_status *lex_name(struct rk_lexer *lexer)
{
    size_t end = lexer->at;

    while (end < lexer->bytes && (isalnum((unsigned char)lexer->text[end]) || lexer->text[end] == '_'))
        end++;
    rk_lexer_put(lexer, (struct rk_jinja_token){.type = RK_LEX_NAME,
                                                .text = lexer->text + lexer->at,
                                                .bytes = (int64_t)(end - lexer->at)});
    rk_lexer_advance(lexer, end);
    return NULL;
}

static int32_t operator_at(const struct rk_lexer *lexer, size_t *bytes)
{
    static const char *const pairs[] = {"//", "**", "==", "!=", ">=", "<="};

    for (size_t i = 0; i < RK_ARRAY_LEN(pairs); i++) {
        if (rk_lexer_looks_at(lexer, lexer->at, pairs[i])) {
            *bytes = 2;
            return RK_OP2(pairs[i][0], pairs[i][1]);
        }
    }
    *bytes = 1;
    return strchr("+-/*%~[](){}><=.:|,;", lexer->text[lexer->at]) ? lexer->text[lexer->at] : 0;
}

struct brackets {
    char closing[RK_JINJA_NESTING_MAX * 2];
    int count;
};

static struct rk_status *balance(struct rk_lexer *lexer, struct brackets *brackets, int32_t op)
{
    const char *opening = op < 128 && op ? strchr("({[", op) : NULL;

    if (opening) {
        if (brackets->count == (int)sizeof(brackets->closing))
            return rk_lexer_error(lexer, "brackets are nested too deeply");
        brackets->closing[brackets->count++] = ")}]"[opening - "({["];
    } else if (op == ')' || op == '}' || op == ']') {
        if (brackets->count == 0 || brackets->closing[--brackets->count] != op)
            return RK_TEMPLATE_ERROR("%s:%d: unexpected '%c'", lexer->jinja->source, lexer->line, op);
    }
    return NULL;
}

static struct rk_status *lex_operator(struct rk_lexer *lexer, struct brackets *brackets)
{
    size_t bytes = 0;
    int32_t op = operator_at(lexer, &bytes);

    if (op == 0)
        return RK_TEMPLATE_ERROR("%s:%d: unexpected character 0x%02x", lexer->jinja->source, lexer->line,
                                 (unsigned char)lexer->text[lexer->at]);
    RK_TRY(balance(lexer, brackets, op));
    rk_lexer_put(lexer, (struct rk_jinja_token){.type = RK_LEX_OP, .op = op});
    rk_lexer_advance(lexer, lexer->at + bytes);
    return NULL;
}

static struct rk_status *lex_one(struct rk_lexer *lexer, struct brackets *brackets)
{
    unsigned char c = (unsigned char)lexer->text[lexer->at];

    if (isdigit(c))
        return lex_number(lexer);
    if (isalpha(c) || c == '_')
        return lex_name(lexer);
    if (c == '\'' || c == '"')
        return lex_string(lexer);
    if (c >= 0x80)
        return RK_FAIL(RK_UNIMPLEMENTED, "%s:%d: names with letters beyond ASCII are not supported",
                       lexer->jinja->source, lexer->line);
    return lex_operator(lexer, brackets);
}

struct rk_status *rk_lexer_tag(struct rk_lexer *lexer, bool is_tag)
{
    struct brackets brackets = {.count = 0};
    size_t end;

    rk_lexer_put(lexer, (struct rk_jinja_token){.type = is_tag ? RK_LEX_TAG_BEGIN : RK_LEX_PRINT_BEGIN});
    for (;;) {
        end = brackets.count == 0 ? rk_lexer_close(lexer, lexer->at, is_tag ? "%}" : "}}", is_tag) : 0;
        if (end > 0)
            break;
        rk_lexer_advance(lexer, rk_lexer_skip_space(lexer, lexer->at));
        if (lexer->at >= lexer->bytes)
            return rk_lexer_error(lexer, is_tag ? "a tag has no end '%}'" : "an expression has no end '}}'");
        end = brackets.count == 0 ? rk_lexer_close(lexer, lexer->at, is_tag ? "%}" : "}}", is_tag) : 0;
        if (end > 0)
            break;
        RK_TRY(lex_one(lexer, &brackets));
    }
    rk_lexer_put(lexer, (struct rk_jinja_token){.type = is_tag ? RK_LEX_TAG_END : RK_LEX_PRINT_END});
    rk_lexer_advance(lexer, end);
    return NULL;
}
