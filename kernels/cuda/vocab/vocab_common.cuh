/* Softmax statistics of one row of logits, shared by the training statistics and the sampler, so that both
 * report the same bits for the same logits.
 *
 * Terms. With c = inv_temperature * log2 e and x = c logit a term is e^z = 2^x = 2^k t. For |x| < 64, that is
 * |z| < 44, x is rounded and k = 0; beyond, k = rint(x) and t = 2^(x - k), where the fused c logit - k is
 * rounded once. So a term's bits depend on its own logit only, and so do those of (k + log2 t) ln 2, which
 * stands for z where a result needs it: then the probabilities of a row add up to 1, and a row with one
 * possible token gives it exactly 1. The relative error of a term is at most 64 * 2^-25 ln 2 = 1.3e-6.
 *
 * Sums. A sum keeps an exponent K and holds terms as 2^(k-K) t: K is 0 while the largest |x| is below 64,
 * else the largest k so far; going to a larger K is a multiplication by a power of two, which is exact. Eight
 * terms are added in f32, then in f64. So the sums of any two partitions of a row (at multiples of eight)
 * differ only by the rounding of f64 additions, and log-probs in f32 are equal for any number of ranks that
 * share the vocabulary. (Terms below 2^-64 in the same pack as one above 2^-40 have k = 0 as well: they are
 * 2^-24 of that one, with an error of 2^-19, which is below its f32 precision.)
 *
 * Order. A row is divided into chunks of steps; a step is one pack for each of RK_TILE_VOCAB_THREADS threads.
 * A thread adds its packs of a chunk in ascending order, then its chunks; then the threads' sums are added.
 * Results are bit-identical whether one block processes all chunks or one block each.
 *
 * k is taken from the bits of x + 1.5 * 2^23, so |k| must be below 2^21; rows with larger |k|, or with only
 * -inf, use softmax_row_exact, which is not independent of the partition. Terms below 2^-125 of 2^K count as
 * that or as 0: they do not affect the f64 sum. */
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
constexpr float VOCAB_X_PLAIN = 64.0f; /* |x| below it: k = 0 */
constexpr float VOCAB_X_FAST =
    -40.0f; /* eight terms with one from here to VOCAB_X_PLAIN take the fast path */

/* Statistics as kernels/rk_kernels_vocab.h defines them. */
struct softmax_stats {
    double max, sum, moment;
};

/* State of a thread, then of a block, for a row. */
struct softmax_part {
    float max;          /* maximum logit; NaN is ignored */
    float exponent;     /* K + VOCAB_MAGIC */
    double sum, moment; /* of 2^(k-K) t and of 2^(k-K) t (x - K) */
};

/* One row of logits. */
template <class T> struct vocab_row {
    const T *logits;
    int64_t count;         /* columns that belong to the vocabulary */
    float inv_temperature; /* > 0 */
    float c;
    float fast_begin, fast_end; /* logits of VOCAB_X_FAST and VOCAB_X_PLAIN */
    bool aligned;

    /* z as used by the filters and the scores of sampling */
    __device__ __forceinline__ float at(int64_t column) const
    {
        return rk_widen<float>(logits[column]) * inv_temperature;
    }
};

template <class T>
__device__ __forceinline__ vocab_row<T> make_row(const T *logits, int64_t count, float inv_temperature,
                                                 bool aligned)
{
    float c = inv_temperature * VOCAB_LOG2E;

    return {logits, count, inv_temperature, c, VOCAB_X_FAST / c, VOCAB_X_PLAIN / c, aligned};
}

/* A filter that keeps everything. */
struct keep_all {
    static constexpr bool KEEPS_ALL = true;

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
    return fabsf(logit * c) < VOCAB_X_PLAIN ? VOCAB_MAGIC : __fmaf_rn(logit, c, VOCAB_MAGIC);
}

/* t, given k */
__device__ __forceinline__ float mantissa_of(float logit, float c, float k)
{
    return exp2_fast(k == 0.0f ? logit * c : __fmaf_rn(logit, c, -k));
}

/* log2 of the term that represents e^z. */
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

