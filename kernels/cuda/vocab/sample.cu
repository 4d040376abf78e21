/* Twin of kernels/cpu/sample.c.
 *
 * Work split   A cluster of RK_TILE_VOCAB_CHUNKS blocks of 512 threads a row, one chunk each, which exchange
 *              data through shared memory; one block per row on GPUs without clusters.
 *
 * Traffic      The row twice (statistics, argmax), the second time from L2. With a filter once more for the
 *              sum of the kept terms, and once for each 11-bit digit of a threshold: two passes for top-k and
 *              two for top-p (three in F32), two more if equal logits are on both sides of the threshold. A
 *              pass accumulates weights by digit in shared memory, and one block of the team adds those of
 *              all blocks.
 *
 * Measured     H200, 64 rows of 151936 bf16: 62 us; with top-k 140, with top-p 249.
 *
 * Limits       2^21 tokens; no F64.
 *
 * Numerics     Statistics as in vocab_common.cuh, so that an unfiltered log-prob has the bits of
 *              vocab_stats. Scores z - log E in f32, so a choice differs from the reference's where two
 *              scores agree to 1e-6. Masses of top-p are integers in units of 2^-40 of the largest
 *              probability: exact sums, in words of 14 bits that are added atomically.
 *
 * Tried        A thread's own best score as the bound instead of the warp's: 20 us more. One block a row: 91,
 *              620 and 1620 us. Thresholds two bits a pass, without atomics, from a copy of the keys in
 *              shared memory: 231 and 475 us. Four copies of the weights, used by the lanes in turn to reduce
 *              conflicts: 148 and 269. */
#include "kernels/cuda/philox.cuh"
#include "kernels/cuda/vocab/sample_filter.cuh"

/* Smaller temperatures are greedy: dividing by them would only overflow. */
#define GREEDY_TEMPERATURE 1e-5f

/* --- the choice --- */

/* log E of rk_rng_exponential(word). Each half of the range is computed from its own end, where f32 has more
 * precision.
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

/* The best choice of a block, read by its team after a team_sync(). */
__device__ __forceinline__ choice *block_best(choice best)
{
    __shared__ choice warps[RK_TILE_VOCAB_THREADS / 32], block;

#pragma unroll
    for (int lane = 16; lane > 0; lane /= 2)
        best = better(best, {__shfl_xor_sync(~0u, best.score, lane), __shfl_xor_sync(~0u, best.token, lane)});
    if (threadIdx.x % 32 == 0)
        warps[threadIdx.x / 32] = best;
    __syncthreads(); /* the warps' choices are written before they are read */
    if (threadIdx.x == 0) {
        for (int i = 1; i < RK_TILE_VOCAB_THREADS / 32; i++)
            best = better(best, warps[i]);
        block = best;
    }
    return &block;
}

