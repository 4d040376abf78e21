/* Twin of kernels/cpu/vocab_stats.c.
 *
 * Work split   vocab_stats: one block of 512 threads a row; of each thread 8 packs of 8 logits are on their
 *              way to shared memory while 4 are added. Backward: one thread a pack, rows in grid x. Merge:
 *              one thread a token.
 *
 * Traffic      vocab_stats: read the logits, 2 bytes each in bf16. Backward: read and write them, 4 bytes.
 *              On an H200, rows of 151936: 1024 rows 94.5 us (77% of 4.3 TB/s) and 173 us (83%), 2048 rows
 *              177 us (82%) and 346 us (84%). A term of the statistics is about 8 instructions, and its
 *              power of two, like the change to f64 of each eight, is one of 16 a clock and SM: 115 us by
 *              themselves at 2048 rows.
 *
 * Limits       No F64.
 *
 * Numerics     vocab_common.cuh: terms f32, sums f64; log-probs have the same f32 bits whatever the split of
 *              the vocabulary. Backward f32, with the probabilities of the forward pass.
 *
 * Tried        Loads into registers, 4 packs in flight a thread: 100 and 191 us. Exponent and mantissa of
 *              every term apart, for any size of the logits: 14 instructions a term, 234 us. That is now
 *              for terms beyond 2^64 only (vocab_common.cuh). No lower limit of the logits where the smallest
 *              of eight is far from it: 2 us slower. */
#include "kernels/cuda/vocab_common.cuh"

enum { STAT_MAX, STAT_SUM, STAT_MOMENT, STAT_LABEL, NUM_STATS };

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
    out[STAT_MAX] = result.max;
    out[STAT_SUM] = result.sum;
    out[STAT_MOMENT] = result.moment;
    out[STAT_LABEL] = label >= 0 ? z_of(row, label, result.max) : 0.0;
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
    double *stats; /* NULL: not wanted */
    const double *parts;
    void *log_probs, *entropy;
    int64_t stats_stride, part_stride, num_parts, num_tokens;
};

template <class S> __global__ void __launch_bounds__(RK_TILE_FLAT_THREADS) merge_kernel(merge_args args)
{
    int64_t t = (int64_t)blockIdx.x * RK_TILE_FLAT_THREADS + threadIdx.x;
    double max = -INFINITY, sum = 0.0, moment = 0.0, label = 0.0;

    if (t >= args.num_tokens)
        return;
    for (int64_t i = 0; i < args.num_parts; i++)
        max = fmax(max, args.parts[i * args.part_stride + t * NUM_STATS + STAT_MAX]);
    for (int64_t i = 0; i < args.num_parts; i++) {
        const double *part = args.parts + i * args.part_stride + t * NUM_STATS;
        double shift = part[STAT_MAX] - max;

        label += part[STAT_LABEL];
        if (part[STAT_MAX] == -INFINITY)
            continue;
        sum += part[STAT_SUM] * exp(shift);
        moment += exp(shift) * (part[STAT_MOMENT] + shift * part[STAT_SUM]);
    }
    ((S *)args.log_probs)[t] = (S)softmax_log_prob(label, max, sum);
    if (args.entropy)
        ((S *)args.entropy)[t] = (S)(log(sum) - moment / sum);
    if (args.stats) {
        double *out = args.stats + t * args.stats_stride;

        out[STAT_MAX] = max;
        out[STAT_SUM] = sum;
        out[STAT_MOMENT] = moment;
        out[STAT_LABEL] = label;
    }
}

extern "C" struct rk_status *rk_cuda_op_vocab_stats_merge(void *dev, void *stream,
                                                          const struct rk_vocab_stats_merge_args *args)
{
    merge_args merge = {(double *)args->stats.data, (const double *)args->parts.data,
                        args->log_probs.data,       args->entropy.data,
                        args->stats.row_stride,     args->parts.row_stride,
                        args->parts.shape[0],       args->parts.shape[1]};
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
};

/* The gradient of one row, p (slope + curve (z - m - U/S)), in terms of x = c logit - k with the c of
 * vocab_common.cuh and the exponent k of m: p = 2^x * scale and dlogits = p (curve x + slope), and `jump`
 * more at the label. So p is that of the forward pass, whose terms are powers of two. */
struct row_gradient {
    float k, scale, slope, curve, jump;
};

__device__ __forceinline__ row_gradient gradient_of(const upstream &up, int64_t row, float inv_temperature)
{
    const double *stats = up.stats + row * up.stats_stride;
    double top = stats[STAT_MAX] * (1.0 / VOCAB_LN2), k = rint(top);
    float rest = (float)(top - k), inv_sum = 1.0f / (float)stats[STAT_SUM];
    float mean = (float)stats[STAT_MOMENT] * inv_sum; /* of z - m under p */
    float a = up.dlog_probs[row] * inv_temperature,
          b = up.dentropy ? up.dentropy[row] * inv_temperature : 0.0f;

    return {(float)k, exp2_fast(-rest) * inv_sum, b * (rest * (float)VOCAB_LN2 + mean) - a,
            -b * (float)VOCAB_LN2, a};
}

/* dlogits and logits may be one tensor: a thread reads its pack before it writes it. */
template <class T>
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
        float x = __fmaf_rn(dz[i], c, -gradient.k);

        x = fmaxf(x, -200.0f); /* where p is 0, and 0 times -inf would be no term of the entropy */
        dz[i] = exp2_fast(x) * gradient.scale * __fmaf_rn(gradient.curve, x, gradient.slope);
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

template <class T>
static void launch_bwd(cudaStream_t stream, const struct rk_vocab_stats_bwd_args *args, vocab_part part)
{
    dim3 blocks((unsigned)args->logits.shape[0],
                (unsigned)rk_ceil_div(part.num_cols, RK_TILE_FLAT_THREADS * RK_TILE_PACK));
    upstream up = {(const double *)args->stats.data, args->stats.row_stride,
                   (const float *)args->dlog_probs.data, (const float *)args->dentropy.data};

    part.aligned = part.aligned && rk_rows_aligned(args->dlogits);
    vocab_stats_bwd_kernel<T><<<blocks, RK_TILE_FLAT_THREADS, 0, stream>>>(
        (T *)args->dlogits.data, args->dlogits.row_stride, (const T *)args->logits.data, part, up);
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
