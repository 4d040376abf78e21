#include "tests/support/graph_device.h"

#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_assert.h"
#include "base/rk_time.h"
#include "engine/rk_plugin.h"
#include "kernels/rk_kernels.h"

struct entry {
    struct rk_test_task task;
    void *args; /* owned */
};

struct graph {
    RK_ARRAY(struct entry) entries;
    atomic_int num_launched; /* launched and not finished */
};

/* A stream; a device's handle is the device of the CPU. */
struct graph_stream {
    struct rk_stream *cpu;
    struct rk_test_queue *queue;
    struct graph *recording; /* NULL: not recording */
};

/* The current device of this thread. */
static _Thread_local void *current;

static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

static void graph_free(struct graph *graph)
{
    for (int64_t i = 0; i < graph->entries.count; i++) {
        const struct entry *entry = &graph->entries.items[i];

        if (entry->task.release)
            entry->task.release(entry->args);
        rk_free(entry->args);
    }
    rk_array_fini(&graph->entries);
    rk_free(graph);
}

/* False if the stream is not recording. */
static bool record(struct graph_stream *stream, const struct rk_test_task *task)
{
    struct entry entry = {.task = *task};

    if (!stream->recording)
        return false;
    entry.args = rk_malloc(task->args_bytes);
    memcpy(entry.args, task->args, task->args_bytes);
    rk_array_append(&stream->recording->entries, entry);
    return true;
}

bool rk_test_graphs_append(void *native, const struct rk_test_task *task)
{
    struct graph_stream *stream = native;

    if (!stream)
        return false;
    if (!record(stream, task))
        rk_test_queue_add(stream->queue, task);
    return true;
}

/* Records it, or runs it after all work of the stream. */
static struct rk_status *record_or_run(struct graph_stream *stream, const struct rk_test_task *task)
{
    if (record(stream, task))
        return NULL;
    RK_TRY(rk_test_queue_sync(stream->queue));
    return task->run(stream->cpu, task->args);
}

/* --- recorded operations --- */

