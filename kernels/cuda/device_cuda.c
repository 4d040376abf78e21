/* NVIDIA GPUs: opens them and manages their memory.
 *
 * Linked with the static CUDA runtime, so that the plug-in loads on machines without a toolkit; the driver is
 * loaded when the first device is opened. Only rk_device_alloc and growing scratch memory call cudaMalloc:
 * both end with warm-up. */
#include "kernels/cuda/cuda_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_log.h"
#include "kernels/cuda/archs.h"

/* --- errors --- */

struct rk_status *rk_cuda_status(cudaError_t error, const char *call)
{
    if (error == cudaSuccess)
        return NULL;
    (void)cudaGetLastError(); /* a sticky error remains for rk_device_check */
    if (error == cudaErrorMemoryAllocation)
        return RK_FAIL_REASON(RK_RESOURCE_EXHAUSTED, "DEVICE_OOM", "%s: %s", call, cudaGetErrorString(error));
    return RK_FAIL(RK_INTERNAL, "%s: %s (%s)", call, cudaGetErrorString(error), cudaGetErrorName(error));
}

struct rk_status *rk_cuda_blas_status(cublasStatus_t error, const char *call)
{
    if (error == CUBLAS_STATUS_SUCCESS)
        return NULL;
    if (error == CUBLAS_STATUS_ALLOC_FAILED)
        return RK_FAIL_REASON(RK_RESOURCE_EXHAUSTED, "DEVICE_OOM", "%s: %s", call,
                              cublasLtGetStatusString(error));
    return RK_FAIL(RK_INTERNAL, "%s: %s", call, cublasLtGetStatusString(error));
}

struct rk_status *rk_cuda_launched(const struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                                   const char *op)
{
    struct rk_status *st = rk_cuda_status(cudaGetLastError(), "launch");

    if (!st && dev->sync_launch && !stream->is_recording)
        st = rk_cuda_status(cudaStreamSynchronize(stream->stream), "run");
    return st ? RK_WRAP(st, "%s", op) : NULL;
}

/* --- opening --- */

static struct rk_status *no_driver(cudaError_t error)
{
    int driver = 0;

    if (error == cudaErrorStubLibrary)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NO_DRIVER",
                              "libcuda.so.1 is the CUDA stub library for linking, expected the NVIDIA "
                              "driver; remove the stub's directory from LD_LIBRARY_PATH");
    (void)cudaDriverGetVersion(&driver);
    if (driver == 0)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NO_DRIVER",
                              "the NVIDIA driver (libcuda.so.1) is not installed or not loaded");
    if (error == cudaErrorInsufficientDriver)
        return RK_FAIL_REASON(
            RK_FAILED_PRECONDITION, "NO_DRIVER",
            "the NVIDIA driver supports CUDA %d.%d, this plug-in needs %d.%d; update the driver",
            driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    if (error == cudaErrorSystemNotReady) /* temporary: the fabric manager may start after this process */
        return RK_FAIL_REASON(RK_UNAVAILABLE, "DRIVER_NOT_READY", "the NVIDIA driver is not ready: %s (%s)",
                              cudaGetErrorString(error), cudaGetErrorName(error));
    return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NO_DRIVER", "the NVIDIA driver fails: %s (%s)",
                          cudaGetErrorString(error), cudaGetErrorName(error));
}

static struct rk_status *find_device(int index)
{
    int count;
    cudaError_t error = cudaGetDeviceCount(&count);

    if (error != cudaSuccess)
        (void)cudaGetLastError();
    if (error == cudaErrorNoDevice)
        return RK_FAIL_REASON(RK_NOT_FOUND, "NO_DEVICE", "the driver reports no NVIDIA GPU for this process");
    if (error != cudaSuccess)
        return no_driver(error);
    if (index >= count)
        return RK_FAIL_REASON(RK_NOT_FOUND, "NO_DEVICE", "cuda:%d does not exist, this process sees %d",
                              index, count);
    return NULL;
}

