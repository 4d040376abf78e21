/* Finds the fastest of cuBLASLt's algorithms that are bit-identical to one chain.
 *
 * cuBLASLt's own ranking is not usable: its first choice is up to 10x slower on a decode step, which it ranks
 * as if M were large, and 3 to 25% slower on a training batch. So candidates come from its lists for several
 * M, and are timed once per power of two of the number of tokens, or per eighth of it for few tokens; the
 * algorithm is used for all numbers up to that one. */
#include <string.h>

#include "base/rk_log.h"
#include "kernels/cuda/gemm/gemm_internal.h"

#define MIN_ROWS 16
#define MIN_STEP 8

/* For few and for many rows: values of M for which candidates are requested in addition to the GEMM's own. */
static const int64_t offered_for[2][4] = {{16, 64, 256, 1024}, {512, 2048, 4096, 16384}};

#define MAX_CANDIDATES (RK_GEMM_MAX_CANDIDATES * 5)

/* All candidates are timed with one run; the fastest of them again, with three runs. */
#define NUM_FINALISTS 4
#define FINAL_RUNS    3

/* Number of rows of C that are compared bit by bit. */
#define MAX_SAME_ROWS 64

/* Distinct algorithms, and the time of a run of each. */
struct candidates {
    cublasLtMatmulAlgo_t algos[MAX_CANDIDATES];
    float ms[MAX_CANDIDATES];
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

/* Adds cuBLASLt's candidates for the GEMM with a different number of rows. */
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

static bool is_many_rows(const struct rk_gemm_plan *plan)
{
    return plan->key.m >= RK_GEMM_MANY_ROWS;
}

/* The call that is timed: leaves C unchanged if the GEMM adds to it. */
static struct rk_gemm_args trial_args(const struct rk_gemm_args *args)
{
    struct rk_gemm_args trial = *args;

    if (args->beta != 0.0f) {
        trial.alpha = 0.0f;
        trial.beta = 1.0f;
    }
    return trial;
}

/* Milliseconds of a run, after a warm-up run. */
static struct rk_status *time_plan(struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                                   const struct rk_gemm_plan *plan, const struct rk_gemm_args *args,
                                   cudaEvent_t events[2], int num_runs, float *ms)
{
    RK_TRY(rk_gemm_run_plan(dev, stream, plan, args));
    RK_CUDA(cudaEventRecord(events[0], stream->stream));
    for (int i = 0; i < num_runs; i++)
        RK_TRY(rk_gemm_run_plan(dev, stream, plan, args));
    RK_CUDA(cudaEventRecord(events[1], stream->stream));
    RK_CUDA(cudaEventSynchronize(events[1]));
    RK_CUDA(cudaEventElapsedTime(ms, events[0], events[1]));
    *ms /= (float)num_runs;
    return NULL;
}

/* Moves the fastest of the candidates from `first` on to position `first`. */
static void bring_fastest(struct candidates *candidates, int first)
{
    int best = first;
    cublasLtMatmulAlgo_t algo;
    float ms;

    for (int i = first + 1; i < candidates->count; i++)
        best = candidates->ms[i] < candidates->ms[best] ? i : best;
    algo = candidates->algos[first];
    ms = candidates->ms[first];
    candidates->algos[first] = candidates->algos[best];
    candidates->ms[first] = candidates->ms[best];
    candidates->algos[best] = algo;
    candidates->ms[best] = ms;
}

/* Times candidates 0..count-1. */
static struct rk_status *time_candidates(struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                                         const struct rk_gemm_plan *plan, const struct rk_gemm_args *args,
                                         struct candidates *candidates, int count, int num_runs)
{
    cudaEvent_t events[2] = {NULL, NULL};
    struct rk_gemm_plan trial = *plan;
    struct rk_status *st = NULL;

    for (int i = 0; i < 2; i++)
        RK_TRY_GOTO(st, rk_cuda_status(cudaEventCreate(&events[i]), "cudaEventCreate"), out);
    for (int i = 0; i < count; i++) {
        trial.algo = candidates->algos[i];
        RK_TRY_GOTO(st, time_plan(dev, stream, &trial, args, events, num_runs, &candidates->ms[i]), out);
    }

out:
    for (int i = 0; i < 2; i++) {
        if (events[i])
            (void)cudaEventDestroy(events[i]);
    }
    return st;
}

/* Sorts the candidates by time, as far as needed. */
static struct rk_status *rank_candidates(struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                                         const struct rk_gemm_plan *plan, const struct rk_gemm_args *args,
                                         struct candidates *candidates)
{
    struct rk_gemm_args trial = trial_args(args);
    int num_finalists = RK_MIN(candidates->count, NUM_FINALISTS);

