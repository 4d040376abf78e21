/* Shared by lexer.c (text, comments, raw blocks) and lexer_tag.c (content of tags). */
#ifndef RK_LEXER_INTERNAL_H
#define RK_LEXER_INTERNAL_H

#include "text/chat/render_internal.h"

struct rk_lexer {
    struct rk_jinja *jinja;
    rk_jinja_tokens_t *tokens;
    const char *text; /* the template, newlines normalised; in its arena */
    size_t bytes, at;
    int32_t line;       /* of `at` */
    bool is_line_start; /* the text read last ended with a newline */
};

/* Appends the token with the current line. */
void rk_lexer_put(struct rk_lexer *lexer, struct rk_jinja_token token);
bool rk_lexer_looks_at(const struct rk_lexer *lexer, size_t at, const char *text);
size_t rk_lexer_skip_space(const struct rk_lexer *lexer, size_t at);
void rk_lexer_advance(struct rk_lexer *lexer, size_t end);
/* The position after the closing mark at `at` and the white space that it removes; 0 if there is no mark. */
size_t rk_lexer_close(const struct rk_lexer *lexer, size_t at, const char *close, bool is_tag);
/* Reads from after "{%" or "{{" to after the closing mark. */
struct rk_status *rk_lexer_tag(struct rk_lexer *lexer, bool is_tag) RK_NODISCARD;
struct rk_status *rk_lexer_error(const struct rk_lexer *lexer, const char *what) RK_NODISCARD;

#endif
