/* RMS normalisation. y = s * rstd * weight, rstd = 1/sqrt(mean(s^2) + eps), per row, with s = x (+ residual).
 *
 * s is rounded to the tensors' dtype before it is normalised, even if it is not returned, so that a fused
 * call and one over the stored sum are bit-identical. */
#include "kernels/cpu/cpu_internal.h"

#include <math.h>

static void forward_row(const struct rk_rmsnorm_fwd_args *args, int64_t t, const double *weight, double *s,
                        double *residual)
{
    int64_t hidden_size = args->x.shape[1];
    double sum_sq = 0.0, rstd;

    rk_cpu_load(s, args->x, t, 0, hidden_size);
    if (args->residual.data) {
        rk_cpu_load(residual, args->residual, t, 0, hidden_size);
        for (int64_t c = 0; c < hidden_size; c++)
            s[c] += residual[c];
        rk_cpu_store(args->sum, t, 0, s, hidden_size);
        rk_cpu_load(s, args->sum, t, 0, hidden_size);
    }
    for (int64_t c = 0; c < hidden_size; c++)
        sum_sq += s[c] * s[c];
    rstd = 1.0 / sqrt(sum_sq / (double)hidden_size + args->eps);
    for (int64_t c = 0; c < hidden_size; c++)
        s[c] = s[c] * rstd * weight[c];
    rk_cpu_store(args->y, t, 0, s, hidden_size);
    if (args->rstd.data)
        rk_cpu_store(args->rstd, 0, t, &rstd, 1);
}

struct rk_status *rk_cpu_rmsnorm_fwd(void *dev, void *stream, const struct rk_rmsnorm_fwd_args *args)
{
    struct rk_cpu_device *cpu = dev;
    int64_t hidden_size = args->x.shape[1];

    (void)stream;
    RK_TRY(rk_cpu_scratch_reserve(cpu, 3 * hidden_size));
#pragma omp parallel num_threads(rk_cpu_threads_over(cpu, args->x, 1.0))
    {
        double *weight = rk_cpu_scratch(cpu);

        rk_cpu_load(weight, args->weight, 0, 0, hidden_size);
#pragma omp for
        for (int64_t t = 0; t < args->x.shape[0]; t++)
            forward_row(args, t, weight, weight + hidden_size, weight + 2 * hidden_size);
    }
    return NULL;
}

/* dx = dresidual + rstd * (g - xhat * mean(g * xhat)),  xhat = x * rstd,  g = dy * weight */
static void backward_row(const struct rk_rmsnorm_bwd_args *args, int64_t t, const double *weight, double *g,
                         double *xhat)
{
    int64_t hidden_size = args->dy.shape[1];
    double rstd = rk_cpu_load_one(args->rstd, 0, t);
    double mean = 0.0;

    rk_cpu_load(g, args->dy, t, 0, hidden_size);
    rk_cpu_load(xhat, args->x, t, 0, hidden_size);
    for (int64_t c = 0; c < hidden_size; c++) {
        g[c] *= weight[c];
        xhat[c] *= rstd;
        mean += g[c] * xhat[c];
    }
    mean /= (double)hidden_size;
    for (int64_t c = 0; c < hidden_size; c++)
        g[c] = rstd * (g[c] - xhat[c] * mean);
    if (args->dresidual.data) {
        double *dresidual = xhat;

        rk_cpu_load(dresidual, args->dresidual, t, 0, hidden_size);
        for (int64_t c = 0; c < hidden_size; c++)
            g[c] += dresidual[c];
    }
    rk_cpu_store(args->dx, t, 0, g, hidden_size);
}

/* Columns of dweight that one task sums: wide enough for contiguous loads. */
#define WEIGHT_BLOCK 64

/* dweight += sum_t dy * xhat for one block of columns, in ascending t, rounded once. */
static void backward_weight(const struct rk_rmsnorm_bwd_args *args, int64_t begin, int64_t count)
{
    double sum[WEIGHT_BLOCK] = {0}, dy[WEIGHT_BLOCK], x[WEIGHT_BLOCK];

    for (int64_t t = 0; t < args->dy.shape[0]; t++) {
        double rstd = rk_cpu_load_one(args->rstd, 0, t);

        rk_cpu_load(dy, args->dy, t, begin, count);
        rk_cpu_load(x, args->x, t, begin, count);
        for (int64_t c = 0; c < count; c++)
            sum[c] += dy[c] * (x[c] * rstd);
    }
    rk_cpu_load(x, args->dweight, 0, begin, count);
    for (int64_t c = 0; c < count; c++)
        sum[c] += x[c];
    rk_cpu_store(args->dweight, 0, begin, sum, count);
}

struct rk_status *rk_cpu_rmsnorm_bwd(void *dev, void *stream, const struct rk_rmsnorm_bwd_args *args)
{
    struct rk_cpu_device *cpu = dev;
    int64_t hidden_size = args->dy.shape[1];

    (void)stream;
    RK_TRY(rk_cpu_scratch_reserve(cpu, 3 * hidden_size));
    /* Before dx, which may overwrite dresidual but must not overwrite the tensors read here. */
#pragma omp parallel for num_threads(rk_cpu_threads_over(cpu, args->dy, 1.0))
    for (int64_t c = 0; c < hidden_size; c += WEIGHT_BLOCK)
        backward_weight(args, c, RK_MIN(hidden_size - c, WEIGHT_BLOCK));
#pragma omp parallel num_threads(rk_cpu_threads_over(cpu, args->dy, 1.0))
    {
        double *weight = rk_cpu_scratch(cpu);

        rk_cpu_load(weight, args->weight, 0, 0, hidden_size);
#pragma omp for
        for (int64_t t = 0; t < args->dy.shape[0]; t++)
            backward_row(args, t, weight, weight + hidden_size, weight + 2 * hidden_size);
    }
    return NULL;
}
