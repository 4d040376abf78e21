/* The wrapper around a device backend: checks arguments, accounts memory, and keeps the list of what is live,
 * so that a leak is reported with the name its owner gave. Backends see only calls that make sense. */
#include "kernels/rk_device.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"
#include "base/rk_time.h"
#include "kernels/device_internal.h"
#include "kernels/rk_trace.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

typedef enum memory_kind { MEMORY_DEVICE, MEMORY_HOST, MEMORY_RANGE } memory_kind_t;

/* One live allocation; the list is newest first, since short-lived memory is freed soonest. */
struct allocation {
    struct allocation *next;
    void *ptr;
    size_t bytes;
    memory_kind_t kind;
    bool is_committed; /* of a range */
    char what[48];     /* for messages: truncated copy of the caller's name */
};

struct rk_device {
    const struct rk_device_ops *ops;
    void *handle;
    int lock_fd; /* -1: not opened exclusively, or a device that can be shared */
    struct rk_device_info info;
    uint64_t limit_bytes; /* min of the configured limit and what the device has */
    struct rk_device_stats stats;
    struct allocation *live;
    struct rk_status *(*watch)(void *user); /* NULL: none */
    void *watch_user;
    int64_t num_streams, num_events, num_graphs;
    struct rk_trace *trace; /* borrowed; NULL: nothing is traced */
};

struct rk_stream {
    struct rk_device *device;
    void *handle;
    char name[32];
};

struct rk_event {
    struct rk_device *device;
    void *handle;       /* NULL where the backend has no events */
    int64_t reached_ns; /* without events of the backend: when it was recorded, which is when it is reached */
};

/* Before the device is opened: the process that has it may have taken all of its memory, and an error about
 * that would hide who it is. */
static struct rk_status *lock(struct rk_device *device, int index)
{
    char uuid[RK_DEVICE_UUID_BYTES];

    if (!device->ops->get_uuid)
        return NULL;
    RK_TRY(device->ops->get_uuid(index, uuid));
    return rk_device_lock_take(&device->lock_fd, uuid);
}

static void unlock(struct rk_device *device)
{
    if (device->lock_fd >= 0)
        close(device->lock_fd);
}

struct rk_graph {
    struct rk_stream *stream;
    void *handle;
};

struct rk_status *rk_device_open(struct rk_device **out, const struct rk_device_config *config)
{
    struct rk_device_config known = {0};
    const struct rk_device_ops *ops;
    struct rk_device *device;
    struct rk_status *st = NULL;
    int index;

    RK_ASSERT(out);
    RK_ASSERT(config);
    *out = NULL;
    memcpy(&known, config, RK_MIN(config->struct_size, sizeof(known)));
    if (!known.name)
        return RK_FAIL(RK_INVALID_ARGUMENT, "device name is missing, expected NAME or NAME:INDEX");
    if (known.num_threads < 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "device '%s': num_threads=%d, expected 0 (all cores) or more",
                       known.name, known.num_threads);
    RK_TRY(rk_device_ops_find(&ops, &index, known.name));

    device = rk_calloc(1, sizeof(*device));
    device->ops = ops;
    device->lock_fd = -1;
    if (known.is_exclusive)
        RK_TRY_GOTO(st, lock(device, index), fail);
    RK_TRY_GOTO(st, ops->open(&device->handle, index, &known), fail);
    RK_TRY_GOTO(st, ops->get_info(device->handle, &device->info), fail);
    device->limit_bytes = device->info.memory_total_bytes;
    if (known.memory_limit_bytes > 0)
        device->limit_bytes = RK_MIN(device->limit_bytes, known.memory_limit_bytes);
    *out = device;
    return NULL;

fail:
    if (device->handle)
        ops->close(device->handle);
    unlock(device);
    rk_free(device);
    return RK_WRAP(st, "opening device '%s'", known.name);
}

struct rk_status *rk_device_open_plan(struct rk_device **out, const struct rk_device *like)
{
    struct rk_device *device = rk_calloc(1, sizeof(*device));

    device->ops = &rk_plan_device_ops;
    device->lock_fd = -1;
    device->handle =
        like ? rk_plan_device_create(like->ops->kernels, like->handle) : rk_plan_device_create(NULL, NULL);
    *out = device;
    RK_TRY(device->ops->get_info(device->handle, &device->info));
    device->limit_bytes = device->info.memory_total_bytes;
    return NULL;
}

bool rk_device_is_plan(const struct rk_device *device)
{
    return device->ops == &rk_plan_device_ops;
}

struct rk_workspace rk_device_planned_workspace(const struct rk_device *plan)
{
    RK_ASSERT(plan->ops == &rk_plan_device_ops);
    return rk_plan_device_workspace(plan->handle);
}

static void count_returned(struct rk_device *device, size_t bytes)
{
    RK_ASSERT(device->stats.allocated_bytes >= bytes);
    device->stats.allocated_bytes -= bytes;
}

