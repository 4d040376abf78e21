/* Private to kernels/: the list of backends, and what devices.c offers device.c. */
#ifndef RK_DEVICE_INTERNAL_H
#define RK_DEVICE_INTERNAL_H

#include "kernels/rk_device.h"

extern const struct rk_device_ops rk_cpu_device_ops;

/* Of dry runs (device_plan.c); not in the list of backends, since no name opens it. */
extern const struct rk_device_ops rk_plan_device_ops;
/* Its handle. `kernels` and `like`, a handle of theirs, are asked for workspaces; NULL: none are. */
void *rk_plan_device_create(const struct rk_kernel_ops *kernels, const void *like);
struct rk_workspace rk_plan_device_workspace(const void *handle);

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
