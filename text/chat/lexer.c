/* Converts the text of a template to tokens, as Jinja's lexer with trim_blocks and lstrip_blocks: a tag
 * removes the newline after it, and the blanks before it if nothing else precedes it on its line; "-" removes
 * all white space on its side, "+" keeps the white space that the defaults would remove. */
#include "text/chat/render_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "text/chat/lexer_internal.h"

static struct rk_status *append_token(struct rk_lexer *lexer, struct rk_jinja_token token)
{
    rk_array_append(lexer->tokens, token);
    return NULL;
}

void rk_lexer_put(struct rk_lexer *lexer, struct rk_jinja_token token)
{
    token.line = lexer->line;
    (void)append_token(lexer, token);
}

bool rk_lexer_looks_at(const struct rk_lexer *lexer, size_t at, const char *text)
{
    size_t bytes = strlen(text);

    return at <= lexer->bytes && lexer->bytes - at >= bytes && memcmp(lexer->text + at, text, bytes) == 0;
}

size_t rk_lexer_skip_space(const struct rk_lexer *lexer, size_t at)
{
    while (at < lexer->bytes) {
        int bytes;

        if (!rk_code_point_is_space(rk_utf8_read(lexer->text + at, &bytes)))
            break;
        at += (size_t)bytes;
    }
    return at;
}

/* Advances to `end`: counts lines and records whether the next text begins one. */
void rk_lexer_advance(struct rk_lexer *lexer, size_t end)
{
    for (size_t i = lexer->at; i < end; i++)
        lexer->line += lexer->text[i] == '\n';
    if (end > lexer->at)
        lexer->is_line_start = lexer->text[end - 1] == '\n';
    lexer->at = end;
}

/* End of "-%}", "+%}" or "%}" (with `close` for "%}") at `at`; 0 if absent. */
size_t rk_lexer_close(const struct rk_lexer *lexer, size_t at, const char *close, bool is_tag)
{
    if (rk_lexer_looks_at(lexer, at, "-") && rk_lexer_looks_at(lexer, at + 1, close))
        return rk_lexer_skip_space(lexer, at + 3);
    if (is_tag && rk_lexer_looks_at(lexer, at, "+") && rk_lexer_looks_at(lexer, at + 1, close))
        return at + 3;
    if (!rk_lexer_looks_at(lexer, at, close))
        return 0;
    return at + 2 + (is_tag && rk_lexer_looks_at(lexer, at + 2, "\n"));
}

static bool is_sign(const struct rk_lexer *lexer, size_t at)
{
    return at < lexer->bytes && (lexer->text[at] == '-' || lexer->text[at] == '+');
}

/* Drops blanks between the last newline and `end` if nothing else precedes the tag on its line. */
static size_t strip_line(const struct rk_lexer *lexer, size_t begin, size_t end)
{
    size_t line = end;

    while (line > begin && lexer->text[line - 1] != '\n')
        line--;
    if (line == begin && !lexer->is_line_start)
        return end;
    return rk_lexer_skip_space(lexer, line) >= end ? line : end;
}

static size_t strip_right(const struct rk_lexer *lexer, size_t begin, size_t end)
{
    struct rk_text text = {.data = lexer->text + begin, .bytes = (int64_t)(end - begin), .chars = -1};
    int64_t offset, bytes;

    rk_text_strip(&text, NULL, RK_STRIP_RIGHT, &offset, &bytes);
    return begin + (size_t)bytes;
}

/* Appends the data before the "{" at `end`; its sign ("-" or "+") is at `sign`. */
static void put_data(struct rk_lexer *lexer, size_t end, size_t sign, bool is_print)
{
    size_t begin = lexer->at, kept = end;

    if (sign < lexer->bytes && lexer->text[sign] == '-')
        kept = strip_right(lexer, begin, end);
    else if (!is_print && !is_sign(lexer, sign))
        kept = strip_line(lexer, begin, end);
    if (kept > begin)
        rk_lexer_put(lexer, (struct rk_jinja_token){.type = RK_LEX_DATA,
                                                    .text = lexer->text + begin,
                                                    .bytes = (int64_t)(kept - begin)});
    rk_lexer_advance(lexer, end);
}

