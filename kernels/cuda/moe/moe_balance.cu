/* Twin of kernels/cpu/moe_balance.c.
 *
 * Work split   Count: one thread per choice. Balance: one warp per token at a time; at most
 *              RK_TILE_BALANCE_PARTS blocks stride over the tokens and count choices in shared memory, and a
 *              second kernel of one thread per sum adds the blocks' parts.
 *
 * Traffic      Balance: reads the logits and, with gradients, reads and writes dlogits: 12 bytes per logit.
 *
 * Numerics     f32, sums over tokens in f64, in an order that depends on the number of tokens alone. Counts
 *              are sums of ones, which are exact in any order. */
#include "kernels/cuda/cuda_common.cuh"

namespace
{

constexpr int WARPS = RK_TILE_BALANCE_WARPS;
constexpr int COUNT_THREADS = 256;
constexpr int NUM_TERMS = RK_NUM_ROUTER_SUMS;
constexpr float SIGMOID_EPSILON = 1e-20f; /* as in moe_route */
constexpr unsigned ALL = 0xffffffff;

struct count_args {
    float *counts;
    const int32_t *ids, *segments;
    int64_t num_choices, ids_stride, num_segments;
    int top_k, experts;
};

__global__ void __launch_bounds__(COUNT_THREADS) moe_count_kernel(count_args args)
{
    int64_t i = (int64_t)blockIdx.x * COUNT_THREADS + threadIdx.x;
    int segment, id;

    if (i >= args.num_choices)
        return;
    segment = args.segments[i / args.top_k];
    id = args.ids[i / args.top_k * args.ids_stride + i % args.top_k];
    if (segment >= 0 && segment < args.num_segments && id >= 0 && id < args.experts)
        atomicAdd(&args.counts[(int64_t)segment * args.experts + id], 1.0f);
}

struct balance_args {
    double *sums, *parts;
    float *dlogits;
    const float *logits, *counts, *weights;
    const int32_t *ids, *segments;
    int64_t num_tokens, dlogits_stride, logits_stride, ids_stride, counts_stride, num_segments;
    int experts, top_k;
    float z_weight;
    bool is_sigmoid;
};

__device__ __forceinline__ float warp_max(float value)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        value = fmaxf(value, __shfl_xor_sync(ALL, value, step));
    return value;
}

/* Scores of a token, in shared memory of its warp: softmax of the logits, and scores divided by their sum. */
struct row_scores {
    float *softmax, *p;
    float log_sum, score_sum;
};

__device__ void score(row_scores &row, const balance_args &args, int64_t t)
{
    const float *logits = args.logits + t * args.logits_stride;
    float max = -INFINITY, sum = 0.0f, score_sum = 0.0f;
    int lane = threadIdx.x % 32;

    for (int e = lane; e < args.experts; e += 32)
        max = fmaxf(max, logits[e]);
    max = warp_max(max);
    for (int e = lane; e < args.experts; e += 32) {
        row.softmax[e] = expf(logits[e] - max);
        row.p[e] = args.is_sigmoid ? 1.0f / (1.0f + expf(-logits[e])) : row.softmax[e];
        sum += row.softmax[e];
        score_sum += row.p[e];
    }
    sum = rk_warp_sum(sum);
    row.score_sum = rk_warp_sum(score_sum) + (args.is_sigmoid ? SIGMOID_EPSILON : 0.0f);
    row.log_sum = max + logf(sum);
    for (int e = lane; e < args.experts; e += 32) {
        row.softmax[e] /= sum;
        row.p[e] /= row.score_sum;
    }
}

/* The derivative of balance by p_e. */
__device__ __forceinline__ float slope_of(const balance_args &args, int segment, int e)
{
    if (!args.counts || segment >= args.num_segments)
        return 0.0f;
    return args.weights[segment] * args.counts[segment * args.counts_stride + e];
}

__device__ void add_gradient(const balance_args &args, const row_scores &row, int64_t t, float balance)
{
    float *dlogits = args.dlogits + t * args.dlogits_stride, of_z = args.z_weight * 2.0f * row.log_sum;
    int segment = args.segments[t];

    for (int e = threadIdx.x % 32; e < args.experts; e += 32) {
        float gradient = row.p[e] * (slope_of(args, segment, e) - balance);

        if (args.is_sigmoid)
            gradient *= 1.0f - row.p[e] * row.score_sum;
        dlogits[e] += gradient + of_z * row.softmax[e];
    }
}

/* Adds a token's terms to those of its warp, and its choices to the block's counts. */
__device__ void run_token(const balance_args &args, row_scores &row, int64_t t, double *terms, int *counts)
{
    int lane = threadIdx.x % 32, segment = args.segments[t];
    float entropy = 0.0f, balance = 0.0f;

    if (segment < 0)
        return;
    score(row, args, t);
    for (int e = lane; e < args.experts; e += 32) {
        float p = row.p[e];

        entropy -= p > 0.0f ? p * logf(p) : 0.0f;
        balance += p * slope_of(args, segment, e);
    }
    entropy = rk_warp_sum(entropy);
    balance = rk_warp_sum(balance);
    if (args.dlogits)
        add_gradient(args, row, t, balance);
    if (lane < args.top_k) {
        int id = args.ids[t * args.ids_stride + lane];

        if (id >= 0 && id < args.experts)
            atomicAdd(&counts[id], 1);
    }
    terms[RK_ROUTER_TOKENS] += 1.0;
    terms[RK_ROUTER_ENTROPY] += (double)entropy;
    terms[RK_ROUTER_BALANCE] += (double)balance;
    terms[RK_ROUTER_Z] += (double)row.log_sum * (double)row.log_sum;
}

