/* Strict products of decode steps: which of the algorithms with split-K = 1 is the fastest.
 *
 * The library ranks them as if M were large. So candidates are taken from what it offers for several M, and
 * timed once for each power of two of M; the other M up to it take the same one. */
#include <string.h>

#include "kernels/cuda/gemm_internal.h"

/* From here on the library's first choice is the fastest (measured). */
#define MAX_ROWS 512
#define MIN_ROWS 16

#define NUM_RUNS 3

static const int64_t offered_for[] = {16, 64, 256, 1024};

/* Algorithms without repetition. */
struct candidates {
    cublasLtMatmulAlgo_t algos[RK_GEMM_MAX_CANDIDATES * (RK_ARRAY_LEN(offered_for) + 1)];
    int count;
};

static void add_candidate(struct candidates *out, const struct rk_cuda_device *dev,
                          const struct rk_gemm_plan *plan, const cublasLtMatmulAlgo_t *algo)
{
    cublasLtMatmulHeuristicResult_t result;

    for (int i = 0; i < out->count; i++) {
        if (memcmp(&out->algos[i], algo, sizeof(*algo)) == 0)
            return;
    }
    if (cublasLtMatmulAlgoCheck(dev->blas, plan->desc, plan->first, plan->second, plan->out, plan->out, algo,
                                &result) == CUBLAS_STATUS_SUCCESS &&
        result.workspaceSize <= RK_CUDA_WORKSPACE_BYTES)
        out->algos[out->count++] = *algo;
}

/* What the library offers for the product with another number of rows. */
static struct rk_status *add_offers(struct candidates *out, const struct rk_cuda_device *dev,
                                    const struct rk_gemm_plan *plan, const struct rk_gemm_args *args,
                                    int64_t m)
{
    cublasLtMatmulAlgo_t found[RK_GEMM_MAX_CANDIDATES];
    struct rk_gemm_plan other = *plan;
    rk_tensor_t a = args->a, c = args->c;
    struct rk_status *st;
    int count;

    a.shape[args->trans_a ? 1 : 0] = c.shape[0] = m;
    other.second = other.out = NULL;
    RK_TRY_GOTO(st, rk_gemm_make_layout(&other.second, a, RK_MAX(plan->key.lda, a.shape[1])), out);
    RK_TRY_GOTO(st, rk_gemm_make_layout(&other.out, c, plan->key.ldc), out);
    RK_TRY_GOTO(st, rk_gemm_candidates(dev, &other, found, &count), out);
    for (int i = 0; i < count; i++)
        add_candidate(out, dev, plan, &found[i]);

out:
    if (other.second)
        (void)cublasLtMatrixLayoutDestroy(other.second);
    if (other.out)
        (void)cublasLtMatrixLayoutDestroy(other.out);
    return st;
}

/* Milliseconds of NUM_RUNS runs, after one to warm up. */
static struct rk_status *time_plan(struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                                   const struct rk_gemm_plan *plan, const struct rk_gemm_args *args,
                                   cudaEvent_t events[2], float *ms)
{
    RK_TRY(rk_gemm_run_plan(dev, stream, plan, args));
    RK_CUDA(cudaEventRecord(events[0], stream->stream));
    for (int i = 0; i < NUM_RUNS; i++)
        RK_TRY(rk_gemm_run_plan(dev, stream, plan, args));
    RK_CUDA(cudaEventRecord(events[1], stream->stream));
    RK_CUDA(cudaEventSynchronize(events[1]));
    RK_CUDA(cudaEventElapsedTime(ms, events[0], events[1]));
    return NULL;
}

static struct rk_status *time_candidates(struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                                         struct rk_gemm_plan *plan, const struct rk_gemm_args *args,
                                         const struct candidates *candidates)
{
    cudaEvent_t events[2] = {NULL, NULL};
    struct rk_gemm_plan trial = *plan;
    struct rk_status *st = NULL;
    float best_ms = 0.0f, ms;

    for (int i = 0; i < 2; i++)
        RK_TRY_GOTO(st, rk_cuda_status(cudaEventCreate(&events[i]), "cudaEventCreate"), out);
    for (int i = 0; i < candidates->count; i++) {
        trial.algo = candidates->algos[i];
        RK_TRY_GOTO(st, time_plan(dev, stream, &trial, args, events, &ms), out);
        if (i == 0 || ms < best_ms) {
            best_ms = ms;
            plan->algo = trial.algo;
        }
    }

out:
    for (int i = 0; i < 2; i++) {
        if (events[i])
            (void)cudaEventDestroy(events[i]);
    }
    return st;
}

/* The key that products of like size share. */
static struct rk_gemm_key shared_key(const struct rk_gemm_key *key)
{
    struct rk_gemm_key shared = *key;

    shared.m = MIN_ROWS;
    while (shared.m < key->m)
        shared.m *= 2;
    return shared;
}

static bool take_tuned(const struct rk_cuda_device *dev, struct rk_gemm_plan *plan,
                       const struct rk_gemm_key *key)
{
    const struct rk_cuda_gemm_plans *plans = dev->plans;
    struct candidates one = {.count = 0};

    for (int i = 0; i < plans->num_tuned; i++) {
        if (memcmp(&plans->tuned[i].key, key, sizeof(*key)) != 0)
            continue;
        add_candidate(&one, dev, plan, &plans->tuned[i].algo);
        if (one.count > 0)
            plan->algo = one.algos[0];
        return one.count > 0;
    }
    return false;
}

/* What the operands allow: C may be written, and nobody records the stream. */
static bool can_run(const struct rk_cuda_stream *stream, const struct rk_gemm_plan *plan)
{
    enum cudaStreamCaptureStatus status;

    return plan->key.m <= MAX_ROWS && !plan->key.has_beta &&
           cudaStreamIsCapturing(stream->stream, &status) == cudaSuccess &&
           status == cudaStreamCaptureStatusNone;
}

struct rk_status *rk_gemm_tune(struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                               struct rk_gemm_plan *plan, const struct rk_gemm_args *args)
{
    struct rk_gemm_key key = shared_key(&plan->key);
    struct rk_cuda_gemm_plans *plans = dev->plans;
    struct candidates candidates = {.count = 0};

    if (!can_run(stream, plan) || take_tuned(dev, plan, &key))
        return NULL;
    RK_TRY(add_offers(&candidates, dev, plan, args, plan->key.m));
    for (size_t i = 0; i < RK_ARRAY_LEN(offered_for); i++)
        RK_TRY(add_offers(&candidates, dev, plan, args, offered_for[i]));
    RK_TRY(time_candidates(dev, stream, plan, args, &candidates));
    if (plans->num_tuned < RK_GEMM_MAX_TUNED)
        plans->tuned[plans->num_tuned++] = (struct rk_gemm_tuned){key, plan->algo};
    return NULL;
}
