/* NVIDIA GPUs: memory, streams and events of the CUDA runtime.
 *
 * Linked with the static runtime, so that the plug-in loads where no toolkit is; the driver is looked up when
 * the first device is opened. cudaMalloc is called by rk_device_alloc and by scratch that grows, nowhere
 * else: both end with warm-up. */
#include "kernels/cuda/cuda_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_config.h"
#include "base/rk_log.h"
#include "kernels/cuda/archs.h"

/* --- errors --- */

struct rk_status *rk_cuda_status(cudaError_t error, const char *call)
{
    if (error == cudaSuccess)
        return NULL;
    (void)cudaGetLastError(); /* a sticky error stays for rk_device_check to find */
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
                              "the libcuda.so.1 that was found is CUDA's stub for linking, not the NVIDIA "
                              "driver: LD_LIBRARY_PATH must not name its folder");
    (void)cudaDriverGetVersion(&driver);
    if (driver == 0)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NO_DRIVER",
                              "the NVIDIA driver (libcuda.so.1) is not installed or not loaded");
    if (error == cudaErrorInsufficientDriver)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NO_DRIVER",
                              "the NVIDIA driver is for CUDA %d.%d, this plug-in for %d.%d: it is too old",
                              driver / 1000, driver % 1000 / 10, CUDART_VERSION / 1000,
                              CUDART_VERSION % 1000 / 10);
    if (error == cudaErrorSystemNotReady) /* passes by itself: the fabric manager may start after us */
        return RK_FAIL_REASON(RK_UNAVAILABLE, "DRIVER_NOT_READY", "the NVIDIA driver is not ready: %s (%s)",
                              cudaGetErrorString(error), cudaGetErrorName(error));
    return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NO_DRIVER", "the NVIDIA driver does not work: %s (%s)",
                          cudaGetErrorString(error), cudaGetErrorName(error));
}

static struct rk_status *find_device(int index)
{
    int count;
    cudaError_t error = cudaGetDeviceCount(&count);

    if (error != cudaSuccess)
        (void)cudaGetLastError();
    if (error == cudaErrorNoDevice)
        return RK_FAIL_REASON(RK_NOT_FOUND, "NO_DEVICE", "the driver shows this process no NVIDIA GPU");
    if (error != cudaSuccess)
        return no_driver(error);
    if (index >= count)
        return RK_FAIL_REASON(RK_NOT_FOUND, "NO_DEVICE", "cuda:%d does not exist, this process sees %d",
                              index, count);
    return NULL;
}

/* As nvidia-smi prints it. */
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

/* Makes the context, which is where a GPU in exclusive mode says that somebody else has it. */
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

/* An error here belongs to earlier work and is reported by the next call. */
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
                       "scratch of %zu bytes is wanted while a graph is recorded: run the operation before",
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

/* --- streams and events --- */

static struct rk_status *cuda_stream_reserve(void *handle, void *stream_handle,
                                             const struct rk_workspace *workspace)
{
    struct rk_cuda_stream *stream = stream_handle;

    (void)handle;
    RK_TRY(rk_cuda_reserve(stream, &stream->scratch, workspace->scratch_bytes));
    return rk_cuda_reserve(stream, &stream->splits, workspace->kept_bytes);
}

static void cuda_stream_destroy(void *handle, void *stream_handle)
{
    struct rk_cuda_stream *stream = stream_handle;

    (void)handle;
    stream->dev->own_bytes -= stream->scratch.bytes + stream->splits.bytes;
    if (stream->stream)
        (void)cudaStreamDestroy(stream->stream);
    (void)cudaFree(stream->scratch.data);
    (void)cudaFree(stream->splits.data);
    rk_free(stream);
}

static struct rk_status *create_stream(void *handle, void **out, int priority)
{
    struct rk_cuda_stream *stream = rk_calloc(1, sizeof(*stream));
    struct rk_status *st;

    stream->dev = handle;
    st = rk_cuda_status(cudaStreamCreateWithPriority(&stream->stream, cudaStreamNonBlocking, priority),
                        "cudaStreamCreateWithPriority");
    if (st) {
        cuda_stream_destroy(handle, stream);
        return st;
    }
    *out = stream;
    return NULL;
}

