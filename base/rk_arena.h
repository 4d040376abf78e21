/* Host bump arena: many small allocations with one lifetime.
 *
 * Memory comes from blocks that grow as needed up to `limit_bytes`; reset keeps the first block. Not
 * thread-safe: one owner at a time. */
#ifndef RK_ARENA_H
#define RK_ARENA_H

#include <stddef.h>

#include "base/rk_status.h"

RK_BEGIN_DECLS

struct rk_arena;

/* limit_bytes 0 means no limit. Caller owns *out. */
struct rk_arena *rk_arena_create(size_t block_bytes, size_t limit_bytes);
void rk_arena_destroy(struct rk_arena *arena); /* NULL is a no-op */
/* Zeroed, aligned to 16. NULL when the limit is exceeded or memory is exhausted. */
void *rk_arena_alloc(struct rk_arena *arena, size_t bytes);
void *rk_arena_calloc(struct rk_arena *arena, size_t count, size_t elem_bytes); /* NULL on overflow too */
char *rk_arena_strdup(struct rk_arena *arena, const char *text);
char *rk_arena_strndup(struct rk_arena *arena, const char *text, size_t max_bytes);
void rk_arena_reset(struct rk_arena *arena);
size_t rk_arena_used_bytes(const struct rk_arena *arena);

RK_END_DECLS

#endif