#define X(op, args_type)                                                                                 \
    static struct rk_status *run_##op(struct rk_stream *stream, const void *args)                        \
    {                                                                                                    \
        return rk_##op(stream, args);                                                                    \
    }                                                                                                    \
    static struct rk_status *graphs_##op(void *dev, void *stream, const struct args_type *args)          \
    {                                                                                                    \
        (void)dev;                                                                                       \
        return record_or_run(                                                                            \
            stream, &(struct rk_test_task){.run = run_##op, .args = args, .args_bytes = sizeof(*args)}); \
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
    return record_or_run(stream,
                         &(struct rk_test_task){.run = run_copy, .args = copy, .args_bytes = sizeof(*copy)});
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
    RK_TRY(rk_device_open((struct rk_device **)out, &cpu));
    current = *out;
    return NULL;
}

static struct rk_status *graphs_use(void *dev)
{
    current = dev;
    return NULL;
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

static struct rk_status *graphs_range_reserve(void *dev, void **out, size_t bytes)
{
    return rk_device_reserve(dev, out, bytes, "test");
}

static struct rk_status *graphs_range_commit(void *dev, void *range, size_t bytes)
{
    (void)bytes;
    return rk_device_commit(dev, range);
}

static struct rk_status *graphs_range_release(void *dev, void *range, size_t bytes)
{
    (void)bytes;
    return rk_device_release(dev, range);
}

static void graphs_range_free(void *dev, void *range, size_t bytes)
{
    (void)bytes;
    rk_device_free(dev, range);
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

    if (st) {
        rk_free(stream);
        return st;
    }
    stream->queue = rk_test_queue_create(stream->cpu);
    *out = stream;
    return NULL;
}

static void graphs_stream_destroy(void *dev, void *handle)
{
    struct graph_stream *stream = handle;

    (void)dev;
    RK_ASSERT(!stream->recording);
    rk_test_queue_destroy(stream->queue);
    rk_stream_destroy(stream->cpu);
    rk_free(stream);
}

static struct rk_status *graphs_stream_sync(void *dev, void *handle)
{
    struct graph_stream *stream = handle;

    (void)dev;
    if (stream->recording)
        return RK_FAIL(RK_FAILED_PRECONDITION, "a stream that records was waited for");
    return rk_test_queue_sync(stream->queue);
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

/* --- events --- */

struct event {
    uint64_t num_recorded;
    _Atomic uint64_t num_reached;
    _Atomic int64_t reached_ns;
};

/* Arguments of a task that marks an event as reached. */
struct reach {
    struct event *event;
    uint64_t number; /* of the record */
};

static struct rk_status *graphs_event_create(void *dev, void **out)
{
    (void)dev;
    *out = rk_calloc(1, sizeof(struct event));
    return NULL;
}

static bool has_reached(const struct event *event)
{
    return atomic_load(&event->num_reached) == event->num_recorded;
}

static void graphs_event_destroy(void *dev, void *handle)
{
    (void)dev;
    while (!has_reached(handle)) /* a stream is still going to write to it */
        nap();
    rk_free(handle);
}

static struct rk_status *run_reach(struct rk_stream *stream, const void *args)
{
    const struct reach *reach = args;

    (void)stream;
    atomic_store(&reach->event->reached_ns, rk_time_now_ns());
    atomic_store(&reach->event->num_reached, reach->number);
    return NULL;
}

static struct rk_status *graphs_event_record(void *dev, void *handle, void *stream)
{
    struct event *event = handle;
    const struct reach reach = {event, ++event->num_recorded};

    RK_ASSERT(dev == current);
    rk_test_queue_add(((struct graph_stream *)stream)->queue,
                      &(struct rk_test_task){.run = run_reach, .args = &reach, .args_bytes = sizeof(reach)});
    return NULL;
}

static atomic_bool holds_queries;

void rk_test_graphs_hold_queries(bool holds)
{
    atomic_store(&holds_queries, holds);
}

static bool graphs_event_query(void *dev, void *event)
{
    RK_ASSERT(dev == current);
    while (atomic_load(&holds_queries))
        nap();
    return has_reached(event);
}

static struct rk_status *graphs_event_sync(void *dev, void *event)
{
    RK_ASSERT(dev == current);
    while (!has_reached(event))
        nap();
    return NULL;
}

static struct rk_status *graphs_stream_wait(void *dev, void *stream, void *event)
{
    (void)stream;
    return graphs_event_sync(dev, event);
}

static struct rk_status *graphs_event_elapsed_ns(void *dev, int64_t *out, void *begin, void *end)
{
    (void)dev;
    *out =
        atomic_load(&((struct event *)end)->reached_ns) - atomic_load(&((struct event *)begin)->reached_ns);
    return NULL;
}

/* --- graphs --- */

static atomic_llong num_graphs, max_graphs = -1;

void rk_test_graphs_limit(int64_t limit)
{
    atomic_store(&max_graphs, limit);
}

static struct rk_status *graphs_get_free(void *dev, uint64_t *out_bytes)
{
    (void)dev;
    *out_bytes = atomic_load(&max_graphs) < 0 ? UINT64_MAX : 0;
    return NULL;
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
    if (out && atomic_load(&num_graphs) != atomic_load(&max_graphs)) {
        *out = stream->recording;
        atomic_fetch_add(&num_graphs, 1);
    } else {
        graph_free(stream->recording);
        if (out)
            st = RK_FAIL_REASON(RK_RESOURCE_EXHAUSTED, "DEVICE_OOM", "%lld graphs", atomic_load(&num_graphs));
    }
    stream->recording = NULL;
    return st;
}

static struct rk_status *run_graph(struct rk_stream *cpu, const void *args)
{
    struct graph *graph = *(struct graph *const *)args;
    struct rk_status *st = NULL;

    for (int64_t i = 0; i < graph->entries.count && !st; i++)
        st = graph->entries.items[i].task.run(cpu, graph->entries.items[i].args);
    atomic_fetch_sub(&graph->num_launched, 1);
    return st;
}

static struct rk_status *graphs_launch(void *dev, void *handle, void *graph)
{
    struct graph_stream *stream = handle;

    (void)dev;
    RK_ASSERT(!stream->recording);
    atomic_fetch_add(&((struct graph *)graph)->num_launched, 1);
    rk_test_queue_add(stream->queue,
                      &(struct rk_test_task){.run = run_graph, .args = &graph, .args_bytes = sizeof(graph)});
    return NULL;
}

/* The CPU's scratch memory is not part of graphs. */
static bool graphs_is_current(void *dev, void *stream, void *graph)
{
    (void)dev;
    (void)stream;
    (void)graph;
    return true;
}

static void graphs_destroy(void *dev, void *handle)
{
    struct graph *graph = handle;

    (void)dev;
    while (atomic_load(&graph->num_launched) > 0)
        nap();
    graph_free(graph);
    atomic_fetch_sub(&num_graphs, 1);
}

static const struct rk_device_ops graphs_ops = {
    .name = "graphs",
    .abi = RK_DEVICE_ABI,
    .collectives = "nccl",
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
    .event_create = graphs_event_create,
    .event_destroy = graphs_event_destroy,
    .event_record = graphs_event_record,
    .stream_wait = graphs_stream_wait,
    .event_query = graphs_event_query,
    .stream_is_recording = graphs_is_recording,
    .stream_native = graphs_native,
    .use = graphs_use,
    .event_create_timed = graphs_event_create,
    .event_elapsed_ns = graphs_event_elapsed_ns,
    .event_sync = graphs_event_sync,
    .get_free = graphs_get_free,
    .graph_begin = graphs_begin,
    .graph_end = graphs_end,
    .graph_launch = graphs_launch,
    .graph_is_current = graphs_is_current,
    .graph_destroy = graphs_destroy,
    .range_reserve = graphs_range_reserve,
    .range_commit = graphs_range_commit,
    .range_release = graphs_range_release,
    .range_free = graphs_range_free,
};

struct rk_status *rk_test_graphs_register(void)
{
    static const struct rk_plugin plugin = {.device = &graphs_ops};
    static bool is_registered;

    if (is_registered)
        return NULL;
    is_registered = true;
    return rk_plugin_add(&plugin);
}
