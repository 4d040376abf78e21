/* Twin of kernels/cpu/vocab_stats.c.
 *
 * Work split   vocab_stats: one block of 512 threads a row; each thread has 8 packs of 8 logits in flight to
 *              shared memory while it adds 4. Backward: one thread a pack, rows in grid x. Merge: one thread
 *              a token. Squares: a second kernel, one block of 512 threads a row, which relies on the maximum
 *              of the first.
 *
 * Traffic      vocab_stats: read the logits, 2 bytes each in bf16. Backward: read and write them, 4 bytes. On
 *              an H200, rows of 151936: 1024 rows 94.5 us (77% of 4.3 TB/s) and 173 us (83%), 2048 rows 177
 *              us (82%) and 346 us (84%). A term of the statistics is about 8 instructions, and its power of
 *              two, like the conversion to f64 of every eight, runs at 16 per clock and SM: 115 us for these
 *              alone at 2048 rows.
 *
 * Limits       No F64.
 *
 * Numerics     vocab_common.cuh: terms f32, sums f64; log-probs have the same f32 bits for every split of the
 *              vocabulary. Backward f32, with the probabilities of the forward pass.
 *
 * Tried        Loads into registers, 4 packs in flight a thread: 100 and 191 us. Separate exponent and
 *              mantissa of every term, for logits of any size: 14 instructions per term, 234 us; now used for
 *              terms beyond 2^64 only (vocab_common.cuh). Skipping the lower limit of the logits if the
 *              smallest of eight is far above it: 2 us slower. */
#include "kernels/cuda/vocab/vocab_common.cuh"

struct vocab_part {
    const int32_t *labels;
    int64_t vocab_begin, num_valid, num_cols, stride;
    float inv_temperature;
    bool aligned;
};

/* Column of the label in this part, or -1. */
__device__ __forceinline__ int64_t local_label(const vocab_part &part, int64_t row)
{
    int64_t column = part.labels[row] - part.vocab_begin;

    return column >= 0 && column < part.num_valid ? column : -1;
}

template <class T>
__global__ void __launch_bounds__(RK_TILE_VOCAB_THREADS, 2)
    vocab_stats_kernel(double *__restrict__ stats, int64_t stats_stride, const T *__restrict__ logits,
                       vocab_part part)
{
    extern __shared__ __align__(16) unsigned char shared[];
    int64_t row_idx = blockIdx.x, label;
    vocab_row<T> row =
        make_row(logits + row_idx * part.stride, part.num_valid, part.inv_temperature, part.aligned);
    double *out = stats + row_idx * stats_stride;
    softmax_stats result;

    rk_wait_for_stream();
    result = softmax_finish(row, keep_all(),
                            softmax_block(softmax_thread_staged(row, *(softmax_stages<T> *)shared)));
    if (threadIdx.x > 0)
        return;
    label = local_label(part, row_idx);
    out[RK_STAT_MAX] = result.max;
    out[RK_STAT_SUM] = result.sum;
    out[RK_STAT_MOMENT] = result.moment;
    out[RK_STAT_LABEL] = label >= 0 ? z_of(row, label, result.max) : 0.0;
}

/* Terms of the sum of squares: t = 2^(x - k), k the exponent of the largest term of the row. If |x| of that
 * one is below 64, t has the mantissa that the statistics add, so that Q, like S, hardly depends on how the
 * vocabulary is split. */
struct near_term {
    float c, scale; /* 2^-k */

    __device__ __forceinline__ float operator()(float logit) const
    {
        return exp2_fast(max_or_nan(logit * c, -200.0f)) * scale;
    }
};

struct far_term {
    float c, k;

    __device__ __forceinline__ float operator()(float logit) const
    {
        return exp2_fast(max_or_nan(__fmaf_rn(logit, c, -k), -200.0f));
    }
};

/* For rows outside of the fast path of the statistics; relative to the largest term itself. */
struct exact_term {
    float inv_temperature;
    double max;

    __device__ __forceinline__ float operator()(float logit) const
    {
        return (float)exp(logit * inv_temperature - max);
    }
};

