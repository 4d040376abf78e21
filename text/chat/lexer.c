/* Converts the text of a template to tokens, as Jinja's lexer with trim_blocks and lstrip_blocks: a tag
 * removes the newline after it, and the blanks before it if nothing else precedes it on its line; "-" removes
 * all white space on its side, "+" keeps the white space that the defaults would remove. */
#include "text/chat/jinja_internal.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct lexer {
    struct rk_jinja *jinja;
    rk_jinja_tokens_t *tokens;
    const char *text; /* the template, newlines normalised; in its arena */
    size_t bytes, at;
    int32_t line;       /* of `at` */
    bool is_line_start; /* the text read last ended with a newline */
    int num_open;       /* brackets, which the parser matches */
    struct rk_status *error;
};

/* Keeps the first error, and ends the text. */
static void fail(struct lexer *lexer, struct rk_status *st)
{
    if (lexer->error)
        rk_status_free(st);
    else
        lexer->error = RK_WRAP(st, "%s:%d", lexer->jinja->source, lexer->line);
    lexer->at = lexer->bytes;
}

#define BAD(lexer, ...)         fail((lexer), RK_FAIL(RK_INVALID_ARGUMENT, __VA_ARGS__))
#define UNSUPPORTED(lexer, ...) fail((lexer), RK_FAIL(RK_UNIMPLEMENTED, __VA_ARGS__))

static void put(struct lexer *lexer, struct rk_jinja_token token)
{
    token.line = lexer->line;
    rk_array_append(lexer->tokens, token);
}

static void put_text(struct lexer *lexer, rk_lex_type_t type, size_t begin, size_t end)
{
    put(lexer,
        (struct rk_jinja_token){.type = type, .text = lexer->text + begin, .bytes = (int64_t)(end - begin)});
}

static bool looks_at(const struct lexer *lexer, size_t at, const char *text)
{
    size_t bytes = strlen(text);

    return at <= lexer->bytes && lexer->bytes - at >= bytes && memcmp(lexer->text + at, text, bytes) == 0;
}

static char char_at(const struct lexer *lexer, size_t at)
{
    return at < lexer->bytes ? lexer->text[at] : '\0';
}

static size_t strip(const struct lexer *lexer, size_t begin, size_t end, int side)
{
    struct rk_text text = {.data = lexer->text + begin, .bytes = (int64_t)(end - begin), .chars = -1};
    struct rk_text rest = rk_text_strip(&text, NULL, side);

    return side == RK_STRIP_LEFT ? end - (size_t)rest.bytes : begin + (size_t)rest.bytes;
}

static size_t skip_space(const struct lexer *lexer, size_t at)
{
    return at < lexer->bytes ? strip(lexer, at, lexer->bytes, RK_STRIP_LEFT) : at;
}

/* Advances to `end`: counts lines and records whether the next text begins one. */
static void advance(struct lexer *lexer, size_t end)
{
    for (size_t i = lexer->at; i < end; i++)
        lexer->line += lexer->text[i] == '\n';
    if (end > lexer->at)
        lexer->is_line_start = lexer->text[end - 1] == '\n';
    lexer->at = end;
}

/* The position after "-%}", "+%}" or "%}" (`close`) at `at` and the white space that it removes; 0 if it is
 * not there. */
static size_t close_at(const struct lexer *lexer, size_t at, const char *close, bool is_tag)
{
    if (looks_at(lexer, at, "-") && looks_at(lexer, at + 1, close))
        return skip_space(lexer, at + 3);
    if (is_tag && looks_at(lexer, at, "+") && looks_at(lexer, at + 1, close))
        return at + 3;
    if (!looks_at(lexer, at, close))
        return 0;
    return at + 2 + (is_tag && looks_at(lexer, at + 2, "\n"));
}

static bool is_sign(const struct lexer *lexer, size_t at)
{
    return char_at(lexer, at) == '-' || char_at(lexer, at) == '+';
}

/* Appends the data before the "{" at `end`; its sign ("-" or "+") is at `sign`. */
static void put_data(struct lexer *lexer, size_t end, size_t sign, bool is_print)
{
    size_t begin = lexer->at, kept = end, line = end;

    if (char_at(lexer, sign) == '-') {
        kept = strip(lexer, begin, end, RK_STRIP_RIGHT);
    } else if (!is_print && !is_sign(lexer, sign)) {
        while (line > begin && lexer->text[line - 1] != '\n')
            line--;
        if ((line > begin || lexer->is_line_start) && skip_space(lexer, line) >= end)
            kept = line;
    }
    if (kept > begin)
        put_text(lexer, RK_LEX_DATA, begin, kept);
    advance(lexer, end);
}

/* --- tokens inside of "{% %}" and "{{ }}" --- */

static size_t digits_end(const struct lexer *lexer, size_t at)
{
    while (isdigit((unsigned char)char_at(lexer, at)))
        at++;
    return at;
}

