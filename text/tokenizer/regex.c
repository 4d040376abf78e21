/* Patterns run by PCRE2, in UTF and Unicode-property mode, with match and depth limits. Fixed texts are
 * searched without it. Matches follow each other as in Oniguruma's Rust crate: an empty match is one, unless
 * the match before it ends there. */
#include "text/tokenizer/tokenizer_internal.h"

#include <string.h>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

#define MATCH_LIMIT     10000000 /* steps of one match: far above the needs of known patterns on a megabyte */
#define DEPTH_LIMIT     100000
#define HEAP_LIMIT_KIB  (64 << 10)
#define STACK_BYTES     (32 << 10) /* of a compiled pattern; the interpreter takes over beyond the maximum */
#define STACK_BYTES_MAX (1 << 20)

struct rk_matcher {
    pcre2_match_context *context;
    pcre2_match_data *data;
    pcre2_jit_stack *stack;
};

struct rk_matcher *rk_matcher_create(void)
{
    struct rk_matcher *matcher = rk_calloc(1, sizeof(*matcher));

    matcher->context = pcre2_match_context_create(NULL);
    matcher->data = pcre2_match_data_create(1, NULL);
    matcher->stack =
        pcre2_jit_stack_create(STACK_BYTES, STACK_BYTES_MAX, NULL); /* NULL where there is no JIT */
    RK_ASSERT(matcher->context);
    RK_ASSERT(matcher->data);
    pcre2_set_match_limit(matcher->context, MATCH_LIMIT);
    pcre2_set_depth_limit(matcher->context, DEPTH_LIMIT);
    pcre2_set_heap_limit(matcher->context, HEAP_LIMIT_KIB);
    if (matcher->stack)
        pcre2_jit_stack_assign(matcher->context, NULL, matcher->stack);
    return matcher;
}

void rk_matcher_destroy(struct rk_matcher *matcher)
{
    if (!matcher)
        return;
    pcre2_jit_stack_free(matcher->stack);
    pcre2_match_data_free(matcher->data);
    pcre2_match_context_free(matcher->context);
    rk_free(matcher);
}

void rk_regex_fini(struct rk_regex *regex)
{
    pcre2_code_free(regex->code);
    rk_free(regex->literal);
    *regex = (struct rk_regex){0};
}

struct rk_status *rk_regex_compile(struct rk_regex *out, const char *pattern, size_t bytes)
{
    struct rk_str translated = {0};
    int error = 0;
    PCRE2_SIZE error_offset = 0;
    pcre2_code *code;
    struct rk_status *st = NULL;

    RK_TRY_GOTO(st, rk_regex_translate(&translated, pattern, bytes), out);
    code = pcre2_compile((PCRE2_SPTR)rk_str_text(&translated), translated.bytes,
                         PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                         &error_offset, NULL);
    if (!code) {
        PCRE2_UCHAR text[128] = {0};

        pcre2_get_error_message(error, text, sizeof(text));
        st = RK_FAIL(RK_UNIMPLEMENTED, "unsupported regex '%.*s': %s", (int)RK_MIN(bytes, 1000u), pattern,
                     (const char *)text);
        goto out;
    }
    (void)pcre2_jit_compile(code, PCRE2_JIT_COMPLETE); /* where there is no JIT the interpreter runs */
    out->code = code;
out:
    rk_str_fini(&translated);
    return st;
}

struct rk_status *rk_regex_read(struct rk_regex *out, const struct rk_json *json, const char *where)
{
    const struct rk_json *fixed = rk_json_find(json, "String"), *regex = rk_json_find(json, "Regex");
    const char *text = rk_json_as_string(fixed, NULL), *pattern = rk_json_as_string(regex, NULL);
    struct rk_status *st;

    if ((!text && !pattern) || rk_json_count(json) != 1)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s: expected {\"String\": text} or {\"Regex\": pattern}", where);
    if (text && text[0] != '\0') {
        out->literal_bytes = rk_json_string_bytes(fixed);
        out->literal = rk_malloc(out->literal_bytes);
        memcpy(out->literal, text, out->literal_bytes);
        return NULL;
    }
    st = pattern ? rk_regex_compile(out, pattern, rk_json_string_bytes(regex)) : rk_regex_compile(out, "", 0);
    return st ? RK_WRAP(st, "%s", where) : NULL;
}

