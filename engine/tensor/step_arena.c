#include "engine/tensor/step_arena.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_assert.h"

/* Alignment of every tensor: as of device memory, sufficient for vector loads of all backends. */
#define ALIGN_BYTES 256

struct block {
    char *base;
    size_t capacity_bytes, used_bytes;
};

/* Bump allocator for one kind of memory. */
struct pool {
    const char *what; /* for messages */
    bool is_host;
    RK_ARRAY(struct block) blocks;
    int64_t current; /* block that allocations come from; later blocks are empty */
    size_t live_bytes;
    size_t reserved_bytes; /* minimum size of the first block */
    struct rk_step_pool_stats stats;
};

struct rk_step_arena {
    struct rk_device *device;
    struct pool tensors; /* on the device */
    struct pool staging; /* pinned, on the host */
};

struct rk_step_arena *rk_step_arena_create(struct rk_device *device)
{
    struct rk_step_arena *arena = rk_calloc(1, sizeof(*arena));

    RK_ASSERT(device);
    arena->device = device;
    arena->tensors.what = "activations of a step";
    arena->staging.what = "staging of a step";
    arena->staging.is_host = true;
    return arena;
}

/* --- pools --- */

static void free_blocks(struct rk_device *device, struct pool *pool)
{
    for (int64_t i = 0; i < pool->blocks.count; i++) {
        if (pool->is_host)
            rk_device_host_free(device, pool->blocks.items[i].base);
        else
            rk_device_free(device, pool->blocks.items[i].base);
    }
    pool->blocks.count = 0;
    pool->stats.capacity_bytes = 0;
    pool->stats.generation++;
}

static struct rk_step_mark mark_of(const struct pool *pool)
{
    return (struct rk_step_mark){
        .block_idx = pool->current,
        .used_bytes = pool->blocks.count ? pool->blocks.items[pool->current].used_bytes : 0,
        .live_bytes = pool->live_bytes,
    };
}

static void release(struct pool *pool, struct rk_step_mark mark)
{
    RK_ASSERT(mark.block_idx <= pool->current);
    RK_ASSERT(mark.live_bytes <= pool->live_bytes);
    for (int64_t i = mark.block_idx; i < pool->blocks.count; i++)
        pool->blocks.items[i].used_bytes = i == mark.block_idx ? mark.used_bytes : 0;
    pool->current = mark.block_idx;
    pool->live_bytes = mark.live_bytes;
}

static void reset(struct rk_device *device, struct pool *pool)
{
    if (pool->blocks.count > 1)
        free_blocks(device, pool); /* the next allocation makes one block of the peak size */
    release(pool, (struct rk_step_mark){0});
}

static bool has_room(const struct pool *pool, int64_t i, size_t bytes)
{
    const struct block *block = &pool->blocks.items[i];

    return block->capacity_bytes - block->used_bytes >= bytes;
}

static struct rk_status *alloc_block(struct rk_device *device, const struct pool *pool, struct block *block)
{
    void *base;

    if (pool->is_host)
        RK_TRY(rk_device_host_alloc(device, &base, block->capacity_bytes, pool->what));
    else
        RK_TRY(rk_device_alloc(device, &base, block->capacity_bytes, pool->what));
    block->base = base;
    return NULL;
}

/* Allocates a block of the first of these descending sizes for which there is memory. */
static struct rk_status *alloc_largest(struct rk_device *device, const struct pool *pool, struct block *block,
                                       const size_t *sizes, size_t num_sizes)
{
    struct rk_status *st = NULL;

    for (size_t i = 0; i < num_sizes; i++) {
        if (i > 0 && sizes[i] == sizes[i - 1])
            continue;
        rk_status_free(st);
        block->capacity_bytes = sizes[i];
        st = alloc_block(device, pool, block);
        if (rk_status_code(st) != RK_RESOURCE_EXHAUSTED)
            break;
    }
    return st;
}

/* Adds a block. The first one has the peak size so far, or at least the reserved size, if there is memory for
 * it: after a pass that was too large, later passes must still get their block. Later blocks have only the
 * size of their tensor or half of the total, because they are replaced soon. */
static struct rk_status *add_block(struct rk_device *device, struct pool *pool, size_t bytes)
{
    bool is_first = pool->blocks.count == 0;
    size_t reserved = RK_MAX(bytes, is_first ? pool->reserved_bytes : 0);
    size_t wanted = is_first ? pool->stats.peak_bytes : pool->stats.capacity_bytes / 2;
    const size_t sizes[] = {RK_MAX(wanted, reserved), reserved, bytes};
    struct block block = {0};

    RK_TRY(alloc_largest(device, pool, &block, sizes, RK_ARRAY_LEN(sizes)));
    rk_array_append(&pool->blocks, block);
    pool->stats.capacity_bytes += block.capacity_bytes;
    pool->stats.generation++;
    pool->stats.overflows += is_first ? 0 : 1;
    return NULL;
}

static struct rk_status *take(struct rk_device *device, struct pool *pool, size_t bytes, void **out)
{
    int64_t i = pool->current;
    struct block *block;

