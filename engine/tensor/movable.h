/* Private to engine/: a flat buffer of device memory that can be offloaded to host memory. */
#ifndef RK_ENGINE_MOVABLE_H
#define RK_ENGINE_MOVABLE_H

#include "kernels/rk_device.h"

/* A buffer that can be offloaded is in an address range, so that it returns to its addresses. Other buffers
 * are plain memory: ranges consist of whole granules, of which a small model would waste most. The caller of
 * create owns it; engine thread only. */
struct rk_movable {
    /* Fixed after create. */
    struct rk_device *device;
    const char *what; /* literal, name for messages */
    void *data;       /* the address; NULL: no buffer */
    size_t bytes;     /* size of the contents */
    bool is_range;
    /* State of the move. */
    void *host;    /* pinned memory of `bytes`; NULL until reserved, then kept */
    bool is_away;  /* is offloaded */
    bool has_copy; /* host holds the contents: not modified since the last offload */
};

/* Zeroed. RESOURCE_EXHAUSTED; UNIMPLEMENTED for an offloadable buffer on a device without address ranges. */
struct rk_status *rk_movable_create(struct rk_movable *out, struct rk_device *device, size_t bytes,
                                    bool may_leave, const char *what) RK_NODISCARD;
void rk_movable_fini(struct rk_movable *movable); /* of zeros: a no-op */
/* Device memory that it holds now, and that it holds when not offloaded. */
uint64_t rk_movable_held_bytes(const struct rk_movable *movable);
uint64_t rk_movable_full_bytes(const struct rk_movable *movable);

/* Allocates the host memory of the copy unless allocated. RESOURCE_EXHAUSTED. */
struct rk_status *rk_movable_reserve(struct rk_movable *movable) RK_NODISCARD;

/* Whether it can be offloaded now. */
static inline bool rk_movable_can_leave(const struct rk_movable *movable)
{
    return movable->is_range && !movable->is_away;
}
/* Enqueues the copy to the host, which must have been reserved. */
struct rk_status *rk_movable_copy_out(struct rk_movable *movable, struct rk_stream *stream) RK_NODISCARD;
/* Releases the device memory. All streams must have completed its uses and the copy. `has_copy`: the host has
 * the contents; otherwise they are lost. */
struct rk_status *rk_movable_leave(struct rk_movable *movable, bool has_copy) RK_NODISCARD;
/* Allocates the device memory again and enqueues the copy back, or zeroes it if there is no copy; no-op if
 * not offloaded. RESOURCE_EXHAUSTED: it is still offloaded. */
struct rk_status *rk_movable_come_back(struct rk_movable *movable, struct rk_stream *stream) RK_NODISCARD;

#endif
