/* Device memory, streams and events behind a table of functions that backends implement.
 *
 * "cpu" is built in; a plug-in registers more (rk_device_register). Callers must not access device memory
 * directly: on the CPU it is host memory, on a GPU it is not. */
#ifndef RK_DEVICE_H
#define RK_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rk_status.h"

RK_BEGIN_DECLS

#define RK_DEVICE_ABI 8

#define RK_DEVICE_UUID_BYTES   64
#define RK_DEVICE_DOMAIN_BYTES 32

struct rk_device;
struct rk_stream;
struct rk_event;
struct rk_graph;
struct rk_kernel_ops;

typedef enum rk_copy_kind { RK_COPY_H2D, RK_COPY_D2H, RK_COPY_D2D } rk_copy_kind_t;

struct rk_device_config {
    size_t struct_size;        /* sizeof(struct rk_device_config) */
    const char *name;          /* "cpu", "cuda:0" */
    int32_t num_threads;       /* CPU: number of threads of kernels and GEMM; 0: all cores */
    size_t memory_limit_bytes; /* 0: no limit. An allocation beyond the limit fails as on a full device. */
    /* Prevents other processes on this host from opening it exclusively: UNAVAILABLE, reason DEVICE_BUSY, if
     * one has. No effect for devices that can be shared (the CPU). */
    bool is_exclusive;
};

struct rk_device_info {
    char name[64];                   /* "cpu", "cuda:0" */
    char model[64];                  /* of the hardware, "NVIDIA H200"; "cpu" */
    char uuid[RK_DEVICE_UUID_BYTES]; /* of the physical device; the host's name for the CPU */
    uint64_t memory_total_bytes;
    /* Equal for processes that share the same memory; "" if it is not shared. */
    char memory_domain[RK_DEVICE_DOMAIN_BYTES];
};

struct rk_device_stats {
    uint64_t allocated_bytes, peak_bytes; /* device memory held through rk_device_alloc and _commit */
    uint64_t host_bytes;                  /* pinned host memory allocated now */
    uint64_t own_bytes;                   /* memory of the backend for its operators: workspaces, scratch */
    /* Allocations of all three kinds since the device was opened: constant after warm-up. A range counts
     * once. */
    uint64_t num_allocations;
};

/* Memory that operators use in addition to their arguments. It belongs to the stream that they run on. */
struct rk_workspace {
    size_t scratch_bytes; /* contents undefined between calls */
    size_t kept_bytes;    /* zeroed once; later calls see what the last call left in it */
};

/* Opens by name: the part before ':' selects the table. NOT_FOUND lists the known ones. Not thread-safe:
 * open, use and close it on the engine thread. */
struct rk_status *rk_device_open(struct rk_device **out, const struct rk_device_config *config) RK_NODISCARD;
/* All memory, streams and events must have been freed; leaks are logged and asserted in debug builds. */
void rk_device_close(struct rk_device *device); /* NULL is a no-op */
struct rk_device_info rk_device_get_info(const struct rk_device *device);
struct rk_device_stats rk_device_get_stats(const struct rk_device *device);
/* The backend of collectives over this device's memory (engine/rk_comm.h): "cpu", "nccl". Static. */
const char *rk_device_collectives(const struct rk_device *device);
void rk_device_reset_peak(struct rk_device *device);
/* Bytes that rk_device_alloc can allocate now, as far as the device knows: below its limit, and not used by
 * another process. */
uint64_t rk_device_free_bytes(const struct rk_device *device);
/* rk_device_free_bytes without the limit: what all processes of its memory_domain together can still
 * allocate. */
uint64_t rk_device_shared_free_bytes(const struct rk_device *device);

/* Whether streams are asynchronous: a call that enqueues returns before the work is done. */
bool rk_device_is_async(const struct rk_device *device);
/* OK, or the reason why the device is lost permanently (the daemon then becomes FAILED). */
struct rk_status *rk_device_check(struct rk_device *device) RK_NODISCARD;

