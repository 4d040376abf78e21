/* Twin of kernels/cpu/sample.c.
 *
 * Work split   One block of 512 threads a row.
 *
 * Traffic      The row twice (statistics, argmax), the second time from L2. 64 rows of 151936 bf16 on an
 *              H200: 86 us. A filter is a search over the bits of a threshold, two a pass: 16 passes for
 *              top-k, 18 for top-p, 17 more where equal logits straddle the border, all from L2.
 *
 * Limits       2^31 - 1 tokens; no F64.
 *
 * Numerics     Statistics as in vocab_common.cuh, so that an unfiltered log-prob has the bits of vocab_stats.
 *              Scores z - log E in f32, so a choice differs from the reference's where two scores agree to
 *              1e-6. Masses of top-p are integers in units of 2^-40 of the largest probability: exact sums.
 *
 * Tried        Thresholds by histograms of 8 bits a pass: sorting lanes by bucket and adding 64-bit masses
 *              atomically cost 170 us a pass. */
#include "kernels/cuda/vocab_common.cuh"
#include "kernels/cuda/philox.cuh"

/* Below it the division by temperature only overflows: greedy. */
#define GREEDY_TEMPERATURE 1e-5f

constexpr int MASS_BITS = 40; /* of the largest probability; 2^18 of them do not overflow 64 bits */

/* --- thresholds --- */

