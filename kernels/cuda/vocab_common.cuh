/* Softmax statistics of one row of logits by one block, shared by the training statistics and the sampler, so
 * that both report the same bits for the same logits.
 *
 * With c = inv_temperature * log2 e a term is e^z = 2^(c logit) = 2^k t, k = rint(c logit) and t = 2^(c logit
 * - k), where the fused c logit - k is rounded once. A term's bits depend on its own logit only, and so do
 * those of (k + log2 t) ln 2, which stands for z where a result needs it: then the probabilities of a row add
 * up to 1, and a row with one possible token gives it exactly 1.
 *
 * A sum keeps an exponent K, the largest k so far, and holds terms as 2^(k-K) t: going to a larger K is a
 * multiplication by a power of two, which is exact. Eight terms are added in f32, then in f64. So the sum
 * differs between any two ways of cutting a row (at multiples of eight) by the rounding of f64 additions
 * only, and log-probs in f32 are equal however many ranks share the vocabulary.
 *
 * k is read off the bits of c logit + 1.5 * 2^23, so |k| must stay below 2^21; rows with larger ones, or with
 * nothing but -inf, take softmax_row_exact, which has no such property. Terms below 2^-125 of the largest
 * count as that: they cannot be seen in the f64 sum. */
#ifndef RK_CUDA_VOCAB_COMMON_CUH
#define RK_CUDA_VOCAB_COMMON_CUH

#include <cfloat>
#include <cmath>

#include "kernels/cuda/cuda_common.cuh"

constexpr float VOCAB_LOG2E = 1.44269504088896340736f;
constexpr double VOCAB_LN2 = 0.69314718055994530942;
constexpr float VOCAB_MAGIC = 12582912.0f; /* 1.5 * 2^23: its last bit is worth 1 */
constexpr float VOCAB_K_MAX = 2097152.0f;  /* 2^21 */
constexpr float VOCAB_K_RANGE = 125.0f;

/* As the header defines them. */
struct softmax_stats {
    double max, sum, moment;
};

/* What a thread, then a block knows of a row. */
struct softmax_part {
    float max;          /* logit; NaN has no part in it */
    float exponent;     /* K + VOCAB_MAGIC */
    double sum, moment; /* of 2^(k-K) t and of 2^(k-K) t (c logit - K) */
};

/* One row of logits. */
template <class T> struct vocab_row {
    const T *logits;
    int64_t count;         /* columns that belong to the vocabulary */
    float inv_temperature; /* > 0 */
    float c;
    bool aligned;

    /* z as the filters and the scores of sampling see it */
    __device__ __forceinline__ float at(int64_t column) const
    {
        return rk_widen<float>(logits[column]) * inv_temperature;
    }
};

template <class T>
__device__ __forceinline__ vocab_row<T> make_row(const T *logits, int64_t count, float inv_temperature,
                                                 bool aligned)
{
    return {logits, count, inv_temperature, inv_temperature * VOCAB_LOG2E, aligned};
}

/* Everything belongs. */
struct keep_all {
    __device__ __forceinline__ bool operator()(float, int64_t) const
    {
        return true;
    }
};