/* Sets a function that is called when a stream has been synchronised; the error that it returns becomes the
 * error of the synchronisation. For collectives, whose peers may be lost. NULL removes it. */
void rk_device_set_watch(struct rk_device *device, struct rk_status *(*fn)(void *user), void *user);

/* Zeroed device memory, aligned to 256. RESOURCE_EXHAUSTED (reason DEVICE_OOM) names `what`, the requested
 * bytes and the free bytes. */
struct rk_status *rk_device_alloc(struct rk_device *device, void **out, size_t bytes,
                                  const char *what) RK_NODISCARD;
void rk_device_free(struct rk_device *device, void *ptr); /* NULL is a no-op */
/* Host memory that the device can copy from and to asynchronously (pinned). */
struct rk_status *rk_device_host_alloc(struct rk_device *device, void **out, size_t bytes,
                                       const char *what) RK_NODISCARD;
void rk_device_host_free(struct rk_device *device, void *ptr); /* NULL is a no-op */

/* --- address ranges whose memory can be released. Views, graphs and other users of the addresses stay valid
 * when the memory is released and committed again; in between nothing may access it. --- */

/* The size of a range is rounded up to a multiple of this. */
#define RK_RANGE_GRANULE ((size_t)2 << 20)
/* Reserves addresses without memory, aligned to the granule; free with rk_device_free. UNIMPLEMENTED if the
 * backend has no ranges. */
struct rk_status *rk_device_reserve(struct rk_device *device, void **out, size_t bytes,
                                    const char *what) RK_NODISCARD;
/* Allocates zeroed memory for the whole range; no-op if committed. Errors as of rk_device_alloc. */
struct rk_status *rk_device_commit(struct rk_device *device, void *range) RK_NODISCARD;
/* Frees the memory; no-op if not committed. All streams must have completed its uses. */
struct rk_status *rk_device_release(struct rk_device *device, void *range) RK_NODISCARD;

struct rk_status *rk_stream_create(struct rk_stream **out, struct rk_device *device,
                                   const char *name) RK_NODISCARD;
/* rk_stream_create with high priority: if the device supports it, work of this stream is scheduled before
 * waiting work of other streams. For short work that others depend on. */
struct rk_status *rk_stream_create_urgent(struct rk_stream **out, struct rk_device *device,
                                          const char *name) RK_NODISCARD;
void rk_stream_destroy(struct rk_stream *stream); /* NULL is a no-op */
struct rk_device *rk_stream_device(const struct rk_stream *stream);
/* Enqueue; the memory must stay valid until the stream reaches the operation. */
struct rk_status *rk_stream_copy(struct rk_stream *stream, void *dst, const void *src, size_t bytes,
                                 rk_copy_kind_t kind) RK_NODISCARD;
struct rk_status *rk_stream_zero(struct rk_stream *stream, void *dst, size_t bytes) RK_NODISCARD;
/* Waits for everything enqueued so far and returns its first error. */
struct rk_status *rk_stream_sync(struct rk_stream *stream) RK_NODISCARD;

/* Makes the stream's workspace at least this large, so that operators need not grow it later. */
struct rk_status *rk_stream_reserve(struct rk_stream *stream,
                                    const struct rk_workspace *workspace) RK_NODISCARD;

struct rk_status *rk_event_create(struct rk_event **out, struct rk_device *device) RK_NODISCARD;
/* An event that also records its time (other events cost less). */
struct rk_status *rk_event_create_timed(struct rk_event **out, struct rk_device *device) RK_NODISCARD;
/* Time from one timed event to another; both must have been recorded, and reached (rk_stream_sync). */
struct rk_status *rk_event_elapsed_ns(int64_t *out, struct rk_event *begin,
                                      struct rk_event *end) RK_NODISCARD;