/* Order of floats as order of integers. */
__device__ __forceinline__ uint32_t key_of(float z)
{
    uint32_t bits = __float_as_uint(z + 0.0f); /* -0 is 0 */

    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

/* Calls visit(z, column, is_inside) for the row, all lanes of a warp together. */
template <class T, class Visit>
__device__ __forceinline__ void visit_row(const vocab_row<T> &row, Visit visit)
{
    for (int64_t base = 0; base < row.count; base += RK_TILE_VOCAB_THREADS * RK_TILE_PACK) {
        int64_t column = base + (int64_t)threadIdx.x * RK_TILE_PACK;
        rk_pack<T, RK_TILE_PACK> pack =
            rk_load<RK_TILE_PACK>(row.logits + column, row.count - column, row.aligned);

#pragma unroll
        for (int i = 0; i < RK_TILE_PACK; i++)
            visit(rk_widen<float>(pack.get(i)) * row.inv_temperature, column + i, column + i < row.count);
    }
}

/* Where a sum over keys in ascending order stops. */
struct key_cut {
    uint32_t key;
    unsigned long long below; /* weight of all smaller keys */
};

/* The smallest key at which the weight, summed from the smallest key up, exceeds `limit`, which the weight of
 * all must. entry(z, column, &key) gives key and weight of a column. Two bits of the key a pass: of the four
 * ranges that the bits open, the one is taken below whose end the sum still fits. */
template <class T, class Entry>
__device__ __noinline__ key_cut find_cut(const vocab_row<T> &row, unsigned long long limit, Entry entry)
{
    __shared__ unsigned long long shared[32];
    key_cut cut = {0, 0};

    for (int shift = 30; shift >= 0; shift -= 2) {
        uint32_t ends[3];
        unsigned long long below[3] = {};

        for (int i = 0; i < 3; i++)
            ends[i] = cut.key + ((uint32_t)(i + 1) << shift);
        visit_row(row, [&](float z, int64_t column, bool is_inside) {
            uint32_t key = 0;
            unsigned long long weight = is_inside ? entry(z, column, &key) : 0;

#pragma unroll
            for (int i = 0; i < 3; i++)
                below[i] += key < ends[i] ? weight : 0;
        });
        for (int i = 0; i < 3; i++) {
            unsigned long long sum = rk_block_sum(below[i], shared);

            if (sum <= limit)
                cut = {ends[i], sum};
        }
    }
    return cut;
}

/* Weight of all columns. */
template <class T, class Weight>
__device__ __forceinline__ unsigned long long total_weight(const vocab_row<T> &row, Weight weight)
{
    __shared__ unsigned long long shared[32];
    unsigned long long mine = 0;

    visit_row(row,
              [&](float z, int64_t column, bool is_inside) { mine += is_inside ? weight(z, column) : 0; });
    return rk_block_sum(mine, shared);
}

/* --- filters --- */

/* What a filter keeps: keys above `key`, and of those equal to it ids up to last_id. */
struct kept {
    uint32_t key;
    int64_t last_id;

    __device__ __forceinline__ bool operator()(float z, int64_t column) const
    {
        uint32_t mine = key_of(z);

        return mine > key || (mine == key && column <= last_id);
    }
};

/* Keeps every z not below the k-th largest. */
template <class T> __device__ __forceinline__ kept filter_top_k(const vocab_row<T> &row, int top_k)
{
    key_cut cut = find_cut(row, (unsigned long long)(row.count - top_k), [](float z, int64_t, uint32_t *key) {
        *key = key_of(z);
        return 1ull;
    });

    return {cut.key, INT64_MAX};
}

__device__ __forceinline__ unsigned long long mass_of(float z, float max)
{
    return (unsigned long long)(expf(z - max) * (float)(1ull << MASS_BITS));
}

/* Exactly the largest z: the statistics know it up to a rounding. */
template <class T> __device__ __forceinline__ float largest_z(const vocab_row<T> &row)
{
    __shared__ double shared[32];
    double max = -INFINITY;

    visit_row(row, [&](float z, int64_t, bool is_inside) { max = is_inside ? fmax(max, (double)z) : max; });
    return (float)rk_block_max(max, shared);
}

/* Drops from the smallest up while the sum of what is dropped is at most (1 - p) of the whole; of equal ones
 * the larger ids go. `max` is the largest z. */
template <class T>
__device__ __forceinline__ kept filter_top_p(const vocab_row<T> &row, kept among, float max, double top_p)
{
    unsigned long long total, limit, num_dropped, num_equal;
    key_cut cut, id_cut;
    float z;

    total =
        total_weight(row, [=](float at, int64_t column) { return among(at, column) ? mass_of(at, max) : 0; });
    limit = (unsigned long long)fmin((1.0 - top_p) * (double)total, (double)total);
    limit = limit < total ? limit : total - 1; /* the largest stays */
    cut = find_cut(row, limit, [=](float at, int64_t column, uint32_t *key) {
        *key = key_of(at);
        return among(at, column) ? mass_of(at, max) : 0ull;
    });
    z = __uint_as_float(cut.key & 0x80000000u ? cut.key & 0x7fffffffu : ~cut.key);
    num_dropped = (limit - cut.below) / mass_of(z, max);
    if (num_dropped == 0)
        return {cut.key, INT64_MAX};
    num_equal = total_weight(row, [=](float at, int64_t) { return key_of(at) == cut.key ? 1ull : 0ull; });
    id_cut = find_cut(row, num_equal - num_dropped - 1, [=](float at, int64_t column, uint32_t *key) {
        *key = (uint32_t)column;
        return key_of(at) == cut.key ? 1ull : 0ull;
    });
    return {cut.key, id_cut.key};
}

/* --- the choice --- */

/* log E of rk_rng_exponential(word). Each half of the range is measured from its own end, where f32 is dense.
 */
__device__ __forceinline__ float log_noise(uint32_t word)
{
    float exponential;

    if (word < 0x80000000u)
        exponential = -log1pf(-((float)word + 0.5f) * 0x1p-32f);
    else
        exponential = -logf(((float)~word + 0.5f) * 0x1p-32f);
    return logf(exponential);
}

struct choice {
    float score;
    int32_t token;
};

__device__ __forceinline__ choice better(choice a, choice b)
{
    return b.score > a.score || (b.score == a.score && b.token < a.token) ? b : a;
}

/* The best of all threads, to all threads. */
__device__ __forceinline__ choice best_of_block(choice best)
{
    __shared__ choice shared[RK_TILE_VOCAB_THREADS / 32];

#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2)
        best = better(best, {__shfl_xor_sync(~0u, best.score, lane), __shfl_xor_sync(~0u, best.token, lane)});
    if (threadIdx.x % 32 == 0)
        shared[threadIdx.x / 32] = best;
    __syncthreads(); /* the warps' choices are written before they are read */
    best = shared[0];
    for (int i = 1; i < RK_TILE_VOCAB_THREADS / 32; i++)
        best = better(best, shared[i]);
    return best;
}

/* argmax over z - log E of what is kept, or over z when greedy. Since E >= u, most columns cannot win: those
 * with u > e^(z - best) are left without their logarithms. */
template <class T, class Keep>
__device__ choice choose(const vocab_row<T> &row, const rk_sample_params &params, bool greedy, Keep keep)
{
    choice best = {-INFINITY, INT32_MAX};
    uint2 key = make_uint2((uint32_t)params.seed, (uint32_t)(params.seed >> 32));

    for (int64_t column = (int64_t)threadIdx.x * 4; column < row.count; column += RK_TILE_VOCAB_THREADS * 4) {
        uint32_t words[4];
        uint4 block = rk_philox(make_uint4((uint32_t)(column >> 2), (uint32_t)params.position,
                                           (uint32_t)params.stream, (uint32_t)(params.stream >> 32)),
                                key);

        words[0] = block.x;
        words[1] = block.y;
        words[2] = block.z;
        words[3] = block.w;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float z = column + i < row.count ? row.at(column + i) : -INFINITY;
            bool can_win = z > -INFINITY && keep(z, column + i);

            if (greedy && can_win)
                best = better(best, {z, (int32_t)(column + i)});
            else if (can_win &&
                     (float)words[i] * 0x1p-32f <= 1.0001f * exp2_fast((z - best.score) * VOCAB_LOG2E))
                best = better(best, {z - log_noise(words[i]), (int32_t)(column + i)});
        }
    }
    return best_of_block(best);
}

