/* y = p * silu(gate) * up with silu(g) = g * s, s = 1/(1 + e^-g), and p = 1 without probabilities.
 * Backward, with d = p * dy: dup = d * g * s,  dgate = d * up * s * (1 + g * (1 - s)),
 * dp = sum over columns of dy * g * s * up. */
#include "kernels/cpu/cpu_internal.h"

#include <math.h>

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

static void scale(double *y, double factor, int64_t count)
{
    for (int64_t c = 0; c < count; c++)
        y[c] *= factor;
}

struct rk_status *rk_cpu_swiglu_fwd(void *dev, void *stream, const struct rk_swiglu_fwd_args *args)
{
    struct rk_cpu_device *cpu = dev;
    int64_t count = args->gate.shape[1], num_rows;

    (void)stream;
    RK_TRY(rk_cpu_read_count("swiglu_fwd", args->count, args->gate.shape[0], &num_rows));
    RK_TRY(rk_cpu_scratch_reserve(cpu, 2 * count));
#pragma omp parallel for num_threads(rk_cpu_threads_over(cpu, args->gate, RK_WORK_EXP))
    for (int64_t t = 0; t < num_rows; t++) {
        double *gate = rk_cpu_scratch(cpu), *up = gate + count;

        rk_cpu_load(gate, args->gate, t, 0, count);
        rk_cpu_load(up, args->up, t, 0, count);
        for (int64_t c = 0; c < count; c++)
            up[c] *= gate[c] * sigmoid(gate[c]);
        if (args->probs.data)
            scale(up, rk_cpu_load_one(args->probs, t, 0), count);
        rk_cpu_store(args->y, t, 0, up, count);
    }
    return NULL;
}

/* gate, up, dy: first these, then dgate, dup and y. Returns dp. */
static double swiglu_bwd_row(double *gate, double *up, double *dy, double prob, int64_t count)
{
    double dprob = 0.0;

    for (int64_t c = 0; c < count; c++) {
        double s = sigmoid(gate[c]), d = prob * dy[c];
        double dgate = d * up[c] * s * (1.0 + gate[c] * (1.0 - s));
        double dup = d * gate[c] * s, y = up[c] * (gate[c] * s);

        dprob += dy[c] * y;
        dy[c] = prob * y;
        gate[c] = dgate;
        up[c] = dup;
    }
    return dprob;
}

struct rk_status *rk_cpu_swiglu_bwd(void *dev, void *stream, const struct rk_swiglu_bwd_args *args)
{
    struct rk_cpu_device *cpu = dev;
    int64_t count = args->gate.shape[1], num_rows;

    (void)stream;
    RK_TRY(rk_cpu_read_count("swiglu_bwd", args->count, args->gate.shape[0], &num_rows));
    RK_TRY(rk_cpu_scratch_reserve(cpu, 3 * count));
#pragma omp parallel for num_threads(rk_cpu_threads_over(cpu, args->gate, RK_WORK_EXP))
    for (int64_t t = 0; t < num_rows; t++) {
        double *gate = rk_cpu_scratch(cpu), *up = gate + count, *dy = up + count;
        double prob = args->probs.data ? rk_cpu_load_one(args->probs, t, 0) : 1.0, dprob;

        rk_cpu_load(gate, args->gate, t, 0, count);
        rk_cpu_load(up, args->up, t, 0, count);
        rk_cpu_load(dy, args->dy, t, 0, count);
        dprob = swiglu_bwd_row(gate, up, dy, prob, count);
        if (args->y.data)
            rk_cpu_store(args->y, t, 0, dy, count);
        rk_cpu_store(args->dgate, t, 0, gate, count);
        rk_cpu_store(args->dup, t, 0, up, count);
        if (args->dprobs.data)
            rk_cpu_store(args->dprobs, t, 0, &dprob, 1);
    }
    return NULL;
}
