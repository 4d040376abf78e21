/* Patterns of tokenizer.json are written for Oniguruma (Ruby's syntax). This file rewrites constructs with a
 * different syntax in PCRE2, and refuses those that PCRE2 would silently interpret differently: named
 * character sets differ (\s, \w), and some options have other letters. Sets in sets and intersections, which
 * PCRE2 does not have, become groups that match one character: [a[bc]] is (?>[a]|[bc]), [a&&b] is
 * (?:(?=[a])[b]), and [^a&&b] is (?:(?!(?=[a])[b])\p{Any}). The groups of alternatives are atomic, so that
 * they do not add backtracking. */
#include "text/tokenizer/tokenizer_internal.h"

#include <string.h>

#define SPACES "\\t-\\r \\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define WORDS  "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}"

/* Escapes that are rewritten: outside of a set and, unless NULL, inside. */
static const struct {
    char letter;
    const char *outside, *inside;
} escapes[] = {
    {'s', "[" SPACES "]", SPACES},
    {'S', "[^" SPACES "]", "\\P{White_Space}"},
    {'w', "[" WORDS "]", WORDS},
    {'W', "[^" WORDS "]", NULL}, /* in a set: a set of its own */
    {'h', "[0-9A-Fa-f]", "0-9A-Fa-f"},
    {'H', "[^0-9A-Fa-f]", NULL},
    {'v', "\\x0b", "\\x0b"},
    {'b', "(?:(?<=[" WORDS "])(?![" WORDS "])|(?<![" WORDS "])(?=[" WORDS "]))", "\\b"},
    {'B', "(?:(?<=[" WORDS "])(?=[" WORDS "])|(?<![" WORDS "])(?![" WORDS "]))", NULL},
};

/* Escapes of letters and digits that mean the same in both. */
static const char same_outside[] = "dDAzZGRXKNntrfaexk0123456789";
static const char same_inside[] = "dDntrfaex01234567";

#define NESTING_MAX 16 /* of sets in sets */

struct translation {
    struct rk_str *out;
    const char *pattern;
    size_t bytes, at;
    bool is_in_set;
    int nesting;
};

/* One side of an intersection. */
struct operand {
    struct rk_str members; /* what stands between the brackets of a set of PCRE2 */
    struct rk_str sets;    /* "|SET|SET" */
};

static struct rk_status *refuse(const struct translation *t, const char *what)
{
    return RK_FAIL(RK_UNIMPLEMENTED, "unsupported regex '%.*s': %s at offset %zu",
                   (int)RK_MIN(t->bytes, 1000u), t->pattern, what, t->at);
}

static char char_at(const struct translation *t, size_t at)
{
    return at < t->bytes ? t->pattern[at] : '\0';
}

static void copy(struct translation *t, size_t bytes)
{
    bytes = RK_MIN(bytes, t->bytes - t->at);
    rk_str_append_bytes(t->out, t->pattern + t->at, bytes);
    t->at += bytes;
}

