/* Private to engine/: a flat buffer of device memory whose contents can wait in host memory. */
#ifndef RK_MOVABLE_INTERNAL_H
#define RK_MOVABLE_INTERNAL_H

#include "kernels/rk_device.h"

/* One that may leave the device lies in an address range, so that it comes back to its addresses. Another is
 * plain memory: ranges are whole granules, of which a small model would waste most. The caller
 * of create owns it; engine thread. */
struct rk_movable {
    /* Fixed after create. */
    struct rk_device *device;
    const char *what; /* literal, for messages */
    void *data;       /* the address; NULL: there is no buffer */
    size_t bytes;     /* of the contents */
    bool is_range;
    /* What moves. */
    void *host;    /* pinned memory of `bytes`; NULL until it is reserved, then kept */
    bool is_away;  /* has left the device */
    bool has_copy; /* host holds the contents: nothing was written since they left last */
};

/* Zeroed. RESOURCE_EXHAUSTED; UNIMPLEMENTED where it may leave a device without ranges. */
struct rk_status *rk_movable_create(struct rk_movable *out, struct rk_device *device, size_t bytes,
                                    bool may_leave, const char *what) RK_NODISCARD;
void rk_movable_fini(struct rk_movable *movable); /* of zeros: a no-op */
/* Device memory that it takes, and that it takes when it has not left. */
uint64_t rk_movable_held_bytes(const struct rk_movable *movable);
uint64_t rk_movable_full_bytes(const struct rk_movable *movable);

/* Takes the host memory of the copy; nothing when there is some. RESOURCE_EXHAUSTED. */
struct rk_status *rk_movable_reserve(struct rk_movable *movable) RK_NODISCARD;

/* Whether it can leave now. */
static inline bool rk_movable_can_leave(const struct rk_movable *movable)
{
    return movable->is_range && !movable->is_away;
}
/* Enqueues the copy to the host, which must have been reserved. */
struct rk_status *rk_movable_copy_out(struct rk_movable *movable, struct rk_stream *stream) RK_NODISCARD;
/* Gives the device memory back. Every stream must have passed what uses it, and the copy. `has_copy`: the
 * host has the contents; otherwise they are lost. */
struct rk_status *rk_movable_leave(struct rk_movable *movable, bool has_copy) RK_NODISCARD;
/* Takes the device memory again and enqueues the copy back, or leaves it zeroed; nothing when it has not
 * left. RESOURCE_EXHAUSTED: it is still away. */
struct rk_status *rk_movable_come_back(struct rk_movable *movable, struct rk_stream *stream) RK_NODISCARD;

#endif
