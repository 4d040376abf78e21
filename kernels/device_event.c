/* Events of a device: they order its streams and measure times. */
#include "kernels/rk_device.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_time.h"
#include "kernels/device_internal.h"

struct rk_event {
    struct rk_device *device;
    void *handle;       /* NULL if the backend has no events */
    int64_t reached_ns; /* if the backend has no events: when it was recorded, which is when it was reached */
};

static struct rk_status *event_create(struct rk_event **out, struct rk_device *device,
                                      struct rk_status *(*create)(void *dev, void **out))
{
    struct rk_event *event;
    struct rk_status *st = NULL;

    *out = NULL;
    event = rk_calloc(1, sizeof(*event));
    event->device = device;
    if (create)
        st = create(device->handle, &event->handle);
    if (st) {
        rk_free(event);
        return RK_WRAP(st, "creating an event on device '%s'", device->info.name);
    }
    device->num_events++;
    *out = event;
    return NULL;
}

struct rk_status *rk_event_create(struct rk_event **out, struct rk_device *device)
{
    return event_create(out, device, device->ops->event_create);
}

struct rk_status *rk_event_create_timed(struct rk_event **out, struct rk_device *device)
{
    return event_create(out, device, device->ops->event_create_timed);
}

struct rk_status *rk_event_elapsed_ns(int64_t *out, struct rk_event *begin, struct rk_event *end)
{
    struct rk_device *device = begin->device;

    RK_ASSERT(end->device == device);
    if (device->ops->event_elapsed_ns)
        return device->ops->event_elapsed_ns(device->handle, out, begin->handle, end->handle);
    *out = end->reached_ns - begin->reached_ns;
    return NULL;
}

void rk_event_destroy(struct rk_event *event)
{
    if (!event)
        return;
    if (event->device->ops->event_destroy)
        event->device->ops->event_destroy(event->device->handle, event->handle);
    event->device->num_events--;
    rk_free(event);
}

struct rk_status *rk_event_record(struct rk_event *event, struct rk_stream *stream)
{
    const struct rk_device_ops *ops = event->device->ops;

    RK_ASSERT(event->device == stream->device);
    event->reached_ns = rk_time_now_ns();
    return ops->event_record ? ops->event_record(event->device->handle, event->handle, stream->handle) : NULL;
}

struct rk_status *rk_stream_wait(struct rk_stream *stream, struct rk_event *event)
{
    const struct rk_device_ops *ops = stream->device->ops;

    RK_ASSERT(event->device == stream->device);
    return ops->stream_wait ? ops->stream_wait(stream->device->handle, stream->handle, event->handle) : NULL;
}

bool rk_event_query(struct rk_event *event)
{
    const struct rk_device_ops *ops = event->device->ops;

    return !ops->event_query || ops->event_query(event->device->handle, event->handle);
}

struct rk_status *rk_event_sync(struct rk_event *event)
{
    struct rk_device *device = event->device;

    if (device->ops->event_sync)
        RK_TRY(device->ops->event_sync(device->handle, event->handle));
    return device->watch ? device->watch(device->watch_user) : NULL;
}
