/* Strict products with few rows: the library's kernel, or which choice of our own (gemm_small_sm90.cu). By
 * time on the operands themselves, once for all products of like size; all have the same bits, so the clock
 * decides nothing else.
 *
 * What is timed is a graph of several calls, as in a decode step: launched one by one, the smallest products
 * would measure the host. Between two calls the scratch is written, which leaves little of B in L2: read from
 * there, it flatters our kernel. */
#include "kernels/cuda/gemm_small.h"

#include <string.h>

#include "base/rk_log.h"
#include "kernels/cuda/gemm_internal.h"

#define NUM_TIMED 8 /* choices, of those that are expected to be the fastest */
#define NUM_CALLS 8 /* in a graph */
#define NUM_RUNS  3 /* of the graph; the fastest counts */

/* Our own kernel is taken when it needs less than this part of the library's time, what lies between two
 * calls included. */
#define WORTH_IT 0.9f

/* choice 0: the library's. */
static struct rk_status *run(struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                             const struct rk_gemm_plan *plan, const struct rk_gemm_args *args, int choice)
{
    return choice > 0 ? rk_gemm_small_run(dev, stream, choice - 1, args)
                      : rk_gemm_run_plan(dev, stream, plan, args);
}

static struct rk_status *record_calls(struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                                      const struct rk_gemm_plan *plan, const struct rk_gemm_args *args,
                                      int choice, cudaGraphExec_t *out)
{
    cudaGraph_t graph = NULL;
    struct rk_status *st = NULL;
    cudaError_t error;

    RK_TRY(run(dev, stream, plan, args, choice)); /* loads the kernel */
    RK_CUDA(cudaStreamBeginCapture(stream->stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < NUM_CALLS && !st; i++) {
        st = rk_cuda_status(cudaMemsetAsync(stream->scratch.data, 0, RK_CUDA_WORKSPACE_BYTES, stream->stream),
                            "memset");
        if (!st)
            st = run(dev, stream, plan, args, choice);
    }
    error = cudaStreamEndCapture(stream->stream, &graph);
    if (!st)
        st = rk_cuda_status(error, "cudaStreamEndCapture");
    if (!st)
        st = rk_cuda_status(cudaGraphInstantiate(out, graph, 0), "cudaGraphInstantiate");
    if (graph)
        (void)cudaGraphDestroy(graph);
    return st;
}

/* Microseconds of a call and what lies between two. */
static struct rk_status *time_graph(const struct rk_cuda_stream *stream, cudaGraphExec_t graph,
                                    cudaEvent_t events[2], float *us)
{
    for (int i = 0; i < NUM_RUNS; i++) {
        float ms;

        RK_CUDA(cudaEventRecord(events[0], stream->stream));
        RK_CUDA(cudaGraphLaunch(graph, stream->stream));
        RK_CUDA(cudaEventRecord(events[1], stream->stream));
        RK_CUDA(cudaEventSynchronize(events[1]));
        RK_CUDA(cudaEventElapsedTime(&ms, events[0], events[1]));
        ms *= 1e3f / NUM_CALLS;
        *us = i == 0 ? ms : RK_MIN(*us, ms);
    }
    return NULL;
}

static struct rk_status *time_choice(struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                                     const struct rk_gemm_plan *plan, const struct rk_gemm_args *args,
                                     int choice, cudaEvent_t events[2], float *us)
{
    cudaGraphExec_t graph = NULL;
    struct rk_status *st = record_calls(dev, stream, plan, args, choice, &graph);

    if (!st)
        st = time_graph(stream, graph, events, us);
    if (graph)
        (void)cudaGraphExecDestroy(graph);
    return st;
}

static struct rk_status *time_all(struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                                  struct rk_gemm_plan *plan, const struct rk_gemm_args *args,
                                  const int choices[], int count)
{
    cudaEvent_t events[2] = {NULL, NULL};
    struct rk_status *st = NULL;
    float library_us = 0.0f, best_us = 0.0f, us;
    char name[32];

    for (int i = 0; i < 2; i++)
        RK_TRY_GOTO(st, rk_cuda_status(cudaEventCreate(&events[i]), "cudaEventCreate"), out);
    RK_TRY_GOTO(st, time_choice(dev, stream, plan, args, 0, events, &library_us), out);
    best_us = library_us * WORTH_IT;
    for (int i = 0; i < count; i++) {
        RK_TRY_GOTO(st, time_choice(dev, stream, plan, args, choices[i] + 1, events, &us), out);
        if (us < best_us) {
            best_us = us;
            plan->small = choices[i] + 1;
        }
    }
    if (plan->small > 0)
        RK_DEBUG_LOG("matrix product m=%lld n=%lld k=%lld: own kernel (%s) %.1f us, the library's %.1f us",
                     (long long)plan->key.m, (long long)plan->key.n, (long long)plan->key.k,
                     rk_gemm_small_name(plan->small - 1, name, sizeof(name)), (double)best_us,
                     (double)library_us);

out:
    for (int i = 0; i < 2; i++) {
        if (events[i])
            (void)cudaEventDestroy(events[i]);
    }
    return st;
}

struct rk_status *rk_gemm_small_tune(struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                                     struct rk_gemm_plan *plan, const struct rk_gemm_args *args)
{
    struct rk_gemm_key key = rk_gemm_shared_key(&plan->key);
    struct rk_cuda_gemm_plans *plans = dev->plans;
    int choices[RK_GEMM_SMALL_MAX_CHOICES], count;

    if (!plan->has_algo || !args->strict)
        return NULL;
    count = rk_gemm_small_choices(dev, args, choices);
    if (count == 0)
        return NULL;
    for (int i = 0; i < plans->num_small; i++) {
        if (memcmp(&plans->small[i].key, &key, sizeof(key)) != 0)
            continue;
        plan->small = plans->small[i].choice;
        return NULL;
    }
    if (!rk_gemm_can_wait(stream) || dev->sync_launch) /* ... which cannot be recorded */
        return NULL;
    RK_TRY(time_all(dev, stream, plan, args, choices, RK_MIN(count, NUM_TIMED)));
    if (plans->num_small < RK_GEMM_MAX_TUNED)
        plans->small[plans->num_small++] = (struct rk_gemm_small_tuned){key, plan->small};
    return NULL;
}
