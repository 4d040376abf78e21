/* Reading tokenizer.json: a BPE model over the byte alphabet, split and byte-level pre-tokenizers, NFC, added
 * tokens, template post-processors. Everything else that a file may ask for is refused by name. */
#include "driver-cli/tokenizer/tokenizer_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

#define MAX_ID (1 << 24) /* far above any vocabulary: bounds the id tables */

static const char gpt2_pattern[] =
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+";

static const char *type_of(const struct rk_json *json)
{
    return rk_json_as_string(rk_json_find(json, "type"), "");
}

/* --- model --- */

static struct rk_status *read_vocab(struct rk_bpe *bpe, const struct rk_json *vocab)
{
    if (rk_json_type(vocab) != RK_JSON_OBJECT)
        return RK_FAIL(RK_INVALID_ARGUMENT, "model.vocab: expected an object of token: id");
    bpe->vocab = rk_map_create();
    for (void *it = rk_json_iter(vocab); it; it = rk_json_iter_next(vocab, it)) {
        int64_t id = rk_json_as_int(rk_json_iter_value(it), -1);

        if (id < 0 || id > MAX_ID)
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "model.vocab: the id of a token must be an integer from 0 to %d", MAX_ID);
        (void)rk_map_put(bpe->vocab, rk_json_iter_key(it), (void *)(intptr_t)(id + 1));
    }
    for (int byte = 0; byte < 256; byte++) {
        char character[4];

        rk_byte_alphabet_char((uint8_t)byte, character);
        bpe->byte_id[byte] = rk_bpe_find(bpe, character);
    }
    return NULL;
}

/* "a b", or ["a", "b"] in newer files. The two parts are rk_free'd by the caller. */
static bool read_pair(const struct rk_json *json, char **left, char **right)
{
    const char *text = rk_json_as_string(json, NULL);
    const char *space = text ? strchr(text, ' ') : NULL;
    const char *a = rk_json_as_string(rk_json_at(json, 0), NULL);
    const char *b = rk_json_as_string(rk_json_at(json, 1), NULL);

    if (space) {
        *left = rk_strndup(text, (size_t)(space - text));
        *right = rk_strdup(space + 1);
        return strchr(*right, ' ') == NULL;
    }
    *left = rk_strdup(a ? a : "");
    *right = rk_strdup(b ? b : "");
    return a && b && rk_json_count(json) == 2;
}

static struct rk_status *read_merge(struct rk_bpe *bpe, const struct rk_json *json, int32_t rank)
{
    char *left = NULL, *right = NULL, *both = NULL;
    struct rk_status *st = NULL;
    int32_t left_id, right_id, merged_id;

    if (!read_pair(json, &left, &right)) {
        st = RK_FAIL(RK_INVALID_ARGUMENT,
                     "model.merges[%d]: expected \"left right\" or [\"left\", \"right\"]", rank);
        goto out;
    }
    both = rk_format("%s%s", left, right);
    left_id = rk_bpe_find(bpe, left);
    right_id = rk_bpe_find(bpe, right);
    merged_id = rk_bpe_find(bpe, both);
    if (left_id < 0 || right_id < 0 || merged_id < 0)
        st = RK_FAIL(RK_INVALID_ARGUMENT,
                     "model.merges[%d]: its parts and their concatenation must be in the vocabulary", rank);
    else
        rk_bpe_add_merge(bpe, left_id, right_id, merged_id, rank);
out:
    rk_free(left);
    rk_free(right);
    rk_free(both);
    return st;
}

static struct rk_status *refuse_if_set(const struct rk_json *object, const char *where, const char *key)
{
    const struct rk_json *value = rk_json_find(object, key);
    const char *text = rk_json_as_string(value, NULL);

    if (rk_json_is_null(value) || (text && text[0] == '\0') ||
        (rk_json_type(value) == RK_JSON_BOOL && !rk_json_as_bool(value, true)))
        return NULL;
    return RK_FAIL(RK_UNIMPLEMENTED, "%s.%s is not supported", where, key);
}

static struct rk_status *read_model(struct rk_bpe *bpe, const struct rk_json *model)
{
    static const char *const refused[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix",
                                          "byte_fallback"};
    const struct rk_json *merges = rk_json_find(model, "merges");

    if (strcmp(type_of(model), "BPE") != 0 && !(type_of(model)[0] == '\0' && merges))
        return RK_FAIL(RK_UNIMPLEMENTED, "model.type '%s' is not supported (BPE is)", type_of(model));
    for (size_t i = 0; i < RK_ARRAY_LEN(refused); i++)
        RK_TRY(refuse_if_set(model, "model", refused[i]));
    RK_TRY(read_vocab(bpe, rk_json_find(model, "vocab")));
    if (rk_json_type(merges) != RK_JSON_ARRAY)
        return RK_FAIL(RK_INVALID_ARGUMENT, "model.merges: expected a list");
    rk_bpe_init_merges(bpe, rk_json_count(merges));
    for (int64_t i = 0; i < rk_json_count(merges); i++)
        RK_TRY(read_merge(bpe, rk_json_at(merges, i), (int32_t)i));
    return rk_json_opt_bool(model, "model", "ignore_merges", &bpe->ignore_merges);
}

