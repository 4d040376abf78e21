/* Private to kernels/: the list of backends, and the objects behind rk_device.h. */
#ifndef RK_DEVICE_INTERNAL_H
#define RK_DEVICE_INTERNAL_H

#include "kernels/rk_device.h"

extern const struct rk_device_ops rk_cpu_device_ops;

struct rk_allocation; /* live memory: device_memory.c */

struct rk_device {
    const struct rk_device_ops *ops;
    void *handle;
    int lock_fd; /* -1: not opened exclusively, or a device that can be shared */
    struct rk_device_info info;
    uint64_t limit_bytes; /* min of the configured limit and what the device has */
    struct rk_device_stats stats;
    struct rk_allocation *live;
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

/* --- device_memory.c --- */

/* Frees what is live, and says what it was. */
void rk_device_memory_close(struct rk_device *device);

/* Of dry runs (device_dry.c); not in the list of backends, since no name opens it. */
extern const struct rk_device_ops rk_dry_device_ops;
/* Its handle. `kernels` and `like`, a handle of theirs, are asked for workspaces; NULL: none are. */
void *rk_dry_device_create(const struct rk_kernel_ops *kernels, const void *like);
struct rk_workspace rk_dry_device_workspace(const void *handle);

/* The backend that `device_name` selects and the index behind the colon (0 without one). */
struct rk_status *rk_device_ops_find(const struct rk_device_ops **out, int *index,
                                     const char *device_name) RK_NODISCARD;

/* Takes the device for this process; *out is a file descriptor that holds it until it is closed, or until the
 * process ends. UNAVAILABLE, reason DEVICE_BUSY, while another process has it. */
struct rk_status *rk_device_lock_take(int *out, const char *uuid) RK_NODISCARD;

/* --- traces (trace.c) --- */
struct rk_trace;
void rk_device_set_trace(struct rk_device *device, struct rk_trace *trace); /* NULL: none */
struct rk_trace *rk_device_trace(const struct rk_device *device);
const char *rk_stream_name(const struct rk_stream *stream);
/* The stream ends: nothing of it may be asked any more. */
void rk_trace_forget_stream(struct rk_trace *trace, const struct rk_stream *stream);

#endif