struct rk_status *rk_regex_read_replace(struct rk_regex *pattern, struct rk_str *content,
                                        const struct rk_json *json, const char *where)
{
    char *pattern_where = rk_format("%s.pattern", where);
    struct rk_status *st = rk_regex_read(pattern, rk_json_find(json, "pattern"), pattern_where);

    rk_free(pattern_where);
    RK_TRY(st);
    return rk_component_string(content, json, where, "content");
}

static bool find_literal(struct rk_matches *matches)
{
    const struct rk_regex *regex = matches->regex;
    const char *found = memmem(matches->text + matches->at, matches->bytes - matches->at, regex->literal,
                               regex->literal_bytes);

    if (!found)
        return false;
    matches->begin = (size_t)(found - matches->text);
    matches->end = matches->begin + regex->literal_bytes;
    return true;
}

static struct rk_status *match_error(int rc)
{
    PCRE2_UCHAR text[128] = "";

    if (rc == PCRE2_ERROR_MATCHLIMIT || rc == PCRE2_ERROR_DEPTHLIMIT || rc == PCRE2_ERROR_HEAPLIMIT)
        return RK_FAIL(
            RK_RESOURCE_EXHAUSTED,
            "matching the regular expression took more steps than the limit for a text of this length; the "
            "expression backtracks too much (nested repetitions such as (a+)+), use a simpler one");
    pcre2_get_error_message(rc, text, sizeof(text));
    return RK_FAIL(RK_RESOURCE_EXHAUSTED, "matching the regular expression failed: %s (PCRE2 error %d)",
                   (const char *)text, rc);
}

static struct rk_status *find_pattern(struct rk_matches *matches, bool *is_found)
{
    const struct rk_matcher *matcher = matches->matcher;
    PCRE2_SPTR text = (PCRE2_SPTR)matches->text;
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(matcher->data);
    int rc = pcre2_match(matches->regex->code, text, matches->bytes, matches->at, PCRE2_NO_UTF_CHECK,
                         matcher->data, matcher->context);

    if (rc == PCRE2_ERROR_JIT_STACKLIMIT)
        rc = pcre2_match(matches->regex->code, text, matches->bytes, matches->at,
                         PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, matcher->data, matcher->context);
    *is_found = rc >= 0;
    if (rc == PCRE2_ERROR_NOMATCH)
        return NULL;
    if (rc < 0)
        return match_error(rc);
    matches->begin = range[0];
    matches->end = range[1];
    return NULL;
}

struct rk_status *rk_matches_next(struct rk_matches *matches, bool *is_found)
{
    if (!matches->regex->code) {
        *is_found = find_literal(matches);
        matches->at = *is_found ? matches->end : matches->bytes;
        return NULL;
    }
    for (*is_found = false; matches->at <= matches->bytes;) {
        RK_TRY(find_pattern(matches, is_found));
        if (!*is_found)
            matches->at = matches->bytes + 1;
        if (!*is_found || matches->end > matches->begin || !matches->is_after_match ||
            matches->end != matches->at)
            break;
        /* an empty match directly after the previous one: continue with the next character */
        *is_found = false;
        do
            matches->at++;
        while (matches->at < matches->bytes && ((uint8_t)matches->text[matches->at] & 0xc0) == 0x80);
        matches->is_after_match = false;
    }
    if (*is_found) {
        matches->at = matches->end;
        matches->is_after_match = true;
    }
    return NULL;
}

struct rk_status *rk_matches_replace(struct rk_matches *matches, const struct rk_str *content,
                                     struct rk_str *out)
{
    size_t done = 0;
    bool is_found;

    for (;;) {
        RK_TRY(rk_matches_next(matches, &is_found));
        if (!is_found)
            break;
        rk_str_append_bytes(out, matches->text + done, matches->begin - done);
        rk_str_append_bytes(out, rk_str_text(content), content->bytes);
        done = matches->end;
        if (out->bytes > RK_TEXT_BYTES_MAX)
            return RK_FAIL(RK_RESOURCE_EXHAUSTED, "a text of more than %d bytes once replaced",
                           RK_TEXT_BYTES_MAX);
    }
    rk_str_append_bytes(out, matches->text + done, matches->bytes - done);
    return NULL;
}