/* Sum of the squares of the row's terms, eight in f32, then f64, in all threads. */
template <class T, class Term>
__device__ __forceinline__ double square_terms(const vocab_row<T> &row, Term term)
{
    constexpr int UNROLL = RK_TILE_VOCAB_UNROLL;
    __shared__ double shared[32];
    double sum = 0.0;

    for (int64_t column = (int64_t)threadIdx.x * RK_TILE_PACK; column < row.count;
         column += UNROLL * VOCAB_STEP) {
        rk_pack<T, RK_TILE_PACK> packs[UNROLL];

#pragma unroll
        for (int u = 0; u < UNROLL; u++)
            packs[u] = rk_load<RK_TILE_PACK>(row.logits + column + u * VOCAB_STEP,
                                             row.count - column - u * VOCAB_STEP, row.aligned);
#pragma unroll
        for (int u = 0; u < UNROLL; u++) {
            float logits[RK_TILE_PACK], part = 0.0f;

            rk_unpack(logits, packs[u]);
#pragma unroll
            for (int i = 0; i < RK_TILE_PACK; i++) {
                float t = column + u * VOCAB_STEP + i < row.count ? term(logits[i]) : 0.0f;

                part = __fmaf_rn(t, t, part);
            }
            sum += (double)part;
        }
    }
    return rk_block_sum(sum, shared);
}

template <class T>
__global__ void __launch_bounds__(RK_TILE_VOCAB_THREADS, 2)
    vocab_squares_kernel(double *__restrict__ squares, const double *__restrict__ stats, int64_t stats_stride,
                         const T *__restrict__ logits, vocab_part part)
{
    int64_t row_idx = blockIdx.x;
    vocab_row<T> row =
        make_row(logits + row_idx * part.stride, part.num_valid, part.inv_temperature, part.aligned);
    double max, top, k, sum, scale = 1.0;

    rk_wait_for_stream();
    max = stats[row_idx * stats_stride + RK_STAT_MAX];
    top = max * (1.0 / VOCAB_LN2);
    k = rint(top);
    if (row.count > 0 && !is_in_range((float)max, VOCAB_LOG2E)) {
        sum = square_terms(row, exact_term{row.inv_temperature, max});
    } else {
        bool is_near = fabs(top) < VOCAB_X_PLAIN;

        sum = is_near ? square_terms(row, near_term{row.c, ldexpf(1.0f, -(int)k)})
                      : square_terms(row, far_term{row.c, (float)k});
        scale = exp2(2.0 * (k - top)); /* factor from 2^k to the largest term */
    }
    if (threadIdx.x == 0)
        squares[row_idx] = row.count > 0 ? sum * scale : 0.0;
}

static vocab_part part_of(rk_tensor_t logits, rk_tensor_t labels, int64_t vocab_begin, int64_t num_valid,
                          float inv_temperature)
{
    return {(const int32_t *)labels.data,
            vocab_begin,
            num_valid,
            logits.shape[1],
            logits.row_stride,
            inv_temperature,
            rk_rows_aligned(logits)};
}

template <class T>
static cudaError_t launch_stats(const struct rk_cuda_stream *stream, const struct rk_vocab_stats_args *args,
                                vocab_part part)
{
    dim3 blocks((unsigned)args->logits.shape[0]);
    size_t bytes = part.aligned ? sizeof(softmax_stages<T>) : 0;
    cudaError_t error = cudaFuncSetAttribute(
        vocab_stats_kernel<T>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)sizeof(softmax_stages<T>));

    if (error == cudaSuccess)
        rk_launch({stream, blocks, dim3(RK_TILE_VOCAB_THREADS), bytes}, vocab_stats_kernel<T>,
                  (double *)args->stats.data, args->stats.row_stride, (const T *)args->logits.data, part);
    if (error == cudaSuccess && args->squares.data)
        rk_launch({stream, blocks, dim3(RK_TILE_VOCAB_THREADS), 0}, vocab_squares_kernel<T>,
                  (double *)args->squares.data, (const double *)args->stats.data, args->stats.row_stride,
                  (const T *)args->logits.data, part);
    return error;
}

extern "C" struct rk_status *rk_cuda_op_vocab_stats(void *dev, void *stream,
                                                    const struct rk_vocab_stats_args *args)
{
    vocab_part part =
        part_of(args->logits, args->labels, args->vocab_begin, args->num_valid, args->inv_temperature);

    RK_TRY(rk_check_grid("vocab_stats", args->logits.shape[0]));
    RK_FOR_DTYPE_TO_F32("vocab_stats", args->logits.dtype, T,
                        RK_CUDA(launch_stats<T>((const struct rk_cuda_stream *)stream, args, part)));
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "vocab_stats");
}