/* Decimal numbers only. The digits behind a "." are an index: a.0.1. */
static void lex_number(struct lexer *lexer)
{
    size_t begin = lexer->at, end = digits_end(lexer, begin), exponent;
    bool is_index = begin > 0 && lexer->text[begin - 1] == '.', is_real = false;
    struct rk_jinja_token token = {.type = RK_LEX_INT};

    if (!is_index && char_at(lexer, end) == '.' && digits_end(lexer, end + 1) > end + 1) {
        end = digits_end(lexer, end + 1);
        is_real = true;
    }
    exponent = end + 1 + is_sign(lexer, end + 1);
    if (!is_index && (char_at(lexer, end) | 32) == 'e' && digits_end(lexer, exponent) > exponent) {
        end = digits_end(lexer, exponent);
        is_real = true;
    }
    if (isalnum((unsigned char)char_at(lexer, end)) || char_at(lexer, end) == '_') {
        UNSUPPORTED(lexer, "numbers other than decimal ones are not supported");
        return;
    }
    if (!is_real && end > begin + 1 && lexer->text[begin] == '0') {
        BAD(lexer, "an integer must not begin with 0");
        return;
    }
    errno = 0;
    if (is_real) {
        token.type = RK_LEX_REAL;
        token.real = strtod(lexer->text + begin, NULL);
    } else {
        token.integer = strtoll(lexer->text + begin, NULL, 10);
    }
    if (!is_real && errno != 0)
        UNSUPPORTED(lexer, "integers beyond 64 bits are not supported (%.*s)", (int)(end - begin),
                    lexer->text + begin);
    put(lexer, token);
    advance(lexer, RK_MAX(end, lexer->at));
}

/* "\xHH", "\uHHHH", "\UHHHHHHHH"; returns the length. */
static size_t unescape_hex(struct lexer *lexer, const char *text, size_t left, struct rk_str *out)
{
    size_t digits = text[1] == 'x' ? 2 : text[1] == 'u' ? 4 : 8;
    char hex[9] = {0};
    long code;

    memcpy(hex, text + 2, RK_MIN(digits, left - 2));
    code = strtol(hex, NULL, 16);
    if (strspn(hex, "0123456789abcdefABCDEF") != digits)
        BAD(lexer, "truncated \\x, \\u or \\U escape in a string");
    else if (code > 0x10ffff)
        BAD(lexer, "a \\U escape beyond U+10FFFF");
    else if (code >= 0xd800 && code < 0xe000)
        UNSUPPORTED(lexer, "surrogates (\\u%04lx) in strings are not supported", code);
    else
        rk_utf8_append(out, (int32_t)code);
    return 2 + digits;
}

/* The escape at `text`, a backslash and at least one character; returns its length. Unknown ones stay. */
static size_t unescape(struct lexer *lexer, const char *text, size_t left, struct rk_str *out)
{
    static const char plain[] = "\\'\"abfnrtv", meaning[] = "\\'\"\a\b\f\n\r\t\v";
    const char *known = strchr(plain, text[1]);

    if (known)
        rk_str_append_bytes(out, &meaning[known - plain], 1);
    else if (text[1] == 'x' || text[1] == 'u' || text[1] == 'U')
        return unescape_hex(lexer, text, left, out);
    else if (isdigit((unsigned char)text[1]) || text[1] == 'N' || (unsigned char)text[1] >= 0x80)
        UNSUPPORTED(lexer, "the escape \\%c in a string is not supported", text[1]);
    else if (text[1] != '\n') /* which continues a line */
        rk_str_append_bytes(out, text, 2);
    return 2;
}

static void lex_string(struct lexer *lexer)
{
    char quote = lexer->text[lexer->at];
    size_t begin = lexer->at + 1, end = begin;
    struct rk_str text = {0};

    while (end < lexer->bytes && lexer->text[end] != quote)
        end += lexer->text[end] == '\\' ? 2 : 1;
    if (end >= lexer->bytes) {
        BAD(lexer, "a string has no closing quote");
        return;
    }
    for (size_t i = begin; i < end && !lexer->error;) {
        if (lexer->text[i] == '\\') {
            i += unescape(lexer, lexer->text + i, end - i, &text);
        } else {
            rk_str_append_bytes(&text, lexer->text + i, 1);
            i++;
        }
    }
    if (!lexer->error) {
        char *copy = rk_arena_alloc(lexer->jinja->arena, text.bytes);

        if (copy)
            memcpy(copy, rk_str_text(&text), text.bytes);
        if (copy)
            put(lexer,
                (struct rk_jinja_token){.type = RK_LEX_STRING, .text = copy, .bytes = (int64_t)text.bytes});
        else
            fail(lexer, RK_FAIL(RK_RESOURCE_EXHAUSTED, "out of memory"));
        advance(lexer, RK_MAX(end + 1, lexer->at));
    }
    rk_str_fini(&text);
}

static void lex_name(struct lexer *lexer)
{
    size_t end = lexer->at;

    while (isalnum((unsigned char)char_at(lexer, end)) || char_at(lexer, end) == '_')
        end++;
    put_text(lexer, RK_LEX_NAME, lexer->at, end);
    advance(lexer, end);
}

