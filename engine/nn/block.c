/* Derived from a block's declaration: sizes in bytes, and the tensors of a pass; host memory of a pass. */
#include <string.h>

#include "base/rk_assert.h"
#include "engine/nn/nn.h"

int64_t rk_cache_bytes(const struct rk_cache_decl *cache, rk_dtype_t dtype)
{
    return cache->heads * cache->width * (int64_t)rk_dtype_bytes(dtype);
}

int64_t rk_block_cache_bytes(const struct rk_block *block, rk_dtype_t dtype)
{
    int64_t bytes = 0;

    for (int32_t i = 0; i < block->decl.num_caches; i++)
        bytes += rk_cache_bytes(&block->decl.caches[i], dtype);
    return bytes;
}

static rk_dtype_t dtype_of(const struct rk_activation_decl *decl, rk_dtype_t dtype, rk_dtype_t stat_dtype)
{
    if (decl->is_index)
        return RK_DTYPE_I32;
    return decl->is_stat ? stat_dtype : dtype;
}

int64_t rk_block_activation_bytes(const struct rk_block *block, rk_activation_life_t life, rk_dtype_t dtype,
                                  rk_dtype_t stat_dtype)
{
    int64_t bytes = 0;

    for (int32_t i = 0; i < block->decl.num_activations; i++) {
        const struct rk_activation_decl *decl = &block->decl.activations[i];

        if (decl->life == life && decl->num_rows == 0)
            bytes += decl->columns * RK_MAX(decl->rows_per_token, 1) *
                     (int64_t)rk_dtype_bytes(dtype_of(decl, dtype, stat_dtype));
    }
    return bytes;
}

struct rk_status *rk_activation_make(const struct rk_pass *pass, const struct rk_block *block, int32_t i,
                                     rk_tensor_t *out)
{
    const struct rk_activation_decl *decl = &block->decl.activations[i];
    struct rk_step_arena *arena = pass->arena;
    int64_t per_token = RK_MAX(decl->rows_per_token, 1);
    int64_t num_rows = decl->num_rows  ? decl->num_rows
                       : decl->of_rows ? pass->num_rows * per_token
                                       : pass->num_tokens * per_token;

    RK_ASSERT(i >= 0);
    RK_ASSERT(i < block->decl.num_activations);
    RK_ASSERT(decl->columns > 0);
    RK_ASSERT(decl->life != RK_ACTIVATION_KEPT || pass->keeps_activations);
    if (decl->life == RK_ACTIVATION_SAVED || decl->life == RK_ACTIVATION_KEPT)
        arena = rk_pass_saved_arena(pass);
    return rk_step_2d(arena, out, dtype_of(decl, pass->dtype, pass->stat_dtype), num_rows, decl->columns);
}

rk_tensor_t rk_block_cache(const struct rk_pass *pass, const struct rk_block *block, int32_t i)
{
    RK_ASSERT(i < block->decl.num_caches);
    return pass->paged->caches[block->first_cache + i];
}

const struct rk_rope_tables *rk_block_rope(const struct rk_pass *pass, const struct rk_block *block)
{
    RK_ASSERT(block->rope >= 0);
    return &pass->ropes[block->rope];
}

struct rk_status *rk_pass_alloc_host(const struct rk_pass *pass, void *out, int64_t count, size_t elem_bytes)
{
    void *memory = rk_arena_calloc(pass->host, (size_t)count + 1, elem_bytes);

    if (!memory)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "no host memory for %lld elements of %zu bytes",
                       (long long)count, elem_bytes);
    memcpy(out, &memory, sizeof(memory));
    return NULL;
}
