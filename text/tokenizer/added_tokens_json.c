/* Reading added tokens. */
#include "text/tokenizer/tokenizer_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

#define CONTENT_BYTES_MAX 1024 /* limits the steps of a search that fails late */

static void fini_token(struct rk_added_token *token)
{
    rk_str_fini(&token->content);
    rk_str_fini(&token->normal);
}

static struct rk_status *read_fields(struct rk_added_token *token, const struct rk_json *json,
                                     const char *where)
{
    int64_t id = 0;

    token->is_normalized = true;
    RK_TRY(rk_component_string(&token->content, json, where, "content"));
    RK_TRY(rk_json_get_i64(json, where, "id", 0, RK_TOKEN_ID_MAX, &id));
    RK_TRY(rk_json_opt_bool(json, where, "special", &token->is_special));
    RK_TRY(rk_json_opt_bool(json, where, "normalized", &token->is_normalized));
    RK_TRY(rk_json_opt_bool(json, where, "single_word", &token->is_single_word));
    RK_TRY(rk_json_opt_bool(json, where, "lstrip", &token->strips_left));
    RK_TRY(rk_json_opt_bool(json, where, "rstrip", &token->strips_right));
    token->id = (int32_t)id;
    if (token->content.bytes == 0 || token->content.bytes > CONTENT_BYTES_MAX)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s.content: expected 1 to %d bytes, got %zu", where,
                       CONTENT_BYTES_MAX, token->content.bytes);
    return NULL;
}

static struct rk_status *normalize(struct rk_added_token *token, const struct rk_normalizer *normalizer,
                                   const char *where)
{
    struct rk_piece piece = {.text = token->content.text, .bytes = token->content.bytes, .head = 1};
    struct rk_matcher *matcher = rk_matcher_create();
    struct rk_str buf = {0};
    struct rk_status *st = NULL;

    if (token->is_normalized)
        RK_TRY_GOTO(st, rk_normalizer_run(normalizer, matcher, &piece, &buf), out);
    rk_str_append_bytes(&token->normal, piece.text, piece.bytes);
    if (token->normal.bytes == 0 || token->normal.bytes > CONTENT_BYTES_MAX)
        st = RK_FAIL(RK_INVALID_ARGUMENT, "%s.content: expected 1 to %d bytes once normalised, got %zu",
                     where, CONTENT_BYTES_MAX, token->normal.bytes);
out:
    rk_str_fini(&buf);
    rk_matcher_destroy(matcher);
    return st ? RK_WRAP(st, "%s", where) : NULL;
}

/* The reference library assigns the id itself: that of the vocabulary, else the next free one. */
static struct rk_status *check_id(struct rk_added_token *token, const struct rk_bpe *bpe, int64_t *next_id,
                                  const char *where)
{
    int32_t known = rk_bpe_find(bpe, token->content.text, token->content.bytes);

    if (known >= 0)
        token->id = known;
    else if (token->id != *next_id)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "%s.id: %d, but '%s' is not in model.vocab and the next free id is %lld", where,
                       token->id, token->content.text, (long long)*next_id);
    else
        *next_id += 1;
    return NULL;
}

/* A repeated content is one token, with the properties of its last occurrence. */
static int64_t find_content(const struct rk_added_tokens *added, const struct rk_map *seen,
                            const struct rk_added_token *token)
{
    int64_t i = (int64_t)(intptr_t)rk_map_find(seen, token->content.text) - 1;

    return i >= 0 && added->tokens.items[i].content.bytes == token->content.bytes ? i : -1;
}

static struct rk_status *read_token(struct rk_tokenizer *tokenizer, const struct rk_json *json,
                                    struct rk_map *seen, int64_t *next_id, const char *where)
{
    struct rk_added_tokens *added = &tokenizer->added;
    struct rk_added_token token = {0};
    struct rk_status *st = NULL;
    int64_t before;

    RK_TRY_GOTO(st, read_fields(&token, json, where), out);
    RK_TRY_GOTO(st, normalize(&token, &tokenizer->normalizer, where), out);
    before = find_content(added, seen, &token);
    if (before < 0) {
        RK_TRY_GOTO(st, check_id(&token, &tokenizer->bpe, next_id, where), out);
        rk_array_append(&added->tokens, token);
        (void)rk_map_put(seen, token.content.text, (void *)(intptr_t)added->tokens.count);
        return NULL;
    }
    token.id = added->tokens.items[before].id;
    fini_token(&added->tokens.items[before]);
    added->tokens.items[before] = token;
    return NULL;
out:
    fini_token(&token);
    return st;
}

struct rk_status *rk_added_tokens_read(struct rk_tokenizer *tokenizer, const struct rk_json *json)
{
    struct rk_map *seen = rk_map_create();
    int64_t next_id = rk_map_count(tokenizer->bpe.vocab);
    struct rk_status *st = NULL;

    if (!rk_json_is_null(json) && rk_json_type(json) != RK_JSON_ARRAY)
        st = RK_FAIL(RK_INVALID_ARGUMENT, "added_tokens: expected a list");
    for (int64_t i = 0; i < rk_json_count(json) && !st; i++) {
        char *where = rk_format("added_tokens[%lld]", (long long)i);

        st = read_token(tokenizer, rk_json_at(json, i), seen, &next_id, where);
        rk_free(where);
    }
    rk_map_destroy(seen);
    if (!st)
        rk_added_tokens_index(&tokenizer->added);
    return st;
}