/* --- normalizer, pre-tokenizer, post-processor --- */

static struct rk_status *read_normalizer(struct rk_tokenizer *tokenizer, const struct rk_json *json)
{
    if (rk_json_is_null(json))
        return NULL;
    if (strcmp(type_of(json), "NFC") != 0)
        return RK_FAIL(RK_UNIMPLEMENTED, "normalizer.type '%s' is not supported (NFC and null are)",
                       type_of(json));
    tokenizer->use_nfc = true;
    return NULL;
}

static struct rk_status *read_split(struct rk_pretokenizer *pre, const struct rk_json *json)
{
    const char *behavior = rk_json_as_string(rk_json_find(json, "behavior"), "");
    const char *pattern = rk_json_as_string(rk_json_find_path(json, "pattern.Regex"), NULL);
    bool invert = rk_json_as_bool(rk_json_find(json, "invert"), false);

    if (!pattern)
        return RK_FAIL(RK_UNIMPLEMENTED, "pre_tokenizer: a Split needs pattern.Regex");
    if (strcmp(behavior, "Isolated") == 0)
        return rk_pretokenizer_add_split(pre, pattern, true, true);
    if (strcmp(behavior, "Removed") == 0)
        return rk_pretokenizer_add_split(pre, pattern, invert, !invert);
    return RK_FAIL(RK_UNIMPLEMENTED,
                   "pre_tokenizer: Split behavior '%s' is not supported (Isolated and Removed are)",
                   behavior);
}

static struct rk_status *read_pre_step(struct rk_pretokenizer *pre, const struct rk_json *json,
                                       bool *is_byte_level)
{
    if (strcmp(type_of(json), "Split") == 0)
        return read_split(pre, json);
    if (strcmp(type_of(json), "ByteLevel") != 0)
        return RK_FAIL(RK_UNIMPLEMENTED, "pre_tokenizer.type '%s' is not supported (ByteLevel and Split are)",
                       type_of(json));
    *is_byte_level = true;
    RK_TRY(rk_json_opt_bool(json, "pre_tokenizer", "add_prefix_space", &pre->add_prefix_space));
    if (rk_json_as_bool(rk_json_find(json, "use_regex"), true))
        return rk_pretokenizer_add_split(pre, gpt2_pattern, true, true);
    return NULL;
}

static struct rk_status *read_pre_tokenizer(struct rk_tokenizer *tokenizer, const struct rk_json *json)
{
    const struct rk_json *steps = rk_json_find(json, "pretokenizers");
    bool is_byte_level = false;

    if (strcmp(type_of(json), "Sequence") == 0) {
        for (int64_t i = 0; i < rk_json_count(steps); i++)
            RK_TRY(read_pre_step(&tokenizer->pre, rk_json_at(steps, i), &is_byte_level));
    } else if (!rk_json_is_null(json)) {
        RK_TRY(read_pre_step(&tokenizer->pre, json, &is_byte_level));
    }
    if (!is_byte_level)
        return RK_FAIL(RK_UNIMPLEMENTED,
                       "pre_tokenizer: only byte-level tokenizers are supported (no ByteLevel step)");
    return NULL;
}

static struct rk_status *read_template(struct rk_tokenizer *tokenizer, const struct rk_json *json)
{
    const struct rk_json *single = rk_json_find(json, "single");
    bool is_after_text = false;

    for (int64_t i = 0; i < rk_json_count(single); i++) {
        const struct rk_json *item = rk_json_at(single, i);
        const char *special = rk_json_as_string(rk_json_find_path(item, "SpecialToken.id"), NULL);
        int32_t id = special ? rk_tokenizer_find_token(tokenizer, special) : -1;

        if (rk_json_find(item, "Sequence")) {
            is_after_text = true;
            continue;
        }
        if (id < 0)
            return RK_FAIL(RK_INVALID_ARGUMENT, "post_processor: special token '%s' is not in the vocabulary",
                           special ? special : "");
        if (is_after_text)
            rk_array_append(&tokenizer->suffix, id);
        else
            rk_array_append(&tokenizer->prefix, id);
    }
    return NULL;
}

static struct rk_status *read_post_step(struct rk_tokenizer *tokenizer, const struct rk_json *json)
{
    if (rk_json_is_null(json) || strcmp(type_of(json), "ByteLevel") == 0)
        return NULL;
    if (strcmp(type_of(json), "TemplateProcessing") == 0)
        return read_template(tokenizer, json);
    return RK_FAIL(RK_UNIMPLEMENTED,
                   "post_processor.type '%s' is not supported (ByteLevel and TemplateProcessing are)",
                   type_of(json));
}

