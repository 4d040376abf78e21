/* Twin of kernels/cpu/vocab_gather.c.
 *
 * Work split   One thread an id.
 *
 * Limits       No F64 logits.
 *
 * Numerics     z is the value that represents it in vocab_stats (vocab_common.cuh), so that the log-prob of a
 *              label has the same bits here. */
#include "kernels/cuda/vocab/vocab_common.cuh"

struct gather_ids {
    const int32_t *ids;
    int64_t stride, num_rows, num_ids;
};

/* Position of a thread; false beyond the last id. */
__device__ __forceinline__ bool place_of(const gather_ids &ids, int64_t &row, int64_t &k)
{
    int64_t at = (int64_t)blockIdx.x * RK_TILE_FLAT_THREADS + threadIdx.x;

    row = at / ids.num_ids;
    k = at % ids.num_ids;
    return row < ids.num_rows;
}

template <class T> struct gather_part {
    double *z;
    const double *stats;
    const T *logits;
    int64_t z_stride, stats_stride, logits_stride, vocab_begin, num_valid;
    float inv_temperature;
};

template <class T>
__global__ void __launch_bounds__(RK_TILE_FLAT_THREADS) gather_kernel(gather_part<T> part, gather_ids ids)
{
    int64_t row, k, column;

    if (!place_of(ids, row, k))
        return;
    column = ids.ids[row * ids.stride + k] - part.vocab_begin;
    if (column >= 0 && column < part.num_valid)
        part.z[row * part.z_stride + k] = z_of(
            make_row(part.logits + row * part.logits_stride, part.num_valid, part.inv_temperature, false),
            column, part.stats[row * part.stats_stride + RK_STAT_MAX]);
    else
        part.z[row * part.z_stride + k] = 0.0;
}

static gather_ids ids_of(rk_tensor_t ids)
{
    return {(const int32_t *)ids.data, ids.row_stride, ids.shape[0], ids.shape[1]};
}

template <class T>
static void launch_gather(cudaStream_t stream, const struct rk_vocab_gather_args *args, unsigned blocks)
{
    gather_part<T> part = {(double *)args->z.data,
                           (const double *)args->stats.data,
                           (const T *)args->logits.data,
                           args->z.row_stride,
                           args->stats.row_stride,
                           args->logits.row_stride,
                           args->vocab_begin,
                           args->num_valid,
                           args->inv_temperature};

    gather_kernel<T><<<blocks, RK_TILE_FLAT_THREADS, 0, stream>>>(part, ids_of(args->ids));
}

extern "C" struct rk_status *rk_cuda_op_vocab_gather(void *dev, void *stream,
                                                     const struct rk_vocab_gather_args *args)
{
    int64_t blocks = rk_ceil_div(args->ids.shape[0] * args->ids.shape[1], RK_TILE_FLAT_THREADS);

    RK_TRY(rk_check_grid("vocab_gather", blocks));
    RK_FOR_DTYPE_TO_F32("vocab_gather", args->logits.dtype, T,
                        launch_gather<T>(rk_stream_of(stream), args, (unsigned)blocks));
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream, "vocab_gather");
}

struct gather_parts {
    void *log_probs;
    const double *parts, *stats;
    int64_t log_probs_stride, part_stride, stats_stride, num_parts;
};

template <class S>
__global__ void __launch_bounds__(RK_TILE_FLAT_THREADS)
    gather_merge_kernel(gather_parts parts, gather_ids ids)
{
    int64_t row, k;
    double z = 0.0;

    if (!place_of(ids, row, k))
        return;
    for (int64_t i = 0; i < parts.num_parts; i++)
        z += parts.parts[i * parts.part_stride + row * ids.num_ids + k];
    if (ids.ids[row * ids.stride + k] >= 0) {
        const double *stats = parts.stats + row * parts.stats_stride;

        z = softmax_log_prob(z, stats[RK_STAT_MAX], stats[RK_STAT_SUM]);
    } else {
        z = 0.0;
    }
    ((S *)parts.log_probs)[row * parts.log_probs_stride + k] = (S)z;
}

extern "C" struct rk_status *rk_cuda_op_vocab_gather_merge(void *dev, void *stream,
                                                           const struct rk_vocab_gather_merge_args *args)
{
    int64_t blocks = rk_ceil_div(args->ids.shape[0] * args->ids.shape[1], RK_TILE_FLAT_THREADS);
    gather_parts parts = {
        args->log_probs.data,       (const double *)args->parts.data, (const double *)args->stats.data,
        args->log_probs.row_stride, args->parts.row_stride,           args->stats.row_stride,
        args->parts.shape[0]};
    cudaStream_t on = rk_stream_of(stream);

    RK_TRY(rk_check_grid("vocab_gather_merge", blocks));
    if (args->log_probs.dtype == RK_DTYPE_F64)
        gather_merge_kernel<double>
            <<<(unsigned)blocks, RK_TILE_FLAT_THREADS, 0, on>>>(parts, ids_of(args->ids));
    else
        gather_merge_kernel<float>
            <<<(unsigned)blocks, RK_TILE_FLAT_THREADS, 0, on>>>(parts, ids_of(args->ids));
    return rk_cuda_launched((struct rk_cuda_device *)dev, (struct rk_cuda_stream *)stream,
                            "vocab_gather_merge");
}