    while (i < pool->blocks.count && !has_room(pool, i, bytes))
        i++;
    if (i == pool->blocks.count)
        RK_TRY(add_block(device, pool, bytes));
    block = &pool->blocks.items[i];
    *out = block->base + block->used_bytes;
    block->used_bytes += bytes;
    pool->current = i;
    pool->live_bytes += bytes;
    pool->stats.peak_bytes = RK_MAX(pool->stats.peak_bytes, pool->live_bytes);
    return NULL;
}

/* Makes one block of `bytes` the only block, unless it is already. */
static struct rk_status *reserve(struct rk_device *device, struct pool *pool, size_t bytes)
{
    RK_ASSERT(pool->live_bytes == 0);
    pool->reserved_bytes = RK_MAX(pool->reserved_bytes, bytes);
    if (pool->blocks.count == 1 && has_room(pool, 0, bytes))
        return NULL;
    free_blocks(device, pool);
    return bytes > 0 ? add_block(device, pool, bytes) : NULL;
}

/* --- the arena --- */

void rk_step_arena_destroy(struct rk_step_arena *arena)
{
    if (!arena)
        return;
    free_blocks(arena->device, &arena->tensors);
    free_blocks(arena->device, &arena->staging);
    rk_array_fini(&arena->tensors.blocks);
    rk_array_fini(&arena->staging.blocks);
    rk_free(arena);
}

struct rk_status *rk_step_arena_reserve(struct rk_step_arena *arena, size_t device_bytes, size_t host_bytes)
{
    rk_step_arena_reset(arena);
    RK_TRY(reserve(arena->device, &arena->tensors, device_bytes));
    return reserve(arena->device, &arena->staging, host_bytes);
}

void rk_step_arena_reset(struct rk_step_arena *arena)
{
    reset(arena->device, &arena->tensors);
    reset(arena->device, &arena->staging);
}

struct rk_step_mark rk_step_arena_mark(const struct rk_step_arena *arena)
{
    return mark_of(&arena->tensors);
}

void rk_step_arena_release(struct rk_step_arena *arena, struct rk_step_mark mark)
{
    release(&arena->tensors, mark);
}

struct rk_step_arena_stats rk_step_arena_stats(const struct rk_step_arena *arena)
{
    return (struct rk_step_arena_stats){.tensors = arena->tensors.stats, .staging = arena->staging.stats};
}

/* Allocates memory for `t`, which has a shape but no memory: at least one row, so that column views of
 * tensors without rows have distinct addresses. */
static struct rk_status *take_tensor(struct rk_step_arena *arena, rk_tensor_t *out, rk_tensor_t t)
{
    size_t row_bytes = (size_t)rk_tensor_row_elements(t) * rk_dtype_bytes(t.dtype);
    size_t bytes = RK_MAX(RK_MAX(rk_tensor_bytes(t), row_bytes), (size_t)1);

    RK_TRY(take(arena->device, &arena->tensors, rk_round_up(bytes, ALIGN_BYTES), &t.data));
    *out = t;
    return NULL;
}

struct rk_status *rk_step_1d(struct rk_step_arena *arena, rk_tensor_t *out, rk_dtype_t dtype, int64_t dim0)
{
    return take_tensor(arena, out, rk_tensor_1d(NULL, dtype, dim0));
}

struct rk_status *rk_step_2d(struct rk_step_arena *arena, rk_tensor_t *out, rk_dtype_t dtype, int64_t dim0,
                             int64_t dim1)
{
    return take_tensor(arena, out, rk_tensor_2d(NULL, dtype, dim0, dim1));
}

struct rk_status *rk_step_3d(struct rk_step_arena *arena, rk_tensor_t *out, rk_dtype_t dtype, int64_t dim0,
                             int64_t dim1, int64_t dim2)
{
    return take_tensor(arena, out, rk_tensor_3d(NULL, dtype, dim0, dim1, dim2));
}

static struct rk_status *take_staging(struct rk_step_arena *arena, size_t bytes, void **out)
{
    return take(arena->device, &arena->staging, rk_round_up(RK_MAX(bytes, (size_t)1), ALIGN_BYTES), out);
}

struct rk_status *rk_step_upload(struct rk_step_arena *arena, struct rk_stream *stream, rk_tensor_t *out,
                                 rk_dtype_t dtype, const void *host, int64_t count)
{
    void *staged;

    RK_TRY(rk_step_1d(arena, out, dtype, count));
    RK_TRY(take_staging(arena, rk_tensor_bytes(*out), &staged));
    if (count > 0)
        memcpy(staged, host, rk_tensor_bytes(*out));
    return rk_stream_copy(stream, out->data, staged, rk_tensor_bytes(*out), RK_COPY_H2D);
}

struct rk_status *rk_step_download(struct rk_step_arena *arena, struct rk_stream *stream, rk_tensor_t t,
                                   void **host)
{
    RK_TRY(take_staging(arena, rk_tensor_bytes(t), host));
    return rk_stream_copy(stream, *host, t.data, rk_tensor_bytes(t), RK_COPY_D2H);
}
