/* Twin of kernels/cpu/moe_route.c.
 *
 * Work split   One warp per token, whose scores are in shared memory; a lane has every 32nd expert. The
 *              chosen experts are found one after the other.
 *
 * Traffic      The logits once; K passes over shared memory.
 *
 * Numerics     f32. The sum of the exponentials is a sum over the lanes of sums over their experts. */
#include "kernels/cuda/cuda_common.cuh"

namespace
{

constexpr int WARPS = 4;
constexpr float SIGMOID_EPSILON = 1e-20f;
constexpr unsigned ALL = 0xffffffff;

struct route_args {
    int32_t *ids;
    float *probs;
    const float *logits;
    const void *bias; /* [bias_parts, experts], or NULL */
    rk_dtype_t bias_dtype;
    const int32_t *given;
    int16_t *chosen;
    int64_t num_tokens, logits_stride, ids_stride, probs_stride, given_stride, chosen_stride;
    int experts, top_k, num_groups, topk_groups, bias_parts;
    bool is_sigmoid, normalizes;
    float scale;
};

struct route_bwd_args {
    route_args fwd;
    float *dlogits;
    const float *dprobs;
    int64_t dlogits_stride, dprobs_stride;
};

__device__ __forceinline__ float warp_sum(float value)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        value += __shfl_xor_sync(ALL, value, step);
    return value;
}

__device__ __forceinline__ float warp_max(float value)
{
#pragma unroll
    for (int step = 16; step > 0; step /= 2)
        value = fmaxf(value, __shfl_xor_sync(ALL, value, step));
    return value;
}

/* Computes scores[e] of a token, by its warp. */
__device__ void score(float *scores, const route_args &args, int64_t t)
{
    const float *logits = args.logits + t * args.logits_stride;
    int lane = threadIdx.x % 32;
    float max = -INFINITY, sum = 0.0f;

    if (args.is_sigmoid) {
        for (int e = lane; e < args.experts; e += 32)
            scores[e] = 1.0f / (1.0f + expf(-logits[e]));
        __syncwarp();
        return;
    }
    for (int e = lane; e < args.experts; e += 32)
        max = fmaxf(max, logits[e]);
    max = warp_max(max);
    for (int e = lane; e < args.experts; e += 32) {
        scores[e] = expf(logits[e] - max);
        sum += scores[e];
    }
    sum = warp_sum(sum);
    for (int e = lane; e < args.experts; e += 32)
        scores[e] /= sum;
    __syncwarp();
}

/* As on the CPU: the first of the largest values, NaN last; replaces it by -INFINITY. All lanes return its
 * index. */
__device__ int take_largest(float *values, int count)
{
    int lane = threadIdx.x % 32, best = -1;
    float value = -INFINITY;

    for (int i = lane; i < count; i += 32) {
        if (values[i] > value) {
            value = values[i];
            best = i;
        }
    }
    for (int i = lane; best < 0 && i < count; i += 32)
        best = isnan(values[i]) ? i : -1;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) {
        float other_value = __shfl_xor_sync(ALL, value, step);
        int other = __shfl_xor_sync(ALL, best, step);
        bool is_better = best < 0 || other_value > value || (other_value == value && other < best);

        if (other >= 0 && is_better) {
            value = other_value;
            best = other;
        }
    }
    __syncwarp();
    if (lane == 0 && best >= 0)
        values[best] = -INFINITY;
    __syncwarp();
    return best;
}

__device__ float group_score(const float *choice, int count)
{
    float first = -INFINITY, second = -INFINITY;

    for (int i = 0; i < count; i++) {
        if (choice[i] > first) {
            second = first;
            first = choice[i];
        } else if (choice[i] > second) {
            second = choice[i];
        }
    }
    return count > 1 ? first + second : first;
}

