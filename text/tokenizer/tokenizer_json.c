/* Reading tokenizer.json: its parts in order, then the table from ids to texts. */
#include "text/tokenizer/tokenizer_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

static void set_token(struct rk_tokenizer *tokenizer, int64_t id, const struct rk_token *token)
{
    tokenizer->tokens[id] = *token;
}

/* The reference library skips tokens whose decoded text equals the content of a special token, so a special
 * token that normalisation changed is not skipped. */
static bool is_skipped(const struct rk_map *special, const struct rk_str *text)
{
    const struct rk_added_token *token = rk_map_find(special, text->text);

    return token && token->content.bytes == text->bytes;
}

static void set_added_tokens(struct rk_tokenizer *tokenizer)
{
    struct rk_map *special = rk_map_create();

    for (int64_t i = 0; i < tokenizer->added.tokens.count; i++) {
        struct rk_added_token *token = &tokenizer->added.tokens.items[i];

        if (token->is_special)
            (void)rk_map_put(special, token->content.text, token);
    }
    for (int64_t i = 0; i < tokenizer->added.tokens.count; i++) {
        const struct rk_added_token *token = &tokenizer->added.tokens.items[i];

        set_token(tokenizer, token->id,
                  &(struct rk_token){.text = token->normal.text,
                                     .bytes = (uint32_t)token->normal.bytes,
                                     .kind = is_skipped(special, &token->normal) ? RK_TOKEN_SPECIAL
                                                                                 : RK_TOKEN_PLAIN});
    }
    rk_map_destroy(special);
}

static void build_id_table(struct rk_tokenizer *tokenizer)
{
    const struct rk_map *vocab = tokenizer->bpe.vocab;

    for (int64_t i = 0; i < rk_map_count(vocab); i++)
        tokenizer->num_ids = RK_MAX(tokenizer->num_ids, (int64_t)(intptr_t)rk_map_value_at(vocab, i));
    for (int64_t i = 0; i < tokenizer->added.tokens.count; i++)
        tokenizer->num_ids = RK_MAX(tokenizer->num_ids, (int64_t)tokenizer->added.tokens.items[i].id + 1);
    tokenizer->model_ids = tokenizer->num_ids;
    tokenizer->tokens = rk_calloc((size_t)tokenizer->num_ids, sizeof(*tokenizer->tokens));
    for (int64_t i = 0; i < rk_map_count(vocab); i++) {
        const char *key = rk_map_key_at(vocab, i);

        set_token(tokenizer, (int64_t)(intptr_t)rk_map_value_at(vocab, i) - 1,
                  &(struct rk_token){.text = key, .bytes = (uint32_t)strlen(key), .kind = RK_TOKEN_PLAIN});
    }
    set_added_tokens(tokenizer);
}

static struct rk_status *check_around(const struct rk_tokenizer *tokenizer, const rk_ids_t *ids)
{
    for (int64_t i = 0; i < ids->count; i++) {
        if (ids->items[i] >= tokenizer->num_ids || tokenizer->tokens[ids->items[i]].kind == RK_TOKEN_NONE)
            return RK_FAIL(RK_INVALID_ARGUMENT, "post_processor: no token has the id %d", ids->items[i]);
    }
    return NULL;
}

/* The model can read raw bytes if it has a token for each byte, or no token for unknown characters. */
static void read_bytes_if_possible(struct rk_tokenizer *tokenizer)
{
    struct rk_bpe *bpe = &tokenizer->bpe;
    bool is_complete = true;

    for (int byte = 0; byte < 256; byte++)
        is_complete = is_complete && bpe->byte_ids[byte] >= 0;
    if (is_complete || (bpe->unk_id < 0 && !bpe->byte_fallback))
        bpe->reads_bytes = rk_pretokenizer_drop_spelling(&tokenizer->pre);
    bpe->cuts_words = bpe->cuts_words && !bpe->reads_bytes;
}

struct rk_status *rk_tokenizer_read_json(struct rk_tokenizer *tokenizer, const struct rk_json *root)
{
    if (rk_json_type(root) != RK_JSON_OBJECT)
        return RK_FAIL(RK_INVALID_ARGUMENT, "expected an object");
    RK_TRY(rk_bpe_read(&tokenizer->bpe, rk_json_find(root, "model")));
    RK_TRY(rk_normalizer_read(&tokenizer->normalizer, rk_json_find(root, "normalizer"), "normalizer"));
    RK_TRY(rk_added_tokens_read(tokenizer, rk_json_find(root, "added_tokens")));
    RK_TRY(rk_pretokenizer_read(&tokenizer->pre, rk_json_find(root, "pre_tokenizer"), "pre_tokenizer"));
    RK_TRY(
        rk_post_processor_read(&tokenizer->around, rk_json_find(root, "post_processor"), "post_processor"));
    RK_TRY(rk_decoder_read(&tokenizer->decoder, rk_json_find(root, "decoder"), "decoder"));
    read_bytes_if_possible(tokenizer);
    build_id_table(tokenizer);
    RK_TRY(check_around(tokenizer, &tokenizer->around.prefix));
    return check_around(tokenizer, &tokenizer->around.suffix);
}
