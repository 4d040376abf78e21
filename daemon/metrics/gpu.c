#include "daemon/metrics/gpu.h"

#include <dlfcn.h>
#include <pthread.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"
#include "base/rk_thread.h"
#include "base/rk_time.h"

#define PERIOD_S   1
#define EVENTS_MAX 64 /* in a period */
#define FRESH_NS   (10 * 1000000000LL)

/* Numbers and structs as in nvml.h, which keeps them stable. */
#define NVML_TEMPERATURE_GPU  0
#define NVML_CLOCK_SM         1
#define NVML_CLOCK_MEM        2
#define NVML_UNCORRECTED      1
#define NVML_VOLATILE         0
#define NVML_EVENT_XID        0x8ULL
#define NVML_THROTTLE_POWER   (0x4ULL | 0x80ULL)  /* software power cap, power brake */
#define NVML_THROTTLE_THERMAL (0x20ULL | 0x40ULL) /* software, hardware */

struct nvml_utilization {
    unsigned gpu, memory; /* percent */
};
struct nvml_memory {
    unsigned long long total, free, used;
};

struct nvml_event {
    void *device;
    unsigned long long kind, data; /* data: the Xid */
    unsigned gpu_instance, compute_instance;
};

struct rk_gpu {
    void *library, *device;
    int (*init)(void);
    int (*shutdown)(void);
    int (*by_uuid)(const char *uuid, void **device);
    /* the following may be missing */
    int (*utilization)(void *device, struct nvml_utilization *out);
    int (*memory)(void *device, struct nvml_memory *out);
    int (*temperature)(void *device, int sensor, unsigned *celsius);
    int (*power)(void *device, unsigned *milliwatts);
    int (*clock)(void *device, int type, unsigned *mhz);
    int (*ecc)(void *device, int kind, int counter, unsigned long long *count);
    int (*throttle)(void *device, unsigned long long *reasons);
    int (*events_create)(void **set);
    int (*events_register)(void *device, unsigned long long kinds, void *set);
    int (*events_wait)(void *set, struct nvml_event *out, unsigned timeout_ms);
    int (*events_free)(void *set);

    void *events;              /* the set; NULL: this driver does not tell */
    struct rk_gpu_sample xids; /* the thread's: what has been counted */

    pthread_t thread;
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t wake;
    bool is_stopping;
    struct rk_gpu_sample sample;
    int64_t sampled_ns; /* 0: never */
};

/* dlsym returns an object pointer; POSIX guarantees the conversion. */
static bool find_symbol(void *out, void *library, const char *name)
{
    void *symbol = dlsym(library, name);

    memcpy(out, &symbol, sizeof(symbol));
    return symbol != NULL;
}

/* From now on the driver keeps the errors for events_wait. */
static void register_xids(struct rk_gpu *gpu)
{
    void *set = NULL;

    find_symbol(&gpu->events_create, gpu->library, "nvmlEventSetCreate");
    find_symbol(&gpu->events_register, gpu->library, "nvmlDeviceRegisterEvents");
    find_symbol(&gpu->events_wait, gpu->library, "nvmlEventSetWait_v2");
    find_symbol(&gpu->events_free, gpu->library, "nvmlEventSetFree");
    if (!gpu->events_create || !gpu->events_register || !gpu->events_wait || !gpu->events_free ||
        gpu->events_create(&set) != 0)
        return;
    if (gpu->events_register(gpu->device, NVML_EVENT_XID, set) == 0)
        gpu->events = set;
    else
        gpu->events_free(set);
}

static struct rk_status *load(struct rk_gpu *gpu, const char *library, const char *uuid)
{
    int rc;

    gpu->library = dlopen(library, RTLD_NOW | RTLD_LOCAL);
    if (!gpu->library)
        return RK_FAIL(RK_NOT_FOUND, "no GPU metrics: cannot open %s", library);
    if (!find_symbol(&gpu->init, gpu->library, "nvmlInit_v2") ||
        !find_symbol(&gpu->shutdown, gpu->library, "nvmlShutdown") ||
        !find_symbol(&gpu->by_uuid, gpu->library, "nvmlDeviceGetHandleByUUID"))
        return RK_FAIL(RK_NOT_FOUND, "no GPU metrics: %s lacks functions of NVML", library);
    find_symbol(&gpu->utilization, gpu->library, "nvmlDeviceGetUtilizationRates");
    find_symbol(&gpu->memory, gpu->library, "nvmlDeviceGetMemoryInfo");
    find_symbol(&gpu->temperature, gpu->library, "nvmlDeviceGetTemperature");
    find_symbol(&gpu->power, gpu->library, "nvmlDeviceGetPowerUsage");
    find_symbol(&gpu->clock, gpu->library, "nvmlDeviceGetClockInfo");
    find_symbol(&gpu->ecc, gpu->library, "nvmlDeviceGetTotalEccErrors");
    find_symbol(&gpu->throttle, gpu->library, "nvmlDeviceGetCurrentClocksThrottleReasons");
    rc = gpu->init();
    if (rc != 0) {
        gpu->shutdown = NULL;
        return RK_FAIL(RK_NOT_FOUND, "no GPU metrics: nvmlInit_v2 returned %d", rc);
    }
    rc = gpu->by_uuid(uuid, &gpu->device);
    if (rc != 0)
        return RK_FAIL(RK_NOT_FOUND, "no GPU metrics: NVML does not know '%s' (%d)", uuid, rc);
    register_xids(gpu);
    return NULL;
}

