/* Encoding and decoding: added tokens are extracted first, the rest is normalised, pre-tokenised and
 * byte-pair encoded; decoding passes the tokens' texts to the decoder. */
#include "text/tokenizer/tokenizer_internal.h"

#include <stdatomic.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

#define FILE_BYTES_MAX (64 << 20)

/* --- working memory --- */

static void scratch_destroy(struct rk_scratch *scratch)
{
    if (!scratch)
        return;
    rk_matcher_destroy(scratch->matcher);
    rk_bpe_scratch_fini(&scratch->bpe);
    rk_free(scratch);
}

static struct rk_scratch *scratch_take(const struct rk_tokenizer *tokenizer)
{
    struct rk_scratch *scratch = atomic_exchange(tokenizer->scratch, NULL);

    if (!scratch) {
        scratch = rk_calloc(1, sizeof(*scratch));
        scratch->matcher = rk_matcher_create();
    }
    return scratch;
}

static void scratch_put(const struct rk_tokenizer *tokenizer, struct rk_scratch *scratch)
{
    scratch_destroy(atomic_exchange(tokenizer->scratch, scratch));
}

/* --- making --- */

void rk_tokenizer_destroy(struct rk_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    rk_bpe_fini(&tokenizer->bpe);
    rk_added_tokens_fini(&tokenizer->added);
    rk_normalizer_fini(&tokenizer->normalizer);
    rk_pretokenizer_fini(&tokenizer->pre);
    rk_decoder_fini(&tokenizer->decoder);
    rk_array_fini(&tokenizer->around.prefix);
    rk_array_fini(&tokenizer->around.suffix);
    rk_free(tokenizer->tokens);
    scratch_destroy(*tokenizer->scratch);
    rk_free(tokenizer->scratch);
    rk_free(tokenizer);
}

static struct rk_status *create(struct rk_tokenizer **out, struct rk_json *root, const char *source)
{
    struct rk_tokenizer *tokenizer = rk_calloc(1, sizeof(*tokenizer));
    struct rk_status *st;

    tokenizer->scratch = rk_calloc(1, sizeof(*tokenizer->scratch));
    st = rk_tokenizer_read_json(tokenizer, root);
    rk_json_free(root);
    if (st) {
        rk_tokenizer_destroy(tokenizer);
        *out = NULL;
        return RK_WRAP(st, "%s", source);
    }
    *out = tokenizer;
    return NULL;
}

struct rk_status *rk_tokenizer_create_file(struct rk_tokenizer **out, const char *path)
{
    return rk_tokenizer_create_special(out, path, NULL);
}

struct rk_status *rk_tokenizer_create_special(struct rk_tokenizer **out, const char *path,
                                              const struct rk_json *special)
{
    struct rk_json *root = NULL;

    *out = NULL;
    RK_TRY(rk_json_parse_file(&root, path, FILE_BYTES_MAX, RK_JSON_ALLOW_NUL | RK_JSON_BIG_INT_AS_REAL));
    rk_special_tokens_mark(root, special);
    return create(out, root, path);
}

struct rk_status *rk_tokenizer_create_json(struct rk_tokenizer **out, const char *text, size_t bytes,
                                           const char *source)
{
    struct rk_json *root = NULL;

    *out = NULL;
    RK_TRY(rk_json_parse(&root, text, bytes, source, RK_JSON_ALLOW_NUL | RK_JSON_BIG_INT_AS_REAL));
    return create(out, root, source);
}

/* --- encoding --- */

struct encoder {
    const struct rk_tokenizer *tokenizer;
    struct rk_scratch *scratch;
    rk_ids_t ids;
};

static struct rk_status *encode_word(void *user, const char *word, size_t bytes)
{
    struct encoder *encoder = user;

    return rk_bpe_encode(&encoder->tokenizer->bpe, &encoder->scratch->bpe, word, bytes, &encoder->ids);
}

static void append_token(void *user, int32_t id)
{
    struct encoder *encoder = user;

    rk_array_append(&encoder->ids, id);
}

static struct rk_status *encode_normal(void *user, struct rk_piece piece)
{
    struct encoder *encoder = user;

    return rk_pretokenizer_run(&encoder->tokenizer->pre, encoder->scratch->matcher, piece, encode_word,
                               encoder);
}

static struct rk_status *encode_raw(void *user, struct rk_piece piece)
{
    struct encoder *encoder = user;
    const struct rk_tokenizer *tokenizer = encoder->tokenizer;
    struct rk_added_events events = {.on_text = encode_normal, .on_token = append_token, .user = encoder};
    struct rk_str buf = {0};
    struct rk_status *st = rk_normalizer_run(&tokenizer->normalizer, encoder->scratch->matcher, &piece, &buf);

