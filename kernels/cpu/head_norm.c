/* RMS normalisation of every head. y = x * rstd * weight, rstd = 1/sqrt(mean(x^2) + eps), over head_dim. */
#include "kernels/cpu/cpu_internal.h"

#include <math.h>

static void forward_token(const struct rk_head_norm_fwd_args *args, int64_t t, const double *weight,
                          double *x)
{
    int64_t num_heads = args->x.shape[1], head_dim = args->x.shape[2];

    for (int64_t h = 0; h < num_heads; h++) {
        double sum_sq = 0.0, rstd;

        rk_cpu_load(x, args->x, t, h * head_dim, head_dim);
        for (int64_t c = 0; c < head_dim; c++)
            sum_sq += x[c] * x[c];
        rstd = 1.0 / sqrt(sum_sq / (double)head_dim + args->eps);
        for (int64_t c = 0; c < head_dim; c++)
            x[c] = x[c] * rstd * weight[c];
        rk_cpu_store(args->y, t, h * head_dim, x, head_dim);
        if (args->rstd.data)
            rk_cpu_store(args->rstd, t, h, &rstd, 1);
    }
}

struct rk_status *rk_cpu_head_norm_fwd(void *dev, void *stream, const struct rk_head_norm_fwd_args *args)
{
    struct rk_cpu_device *cpu = dev;
    int64_t head_dim = args->x.shape[2];

    (void)stream;
    RK_TRY(rk_cpu_scratch_reserve(cpu, 2 * head_dim));
#pragma omp parallel num_threads(rk_cpu_threads_over(cpu, args->x, 1.0))
    {
        double *weight = rk_cpu_scratch(cpu);

        rk_cpu_load(weight, args->weight, 0, 0, head_dim);
#pragma omp for
        for (int64_t t = 0; t < args->x.shape[0]; t++)
            forward_token(args, t, weight, weight + head_dim);
    }
    return NULL;
}

/* dx = rstd * (g - xhat * mean(g * xhat)),  xhat = x * rstd,  g = dy * weight */
static void backward_head(const struct rk_head_norm_bwd_args *args, int64_t t, int64_t h,
                          const double *weight, double *g)
{
    int64_t head_dim = args->x.shape[2];
    double rstd = rk_cpu_load_one(args->rstd, t, h), mean = 0.0;
    double *xhat = g + head_dim;

    rk_cpu_load(g, args->dy, t, h * head_dim, head_dim);
    rk_cpu_load(xhat, args->x, t, h * head_dim, head_dim);
    for (int64_t c = 0; c < head_dim; c++) {
        g[c] *= weight[c];
        xhat[c] *= rstd;
        mean += g[c] * xhat[c];
    }
    mean /= (double)head_dim;
    for (int64_t c = 0; c < head_dim; c++)
        g[c] = rstd * (g[c] - xhat[c] * mean);
    rk_cpu_store(args->dx, t, h * head_dim, g, head_dim);
}

/* dweight += sum over tokens and heads of dy * xhat, in ascending order, rounded once. */
static void backward_weight(const struct rk_head_norm_bwd_args *args, double *sum)
{
    int64_t num_heads = args->x.shape[1], head_dim = args->x.shape[2];
    double *dy = sum + head_dim, *x = dy + head_dim;

    rk_cpu_load(sum, args->dweight, 0, 0, head_dim);
    for (int64_t t = 0; t < args->x.shape[0]; t++) {
        for (int64_t h = 0; h < num_heads; h++) {
            double rstd = rk_cpu_load_one(args->rstd, t, h);

            rk_cpu_load(dy, args->dy, t, h * head_dim, head_dim);
            rk_cpu_load(x, args->x, t, h * head_dim, head_dim);
            for (int64_t c = 0; c < head_dim; c++)
                sum[c] += dy[c] * (x[c] * rstd);
        }
    }
    rk_cpu_store(args->dweight, 0, 0, sum, head_dim);
}

struct rk_status *rk_cpu_head_norm_bwd(void *dev, void *stream, const struct rk_head_norm_bwd_args *args)
{
    struct rk_cpu_device *cpu = dev;
    int64_t head_dim = args->x.shape[2];

    (void)stream;
    RK_TRY(rk_cpu_scratch_reserve(cpu, 3 * head_dim));
    backward_weight(args, rk_cpu_scratch(cpu)); /* before dx, which may overwrite dy */
#pragma omp parallel num_threads(rk_cpu_threads_over(cpu, args->x, 1.0))
    {
        double *weight = rk_cpu_scratch(cpu);

        rk_cpu_load(weight, args->weight, 0, 0, head_dim);
#pragma omp for
        for (int64_t t = 0; t < args->x.shape[0]; t++) {
            for (int64_t h = 0; h < args->x.shape[1]; h++)
                backward_head(args, t, h, weight, weight + head_dim);
        }
    }
    return NULL;
}
