/* A span has two timed events until it is flushed, and then two times of the host's monotonic clock. The
 * anchor relates the clocks: an event and the host's time at which it was reached. It is renewed every
 * second, between outermost spans, so that elapsed times are short (CUDA returns them as float).
 *
 * A GPU's events have a resolution of about half a microsecond, so a span may seem to begin before its
 * parent; it is clipped to its parent, and to the end of the previous span. */
#include "kernels/rk_trace.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_assert.h"
#include "base/rk_time.h"
#include "kernels/device_internal.h"

#define LANES_MAX   16
#define DEPTH_MAX   16
#define PENDING_MAX 8192 /* maximum of spans with events: beyond it, the end of an outermost span flushes */
#define ANCHOR_NS   1000000000LL /* how long an anchor is used */
#define NAME_BYTES  48
#define GROUP_BYTES 24

struct span {
    rk_trace_kind_t kind;
    char name[NAME_BYTES], group[GROUP_BYTES];
    uint64_t seq, bytes;
    int32_t lane;
    int64_t parent; /* index of the parent span; -1: none */
    bool has_ended, has_times;
    struct rk_event *begin, *end; /* NULL once the span has times */
    int64_t begin_ns, end_ns;     /* of the host's clock */
    int64_t last_ns;              /* end of the last child that has times */
};

/* A stream, and its open spans. */
struct lane {
    struct rk_stream *stream; /* NULL: destroyed, or the lane of host times */
    char name[NAME_BYTES];
    int32_t depth;           /* number of open spans, including those beyond DEPTH_MAX and dropped ones */
    int64_t open[DEPTH_MAX]; /* -1: dropped */
    int64_t last_ns;         /* end of the last outermost span that has times */
};

struct rk_trace {
    struct rk_device *device;
    pthread_t thread;
    int64_t max_spans, num_dropped;
    RK_ARRAY(struct span) spans;
    int64_t first_pending;        /* spans before it have times, or are dropped */
    struct lane lanes[LANES_MAX]; /* the first one is the host's */
    int32_t num_lanes;
    RK_ARRAY(struct rk_event *) pool; /* free events */
    struct rk_event *anchor;
    int64_t anchor_ns;
    bool has_anchor;
    struct rk_status *error;
};

/* --- events --- */

static struct rk_event *take_event(struct rk_trace *trace)
{
    struct rk_event *event = NULL;

    if (trace->pool.count > 0)
        return trace->pool.items[--trace->pool.count];
    trace->error = rk_status_first(trace->error, rk_event_create_timed(&event, trace->device));
    return event;
}

static void give_back(struct rk_trace *trace, struct rk_event **event)
{
    if (*event)
        rk_array_append(&trace->pool, *event);
    *event = NULL;
}

/* NULL when the trace has stopped. */
static struct rk_event *record(struct rk_trace *trace, struct rk_stream *stream)
{
    struct rk_event *event = trace->error ? NULL : take_event(trace);

    if (event)
        trace->error = rk_status_first(trace->error, rk_event_record(event, stream));
    return event;
}

/* Then no call may wait for the device: it would invalidate the recording. */
static bool is_any_recording(const struct rk_trace *trace)
{
    for (int32_t i = 1; i < trace->num_lanes; i++) {
        if (trace->lanes[i].stream && rk_stream_is_recording(trace->lanes[i].stream))
            return true;
    }
    return false;
}

/* Records the event between two syncs, so that it is reached within a few microseconds of the middle. */
static void take_anchor(struct rk_trace *trace, struct rk_stream *stream)
{
    int64_t begin_ns;
    struct rk_status *st = rk_stream_sync(stream);

    begin_ns = rk_time_now_ns();
    if (!st)
        st = rk_event_record(trace->anchor, stream);
    if (!st)
        st = rk_stream_sync(stream);
    trace->anchor_ns = begin_ns + (rk_time_now_ns() - begin_ns) / 2;
    trace->has_anchor = !st;
    trace->error = rk_status_first(trace->error, st);
}

/* --- spans --- */

static struct lane *find_lane(struct rk_trace *trace, struct rk_stream *stream, bool adds)
{
    for (int32_t i = 1; i < trace->num_lanes; i++) {
        if (trace->lanes[i].stream == stream)
            return &trace->lanes[i];
    }
    if (!adds || trace->num_lanes == LANES_MAX)
        return NULL;
    trace->lanes[trace->num_lanes] = (struct lane){.stream = stream};
    snprintf(trace->lanes[trace->num_lanes].name, NAME_BYTES, "stream %s", rk_stream_name(stream));
    return &trace->lanes[trace->num_lanes++];
}

struct rk_trace *rk_stream_trace(const struct rk_stream *stream)
{
    struct rk_trace *trace = rk_device_trace(rk_stream_device(stream));

    if (!trace || !pthread_equal(trace->thread, pthread_self()) || rk_stream_is_recording(stream))
        return NULL;
    return trace;
}