    if (!st)
        st = rk_added_tokens_cut(&tokenizer->added, true, piece, &events);
    rk_str_fini(&buf);
    return st;
}

static void append_ids(rk_ids_t *out, const rk_ids_t *ids)
{
    for (int64_t i = 0; i < ids->count; i++)
        rk_array_append(out, ids->items[i]);
}

static struct rk_status *encode_text(struct encoder *encoder, const char *text, size_t bytes,
                                     bool add_special_tokens)
{
    const struct rk_around *around = &encoder->tokenizer->around;
    struct rk_added_events events = {.on_text = encode_raw, .on_token = append_token, .user = encoder};
    struct rk_piece piece = {.text = text, .bytes = bytes, .head = 1};

    if (add_special_tokens)
        append_ids(&encoder->ids, &around->prefix);
    RK_TRY(rk_added_tokens_cut(&encoder->tokenizer->added, false, piece, &events));
    if (add_special_tokens)
        append_ids(&encoder->ids, &around->suffix);
    return NULL;
}

void rk_tokenizer_limit_ids(struct rk_tokenizer *tokenizer, int64_t vocab_size)
{
    tokenizer->model_ids = vocab_size;
}

static struct rk_status *check_ids(const struct rk_tokenizer *tokenizer, const rk_ids_t *ids)
{
    for (int64_t i = 0; i < ids->count; i++) {
        int32_t id = ids->items[i];
        const struct rk_token *token = &tokenizer->tokens[id];

        if (id >= tokenizer->model_ids)
            return RK_FAIL(
                RK_INVALID_ARGUMENT,
                "token %d, \"%.*s\", is beyond the model's vocab_size of %lld (config.json): is the "
                "tokenizer, of %lld tokens, that of the model?",
                (int)id, (int)RK_MIN(token->bytes, 64), token->text, (long long)tokenizer->model_ids,
                (long long)tokenizer->num_ids);
    }
    return NULL;
}

struct rk_status *rk_tokenizer_encode(const struct rk_tokenizer *tokenizer, const char *text, size_t bytes,
                                      bool add_special_tokens, struct rk_tokenizer_ids *out)
{
    struct encoder encoder = {.tokenizer = tokenizer};
    struct rk_status *st;

    *out = (struct rk_tokenizer_ids){0};
    if (bytes > RK_TEXT_BYTES_MAX)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "text of %zu bytes, the limit is %d", bytes, RK_TEXT_BYTES_MAX);
    if (!rk_text_is_utf8(text, bytes))
        return RK_FAIL(RK_INVALID_ARGUMENT, "text is not valid UTF-8");
    encoder.scratch = scratch_take(tokenizer);
    st = encode_text(&encoder, text, bytes, add_special_tokens);
    scratch_put(tokenizer, encoder.scratch);
    if (!st)
        st = check_ids(tokenizer, &encoder.ids);
    if (st)
        rk_array_fini(&encoder.ids);
    *out = (struct rk_tokenizer_ids){.items = encoder.ids.items, .count = encoder.ids.count};
    return st;
}

/* --- decoding --- */

void rk_tokenizer_decode(const struct rk_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                         bool skip_special_tokens, struct rk_str *out)
{
    struct rk_scratch *scratch = scratch_take(tokenizer);
    struct rk_token_texts texts = {0};

    for (int64_t i = 0; i < count; i++) {
        const struct rk_token *token =
            ids[i] >= 0 && ids[i] < tokenizer->num_ids ? &tokenizer->tokens[ids[i]] : NULL;

        if (token && token->kind != RK_TOKEN_NONE &&
            !(token->kind == RK_TOKEN_SPECIAL && skip_special_tokens))
            rk_token_texts_append(&texts, token->text, token->bytes);
    }
    rk_decoder_run(&tokenizer->decoder, scratch->matcher, &texts, out);
    scratch_put(tokenizer, scratch);
}

int32_t rk_tokenizer_find_token(const struct rk_tokenizer *tokenizer, const char *token)
{
    size_t bytes = strlen(token);

    for (int64_t i = 0; i < tokenizer->added.tokens.count; i++) {
        const struct rk_added_token *added = &tokenizer->added.tokens.items[i];

        if (added->content.bytes == bytes && memcmp(added->content.text, token, bytes) == 0)
            return added->id;
    }
    return rk_bpe_find(&tokenizer->bpe, token, bytes);
}

int64_t rk_tokenizer_vocab_size(const struct rk_tokenizer *tokenizer)
{
    return tokenizer->num_ids;
}
