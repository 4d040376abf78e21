#include "engine/tensor/movable.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_fault.h"
#include "base/rk_host_memory.h"

struct rk_status *rk_movable_create(struct rk_movable *out, struct rk_device *device, size_t bytes,
                                    bool may_leave, const char *what)
{
    *out = (struct rk_movable){.device = device, .what = what, .bytes = bytes, .is_range = may_leave};
    if (!may_leave)
        return rk_device_alloc(device, &out->data, bytes, what);
    RK_TRY(rk_device_reserve(device, &out->data, bytes, what));
    return rk_device_commit(device, out->data);
}

void rk_movable_fini(struct rk_movable *movable)
{
    if (movable->device) {
        rk_device_free(movable->device, movable->data);
        rk_device_host_free(movable->device, movable->host);
    }
    *movable = (struct rk_movable){0};
}

uint64_t rk_movable_full_bytes(const struct rk_movable *movable)
{
    if (!movable->data)
        return 0;
    return movable->is_range ? rk_round_up(RK_MAX(movable->bytes, (size_t)1), RK_RANGE_GRANULE)
                             : movable->bytes;
}

uint64_t rk_movable_held_bytes(const struct rk_movable *movable)
{
    return movable->is_away ? 0 : rk_movable_full_bytes(movable);
}

struct rk_status *rk_movable_reserve(struct rk_movable *movable)
{
    uint64_t free_bytes;

    if (!movable->is_range || movable->host)
        return NULL;
    free_bytes = rk_host_free_bytes("");
    /* Check first: pinning more than is free would exhaust the host's memory before it fails. */
    if (RK_FAULT("offload.host") || movable->bytes > free_bytes)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%s: offloading needs %zu bytes of host memory, %llu free",
                       movable->what, movable->bytes, (unsigned long long)free_bytes);
    return rk_device_host_alloc(movable->device, &movable->host, movable->bytes, movable->what);
}

struct rk_status *rk_movable_copy_out(struct rk_movable *movable, struct rk_stream *stream)
{
    RK_ASSERT(rk_movable_can_leave(movable));
    RK_ASSERT(movable->host);
    return rk_stream_copy(stream, movable->host, movable->data, movable->bytes, RK_COPY_D2H);
}

struct rk_status *rk_movable_leave(struct rk_movable *movable, bool has_copy)
{
    RK_ASSERT(rk_movable_can_leave(movable));
    RK_TRY(rk_device_release(movable->device, movable->data));
    movable->is_away = true;
    movable->has_copy = has_copy;
    return NULL;
}

struct rk_status *rk_movable_come_back(struct rk_movable *movable, struct rk_stream *stream)
{
    if (!movable->is_away)
        return NULL;
    RK_TRY(rk_device_commit(movable->device, movable->data));
    movable->is_away = false;
    if (!movable->has_copy)
        return NULL;
    return rk_stream_copy(stream, movable->data, movable->host, movable->bytes, RK_COPY_H2D);
}
