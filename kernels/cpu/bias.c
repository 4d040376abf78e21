/* dbias[n] += sum_t dy[t, n], in ascending t, rounded once. */
#include "kernels/cpu/cpu_internal.h"

/* Columns that one task sums: wide enough for contiguous loads. */
#define BLOCK 64

static void sum_columns(const struct rk_bias_bwd_args *args, int64_t begin, int64_t count)
{
    double sum[BLOCK] = {0}, row[BLOCK];

    for (int64_t t = 0; t < args->dy.shape[0]; t++) {
        rk_cpu_load(row, args->dy, t, begin, count);
        for (int64_t c = 0; c < count; c++)
            sum[c] += row[c];
    }
    rk_cpu_load(row, args->dbias, 0, begin, count);
    for (int64_t c = 0; c < count; c++)
        sum[c] += row[c];
    rk_cpu_store(args->dbias, 0, begin, sum, count);
}

struct rk_status *rk_cpu_bias_bwd(void *dev, void *stream, const struct rk_bias_bwd_args *args)
{
    struct rk_cpu_device *cpu = dev;
    int64_t num_cols = args->dy.shape[1];

    (void)stream;
#pragma omp parallel for num_threads(rk_cpu_threads_over(cpu, args->dy, 1.0))
    for (int64_t c = 0; c < num_cols; c += BLOCK)
        sum_columns(args, c, RK_MIN(num_cols - c, BLOCK));
    return NULL;
}