/* Shared memory: softmax and p of every warp, then the block's counts. */
__global__ void __launch_bounds__(WARPS * 32) moe_balance_kernel(balance_args args)
{
    extern __shared__ float scratch[];
    __shared__ double shared[WARPS][NUM_TERMS];
    int *counts = (int *)(scratch + 2 * WARPS * args.experts);
    int warp = threadIdx.x / 32;
    row_scores row = {scratch + 2 * warp * args.experts, scratch + (2 * warp + 1) * args.experts, 0.0f, 0.0f};
    double terms[NUM_TERMS] = {};

    for (int e = threadIdx.x; e < args.experts; e += WARPS * 32)
        counts[e] = 0;
    __syncthreads(); /* the counts are zero */
    for (int64_t t = (int64_t)blockIdx.x * WARPS + warp; t < args.num_tokens; t += (int64_t)gridDim.x * WARPS)
        run_token(args, row, t, terms, counts);
    for (int i = 0; i < NUM_TERMS; i++) {
        if (threadIdx.x % 32 == 0)
            shared[warp][i] = terms[i];
    }
    __syncthreads(); /* the counts and the warps' terms are complete */
    for (int e = threadIdx.x; e < args.experts; e += WARPS * 32) {
        if (counts[e] > 0)
            atomicAdd(&args.sums[e], (double)counts[e]);
    }
    if (threadIdx.x < NUM_TERMS) {
        double sum = 0.0;

        for (int w = 0; w < WARPS; w++)
            sum += shared[w][threadIdx.x];
        args.parts[(int64_t)blockIdx.x * NUM_TERMS + threadIdx.x] = sum;
    }
}

__global__ void __launch_bounds__(32) moe_balance_finish_kernel(double *sums, const double *parts, int count)
{
    double sum = 0.0;

    if (threadIdx.x >= NUM_TERMS)
        return;
    for (int i = 0; i < count; i++)
        sum += parts[i * NUM_TERMS + threadIdx.x];
    sums[threadIdx.x] += sum;
}

balance_args args_of(const struct rk_moe_balance_args *args)
{
    balance_args balance = {};

    balance.sums = (double *)args->sums.data;
    balance.dlogits = (float *)args->dlogits.data;
    balance.logits = (const float *)args->logits.data;
    balance.counts = (const float *)args->counts.data;
    balance.weights = (const float *)args->weights.data;
    balance.ids = (const int32_t *)args->ids.data;
    balance.segments = (const int32_t *)args->segments.data;
    balance.num_tokens = args->logits.shape[0];
    balance.dlogits_stride = args->dlogits.row_stride;
    balance.logits_stride = args->logits.row_stride;
    balance.ids_stride = args->ids.row_stride;
    balance.counts_stride = args->counts.row_stride;
    balance.num_segments = args->counts.data ? args->counts.shape[0] : 0;
    balance.experts = (int)args->logits.shape[1];
    balance.top_k = (int)args->ids.shape[1];
    balance.z_weight = (float)args->z_weight;
    balance.is_sigmoid = args->is_sigmoid;
    return balance;
}

} // namespace

extern "C" struct rk_status *rk_cuda_op_moe_count(void *dev, void *stream,
                                                  const struct rk_moe_count_args *args)
{
    count_args count = {(float *)args->counts.data,
                        (const int32_t *)args->ids.data,
                        (const int32_t *)args->segments.data,
                        args->ids.shape[0] * args->ids.shape[1],
                        args->ids.row_stride,
                        args->counts.shape[0],
                        (int)args->ids.shape[1],
                        (int)args->counts.shape[1]};
    int64_t blocks = rk_ceil_div(count.num_choices, COUNT_THREADS);

    if (args->counts.dtype != RK_DTYPE_F32)
        return rk_no_dtype("moe_count", args->counts.dtype);
    RK_TRY(rk_check_grid("moe_count", blocks));
    moe_count_kernel<<<(unsigned)blocks, COUNT_THREADS, 0, rk_stream_of(stream)>>>(count);
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "moe_count");
}

extern "C" struct rk_workspace rk_cuda_workspace_moe_balance(const void *dev,
                                                             const struct rk_moe_balance_args *args)
{
    (void)dev;
    (void)args;
    return {RK_TILE_BALANCE_PARTS * NUM_TERMS * sizeof(double), 0};
}

extern "C" struct rk_status *rk_cuda_op_moe_balance(void *dev, void *stream,
                                                    const struct rk_moe_balance_args *args)
{
    struct rk_cuda_stream *on = (struct rk_cuda_stream *)stream;
    balance_args balance = args_of(args);
    int num_parts = (int)RK_MIN(rk_ceil_div(balance.num_tokens, WARPS), (int64_t)RK_TILE_BALANCE_PARTS);
    size_t shared_bytes = (2 * WARPS + 1) * (size_t)balance.experts * sizeof(float); /* at most 36 KiB */

    if (args->logits.dtype != RK_DTYPE_F32)
        return rk_no_dtype("moe_balance", args->logits.dtype);
    RK_TRY(rk_cuda_reserve(on, &on->scratch, (size_t)num_parts * NUM_TERMS * sizeof(double)));
    balance.parts = (double *)on->scratch.data;
    moe_balance_kernel<<<(unsigned)num_parts, WARPS * 32, shared_bytes, on->stream>>>(balance);
    moe_balance_finish_kernel<<<1, 32, 0, on->stream>>>(balance.sums + balance.experts, balance.parts,
                                                        num_parts);
    return rk_cuda_launched((struct rk_cuda_device *)dev, on, "moe_balance");
}
