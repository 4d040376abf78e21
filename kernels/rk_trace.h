/* A trace of a device: operators, copies, graphs, collectives and phases with their times, on the CPU and on
 * GPUs.
 *
 * Without a trace (rk_device_set_trace) the only cost is a check whether there is one. With a trace, two
 * timed events are recorded around work enqueued on a stream. Spans of a stream nest: a span that begins
 * within another ends within it. Operations recorded into a graph are not traced, because they do not run
 * then; launches are.
 *
 * Call all functions on the thread that created the trace; spans that other threads begin are ignored. A
 * trace never makes an operation fail: after an internal error it stops, and reports the error in its
 * result. */
#ifndef RK_TRACE_H
#define RK_TRACE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_status.h"
#include "base/rk_str.h"
#include "kernels/rk_device.h"

RK_BEGIN_DECLS

typedef enum rk_trace_kind {
    RK_TRACE_PHASE,      /* "forward", "backward", a method */
    RK_TRACE_OPERATOR,   /* "gemm" */
    RK_TRACE_COPY,       /* between host and device, or on the device; bytes */
    RK_TRACE_GRAPH,      /* launch of a graph */
    RK_TRACE_COLLECTIVE, /* "all_reduce" over `group`, bytes, number `seq` of the group */
    RK_TRACE_KIND_COUNT
} rk_trace_kind_t;

struct rk_trace;

struct rk_trace_span {
    rk_trace_kind_t kind;
    const char *name;  /* copied, truncated to 47 bytes */
    const char *group; /* of a collective; copied, truncated to 23 bytes; NULL: none */
    uint64_t seq, bytes;
};

/* Creates the trace of the device and starts it. `max_spans` bounds its memory; further spans are counted and
 * dropped. */
struct rk_status *rk_trace_create(struct rk_trace **out, struct rk_device *device,
                                  int64_t max_spans) RK_NODISCARD;
/* Removes the trace from the device. NULL is a no-op. */
void rk_trace_destroy(struct rk_trace *trace);

/* NULL: tracing is off. */
struct rk_trace *rk_stream_trace(const struct rk_stream *stream);
/* rk_trace_begin begins a span on a traced stream, rk_trace_end ends the last one begun. In between, the host
 * may begin spans on other streams. */
void rk_trace_begin(struct rk_stream *stream, const struct rk_trace_span *span);
void rk_trace_end(struct rk_stream *stream);
/* The usual form: a phase around code; no-op without a trace. */
static inline void rk_trace_begin_phase(struct rk_stream *stream, const char *name)
{
    struct rk_trace_span span = {RK_TRACE_PHASE, name, NULL, 0, 0};

    if (rk_stream_trace(stream))
        rk_trace_begin(stream, &span);
}
static inline void rk_trace_end_phase(struct rk_stream *stream)
{
    if (rk_stream_trace(stream))
        rk_trace_end(stream);
}

/* A phase with times of the host, for long phases: times of stream spans are relative to anchors that are
 * renewed only while no span is open. */
void rk_trace_add_host(struct rk_trace *trace, const char *name, int64_t begin_ns, int64_t end_ns);

/* Waits for the streams and converts the events of completed spans to times. Call it at the end of a call; a
 * trace also does it when many spans are pending. */
void rk_trace_flush(struct rk_trace *trace);

struct rk_trace_format {
    int32_t pid;       /* of the events: the rank */
    int64_t offset_ns; /* added to this host's monotonic clock */
};

/* Flushes, and appends the completed spans as events of the Chrome trace format, each an object followed by a
 * comma and a newline: "X" events with times in microseconds, and names of the threads, one per stream. */
void rk_trace_format_events(struct rk_trace *trace, const struct rk_trace_format *format, struct rk_str *out);
int64_t rk_trace_num_spans(const struct rk_trace *trace); /* number of completed spans */
int64_t rk_trace_num_dropped(const struct rk_trace *trace);
/* The error that stopped the trace, borrowed; NULL: none. */
const struct rk_status *rk_trace_error(const struct rk_trace *trace);

RK_END_DECLS

#endif
