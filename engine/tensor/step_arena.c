#include "engine/tensor/step_arena_internal.h"

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_assert.h"

/* Of every tensor: what device memory is aligned to, and enough for vector loads of any backend. */
#define ALIGN_BYTES 256

struct block {
    char *base;
    size_t capacity_bytes, used_bytes;
};

struct rk_step_arena {
    struct rk_device *device;
    RK_ARRAY(struct block) blocks;
    int64_t current; /* block that tensors are taken from; later ones are empty */
    size_t live_bytes;
    struct rk_step_arena_stats stats;
};

struct rk_step_arena *rk_step_arena_create(struct rk_device *device)
{
    struct rk_step_arena *arena = rk_calloc(1, sizeof(*arena));

    RK_ASSERT(device);
    arena->device = device;
    return arena;
}

static void free_blocks(struct rk_step_arena *arena)
{
    for (int64_t i = 0; i < arena->blocks.count; i++)
        rk_device_free(arena->device, arena->blocks.items[i].base);
    arena->blocks.count = 0;
    arena->stats.capacity_bytes = 0;
}

void rk_step_arena_destroy(struct rk_step_arena *arena)
{
    if (!arena)
        return;
    free_blocks(arena);
    rk_array_fini(&arena->blocks);
    rk_free(arena);
}

void rk_step_arena_reset(struct rk_step_arena *arena)
{
    if (arena->blocks.count > 1)
        free_blocks(arena); /* the next tensor makes one block of the peak's size */
    rk_step_arena_release(arena, (struct rk_step_mark){0});
}

struct rk_step_mark rk_step_arena_mark(const struct rk_step_arena *arena)
{
    return (struct rk_step_mark){
        .block_idx = arena->current,
        .used_bytes = arena->blocks.count ? arena->blocks.items[arena->current].used_bytes : 0,
        .live_bytes = arena->live_bytes,
    };
}

void rk_step_arena_release(struct rk_step_arena *arena, struct rk_step_mark mark)
{
    RK_ASSERT(mark.block_idx <= arena->current);
    RK_ASSERT(mark.live_bytes <= arena->live_bytes);
    for (int64_t i = mark.block_idx; i < arena->blocks.count; i++)
        arena->blocks.items[i].used_bytes = i == mark.block_idx ? mark.used_bytes : 0;
    arena->current = mark.block_idx;
    arena->live_bytes = mark.live_bytes;
}

struct rk_step_arena_stats rk_step_arena_stats(const struct rk_step_arena *arena)
{
    return arena->stats;
}

static bool has_room(const struct rk_step_arena *arena, int64_t i, size_t bytes)
{
    const struct block *block = &arena->blocks.items[i];

    return block->capacity_bytes - block->used_bytes >= bytes;
}

/* A further block. The first one is made as large as anything that was needed before; later ones are only as
 * large as their tensor or half of what there is, since they are replaced soon. */
static struct rk_status *add_block(struct rk_step_arena *arena, size_t bytes)
{
    bool is_first = arena->blocks.count == 0;
    size_t wanted = is_first ? arena->stats.peak_bytes : arena->stats.capacity_bytes / 2;
    struct block block = {.capacity_bytes = RK_MAX(bytes, wanted)};
    void *base;
    struct rk_status *st =
        rk_device_alloc(arena->device, &base, block.capacity_bytes, "activations of a step");

    if (rk_status_code(st) == RK_RESOURCE_EXHAUSTED && block.capacity_bytes > bytes) {
        rk_status_free(st);
        block.capacity_bytes = bytes;
        st = rk_device_alloc(arena->device, &base, block.capacity_bytes, "activations of a step");
    }
    if (st)
        return st;
    block.base = base;
    rk_array_append(&arena->blocks, block);
    arena->stats.capacity_bytes += block.capacity_bytes;
    arena->stats.overflows += is_first ? 0 : 1;
    return NULL;
}

static struct rk_status *take(struct rk_step_arena *arena, size_t bytes, void **out)
{
    int64_t i = arena->current;
    struct block *block;

    while (i < arena->blocks.count && !has_room(arena, i, bytes))
        i++;
    if (i == arena->blocks.count)
        RK_TRY(add_block(arena, bytes));
    block = &arena->blocks.items[i];
    *out = block->base + block->used_bytes;
    block->used_bytes += bytes;
    arena->current = i;
    arena->live_bytes += bytes;
    arena->stats.peak_bytes = RK_MAX(arena->stats.peak_bytes, arena->live_bytes);
    return NULL;
}

/* Gives `t`, which has a shape but no memory, its memory: one row at least, so that column views of tensors
 * without rows are distinct too. */
static struct rk_status *take_tensor(struct rk_step_arena *arena, rk_tensor_t *out, rk_tensor_t t)
{
    size_t row_bytes = (size_t)rk_tensor_row_elements(t) * rk_dtype_bytes(t.dtype);
    size_t bytes = RK_MAX(RK_MAX(rk_tensor_bytes(t), row_bytes), (size_t)1);

    RK_TRY(take(arena, rk_round_up(bytes, ALIGN_BYTES), &t.data));
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

struct rk_status *rk_step_upload(struct rk_step_arena *arena, struct rk_stream *stream, rk_tensor_t *out,
                                 rk_dtype_t dtype, const void *host, int64_t count)
{
    RK_TRY(rk_step_1d(arena, out, dtype, count));
    return rk_stream_copy(stream, out->data, host, rk_tensor_bytes(*out), RK_COPY_H2D);
}