struct merge_args {
    double *stats, *squares; /* NULL: not written */
    const double *parts, *square_parts;
    void *log_probs, *entropy, *sum_pi_squared;
    int64_t stats_stride, part_stride, square_stride, num_parts, num_tokens;
};

__device__ __forceinline__ double merge_squares(const merge_args &args, int64_t t, double max)
{
    double squares = 0.0;

    for (int64_t i = 0; i < args.num_parts; i++) {
        double part_max = args.parts[i * args.part_stride + t * RK_NUM_STATS + RK_STAT_MAX];

        if (part_max != -INFINITY)
            squares += args.square_parts[i * args.square_stride + t] * exp(2.0 * (part_max - max));
    }
    return squares;
}

template <class S> __global__ void __launch_bounds__(RK_TILE_FLAT_THREADS) merge_kernel(merge_args args)
{
    int64_t t = (int64_t)blockIdx.x * RK_TILE_FLAT_THREADS + threadIdx.x;
    double max = -INFINITY, sum = 0.0, moment = 0.0, label = 0.0;

    if (t >= args.num_tokens)
        return;
    for (int64_t i = 0; i < args.num_parts; i++)
        max = fmax(max, args.parts[i * args.part_stride + t * RK_NUM_STATS + RK_STAT_MAX]);
    for (int64_t i = 0; i < args.num_parts; i++) {
        const double *part = args.parts + i * args.part_stride + t * RK_NUM_STATS;
        double shift = part[RK_STAT_MAX] - max;

        label += part[RK_STAT_LABEL];
        if (part[RK_STAT_MAX] == -INFINITY)
            continue;
        sum += part[RK_STAT_SUM] * exp(shift);
        moment += exp(shift) * (part[RK_STAT_MOMENT] + shift * part[RK_STAT_SUM]);
    }
    ((S *)args.log_probs)[t] = (S)softmax_log_prob(label, max, sum);
    if (args.entropy)
        ((S *)args.entropy)[t] = (S)(log(sum) - moment / sum);
    if (args.square_parts) {
        double squares = merge_squares(args, t, max);

        if (args.squares)
            args.squares[t] = squares;
        if (args.sum_pi_squared)
            ((S *)args.sum_pi_squared)[t] = (S)(squares / (sum * sum));
    }
    if (args.stats) {
        double *out = args.stats + t * args.stats_stride;

        out[RK_STAT_MAX] = max;
        out[RK_STAT_SUM] = sum;
        out[RK_STAT_MOMENT] = moment;
        out[RK_STAT_LABEL] = label;
    }
}

extern "C" struct rk_status *rk_cuda_op_vocab_stats_merge(void *dev, void *stream,
                                                          const struct rk_vocab_stats_merge_args *args)
{
    merge_args merge = {(double *)args->stats.data,
                        (double *)args->squares.data,
                        (const double *)args->parts.data,
                        (const double *)args->square_parts.data,
                        args->log_probs.data,
                        args->entropy.data,
                        args->sum_pi_squared.data,
                        args->stats.row_stride,
                        args->parts.row_stride,
                        args->square_parts.row_stride,
                        args->parts.shape[0],
                        args->parts.shape[1]};
    int64_t blocks = rk_ceil_div(merge.num_tokens, RK_TILE_FLAT_THREADS);

    RK_TRY(rk_check_grid("vocab_stats_merge", blocks));
    if (args->log_probs.dtype == RK_DTYPE_F64)
        merge_kernel<double><<<(unsigned)blocks, RK_TILE_FLAT_THREADS, 0, rk_stream_of(stream)>>>(merge);
    else
        merge_kernel<float><<<(unsigned)blocks, RK_TILE_FLAT_THREADS, 0, rk_stream_of(stream)>>>(merge);
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream,
                            "vocab_stats_merge");
}

struct upstream {
    const double *stats; /* merged */
    int64_t stats_stride;
    const float *dlog_probs, *dentropy; /* dentropy may be NULL */
    const float *dsum_pi_squared;       /* may be NULL */
    const double *squares;              /* merged; for dsum_pi_squared */
    const float *dsum;                  /* sum of the gradients of log-probs at other ids; may be NULL */
};

/* The gradient of one row, p (slope + curve (z - m - U/S) + rise p), in terms of x = c logit - k with the c
 * of vocab_common.cuh and the exponent k of m: p = 2^x * scale and dlogits = p (curve x + slope + rise p),
 * plus `jump` at the label. So p is that of the forward pass, whose terms are powers of two. */
