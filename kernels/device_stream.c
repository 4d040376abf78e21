/* Streams of a device and their operations: copies, zeroing, waiting. */
#include "kernels/rk_device.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "kernels/device_internal.h"
#include "kernels/rk_trace.h"

#include <stdio.h>

static struct rk_status *stream_create(struct rk_stream **out, struct rk_device *device, const char *name,
                                       struct rk_status *(*create)(void *dev, void **out, const char *name))
{
    struct rk_stream *stream;
    struct rk_status *st;

    RK_ASSERT(device);
    RK_ASSERT(name);
    *out = NULL;
    stream = rk_calloc(1, sizeof(*stream));
    stream->device = device;
    st = create(device->handle, &stream->handle, name);
    if (st) {
        rk_free(stream);
        return RK_WRAP(st, "creating stream '%s' on device '%s'", name, device->info.name);
    }
    snprintf(stream->name, sizeof(stream->name), "%s", name);
    device->num_streams++;
    *out = stream;
    return NULL;
}

struct rk_status *rk_stream_create(struct rk_stream **out, struct rk_device *device, const char *name)
{
    return stream_create(out, device, name, device->ops->stream_create);
}

struct rk_status *rk_stream_create_urgent(struct rk_stream **out, struct rk_device *device, const char *name)
{
    const struct rk_device_ops *ops = device->ops;

    return stream_create(out, device, name,
                         ops->stream_create_urgent ? ops->stream_create_urgent : ops->stream_create);
}

void rk_stream_destroy(struct rk_stream *stream)
{
    if (!stream)
        return;
    if (stream->device->trace)
        rk_trace_forget_stream(stream->device->trace, stream);
    stream->device->ops->stream_destroy(stream->device->handle, stream->handle);
    stream->device->num_streams--;
    rk_free(stream);
}

const char *rk_stream_name(const struct rk_stream *stream)
{
    return stream->name;
}

struct rk_device *rk_stream_device(const struct rk_stream *stream)
{
    return stream->device;
}

void *rk_stream_handle(const struct rk_stream *stream)
{
    return stream->handle;
}

const struct rk_kernel_ops *rk_stream_kernels(const struct rk_stream *stream)
{
    return stream->device->ops->kernels;
}

static struct rk_status *traced_copy(struct rk_stream *stream, void *dst, const void *src, size_t bytes,
                                     rk_copy_kind_t kind)
{
    static const char *const names[] = {
        [RK_COPY_H2D] = "copy to device", [RK_COPY_D2H] = "copy to host", [RK_COPY_D2D] = "copy"};
    struct rk_trace_span span = {.kind = RK_TRACE_COPY, .name = names[kind], .bytes = bytes};
    struct rk_status *st;

    rk_trace_begin(stream, &span);
    st = stream->device->ops->copy(stream->device->handle, stream->handle, dst, src, bytes, kind);
    rk_trace_end(stream);
    return st;
}

struct rk_status *rk_stream_copy(struct rk_stream *stream, void *dst, const void *src, size_t bytes,
                                 rk_copy_kind_t kind)
{
    if (bytes == 0)
        return NULL;
    RK_ASSERT(dst);
    RK_ASSERT(src);
    if (stream->device->trace && rk_stream_trace(stream))
        return traced_copy(stream, dst, src, bytes, kind);
    return stream->device->ops->copy(stream->device->handle, stream->handle, dst, src, bytes, kind);
}

static struct rk_status *traced_zero(struct rk_stream *stream, void *dst, size_t bytes)
{
    struct rk_status *st;

    rk_trace_begin(stream, &(struct rk_trace_span){.kind = RK_TRACE_COPY, .name = "zero", .bytes = bytes});
    st = stream->device->ops->zero(stream->device->handle, stream->handle, dst, bytes);
    rk_trace_end(stream);
    return st;
}

struct rk_status *rk_stream_zero(struct rk_stream *stream, void *dst, size_t bytes)
{
    if (bytes == 0)
        return NULL;
    RK_ASSERT(dst);
    if (stream->device->trace && rk_stream_trace(stream))
        return traced_zero(stream, dst, bytes);
    return stream->device->ops->zero(stream->device->handle, stream->handle, dst, bytes);
}

void *rk_stream_native(const struct rk_stream *stream)
{
    const struct rk_device_ops *ops = stream->device->ops;

    return ops->stream_native ? ops->stream_native(stream->device->handle, stream->handle) : NULL;
}

bool rk_stream_is_recording(const struct rk_stream *stream)
{
    const struct rk_device_ops *ops = stream->device->ops;

    return ops->stream_is_recording && ops->stream_is_recording(stream->device->handle, stream->handle);
}

struct rk_status *rk_stream_sync(struct rk_stream *stream)
{
    struct rk_device *device = stream->device;

    RK_TRY(device->ops->stream_sync(device->handle, stream->handle));
    return device->watch ? device->watch(device->watch_user) : NULL;
}

struct rk_status *rk_stream_reserve(struct rk_stream *stream, const struct rk_workspace *workspace)
{
    const struct rk_device_ops *ops = stream->device->ops;

    return ops->reserve ? ops->reserve(stream->device->handle, stream->handle, workspace) : NULL;
}