/* Logits of a pack; those outside of the row are -inf. */
struct vocab_pack {
    float logits[RK_TILE_PACK], max;
};

/* Adds eight terms of any size. A separate function with arguments by value, so that it costs the fast path
 * no registers. */
static __device__ __noinline__ softmax_part softmax_add_any(softmax_part part, vocab_pack pack, float c)
{
    float sum = 0.0f, moment = 0.0f, top = exponent_of(pack.max, c), exponent, smallest;

    if (top > part.exponent)
        softmax_raise(part, top);
    exponent = part.exponent - VOCAB_MAGIC;
    smallest = (exponent - VOCAB_K_RANGE) / c;
#pragma unroll
    for (int i = 0; i < RK_TILE_PACK; i++) {
        float logit = max_or_nan(pack.logits[i], smallest), k = exponent_of(logit, c) - VOCAB_MAGIC;
        float term = ldexpf(mantissa_of(logit, c, k), (int)(k - exponent));

        sum += term;
        moment = __fmaf_rn(term, __fmaf_rn(logit, c, -exponent), moment);
    }
    part.sum += (double)sum;
    part.moment += (double)moment;
    return part;
}

/* Adds eight terms. */
template <class T>
__device__ __forceinline__ void softmax_add(softmax_part &part, const vocab_row<T> &row,
                                            const vocab_pack &pack)
{
    float sum = 0.0f, moment = 0.0f;

    part.max = fmaxf(part.max, pack.max);
    if (!(pack.max >= row.fast_begin && pack.max < row.fast_end && part.exponent <= VOCAB_MAGIC)) {
        part = softmax_add_any(part, pack, row.c);
        return;
    }
    if (part.exponent < VOCAB_MAGIC)
        softmax_raise(part, VOCAB_MAGIC);
#pragma unroll
    for (int i = 0; i < RK_TILE_PACK; i++) {
        float x = max_or_nan(pack.logits[i] * row.c, -200.0f), term = exp2_fast(x); /* no 0 * -inf */

        sum += term;
        moment = __fmaf_rn(term, x, moment);
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

/* Call after a pack: at the end of a chunk, adds it to the earlier chunks. */
__device__ __forceinline__ void softmax_end_step(softmax_part &total, softmax_part &part, int &left,
                                                 int chunk_steps)
{
    if (--left > 0)
        return;
    softmax_merge(total, part);
    part = softmax_empty();
    left = chunk_steps;
}

__device__ __forceinline__ softmax_part softmax_shuffle(const softmax_part &part, int lane, unsigned lanes)
{
    return {__shfl_xor_sync(lanes, part.max, lane), __shfl_xor_sync(lanes, part.exponent, lane),
            __shfl_xor_sync(lanes, part.sum, lane), __shfl_xor_sync(lanes, part.moment, lane)};
}

/* Maximum of a pack; NaN is ignored. */
template <class T> __device__ __forceinline__ float pack_max(const rk_pack<T, RK_TILE_PACK> &pack)
{
    float max = rk_widen<float>(pack.get(0));

#pragma unroll
    for (int i = 1; i < RK_TILE_PACK; i++)
        max = fmaxf(max, rk_widen<float>(pack.get(i)));
    return max;
}

/* Takes two elements at a time. */
template <> __device__ __forceinline__ float pack_max(const rk_pack<rk_bf16, RK_TILE_PACK> &pack)
{
    __nv_bfloat162 max, other;

    memcpy(&max, &pack.word[0], sizeof(max));
#pragma unroll
    for (int i = 1; i < RK_TILE_PACK / 2; i++) {
        memcpy(&other, &pack.word[i], sizeof(other));
        max = __hmax2(max, other);
    }
    return __bfloat162float(__hmax(max.x, max.y));
}

/* One pack: columns that are not kept, or beyond the row unless WHOLE, are -inf. */
template <bool WHOLE, class T, class Keep>
__device__ __forceinline__ void softmax_pack(softmax_part &part, const vocab_row<T> &row,
                                             const rk_pack<T, RK_TILE_PACK> &pack, int64_t column, Keep keep)
{
    vocab_pack in;

    rk_unpack(in.logits, pack);
#pragma unroll
    for (int i = 0; i < RK_TILE_PACK; i++) {
        if ((!WHOLE && column + i >= row.count) || !keep(in.logits[i] * row.inv_temperature, column + i))
            in.logits[i] = -INFINITY;
    }
    if (WHOLE && Keep::KEEPS_ALL) {
        in.max = pack_max(pack);
    } else {
        in.max = in.logits[0];
#pragma unroll
        for (int i = 1; i < RK_TILE_PACK; i++)
            in.max = fmaxf(in.max, in.logits[i]);
    }
    if (!Keep::KEEPS_ALL && in.max == -INFINITY)
        return; /* most packs of a filtered row: eight terms too small to affect the sum */
    softmax_add(part, row, in);
}

constexpr int64_t VOCAB_STEP = (int64_t)RK_TILE_VOCAB_THREADS * RK_TILE_PACK; /* columns */

/* Number of steps of a chunk. */
template <class T> __device__ __forceinline__ int chunk_steps_of(const vocab_row<T> &row)
{
    int64_t steps = (row.count + VOCAB_STEP - 1) / VOCAB_STEP;

    return (int)RK_MAX((steps + RK_TILE_VOCAB_CHUNKS - 1) / RK_TILE_VOCAB_CHUNKS, (int64_t)1);
}

/* The columns of a thread in order, and their chunk. */
template <class T> struct softmax_walk {
    const vocab_row<T> &row;
    int64_t column, stop;
    int chunk_steps, left; /* left: remaining steps of the chunk */
    softmax_part total, part;

    /* A walk over chunks begin..end-1. */
    __device__ __forceinline__ softmax_walk(const vocab_row<T> &of, int begin, int end)
        : row(of), chunk_steps(chunk_steps_of(of)), total(softmax_empty()), part(softmax_empty())
    {
        left = chunk_steps;
        column = (int64_t)begin * chunk_steps * VOCAB_STEP + (int64_t)threadIdx.x * RK_TILE_PACK;
        stop = RK_MIN((int64_t)end * chunk_steps * VOCAB_STEP, row.count);
    }

    /* Whether the next `steps` packs are aligned and complete. */
    __device__ __forceinline__ bool has_whole(int steps) const
    {
        return row.aligned && column + (steps - 1) * VOCAB_STEP + RK_TILE_PACK <= stop;
    }

    template <bool WHOLE, class Keep>
    __device__ __forceinline__ void add(const rk_pack<T, RK_TILE_PACK> &pack, Keep keep)
    {
        softmax_pack<WHOLE>(part, row, pack, column, keep);
        softmax_end_step(total, part, left, chunk_steps);
        column += VOCAB_STEP;
    }

    /* Adds the remaining packs one by one. */
    template <class Keep> __device__ __forceinline__ softmax_part finish(Keep keep)
    {
        while (column < stop)
            add<false>(rk_load<RK_TILE_PACK>(row.logits + column, row.count - column, row.aligned), keep);
        softmax_merge(total, part);
        return total;
    }
};

/* A thread's part of chunks begin..end-1. Loads as many packs at a time as can be in flight. */
template <class T, class Keep>
__device__ __forceinline__ softmax_part softmax_thread(const vocab_row<T> &row, Keep keep, int begin, int end)
{
    constexpr int UNROLL = RK_TILE_VOCAB_UNROLL;
    softmax_walk<T> walk(row, begin, end);

    while (walk.has_whole(UNROLL)) {
        rk_pack<T, RK_TILE_PACK> packs[UNROLL];

#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            packs[u] = rk_load<RK_TILE_PACK>(row.logits + walk.column + u * VOCAB_STEP, RK_TILE_PACK, true);
#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            walk.template add<true>(packs[u], keep);
    }
    return walk.finish(keep);
}

/* Shared memory of softmax_thread_staged(). */
template <class T> struct softmax_stages {
    static constexpr int UNROLL = RK_TILE_VOCAB_STAGE_BYTES / (RK_TILE_PACK * (int)sizeof(T));

    rk_pack<T, RK_TILE_PACK> packs[RK_TILE_VOCAB_STAGES][UNROLL][RK_TILE_VOCAB_THREADS];
};

/* softmax_thread for the whole row, bit-identical; packs are copied to shared memory, to a separate place for
 * each thread, while earlier ones are added. */
template <class T>
__device__ __forceinline__ softmax_part softmax_thread_staged(const vocab_row<T> &row,
                                                              softmax_stages<T> &shared)
{
    constexpr int UNROLL = softmax_stages<T>::UNROLL, STAGES = RK_TILE_VOCAB_STAGES;
    constexpr int WORDS = rk_pack<T, RK_TILE_PACK>::WORDS;
    softmax_walk<T> walk(row, 0, RK_TILE_VOCAB_CHUNKS);
    int64_t ahead = walk.column; /* of the next batch to be copied */
    auto copy_batch = [&](int stage) {
        if (row.aligned && ahead + (UNROLL - 1) * VOCAB_STEP + RK_TILE_PACK <= walk.stop) {
#pragma unroll
            for (int u = 0; u < UNROLL; u++) {
#pragma unroll
                for (int b = 0; b < WORDS; b += 4)
                    rk_copy16(&shared.packs[stage][u][threadIdx.x].word[b],
                              (const uint32_t *)(row.logits + ahead + u * VOCAB_STEP) + b, 16);
            }
        }
        ahead += UNROLL * VOCAB_STEP;
        rk_copy_commit();
    };
    int stage = 0;

#pragma unroll
    for (int s = 0; s < STAGES - 1; s++)
        copy_batch(s);
    for (; walk.has_whole(UNROLL); stage = stage + 1 < STAGES ? stage + 1 : 0) {
        copy_batch(stage > 0 ? stage - 1 : STAGES - 1);
        rk_copy_wait<STAGES - 1>();
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            rk_pack<T, RK_TILE_PACK> pack;

            rk_load_words<WORDS>(pack.word, &shared.packs[stage][u][threadIdx.x]);
            walk.template add<true>(pack, keep_all());
        }
    }
    return walk.finish(keep_all());
}

/* Merges the parts of the block's threads; the result is in all of them. */
__device__ __forceinline__ softmax_part softmax_block(softmax_part part)
{
    constexpr int NUM_WARPS = RK_TILE_VOCAB_THREADS / 32;
    __shared__ softmax_part parts[NUM_WARPS];

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

/* The definition in f64, for rows that the fast path does not support. */
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

/* z of a logit, consistent with the statistics of its row, whose largest z is `max`. */
template <class T> __device__ __forceinline__ double z_of(const vocab_row<T> &row, int64_t column, double max)
{
    float logit = rk_widen<float>(row.logits[column]);

    if (logit == -INFINITY || !is_in_range((float)max, VOCAB_LOG2E))
        return row.at(column);
    return log2_of_term(logit, row.c) * VOCAB_LN2;
}

/* Statistics of the columns that keep(z, column) keeps, from `part`, which all threads have; the result is in
 * all threads. */
template <class T, class Keep>
__device__ __forceinline__ softmax_stats softmax_finish(const vocab_row<T> &row, Keep keep,
                                                        const softmax_part &part)
{
    double top, term;
    float k;

    if (row.count == 0)
        return {-INFINITY, 0.0, 0.0};
    if (!is_in_range(part.max, row.c))
        return softmax_row_exact(row, keep);
    k = part.exponent - VOCAB_MAGIC; /* of the largest term */
    top = log2_of_term(part.max, row.c);
    term = mantissa_of(part.max, row.c, k);
    return {top * VOCAB_LN2, part.sum / term, VOCAB_LN2 * (part.moment - (top - k) * part.sum) / term};
}

/* By one thread block. */
template <class T, class Keep>
__device__ __forceinline__ softmax_stats softmax_row(const vocab_row<T> &row, Keep keep)
{
    return softmax_finish(row, keep, softmax_block(softmax_thread(row, keep, 0, RK_TILE_VOCAB_CHUNKS)));
}

__device__ __forceinline__ double softmax_log_prob(double z, double max, double sum)
{
    return z - max - log(sum);
}

#endif