__device__ void keep_groups(float *choice, float *groups, const route_args &args)
{
    int lane = threadIdx.x % 32, size = args.experts / args.num_groups;

    for (int g = lane; g < args.num_groups; g += 32)
        groups[g] = group_score(choice + g * size, size);
    __syncwarp();
    for (int i = 0; i < args.topk_groups; i++)
        take_largest(groups, args.num_groups);
    for (int e = lane; e < args.experts; e += 32) {
        if (groups[e / size] > -INFINITY)
            choice[e] = -INFINITY;
    }
    __syncwarp();
}

template <class T> __device__ __forceinline__ float sum_parts(const route_args &args, int expert)
{
    float sum = 0.0f;

    for (int part = 0; part < args.bias_parts; part++)
        sum += rk_widen<float>(((const T *)args.bias)[part * args.experts + expert]);
    return sum;
}

__device__ __forceinline__ float bias_of(const route_args &args, int expert)
{
    switch (args.bias_dtype) {
    case RK_DTYPE_BF16:
        return sum_parts<rk_bf16>(args, expert);
    case RK_DTYPE_F16:
        return sum_parts<__half>(args, expert);
    default:
        return sum_parts<float>(args, expert);
    }
}

/* Called by the token's warp: lane k returns the k-th choice. */
__device__ int choose(const float *scores, float *choice, const route_args &args)
{
    int lane = threadIdx.x % 32, own = -1;

    for (int e = lane; e < args.experts; e += 32)
        choice[e] = scores[e] + (args.bias ? bias_of(args, e) : 0.0f);
    __syncwarp();
    if (args.num_groups > 1)
        keep_groups(choice, choice + args.experts, args);
    for (int k = 0; k < args.top_k; k++) {
        int id = take_largest(choice, args.experts);

        own = lane == k ? id : own;
    }
    return own;
}

/* The score of each lane's choice (0 without one), and the divisor of the scores: a sum in ascending k. */
__device__ float chosen_score(const float *scores, const route_args &args, int id, float *sum)
{
    float own = id >= 0 ? scores[id] : 0.0f;

    *sum = 1.0f;
    if (!args.normalizes)
        return own;
    *sum = args.is_sigmoid ? SIGMOID_EPSILON : 0.0f;
    for (int k = 0; k < args.top_k; k++)
        *sum += __shfl_sync(ALL, own, k);
    return own;
}

/* Shared memory of a warp: scores, choices, groups. */
__device__ __forceinline__ float *own_scratch(float *scratch, const route_args &args)
{
    return scratch + threadIdx.x / 32 * (2 * args.experts + args.num_groups);
}

__global__ void __launch_bounds__(WARPS * 32) moe_route_kernel(route_args args)
{
    extern __shared__ float scratch[];
    float *scores = own_scratch(scratch, args), sum, own;
    int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = threadIdx.x % 32, id = -1;

    rk_wait_for_stream();
    if (t >= args.num_tokens)
        return;
    score(scores, args, t);
    if (!args.given || args.chosen)
        id = choose(scores, scores + args.experts, args);
    if (args.chosen && lane < args.top_k)
        args.chosen[t * args.chosen_stride + lane] = (int16_t)id;
    if (args.given)
        id = lane < args.top_k ? args.given[t * args.given_stride + lane] : -1;
    id = id < args.experts ? id : -1; /* an invalid id counts as no choice */
    own = chosen_score(scores, args, id, &sum);
    if (lane >= args.top_k)
        return;
    args.ids[t * args.ids_stride + lane] = id;
    args.probs[t * args.probs_stride + lane] = id >= 0 ? args.scale * own / sum : 0.0f;
}