void rk_event_destroy(struct rk_event *event); /* NULL is a no-op */
struct rk_status *rk_event_record(struct rk_event *event, struct rk_stream *stream) RK_NODISCARD;
struct rk_status *rk_stream_wait(struct rk_stream *stream, struct rk_event *event) RK_NODISCARD;
/* Whether the stream has completed the event's last record, or failed before. Any thread. */
bool rk_event_query(struct rk_event *event);
/* Whether operations enqueued now are recorded into a graph instead of executed. */
bool rk_stream_is_recording(const struct rk_stream *stream);
/* The host waits until the stream has completed the event's last record. */
struct rk_status *rk_event_sync(struct rk_event *event) RK_NODISCARD;

/* Graphs: operations enqueued on a stream between begin and end, which one call enqueues again. In between
 * nothing is executed; operations that allocate, wait or use another stream fail. A launch repeats the
 * recorded operations with the recorded addresses and sizes, so all variable values must be in device memory.
 * An operator's scratch may grow when it is first called with a shape: run it before recording. */
bool rk_device_has_graphs(const struct rk_device *device);
struct rk_status *rk_graph_begin(struct rk_stream *stream) RK_NODISCARD; /* UNIMPLEMENTED without graphs */
/* Ends the recording. Call it also if an operation in between failed: then *out is NULL and the recording is
 * dropped. */
struct rk_status *rk_graph_end(struct rk_graph **out, struct rk_stream *stream) RK_NODISCARD;
/* Launches it on the stream that recorded it. */
struct rk_status *rk_graph_launch(struct rk_graph *graph) RK_NODISCARD;
/* False once scratch memory of the recorded operations was reallocated: launching then is an error. */
bool rk_graph_is_current(const struct rk_graph *graph);
/* The stream must have completed the last launch. */
void rk_graph_destroy(struct rk_graph *graph); /* NULL is a no-op */

/* --- dry runs: a device whose allocations are addresses without memory (host memory is real); operators
 * check their arguments and compute nothing, and copies to the host give zeros. So rk_device_get_stats shows
 * how much memory the code would allocate. --- */

/* `like` is the device whose operators compute workspaces; it must outlive the dry one. NULL: workspaces are
 * unknown. */
struct rk_status *rk_device_open_dry(struct rk_device **out, const struct rk_device *like) RK_NODISCARD;
bool rk_device_is_dry(const struct rk_device *device);
/* The maximum workspace that an operator on the dry device would have used. */
struct rk_workspace rk_device_dry_workspace(const struct rk_device *dry);

/* --- the table that a backend fills in. Handles are opaque pointers of the backend. The wrappers above check
 * arguments, count bytes and keep the list of live allocations. --- */
