/* Graphs of the CUDA runtime. */
#include "kernels/cuda/cuda_internal.h"

#include "base/rk_alloc.h"

struct cuda_graph {
    cudaGraphExec_t exec;
    uint64_t num_moves; /* num_moves of the stream's scratch when the graph was recorded */
};

struct rk_status *rk_cuda_graph_begin(void *handle, void *stream_handle)
{
    struct rk_cuda_stream *stream = stream_handle;

    (void)handle;
    RK_CUDA(cudaStreamBeginCapture(stream->stream, cudaStreamCaptureModeThreadLocal));
    stream->is_recording = true;
    return NULL;
}

/* Uploads the graph too: lack of device memory fails here, not at a launch. */
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

struct rk_status *rk_cuda_graph_end(void *handle, void *stream_handle, void **out)
{
    struct rk_cuda_stream *stream = stream_handle;
    cudaGraph_t recorded = NULL;
    cudaError_t error = cudaStreamEndCapture(stream->stream, &recorded);
    struct cuda_graph *graph;
    struct rk_status *st;

    (void)handle;
    stream->is_recording = false;
    if (!out) {
        (void)cudaGetLastError(); /* error of a recording that a failed operation has invalidated */
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

struct rk_status *rk_cuda_graph_launch(void *handle, void *stream, void *graph)
{
    (void)handle;
    RK_CUDA(cudaGraphLaunch(((struct cuda_graph *)graph)->exec, ((struct rk_cuda_stream *)stream)->stream));
    return NULL;
}

bool rk_cuda_graph_is_current(void *handle, void *stream, void *graph)
{
    (void)handle;
    return ((struct cuda_graph *)graph)->num_moves == ((struct rk_cuda_stream *)stream)->num_moves;
}

void rk_cuda_graph_destroy(void *handle, void *graph)
{
    (void)handle;
    (void)cudaGraphExecDestroy(((struct cuda_graph *)graph)->exec);
    rk_free(graph);
}
