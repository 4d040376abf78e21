/* Insertion-ordered hash map: entries in an array, and an open-addressing table of positions in it. */
#include "base/rk_map.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_assert.h"
#include "base/rk_rng.h"

struct entry {
    char *key;
    void *value;
    uint64_t hash;
};

struct rk_map {
    RK_ARRAY(struct entry) entries;
    int64_t *slots;     /* index of the entry + 1; 0 is free */
    uint64_t num_slots; /* a power of two, at least twice the number of entries */
};

struct rk_map *rk_map_create(void)
{
    struct rk_map *map = rk_calloc(1, sizeof(*map));

    map->num_slots = 16;
    map->slots = rk_calloc(map->num_slots, sizeof(*map->slots));
    return map;
}

void rk_map_destroy(struct rk_map *map)
{
    if (!map)
        return;
    for (int64_t i = 0; i < map->entries.count; i++)
        rk_free(map->entries.items[i].key);
    rk_array_fini(&map->entries);
    rk_free(map->slots);
    rk_free(map);
}

/* The slot that holds `key`, or the free one where it belongs. */
static int64_t *find_slot(const struct rk_map *map, const char *key, uint64_t hash)
{
    uint64_t at = hash & (map->num_slots - 1);

    while (map->slots[at]) {
        const struct entry *entry = &map->entries.items[map->slots[at] - 1];

        if (entry->hash == hash && strcmp(entry->key, key) == 0)
            break;
        at = (at + 1) & (map->num_slots - 1);
    }
    return &map->slots[at];
}

static void grow(struct rk_map *map)
{
    rk_free(map->slots);
    map->num_slots *= 2;
    map->slots = rk_calloc(map->num_slots, sizeof(*map->slots));
    for (int64_t i = 0; i < map->entries.count; i++)
        *find_slot(map, map->entries.items[i].key, map->entries.items[i].hash) = i + 1;
}

void *rk_map_put(struct rk_map *map, const char *key, void *value)
{
    uint64_t hash = rk_rng_stream_of_name(key);
    int64_t *slot = find_slot(map, key, hash);
    void *replaced = NULL;

    if (*slot) {
        replaced = map->entries.items[*slot - 1].value;
        map->entries.items[*slot - 1].value = value;
        return replaced;
    }
    rk_array_append(&map->entries, (struct entry){.key = rk_strdup(key), .value = value, .hash = hash});
    *slot = map->entries.count;
    if ((uint64_t)map->entries.count * 2 > map->num_slots)
        grow(map);
    return NULL;
}

void *rk_map_find(const struct rk_map *map, const char *key)
{
    int64_t at = *find_slot(map, key, rk_rng_stream_of_name(key));

    return at ? map->entries.items[at - 1].value : NULL;
}

int64_t rk_map_count(const struct rk_map *map)
{
    return map->entries.count;
}

const char *rk_map_key_at(const struct rk_map *map, int64_t i)
{
    RK_ASSERT(i >= 0);
    RK_ASSERT(i < map->entries.count);
    return map->entries.items[i].key;
}

void *rk_map_value_at(const struct rk_map *map, int64_t i)
{
    RK_ASSERT(i >= 0);
    RK_ASSERT(i < map->entries.count);
    return map->entries.items[i].value;
}