static struct rk_status *read_post_processor(struct rk_tokenizer *tokenizer, const struct rk_json *json)
{
    const struct rk_json *steps = rk_json_find(json, "processors");

    if (strcmp(type_of(json), "Sequence") != 0)
        return read_post_step(tokenizer, json);
    for (int64_t i = 0; i < rk_json_count(steps); i++)
        RK_TRY(read_post_step(tokenizer, rk_json_at(steps, i)));
    return NULL;
}

static struct rk_status *read_decoder(const struct rk_json *json)
{
    if (rk_json_is_null(json) || strcmp(type_of(json), "ByteLevel") == 0)
        return NULL;
    return RK_FAIL(RK_UNIMPLEMENTED, "decoder.type '%s' is not supported (ByteLevel is)", type_of(json));
}

/* --- added tokens and id tables --- */

static struct rk_status *read_added_token(struct rk_tokenizer *tokenizer, const struct rk_json *json)
{
    static const char *const refused[] = {"single_word", "lstrip", "rstrip"};
    struct rk_added_token token = {.is_normalized = true};
    const char *content = NULL;
    int64_t id = 0;

    RK_TRY(rk_json_get_string(json, "added_tokens", "content", &content));
    RK_TRY(rk_json_get_i64(json, "added_tokens", "id", 0, MAX_ID, &id));
    RK_TRY(rk_json_opt_bool(json, "added_tokens", "special", &token.is_special));
    RK_TRY(rk_json_opt_bool(json, "added_tokens", "normalized", &token.is_normalized));
    for (size_t i = 0; i < RK_ARRAY_LEN(refused); i++)
        RK_TRY(refuse_if_set(json, "added_tokens", refused[i]));
    if (content[0] == '\0')
        return RK_FAIL(RK_INVALID_ARGUMENT, "added_tokens: content is empty (id %lld)", (long long)id);
    token.content = rk_strdup(content);
    token.bytes = strlen(content);
    token.id = (int32_t)id;
    rk_array_append(&tokenizer->added, token);
    return NULL;
}

static void set_token(struct rk_tokenizer *tokenizer, int64_t id, const char *text, enum rk_token_kind kind)
{
    tokenizer->token_text[id] = text;
    tokenizer->token_kind[id] = (uint8_t)kind;
}

static void build_id_tables(struct rk_tokenizer *tokenizer)
{
    const struct rk_map *vocab = tokenizer->bpe.vocab;

    for (int64_t i = 0; i < rk_map_count(vocab); i++)
        tokenizer->num_ids = RK_MAX(tokenizer->num_ids, (int64_t)(intptr_t)rk_map_value_at(vocab, i));
    for (int64_t i = 0; i < tokenizer->added.count; i++)
        tokenizer->num_ids = RK_MAX(tokenizer->num_ids, (int64_t)tokenizer->added.items[i].id + 1);
    tokenizer->token_text = rk_calloc((size_t)tokenizer->num_ids, sizeof(*tokenizer->token_text));
    tokenizer->token_kind = rk_calloc((size_t)tokenizer->num_ids, sizeof(*tokenizer->token_kind));
    for (int64_t i = 0; i < rk_map_count(vocab); i++)
        set_token(tokenizer, (int64_t)(intptr_t)rk_map_value_at(vocab, i) - 1, rk_map_key_at(vocab, i),
                  RK_TOKEN_MODEL);
    for (int64_t i = 0; i < tokenizer->added.count; i++) {
        const struct rk_added_token *token = &tokenizer->added.items[i];

        set_token(tokenizer, token->id, token->content,
                  token->is_special ? RK_TOKEN_SPECIAL : RK_TOKEN_ADDED);
    }
}

struct rk_status *rk_tokenizer_read_json(struct rk_tokenizer *tokenizer, const struct rk_json *root)
{
    const struct rk_json *added = rk_json_find(root, "added_tokens");

    if (rk_json_type(root) != RK_JSON_OBJECT)
        return RK_FAIL(RK_INVALID_ARGUMENT, "expected an object");
    RK_TRY(read_model(&tokenizer->bpe, rk_json_find(root, "model")));
    for (int64_t i = 0; i < rk_json_count(added); i++)
        RK_TRY(read_added_token(tokenizer, rk_json_at(added, i)));
    RK_TRY(read_normalizer(tokenizer, rk_json_find(root, "normalizer")));
    RK_TRY(read_pre_tokenizer(tokenizer, rk_json_find(root, "pre_tokenizer")));
    RK_TRY(read_post_processor(tokenizer, rk_json_find(root, "post_processor")));
    RK_TRY(read_decoder(rk_json_find(root, "decoder")));
    build_id_tables(tokenizer);
    return NULL;
}
