/* A fake NVML, for the tests of GPU figures on machines without a GPU. It has these GPUs: "GPU-whole",
 * "GPU-partial", which does not report power, clocks and errors, and "GPU-slow", whose driver is slow.
 * "GPU-whole" has had the Xid 79 twice and each of 1 to 20 once. */
#include <string.h>

#include "base/rk_compiler.h"
#include "base/rk_time.h"

#define NOT_SUPPORTED 3
#define NOT_FOUND     6
#define SLOW_MS       1500

struct utilization {
    unsigned gpu, memory;
};
struct memory {
    unsigned long long total, free, used;
};

struct event {
    void *device;
    unsigned long long kind, data;
    unsigned gpu_instance, compute_instance;
};

static char whole, partial, slow, set;
static int num_waits;

RK_BEGIN_DECLS
#define EXPORT __attribute__((visibility("default")))

EXPORT int nvmlInit_v2(void);
EXPORT int nvmlShutdown(void);
EXPORT int nvmlDeviceGetHandleByUUID(const char *uuid, void **device);
EXPORT int nvmlDeviceGetUtilizationRates(void *device, struct utilization *out);
EXPORT int nvmlDeviceGetMemoryInfo(void *device, struct memory *out);
EXPORT int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius);
EXPORT int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts);
EXPORT int nvmlDeviceGetClockInfo(void *device, int type, unsigned *mhz);
EXPORT int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, unsigned long long *count);
EXPORT int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons);
EXPORT int nvmlEventSetCreate(void **out);
EXPORT int nvmlDeviceRegisterEvents(void *device, unsigned long long kinds, void *events);
EXPORT int nvmlEventSetWait_v2(void *events, struct event *out, unsigned timeout_ms);
EXPORT int nvmlEventSetFree(void *events);
RK_END_DECLS

int nvmlInit_v2(void)
{
    return 0;
}

int nvmlShutdown(void)
{
    return 0;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, void **device)
{
    static const struct {
        const char *uuid;
        char *device;
    } rows[] = {{"GPU-whole", &whole}, {"GPU-partial", &partial}, {"GPU-slow", &slow}};

    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        if (strcmp(rows[i].uuid, uuid) == 0) {
            *device = rows[i].device;
            return 0;
        }
    }
    return NOT_FOUND;
}

int nvmlDeviceGetUtilizationRates(void *device, struct utilization *out)
{
    if (device == &slow)
        rk_time_sleep_ms(SLOW_MS);
    *out = (struct utilization){.gpu = 97, .memory = 50};
    return 0;
}

int nvmlDeviceGetMemoryInfo(void *device, struct memory *out)
{
    (void)device;
    *out = (struct memory){.total = 80ULL << 30, .free = 60ULL << 30, .used = 20ULL << 30};
    return 0;
}

int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *celsius)
{
    (void)device;
    *celsius = 71;
    return sensor == 0 ? 0 : NOT_SUPPORTED;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts)
{
    *milliwatts = 650500;
    return device == &partial ? NOT_SUPPORTED : 0;
}

int nvmlDeviceGetClockInfo(void *device, int type, unsigned *mhz)
{
    *mhz = type == 1 ? 1980 : 2619;
    return device == &partial ? NOT_SUPPORTED : 0;
}

int nvmlDeviceGetTotalEccErrors(void *device, int kind, int counter, unsigned long long *count)
{
    (void)device;
    *count = 2;
    return kind == 1 && counter == 0 ? 0 : NOT_SUPPORTED;
}

int nvmlEventSetCreate(void **out)
{
    *out = &set;
    num_waits = 0;
    return 0;
}

int nvmlDeviceRegisterEvents(void *device, unsigned long long kinds, void *events)
{
    return device == &partial || kinds != 8 || events != &set ? NOT_SUPPORTED : 0;
}

int nvmlEventSetWait_v2(void *events, struct event *out, unsigned timeout_ms)
{
    static const int timeout = 10;

    if (events != &set || timeout_ms != 0 || num_waits >= 22)
        return timeout;
    *out = (struct event){.device = &whole, .kind = 8, .data = num_waits < 2 ? 79 : (unsigned)num_waits - 1};
    num_waits++;
    return 0;
}

int nvmlEventSetFree(void *events)
{
    return events == &set ? 0 : NOT_SUPPORTED;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(void *device, unsigned long long *reasons)
{
    (void)device;
    *reasons = 0x40; /* hardware, thermal */
    return 0;
}
