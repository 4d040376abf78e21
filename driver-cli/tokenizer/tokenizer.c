/* Encoding and decoding: added tokens are cut out first, what is left is normalised, pre-tokenised and
 * byte-pair encoded; decoding maps the byte alphabet back. */
#include "driver-cli/tokenizer/tokenizer_internal.h"

#include <string.h>
#include <utf8proc.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

#define FILE_BYTES_MAX (64 << 20)
#define TEXT_BYTES_MAX (64 << 20)

struct encoder {
    const struct rk_tokenizer *tokenizer;
    rk_ids_t *ids;
};

void rk_tokenizer_destroy(struct rk_tokenizer *tokenizer)
{
    if (!tokenizer)
        return;
    rk_bpe_fini(&tokenizer->bpe);
    rk_pretokenizer_fini(&tokenizer->pre);
    for (int64_t i = 0; i < tokenizer->added.count; i++)
        rk_free(tokenizer->added.items[i].content);
    rk_array_fini(&tokenizer->added);
    rk_array_fini(&tokenizer->prefix);
    rk_array_fini(&tokenizer->suffix);
    rk_free(tokenizer->token_text);
    rk_free(tokenizer->token_kind);
    rk_free(tokenizer);
}

static struct rk_status *create(struct rk_tokenizer **out, struct rk_json *root, const char *source)
{
    struct rk_tokenizer *tokenizer = rk_calloc(1, sizeof(*tokenizer));
    struct rk_status *st = rk_tokenizer_read_json(tokenizer, root);

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
    struct rk_json *root = NULL;

    *out = NULL;
    RK_TRY(rk_json_parse_file(&root, path, FILE_BYTES_MAX, RK_JSON_ALLOW_NUL | RK_JSON_BIG_INT_AS_REAL));
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

static struct rk_status *encode_word(void *user, const char *word, size_t bytes)
{
    struct encoder *encoder = user;

    return rk_bpe_encode_word(&encoder->tokenizer->bpe, word, bytes, encoder->ids);
}

/* The longest added token of that pass at the beginning of the text, or NULL. */
static const struct rk_added_token *added_at(const struct rk_tokenizer *tokenizer, const char *text,
                                             size_t bytes, bool is_normalized)
{
    const struct rk_added_token *best = NULL;

    for (int64_t i = 0; i < tokenizer->added.count; i++) {
        const struct rk_added_token *token = &tokenizer->added.items[i];

        if (token->is_normalized == is_normalized && token->bytes <= bytes &&
            (!best || token->bytes > best->bytes) && memcmp(text, token->content, token->bytes) == 0)
            best = token;
    }
    return best;
}

typedef struct rk_status *(*piece_fn_t)(struct encoder *encoder, const char *text, size_t bytes);

/* Emits added tokens of one pass and hands the text between them on. */
static struct rk_status *cut_added(struct encoder *encoder, const char *text, size_t bytes,
                                   bool is_normalized, piece_fn_t on_piece)
{
    size_t begin = 0;

    for (size_t at = 0; at < bytes;) {
        const struct rk_added_token *token =
            added_at(encoder->tokenizer, text + at, bytes - at, is_normalized);

        if (!token) {
            at++;
            continue;
        }
        RK_TRY(on_piece(encoder, text + begin, at - begin));
        rk_array_append(encoder->ids, token->id);
        at += token->bytes;
        begin = at;
    }
    return on_piece(encoder, text + begin, bytes - begin);
}

static struct rk_status *encode_words(struct encoder *encoder, const char *text, size_t bytes)
{
    return rk_pretokenizer_run(&encoder->tokenizer->pre, text, bytes, encode_word, encoder);
}

static bool is_ascii(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if ((uint8_t)text[i] >= 0x80)
            return false;
    }
    return true;
}

static struct rk_status *encode_raw_piece(struct encoder *encoder, const char *text, size_t bytes)
{
    utf8proc_uint8_t *normal = NULL;
    utf8proc_ssize_t normal_bytes;
    struct rk_status *st;