static struct rk_status *lex_comment(struct rk_lexer *lexer)
{
    for (size_t at = lexer->at; at < lexer->bytes; at++) {
        size_t end = rk_lexer_close(lexer, at, "#}", true);

        if (end > 0) {
            rk_lexer_advance(lexer, end);
            return NULL;
        }
    }
    return rk_lexer_error(lexer, "the comment has no end '#}'");
}

/* End of "{%- NAME -%}" at `at`, 0 if it is another tag. The newline after the end of "raw" is kept. */
static size_t match_raw(const struct rk_lexer *lexer, size_t at, const char *name, bool is_end)
{
    if (!rk_lexer_looks_at(lexer, at, "{%"))
        return 0;
    at += 2;
    at = rk_lexer_skip_space(lexer, at + is_sign(lexer, at));
    if (!rk_lexer_looks_at(lexer, at, name))
        return 0;
    at = rk_lexer_skip_space(lexer, at + strlen(name));
    if (is_end)
        return rk_lexer_close(lexer, at, "%}", true);
    return rk_lexer_close(lexer, at, "%}", false);
}

static struct rk_status *lex_raw(struct rk_lexer *lexer)
{
    for (size_t at = lexer->at; at < lexer->bytes; at++) {
        size_t end = match_raw(lexer, at, "endraw", true);

        if (end > 0) {
            put_data(lexer, at, at + 2, false);
            rk_lexer_advance(lexer, end);
            return NULL;
        }
    }
    return rk_lexer_error(lexer, "the raw block has no {% endraw %}");
}

static struct rk_status *lex_marked(struct rk_lexer *lexer, size_t at)
{
    char mark = lexer->text[at + 1];
    size_t raw_end = match_raw(lexer, at, "raw", false);

    put_data(lexer, at, at + 2, mark == '{');
    if (raw_end > 0) {
        rk_lexer_advance(lexer, raw_end);
        return lex_raw(lexer);
    }
    rk_lexer_advance(lexer, at + 2 + is_sign(lexer, at + 2));
    if (mark == '#')
        return lex_comment(lexer);
    return rk_lexer_tag(lexer, mark == '%');
}

struct rk_status *rk_lexer_error(const struct rk_lexer *lexer, const char *what)
{
    return RK_TEMPLATE_ERROR("%s:%d: %s", lexer->jinja->source, lexer->line, what);
}

/* Converts carriage returns to newlines and removes one newline at the end, as Jinja does. */
static struct rk_status *normalise(struct rk_jinja *jinja, const char *text, size_t bytes,
                                   struct rk_lexer *lexer)
{
    char *copy = rk_arena_alloc(jinja->arena, bytes + 1);
    size_t out = 0;

    if (!copy)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%s: out of memory", jinja->source);
    for (size_t i = 0; i < bytes; i++) {
        if (text[i] == '\r' && i + 1 < bytes && text[i + 1] == '\n')
            continue;
        copy[out++] = text[i] == '\r' ? '\n' : text[i];
    }
    if (out > 0 && copy[out - 1] == '\n')
        out--;
    lexer->text = copy;
    lexer->bytes = out;
    return NULL;
}

struct rk_status *rk_jinja_lex(struct rk_jinja *jinja, const char *text, size_t bytes,
                               rk_jinja_tokens_t *tokens)
{
    struct rk_lexer lexer = {.jinja = jinja, .tokens = tokens, .line = 1, .is_line_start = true};

    RK_TRY(normalise(jinja, text, bytes, &lexer));
    for (size_t at = 0; at + 1 < lexer.bytes;) {
        if (lexer.text[at] == '{' && strchr("{%#", lexer.text[at + 1]) && lexer.text[at + 1] != '\0') {
            RK_TRY(lex_marked(&lexer, at));
            at = lexer.at;
        } else {
            at++;
        }
    }
    if (lexer.at < lexer.bytes)
        rk_lexer_put(&lexer, (struct rk_jinja_token){.type = RK_LEX_DATA,
                                                     .text = lexer.text + lexer.at,
                                                     .bytes = (int64_t)(lexer.bytes - lexer.at)});
    rk_lexer_put(&lexer, (struct rk_jinja_token){.type = RK_LEX_END});
    return NULL;
}