static void lex_operator(struct lexer *lexer)
{
    static const char *const pairs[] = {"//", "**", "==", "!=", ">=", "<="};
    int32_t op = lexer->text[lexer->at];
    size_t bytes = 1;

    for (size_t i = 0; i < RK_ARRAY_LEN(pairs); i++) {
        if (looks_at(lexer, lexer->at, pairs[i])) {
            op = RK_OP2(pairs[i][0], pairs[i][1]);
            bytes = 2;
        }
    }
    if (bytes == 1 && !strchr("+-/*%~[](){}><=.:|,", op))
        BAD(lexer, "unexpected character 0x%02x", (unsigned)op);
    lexer->num_open += bytes == 1 && strchr("({[", op);
    lexer->num_open -= lexer->num_open > 0 && bytes == 1 && strchr(")}]", op);
    put(lexer, (struct rk_jinja_token){.type = RK_LEX_OP, .op = op});
    advance(lexer, RK_MIN(lexer->at + bytes, lexer->bytes));
}

static void lex_one(struct lexer *lexer)
{
    unsigned char c = (unsigned char)lexer->text[lexer->at];

    if (isdigit(c))
        lex_number(lexer);
    else if (isalpha(c) || c == '_')
        lex_name(lexer);
    else if (c == '\'' || c == '"')
        lex_string(lexer);
    else if (c >= 0x80)
        UNSUPPORTED(lexer, "names with letters beyond ASCII are not supported");
    else
        lex_operator(lexer);
}

/* Reads from after "{%" or "{{" to after the closing mark. */
static void lex_tag(struct lexer *lexer, bool is_tag)
{
    const char *close = is_tag ? "%}" : "}}";
    size_t end = 0;

    put(lexer, (struct rk_jinja_token){.type = is_tag ? RK_LEX_TAG_BEGIN : RK_LEX_PRINT_BEGIN});
    lexer->num_open = 0;
    while (!lexer->error) {
        advance(lexer, skip_space(lexer, lexer->at));
        end = lexer->num_open == 0 ? close_at(lexer, lexer->at, close, is_tag) : 0;
        if (end > 0)
            break;
        if (lexer->at >= lexer->bytes)
            BAD(lexer, is_tag ? "a tag has no end '%%}'" : "an expression has no end '}}'");
        else
            lex_one(lexer);
    }
    put(lexer, (struct rk_jinja_token){.type = is_tag ? RK_LEX_TAG_END : RK_LEX_PRINT_END});
    advance(lexer, RK_MAX(end, lexer->at));
}

/* --- text and comments --- */

static void lex_comment(struct lexer *lexer)
{
    for (size_t at = lexer->at; at < lexer->bytes; at++) {
        size_t end = close_at(lexer, at, "#}", true);

        if (end > 0) {
            advance(lexer, end);
            return;
        }
    }
    BAD(lexer, "the comment has no end '#}'");
}

static void lex_marked(struct lexer *lexer, size_t at)
{
    char mark = lexer->text[at + 1];

    put_data(lexer, at, at + 2, mark == '{');
    advance(lexer, at + 2 + is_sign(lexer, at + 2));
    if (mark == '#')
        lex_comment(lexer);
    else
        lex_tag(lexer, mark == '%');
}

/* Converts carriage returns to newlines and removes one newline at the end, as Jinja does. */
static struct rk_status *normalise(struct lexer *lexer)
{
    const struct rk_jinja *jinja = lexer->jinja;
    char *copy = rk_arena_alloc(jinja->arena, jinja->text_bytes + 1);

    if (!copy)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%s: out of memory", jinja->source);
    for (size_t i = 0; i < jinja->text_bytes; i++) {
        if (jinja->text[i] != '\r')
            copy[lexer->bytes++] = jinja->text[i];
        else if (jinja->text[i + 1] != '\n')
            copy[lexer->bytes++] = '\n';
    }
    if (lexer->bytes > 0 && copy[lexer->bytes - 1] == '\n')
        lexer->bytes--;
    copy[lexer->bytes] = '\0';
    lexer->text = copy;
    return NULL;
}

struct rk_status *rk_jinja_lex(struct rk_jinja *jinja, rk_jinja_tokens_t *tokens)
{
    struct lexer lexer = {.jinja = jinja, .tokens = tokens, .line = 1, .is_line_start = true};

    RK_TRY(normalise(&lexer));
    for (size_t at = 0; at + 1 < lexer.bytes && !lexer.error;) {
        char mark = lexer.text[at + 1];

        if (lexer.text[at] == '{' && (mark == '{' || mark == '%' || mark == '#')) {
            lex_marked(&lexer, at);
            at = lexer.at;
        } else {
            at++;
        }
    }
    if (lexer.at < lexer.bytes)
        put_text(&lexer, RK_LEX_DATA, lexer.at, lexer.bytes);
    put(&lexer, (struct rk_jinja_token){.type = RK_LEX_END});
    return lexer.error;
}
