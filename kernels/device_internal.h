/* Private to kernels/: the list of backends, and the objects behind rk_device.h. */
#ifndef RK_DEVICE_INTERNAL_H
#define RK_DEVICE_INTERNAL_H

#include "kernels/rk_device.h"

extern const struct rk_device_ops rk_cpu_device_ops;

struct rk_allocation; /* a live allocation: device_memory.c */

struct rk_device {
    const struct rk_device_ops *ops;
    void *handle;
    int lock_fd; /* -1: not opened exclusively, or the device can be shared */
    struct rk_device_info info;
    uint64_t limit_bytes; /* minimum of the configured limit and the device's memory */
    struct rk_device_stats stats;
    struct rk_allocation *live;
    struct rk_status *(*watch)(void *user); /* NULL: none */
    void *watch_user;
    int64_t num_streams, num_events, num_graphs;
    struct rk_trace *trace; /* borrowed; NULL: no tracing */
};

struct rk_stream {
    struct rk_device *device;
    void *handle;
    char name[32];
};

/* --- device_memory.c --- */

/* Frees live allocations, and logs their names. */
void rk_device_memory_close(struct rk_device *device);

/* Device of dry runs (device_dry.c); not in the list of backends, because no name selects it. */
extern const struct rk_device_ops rk_dry_device_ops;
/* Creates its handle. `kernels` and `like`, a device handle for them, compute workspaces; NULL: workspaces
 * are not computed. */
void *rk_dry_device_create(const struct rk_kernel_ops *kernels, const void *like);
struct rk_workspace rk_dry_device_workspace(const void *handle);

/* The backend that `device_name` selects, and the index after the colon (0 without one). */
struct rk_status *rk_device_ops_find(const struct rk_device_ops **out, int *index,
                                     const char *device_name) RK_NODISCARD;

/* Locks the device for this process; *out is a file descriptor that holds the lock until it is closed or the
 * process ends. UNAVAILABLE, reason DEVICE_BUSY, while another process holds it. */
struct rk_status *rk_device_lock_take(int *out, const char *uuid) RK_NODISCARD;

/* --- traces (trace.c) --- */
struct rk_trace;
void rk_device_set_trace(struct rk_device *device, struct rk_trace *trace); /* NULL: none */
struct rk_trace *rk_device_trace(const struct rk_device *device);
const char *rk_stream_name(const struct rk_stream *stream);
/* The stream is destroyed: the trace must not use it any more. */
void rk_trace_forget_stream(struct rk_trace *trace, const struct rk_stream *stream);

#endif