__device__ __forceinline__ float exp2_fast(float x)
{
    float y;

    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* The larger one; NaN if either is. */
__device__ __forceinline__ float max_or_nan(float a, float b)
{
    float y;

    asm("max.NaN.f32 %0, %1, %2;" : "=f"(y) : "f"(a), "f"(b));
    return y;
}

/* k + VOCAB_MAGIC */
__device__ __forceinline__ float exponent_of(float logit, float c)
{
    return __fmaf_rn(logit, c, VOCAB_MAGIC);
}

/* t, given k */
__device__ __forceinline__ float mantissa_of(float logit, float c, float k)
{
    return exp2_fast(__fmaf_rn(logit, c, -k));
}

/* log2 of the term that stands for e^z. */
__device__ __forceinline__ double log2_of_term(float logit, float c)
{
    float k = exponent_of(logit, c) - VOCAB_MAGIC;

    return k + log2((double)mantissa_of(logit, c, k));
}

__device__ __forceinline__ softmax_part softmax_empty()
{
    return {-INFINITY, VOCAB_MAGIC - VOCAB_K_MAX, 0.0, 0.0};
}

/* Raises K. The moment moves too: x - K' = (x - K) - (K' - K). */
__device__ __forceinline__ void softmax_raise(softmax_part &part, float exponent)
{
    double shift = fminf(exponent - part.exponent, 2000.0f);
    double scale = shift < 1022.0 ? __hiloint2double((1023 - (int)shift) << 20, 0) : 0.0;

    part.moment = scale * (part.moment - shift * part.sum);
    part.sum *= scale;
    part.exponent = exponent;
}

/* Adds eight terms; a logit that does not belong is -inf. */
__device__ __forceinline__ void softmax_add(softmax_part &part, const float (&logits)[RK_TILE_PACK], float c)
{
    float max = logits[0], sum = 0.0f, moment = 0.0f, exponent, smallest;
    unsigned bias;

#pragma unroll
    for (int i = 1; i < RK_TILE_PACK; i++)
        max = fmaxf(max, logits[i]);
    part.max = fmaxf(part.max, max);
    if (exponent_of(max, c) > part.exponent)
        softmax_raise(part, exponent_of(max, c));
    exponent = part.exponent - VOCAB_MAGIC;
    smallest = __fdividef(exponent - VOCAB_K_RANGE, c);
    bias = 0x3f800000u - (__float_as_uint(part.exponent) << 23); /* of 2^(k-K), given the bits of k */
#pragma unroll
    for (int i = 0; i < RK_TILE_PACK; i++) {
        float logit = max_or_nan(logits[i], smallest), k = exponent_of(logit, c);
        float scale = __uint_as_float((__float_as_uint(k) << 23) + bias); /* k - K is from -126 to 0 */
        float term = mantissa_of(logit, c, k - VOCAB_MAGIC) * scale;

        sum += term;
        moment = __fmaf_rn(term, __fmaf_rn(logit, c, -exponent), moment);
    }
    part.sum += (double)sum;
    part.moment += (double)moment;
}

__device__ __forceinline__ void softmax_merge(softmax_part &part, softmax_part other)
{
    if (other.exponent > part.exponent)
        softmax_raise(part, other.exponent);
    else
        softmax_raise(other, part.exponent);
    part.max = fmaxf(part.max, other.max);
    part.sum += other.sum;
    part.moment += other.moment;
}

__device__ __forceinline__ softmax_part softmax_shuffle(const softmax_part &part, int lane, unsigned lanes)
{
    return {__shfl_xor_sync(lanes, part.max, lane), __shfl_xor_sync(lanes, part.exponent, lane),
            __shfl_xor_sync(lanes, part.sum, lane), __shfl_xor_sync(lanes, part.moment, lane)};
}

/* One pack: what is not kept, or lies beyond the row where it is not WHOLE, is -inf. */
template <bool WHOLE, class T, class Keep>
__device__ __forceinline__ void softmax_pack(softmax_part &part, const vocab_row<T> &row,
                                             const rk_pack<T, RK_TILE_PACK> &pack, int64_t column, Keep keep)
{
    float logits[RK_TILE_PACK];

#pragma unroll
    for (int i = 0; i < RK_TILE_PACK; i++) {
        logits[i] = rk_widen<float>(pack.get(i));
        if ((!WHOLE && column + i >= row.count) || !keep(logits[i] * row.inv_temperature, column + i))
            logits[i] = -INFINITY;
    }
    softmax_add(part, logits, row.c);
}

/* The whole row, to all threads of a block of RK_TILE_VOCAB_THREADS. Each takes its packs in ascending order,
 * as many at a time as can be in flight. */
template <class T, class Keep>
__device__ __forceinline__ softmax_part softmax_part_of(const vocab_row<T> &row, Keep keep)
{
    constexpr int64_t STEP = (int64_t)RK_TILE_VOCAB_THREADS * RK_TILE_PACK;
    constexpr int64_t REACH = (RK_TILE_VOCAB_UNROLL - 1) * STEP + RK_TILE_PACK;
    constexpr int NUM_WARPS = RK_TILE_VOCAB_THREADS / 32;
    __shared__ softmax_part parts[NUM_WARPS];
    softmax_part part = softmax_empty();
    int64_t column = (int64_t)threadIdx.x * RK_TILE_PACK;

    for (; row.aligned && column + REACH <= row.count; column += RK_TILE_VOCAB_UNROLL * STEP) {
        rk_pack<T, RK_TILE_PACK> packs[RK_TILE_VOCAB_UNROLL];

#pragma unroll
        for (int u = 0; u < RK_TILE_VOCAB_UNROLL; u++)
            packs[u] = rk_load<RK_TILE_PACK>(row.logits + column + u * STEP, RK_TILE_PACK, true);
#pragma unroll
        for (int u = 0; u < RK_TILE_VOCAB_UNROLL; u++)
            softmax_pack<true>(part, row, packs[u], column + u * STEP, keep);
    }
    for (; column < row.count; column += STEP)
        softmax_pack<false>(part, row,
                            rk_load<RK_TILE_PACK>(row.logits + column, row.count - column, row.aligned),
                            column, keep);
#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2)
        softmax_merge(part, softmax_shuffle(part, lane, ~0u));
    __syncthreads(); /* earlier calls have read their result */
    if (threadIdx.x % 32 == 0)
        parts[threadIdx.x / 32] = part;
    __syncthreads(); /* the parts are written before they are read */
    if (threadIdx.x < NUM_WARPS) {
        part = parts[threadIdx.x];
#pragma unroll
        for (int lane = NUM_WARPS / 2; lane > 0; lane /= 2)
            softmax_merge(part, softmax_shuffle(part, lane, (1u << NUM_WARPS) - 1));
        if (threadIdx.x == 0)
            parts[0] = part;
    }
    __syncthreads(); /* the result is written before it is read */
    return parts[0];
}

/* The definition, in f64, for rows that the fast way does not reach. */
template <class T, class Keep>
__device__ __noinline__ softmax_stats softmax_row_exact(const vocab_row<T> &row, Keep keep)
{
    __shared__ double shared[32];
    softmax_stats stats = {-INFINITY, 0.0, 0.0};

    for (int64_t column = threadIdx.x; column < row.count; column += RK_TILE_VOCAB_THREADS) {
        if (keep(row.at(column), column))
            stats.max = fmax(stats.max, (double)row.at(column));
    }
    stats.max = rk_block_max(stats.max, shared);
    for (int64_t column = threadIdx.x; column < row.count; column += RK_TILE_VOCAB_THREADS) {
        double offset = row.at(column) - stats.max, term;

        if (!keep(row.at(column), column))
            continue;
        term = exp(offset);
        stats.sum += term;
        stats.moment += term > 0.0 ? term * offset : 0.0;
    }
    stats.sum = rk_block_sum(stats.sum, shared);
    stats.moment = rk_block_sum(stats.moment, shared);
    return stats;
}

__device__ __forceinline__ bool is_in_range(float logit, float c)
{
    return fabsf(logit * c) < VOCAB_K_MAX;
}

/* z of a logit, as it goes with the statistics of its row, whose largest z is `max`. */
template <class T> __device__ __forceinline__ double z_of(const vocab_row<T> &row, int64_t column, double max)
{
    float logit = rk_widen<float>(row.logits[column]);

    if (logit == -INFINITY || !is_in_range((float)max, VOCAB_LOG2E))
        return row.at(column);
    return log2_of_term(logit, row.c) * VOCAB_LN2;
}

/* Statistics of what keep(z, column) keeps of the row, to all threads. */
template <class T, class Keep>
__device__ __forceinline__ softmax_stats softmax_row(const vocab_row<T> &row, Keep keep)
{
    softmax_part part = softmax_part_of(row, keep);
    double top, term;
    float k;

    if (row.count == 0)
        return {-INFINITY, 0.0, 0.0};
    if (!is_in_range(part.max, row.c))
        return softmax_row_exact(row, keep);
    k = part.exponent - VOCAB_MAGIC; /* of the largest */
    top = log2_of_term(part.max, row.c);
    term = mantissa_of(part.max, row.c, k);
    return {top * VOCAB_LN2, part.sum / term, VOCAB_LN2 * (part.moment - (top - k) * part.sum) / term};
}

__device__ __forceinline__ double softmax_log_prob(double z, double max, double sum)
{
    return z - max - log(sum);
}

#endif