    RK_TRY(time_candidates(dev, stream, plan, &trial, candidates, candidates->count, 1));
    for (int i = 0; i < num_finalists; i++)
        bring_fastest(candidates, i);
    RK_TRY(time_candidates(dev, stream, plan, &trial, candidates, num_finalists, FINAL_RUNS));
    for (int i = 0; i < num_finalists; i++)
        bring_fastest(candidates, i);
    return NULL;
}

/* Runs the GEMM and, for its first rows, gemm_chain.cu, and compares. The scratch memory is unused
 * meanwhile. */
static struct rk_status *has_same_bits(struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                                       const struct rk_gemm_plan *plan, const struct rk_gemm_args *args,
                                       bool *same)
{
    size_t row_bytes = (size_t)plan->key.n * rk_dtype_bytes(args->c.dtype);
    int64_t room = (int64_t)(RK_CUDA_COMPARE_BYTES / row_bytes);
    int64_t rows = RK_MIN(RK_MIN(plan->key.m, room), (int64_t)MAX_SAME_ROWS);
    struct rk_gemm_args chain = *args;

    *same = true;
    if (plan->key.bits != RK_GEMM_ONE_CHAIN || rows == 0 || args->beta != 0.0f)
        return NULL;
    chain.c = rk_tensor_2d(stream->scratch.data, args->c.dtype, rows, plan->key.n);
    chain.a.shape[args->trans_a ? 1 : 0] = rows;
    RK_TRY(rk_gemm_run_plan(dev, stream, plan, args));
    RK_TRY(rk_cuda_gemm_chain(dev, stream, &chain));
    return rk_cuda_same_bits(dev, stream, rk_tensor_rows(args->c, 0, rows), chain.c, same);
}

/* Gives the plan the fastest candidate that has the required bits. */
static struct rk_status *take_fastest(struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                                      struct rk_gemm_plan *plan, const struct rk_gemm_args *args,
                                      const struct candidates *candidates)
{
    for (int i = 0; i < candidates->count; i++) {
        bool same;

        plan->algo = candidates->algos[i];
        RK_TRY(has_same_bits(dev, stream, plan, args, &same));
        if (same)
            return NULL;
        RK_WARN("a cuBLASLt kernel with split-K = 1 is not bit-identical to one chain and is not used: "
                "m=%lld n=%lld k=%lld dtype=%s",
                (long long)plan->key.m, (long long)plan->key.n, (long long)plan->key.k,
                rk_dtype_name(args->a.dtype));
    }
    plan->has_algo = false;
    return NULL;
}

/* Rounds up to a power of two, or for few tokens to an eighth of it: for example, a tile that covers 17 rows
 * would split 26 rows in two and read the weight twice. */
static int64_t round_tokens(int64_t count)
{
    int64_t power = MIN_ROWS, step;

    while (power < count)
        power *= 2;
    step = count < RK_GEMM_MANY_ROWS ? RK_MAX(power / 8, (int64_t)MIN_STEP) : power;
    return (count + step - 1) / step * step;
}

struct rk_gemm_key rk_gemm_shared_key(const struct rk_gemm_key *key)
{
    struct rk_gemm_key shared = *key;

    if (key->trans_a)
        shared.k = round_tokens(key->k);
    else
        shared.m = round_tokens(key->m);
    return shared;
}

bool rk_gemm_take_tuned(const struct rk_cuda_device *dev, struct rk_gemm_plan *plan)
{
    const struct rk_cuda_gemm_plans *plans = dev->plans;
    struct rk_gemm_key key = rk_gemm_shared_key(&plan->key);
    struct candidates one = {.count = 0};

    for (int i = 0; i < plans->num_tuned; i++) {
        if (memcmp(&plans->tuned[i].key, &key, sizeof(key)) != 0)
            continue;
        add_candidate(&one, dev, plan, &plans->tuned[i].algo);
        if (one.count > 0)
            plan->algo = one.algos[0];
        return one.count > 0;
    }
    return false;
}

bool rk_gemm_can_wait(const struct rk_cuda_stream *stream)
{
    enum cudaStreamCaptureStatus status;

    return cudaStreamIsCapturing(stream->stream, &status) == cudaSuccess &&
           status == cudaStreamCaptureStatusNone;
}

struct rk_status *rk_gemm_tune(struct rk_cuda_device *dev, const struct rk_cuda_stream *stream,
                               struct rk_gemm_plan *plan, const struct rk_gemm_args *args)
{
    const int64_t *others = offered_for[is_many_rows(plan)];
    struct rk_cuda_gemm_plans *plans = dev->plans;
    struct candidates candidates = {.count = 0};

    if (!rk_gemm_can_wait(stream))
        return NULL;
    RK_TRY(add_offers(&candidates, dev, plan, args, plan->key.m));
    for (size_t i = 0; i < RK_ARRAY_LEN(offered_for[0]); i++)
        RK_TRY(add_offers(&candidates, dev, plan, args, others[i]));
    RK_TRY(rank_candidates(dev, stream, plan, args, &candidates));
    RK_TRY(take_fastest(dev, stream, plan, args, &candidates));
    if (plan->has_algo && plans->num_tuned < RK_GEMM_MAX_TUNED)
        plans->tuned[plans->num_tuned++] = (struct rk_gemm_tuned){rk_gemm_shared_key(&plan->key), plan->algo};
    return NULL;
}