static struct span span_of(const struct rk_trace *trace, const struct lane *lane,
                           const struct rk_trace_span *from)
{
    struct span span = {.kind = from->kind,
                        .seq = from->seq,
                        .bytes = from->bytes,
                        .lane = (int32_t)(lane - trace->lanes),
                        .parent = -1};

    snprintf(span.name, sizeof(span.name), "%s", from->name);
    snprintf(span.group, sizeof(span.group), "%s", from->group ? from->group : "");
    return span;
}

static void push(struct rk_trace *trace, struct lane *lane, const struct rk_trace_span *from)
{
    struct span span = span_of(trace, lane, from);

    for (int32_t d = lane->depth - 1; d >= 0 && span.parent < 0; d--)
        span.parent = lane->open[d];
    span.begin = record(trace, lane->stream);
    lane->open[lane->depth] = trace->spans.count;
    rk_array_append(&trace->spans, span);
}

void rk_trace_add_host(struct rk_trace *trace, const char *name, int64_t begin_ns, int64_t end_ns)
{
    struct rk_trace_span from = {.kind = RK_TRACE_PHASE, .name = name};
    struct span span = span_of(trace, &trace->lanes[0], &from);

    if (trace->spans.count >= trace->max_spans) {
        trace->num_dropped++;
        return;
    }
    span.begin_ns = begin_ns;
    span.end_ns = end_ns;
    span.has_ended = span.has_times = true;
    rk_array_append(&trace->spans, span);
}

void rk_trace_begin(struct rk_stream *stream, const struct rk_trace_span *span)
{
    struct rk_trace *trace = rk_stream_trace(stream);
    struct lane *lane = trace ? find_lane(trace, stream, true) : NULL;

    RK_ASSERT(span->kind < RK_TRACE_KIND_COUNT);
    if (!lane)
        return;
    if (!trace->has_anchor && !trace->error && !is_any_recording(trace))
        take_anchor(trace, stream);
    if (lane->depth < DEPTH_MAX) {
        lane->open[lane->depth] = -1;
        if (trace->error || !trace->has_anchor || trace->spans.count >= trace->max_spans)
            trace->num_dropped++;
        else
            push(trace, lane, span);
    }
    lane->depth++;
}

void rk_trace_end(struct rk_stream *stream)
{
    struct rk_trace *trace = rk_stream_trace(stream);
    struct lane *lane = trace ? find_lane(trace, stream, false) : NULL;
    int64_t index;

    if (!lane || lane->depth == 0)
        return; /* it was begun before the trace */
    lane->depth--;
    index = lane->depth < DEPTH_MAX ? lane->open[lane->depth] : -1;
    if (index >= 0) {
        trace->spans.items[index].end = record(trace, stream);
        trace->spans.items[index].has_ended = true;
    }
    if (lane->depth == 0 && (trace->spans.count - trace->first_pending > PENDING_MAX ||
                             rk_time_now_ns() - trace->anchor_ns > ANCHOR_NS))
        rk_trace_flush(trace);
}

/* --- conversion of events to times --- */

static bool elapsed(struct rk_trace *trace, struct rk_event *event, int64_t *out)
{
    int64_t ns = 0;
    struct rk_status *st = event ? rk_event_elapsed_ns(&ns, trace->anchor, event) : NULL;

    *out = trace->anchor_ns + ns;
    trace->error = rk_status_first(trace->error, st);
    return event && !st;
}

static void resolve(struct rk_trace *trace, struct span *span)
{
    struct span *parent = span->parent >= 0 ? &trace->spans.items[span->parent] : NULL;
    int64_t *last_ns = parent ? &parent->last_ns : &trace->lanes[span->lane].last_ns;

    if (span->has_times) /* a span with times of the host */
        return;
    span->has_times =
        elapsed(trace, span->begin, &span->begin_ns) && elapsed(trace, span->end, &span->end_ns);
    give_back(trace, &span->begin);
    give_back(trace, &span->end);
    if (!span->has_times)
        return;
    if (parent && parent->has_times) {
        span->begin_ns = RK_MIN(RK_MAX(span->begin_ns, parent->begin_ns), parent->end_ns);
        span->end_ns = RK_MIN(span->end_ns, parent->end_ns);
    }
    span->begin_ns = RK_MAX(span->begin_ns, *last_ns);
    span->end_ns = RK_MAX(span->end_ns, span->begin_ns);
    *last_ns = span->end_ns;
}

static bool is_any_open(const struct rk_trace *trace)
{
    for (int32_t i = 0; i < trace->num_lanes; i++) {
        if (trace->lanes[i].depth > 0)
            return true;
    }
    return false;
}

void rk_trace_flush(struct rk_trace *trace)
{
    RK_ASSERT(pthread_equal(trace->thread, pthread_self()));
    if (is_any_recording(trace))
        return;
    for (int32_t i = 1; i < trace->num_lanes && !trace->error; i++) {
        if (trace->lanes[i].stream)
            trace->error = rk_status_first(trace->error, rk_stream_sync(trace->lanes[i].stream));
    }
    /* In order of their begin, so that a span follows its parent. An open span delays the spans after it,
     * because they are clipped to it. */
    while (trace->first_pending < trace->spans.count && trace->spans.items[trace->first_pending].has_ended)
        resolve(trace, &trace->spans.items[trace->first_pending++]);
    if (!is_any_open(trace))
        trace->has_anchor = false;
}