struct row_gradient {
    float k, scale, slope, curve, rise, jump;
};

__device__ __forceinline__ row_gradient gradient_of(const upstream &up, int64_t row, float inv_temperature)
{
    const double *stats = up.stats + row * up.stats_stride;
    double top = stats[RK_STAT_MAX] * (1.0 / VOCAB_LN2), k = rint(top);
    float rest = (float)(top - k), inv_sum = 1.0f / (float)stats[RK_STAT_SUM];
    float mean = (float)stats[RK_STAT_MOMENT] * inv_sum; /* of z - m under p */
    float a = up.dlog_probs[row] * inv_temperature,
          b = up.dentropy ? up.dentropy[row] * inv_temperature : 0.0f;

    row_gradient gradient = {(float)k,
                             exp2_fast(-rest) * inv_sum,
                             b * (rest * (float)VOCAB_LN2 + mean) - a,
                             -b * (float)VOCAB_LN2,
                             0.0f,
                             a};

    if (up.dsum)
        gradient.slope -= up.dsum[row] * inv_temperature;
    if (up.dsum_pi_squared) {
        gradient.rise = 2.0f * up.dsum_pi_squared[row] * inv_temperature;
        gradient.slope -= gradient.rise * (float)up.squares[row] * inv_sum * inv_sum;
    }
    return gradient;
}

/* dlogits and logits may be one tensor: a thread reads its pack before it writes it. SQUARES: adds the term
 * of sum_pi_squared; otherwise not even 0 is added, which would change the sign of a 0. */
template <class T, bool SQUARES>
__global__ void __launch_bounds__(RK_TILE_FLAT_THREADS)
    vocab_stats_bwd_kernel(T *dlogits, int64_t dlogits_stride, const T *logits, vocab_part part, upstream up)
{
    int64_t row = blockIdx.x,
            column = ((int64_t)blockIdx.y * RK_TILE_FLAT_THREADS + threadIdx.x) * RK_TILE_PACK;
    int64_t label = local_label(part, row) - column, count = part.num_cols - column;
    row_gradient gradient = gradient_of(up, row, part.inv_temperature);
    float c = part.inv_temperature * VOCAB_LOG2E, dz[RK_TILE_PACK];
    rk_pack<T, RK_TILE_PACK> pack;

    if (count <= 0)
        return;
    pack = rk_load<RK_TILE_PACK>(logits + row * part.stride + column, count, part.aligned);
    rk_unpack(dz, pack);
#pragma unroll
    for (int i = 0; i < RK_TILE_PACK; i++) {
        /* Lower bound where p is 0 anyway: 0 times -inf would be NaN in the entropy's term. */
        float x = fmaxf(__fmaf_rn(dz[i], c, -gradient.k), -200.0f);
        float p = exp2_fast(x) * gradient.scale, rate = __fmaf_rn(gradient.curve, x, gradient.slope);

        dz[i] = p * (SQUARES ? __fmaf_rn(gradient.rise, p, rate) : rate);
    }
    if (label >= 0 && label < RK_TILE_PACK) {
#pragma unroll
        for (int i = 0; i < RK_TILE_PACK; i++)
            dz[i] += i == label ? gradient.jump : 0.0f;
    }
#pragma unroll
    for (int i = 0; i < RK_TILE_PACK; i++)
        dz[i] = column + i < part.num_valid ? dz[i] : 0.0f;
    rk_store(dlogits + row * dlogits_stride + column, rk_repack<T>(dz), count, part.aligned);
}

static upstream upstream_of(const struct rk_vocab_stats_bwd_args *args)
{
    return {(const double *)args->stats.data,
            args->stats.row_stride,
            (const float *)args->dlog_probs.data,
            (const float *)args->dentropy.data,
            (const float *)args->dsum_pi_squared.data,
            (const double *)args->squares.data,
            args->gathered.ids.data ? (const float *)args->gathered.dsum.data : NULL};
}

/* Upstream gradients of log-probs at ids. */
struct gathered_ids {
    const int32_t *ids;
    const float *log_probs, *dlog_probs;
    int64_t ids_stride, log_probs_stride, dlog_probs_stride;
    int num_ids;
};

/* Recomputes the gradient at the ids of a row: adding to the value that vocab_stats_bwd_kernel has rounded
 * could give a relative error of 1 where terms cancel. The logits may have been overwritten, so p is computed
 * from the log-prob. */
