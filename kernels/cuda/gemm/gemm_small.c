/* GEMMs with few rows: chooses between cuBLASLt's kernel and the variants of gemm_small_sm90.cu, by timing on
 * the operands, once for all GEMMs of similar size. All are bit-identical, so timings do not affect results.
 *
 * Times a graph of several calls, as in a decode step: separate launches of the smallest GEMMs would measure
 * the host. Before each call the scratch memory is overwritten, which evicts most of B from L2; reading B
 * from L2 would favor gemm_small_sm90.cu. Then follows a norm, during which gemm_small_sm90.cu begins to load
 * B, and after the call another norm, which may overlap gemm_small_sm90.cu but not cuBLASLt. The time of the
 * graph without the call is subtracted. */
#include "kernels/cuda/gemm/gemm_small.h"

#include <string.h>

#include "base/rk_log.h"
#include "kernels/cuda/gemm/gemm_internal.h"

#define NUM_TIMED 16 /* number of choices timed: the ones expected to be the fastest */
#define NUM_CALLS 8  /* in a graph */
#define NUM_RUNS  3  /* of the graph; the fastest run counts */

/* gemm_small_sm90.cu is used when its time is below this factor of cuBLASLt's time: in a step it overlaps
 * more kernels than in this measurement. */
#define WORTH_IT 1.05F

/* Special values instead of a choice plus 1. */
enum { NOTHING = -1, LIBRARY = 0 };

static struct rk_status *run(struct rk_cuda_device *dev, struct rk_cuda_stream *stream,
                             const struct rk_gemm_plan *plan, const struct rk_gemm_args *args, int choice)
{
    if (choice == NOTHING)
        return NULL;
    if (choice != LIBRARY)
        return rk_gemm_small_run(dev, stream, choice - 1, plan->key.num_parts, args);
    RK_TRY(rk_gemm_run_plan(dev, stream, plan, args));
    return rk_gemm_activate(dev, stream, args);
}

/* A dummy RMSNorm: in a model a norm runs before and after most GEMMs, so timing includes it. */
static struct rk_status *run_norm(struct rk_cuda_device *dev, struct rk_cuda_stream *stream)
{
    enum { ROWS = 64, COLS = 1536 };
    char *scratch = stream->scratch.data;
    struct rk_rmsnorm_fwd_args norm = {
        .y = rk_tensor_2d(scratch, RK_DTYPE_BF16, ROWS, COLS),
        .x = rk_tensor_2d(scratch + (size_t)2 * ROWS * COLS, RK_DTYPE_BF16, ROWS, COLS),
        .weight = rk_tensor_1d(scratch + (size_t)4 * ROWS * COLS, RK_DTYPE_BF16, COLS),
        .eps = 1.0F};

    return rk_cuda_op_rmsnorm_fwd(dev, stream, &norm);
}

/* A call between the other kernels of the measurement, see above. */
static struct rk_status *run_among(struct rk_cuda_device *dev, struct rk_cuda_stream *stream,
                                   const struct rk_gemm_plan *plan, const struct rk_gemm_args *args,
                                   int choice)
{
    RK_CUDA(cudaMemsetAsync(stream->scratch.data, 0, RK_CUDA_WORKSPACE_BYTES, stream->stream));
    RK_TRY(run_norm(dev, stream));
    RK_TRY(run(dev, stream, plan, args, choice));
    return run_norm(dev, stream);
}

static struct rk_status *record_calls(struct rk_cuda_device *dev, struct rk_cuda_stream *stream,
                                      const struct rk_gemm_plan *plan, const struct rk_gemm_args *args,
                                      int choice, cudaGraphExec_t *out)
{
    cudaGraph_t graph = NULL;
    struct rk_status *st = NULL;
    cudaError_t error;

    RK_TRY(run(dev, stream, plan, args, choice)); /* loads the kernel */
    RK_CUDA(cudaStreamBeginCapture(stream->stream, cudaStreamCaptureModeThreadLocal));
    for (int i = 0; i < NUM_CALLS && !st; i++)
        st = run_among(dev, stream, plan, args, choice);
    error = cudaStreamEndCapture(stream->stream, &graph);
    if (!st)
        st = rk_cuda_status(error, "cudaStreamEndCapture");
    if (!st)
        st = rk_cuda_status(cudaGraphInstantiate(out, graph, 0), "cudaGraphInstantiate");
    if (graph)
        (void)cudaGraphDestroy(graph);
    return st;
}