static struct rk_status *release(struct rk_device *device, struct allocation *range)
{
    if (!range->is_committed)
        return NULL;
    RK_TRY(device->ops->range_release(device->handle, range->ptr, range->bytes));
    range->is_committed = false;
    count_returned(device, range->bytes);
    return NULL;
}

static void free_range(struct rk_device *device, struct allocation *range)
{
    struct rk_status *st = release(device, range);

    if (!st)
        device->ops->range_free(device->handle, range->ptr, range->bytes);
    else
        RK_WARN("an address range stays taken device=%s what=\"%s\" bytes=%zu error=\"%s\"",
                device->info.name, range->what, range->bytes, rk_status_message(st));
    rk_status_free(st);
}

static void free_memory(struct rk_device *device, struct allocation *alloc)
{
    switch (alloc->kind) {
    case MEMORY_DEVICE:
        count_returned(device, alloc->bytes);
        device->ops->free(device->handle, alloc->ptr);
        break;
    case MEMORY_HOST:
        device->stats.host_bytes -= alloc->bytes;
        device->ops->host_free(device->handle, alloc->ptr);
        break;
    case MEMORY_RANGE:
        free_range(device, alloc);
        break;
    }
    rk_free(alloc);
}

void rk_device_close(struct rk_device *device)
{
    bool leaked;

    if (!device)
        return;
    leaked = device->live || device->num_streams || device->num_events || device->num_graphs;
    if (device->num_streams || device->num_events || device->num_graphs)
        RK_ERROR("device closed with live objects device=%s streams=%lld events=%lld graphs=%lld",
                 device->info.name, (long long)device->num_streams, (long long)device->num_events,
                 (long long)device->num_graphs);
    while (device->live) {
        struct allocation *alloc = device->live;

        device->live = alloc->next;
        RK_ERROR("device memory leaked device=%s what=\"%s\" bytes=%zu", device->info.name, alloc->what,
                 alloc->bytes);
        free_memory(device, alloc);
    }
    RK_DCHECK(!leaked);
    device->ops->close(device->handle);
    unlock(device);
    rk_free(device);
}

struct rk_device_info rk_device_get_info(const struct rk_device *device)
{
    return device->info;
}

struct rk_device_stats rk_device_get_stats(const struct rk_device *device)
{
    struct rk_device_stats stats = device->stats;
    uint64_t num_own = 0;

    if (device->ops->get_own)
        device->ops->get_own(device->handle, &stats.own_bytes, &num_own);
    stats.num_allocations += num_own;
    return stats;
}

/* Below the limit, under which the memory of the operators counts as well. */
static uint64_t get_room(const struct rk_device *device, uint64_t limit_bytes)
{
    struct rk_device_stats stats = rk_device_get_stats(device);
    uint64_t taken = stats.allocated_bytes + stats.own_bytes;

    return taken < limit_bytes ? limit_bytes - taken : 0;
}

/* As the backend sees it, which knows of other processes. */
static uint64_t free_below(const struct rk_device *device, uint64_t limit_bytes)
{
    uint64_t below_limit = get_room(device, limit_bytes), left = below_limit;

    if (device->ops->get_free) {
        struct rk_status *st = device->ops->get_free(device->handle, &left);

        RK_IGNORE(st, "the limit is the better guess then");
    }
    return RK_MIN(left, below_limit);
}

uint64_t rk_device_free_bytes(const struct rk_device *device)
{
    return free_below(device, device->limit_bytes);
}

uint64_t rk_device_shared_free_bytes(const struct rk_device *device)
{
    return free_below(device, device->info.memory_total_bytes);
}

const char *rk_device_collectives(const struct rk_device *device)
{
    return device->ops->collectives;
}

void rk_device_set_watch(struct rk_device *device, struct rk_status *(*fn)(void *user), void *user)
{
    device->watch = fn;
    device->watch_user = user;
}

void rk_device_reset_peak(struct rk_device *device)
{
    device->stats.peak_bytes = device->stats.allocated_bytes;
}

bool rk_device_is_async(const struct rk_device *device)
{
    return device->ops->event_create != NULL;
}

struct rk_status *rk_device_check(struct rk_device *device)
{
    return device->ops->check ? device->ops->check(device->handle) : NULL;
}

void *rk_device_handle(const struct rk_device *device)
{
    return device->handle;
}

static void remember(struct rk_device *device, void *ptr, size_t bytes, memory_kind_t kind, const char *what)
{
    struct allocation *alloc = rk_calloc(1, sizeof(*alloc));

    alloc->ptr = ptr;
    alloc->bytes = bytes;
    alloc->kind = kind;
    strncpy(alloc->what, what, sizeof(alloc->what) - 1);
    alloc->next = device->live;
    device->live = alloc;
    device->stats.num_allocations++;
}

/* The entry of the list that points to the allocation. */
static struct allocation **find(struct rk_device *device, const void *ptr, bool is_host)
{
    struct allocation **link = &device->live;

    while (*link && ((*link)->ptr != ptr || ((*link)->kind == MEMORY_HOST) != is_host))
        link = &(*link)->next;
    RK_ASSERT(*link); /* not from this device, or freed before */
    return link;
}

