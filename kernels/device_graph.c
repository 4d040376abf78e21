/* Graphs of a device: operations enqueued on a stream between begin and end, launched as one. */
#include "kernels/rk_device.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "kernels/device_internal.h"
#include "kernels/rk_trace.h"

struct rk_graph {
    struct rk_stream *stream;
    void *handle;
};

bool rk_device_has_graphs(const struct rk_device *device)
{
    return device->ops->graph_begin != NULL;
}

struct rk_status *rk_graph_begin(struct rk_stream *stream)
{
    const struct rk_device *device = stream->device;

    if (!device->ops->graph_begin)
        return RK_FAIL(RK_UNIMPLEMENTED, "device '%s' has no graphs", device->info.name);
    return device->ops->graph_begin(device->handle, stream->handle);
}

struct rk_status *rk_graph_end(struct rk_graph **out, struct rk_stream *stream)
{
    struct rk_device *device = stream->device;
    struct rk_status *st;
    void *handle = NULL;

    RK_ASSERT(device->ops->graph_end);
    if (out)
        *out = NULL;
    st = device->ops->graph_end(device->handle, stream->handle, out ? &handle : NULL);
    if (st || !out)
        return st;
    *out = rk_calloc(1, sizeof(**out));
    (*out)->stream = stream;
    (*out)->handle = handle;
    device->num_graphs++;
    return NULL;
}

struct rk_status *rk_graph_launch(struct rk_graph *graph)
{
    struct rk_stream *stream = graph->stream;
    bool is_traced = stream->device->trace && rk_stream_trace(stream);
    struct rk_status *st;

    RK_ASSERT(rk_graph_is_current(graph));
    if (is_traced)
        rk_trace_begin(stream, &(struct rk_trace_span){.kind = RK_TRACE_GRAPH, .name = "graph"});
    st = stream->device->ops->graph_launch(stream->device->handle, stream->handle, graph->handle);
    if (is_traced)
        rk_trace_end(stream);
    return st;
}

bool rk_graph_is_current(const struct rk_graph *graph)
{
    const struct rk_stream *stream = graph->stream;

    return stream->device->ops->graph_is_current(stream->device->handle, stream->handle, graph->handle);
}

void rk_graph_destroy(struct rk_graph *graph)
{
    struct rk_device *device;

    if (!graph)
        return;
    device = graph->stream->device;
    device->ops->graph_destroy(device->handle, graph->handle);
    device->num_graphs--;
    rk_free(graph);
}
