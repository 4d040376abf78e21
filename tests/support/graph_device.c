#include "tests/support/graph_device.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_assert.h"
#include "kernels/rk_kernels.h"

struct entry {
    struct rk_test_recorded recorded;
    void *args; /* owned */
};

struct graph {
    RK_ARRAY(struct entry) entries;
};

/* Of a stream; a device's handle is the device of the CPU. */
struct graph_stream {
    struct rk_stream *cpu;
    struct graph *recording; /* NULL: it does not */
};

static void graph_free(struct graph *graph)
{
    for (int64_t i = 0; i < graph->entries.count; i++) {
        const struct entry *entry = &graph->entries.items[i];

        if (entry->recorded.release)
            entry->recorded.release(entry->args);
        rk_free(entry->args);
    }
    rk_array_fini(&graph->entries);
    rk_free(graph);
}

bool rk_test_graphs_append(void *native, const struct rk_test_recorded *recorded)
{
    struct graph_stream *stream = native;
    struct entry entry = {.recorded = *recorded};

    if (!stream || !stream->recording)
        return false;
    entry.args = rk_malloc(recorded->args_bytes);
    memcpy(entry.args, recorded->args, recorded->args_bytes);
    rk_array_append(&stream->recording->entries, entry);
    return true;
}

/* --- what is recorded --- */

