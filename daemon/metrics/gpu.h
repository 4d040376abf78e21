/* Figures of one GPU, from NVML: the driver's library, opened at run time, so that the daemon starts
 * without it. A separate thread queries it once per second, because a call into the driver of a faulty GPU
 * may take seconds; other threads read its last sample. */
#ifndef RK_DAEMON_GPU_H
#define RK_DAEMON_GPU_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_status.h"

#define RK_GPU_LIBRARY "libnvidia-ml.so.1"

#define RK_GPU_XIDS 16 /* different ones */

struct rk_gpu;

/* Values that this driver and GPU do not report have `has_` false. */
struct rk_gpu_sample {
    bool is_fresh; /* false: nothing yet, or not for 10 s */
    bool has_utilization, has_memory, has_temperature, has_power, has_clocks, has_ecc, has_throttle;
    double utilization, memory_utilization; /* 0 to 1: share of the last period with a kernel, a transfer */
    uint64_t memory_used_bytes, memory_total_bytes; /* of all processes */
    double temperature_celsius, power_watts;
    double sm_clock_hertz, memory_clock_hertz;
    uint64_t ecc_uncorrected; /* errors since the driver was loaded */
    bool is_throttled_power, is_throttled_thermal;
    int num_xids;
    struct {
        uint64_t xid, count; /* since the daemon was started; xid 0: all beyond the first RK_GPU_XIDS */
    } xids[RK_GPU_XIDS + 1];
};

/* Opens the library and starts the thread. NOT_FOUND when there is no library, or it does not know that UUID
 * ("GPU-..."). */
struct rk_status *rk_gpu_create(struct rk_gpu **out, const char *library, const char *uuid) RK_NODISCARD;
/* Ends the thread, which may be in a call. NULL is a no-op. */
void rk_gpu_destroy(struct rk_gpu *gpu);
/* Any thread; does not block. */
void rk_gpu_get_sample(struct rk_gpu *gpu, struct rk_gpu_sample *out);

#endif
