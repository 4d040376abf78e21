/* The paged cache: a pool of blocks of RK_KV_BLOCK_TOKENS tokens, and the device memory behind it. One
 * allocation holds keys and values of all layers; it is made once, so that addresses stay. */
#include "engine/rollout/rollout_internal.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "engine/model/model_internal.h"

struct rk_status *rk_block_pool_init(struct rk_block_pool *pool, struct rk_arena *arena, int32_t num_blocks)
{
    RK_ASSERT(num_blocks >= 1);
    *pool = (struct rk_block_pool){
        .num_blocks = num_blocks,
        .free_blocks = rk_arena_calloc(arena, (size_t)num_blocks, sizeof(int32_t)),
    };
    if (!pool->free_blocks)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "no memory for the list of %d cache blocks", num_blocks);
    for (int32_t block = num_blocks - 1; block >= 1; block--)
        pool->free_blocks[pool->num_free++] = block;
    return NULL;
}

bool rk_block_pool_take(struct rk_block_pool *pool, int32_t *blocks, int32_t count)
{
    RK_ASSERT(count >= 0);
    if (count > pool->num_free)
        return false;
    for (int32_t i = 0; i < count; i++)
        blocks[i] = pool->free_blocks[--pool->num_free];
    return true;
}

void rk_block_pool_give(struct rk_block_pool *pool, const int32_t *blocks, int32_t count)
{
    RK_ASSERT(count <= pool->num_blocks - 1 - pool->num_free);
    /* Backwards, so that the next sequence gets them in the same order. */
    for (int32_t i = count - 1; i >= 0; i--) {
        RK_ASSERT(blocks[i] >= 1);
        RK_ASSERT(blocks[i] < pool->num_blocks);
        pool->free_blocks[pool->num_free++] = blocks[i];
    }
}

/* Bytes of the keys (or the values) of one layer. */
static struct rk_status *layer_bytes(size_t *out, struct rk_model *model, int32_t num_blocks)
{
    const struct rk_model_config *config = rk_model_get_config(model);
    size_t bytes = (size_t)num_blocks * RK_KV_BLOCK_TOKENS;
    bool fits = rk_mul_size(bytes, (size_t)rk_model_local_kv_heads(model), &bytes) &&
                rk_mul_size(bytes, (size_t)config->head_dim, &bytes) &&
                rk_mul_size(bytes, rk_dtype_bytes(rk_model_dtype(model)), &bytes);

    *out = bytes;
    if (fits)
        return NULL;
    return RK_FAIL(RK_RESOURCE_EXHAUSTED, "a KV cache of %d blocks does not fit into memory", num_blocks);
}

struct rk_status *rk_kv_cache_init(struct rk_kv_cache *cache, struct rk_arena *arena, struct rk_model *model,
                                   int32_t num_blocks)
{
    const struct rk_model_config *config = rk_model_get_config(model);
    int64_t num_layers = config->num_layers;
    size_t bytes;

    *cache = (struct rk_kv_cache){.model = model};
    RK_TRY(layer_bytes(&bytes, model, num_blocks));
    bytes = rk_round_up(bytes, 256);
    if (!rk_mul_size(bytes, 2 * (size_t)num_layers, &cache->memory_bytes))
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "a KV cache of %d blocks does not fit into memory", num_blocks);
    RK_TRY(rk_device_alloc(rk_stream_device(rk_model_stream(model)), &cache->memory, cache->memory_bytes,
                           "the KV cache"));
    rk_model_note_kv_cache(model, (int64_t)cache->memory_bytes);
    cache->k = rk_arena_calloc(arena, (size_t)num_layers, sizeof(rk_tensor_t));
    cache->v = rk_arena_calloc(arena, (size_t)num_layers, sizeof(rk_tensor_t));
    if (!cache->k || !cache->v)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "no memory for the cache tensors of %lld layers",
                       (long long)num_layers);
    for (int64_t layer = 0; layer < num_layers; layer++) {
        char *base = (char *)cache->memory + 2 * (size_t)layer * bytes;
        rk_tensor_t t = rk_tensor_4d(base, rk_model_dtype(model), num_blocks, rk_model_local_kv_heads(model),
                                     RK_KV_BLOCK_TOKENS, config->head_dim);

        cache->k[layer] = t;
        t.data = base + bytes;
        cache->v[layer] = t;
    }
    return NULL;
}

void rk_kv_cache_fini(struct rk_kv_cache *cache)
{
    if (cache->memory) {
        rk_device_free(rk_stream_device(rk_model_stream(cache->model)), cache->memory);
        rk_model_note_kv_cache(cache->model, -(int64_t)cache->memory_bytes);
    }
    *cache = (struct rk_kv_cache){0};
}