void rk_trace_forget_stream(struct rk_trace *trace, const struct rk_stream *stream)
{
    for (int32_t i = 1; i < trace->num_lanes; i++) {
        struct lane *lane = &trace->lanes[i];

        if (lane->stream != stream)
            continue;
        for (int32_t d = 0; d < RK_MIN(lane->depth, DEPTH_MAX); d++) {
            if (lane->open[d] >= 0)
                trace->spans.items[lane->open[d]].has_ended = true; /* without a time */
        }
        lane->depth = 0;
        rk_trace_flush(trace);
        lane->stream = NULL;
    }
}

/* --- life --- */

struct rk_status *rk_trace_create(struct rk_trace **out, struct rk_device *device, int64_t max_spans)
{
    struct rk_trace *trace = rk_calloc(1, sizeof(*trace));
    struct rk_status *st;

    *out = NULL;
    RK_ASSERT(!rk_device_trace(device));
    trace->device = device;
    trace->thread = pthread_self();
    trace->max_spans = max_spans;
    trace->num_lanes = 1;
    snprintf(trace->lanes[0].name, sizeof(trace->lanes[0].name), "calls");
    st = rk_event_create_timed(&trace->anchor, device);
    if (st) {
        rk_free(trace);
        return st;
    }
    rk_device_set_trace(device, trace);
    *out = trace;
    return NULL;
}

void rk_trace_destroy(struct rk_trace *trace)
{
    if (!trace)
        return;
    rk_device_set_trace(trace->device, NULL);
    for (int64_t i = 0; i < trace->spans.count; i++) {
        rk_event_destroy(trace->spans.items[i].begin);
        rk_event_destroy(trace->spans.items[i].end);
    }
    for (int64_t i = 0; i < trace->pool.count; i++)
        rk_event_destroy(trace->pool.items[i]);
    rk_event_destroy(trace->anchor);
    rk_array_fini(&trace->pool);
    rk_array_fini(&trace->spans);
    rk_status_free(trace->error);
    rk_free(trace);
}

/* --- out --- */

static void append_us(struct rk_str *out, const char *key, int64_t ns)
{
    rk_str_appendf(out, "\"%s\":%s%" PRId64 ".%03" PRId64, key, ns < 0 ? "-" : "", (ns < 0 ? -ns : ns) / 1000,
                   (ns < 0 ? -ns : ns) % 1000);
}

static void append_lane(const struct rk_trace *trace, int32_t i, int32_t pid, struct rk_str *out)
{
    rk_str_appendf(
        out, "{\"ph\":\"M\",\"name\":\"thread_name\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}},\n",
        pid, i, trace->lanes[i].name);
    rk_str_appendf(
        out,
        "{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":%d,\"tid\":%d,\"args\":{\"sort_index\":%d}},\n",
        pid, i, i);
}

static void append_span(const struct span *span, const struct rk_trace_format *format, struct rk_str *out)
{
    static const char *const categories[RK_TRACE_KIND_COUNT] = {
        [RK_TRACE_PHASE] = "phase", [RK_TRACE_OPERATOR] = "operator",     [RK_TRACE_COPY] = "copy",
        [RK_TRACE_GRAPH] = "graph", [RK_TRACE_COLLECTIVE] = "collective",
    };

    rk_str_appendf(out, "{\"ph\":\"X\",\"name\":\"%s\",\"cat\":\"%s\",", span->name, categories[span->kind]);
    append_us(out, "ts", span->begin_ns + format->offset_ns);
    rk_str_append(out, ",");
    append_us(out, "dur", span->end_ns - span->begin_ns);
    rk_str_appendf(out, ",\"pid\":%d,\"tid\":%d", format->pid, span->lane);
    if (span->kind == RK_TRACE_COLLECTIVE)
        rk_str_appendf(out, ",\"args\":{\"group\":\"%s\",\"seq\":%" PRIu64 ",\"bytes\":%" PRIu64 "}",
                       span->group, span->seq, span->bytes);
    else if (span->bytes > 0)
        rk_str_appendf(out, ",\"args\":{\"bytes\":%" PRIu64 "}", span->bytes);
    rk_str_append(out, "},\n");
}

void rk_trace_format_events(struct rk_trace *trace, const struct rk_trace_format *format, struct rk_str *out)
{
    rk_trace_flush(trace);
    for (int32_t i = 0; i < trace->num_lanes; i++)
        append_lane(trace, i, format->pid, out);
    for (int64_t i = 0; i < trace->spans.count; i++) {
        if (trace->spans.items[i].has_times)
            append_span(&trace->spans.items[i], format, out);
    }
}

int64_t rk_trace_num_spans(const struct rk_trace *trace)
{
    int64_t count = 0;

    for (int64_t i = 0; i < trace->spans.count; i++)
        count += trace->spans.items[i].has_ended;
    return count;
}

int64_t rk_trace_num_dropped(const struct rk_trace *trace)
{
    return trace->num_dropped;
}

const struct rk_status *rk_trace_error(const struct rk_trace *trace)
{
    return trace->error;
}