static struct rk_status *cuda_stream_create(void *handle, void **out, const char *name)
{
    (void)name;
    return create_stream(handle, out, 0);
}

/* A block of it that waits for room on a processor gets it before blocks of other streams that wait, too. */
static struct rk_status *cuda_stream_create_urgent(void *handle, void **out, const char *name)
{
    int least, greatest;

    (void)name;
    RK_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    return create_stream(handle, out, greatest);
}

static struct rk_status *cuda_copy(void *handle, void *stream, void *dst, const void *src, size_t bytes,
                                   rk_copy_kind_t kind)
{
    static const enum cudaMemcpyKind kinds[] = {
        [RK_COPY_H2D] = cudaMemcpyHostToDevice,
        [RK_COPY_D2H] = cudaMemcpyDeviceToHost,
        [RK_COPY_D2D] = cudaMemcpyDeviceToDevice,
    };

    (void)handle;
    RK_CUDA(cudaMemcpyAsync(dst, src, bytes, kinds[kind], ((struct rk_cuda_stream *)stream)->stream));
    return NULL;
}

static struct rk_status *cuda_zero(void *handle, void *stream, void *dst, size_t bytes)
{
    (void)handle;
    RK_CUDA(cudaMemsetAsync(dst, 0, bytes, ((struct rk_cuda_stream *)stream)->stream));
    return NULL;
}

static struct rk_status *cuda_stream_sync(void *handle, void *stream)
{
    (void)handle;
    RK_CUDA(cudaStreamSynchronize(((struct rk_cuda_stream *)stream)->stream));
    return NULL;
}

static struct rk_status *cuda_event_create(void *handle, void **out)
{
    cudaEvent_t event;

    (void)handle;
    RK_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    *out = event;
    return NULL;
}

static struct rk_status *cuda_event_create_timed(void *handle, void **out)
{
    cudaEvent_t event;

    (void)handle;
    RK_CUDA(cudaEventCreate(&event));
    *out = event;
    return NULL;
}

static struct rk_status *cuda_event_elapsed_ns(void *handle, int64_t *out, void *begin, void *end)
{
    float ms;

    (void)handle;
    RK_CUDA(cudaEventElapsedTime(&ms, begin, end));
    *out = (int64_t)((double)ms * 1e6);
    return NULL;
}

static void cuda_event_destroy(void *handle, void *event)
{
    (void)handle;
    (void)cudaEventDestroy(event);
}

static struct rk_status *cuda_event_record(void *handle, void *event, void *stream)
{
    (void)handle;
    RK_CUDA(cudaEventRecord(event, ((struct rk_cuda_stream *)stream)->stream));
    return NULL;
}

static struct rk_status *cuda_stream_wait(void *handle, void *stream, void *event)
{
    (void)handle;
    RK_CUDA(cudaStreamWaitEvent(((struct rk_cuda_stream *)stream)->stream, event, 0));
    return NULL;
}

/* Asked by threads that have nothing to do with what the engine's may be recording: relaxed, or the question
 * would end the recording. */
static bool cuda_event_query(void *handle, void *event)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaError_t error;

    (void)handle;
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    error = cudaEventQuery(event);
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    (void)cudaGetLastError(); /* "not yet" counts as one */
    return error != cudaErrorNotReady;
}

static struct rk_status *cuda_use(void *handle)
{
    RK_CUDA(cudaSetDevice(((struct rk_cuda_device *)handle)->index));
    return NULL;
}

static bool cuda_stream_is_recording(void *handle, void *stream)
{
    (void)handle;
    return ((struct rk_cuda_stream *)stream)->is_recording;
}

static void *cuda_stream_native(void *handle, void *stream)
{
    (void)handle;
    return ((struct rk_cuda_stream *)stream)->stream;
}

static struct rk_status *cuda_event_sync(void *handle, void *event)
{
    (void)handle;
    RK_CUDA(cudaEventSynchronize(event));
    return NULL;
}

/* --- graphs --- */

