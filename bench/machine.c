/* Describes the machine of a measurement: names and versions from the loaded libraries, whose functions are
 * looked up at run time, so that this program runs on machines without a GPU. Unknown values are omitted. */
#include "bench/bench.h"

#include <dlfcn.h>
#include <link.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
#include "bench/op_bench.h"
#include "generated/rk_version.h"

/* --- NVML, the library behind nvidia-smi; constants as in nvml.h --- */

#define NVML_CLOCK_SM  1
#define NVML_CLOCK_MEM 2

static struct {
    bool was_tried;
    int (*init)(void);
    int (*driver_version)(char *version, unsigned bytes);
    int (*cuda_version)(int *version);
    int (*by_uuid)(const char *uuid, void **device);
    int (*name)(void *device, char *name, unsigned bytes);
    int (*clock)(void *device, int type, unsigned *mhz);
    int (*max_clock)(void *device, int type, unsigned *mhz);
    int (*power)(void *device, unsigned *milliwatts);
    void *library;
} nvml;

/* dlsym returns an object pointer; POSIX guarantees the conversion. */
static bool find_symbol(void *out, void *library, const char *name)
{
    void *symbol = library ? dlsym(library, name) : NULL;

    memcpy(out, &symbol, sizeof(symbol));
    return symbol != NULL;
}

static bool nvml_load(void)
{
    void *library;

    if (nvml.was_tried)
        return nvml.library != NULL;
    nvml.was_tried = true;
    library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    if (find_symbol(&nvml.init, library, "nvmlInit_v2") &&
        find_symbol(&nvml.driver_version, library, "nvmlSystemGetDriverVersion") &&
        find_symbol(&nvml.cuda_version, library, "nvmlSystemGetCudaDriverVersion") &&
        find_symbol(&nvml.by_uuid, library, "nvmlDeviceGetHandleByUUID") &&
        find_symbol(&nvml.name, library, "nvmlDeviceGetName") &&
        find_symbol(&nvml.clock, library, "nvmlDeviceGetClockInfo") &&
        find_symbol(&nvml.max_clock, library, "nvmlDeviceGetMaxClockInfo") &&
        find_symbol(&nvml.power, library, "nvmlDeviceGetPowerUsage") && nvml.init() == 0)
        nvml.library = library;
    return nvml.library != NULL;
}

static void *nvml_device(const struct bench_ctx *ctx)
{
    struct rk_device_info info = rk_device_get_info(ctx->device);
    void *device = NULL;

    return nvml_load() && nvml.by_uuid(info.uuid, &device) == 0 ? device : NULL;
}

void bench_machine_sample(struct bench_result *result, const struct bench_ctx *ctx)
{
    void *device = nvml_device(ctx);
    unsigned mhz = 0, milliwatts = 0;

    if (device && nvml.clock(device, NVML_CLOCK_SM, &mhz) == 0)
        result->clock_mhz = (int)mhz;
    if (device && nvml.power(device, &milliwatts) == 0)
        result->power_w = milliwatts * 1e-3;
}

/* --- hardware and versions --- */

/* The processor's name in /proc/cpuinfo. */
static void describe_cpu(struct rk_str *out)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];

    while (file && fgets(line, sizeof(line), file)) {
        const char *value = strchr(line, ':');

        if (!rk_str_has_prefix(line, "model name") || !value)
            continue;
        rk_str_append_bytes(out, value + 2, strcspn(value + 2, "\n"));
        break;
    }
    if (file)
        fclose(file);
    rk_str_appendf(out, "%sCPU, %ld threads", out->bytes ? ", " : "", sysconf(_SC_NPROCESSORS_ONLN));
}

static void describe_gpu(struct rk_str *out, void *device)
{
    unsigned sm_mhz = 0, mem_mhz = 0;
    char name[96] = "NVIDIA GPU";

    (void)nvml.name(device, name, sizeof(name));
    (void)nvml.max_clock(device, NVML_CLOCK_SM, &sm_mhz);
    (void)nvml.max_clock(device, NVML_CLOCK_MEM, &mem_mhz);
    rk_str_appendf(out, "%s, clocks up to %u MHz (SM), %u MHz (memory)", name, sm_mhz, mem_mhz);
}

/* Path of the first loaded library whose file name has this prefix. */
static int match_library(struct dl_phdr_info *info, size_t bytes, void *user)
{
    const char *name = strrchr(info->dlpi_name, '/');
    char **wanted = user;

    (void)bytes;
    if (!name || !rk_str_has_prefix(name + 1, wanted[0]))
        return 0;
    wanted[1] = rk_strdup(info->dlpi_name);
    return 1;
}