/* Writes a UUID in the format of nvidia-smi. */
static void format_uuid(char uuid[RK_DEVICE_UUID_BYTES], const struct cudaDeviceProp *prop)
{
    const unsigned char *id = (const unsigned char *)prop->uuid.bytes;
    size_t used = (size_t)snprintf(uuid, RK_DEVICE_UUID_BYTES, "GPU-");

    for (int i = 0; i < 16; i++)
        used += (size_t)snprintf(uuid + used, RK_DEVICE_UUID_BYTES - used, "%s%02x",
                                 i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", id[i]);
}

static struct rk_status *cuda_get_uuid(int index, char uuid[RK_DEVICE_UUID_BYTES])
{
    struct cudaDeviceProp prop;

    RK_TRY(find_device(index));
    RK_CUDA(cudaGetDeviceProperties(&prop, index));
    format_uuid(uuid, &prop);
    return NULL;
}

static struct rk_status *read_properties(struct rk_cuda_device *dev)
{
    struct cudaDeviceProp prop;

    RK_CUDA(cudaGetDeviceProperties(&prop, dev->index));
    if (!rk_cuda_archs_run_on(RK_CUDA_ARCHS, prop.major, prop.minor))
        return RK_FAIL_REASON(
            RK_FAILED_PRECONDITION, "COMPUTE_CAPABILITY",
            "%s has compute capability %d.%d, this plug-in is built for the architectures %s", prop.name,
            prop.major, prop.minor, RK_CUDA_ARCHS);
    dev->compute_capability = 10 * prop.major + prop.minor;
    dev->num_sms = prop.multiProcessorCount;
    dev->max_shared_bytes = (int)prop.sharedMemPerBlockOptin;
    dev->has_sm90a = dev->compute_capability == 90 && rk_cuda_archs_have(RK_CUDA_ARCHS, "90a");
    return NULL;
}

/* Creates the context, which fails if another process holds a GPU in exclusive mode. */
static struct rk_status *select_device(int index)
{
    cudaError_t error = cudaSetDevice(index);

    if (error == cudaSuccess)
        error = cudaFree(NULL);
    if (error == cudaErrorDevicesUnavailable || error == cudaErrorDeviceAlreadyInUse) {
        (void)cudaGetLastError();
        return RK_FAIL_REASON(RK_UNAVAILABLE, "DEVICE_BUSY", "another process holds the GPU: %s",
                              cudaGetErrorString(error));
    }
    return rk_cuda_status(error, "cudaSetDevice");
}

static void cuda_close(void *handle)
{
    struct rk_cuda_device *dev = handle;

    rk_cuda_gemm_plans_destroy(dev->plans);
    rk_free(dev->vmm);
    if (dev->blas)
        (void)cublasLtDestroy(dev->blas);
    if (dev->probe)
        (void)cudaStreamDestroy(dev->probe);
    rk_free(dev);
}

static struct rk_status *open_handles(struct rk_cuda_device *dev)
{
    RK_TRY(read_properties(dev));
    RK_TRY(select_device(dev->index));
    RK_CUDA(cudaStreamCreateWithFlags(&dev->probe, cudaStreamNonBlocking));
    RK_CUBLAS(cublasLtCreate(&dev->blas));
    return NULL;
}

static struct rk_status *cuda_open(void **out, int index, const struct rk_device_config *config)
{
    const char *sync_launch = rk_env("RK_SYNC_LAUNCH");
    struct rk_cuda_device *dev;
    struct rk_status *st;

    (void)config; /* limit and lock are the wrapper's, threads are the host's */
    RK_TRY(find_device(index));
    dev = rk_calloc(1, sizeof(*dev));
    dev->index = index;
    dev->sync_launch = sync_launch && strcmp(sync_launch, "1") == 0;
    st = open_handles(dev);
    if (st) {
        cuda_close(dev);
        return st;
    }
    *out = dev;
    return NULL;
}

static struct rk_status *cuda_get_info(void *handle, struct rk_device_info *out)
{
    const struct rk_cuda_device *dev = handle;
    struct cudaDeviceProp prop;

    RK_CUDA(cudaGetDeviceProperties(&prop, dev->index));
    *out = (struct rk_device_info){.memory_total_bytes = prop.totalGlobalMem};
    snprintf(out->name, sizeof(out->name), "cuda:%d", dev->index);
    snprintf(out->model, sizeof(out->model), "%.63s", prop.name);
    format_uuid(out->uuid, &prop);
    return NULL;
}

static struct rk_status *cuda_check(void *handle)
{
    const struct rk_cuda_device *dev = handle;
    cudaError_t error = cudaStreamQuery(dev->probe);

    if (error == cudaSuccess || error == cudaErrorNotReady)
        return NULL;
    return RK_FAIL_REASON(RK_INTERNAL, "DEVICE_LOST", "cuda:%d is lost: %s (%s)", dev->index,
                          cudaGetErrorString(error), cudaGetErrorName(error));
}

/* --- memory --- */

struct rk_status *rk_cuda_zero_now(void *ptr, size_t bytes)
{
    RK_CUDA(cudaMemsetAsync(ptr, 0, bytes, NULL));
    RK_CUDA(cudaStreamSynchronize(NULL));
    return NULL;
}

struct rk_status *rk_cuda_no_memory(void)
{
    size_t free_bytes = 0, total_bytes = 0;

    RK_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
    return RK_FAIL_REASON(RK_RESOURCE_EXHAUSTED, "DEVICE_OOM", "the GPU has %zu bytes free of %zu",
                          free_bytes, total_bytes);
}

static struct rk_status *cuda_alloc(void *handle, void **out, size_t bytes)
{
    cudaError_t error = cudaMalloc(out, RK_MAX(bytes, (size_t)1));
    struct rk_status *st;

    (void)handle;
    if (error == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return rk_cuda_no_memory();
    }
    RK_TRY(rk_cuda_status(error, "cudaMalloc"));
    st = rk_cuda_zero_now(*out, bytes);
    if (st) {
        (void)cudaFree(*out);
        *out = NULL;
    }
    return st;
}

/* An error here is that of earlier work; the next call reports it. */
static void cuda_free(void *handle, void *ptr)
{
    (void)handle;
    (void)cudaFree(ptr);
}

static struct rk_status *cuda_get_free(void *handle, uint64_t *out_bytes)
{
    size_t free_bytes, total_bytes;

    (void)handle;
    RK_CUDA(cudaMemGetInfo(&free_bytes, &total_bytes));
    *out_bytes = free_bytes;
    return NULL;
}

static void cuda_get_own(const void *handle, uint64_t *out_bytes, uint64_t *out_num_allocations)
{
    const struct rk_cuda_device *dev = handle;

    *out_bytes = dev->own_bytes;
    *out_num_allocations = dev->num_own;
}

static struct rk_status *cuda_host_alloc(void *handle, void **out, size_t bytes)
{
    (void)handle;
    RK_CUDA(cudaHostAlloc(out, RK_MAX(bytes, (size_t)1), cudaHostAllocPortable));
    memset(*out, 0, bytes);
    return NULL;
}

static void cuda_host_free(void *handle, void *ptr)
{
    (void)handle;
    (void)cudaFreeHost(ptr);
}

struct rk_status *rk_cuda_reserve(struct rk_cuda_stream *stream, struct rk_cuda_buffer *buffer, size_t bytes)
{
    void *grown;

    if (bytes <= buffer->bytes)
        return NULL;
    if (stream->is_recording)
        return RK_FAIL(RK_FAILED_PRECONDITION,
                       "%zu bytes of scratch are needed while a graph is recorded; run the operation once "
                       "before recording",
                       bytes);
    RK_CUDA(cudaMalloc(&grown, bytes));
    stream->dev->own_bytes += bytes - buffer->bytes;
    stream->dev->num_own++;
    (void)cudaFree(buffer->data); /* waits for the kernels that use it */
    *buffer = (struct rk_cuda_buffer){grown, bytes};
    stream->num_moves++;
    RK_CUDA(cudaMemsetAsync(grown, 0, bytes, stream->stream));
    return NULL;
}

static struct rk_status *cuda_use(void *handle)
{
    RK_CUDA(cudaSetDevice(((struct rk_cuda_device *)handle)->index));
    return NULL;
}

const struct rk_device_ops rk_cuda_device_ops = {
    .name = "cuda",
    .abi = RK_DEVICE_ABI,
    .collectives = "nccl",
    .kernels = &rk_cuda_kernel_ops,
    .open = cuda_open,
    .close = cuda_close,
    .get_info = cuda_get_info,
    .alloc = cuda_alloc,
    .free = cuda_free,
    .host_alloc = cuda_host_alloc,
    .host_free = cuda_host_free,
    .stream_create = rk_cuda_stream_create,
    .stream_create_urgent = rk_cuda_stream_create_urgent,
    .stream_destroy = rk_cuda_stream_destroy,
    .copy = rk_cuda_copy,
    .zero = rk_cuda_zero,
    .stream_sync = rk_cuda_stream_sync,
    .event_create = rk_cuda_event_create,
    .event_destroy = rk_cuda_event_destroy,
    .event_record = rk_cuda_event_record,
    .stream_wait = rk_cuda_stream_wait,
    .event_query = rk_cuda_event_query,
    .stream_is_recording = rk_cuda_stream_is_recording,
    .stream_native = rk_cuda_stream_native,
    .event_create_timed = rk_cuda_event_create_timed,
    .event_elapsed_ns = rk_cuda_event_elapsed_ns,
    .event_sync = rk_cuda_event_sync,
    .graph_begin = rk_cuda_graph_begin,
    .graph_end = rk_cuda_graph_end,
    .graph_launch = rk_cuda_graph_launch,
    .graph_is_current = rk_cuda_graph_is_current,
    .graph_destroy = rk_cuda_graph_destroy,
    .use = cuda_use,
    .check = cuda_check,
    .get_free = cuda_get_free,
    .get_own = cuda_get_own,
    .reserve = rk_cuda_stream_reserve,
    .get_uuid = cuda_get_uuid,
    .range_reserve = rk_cuda_range_reserve,
    .range_commit = rk_cuda_range_commit,
    .range_release = rk_cuda_range_release,
    .range_free = rk_cuda_range_free,
};
