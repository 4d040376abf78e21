/* The paged cache: a pool of blocks of RK_KV_BLOCK_TOKENS tokens, and their device memory. One allocation
 * holds the tensors that all layers declare (struct rk_cache_decl); it is made once, so addresses do not
 * change.
 */
#include "engine/rollout/rollout.h"

#include <stdint.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "engine/model/model.h"

/* Alignment that rk_device_alloc guarantees, used for every tensor. */
#define CACHE_ALIGN_BYTES 256

struct rk_status *rk_kv_block_pool_init(struct rk_kv_block_pool *pool, struct rk_arena *arena,
                                        int32_t num_kv_blocks)
{
    RK_ASSERT(num_kv_blocks >= 1);
    *pool = (struct rk_kv_block_pool){
        .num_kv_blocks = num_kv_blocks,
        .free_blocks = rk_arena_calloc(arena, (size_t)num_kv_blocks, sizeof(int32_t)),
    };
    if (!pool->free_blocks)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "no memory for the list of %d cache blocks", num_kv_blocks);
    for (int32_t block = num_kv_blocks - 1; block >= 1; block--)
        pool->free_blocks[pool->num_free++] = block;
    return NULL;
}

bool rk_kv_block_pool_take(struct rk_kv_block_pool *pool, int32_t *blocks, int32_t count)
{
    RK_ASSERT(count >= 0);
    if (count > pool->num_free)
        return false;
    for (int32_t i = 0; i < count; i++)
        blocks[i] = pool->free_blocks[--pool->num_free];
    return true;
}

void rk_kv_block_pool_give(struct rk_kv_block_pool *pool, const int32_t *blocks, int32_t count)
{
    RK_ASSERT(count <= pool->num_kv_blocks - 1 - pool->num_free);
    /* Backwards, so that the next sequence gets them in the same order. */
    for (int32_t i = count - 1; i >= 0; i--) {
        RK_ASSERT(blocks[i] >= 1);
        RK_ASSERT(blocks[i] < pool->num_kv_blocks);
        pool->free_blocks[pool->num_free++] = blocks[i];
    }
}

static struct rk_status *too_large(int32_t num_kv_blocks)
{
    return RK_FAIL(RK_RESOURCE_EXHAUSTED, "a KV cache of %d blocks does not fit into memory", num_kv_blocks);
}

/* Rounds up to a multiple of the kernels' load size. */
static bool tensor_bytes(size_t *out, const struct rk_cache_decl *decl, rk_dtype_t dtype,
                         int32_t num_kv_blocks)
{
    if (!rk_mul_size((size_t)num_kv_blocks * RK_KV_BLOCK_TOKENS, (size_t)rk_cache_bytes(decl, dtype), out) ||
        *out > SIZE_MAX - CACHE_ALIGN_BYTES)
        return false;
    *out = rk_round_up(*out, CACHE_ALIGN_BYTES);
    return true;
}

/* Lays out the tensors of all blocks one after another; with tensors NULL only computes memory_bytes. */
static struct rk_status *lay_out(struct rk_kv_cache *cache, int32_t num_kv_blocks)
{
    const struct rk_model_core *core = cache->model->core;
    size_t at = 0;

    for (int64_t b = 0; b < core->num_blocks; b++) {
        const struct rk_block *block = &core->blocks[b];

        for (int32_t i = 0; i < block->decl.num_caches; i++) {
            const struct rk_cache_decl *decl = &block->decl.caches[i];
            size_t bytes;

            if (!tensor_bytes(&bytes, decl, core->dtype, num_kv_blocks))
                return too_large(num_kv_blocks);
            if (cache->tensors)
                cache->tensors[block->first_cache + i] =
                    rk_tensor_4d((char *)cache->memory + at, core->dtype, num_kv_blocks, decl->heads,
                                 RK_KV_BLOCK_TOKENS, decl->width);
            if (bytes > SIZE_MAX - at)
                return too_large(num_kv_blocks);
            at += bytes;
        }
    }
    cache->memory_bytes = at;
    return NULL;
}

struct rk_status *rk_kv_cache_init(struct rk_kv_cache *cache, struct rk_arena *arena, struct rk_model *model,
                                   int32_t num_kv_blocks)
{
    int64_t num_tensors = model->core->num_caches;

    *cache = (struct rk_kv_cache){.model = model};
    RK_TRY(lay_out(cache, num_kv_blocks));
    RK_TRY(rk_device_alloc(rk_stream_device(rk_model_stream(model)), &cache->memory, cache->memory_bytes,
                           "the KV cache"));
    rk_model_note_kv_cache(model, (int64_t)cache->memory_bytes);
    cache->tensors = rk_arena_calloc(arena, (size_t)num_tensors, sizeof(rk_tensor_t));
    if (!cache->tensors)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "no memory for the %lld tensors of a cache",
                       (long long)num_tensors);
    return lay_out(cache, num_kv_blocks);
}

void rk_kv_cache_fini(struct rk_kv_cache *cache)
{
    if (cache->memory) {
        rk_device_free(rk_stream_device(rk_model_stream(cache->model)), cache->memory);
        rk_model_note_kv_cache(cache->model, -(int64_t)cache->memory_bytes);
    }
    *cache = (struct rk_kv_cache){0};
}
