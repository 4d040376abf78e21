/* A trace of what a device does: operators, copies, graphs, collectives and phases with their times, on the
 * CPU and on GPUs.
 *
 * Without a trace (rk_device_set_trace) a device costs nothing more than the look whether there is one. With
 * one, what is enqueued on a stream is put between two timed events. Spans of a stream nest: what begins
 * within another ends within it. Inside of a graph that is being recorded nothing is traced, since it does
 * not run then; its launches are.
 *
 * All functions are for the thread that made the trace; spans that others begin are ignored. A trace never
 * makes an operation fail: after an error of its own it stops, and says so in its result. */
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
    RK_TRACE_COPY,       /* between host and device, or on it; bytes */
    RK_TRACE_GRAPH,      /* the launch of one */
    RK_TRACE_COLLECTIVE, /* "all_reduce" over `group`, bytes, number `seq` of the group */
    RK_TRACE_KIND_COUNT
} rk_trace_kind_t;

struct rk_trace;

struct rk_trace_span {
    rk_trace_kind_t kind;
    const char *name;  /* copied, cut to 47 bytes */
    const char *group; /* of a collective; copied, cut to 23 bytes; NULL: none */
    uint64_t seq, bytes;
};

/* Of the device, and on from now. `max_spans` bounds its memory; further ones are counted and dropped. */
struct rk_status *rk_trace_create(struct rk_trace **out, struct rk_device *device,
                                  int64_t max_spans) RK_NODISCARD;
/* The device is without a trace afterwards. NULL is a no-op. */
void rk_trace_destroy(struct rk_trace *trace);

/* NULL: nothing is to be traced. */
struct rk_trace *rk_stream_trace(const struct rk_stream *stream);
/* Begins a span on a stream that has a trace, and ends the one that was begun last. Between the two, the host
 * may begin spans on other streams. */
void rk_trace_begin(struct rk_stream *stream, const struct rk_trace_span *span);
void rk_trace_end(struct rk_stream *stream);
/* The usual form: a phase around code, nothing without a trace. */
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

/* A phase by the times of the host, for what goes on for long: spans of streams are measured from points that
 * are set anew only while nothing is open. */
void rk_trace_add_host(struct rk_trace *trace, const char *name, int64_t begin_ns, int64_t end_ns);

/* Waits for the streams and turns the events of spans that have ended into times. At the ends of calls; a
 * trace does it by itself when many have gathered. */
void rk_trace_flush(struct rk_trace *trace);

struct rk_trace_format {
    int32_t pid;       /* of the events: the rank */
    int64_t offset_ns; /* is added to this host's monotonic clock */
};

/* Flushes, and appends the spans that have ended as events of the Chrome trace format, each an object with a
 * comma and a newline behind it: "X" events with times in microseconds, and names of the threads, one a
 * stream. */
void rk_trace_format_events(struct rk_trace *trace, const struct rk_trace_format *format, struct rk_str *out);
int64_t rk_trace_num_spans(const struct rk_trace *trace); /* that have ended */
int64_t rk_trace_num_dropped(const struct rk_trace *trace);
/* What stopped the trace, borrowed; NULL: nothing did. */
const struct rk_status *rk_trace_error(const struct rk_trace *trace);

RK_END_DECLS

#endif
