/* Events of the CUDA runtime. */
#include "kernels/cuda/cuda_internal.h"

struct rk_status *rk_cuda_event_create(void *handle, void **out)
{
    cudaEvent_t event;

    (void)handle;
    RK_CUDA(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
    *out = event;
    return NULL;
}

struct rk_status *rk_cuda_event_create_timed(void *handle, void **out)
{
    cudaEvent_t event;

    (void)handle;
    RK_CUDA(cudaEventCreate(&event));
    *out = event;
    return NULL;
}

struct rk_status *rk_cuda_event_elapsed_ns(void *handle, int64_t *out, void *begin, void *end)
{
    float ms;

    (void)handle;
    RK_CUDA(cudaEventElapsedTime(&ms, begin, end));
    *out = (int64_t)((double)ms * 1e6);
    return NULL;
}

void rk_cuda_event_destroy(void *handle, void *event)
{
    (void)handle;
    (void)cudaEventDestroy(event);
}

struct rk_status *rk_cuda_event_record(void *handle, void *event, void *stream)
{
    (void)handle;
    RK_CUDA(cudaEventRecord(event, ((struct rk_cuda_stream *)stream)->stream));
    return NULL;
}

struct rk_status *rk_cuda_stream_wait(void *handle, void *stream, void *event)
{
    (void)handle;
    RK_CUDA(cudaStreamWaitEvent(((struct rk_cuda_stream *)stream)->stream, event, 0));
    return NULL;
}

/* Called by threads other than the engine's, which may be recording: relaxed mode, because the query would
 * otherwise invalidate the recording. */
bool rk_cuda_event_query(void *handle, void *event)
{
    enum cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    cudaError_t error;

    (void)handle;
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    error = cudaEventQuery(event);
    (void)cudaThreadExchangeStreamCaptureMode(&mode);
    (void)cudaGetLastError(); /* cudaErrorNotReady is kept as the last error too */
    return error != cudaErrorNotReady;
}

struct rk_status *rk_cuda_event_sync(void *handle, void *event)
{
    (void)handle;
    RK_CUDA(cudaEventSynchronize(event));
    return NULL;
}