static void forget(struct rk_device *device, void *ptr, bool is_host)
{
    struct allocation **link = find(device, ptr, is_host);
    struct allocation *alloc = *link;

    *link = alloc->next;
    free_memory(device, alloc);
}

/* `detail` is what the backend says, which knows of other users of the device; "" when it was not asked. */
static struct rk_status *out_of_memory(const struct rk_device *device, size_t bytes, const char *what,
                                       const char *detail)
{
    return RK_FAIL_REASON(RK_RESOURCE_EXHAUSTED, "DEVICE_OOM",
                          "%s: %zu bytes wanted on device '%s', %llu free of %llu%s%s", what, bytes,
                          device->info.name, (unsigned long long)rk_device_free_bytes(device),
                          (unsigned long long)device->limit_bytes, *detail ? ": " : "", detail);
}

/* Memory at `*out`, or, for a range, under it. */
static struct rk_status *take(struct rk_device *device, void **out, size_t bytes, memory_kind_t kind,
                              const char *what)
{
    const struct rk_device_ops *ops = device->ops;
    struct rk_device_stats *stats = &device->stats;
    struct rk_status *st, *oom;

    if (bytes > get_room(device, device->limit_bytes))
        return out_of_memory(device, bytes, what, "");
    st = kind == MEMORY_RANGE ? ops->range_commit(device->handle, *out, bytes)
                              : ops->alloc(device->handle, out, bytes);
    if (rk_status_code(st) == RK_RESOURCE_EXHAUSTED) {
        oom = out_of_memory(device, bytes, what, rk_status_message(st));
        rk_status_free(st);
        return oom;
    }
    if (st)
        return RK_WRAP(st, "%s: allocating %zu bytes on device '%s'", what, bytes, device->info.name);
    stats->allocated_bytes += bytes;
    stats->peak_bytes = RK_MAX(stats->peak_bytes, stats->allocated_bytes);
    return NULL;
}

struct rk_status *rk_device_alloc(struct rk_device *device, void **out, size_t bytes, const char *what)
{
    RK_ASSERT(what);
    *out = NULL;
    RK_TRY(take(device, out, bytes, MEMORY_DEVICE, what));
    remember(device, *out, bytes, MEMORY_DEVICE, what);
    return NULL;
}

struct rk_status *rk_device_reserve(struct rk_device *device, void **out, size_t bytes, const char *what)
{
    struct rk_status *st;

    RK_ASSERT(what);
    *out = NULL;
    if (!device->ops->range_reserve)
        return RK_FAIL(RK_UNIMPLEMENTED, "device '%s' has no address ranges", device->info.name);
    if (bytes > SIZE_MAX - RK_RANGE_GRANULE)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%s: %zu bytes exceed the address space", what, bytes);
    bytes = rk_round_up(RK_MAX(bytes, (size_t)1), RK_RANGE_GRANULE);
    st = device->ops->range_reserve(device->handle, out, bytes);
    if (st)
        return RK_WRAP(st, "%s: reserving %zu bytes of addresses on device '%s'", what, bytes,
                       device->info.name);
    remember(device, *out, bytes, MEMORY_RANGE, what);
    return NULL;
}

static struct allocation *find_range(struct rk_device *device, const void *range)
{
    struct allocation *alloc = *find(device, range, false);

    RK_ASSERT(alloc->kind == MEMORY_RANGE);
    return alloc;
}

struct rk_status *rk_device_commit(struct rk_device *device, void *range)
{
    struct allocation *alloc = find_range(device, range);

    if (alloc->is_committed)
        return NULL;
    RK_TRY(take(device, &range, alloc->bytes, MEMORY_RANGE, alloc->what));
    alloc->is_committed = true;
    return NULL;
}

struct rk_status *rk_device_release(struct rk_device *device, void *range)
{
    return release(device, find_range(device, range));
}

void rk_device_free(struct rk_device *device, void *ptr)
{
    if (ptr)
        forget(device, ptr, false);
}

struct rk_status *rk_device_host_alloc(struct rk_device *device, void **out, size_t bytes, const char *what)
{
    struct rk_status *st;

    RK_ASSERT(what);
    *out = NULL;
    st = device->ops->host_alloc(device->handle, out, bytes);
    if (st)
        return RK_WRAP(st, "%s: host memory of device '%s'", what, device->info.name);
    device->stats.host_bytes += bytes;
    remember(device, *out, bytes, MEMORY_HOST, what);
    return NULL;
}

void rk_device_host_free(struct rk_device *device, void *ptr)
{
    if (ptr)
        forget(device, ptr, true);
}

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

void rk_device_set_trace(struct rk_device *device, struct rk_trace *trace)
{
    device->trace = trace;
}

struct rk_trace *rk_device_trace(const struct rk_device *device)
{
    return device->trace;
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

struct rk_status *rk_device_use(struct rk_device *device)
{
    return device->ops->use ? device->ops->use(device->handle) : NULL;
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
