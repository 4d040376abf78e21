#include "base/rk_arena.h"

#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

#define ALIGN_BYTES      16
#define GROW_UNTIL_BYTES (16 << 10)

struct block {
    struct block *next; /* older block */
    size_t capacity;
    size_t used;
    _Alignas(ALIGN_BYTES) unsigned char data[];
};

struct rk_arena {
    struct block *head; /* the block that allocations come from */
    size_t block_bytes; /* of the next block */
    size_t limit_bytes; /* 0: none */
    size_t used_bytes;
};

struct rk_arena *rk_arena_create(size_t block_bytes, size_t limit_bytes)
{
    struct rk_arena *arena = rk_calloc(1, sizeof(*arena));

    RK_ASSERT(block_bytes > 0);
    arena->block_bytes = rk_round_up(block_bytes, ALIGN_BYTES);
    arena->limit_bytes = limit_bytes;
    return arena;
}

void rk_arena_destroy(struct rk_arena *arena)
{
    if (!arena)
        return;
    for (struct block *block = arena->head, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    rk_free(arena);
}

static struct block *add_block(struct rk_arena *arena, size_t bytes)
{
    size_t capacity = RK_MAX(bytes, arena->block_bytes);
    struct block *block = malloc(sizeof(*block) + capacity);

    if (!block)
        return NULL;
    block->next = arena->head;
    block->capacity = capacity;
    block->used = 0;
    arena->head = block;
    /* Most arenas of small blocks hold one message of a few fields; a large message must not need many. */
    if (arena->block_bytes < GROW_UNTIL_BYTES)
        arena->block_bytes *= 2;
    return block;
}

void *rk_arena_alloc(struct rk_arena *arena, size_t bytes)
{
    struct block *block = arena->head;
    size_t rounded;
    void *ptr;

    if (bytes > PTRDIFF_MAX - sizeof(*block) - ALIGN_BYTES)
        return NULL;
    rounded = rk_round_up(bytes ? bytes : 1, ALIGN_BYTES);
    if (arena->limit_bytes &&
        (arena->used_bytes > arena->limit_bytes || rounded > arena->limit_bytes - arena->used_bytes))
        return NULL;
    if (!block || rounded > block->capacity - block->used)
        block = add_block(arena, rounded);
    if (!block)
        return NULL;
    ptr = block->data + block->used;
    block->used += rounded;
    arena->used_bytes += rounded;
    return memset(ptr, 0, bytes);
}

void *rk_arena_calloc(struct rk_arena *arena, size_t count, size_t elem_bytes)
{
    size_t bytes;

    return rk_mul_size(count, elem_bytes, &bytes) ? rk_arena_alloc(arena, bytes) : NULL;
}

char *rk_arena_strdup(struct rk_arena *arena, const char *text)
{
    return rk_arena_strndup(arena, text, strlen(text));
}

char *rk_arena_strndup(struct rk_arena *arena, const char *text, size_t max_bytes)
{
    size_t bytes = strnlen(text, max_bytes);
    char *copy = rk_arena_alloc(arena, bytes + 1);

    return copy ? memcpy(copy, text, bytes) : NULL;
}

void rk_arena_reset(struct rk_arena *arena)
{
    while (arena->head && arena->head->next) {
        struct block *newest = arena->head;

        arena->head = newest->next;
        free(newest);
    }
    if (arena->head)
        arena->head->used = 0;
    arena->used_bytes = 0;
}

size_t rk_arena_used_bytes(const struct rk_arena *arena)
{
    return arena->used_bytes;
}
