/* The BPE model: from a word to the ids of its characters or bytes, which bpe_merge.c merges. Short words are
 * kept in a cache of fixed size. */
#include "text/tokenizer/tokenizer_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

#define CACHE_SLOTS      (1 << 15)
#define CACHE_WORD_BYTES 30
#define CACHE_IDS        8

static const char space_marker[] = "\xe2\x96\x81";

/* One cache line. */
struct rk_cached_word {
    uint8_t bytes; /* 0: empty */
    uint8_t count;
    char word[CACHE_WORD_BYTES];
    int32_t ids[CACHE_IDS];
};

int32_t rk_bpe_find(const struct rk_bpe *bpe, const char *token, size_t bytes)
{
    char *key;
    void *value;

    if (bytes > bpe->max_token_bytes || memchr(token, '\0', bytes))
        return -1;
    key = rk_strndup(token, bytes);
    value = rk_map_find(bpe->vocab, key);
    rk_free(key);
    return value ? (int32_t)((intptr_t)value - 1) : -1;
}

static uint64_t hash_pair(uint64_t pair)
{
    pair ^= pair >> 31;
    pair *= 0x9e3779b97f4a7c15u;
    return pair ^ pair >> 29;
}

static struct rk_merge *slot_of(const struct rk_bpe *bpe, uint64_t pair)
{
    uint64_t mask = (uint64_t)bpe->num_slots - 1;
    uint64_t i = hash_pair(pair) & mask;

    while (bpe->merges[i].merge != RK_BPE_NO_MERGE && bpe->merges[i].pair != pair)
        i = (i + 1) & mask;
    return &bpe->merges[i];
}

void rk_bpe_init_merges(struct rk_bpe *bpe, int64_t num_merges)
{
    bpe->num_slots = 16;
    while (bpe->num_slots < 2 * num_merges)
        bpe->num_slots *= 2;
    bpe->merges = rk_calloc((size_t)bpe->num_slots, sizeof(*bpe->merges));
    for (int64_t i = 0; i < bpe->num_slots; i++)
        bpe->merges[i].merge = RK_BPE_NO_MERGE;
}

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

void rk_bpe_put_merge(struct rk_bpe *bpe, int32_t left, int32_t right, uint64_t merge)
{
    struct rk_merge *slot = slot_of(bpe, pair_of(left, right));

    *slot = (struct rk_merge){.pair = pair_of(left, right), .merge = merge};
}

uint64_t rk_bpe_find_merge(const struct rk_bpe *bpe, int32_t left, int32_t right)
{
    return slot_of(bpe, pair_of(left, right))->merge;
}

void rk_bpe_fini(struct rk_bpe *bpe)
{
    rk_map_destroy(bpe->vocab);
    rk_free(bpe->merges);
    for (size_t i = 0; i < RK_CHAR_PAGES; i++)
        rk_free(bpe->char_ids[i]);
}

void rk_bpe_scratch_fini(struct rk_bpe_scratch *scratch)
{
    rk_free(scratch->cache);
    rk_array_fini(&scratch->symbols);
    rk_array_fini(&scratch->heap);
    rk_free(scratch->links);
}

/* --- symbols --- */

static int32_t find_char(const struct rk_bpe *bpe, int32_t c)
{
    const int32_t *page = bpe->char_ids[c >> 8];

    return page ? page[c & 0xff] : -1;
}

static bool append_fallback(const struct rk_bpe *bpe, const char *text, size_t bytes,
                            struct rk_bpe_scratch *scratch)
{
    for (size_t i = 0; i < bytes; i++) {
        if (bpe->fallback_ids[(uint8_t)text[i]] < 0)
            return false;
    }
    for (size_t i = 0; i < bytes; i++)
        rk_array_append(&scratch->symbols, bpe->fallback_ids[(uint8_t)text[i]]);
    return true;
}

/* Unknown characters are held back until a known one, so that they can be one token; byte tokens are emitted
 * before them. */
static struct rk_status *fill_from_chars(const struct rk_bpe *bpe, const char *word, size_t bytes,
                                         struct rk_bpe_scratch *scratch)
{
    bool has_unknown = false;
    int used;

    for (size_t at = 0; at < bytes; at += (size_t)used) {
        int32_t c = rk_utf8_read(word + at, &used), id = find_char(bpe, c);

        if (id < 0 && bpe->byte_fallback && append_fallback(bpe, word + at, (size_t)used, scratch))
            continue;
        if (id < 0 && bpe->unk_id < 0)
            return RK_FAIL(RK_INVALID_ARGUMENT, "the tokenizer's vocabulary has no token for U+%04X (0x%02x)",
                           (unsigned)c, (unsigned)(uint8_t)word[at]);
        if (has_unknown && (id >= 0 || !bpe->fuse_unk))
            rk_array_append(&scratch->symbols, bpe->unk_id);
        has_unknown = id < 0;
        if (id >= 0)
            rk_array_append(&scratch->symbols, id);
    }
    if (has_unknown)
        rk_array_append(&scratch->symbols, bpe->unk_id);
    return NULL;
}

