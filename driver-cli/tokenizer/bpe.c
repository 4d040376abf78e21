/* Byte-pair encoding of one word: repeatedly merge the pair of lowest rank, leftmost first (Sennrich et al.,
 * arXiv:1508.07909), by a heap over a linked list, in O(n log n) however long the word is. */
#include "driver-cli/tokenizer/tokenizer_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

struct symbol {
    int32_t id; /* -1: merged away */
    int32_t prev, next;
};

struct candidate {
    int32_t rank, position, merged;
};

struct work {
    struct symbol *symbols;
    struct candidate *heap; /* at most 3 entries a symbol */
    int32_t heap_count;
};

int32_t rk_bpe_find(const struct rk_bpe *bpe, const char *token)
{
    void *value = rk_map_find(bpe->vocab, token);

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

    while (bpe->merges[i].merged >= 0 && bpe->merges[i].pair != pair)
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
        bpe->merges[i].merged = -1;
}

static uint64_t pair_of(int32_t left, int32_t right)
{
    return (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
}

void rk_bpe_add_merge(struct rk_bpe *bpe, int32_t left, int32_t right, int32_t merged, int32_t rank)
{
    struct rk_merge *slot = slot_of(bpe, pair_of(left, right));

    RK_ASSERT(merged >= 0);
    *slot = (struct rk_merge){.pair = pair_of(left, right), .rank = rank, .merged = merged};
}

void rk_bpe_fini(struct rk_bpe *bpe)
{
    rk_map_destroy(bpe->vocab);
    rk_free(bpe->merges);
}

static bool comes_before(const struct candidate *a, const struct candidate *b)
{
    return a->rank != b->rank ? a->rank < b->rank : a->position < b->position;
}

static void heap_push(struct work *work, struct candidate entry)
{
    int32_t i = work->heap_count++;

    while (i > 0 && comes_before(&entry, &work->heap[(i - 1) / 2])) {
        work->heap[i] = work->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    work->heap[i] = entry;
}

static struct candidate heap_pop(struct work *work)
{
    struct candidate top = work->heap[0];
    struct candidate last = work->heap[--work->heap_count];
    int32_t i = 0;

    for (;;) {
        int32_t child = 2 * i + 1;

        if (child >= work->heap_count)
            break;
        if (child + 1 < work->heap_count && comes_before(&work->heap[child + 1], &work->heap[child]))
            child++;
        if (!comes_before(&work->heap[child], &last))
            break;
        work->heap[i] = work->heap[child];
        i = child;
    }
    work->heap[i] = last;
    return top;
}

static void push_pair(const struct rk_bpe *bpe, struct work *work, int32_t left)
{
    int32_t right = left >= 0 ? work->symbols[left].next : -1;
    const struct rk_merge *merge;

    if (right < 0)
        return;
    merge = slot_of(bpe, pair_of(work->symbols[left].id, work->symbols[right].id));
    if (merge->merged >= 0)
        heap_push(work, (struct candidate){merge->rank, left, merge->merged});
}

/* Merges the pair that begins at entry->position, if it is still the one the entry was made for. */
static void apply(const struct rk_bpe *bpe, struct work *work, const struct candidate *entry)
{
    struct symbol *left = &work->symbols[entry->position];
    struct symbol *right;
    const struct rk_merge *merge;

    if (left->id < 0 || left->next < 0)
        return;
    right = &work->symbols[left->next];
    merge = slot_of(bpe, pair_of(left->id, right->id));
    if (merge->merged != entry->merged || merge->rank != entry->rank)
        return;
    left->id = entry->merged;
    left->next = right->next;
    right->id = -1;
    if (left->next >= 0)
        work->symbols[left->next].prev = entry->position;
    push_pair(bpe, work, left->prev);
    push_pair(bpe, work, entry->position);
}

static struct rk_status *fill_symbols(const struct rk_bpe *bpe, struct work *work, const char *word,
                                      int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        int32_t id = bpe->byte_id[(uint8_t)word[i]];

        if (id < 0)
            return RK_FAIL(RK_INVALID_ARGUMENT, "the tokenizer's vocabulary has no token for byte 0x%02x",
                           (unsigned)(uint8_t)word[i]);
        work->symbols[i] = (struct symbol){.id = id, .prev = i - 1, .next = i + 1 < count ? i + 1 : -1};
    }
    return NULL;
}

static int32_t whole_word(const struct rk_bpe *bpe, const char *word, size_t bytes)
{
    struct rk_str text = {0};
    char character[4];
    int32_t id;

    for (size_t i = 0; i < bytes; i++) {
        rk_byte_alphabet_char((uint8_t)word[i], character);
        rk_str_append(&text, character);
    }
    id = rk_bpe_find(bpe, rk_str_text(&text));
    rk_str_fini(&text);
    return id;
}

struct rk_status *rk_bpe_encode_word(const struct rk_bpe *bpe, const char *word, size_t bytes, rk_ids_t *out)
{
    struct work work = {0};
    struct rk_status *st = NULL;
    int32_t count = (int32_t)bytes;

    RK_ASSERT(bytes <= INT32_MAX / 4);
    if (bytes == 0)
        return NULL;
    if (bpe->ignore_merges) {
        int32_t id = whole_word(bpe, word, bytes);

        if (id >= 0) {
            rk_array_append(out, id);
            return NULL;
        }
    }
    work.symbols = rk_calloc(bytes, sizeof(*work.symbols));
    work.heap = rk_calloc(3 * bytes, sizeof(*work.heap));
    RK_TRY_GOTO(st, fill_symbols(bpe, &work, word, count), out);
    for (int32_t i = 0; i < count; i++)
        push_pair(bpe, &work, i);
    while (work.heap_count > 0) {
        struct candidate best = heap_pop(&work);

        apply(bpe, &work, &best);
    }
    for (int32_t i = 0; i >= 0; i = work.symbols[i].next)
        rk_array_append(out, work.symbols[i].id);
out:
    rk_free(work.symbols);
    rk_free(work.heap);
    return st;
}