static bool is_alphanumeric(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

/* "\\p{L}", "\\p{^Han}": scripts need "sc:", because PCRE2 takes a bare name for the script extensions. */
static struct rk_status *translate_property(struct translation *t)
{
    const char *brace = t->pattern + t->at + 2;
    const char *end = t->at + 2 < t->bytes ? memchr(brace, '}', t->bytes - t->at - 2) : NULL;
    size_t name_bytes;

    if (!end || brace[0] != '{')
        return refuse(t, "property without braces");
    copy(t, brace[1] == '^' ? 4 : 3);
    name_bytes = (size_t)(end - t->pattern) - t->at;
    if (name_bytes > 2 && !(name_bytes == 3 && memcmp(end - 3, "Any", 3) == 0))
        rk_str_append(t->out, "sc:");
    copy(t, name_bytes + 1);
    return NULL;
}

static struct rk_status *translate_escape(struct translation *t)
{
    char letter = char_at(t, t->at + 1);

    if (letter == 'p' || letter == 'P')
        return translate_property(t);
    for (size_t i = 0; i < RK_ARRAY_LEN(escapes); i++) {
        const char *text = t->is_in_set ? escapes[i].inside : escapes[i].outside;

        if (escapes[i].letter != letter)
            continue;
        if (!text)
            return refuse(t, "escape in a set");
        rk_str_append(t->out, text);
        t->at += 2;
        return NULL;
    }
    if (letter == '\0' ||
        (is_alphanumeric(letter) && !strchr(t->is_in_set ? same_inside : same_outside, letter)))
        return refuse(t, "escape");
    copy(t, 2);
    return NULL;
}

/* --- sets --- */

static struct rk_status *translate_set(struct translation *t, struct rk_str *out);

static void append(struct rk_str *out, const struct rk_str *text)
{
    rk_str_append_bytes(out, rk_str_text(text), text->bytes);
}

/* Appends a pattern that matches one character of the operand. */
static void close_operand(struct operand *operand, bool is_negated, struct rk_str *out)
{
    if (operand->sets.bytes > 0)
        rk_str_append(out, "(?>");
    if (operand->members.bytes > 0) {
        rk_str_append(out, is_negated ? "[^" : "[");
        append(out, &operand->members);
        rk_str_append(out, "]");
    }
    if (operand->sets.bytes > 0) {
        size_t begin = operand->members.bytes == 0; /* without the first bar */

        rk_str_append_bytes(out, operand->sets.text + begin, operand->sets.bytes - begin);
        rk_str_append(out, ")");
    }
    rk_str_clear(&operand->members);
    rk_str_clear(&operand->sets);
}

/* A set, or an escape that stands for one, at t->at. */
static struct rk_status *translate_nested(struct translation *t, struct operand *operand)
{
    struct rk_status *st;

    if (operand->members.bytes > 0 && t->pattern[t->at - 1] == '-' && t->pattern[t->at - 2] != '\\')
        return refuse(t, "range that ends with a set");
    rk_str_append(&operand->sets, "|");
    if (t->pattern[t->at] == '\\') {
        rk_str_append(&operand->sets, t->pattern[t->at + 1] == 'W' ? "[^" WORDS "]" : "[^0-9A-Fa-f]");
        t->at += 2;
        return NULL;
    }
    if (char_at(t, t->at + 1) == ':')
        return refuse(t, "POSIX class");
    if (++t->nesting > NESTING_MAX)
        return refuse(t, "sets nested too deeply");
    st = translate_set(t, &operand->sets);
    t->nesting--;
    if (!st && char_at(t, t->at) == '-' && char_at(t, t->at + 1) != ']')
        return refuse(t, "range that begins with a set");
    return st;
}

/* A set of PCRE2 must not begin with "^", which follows a set here, and [.a.], [:a:] and [=a=] are POSIX's.
 */
static void copy_member(struct translation *t)
{
    if (t->out->bytes == 0 && t->pattern[t->at] != '\0' && strchr("^.:=", t->pattern[t->at]))
        rk_str_append(t->out, "\\");
    copy(t, 1);
}

/* The members of one operand, up to "&&" or "]". */
static struct rk_status *translate_operand(struct translation *t, struct operand *operand)
{
    size_t begin = t->at;

    t->out = &operand->members;
    t->is_in_set = true;
    for (;;) {
        char c = char_at(t, t->at), next = char_at(t, t->at + 1);

        if (t->at >= t->bytes)
            return refuse(t, "set without end");
        if (c == ']' || (c == '&' && next == '&'))
            return t->at == begin ? refuse(t, c == ']' ? "empty set" : "intersection with an empty set")
                                  : NULL;
        if (c == '[' || (c == '\\' && (next == 'W' || next == 'H')))
            RK_TRY(translate_nested(t, operand));
        else if (c == '\\')
            RK_TRY(translate_escape(t));
        else
            copy_member(t);
        t->out = &operand->members;
        t->is_in_set = true;
    }
}

static struct rk_status *translate_operands(struct translation *t, bool is_negated, struct operand *operand,
                                            struct rk_str *out)
{
    for (bool is_last = false; !is_last;) {
        RK_TRY(translate_operand(t, operand));
        is_last = t->pattern[t->at] == ']';
        if (is_last && out->bytes == 0 && operand->sets.bytes == 0) { /* a set of PCRE2 */
            close_operand(operand, is_negated, out);
            return NULL;
        }
        if (out->bytes == 0)
            rk_str_append(out, is_negated ? "(?:(?!" : "(?:");
        if (!is_last)
            rk_str_append(out, "(?=");
        close_operand(operand, false, out);
        if (!is_last)
            rk_str_append(out, ")");
        t->at += is_last ? 0 : 2;
    }
    rk_str_append(out, is_negated ? ")\\p{Any})" : ")");
    return NULL;
}

/* A set from its "[" on. */
static struct rk_status *translate_set(struct translation *t, struct rk_str *out)
{
    struct rk_str *outer = t->out, set = {0};
    struct operand operand = {.members = {0}};
    bool is_negated = char_at(t, t->at + 1) == '^';
    struct rk_status *st;

    t->at += is_negated ? 2 : 1;
    st = translate_operands(t, is_negated, &operand, &set);
    if (!st)
        append(out, &set);
    t->at++;
    t->out = outer;
    t->is_in_set = false;
    rk_str_fini(&operand.members);
    rk_str_fini(&operand.sets);
    rk_str_fini(&set);
    return st;
}

/* "(?" constructs with the same meaning in both: groups, lookaround, comments, and the options i and x, which
 * are accepted without a group only at the start of the pattern. */
static struct rk_status *translate_group(struct translation *t)
{
    size_t at = t->at + 2;

    if (char_at(t, t->at + 1) == '*')
        return refuse(t, "verb");
    if (char_at(t, t->at + 1) != '?') {
        copy(t, 1);
        return NULL;
    }
    while (char_at(t, at) == 'i' || char_at(t, at) == 'x' || char_at(t, at) == '-')
        at++;
    if (char_at(t, at) == '\0' || !strchr(at == t->at + 2 ? ":=!><#"
                                          : t->at == 0    ? ":)"
                                                          : ":",
                                          char_at(t, at)))
        return refuse(t, "group");
    copy(t, at + 1 - t->at);
    return NULL;
}

static struct rk_status *translate_one(struct translation *t)
{
    char c = char_at(t, t->at);

    if (c == '\\')
        return translate_escape(t);
    if (c == '(')
        return translate_group(t);
    if (c == '}' && char_at(t, t->at + 1) == '+')
        return refuse(t, "'+' behind a counted repetition");
    if (c == '[')
        return translate_set(t, t->out);
    copy(t, 1);
    return NULL;
}

struct rk_status *rk_regex_translate(struct rk_str *out, const char *pattern, size_t bytes)
{
    struct translation t = {.out = out, .pattern = pattern, .bytes = bytes};

    while (t.at < t.bytes)
        RK_TRY(translate_one(&t));
    return NULL;
}
