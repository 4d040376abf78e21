/* Memory of one step, from bump allocators: device memory for activations and temporaries, and pinned host
 * memory for copies between host and device.
 *
 * A step allocates tensors, releases temporaries back to a mark, and resets the arena at its end. The size in
 * the memory plan is reserved before the first step. If a step needs more, blocks are added and counted; the
 * next reset replaces all blocks by one of sufficient size. So after the largest step, or with a correct
 * plan, nothing more is allocated, and addresses repeat. Owned by one model; engine thread only. Memory is
 * not initialized. The stream must have completed the last use of memory before a reset may free it, and the
 * last copy before staging memory is written again after a reset. */
#ifndef RK_ENGINE_STEP_ARENA_H
#define RK_ENGINE_STEP_ARENA_H

#include <stdint.h>

#include "base/rk_status.h"
#include "kernels/rk_device.h"
#include "kernels/rk_tensor.h"

struct rk_step_arena;

/* Position to release to. */
struct rk_step_mark {
    int64_t block_idx;
    size_t used_bytes; /* used in that block */
    size_t live_bytes; /* live in the arena */
};

struct rk_step_pool_stats {
    uint64_t generation;   /* changes whenever a block is added or freed: then equal steps have other
                            * addresses */
    uint64_t overflows;    /* blocks added after the first; constant after warm-up */
    size_t peak_bytes;     /* peak of live bytes */
    size_t capacity_bytes; /* held now */
};

struct rk_step_arena_stats {
    struct rk_step_pool_stats tensors; /* device memory */
    struct rk_step_pool_stats staging; /* pinned host memory */
};

/* Empty until memory is reserved or allocated. `device` is borrowed. */
struct rk_step_arena *rk_step_arena_create(struct rk_device *device);
void rk_step_arena_destroy(struct rk_step_arena *arena); /* NULL is a no-op */
/* Resets, and allocates one block of each size unless there is one. RESOURCE_EXHAUSTED. */
struct rk_status *rk_step_arena_reserve(struct rk_step_arena *arena, size_t device_bytes,
                                        size_t host_bytes) RK_NODISCARD;
void rk_step_arena_reset(struct rk_step_arena *arena);
struct rk_step_mark rk_step_arena_mark(const struct rk_step_arena *arena);
/* Releases the tensors allocated since `mark`. */
void rk_step_arena_release(struct rk_step_arena *arena, struct rk_step_mark mark);
struct rk_step_arena_stats rk_step_arena_stats(const struct rk_step_arena *arena);

/* Contiguous tensors, valid until released or reset. Their data is never NULL, even without elements.
 * RESOURCE_EXHAUSTED. */
struct rk_status *rk_step_1d(struct rk_step_arena *arena, rk_tensor_t *out, rk_dtype_t dtype,
                             int64_t dim0) RK_NODISCARD;
struct rk_status *rk_step_2d(struct rk_step_arena *arena, rk_tensor_t *out, rk_dtype_t dtype, int64_t dim0,
                             int64_t dim1) RK_NODISCARD;
struct rk_status *rk_step_3d(struct rk_step_arena *arena, rk_tensor_t *out, rk_dtype_t dtype, int64_t dim0,
                             int64_t dim1, int64_t dim2) RK_NODISCARD;
/* Copies host memory, which may be reused at once. The stream does the copy to the device. */
struct rk_status *rk_step_upload(struct rk_step_arena *arena, struct rk_stream *stream, rk_tensor_t *out,
                                 rk_dtype_t dtype, const void *host, int64_t count) RK_NODISCARD;
/* *host, valid until the reset, holds a copy of the contiguous tensor once the stream has completed this
 * call. */
struct rk_status *rk_step_download(struct rk_step_arena *arena, struct rk_stream *stream, rk_tensor_t t,
                                   void **host) RK_NODISCARD;

#endif