    if (!encoder->tokenizer->use_nfc || is_ascii(text, bytes))
        return cut_added(encoder, text, bytes, true, encode_words);
    normal_bytes = utf8proc_map((const utf8proc_uint8_t *)text, (utf8proc_ssize_t)bytes, &normal,
                                UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (normal_bytes < 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "normalisation: %s", utf8proc_errmsg(normal_bytes));
    st = cut_added(encoder, (const char *)normal, (size_t)normal_bytes, true, encode_words);
    rk_free(normal);
    return st;
}

static void append_ids(rk_ids_t *out, const rk_ids_t *ids)
{
    for (int64_t i = 0; i < ids->count; i++)
        rk_array_append(out, ids->items[i]);
}

struct rk_status *rk_tokenizer_encode(const struct rk_tokenizer *tokenizer, const char *text, size_t bytes,
                                      bool add_special_tokens, struct rk_tokenizer_ids *out)
{
    rk_ids_t ids = {0};
    struct encoder encoder = {.tokenizer = tokenizer, .ids = &ids};
    struct rk_status *st = NULL;

    *out = (struct rk_tokenizer_ids){0};
    if (bytes > TEXT_BYTES_MAX)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "text of %zu bytes, the limit is %d", bytes, TEXT_BYTES_MAX);
    if (!rk_utf8_is_valid(text, bytes))
        return RK_FAIL(RK_INVALID_ARGUMENT, "text is not valid UTF-8");
    if (add_special_tokens)
        append_ids(&ids, &tokenizer->prefix);
    RK_TRY_GOTO(st, cut_added(&encoder, text, bytes, false, encode_raw_piece), out);
    if (add_special_tokens)
        append_ids(&ids, &tokenizer->suffix);
    *out = (struct rk_tokenizer_ids){.items = ids.items, .count = ids.count};
    return NULL;
out:
    rk_array_fini(&ids);
    return st;
}

static void append_token_bytes(const char *text, struct rk_str *raw)
{
    const char *at = text;

    while (*at) {
        int byte = rk_byte_alphabet_read(&at);
        char character = (char)byte;

        if (byte < 0) { /* not of the byte alphabet: the token's text stands for itself */
            rk_str_append(raw, text);
            return;
        }
        rk_str_append_bytes(raw, &character, 1);
    }
}

/* Appends `raw`, with U+FFFD for each byte that does not belong to valid UTF-8. */
static void append_utf8(struct rk_str *out, const struct rk_str *raw)
{
    const utf8proc_uint8_t *text = (const utf8proc_uint8_t *)raw->text;
    utf8proc_ssize_t left = (utf8proc_ssize_t)raw->bytes;

    while (left > 0) {
        utf8proc_int32_t code_point;
        utf8proc_ssize_t used = utf8proc_iterate(text, left, &code_point);

        if (used <= 0) {
            rk_str_append(out, "\xef\xbf\xbd");
            used = 1;
        } else {
            rk_str_append_bytes(out, (const char *)text, (size_t)used);
        }
        text += used;
        left -= used;
    }
}

void rk_tokenizer_decode(const struct rk_tokenizer *tokenizer, const int32_t *ids, int64_t count,
                         bool skip_special_tokens, struct rk_str *out)
{
    struct rk_str raw = {0};

    for (int64_t i = 0; i < count; i++) {
        int32_t id = ids[i];
        enum rk_token_kind kind =
            id >= 0 && id < tokenizer->num_ids ? tokenizer->token_kind[id] : RK_TOKEN_NONE;

        if (kind == RK_TOKEN_NONE || (kind == RK_TOKEN_SPECIAL && skip_special_tokens))
            continue;
        if (kind == RK_TOKEN_MODEL)
            append_token_bytes(tokenizer->token_text[id], &raw);
        else
            rk_str_append(&raw, tokenizer->token_text[id]);
    }
    append_utf8(out, &raw);
    rk_str_fini(&raw);
}

int32_t rk_tokenizer_find_token(const struct rk_tokenizer *tokenizer, const char *token)
{
    for (int64_t i = 0; i < tokenizer->added.count; i++) {
        if (strcmp(tokenizer->added.items[i].content, token) == 0)
            return tokenizer->added.items[i].id;
    }
    return rk_bpe_find(&tokenizer->bpe, token);
}

int64_t rk_tokenizer_vocab_size(const struct rk_tokenizer *tokenizer)
{
    return tokenizer->num_ids;
}