/* Microseconds of a call together with the other kernels. */
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

static struct rk_status *time_choice(struct rk_cuda_device *dev, struct rk_cuda_stream *stream,
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

/* Sets the plan's choice, or none if cuBLASLt is as fast. */
static struct rk_status *time_all(struct rk_cuda_device *dev, struct rk_cuda_stream *stream,
                                  struct rk_gemm_plan *plan, const struct rk_gemm_args *args,
                                  const int choices[], int count)
{
    cudaEvent_t events[2] = {NULL, NULL};
    struct rk_status *st = NULL;
    float other_us = 0.0F, library_us = 0.0F, best_us = 1e9F, us;
    char name[48];

    for (int i = 0; i < 2; i++)
        RK_TRY_GOTO(st, rk_cuda_status(cudaEventCreate(&events[i]), "cudaEventCreate"), out);
    RK_TRY_GOTO(st, time_choice(dev, stream, plan, args, NOTHING, events, &other_us), out);
    if (plan->key.num_parts == 1) {
        RK_TRY_GOTO(st, time_choice(dev, stream, plan, args, LIBRARY, events, &library_us), out);
        best_us = other_us + (library_us - other_us) * WORTH_IT;
    }
    for (int i = 0; i < count; i++) {
        RK_TRY_GOTO(st, time_choice(dev, stream, plan, args, choices[i] + 1, events, &us), out);
        if (us < best_us) {
            best_us = us;
            plan->small = choices[i] + 1;
        }
    }
    if (plan->small > 0)
        RK_DEBUG_LOG("GEMM m=%lld n=%lld k=%lld: built-in kernel (%s) %.1f us, cuBLASLt %.1f us",
                     (long long)plan->key.m, (long long)plan->key.n, (long long)plan->key.k,
                     rk_gemm_small_name(plan->small - 1, name, sizeof(name)), (double)(best_us - other_us),
                     (double)(library_us - other_us));

out:
    for (int i = 0; i < 2; i++) {
        if (events[i])
            (void)cudaEventDestroy(events[i]);
    }
    return st;
}

/* Uses the choice found earlier for a GEMM of similar size. */
static bool take_found(const struct rk_cuda_gemm_plans *plans, const struct rk_gemm_key *key, int *small)
{
    for (int i = 0; i < plans->num_small; i++) {
        if (memcmp(&plans->small[i].key, key, sizeof(*key)) != 0)
            continue;
        *small = plans->small[i].choice;
        return true;
    }
    return false;
}

struct rk_status *rk_gemm_small_tune(struct rk_cuda_device *dev, struct rk_cuda_stream *stream,
                                     struct rk_gemm_plan *plan, const struct rk_gemm_args *args)
{
    struct rk_gemm_key key = rk_gemm_shared_key(&plan->key);
    struct rk_cuda_gemm_plans *plans = dev->plans;
    int choices[RK_GEMM_SMALL_MAX_CHOICES];
    int count = rk_gemm_small_choices(dev, args, plan->key.num_parts, choices);

    if (count == 0 || plan->key.bits == RK_GEMM_ANY || take_found(plans, &key, &plan->small))
        return NULL;
    if (plan->key.num_parts > 1)
        plan->small = choices[0] + 1;
    if (!rk_gemm_can_wait(stream) || dev->sync_launch) /* ... which cannot be recorded into a graph */
        return NULL;
    RK_TRY(time_all(dev, stream, plan, args, choices, RK_MIN(count, NUM_TIMED)));
    if (plans->num_small < RK_GEMM_MAX_TUNED)
        plans->small[plans->num_small++] = (struct rk_gemm_small_tuned){key, plan->small};
    return NULL;
}
