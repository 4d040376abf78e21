/* Streams of the CUDA runtime, and operations on them other than kernels. */
#include "kernels/cuda/cuda_internal.h"

#include "base/rk_alloc.h"

struct rk_status *rk_cuda_stream_reserve(void *handle, void *stream_handle,
                                         const struct rk_workspace *workspace)
{
    struct rk_cuda_stream *stream = stream_handle;

    (void)handle;
    RK_TRY(rk_cuda_reserve(stream, &stream->scratch, workspace->scratch_bytes));
    return rk_cuda_reserve(stream, &stream->splits, workspace->kept_bytes);
}

void rk_cuda_stream_destroy(void *handle, void *stream_handle)
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
        rk_cuda_stream_destroy(handle, stream);
        return st;
    }
    *out = stream;
    return NULL;
}

struct rk_status *rk_cuda_stream_create(void *handle, void **out, const char *name)
{
    (void)name;
    return create_stream(handle, out, 0);
}

/* Highest priority: its waiting thread blocks are scheduled before those of other streams. */
struct rk_status *rk_cuda_stream_create_urgent(void *handle, void **out, const char *name)
{
    int least, greatest;

    (void)name;
    RK_CUDA(cudaDeviceGetStreamPriorityRange(&least, &greatest));
    return create_stream(handle, out, greatest);
}

struct rk_status *rk_cuda_copy(void *handle, void *stream, void *dst, const void *src, size_t bytes,
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

struct rk_status *rk_cuda_zero(void *handle, void *stream, void *dst, size_t bytes)
{
    (void)handle;
    RK_CUDA(cudaMemsetAsync(dst, 0, bytes, ((struct rk_cuda_stream *)stream)->stream));
    return NULL;
}

struct rk_status *rk_cuda_stream_sync(void *handle, void *stream)
{
    (void)handle;
    RK_CUDA(cudaStreamSynchronize(((struct rk_cuda_stream *)stream)->stream));
    return NULL;
}

bool rk_cuda_stream_is_recording(void *handle, void *stream)
{
    (void)handle;
    return ((struct rk_cuda_stream *)stream)->is_recording;
}

void *rk_cuda_stream_native(void *handle, void *stream)
{
    (void)handle;
    return ((struct rk_cuda_stream *)stream)->stream;
}
