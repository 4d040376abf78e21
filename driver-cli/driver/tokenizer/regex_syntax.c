/* Patterns of tokenizer.json are written for Oniguruma (Ruby's syntax). This file rewrites constructs with a
 * different syntax in PCRE2, and refuses those that PCRE2 would silently interpret differently: named
 * character sets differ
 * (\s, \w), sets in sets and intersections are unknown to PCRE2, and some options have other letters. */
#include "driver-cli/driver/tokenizer/tokenizer_internal.h"

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
    {'W', "[^" WORDS "]", NULL},
    {'h', "[0-9A-Fa-f]", "0-9A-Fa-f"},
    {'H', "[^0-9A-Fa-f]", NULL},
    {'v', "\\x0b", "\\x0b"},
    {'b', "(?:(?<=[" WORDS "])(?![" WORDS "])|(?<![" WORDS "])(?=[" WORDS "]))", "\\b"},
    {'B', "(?:(?<=[" WORDS "])(?=[" WORDS "])|(?<![" WORDS "])(?![" WORDS "]))", NULL},
};

/* Escapes of letters and digits that mean the same in both. */
static const char same_outside[] = "dDAzZGRXKNntrfaexk0123456789";
static const char same_inside[] = "dDntrfaex01234567";

struct translation {
    struct rk_str *out;
    const char *pattern;
    size_t bytes, at;
    bool is_in_set;
    size_t set_begin; /* offset after the "[" or "[^" of the set */
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

static struct rk_status *translate_in_set(struct translation *t)
{
    char c = char_at(t, t->at);

    if (c == '[')
        return refuse(t, "set in a set");
    if (c == '&' && char_at(t, t->at + 1) == '&')
        return refuse(t, "intersection of sets");
    if (c == ']' && t->at == t->set_begin)
        return refuse(t, "empty set");
    t->is_in_set = c != ']';
    copy(t, 1);
    return NULL;
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
    if (t->is_in_set)
        return translate_in_set(t);
    if (c == '(')
        return translate_group(t);
    if (c == '}' && char_at(t, t->at + 1) == '+')
        return refuse(t, "'+' behind a counted repetition");
    if (c == '[') {
        t->is_in_set = true;
        copy(t, char_at(t, t->at + 1) == '^' ? 2 : 1);
        t->set_begin = t->at;
        return NULL;
    }
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