#define X(op, args_type)                                                                        \
    static struct rk_status *run_##op(struct rk_stream *stream, const void *args)               \
    {                                                                                           \
        return rk_##op(stream, args);                                                           \
    }                                                                                           \
    static struct rk_status *graphs_##op(void *dev, void *stream, const struct args_type *args) \
    {                                                                                           \
        const struct rk_test_recorded recorded = {                                              \
            .run = run_##op, .args = args, .args_bytes = sizeof(*args)};                        \
                                                                                                \
        (void)dev;                                                                              \
        if (rk_test_graphs_append(stream, &recorded))                                           \
            return NULL;                                                                        \
        return rk_##op(((struct graph_stream *)stream)->cpu, args);                             \
    }
RK_KERNEL_TABLE(X)
#undef X

static const struct rk_kernel_ops graphs_kernels = {.name = "graphs",
                                                    .abi = RK_KERNEL_ABI,
#define X(op, args_type) .op = graphs_##op,
                                                    RK_KERNEL_TABLE(X)
#undef X
};

struct copy {
    void *dst;
    const void *src; /* NULL: zeros */
    size_t bytes;
    rk_copy_kind_t kind;
};

static struct rk_status *run_copy(struct rk_stream *stream, const void *args)
{
    const struct copy *copy = args;

    if (!copy->src)
        return rk_stream_zero(stream, copy->dst, copy->bytes);
    return rk_stream_copy(stream, copy->dst, copy->src, copy->bytes, copy->kind);
}

static struct rk_status *copy_or_record(struct graph_stream *stream, const struct copy *copy)
{
    const struct rk_test_recorded recorded = {.run = run_copy, .args = copy, .args_bytes = sizeof(*copy)};

    return rk_test_graphs_append(stream, &recorded) ? NULL : run_copy(stream->cpu, copy);
}

static struct rk_status *graphs_copy(void *dev, void *stream, void *dst, const void *src, size_t bytes,
                                     rk_copy_kind_t kind)
{
    (void)dev;
    return copy_or_record(stream, &(struct copy){dst, src, bytes, kind});
}

static struct rk_status *graphs_zero(void *dev, void *stream, void *dst, size_t bytes)
{
    (void)dev;
    return copy_or_record(stream, &(struct copy){dst, NULL, bytes, RK_COPY_D2D});
}

/* --- the device --- */

static struct rk_status *graphs_open(void **out, int index, const struct rk_device_config *config)
{
    struct rk_device_config cpu = *config;

    (void)index;
    cpu.name = "cpu";
    return rk_device_open((struct rk_device **)out, &cpu);
}

static void graphs_close(void *dev)
{
    rk_device_close(dev);
}

static struct rk_status *graphs_get_info(void *dev, struct rk_device_info *out)
{
    *out = rk_device_get_info(dev);
    snprintf(out->name, sizeof(out->name), "graphs");
    return NULL;
}

static struct rk_status *graphs_alloc(void *dev, void **out, size_t bytes)
{
    return rk_device_alloc(dev, out, bytes, "test");
}

static void graphs_free(void *dev, void *ptr)
{
    rk_device_free(dev, ptr);
}

static struct rk_status *graphs_host_alloc(void *dev, void **out, size_t bytes)
{
    return rk_device_host_alloc(dev, out, bytes, "test");
}

static void graphs_host_free(void *dev, void *ptr)
{
    rk_device_host_free(dev, ptr);
}

static struct rk_status *graphs_stream_create(void *dev, void **out, const char *name)
{
    struct graph_stream *stream = rk_calloc(1, sizeof(*stream));
    struct rk_status *st = rk_stream_create(&stream->cpu, dev, name);

    if (st)
        rk_free(stream);
    else
        *out = stream;
    return st;
}

static void graphs_stream_destroy(void *dev, void *handle)
{
    struct graph_stream *stream = handle;

    (void)dev;
    RK_ASSERT(!stream->recording);
    rk_stream_destroy(stream->cpu);
    rk_free(stream);
}

static struct rk_status *graphs_stream_sync(void *dev, void *handle)
{
    struct graph_stream *stream = handle;

    (void)dev;
    if (stream->recording)
        return RK_FAIL(RK_FAILED_PRECONDITION, "a stream that records was waited for");
    return rk_stream_sync(stream->cpu);
}

static bool graphs_is_recording(void *dev, void *stream)
{
    (void)dev;
    return ((struct graph_stream *)stream)->recording != NULL;
}

static void *graphs_native(void *dev, void *stream)
{
    (void)dev;
    return stream;
}

/* --- graphs --- */

static int64_t num_graphs, max_graphs = -1;

void rk_test_graphs_limit(int64_t limit)
{
    max_graphs = limit;
}

static struct rk_status *graphs_begin(void *dev, void *handle)
{
    struct graph_stream *stream = handle;

    (void)dev;
    RK_ASSERT(!stream->recording);
    stream->recording = rk_calloc(1, sizeof(*stream->recording));
    return NULL;
}

static struct rk_status *graphs_end(void *dev, void *handle, void **out)
{
    struct graph_stream *stream = handle;
    struct rk_status *st = NULL;

    (void)dev;
    RK_ASSERT(stream->recording);
    if (out && num_graphs != max_graphs) {
        *out = stream->recording;
        num_graphs++;
    } else {
        graph_free(stream->recording);
        if (out)
            st = RK_FAIL_REASON(RK_RESOURCE_EXHAUSTED, "DEVICE_OOM", "%lld graphs", (long long)num_graphs);
    }
    stream->recording = NULL;
    return st;
}

static struct rk_status *graphs_launch(void *dev, void *handle, void *graph_handle)
{
    struct graph_stream *stream = handle;
    const struct graph *graph = graph_handle;

    (void)dev;
    RK_ASSERT(!stream->recording);
    for (int64_t i = 0; i < graph->entries.count; i++)
        RK_TRY(graph->entries.items[i].recorded.run(stream->cpu, graph->entries.items[i].args));
    return NULL;
}

/* Nothing of the CPU's moves. */
static bool graphs_is_current(void *dev, void *stream, void *graph)
{
    (void)dev;
    (void)stream;
    (void)graph;
    return true;
}

static void graphs_destroy(void *dev, void *graph)
{
    (void)dev;
    graph_free(graph);
    num_graphs--;
}

static const struct rk_device_ops graphs_ops = {
    .name = "graphs",
    .abi = RK_DEVICE_ABI,
    .collectives = "cpu",
    .kernels = &graphs_kernels,
    .open = graphs_open,
    .close = graphs_close,
    .get_info = graphs_get_info,
    .alloc = graphs_alloc,
    .free = graphs_free,
    .host_alloc = graphs_host_alloc,
    .host_free = graphs_host_free,
    .stream_create = graphs_stream_create,
    .stream_destroy = graphs_stream_destroy,
    .copy = graphs_copy,
    .zero = graphs_zero,
    .stream_sync = graphs_stream_sync,
    .stream_is_recording = graphs_is_recording,
    .stream_native = graphs_native,
    .graph_begin = graphs_begin,
    .graph_end = graphs_end,
    .graph_launch = graphs_launch,
    .graph_is_current = graphs_is_current,
    .graph_destroy = graphs_destroy,
};

struct rk_status *rk_test_graphs_register(void)
{
    static bool is_registered;

    if (is_registered)
        return NULL;
    is_registered = true;
    return rk_device_register(&graphs_ops);
}