struct rk_device_ops {
    const char *name;                    /* "cpu", "cuda": the part of a device name before ':' */
    uint32_t abi;                        /* RK_DEVICE_ABI */
    const char *collectives;             /* required: backend of collectives over its memory, "cpu", "nccl" */
    const struct rk_kernel_ops *kernels; /* required */
    /* required; `index` is the part of the name after ':', 0 if there is none */
    struct rk_status *(*open)(void **out, int index, const struct rk_device_config *config);
    void (*close)(void *dev);
    struct rk_status *(*get_info)(void *dev, struct rk_device_info *out);
    struct rk_status *(*alloc)(void *dev, void **out, size_t bytes);
    void (*free)(void *dev, void *ptr);
    struct rk_status *(*host_alloc)(void *dev, void **out, size_t bytes);
    void (*host_free)(void *dev, void *ptr);
    struct rk_status *(*stream_create)(void *dev, void **out, const char *name);
    void (*stream_destroy)(void *dev, void *stream);
    struct rk_status *(*copy)(void *dev, void *stream, void *dst, const void *src, size_t bytes,
                              rk_copy_kind_t kind);
    struct rk_status *(*zero)(void *dev, void *stream, void *dst, size_t bytes);
    struct rk_status *(*stream_sync)(void *dev, void *stream);
    /* optional: NULL means that streams are synchronous, so events need no work */
    struct rk_status *(*event_create)(void *dev, void **out);
    void (*event_destroy)(void *dev, void *event);
    struct rk_status *(*event_record)(void *dev, void *event, void *stream);
    struct rk_status *(*stream_wait)(void *dev, void *stream, void *event);
    bool (*event_query)(void *dev, void *event);          /* any thread */
    bool (*stream_is_recording)(void *dev, void *stream); /* optional: NULL means never recording */
    /* optional: the stream handle of libraries over the same driver (cudaStream_t); NULL means none */
    void *(*stream_native)(void *dev, void *stream);
    /* optional: makes the device current for the calling thread; NULL means that any thread may call */
    struct rk_status *(*use)(void *dev);
    struct rk_status *(*event_create_timed)(void *dev, void **out); /* may be NULL if event_create is */
    struct rk_status *(*event_elapsed_ns)(void *dev, int64_t *out, void *begin, void *end);
    struct rk_status *(*event_sync)(void *dev, void *event);
    /* optional, all or none: NULL means no graphs. graph_end without `out` drops the recording. */
    struct rk_status *(*graph_begin)(void *dev, void *stream);
    struct rk_status *(*graph_end)(void *dev, void *stream, void **out);
    struct rk_status *(*graph_launch)(void *dev, void *stream, void *graph);
    bool (*graph_is_current)(void *dev, void *stream, void *graph);
    void (*graph_destroy)(void *dev, void *graph);
    struct rk_status *(*check)(void *dev); /* optional: NULL means that the device is never lost */
    /* optional: the uuid of get_info, without opening the device; NULL means that the device can be shared */
    struct rk_status *(*get_uuid)(int index, char uuid[RK_DEVICE_UUID_BYTES]);
    /* optional: NULL means that no other process uses the device's memory */
    struct rk_status *(*get_free)(void *dev, uint64_t *out_bytes);
    /* optional: bytes that the backend itself holds, and its number of allocations; NULL means none */
    void (*get_own)(const void *dev, uint64_t *out_bytes, uint64_t *out_num_allocations);
    /* optional: NULL means that no operator needs a workspace */
    struct rk_status *(*reserve)(void *dev, void *stream, const struct rk_workspace *workspace);
    /* optional, all or none: NULL means no ranges. Sizes are multiples of RK_RANGE_GRANULE; the wrapper
     * releases before it frees. */
    struct rk_status *(*range_reserve)(void *dev, void **out, size_t bytes);
    struct rk_status *(*range_commit)(void *dev, void *range, size_t bytes);
    struct rk_status *(*range_release)(void *dev, void *range, size_t bytes);
    void (*range_free)(void *dev, void *range, size_t bytes);
    /* optional: NULL means that all streams have the same priority */
    struct rk_status *(*stream_create_urgent)(void *dev, void **out, const char *name);
};

/* Adds a backend; FAILED_PRECONDITION when its abi differs, ALREADY_EXISTS for a second one of that name. The
 * table must stay valid while the process runs. */
struct rk_status *rk_device_register(const struct rk_device_ops *ops) RK_NODISCARD;
/* The backend's handles, for kernels/kernels.c and backends only. */
void *rk_device_handle(const struct rk_device *device);
void *rk_stream_handle(const struct rk_stream *stream);
/* The driver's handle of a stream (cudaStream_t), for collectives. NULL on the CPU. */
void *rk_stream_native(const struct rk_stream *stream);
/* Call on a thread other than the one that opened the device before calling functions that any thread may
 * call. */
struct rk_status *rk_device_use(struct rk_device *device) RK_NODISCARD;
const struct rk_kernel_ops *rk_stream_kernels(const struct rk_stream *stream);

RK_END_DECLS

#endif
