/* Memory of one step, handed out by bumping a pointer: on the device for activations and scratch, and pinned
 * on the host for what is copied between the two.
 *
 * A step takes tensors, gives scratch back to a mark, and resets everything at its end. What a plan says is
 * reserved before the first step. Where a step needs more than that, further blocks are added and counted;
 * the next reset replaces all blocks by one that would have been enough. So once the largest step has been
 * seen, or was planned, nothing is allocated any more, and addresses repeat. Owned by one model; engine
 * thread only. What lies in the memory is undefined. The stream must have passed the last use of memory
 * before a reset may free it, and the last copy before a reset lets the staging memory be written again. */
#ifndef RK_STEP_ARENA_INTERNAL_H
#define RK_STEP_ARENA_INTERNAL_H

#include <stdint.h>

#include "base/rk_status.h"
#include "kernels/rk_device.h"
#include "kernels/rk_tensor.h"

struct rk_step_arena;

/* A point to return to. */
struct rk_step_mark {
    int64_t block_idx;
    size_t used_bytes; /* of that block */
    size_t live_bytes; /* of the arena */
};

struct rk_step_pool_stats {
    uint64_t
        generation;     /* changes whenever a block is added or freed: equal steps then get other addresses */
    uint64_t overflows; /* blocks added after the first; stands still once warm */
    size_t peak_bytes;  /* most that was live at once */
    size_t capacity_bytes; /* held now */
};

struct rk_step_arena_stats {
    struct rk_step_pool_stats tensors; /* device memory */
    struct rk_step_pool_stats staging; /* pinned host memory */
};

/* Holds nothing until memory is reserved or taken. `device` is borrowed. */
struct rk_step_arena *rk_step_arena_create(struct rk_device *device);
void rk_step_arena_destroy(struct rk_step_arena *arena); /* NULL is a no-op */
/* Resets, and takes one block of each size now, unless there is one. RESOURCE_EXHAUSTED. */
struct rk_status *rk_step_arena_reserve(struct rk_step_arena *arena, size_t device_bytes,
                                        size_t host_bytes) RK_NODISCARD;
void rk_step_arena_reset(struct rk_step_arena *arena);
struct rk_step_mark rk_step_arena_mark(const struct rk_step_arena *arena);
/* Gives back the tensors that were taken since `mark`. */
void rk_step_arena_release(struct rk_step_arena *arena, struct rk_step_mark mark);
struct rk_step_arena_stats rk_step_arena_stats(const struct rk_step_arena *arena);

/* Contiguous tensors, valid until released or reset. Never "none", also when empty. RESOURCE_EXHAUSTED. */
struct rk_status *rk_step_1d(struct rk_step_arena *arena, rk_tensor_t *out, rk_dtype_t dtype,
                             int64_t dim0) RK_NODISCARD;
struct rk_status *rk_step_2d(struct rk_step_arena *arena, rk_tensor_t *out, rk_dtype_t dtype, int64_t dim0,
                             int64_t dim1) RK_NODISCARD;
struct rk_status *rk_step_3d(struct rk_step_arena *arena, rk_tensor_t *out, rk_dtype_t dtype, int64_t dim0,
                             int64_t dim1, int64_t dim2) RK_NODISCARD;
/* A copy of host memory, which may be used again at once. The stream does the copy. */
struct rk_status *rk_step_upload(struct rk_step_arena *arena, struct rk_stream *stream, rk_tensor_t *out,
                                 rk_dtype_t dtype, const void *host, int64_t count) RK_NODISCARD;
/* *host, valid until the reset, holds a copy of the contiguous tensor when the stream has passed this call.
 */
struct rk_status *rk_step_download(struct rk_step_arena *arena, struct rk_stream *stream, rk_tensor_t t,
                                   void **host) RK_NODISCARD;

#endif
