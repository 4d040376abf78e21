/* Passes over flat memory: axpby, sum of squares, AdamW. Work is split into blocks of a fixed size,
 * independent of the number of threads. */
#include "kernels/cpu/cpu_internal.h"

#include <math.h>

/* Elements of a block: its f64 copies fit the L1 cache. */
#define BLOCK 1024

struct rk_status *rk_cpu_axpby(void *dev, void *stream, const struct rk_axpby_args *args)
{
    const struct rk_cpu_device *cpu = dev;
    int64_t count = rk_tensor_num_elements(args->y);

    (void)stream;
#pragma omp parallel for num_threads(rk_cpu_num_threads(cpu, count))
    for (int64_t begin = 0; begin < count; begin += BLOCK) {
        int64_t n = RK_MIN(count - begin, BLOCK);
        double x[BLOCK], y[BLOCK];

        rk_cpu_load(x, args->x, 0, begin, n);
        for (int64_t i = 0; i < n; i++)
            x[i] *= args->alpha;
        if (args->beta != 0.0f) {
            rk_cpu_load(y, args->y, 0, begin, n);
            for (int64_t i = 0; i < n; i++)
                x[i] += args->beta * y[i];
        }
        rk_cpu_store(args->y, 0, begin, x, n);
    }
    return NULL;
}

struct rk_status *rk_cpu_sum_squares(void *dev, void *stream, const struct rk_sum_squares_args *args)
{
    struct rk_cpu_device *cpu = dev;
    int64_t count = rk_tensor_num_elements(args->x);
    int64_t num_blocks = (count + BLOCK - 1) / BLOCK;
    double *out = args->out.data;
    double *partial;

    (void)stream;
    RK_TRY(rk_cpu_scratch_reserve(cpu, 2 * num_blocks));
    partial = rk_cpu_scratch(cpu);
#pragma omp parallel for num_threads(rk_cpu_num_threads(cpu, count))
    for (int64_t b = 0; b < num_blocks; b++) {
        int64_t n = RK_MIN(count - b * BLOCK, BLOCK);
        double x[BLOCK], sum = 0.0, num_non_finite = 0.0;

        rk_cpu_load(x, args->x, 0, b * BLOCK, n);
        for (int64_t i = 0; i < n; i++)
            sum += x[i] * x[i];
        for (int64_t i = 0; i < n && !isfinite(sum); i++)
            num_non_finite += isfinite(x[i]) ? 0.0 : 1.0;
        partial[2 * b] = sum;
        partial[2 * b + 1] = num_non_finite;
    }
    for (int64_t b = 0; b < num_blocks; b++) {
        out[0] += partial[2 * b];
        out[1] += partial[2 * b + 1];
    }
    return NULL;
}

/* One block of AdamW in f64: w, m and v are updated in place, g is the raw gradient. */
static void adamw_block(const struct rk_adamw_args *args, double *w, double *m, double *v, const double *g,
                        int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        double grad = g[i] * args->grad_scale;
        double step;

        m[i] = args->beta1 * m[i] + (1.0 - args->beta1) * grad;
        v[i] = args->beta2 * v[i] + (1.0 - args->beta2) * grad * grad;
        step = m[i] / args->correction1 / (sqrt(v[i] / args->correction2) + args->eps);
        w[i] -= args->lr * (step + args->weight_decay * w[i]);
    }
}

struct rk_status *rk_cpu_adamw(void *dev, void *stream, const struct rk_adamw_args *args)
{
    const struct rk_cpu_device *cpu = dev;
    int64_t count = args->param.shape[0];

    (void)stream;
#pragma omp parallel for num_threads(rk_cpu_num_threads(cpu, 4.0 * (double)count))
    for (int64_t begin = 0; begin < count; begin += BLOCK) {
        int64_t n = RK_MIN(count - begin, BLOCK);
        double w[BLOCK], m[BLOCK], v[BLOCK], g[BLOCK];

        rk_cpu_load(w, args->master, 0, begin, n);
        rk_cpu_load(m, args->m, 0, begin, n);
        rk_cpu_load(v, args->v, 0, begin, n);
        rk_cpu_load(g, args->grad, 0, begin, n);
        adamw_block(args, w, m, v, g, n);
        rk_cpu_store(args->m, 0, begin, m, n);
        rk_cpu_store(args->v, 0, begin, v, n);
        rk_cpu_store(args->master, 0, begin, w, n);
        /* The parameter is its rounded master, so a parameter restored from the master is bit-identical. */
        rk_cpu_load(w, args->master, 0, begin, n);
        rk_cpu_store(args->param, 0, begin, w, n);
    }
    return NULL;
}