static struct rk_status *fill_from_bytes(const struct rk_bpe *bpe, const char *word, size_t bytes,
                                         struct rk_bpe_scratch *scratch)
{
    for (size_t i = 0; i < bytes; i++) {
        int32_t id = bpe->byte_ids[(uint8_t)word[i]];

        if (id < 0)
            return RK_FAIL(RK_INVALID_ARGUMENT, "the tokenizer's vocabulary has no token for byte 0x%02x",
                           (unsigned)(uint8_t)word[i]);
        rk_array_append(&scratch->symbols, id);
    }
    return NULL;
}

/* --- words --- */

static int32_t whole_word(const struct rk_bpe *bpe, const char *word, size_t bytes)
{
    struct rk_str text = {0};
    int32_t id;

    if (!bpe->reads_bytes)
        return rk_bpe_find(bpe, word, bytes);
    if (bytes > bpe->max_token_bytes)
        return -1;
    rk_byte_alphabet_append(&text, word, bytes);
    id = rk_bpe_find(bpe, text.text, text.bytes);
    rk_str_fini(&text);
    return id;
}

static struct rk_status *encode_word(const struct rk_bpe *bpe, struct rk_bpe_scratch *scratch,
                                     const char *word, size_t bytes)
{
    int32_t id = bpe->ignore_merges ? whole_word(bpe, word, bytes) : -1;

    scratch->symbols.count = 0;
    if (id >= 0) {
        rk_array_append(&scratch->symbols, id);
        return NULL;
    }
    RK_TRY(bpe->reads_bytes ? fill_from_bytes(bpe, word, bytes, scratch)
                            : fill_from_chars(bpe, word, bytes, scratch));
    rk_bpe_merge(bpe, scratch);
    return NULL;
}

static struct rk_cached_word *cache_slot(struct rk_bpe_scratch *scratch, const char *word, size_t bytes)
{
    uint64_t hash = bytes, part = 0;

    if (!scratch->cache)
        scratch->cache = rk_calloc(CACHE_SLOTS, sizeof(*scratch->cache));
    for (size_t at = 0; at < bytes; at += sizeof(part)) {
        part = 0;
        memcpy(&part, word + at, RK_MIN(sizeof(part), bytes - at));
        hash = hash_pair(hash ^ part);
    }
    return &scratch->cache[hash_pair(hash) & (CACHE_SLOTS - 1)];
}

static struct rk_status *encode_cached(const struct rk_bpe *bpe, struct rk_bpe_scratch *scratch,
                                       const char *word, size_t bytes, rk_ids_t *out)
{
    struct rk_cached_word *slot = bytes <= CACHE_WORD_BYTES ? cache_slot(scratch, word, bytes) : NULL;

    if (slot && slot->bytes == bytes && memcmp(slot->word, word, bytes) == 0) {
        for (int i = 0; i < slot->count; i++)
            rk_array_append(out, slot->ids[i]);
        return NULL;
    }
    RK_TRY(encode_word(bpe, scratch, word, bytes));
    for (int64_t i = 0; i < scratch->symbols.count; i++)
        rk_array_append(out, scratch->symbols.items[i]);
    if (!slot || scratch->symbols.count > CACHE_IDS)
        return NULL;
    slot->bytes = (uint8_t)bytes;
    slot->count = (uint8_t)scratch->symbols.count;
    memcpy(slot->word, word, bytes);
    memcpy(slot->ids, scratch->symbols.items, (size_t)scratch->symbols.count * sizeof(*slot->ids));
    return NULL;
}

/* Offset of the next "▁" that no merge crosses; `bytes` if there is none. */
static size_t find_cut(const struct rk_bpe *bpe, const char *word, size_t at, size_t bytes)
{
    const char first = space_marker[0];

    while (at < bytes) {
        const char *found = memchr(word + at, first, bytes - at);

        at = found ? (size_t)(found - word) : bytes;
        if (found && memcmp(found, space_marker, sizeof(space_marker) - 1) == 0 &&
            !bpe->joins[(uint8_t)word[at - 1]])
            break;
        at += found ? 1 : 0;
    }
    return at;
}

struct rk_status *rk_bpe_encode(const struct rk_bpe *bpe, struct rk_bpe_scratch *scratch, const char *word,
                                size_t bytes, rk_ids_t *out)
{
    for (size_t begin = 0, end; begin < bytes; begin = end) {
        end = bpe->cuts_words ? find_cut(bpe, word, begin + 1, bytes) : bytes;
        RK_TRY(encode_cached(bpe, scratch, word + begin, end - begin, out));
    }
    return NULL;
}