template <class T>
__global__ void __launch_bounds__(RK_TILE_FLAT_THREADS)
    gathered_bwd_kernel(T *dlogits, int64_t dlogits_stride, gathered_ids gathered, vocab_part part,
                        upstream up)
{
    __shared__ int32_t ids[RK_VOCAB_IDS_MAX];
    int64_t row = blockIdx.x, label = local_label(part, row);
    const double *stats = up.stats + row * up.stats_stride;
    const float *dlog_probs = gathered.dlog_probs + row * gathered.dlog_probs_stride;
    row_gradient gradient = gradient_of(up, row, part.inv_temperature);
    double top = stats[RK_STAT_MAX] * (1.0 / VOCAB_LN2);
    float log2_sum = (float)(log2(stats[RK_STAT_SUM]) + (top - rint(top))); /* x = log2 p + this */

    for (int k = (int)threadIdx.x; k < gathered.num_ids; k += RK_TILE_FLAT_THREADS)
        ids[k] = gathered.ids[row * gathered.ids_stride + k];
    __syncthreads(); /* all ids are written */
    for (int k = (int)threadIdx.x; k < gathered.num_ids; k += RK_TILE_FLAT_THREADS) {
        int64_t column = ids[k] - part.vocab_begin;
        float log_prob = fmaxf(gathered.log_probs[row * gathered.log_probs_stride + k], -140.0f);
        float p = expf(log_prob), own = 0.0f, rate;
        bool is_first = true;

        if (column < 0 || column >= part.num_valid)
            continue;
        for (int other = 0; other < gathered.num_ids; other++) {
            bool is_same = ids[other] == ids[k];

            is_first = is_first && !(is_same && other < k);
            own += is_same ? dlog_probs[other] : 0.0f;
        }
        rate = __fmaf_rn(gradient.curve, __fmaf_rn(log_prob, VOCAB_LOG2E, log2_sum), gradient.slope);
        rate = __fmaf_rn(gradient.rise, p, rate);
        own = __fmaf_rn(p, rate, own * part.inv_temperature + (column == label ? gradient.jump : 0.0f));
        if (is_first)
            dlogits[row * dlogits_stride + column] = rk_narrow<T>(own);
    }
}

template <class T>
static void launch_gathered(cudaStream_t stream, const struct rk_vocab_stats_bwd_args *args, vocab_part part)
{
    const struct rk_vocab_gather_grads *from = &args->gathered;
    gathered_ids gathered = {(const int32_t *)from->ids.data,
                             (const float *)from->log_probs.data,
                             (const float *)from->dlog_probs.data,
                             from->ids.row_stride,
                             from->log_probs.row_stride,
                             from->dlog_probs.row_stride,
                             (int)from->ids.shape[1]};

    gathered_bwd_kernel<T><<<(unsigned)args->logits.shape[0], RK_TILE_FLAT_THREADS, 0, stream>>>(
        (T *)args->dlogits.data, args->dlogits.row_stride, gathered, part, upstream_of(args));
}

template <class T>
static void launch_bwd(cudaStream_t stream, const struct rk_vocab_stats_bwd_args *args, vocab_part part)
{
    dim3 blocks((unsigned)args->logits.shape[0],
                (unsigned)rk_ceil_div(part.num_cols, RK_TILE_FLAT_THREADS * RK_TILE_PACK));
    upstream up = upstream_of(args);
    auto kernel = up.dsum_pi_squared ? vocab_stats_bwd_kernel<T, true> : vocab_stats_bwd_kernel<T, false>;

    part.aligned = part.aligned && rk_rows_aligned(args->dlogits);
    kernel<<<blocks, RK_TILE_FLAT_THREADS, 0, stream>>>((T *)args->dlogits.data, args->dlogits.row_stride,
                                                        (const T *)args->logits.data, part, up);
    if (args->gathered.ids.data)
        launch_gathered<T>(stream, args, part);
}

extern "C" struct rk_status *rk_cuda_op_vocab_stats_bwd(void *dev, void *stream,
                                                        const struct rk_vocab_stats_bwd_args *args)
{
    vocab_part part =
        part_of(args->logits, args->labels, args->vocab_begin, args->num_valid, args->inv_temperature);

    RK_TRY(rk_check_grid("vocab_stats_bwd", args->logits.shape[0]));
    RK_FOR_DTYPE_TO_F32("vocab_stats_bwd", args->logits.dtype, T,
                        launch_bwd<T>(rk_stream_of(stream), args, part));
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "vocab_stats_bwd");
}