/* The best score of a warp; -inf if all are. */
__device__ __forceinline__ float warp_best(float score)
{
    uint32_t key = __reduce_max_sync(~0u, key_of(score));

    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

/* argmax over z - log E of the kept columns of this block, or over z when greedy. Since E >= u, most columns
 * cannot win: logarithms are skipped for those with u > e^(z - best), where best is the warp's best after the
 * previous pack. */
template <class T, class Keep>
__device__ __forceinline__ choice *choose(const team_row<T> &own, const rk_sample_params &params, bool greedy,
                                          Keep keep)
{
    constexpr float SLACK = 32.0f + 1.5e-4f; /* log2 of 1.0001 * 2^32, the unit of a word */
    choice best = {-INFINITY, INT32_MAX};
    uint2 key = make_uint2((uint32_t)params.seed, (uint32_t)(params.seed >> 32));
    float bar = -INFINITY; /* minimum score of a candidate */

    for (int64_t base = own.begin; base < own.end; base += VOCAB_STEP) {
        int64_t column = base + (int64_t)threadIdx.x * RK_TILE_PACK;
        float z[RK_TILE_PACK];
        uint4 four = {};            /* random words of the next four columns */
        bool any = Keep::KEEPS_ALL; /* most packs of a filtered row have no kept column */

        rk_unpack(z, team_pack(own, column));
#pragma unroll
        for (int i = 0; i < RK_TILE_PACK; i++) {
            z[i] *= own.row.inv_temperature;
            if (column + i >= own.end || !keep(z[i], column + i))
                z[i] = -INFINITY;
            any |= z[i] > -INFINITY;
            if (greedy && z[i] > best.score)
                best = {z[i], (int32_t)(column + i)};
        }
        if (greedy)
            continue;
#pragma unroll
        for (int i = 0; any && i < RK_TILE_PACK; i++) {
            uint32_t word;

            if (i % 4 == 0)
                four = rk_philox(make_uint4((uint32_t)(column + i >> 2), (uint32_t)params.position,
                                            (uint32_t)params.stream, (uint32_t)(params.stream >> 32)),
                                 key);
            word = i % 4 == 0 ? four.x : i % 4 == 1 ? four.y : i % 4 == 2 ? four.z : four.w;
            if ((float)word <= exp2_fast(__fmaf_rn(z[i] - bar, VOCAB_LOG2E, SLACK)) && z[i] > -INFINITY)
                best = better(best, {z[i] - log_noise(word), (int32_t)(column + i)});
        }
        bar = warp_best(best.score);
    }
    return block_best(best);
}

struct sample_out {
    int32_t *token;
    float *log_prob;
};

/* Call after a team_sync(), by one thread; a row without a distribution has no choice. */
template <class T>
__device__ __forceinline__ void store_best(const team_row<T> &own, const choice *shared, softmax_stats stats,
                                           sample_out out)
{
    choice best = *shared;

    for (unsigned rank = 1; rank < team_size(); rank++)
        best = better(best, *team_at(shared, rank));
    *out.token = isnan(stats.sum) ? 0 : best.token;
    *out.log_prob = isnan(stats.sum)
                        ? NAN
                        : (float)softmax_log_prob(z_of(own.row, best.token, stats.max), stats.max, stats.sum);
}

/* Without a filter: the blocks synchronise once. */
template <class T>
__device__ __forceinline__ void sample_all(const team_row<T> &own, const rk_sample_params &params,
                                           bool greedy, sample_out out)
{
    const choice *best;

    team_share_softmax(own, keep_all());
    best = choose(own, params, greedy, keep_all());
    team_sync(); /* all parts and choices are written */
    if (team_rank() == 0) {
        softmax_stats stats = softmax_finish(own.row, keep_all(), team_merge_softmax());

        if (threadIdx.x == 0)
            store_best(own, best, stats, out);
    }
    team_sync(); /* a block must not exit before its results have been read */
}

/* Samples with top-k or top-p. */
template <class T>
__device__ __forceinline__ void sample_filtered(const team_row<T> &own, const rk_sample_params &params,
                                                sample_out out)
{
    softmax_part all = team_softmax(own, keep_all());
    softmax_stats stats = softmax_finish(own.row, keep_all(), all);
    kept keep = {0, INT64_MAX};
    uint32_t among = 0;
    const choice *best;

    if (!isnan(stats.sum)) { /* uniform over all threads of the team, like the other conditions here */
        if (params.top_k > 0 && params.top_k < own.row.count) {
            among = find_top_k(own, params.top_k);
            keep.key = key_of(z_of_key(own.row, among));
        }
        if (params.top_p < 1.0f)
            keep = filter_top_p(own, among, all.max * own.row.inv_temperature, params.top_p);
        stats = softmax_finish(own.row, keep, team_softmax(own, keep));
    }
    best = choose(own, params, false, keep);
    team_sync(); /* all choices are written */
    if (team_rank() == 0 && threadIdx.x == 0)
        store_best(own, best, stats, out);
    team_sync(); /* a block must not exit before its results have been read */
}

template <class T> struct sample_rows {
    const T *logits;
    int64_t stride, vocab_size;
    const rk_sample_params *params;
    bool aligned;
};

template <class T>
__global__ void __launch_bounds__(RK_TILE_VOCAB_THREADS, 2)
    sample_kernel(int32_t *__restrict__ tokens, float *__restrict__ log_probs, sample_rows<T> rows)
{
    int64_t r = blockIdx.x / team_size();
    rk_sample_params params = rows.params[r];
    bool greedy = params.temperature < GREEDY_TEMPERATURE;
    bool has_filter =
        !greedy && ((params.top_k > 0 && params.top_k < rows.vocab_size) || params.top_p < 1.0f);
    team_row<T> own = make_team_row(make_row(rows.logits + r * rows.stride, rows.vocab_size,
                                             greedy ? 1.0f : 1.0f / params.temperature, rows.aligned));
    sample_out out = {tokens + r, log_probs + r};

    if (has_filter)
        sample_filtered(own, params, out);
    else
        sample_all(own, params, greedy, out);
}

template <class T>
static cudaError_t launch_sample(const struct rk_cuda_device *dev, cudaStream_t stream,
                                 const struct rk_sample_args *args)
{
    int team = dev->compute_capability >= 90 ? RK_TILE_VOCAB_CHUNKS : 1;
    sample_rows<T> rows = {(const T *)args->logits.data, args->logits.row_stride, args->vocab_size,
                           args->params, rk_rows_aligned(args->logits)};
    cudaLaunchAttribute cluster = {};
    cudaLaunchConfig_t config = {};

    cluster.id = cudaLaunchAttributeClusterDimension;
    cluster.val.clusterDim.x = (unsigned)team;
    cluster.val.clusterDim.y = cluster.val.clusterDim.z = 1;
    config.gridDim = dim3((unsigned)args->logits.shape[0] * (unsigned)team);
    config.blockDim = dim3(RK_TILE_VOCAB_THREADS);
    config.stream = stream;
    config.attrs = &cluster;
    config.numAttrs = team > 1 ? 1 : 0;
    return cudaLaunchKernelEx(&config, sample_kernel<T>, (int32_t *)args->tokens.data,
                              (float *)args->log_probs.data, rows);
}

extern "C" struct rk_status *rk_cuda_op_sample(void *dev_handle, void *stream,
                                               const struct rk_sample_args *args)
{
    const struct rk_cuda_device *dev = (const struct rk_cuda_device *)dev_handle;

    if (args->vocab_size > MAX_SAMPLE_VOCAB)
        return RK_FAIL(RK_UNIMPLEMENTED, "sample: vocab_size=%lld, this backend supports at most %lld",
                       (long long)args->vocab_size, (long long)MAX_SAMPLE_VOCAB);
    RK_TRY(rk_check_grid("sample", args->logits.shape[0] * RK_TILE_VOCAB_CHUNKS));
    RK_FOR_DTYPE_TO_F32("sample", args->logits.dtype, T,
                        RK_CUDA(launch_sample<T>(dev, rk_stream_of(stream), args)));
    return rk_cuda_launched(dev, (struct rk_cuda_stream *)stream, "sample");
}