__global__ void __launch_bounds__(WARPS * 32) moe_route_bwd_kernel(route_bwd_args args)
{
    extern __shared__ float scratch[];
    const route_args &fwd = args.fwd;
    float *scores = own_scratch(scratch, fwd), *ds = scores + fwd.experts, sum, own, gradient = 0.0f,
          weighted;
    int64_t t = (int64_t)blockIdx.x * WARPS + threadIdx.x / 32;
    int lane = threadIdx.x % 32, id = -1;

    rk_wait_for_stream();
    if (t >= fwd.num_tokens)
        return;
    score(scores, fwd, t);
    if (lane < fwd.top_k)
        id = fwd.ids[t * fwd.ids_stride + lane];
    id = id < fwd.experts ? id : -1;
    own = chosen_score(scores, fwd, id, &sum);
    if (id >= 0)
        gradient = fwd.scale * args.dprobs[t * args.dprobs_stride + lane] / sum;
    if (fwd.normalizes) {
        float mean = warp_sum(gradient * own / sum);

        gradient -= id >= 0 ? mean : 0.0f;
    }
    weighted = warp_sum(gradient * own);
    for (int e = lane; e < fwd.experts; e += 32)
        ds[e] = 0.0f;
    __syncwarp();
    if (id >= 0)
        ds[id] = gradient;
    __syncwarp();
    for (int e = lane; e < fwd.experts; e += 32)
        args.dlogits[t * args.dlogits_stride + e] =
            scores[e] * (fwd.is_sigmoid ? ds[e] * (1.0f - scores[e]) : ds[e] - weighted);
}

route_args args_of(const struct rk_moe_route_args *args)
{
    route_args route = {};

    route.ids = (int32_t *)args->ids.data;
    route.probs = (float *)args->probs.data;
    route.logits = (const float *)args->logits.data;
    route.bias = args->bias.data;
    route.bias_dtype = args->bias.dtype;
    route.bias_parts = (int)args->bias.shape[0];
    route.given = (const int32_t *)args->given.data;
    route.chosen = (int16_t *)args->chosen.data;
    route.num_tokens = args->logits.shape[0];
    route.logits_stride = args->logits.row_stride;
    route.ids_stride = args->ids.row_stride;
    route.probs_stride = args->probs.row_stride;
    route.given_stride = args->given.row_stride;
    route.chosen_stride = args->chosen.row_stride;
    route.experts = (int)args->logits.shape[1];
    route.top_k = (int)args->ids.shape[1];
    route.num_groups = args->num_groups;
    route.topk_groups = args->topk_groups;
    route.is_sigmoid = args->is_sigmoid;
    route.normalizes = args->normalizes;
    route.scale = args->scale;
    return route;
}

/* At most 36 KiB. */
size_t shared_bytes(const route_args &args)
{
    return WARPS * (2 * (size_t)args.experts + (size_t)args.num_groups) * sizeof(float);
}

} // namespace

extern "C" struct rk_status *rk_cuda_op_moe_route(void *dev, void *stream,
                                                  const struct rk_moe_route_args *args)
{
    route_args route = args_of(args);
    int64_t blocks = rk_ceil_div(route.num_tokens, WARPS);

    if (args->logits.dtype != RK_DTYPE_F32)
        return rk_no_dtype("moe_route", args->logits.dtype);
    RK_TRY(rk_check_grid("moe_route", blocks));
    rk_launch({(const struct rk_cuda_stream *)stream, dim3((unsigned)blocks), dim3(WARPS * 32),
               shared_bytes(route)},
              moe_route_kernel, route);
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "moe_route");
}

extern "C" struct rk_status *rk_cuda_op_moe_route_bwd(void *dev, void *stream,
                                                      const struct rk_moe_route_bwd_args *args)
{
    route_bwd_args route = {args_of(&args->fwd), (float *)args->dlogits.data,
                            (const float *)args->dprobs.data, args->dlogits.row_stride,
                            args->dprobs.row_stride};
    int64_t blocks = rk_ceil_div(route.fwd.num_tokens, WARPS);

    if (args->fwd.logits.dtype != RK_DTYPE_F32)
        return rk_no_dtype("moe_route_bwd", args->fwd.logits.dtype);
    RK_TRY(rk_check_grid("moe_route_bwd", blocks));
    rk_launch({(const struct rk_cuda_stream *)stream, dim3((unsigned)blocks), dim3(WARPS * 32),
               shared_bytes(route.fwd)},
              moe_route_bwd_kernel, route);
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "moe_route_bwd");
}
