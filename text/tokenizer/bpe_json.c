/* Reading the BPE model: vocabulary, merges, and the tables that encoding looks ids up in. */
#include "text/tokenizer/tokenizer_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

static const char space_marker[] = "\xe2\x96\x81";

static int32_t find_token(const struct rk_bpe *bpe, const char *token)
{
    return rk_bpe_find(bpe, token, strlen(token));
}

static void put_char(struct rk_bpe *bpe, const char *key, int32_t id)
{
    int used;
    int32_t c = rk_utf8_read(key, &used), **page;

    if (key[0] == '\0' || key[used] != '\0')
        return;
    page = &bpe->char_ids[c >> 8];
    if (!*page) {
        *page = rk_malloc(256 * sizeof(**page));
        memset(*page, 0xff, 256 * sizeof(**page));
    }
    (*page)[c & 0xff] = id;
}

static void fill_byte_tables(struct rk_bpe *bpe)
{
    for (int byte = 0; byte < 256; byte++) {
        struct rk_str character = {0};
        char *fallback = rk_format("<0x%02X>", (unsigned)byte);
        char raw = (char)byte;

        rk_byte_alphabet_append(&character, &raw, 1);
        bpe->byte_ids[byte] = rk_bpe_find(bpe, character.text, character.bytes);
        bpe->fallback_ids[byte] = find_token(bpe, fallback);
        rk_str_fini(&character);
        rk_free(fallback);
    }
}

static struct rk_status *read_vocab(struct rk_bpe *bpe, const struct rk_json *vocab)
{
    if (rk_json_type(vocab) != RK_JSON_OBJECT)
        return RK_FAIL(RK_INVALID_ARGUMENT, "model.vocab: expected an object of token: id");
    bpe->vocab = rk_map_create();
    for (void *it = rk_json_iter(vocab); it; it = rk_json_iter_next(vocab, it)) {
        const char *key = rk_json_iter_key(it);
        int64_t id = rk_json_as_int(rk_json_iter_value(it), -1);

        if (id < 0 || id > RK_TOKEN_ID_MAX)
            return RK_FAIL(RK_INVALID_ARGUMENT, "model.vocab: the id of '%s' must be an integer from 0 to %d",
                           key, RK_TOKEN_ID_MAX);
        (void)rk_map_put(bpe->vocab, key, (void *)(intptr_t)(id + 1));
        bpe->max_token_bytes = RK_MAX(bpe->max_token_bytes, strlen(key));
        put_char(bpe, key, (int32_t)id);
    }
    fill_byte_tables(bpe);
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

static struct rk_status *add_merge(struct rk_bpe *bpe, const char *left, const char *right, int64_t rank)
{
    char *both = rk_format("%s%s", left, right);
    int32_t left_id = find_token(bpe, left), right_id = find_token(bpe, right),
            merged_id = find_token(bpe, both);
    struct rk_status *st = NULL;

    if (left_id < 0 || right_id < 0 || merged_id < 0)
        st = RK_FAIL(RK_INVALID_ARGUMENT,
                     "model.merges[%lld]: its parts and their concatenation must be in the vocabulary",
                     (long long)rank);
    else
        rk_bpe_put_merge(bpe, left_id, right_id, (uint64_t)rank << 32 | (uint32_t)merged_id);
    if (left[0] != '\0' && rk_str_has_prefix(right, space_marker))
        bpe->joins[(uint8_t)left[strlen(left) - 1]] = true;
    rk_free(both);
    return st;
}

static struct rk_status *read_merge(struct rk_bpe *bpe, const struct rk_json *json, int64_t rank)
{
    char *left = NULL, *right = NULL;
    struct rk_status *st = NULL;

    if (read_pair(json, &left, &right))
        st = add_merge(bpe, left, right, rank);
    else
        st = RK_FAIL(RK_INVALID_ARGUMENT,
                     "model.merges[%lld]: expected \"left right\" or [\"left\", \"right\"]", (long long)rank);
    rk_free(left);
    rk_free(right);
    return st;
}

static struct rk_status *read_merges(struct rk_bpe *bpe, const struct rk_json *merges)
{
    int64_t num_merges = rk_json_count(merges), rank = 0;

    if (rk_json_type(merges) != RK_JSON_ARRAY)
        return RK_FAIL(RK_INVALID_ARGUMENT, "model.merges: expected a list");
    rk_bpe_init_merges(bpe, num_merges);
    for (int64_t i = 0; i < num_merges; i++) {
        const struct rk_json *merge = rk_json_at(merges, i);

        if (rk_str_has_prefix(rk_json_as_string(merge, ""), "#version"))
            continue; /* the header line of a merges.txt */
        RK_TRY(read_merge(bpe, merge, rank++));
    }
    return NULL;
}

static struct rk_status *refuse_text(const struct rk_json *model, const char *key)
{
    const char *text = NULL;

    RK_TRY(rk_json_opt_string(model, "model", key, &text));
    if (text && text[0] != '\0')
        return RK_FAIL(RK_UNIMPLEMENTED, "model.%s '%s' is not supported (null or \"\" is)", key, text);
    return NULL;
}

static struct rk_status *read_options(struct rk_bpe *bpe, const struct rk_json *model)
{
    double dropout = 0;

    RK_TRY(rk_json_opt_f64(model, "model", "dropout", &dropout));
    if (dropout != 0)
        return RK_FAIL(RK_UNIMPLEMENTED, "model.dropout %g is not supported (null or 0 is)", dropout);
    RK_TRY(refuse_text(model, "continuing_subword_prefix"));
    RK_TRY(refuse_text(model, "end_of_word_suffix"));
    RK_TRY(rk_json_opt_bool(model, "model", "fuse_unk", &bpe->fuse_unk));
    RK_TRY(rk_json_opt_bool(model, "model", "byte_fallback", &bpe->byte_fallback));
    return rk_json_opt_bool(model, "model", "ignore_merges", &bpe->ignore_merges);
}

struct rk_status *rk_bpe_read(struct rk_bpe *bpe, const struct rk_json *model)
{
    const struct rk_json *merges = rk_json_find(model, "merges");
    const char *type = rk_component_type(model), *unk_token = NULL;

    if (strcmp(type, "BPE") != 0 && !(type[0] == '\0' && merges))
        return RK_FAIL(RK_UNIMPLEMENTED, "model.type '%s' is not supported (BPE is)", type);
    RK_TRY(read_options(bpe, model));
    RK_TRY(read_vocab(bpe, rk_json_find(model, "vocab")));
    RK_TRY(rk_json_opt_string(model, "model", "unk_token", &unk_token));
    bpe->unk_id = unk_token ? find_token(bpe, unk_token) : -1;
    RK_TRY(read_merges(bpe, merges));
    /* Tokens of unknown characters and of bytes end in ">", whatever text they represent. */
    bpe->cuts_words = find_token(bpe, space_marker) >= 0 && !bpe->ignore_merges &&
                      !(bpe->joins['>'] && (bpe->byte_fallback || bpe->unk_id >= 0));
    return NULL;
}
