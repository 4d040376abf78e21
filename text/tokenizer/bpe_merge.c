/* Byte-pair merging: repeatedly merge the pair of lowest rank, leftmost first (Sennrich et al.,
 * arXiv:1508.07909). Short words by scanning all pairs, others by a heap over a linked list, in O(n log
 * n). */
#include "text/tokenizer/tokenizer_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

#define SHORT_SYMBOLS 32        /* scanning costs less than a heap up to here */
#define KEEP_LINKS    (1 << 16) /* memory for longer words is released after use */
#define HEAP_CHILDREN 4

struct rk_link {
    uint64_t merge; /* of this symbol and the next one */
    int32_t id;
    int32_t prev, next; /* -1: none */
};

static void merge_short(const struct rk_bpe *bpe, struct rk_bpe_scratch *scratch)
{
    uint64_t merges[SHORT_SYMBOLS];
    int32_t *ids = scratch->symbols.items;
    int64_t count = scratch->symbols.count;

    for (int64_t i = 0; i + 1 < count; i++)
        merges[i] = rk_bpe_find_merge(bpe, ids[i], ids[i + 1]);
    while (count > 1) {
        int64_t best = 0;

        for (int64_t i = 1; i + 1 < count; i++)
            best = merges[i] < merges[best] ? i : best;
        if (merges[best] == RK_BPE_NO_MERGE)
            break;
        ids[best] = (int32_t)(uint32_t)merges[best];
        count--;
        memmove(&ids[best + 1], &ids[best + 2], (size_t)(count - best - 1) * sizeof(*ids));
        memmove(&merges[best], &merges[best + 1], (size_t)(count - best - 1) * sizeof(*merges));
        if (best > 0)
            merges[best - 1] = rk_bpe_find_merge(bpe, ids[best - 1], ids[best]);
        if (best + 1 < count)
            merges[best] = rk_bpe_find_merge(bpe, ids[best], ids[best + 1]);
    }
    scratch->symbols.count = count;
}

/* Entries are rank << 32 | position. */
static void heap_push(struct rk_bpe_scratch *scratch, uint64_t entry)
{
    int64_t i = scratch->heap.count;

    rk_array_append(&scratch->heap, entry);
    while (i > 0 && entry < scratch->heap.items[(i - 1) / HEAP_CHILDREN]) {
        scratch->heap.items[i] = scratch->heap.items[(i - 1) / HEAP_CHILDREN];
        i = (i - 1) / HEAP_CHILDREN;
    }
    scratch->heap.items[i] = entry;
}

static uint64_t heap_pop(struct rk_bpe_scratch *scratch)
{
    uint64_t *heap = scratch->heap.items;
    uint64_t top = heap[0], last = heap[--scratch->heap.count];
    int64_t count = scratch->heap.count, i = 0;

    for (;;) {
        int64_t first = HEAP_CHILDREN * i + 1, best = first;

        if (first >= count)
            break;
        for (int64_t child = first + 1; child < RK_MIN(first + HEAP_CHILDREN, count); child++)
            best = heap[child] < heap[best] ? child : best;
        if (heap[best] >= last)
            break;
        heap[i] = heap[best];
        i = best;
    }
    heap[i] = last;
    return top;
}

/* Looks up the merge of a symbol and its neighbour on the right. */
static void renew(const struct rk_bpe *bpe, struct rk_bpe_scratch *scratch, int32_t position)
{
    struct rk_link *link = &scratch->links[position];

    link->merge =
        link->next >= 0 ? rk_bpe_find_merge(bpe, link->id, scratch->links[link->next].id) : RK_BPE_NO_MERGE;
    if (link->merge != RK_BPE_NO_MERGE)
        heap_push(scratch, (link->merge >> 32) << 32 | (uint32_t)position);
}

static void merge_at(const struct rk_bpe *bpe, struct rk_bpe_scratch *scratch, int32_t position)
{
    struct rk_link *left = &scratch->links[position], *right = &scratch->links[left->next];

    left->id = (int32_t)(uint32_t)left->merge;
    left->next = right->next;
    right->merge = RK_BPE_NO_MERGE; /* merged: its entries in the heap become invalid */
    if (left->next >= 0)
        scratch->links[left->next].prev = position;
    if (left->prev >= 0)
        renew(bpe, scratch, left->prev);
    renew(bpe, scratch, position);
}

static void link_symbols(struct rk_bpe_scratch *scratch)
{
    int64_t count = scratch->symbols.count;

    if (scratch->max_links < count) {
        scratch->max_links = count;
        scratch->links = rk_realloc(scratch->links, (size_t)count * sizeof(*scratch->links));
    }
    for (int64_t i = 0; i < count; i++)
        scratch->links[i] = (struct rk_link){.id = scratch->symbols.items[i],
                                             .prev = (int32_t)i - 1,
                                             .next = i + 1 < count ? (int32_t)i + 1 : -1};
}

static void merge_long(const struct rk_bpe *bpe, struct rk_bpe_scratch *scratch)
{
    RK_ASSERT(scratch->symbols.count <= INT32_MAX);
    link_symbols(scratch);
    scratch->heap.count = 0;
    for (int64_t i = 0; i < scratch->symbols.count; i++)
        renew(bpe, scratch, (int32_t)i);
    while (scratch->heap.count > 0) {
        uint64_t entry = heap_pop(scratch);
        int32_t position = (int32_t)(uint32_t)entry;

        if (scratch->links[position].merge != RK_BPE_NO_MERGE &&
            scratch->links[position].merge >> 32 == entry >> 32)
            merge_at(bpe, scratch, position);
    }
    scratch->symbols.count = 0;
    for (int32_t i = 0; i >= 0; i = scratch->links[i].next)
        rk_array_append(&scratch->symbols, scratch->links[i].id);
    if (scratch->max_links > KEEP_LINKS) {
        rk_free(scratch->links);
        scratch->links = NULL;
        scratch->max_links = 0;
        rk_array_fini(&scratch->heap);
    }
}

void rk_bpe_merge(const struct rk_bpe *bpe, struct rk_bpe_scratch *scratch)
{
    if (scratch->symbols.count <= SHORT_SYMBOLS)
        merge_short(bpe, scratch);
    else
        merge_long(bpe, scratch);
}