template <class T, class Keep>
__device__ __forceinline__ void sample_kept(const vocab_row<T> &row, const rk_sample_params &params,
                                            bool greedy, Keep keep, softmax_stats stats, int32_t *token,
                                            float *log_prob)
{
    choice best = choose(row, params, greedy, keep);

    if (threadIdx.x > 0)
        return;
    *token = best.token;
    *log_prob = (float)softmax_log_prob(z_of(row, best.token, stats.max), stats.max, stats.sum);
}

template <class T>
__global__ void __launch_bounds__(RK_TILE_VOCAB_THREADS)
    sample_kernel(int32_t *__restrict__ tokens, float *__restrict__ log_probs, const T *__restrict__ logits,
                  int64_t stride, int64_t vocab_size, const rk_sample_params *__restrict__ all_params,
                  bool aligned)
{
    rk_sample_params params = all_params[blockIdx.x];
    bool greedy = params.temperature < GREEDY_TEMPERATURE;
    bool has_top_k = !greedy && params.top_k > 0 && params.top_k < vocab_size;
    bool has_top_p = !greedy && params.top_p < 1.0f;
    vocab_row<T> row = make_row(logits + blockIdx.x * stride, vocab_size,
                                greedy ? 1.0f : 1.0f / params.temperature, aligned);
    softmax_stats stats = softmax_row(row, keep_all());
    kept keep = {0, INT64_MAX};

    if (isnan(stats.sum)) { /* the same for all threads */
        if (threadIdx.x == 0) {
            tokens[blockIdx.x] = 0;
            log_probs[blockIdx.x] = NAN;
        }
        return;
    }
    if (!has_top_k && !has_top_p) {
        sample_kept(row, params, greedy, keep_all(), stats, &tokens[blockIdx.x], &log_probs[blockIdx.x]);
        return;
    }
    if (has_top_k)
        keep = filter_top_k(row, params.top_k);
    if (has_top_p)
        keep = filter_top_p(row, keep, largest_z(row), params.top_p);
    stats = softmax_row(row, keep);
    sample_kept(row, params, greedy, keep, stats, &tokens[blockIdx.x], &log_probs[blockIdx.x]);
}

template <class T> static void launch_sample(cudaStream_t stream, const struct rk_sample_args *args)
{
    sample_kernel<T><<<(unsigned)args->logits.shape[0], RK_TILE_VOCAB_THREADS, 0, stream>>>(
        (int32_t *)args->tokens.data, (float *)args->log_probs.data, (const T *)args->logits.data,
        args->logits.row_stride, args->vocab_size, args->params, rk_rows_aligned(args->logits));
}

extern "C" struct rk_status *rk_cuda_op_sample(void *dev, void *stream, const struct rk_sample_args *args)
{
    RK_TRY(rk_check_grid("sample", args->logits.shape[0]));
    RK_FOR_DTYPE_TO_F32("sample", args->logits.dtype, T, launch_sample<T>(rk_stream_of(stream), args));
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "sample");
}