struct cuda_graph {
    cudaGraphExec_t exec;
    uint64_t num_moves; /* of the stream's scratch when it was recorded */
};

static struct rk_status *cuda_graph_begin(void *handle, void *stream_handle)
{
    struct rk_cuda_stream *stream = stream_handle;

    (void)handle;
    RK_CUDA(cudaStreamBeginCapture(stream->stream, cudaStreamCaptureModeThreadLocal));
    stream->is_recording = true;
    return NULL;
}

/* With its memory on the device: what fails for want of it fails here, not at a launch. */
static struct rk_status *instantiate(struct cuda_graph *graph, cudaGraph_t recorded,
                                     const struct rk_cuda_stream *stream)
{
    struct rk_status *st;

    RK_CUDA(cudaGraphInstantiate(&graph->exec, recorded, 0));
    st = rk_cuda_status(cudaGraphUpload(graph->exec, stream->stream), "cudaGraphUpload");
    if (st)
        (void)cudaGraphExecDestroy(graph->exec);
    return st;
}

static struct rk_status *cuda_graph_end(void *handle, void *stream_handle, void **out)
{
    struct rk_cuda_stream *stream = stream_handle;
    cudaGraph_t recorded = NULL;
    cudaError_t error = cudaStreamEndCapture(stream->stream, &recorded);
    struct cuda_graph *graph;
    struct rk_status *st;

    (void)handle;
    stream->is_recording = false;
    if (!out) {
        (void)cudaGetLastError(); /* of a recording that a failed operation has spoilt */
        if (recorded)
            (void)cudaGraphDestroy(recorded);
        return NULL;
    }
    RK_TRY(rk_cuda_status(error, "cudaStreamEndCapture"));
    graph = rk_calloc(1, sizeof(*graph));
    graph->num_moves = stream->num_moves;
    st = instantiate(graph, recorded, stream);
    (void)cudaGraphDestroy(recorded);
    if (st) {
        rk_free(graph);
        return st;
    }
    *out = graph;
    return NULL;
}

static struct rk_status *cuda_graph_launch(void *handle, void *stream, void *graph)
{
    (void)handle;
    RK_CUDA(cudaGraphLaunch(((struct cuda_graph *)graph)->exec, ((struct rk_cuda_stream *)stream)->stream));
    return NULL;
}

static bool cuda_graph_is_current(void *handle, void *stream, void *graph)
{
    (void)handle;
    return ((struct cuda_graph *)graph)->num_moves == ((struct rk_cuda_stream *)stream)->num_moves;
}

static void cuda_graph_destroy(void *handle, void *graph)
{
    (void)handle;
    (void)cudaGraphExecDestroy(((struct cuda_graph *)graph)->exec);
    rk_free(graph);
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
    .stream_create = cuda_stream_create,
    .stream_create_urgent = cuda_stream_create_urgent,
    .stream_destroy = cuda_stream_destroy,
    .copy = cuda_copy,
    .zero = cuda_zero,
    .stream_sync = cuda_stream_sync,
    .event_create = cuda_event_create,
    .event_destroy = cuda_event_destroy,
    .event_record = cuda_event_record,
    .stream_wait = cuda_stream_wait,
    .event_query = cuda_event_query,
    .stream_is_recording = cuda_stream_is_recording,
    .stream_native = cuda_stream_native,
    .event_create_timed = cuda_event_create_timed,
    .event_elapsed_ns = cuda_event_elapsed_ns,
    .event_sync = cuda_event_sync,
    .graph_begin = cuda_graph_begin,
    .graph_end = cuda_graph_end,
    .graph_launch = cuda_graph_launch,
    .graph_is_current = cuda_graph_is_current,
    .graph_destroy = cuda_graph_destroy,
    .use = cuda_use,
    .check = cuda_check,
    .get_free = cuda_get_free,
    .get_own = cuda_get_own,
    .reserve = cuda_stream_reserve,
    .get_uuid = cuda_get_uuid,
    .range_reserve = rk_cuda_range_reserve,
    .range_commit = rk_cuda_range_commit,
    .range_release = rk_cuda_range_release,
    .range_free = rk_cuda_range_free,
};