/* A loaded library, or NULL; `path`: a library to load if none is, or NULL. */
static void *find_library(char *prefix, const char *path)
{
    char *wanted[2] = {prefix, NULL};
    void *library = NULL;

    if (dl_iterate_phdr(match_library, wanted))
        library = dlopen(wanted[1], RTLD_NOW | RTLD_LOCAL);
    else if (path)
        library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    rk_free(wanted[1]);
    return library;
}

static void describe_gpu_libraries(struct rk_str *out)
{
    char cublas[] = "libcublasLt.so", nccl[] = "libnccl.so";
    int (*nccl_version)(int *version);
    size_t (*blas_version)(void);
    char driver[80] = "";
    int version = 0;

    if (nvml.driver_version(driver, sizeof(driver)) == 0)
        rk_str_appendf(out, ", driver %s", driver);
    if (nvml.cuda_version(&version) == 0)
        rk_str_appendf(out, ", CUDA %d.%d", version / 1000, version % 1000 / 10);
    if (find_symbol(&blas_version, find_library(cublas, NULL), "cublasLtGetVersion"))
        rk_str_appendf(out, ", cuBLASLt %zu.%zu.%zu", blas_version() / 10000, blas_version() / 100 % 100,
                       blas_version() % 100);
    if (find_symbol(&nccl_version, find_library(nccl, "libnccl.so.2"), "ncclGetVersion") &&
        nccl_version(&version) == 0)
        rk_str_appendf(out, ", NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
}

void bench_machine_describe(struct bench_machine *out, const struct bench_ctx *ctx)
{
    struct rk_str hardware = {0}, versions = {0};
    void *device = nvml_device(ctx);

    rk_str_appendf(&versions, "rankd %s (%s)", RK_VERSION, RK_GIT_COMMIT);
    if (device) {
        describe_gpu(&hardware, device);
        describe_gpu_libraries(&versions);
    } else {
        describe_cpu(&hardware);
    }
    snprintf(out->hardware, sizeof(out->hardware), "%s", rk_str_text(&hardware));
    snprintf(out->versions, sizeof(out->versions), "%s", rk_str_text(&versions));
    rk_time_format_utc(rk_time_unix_ns(), out->date, sizeof(out->date));
    rk_str_fini(&hardware);
    rk_str_fini(&versions);
}

/* --- ceilings --- */

/* Known devices: rates reached by a large GEMM on random data and by a copy, not those of the data sheet. */
static const struct {
    const char *begin; /* prefix of the hardware's description: other models have longer names */
    struct bench_ceilings ceilings;
} known[] = {
    {"NVIDIA H200,", {.flops = 790e12, .bytes = 4.3e12}},
};

static struct rk_status *measure(double *rate, struct bench_ctx *ctx, const struct bench_op *op,
                                 const int64_t *dims)
{
    struct bench_case bench = {.unit = op == &bench_op_gemm ? BENCH_TFLOPS : BENCH_GBYTES, .op = op};
    struct bench_result result = {0};

    memcpy(bench.dims, dims, sizeof(bench.dims));
    memcpy(bench.tiny, dims, sizeof(bench.tiny));
    RK_TRY(bench_run_op(ctx, &bench, &result));
    *rate = result.measured * (op == &bench_op_gemm ? 1e12 : 1e9);
    return NULL;
}

struct rk_status *bench_ceilings_find(struct bench_ceilings *out, struct bench_ctx *ctx)
{
    static const int64_t gemm[BENCH_MAX_DIMS] = {8192, 8192, 8192};
    static const int64_t cast[BENCH_MAX_DIMS] = {(int64_t)1 << 28};
    bool is_cpu = strcmp(rk_device_get_info(ctx->device).name, "cpu") == 0;
    struct bench_machine machine;

    if (is_cpu || ctx->options->is_tiny) { /* tiny shapes and CPUs are not bound by GEMMs or memory */
        *out = (struct bench_ceilings){.flops = INFINITY, .bytes = INFINITY};
        return NULL;
    }
    bench_machine_describe(&machine, ctx);
    for (size_t i = 0; i < RK_ARRAY_LEN(known); i++) {
        if (rk_str_has_prefix(machine.hardware, known[i].begin)) {
            *out = known[i].ceilings;
            return NULL;
        }
    }
    ctx->ceilings = (struct bench_ceilings){.flops = 1, .bytes = 1};
    *out = (struct bench_ceilings){.is_measured = true};
    RK_TRY(measure(&out->flops, ctx, &bench_op_gemm, gemm));
    return measure(&out->bytes, ctx, &bench_op_cast, cast);
}