static void count_xid(struct rk_gpu_sample *sample, uint64_t xid)
{
    int i = 0;

    while (i < sample->num_xids && sample->xids[i].xid != xid && sample->xids[i].xid != 0)
        i++;
    if (i == sample->num_xids)
        sample->xids[sample->num_xids++].xid = i < RK_GPU_XIDS ? xid : 0;
    sample->xids[i].count++;
}

/* Takes the errors that have come since the last time. */
static void ask_xids(struct rk_gpu *gpu, struct rk_gpu_sample *out)
{
    struct nvml_event event;

    for (int i = 0; i < EVENTS_MAX && gpu->events; i++) {
        memset(&event, 0, sizeof(event));
        if (gpu->events_wait(gpu->events, &event, 0) != 0)
            break; /* none, or the GPU is gone */
        if (event.kind & NVML_EVENT_XID) {
            count_xid(&gpu->xids, event.data);
            RK_ERROR("the GPU reports Xid %llu", event.data);
        }
    }
    out->num_xids = gpu->xids.num_xids;
    memcpy(out->xids, gpu->xids.xids, sizeof(out->xids));
}

static void ask_load(const struct rk_gpu *gpu, struct rk_gpu_sample *out)
{
    struct nvml_utilization use = {0};
    struct nvml_memory memory = {0};
    unsigned sm_mhz = 0, memory_mhz = 0;

    out->has_utilization = gpu->utilization && gpu->utilization(gpu->device, &use) == 0;
    out->utilization = use.gpu / 100.0;
    out->memory_utilization = use.memory / 100.0;
    out->has_memory = gpu->memory && gpu->memory(gpu->device, &memory) == 0;
    out->memory_used_bytes = memory.used;
    out->memory_total_bytes = memory.total;
    out->has_clocks = gpu->clock && gpu->clock(gpu->device, NVML_CLOCK_SM, &sm_mhz) == 0 &&
                      gpu->clock(gpu->device, NVML_CLOCK_MEM, &memory_mhz) == 0;
    out->sm_clock_hertz = sm_mhz * 1e6;
    out->memory_clock_hertz = memory_mhz * 1e6;
}

static void ask_health(const struct rk_gpu *gpu, struct rk_gpu_sample *out)
{
    unsigned long long errors = 0, reasons = 0;
    unsigned celsius = 0, milliwatts = 0;

    out->has_temperature =
        gpu->temperature && gpu->temperature(gpu->device, NVML_TEMPERATURE_GPU, &celsius) == 0;
    out->temperature_celsius = celsius;
    out->has_power = gpu->power && gpu->power(gpu->device, &milliwatts) == 0;
    out->power_watts = milliwatts / 1e3;
    out->has_ecc = gpu->ecc && gpu->ecc(gpu->device, NVML_UNCORRECTED, NVML_VOLATILE, &errors) == 0;
    out->ecc_uncorrected = errors;
    out->has_throttle = gpu->throttle && gpu->throttle(gpu->device, &reasons) == 0;
    out->is_throttled_power = (reasons & NVML_THROTTLE_POWER) != 0;
    out->is_throttled_thermal = (reasons & NVML_THROTTLE_THERMAL) != 0;
}

static void *run(void *arg)
{
    struct rk_gpu *gpu = arg;

    prctl(PR_SET_NAME, "rankd-P");
    pthread_mutex_lock(&gpu->lock);
    while (!gpu->is_stopping) {
        struct rk_gpu_sample sample = {0};
        struct timespec until;

        pthread_mutex_unlock(&gpu->lock);
        ask_load(gpu, &sample);
        ask_health(gpu, &sample);
        ask_xids(gpu, &sample);
        pthread_mutex_lock(&gpu->lock);
        gpu->sample = sample;
        gpu->sampled_ns = rk_time_now_ns();
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_sec += PERIOD_S;
        if (!gpu->is_stopping)
            pthread_cond_timedwait(&gpu->wake, &gpu->lock, &until);
    }
    pthread_mutex_unlock(&gpu->lock);
    return NULL;
}

static void gpu_free(struct rk_gpu *gpu)
{
    if (gpu->events)
        gpu->events_free(gpu->events);
    if (gpu->shutdown)
        gpu->shutdown();
    if (gpu->library)
        dlclose(gpu->library);
    pthread_cond_destroy(&gpu->wake);
    pthread_mutex_destroy(&gpu->lock);
    rk_free(gpu);
}

struct rk_status *rk_gpu_create(struct rk_gpu **out, const char *library, const char *uuid)
{
    struct rk_gpu *gpu = rk_calloc(1, sizeof(*gpu));
    pthread_condattr_t attributes;
    struct rk_status *st;

    *out = NULL;
    pthread_mutex_init(&gpu->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&gpu->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    st = load(gpu, library, uuid);
    if (!st)
        st = rk_thread_start(&gpu->thread, run, gpu, "GPU poller");
    if (st) {
        gpu_free(gpu);
        return st;
    }
    *out = gpu;
    return NULL;
}

void rk_gpu_destroy(struct rk_gpu *gpu)
{
    if (!gpu)
        return;
    pthread_mutex_lock(&gpu->lock);
    gpu->is_stopping = true;
    pthread_cond_signal(&gpu->wake);
    pthread_mutex_unlock(&gpu->lock);
    pthread_join(gpu->thread, NULL);
    gpu_free(gpu);
}

void rk_gpu_get_sample(struct rk_gpu *gpu, struct rk_gpu_sample *out)
{
    pthread_mutex_lock(&gpu->lock);
    *out = gpu->sample;
    out->is_fresh = gpu->sampled_ns != 0 && rk_time_now_ns() - gpu->sampled_ns < FRESH_NS;
    pthread_mutex_unlock(&gpu->lock);
}
