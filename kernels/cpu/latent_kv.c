/* Operators of latent attention other than GEMMs: assembly of keys and values from the heads' separate parts
 * and their shared part, the sums of the gradients, and gathering of the cache blocks of sequences for
 * GEMMs. */
#include "kernels/cpu/cpu_internal.h"

#include <string.h>

/* Token t of head h in [T, heads, width], or in blocks. */
static void *head_at(rk_tensor_t x, int64_t t, int64_t h)
{
    int64_t block_size;

    if (x.rank == 3)
        return rk_cpu_at(x, t, h * x.shape[2]);
    block_size = x.shape[2];
    return rk_cpu_at(x, t / block_size, (h * block_size + t % block_size) * x.shape[3]);
}

struct rk_status *rk_cpu_latent_kv(void *dev, void *stream, const struct rk_latent_kv_args *args)
{
    const struct rk_cpu_device *cpu = dev;
    size_t element = rk_dtype_bytes(args->kv.dtype);
    int64_t rope_dim = args->rope.shape[1], heads = args->kv.shape[1], width = args->kv.shape[2];
    int64_t v_head_dim = args->v.shape[args->v.rank - 1], nope = width - v_head_dim;

    (void)stream;
#pragma omp parallel for num_threads(rk_cpu_threads_over(cpu, args->kv, RK_WORK_COPY))
    for (int64_t t = 0; t < args->kv.shape[0]; t++) {
        for (int64_t h = 0; h < heads; h++) {
            char *key = head_at(args->k, t, h);

            memcpy(key, rk_cpu_at(args->kv, t, h * width), (size_t)nope * element);
            memcpy(key + (size_t)nope * element, rk_cpu_at(args->rope, t, 0), (size_t)rope_dim * element);
            memcpy(head_at(args->v, t, h), rk_cpu_at(args->kv, t, h * width + nope),
                   (size_t)v_head_dim * element);
        }
    }
    return NULL;
}

static void split_gradients(const struct rk_latent_kv_bwd_args *args, int64_t t, double *scratch)
{
    size_t element = rk_dtype_bytes(args->dkv.dtype);
    int64_t rope_dim = args->drope.shape[1], heads = args->dkv.shape[1], width = args->dkv.shape[2];
    int64_t v_head_dim = args->dv.shape[2], nope = width - v_head_dim;
    double *sum = scratch, *part = scratch + rope_dim;

    for (int64_t c = 0; c < rope_dim; c++)
        sum[c] = 0.0;
    for (int64_t h = 0; h < heads; h++) {
        memcpy(rk_cpu_at(args->dkv, t, h * width), head_at(args->dk, t, h), (size_t)nope * element);
        memcpy(rk_cpu_at(args->dkv, t, h * width + nope), head_at(args->dv, t, h),
               (size_t)v_head_dim * element);
        rk_cpu_load(part, args->dk, t, h * (nope + rope_dim) + nope, rope_dim);
        for (int64_t c = 0; c < rope_dim; c++)
            sum[c] += part[c];
    }
    rk_cpu_store(args->drope, t, 0, sum, rope_dim);
}

struct rk_status *rk_cpu_latent_kv_bwd(void *dev, void *stream, const struct rk_latent_kv_bwd_args *args)
{
    struct rk_cpu_device *cpu = dev;

    (void)stream;
    RK_TRY(rk_cpu_scratch_reserve(cpu, 2 * args->drope.shape[1]));
#pragma omp parallel for num_threads(rk_cpu_threads_over(cpu, args->dkv, 1.0))
    for (int64_t t = 0; t < args->dkv.shape[0]; t++)
        split_gradients(args, t, rk_cpu_scratch(cpu));
    return NULL;
}

struct rk_status *rk_cpu_gather_blocks(void *dev, void *stream, const struct rk_gather_blocks_args *args)
{
    const struct rk_cpu_device *cpu = dev;
    int64_t num_seqs = args->block_table.shape[0], max_blocks = args->block_table.shape[1];
    size_t block_bytes = (size_t)rk_tensor_row_elements(args->cache) * rk_dtype_bytes(args->cache.dtype);
    int32_t *numbers = args->numbers.data;

    (void)stream;
    for (int64_t r = 0; r < num_seqs; r++)
        RK_TRY(rk_cpu_check_range("gather_blocks", "block_table",
                                  rk_tensor_1d(rk_cpu_at(args->block_table, r, 0), RK_DTYPE_I32, max_blocks),
                                  0, args->cache.shape[0] - 1));
#pragma omp parallel for num_threads(rk_cpu_threads_over(cpu, args->out, RK_WORK_COPY))
    for (int64_t i = 0; i < num_seqs * max_blocks; i++) {
        const int32_t *block = rk_cpu_at(args->block_table, i / max_blocks, i % max_blocks);

        memcpy(rk_cpu_at(args->out, i, 0), rk_cpu_at(args->cache, *block, 0), block_bytes);
        numbers[i] = (int32_t)i;
    }
    return NULL;
}
