/* String -> pointer hash map, insertion-ordered. Copies keys, borrows values. Not thread-safe. */
#ifndef RK_MAP_H
#define RK_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_compiler.h"

RK_BEGIN_DECLS

struct rk_map;

struct rk_map *rk_map_create(void);
void rk_map_destroy(struct rk_map *map); /* NULL is a no-op; the caller owns the values */
/* Inserts or replaces. Returns the value that was replaced, or NULL. */
void *rk_map_put(struct rk_map *map, const char *key, void *value);
void *rk_map_find(const struct rk_map *map, const char *key); /* NULL when absent */
int64_t rk_map_count(const struct rk_map *map);
/* i-th entry in insertion order, 0 <= i < count. */
const char *rk_map_key_at(const struct rk_map *map, int64_t i);
void *rk_map_value_at(const struct rk_map *map, int64_t i);

RK_END_DECLS

#endif
