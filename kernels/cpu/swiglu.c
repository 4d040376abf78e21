/* y = silu(gate) * up with silu(g) = g * s, s = 1/(1 + e^-g).
 * Backward: dup = dy * g * s,  dgate = dy * up * s * (1 + g * (1 - s)). */
#include "kernels/cpu/cpu_internal.h"

#include <math.h>

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

struct rk_status *rk_cpu_swiglu_fwd(void *dev, void *stream, const struct rk_swiglu_fwd_args *args)
{
    struct rk_cpu_device *cpu = dev;
    int64_t count = args->gate.shape[1];

    (void)stream;
    RK_TRY(rk_cpu_scratch_reserve(cpu, 2 * count));
#pragma omp parallel for num_threads(cpu->num_threads)
    for (int64_t t = 0; t < args->gate.shape[0]; t++) {
        double *gate = rk_cpu_scratch(cpu), *up = gate + count;

        rk_cpu_load(gate, args->gate, t, 0, count);
        rk_cpu_load(up, args->up, t, 0, count);
        for (int64_t c = 0; c < count; c++)
            up[c] *= gate[c] * sigmoid(gate[c]);
        rk_cpu_store(args->y, t, 0, up, count);
    }
    return NULL;
}

struct rk_status *rk_cpu_swiglu_bwd(void *dev, void *stream, const struct rk_swiglu_bwd_args *args)
{
    struct rk_cpu_device *cpu = dev;
    int64_t count = args->gate.shape[1];

    (void)stream;
    RK_TRY(rk_cpu_scratch_reserve(cpu, 3 * count));
#pragma omp parallel for num_threads(cpu->num_threads)
    for (int64_t t = 0; t < args->gate.shape[0]; t++) {
        double *gate = rk_cpu_scratch(cpu), *up = gate + count, *dy = up + count;

        rk_cpu_load(gate, args->gate, t, 0, count);
        rk_cpu_load(up, args->up, t, 0, count);
        rk_cpu_load(dy, args->dy, t, 0, count);
        for (int64_t c = 0; c < count; c++) {
            double s = sigmoid(gate[c]);
            double dgate = dy[c] * up[c] * s * (1.0 + gate[c] * (1.0 - s));
            double dup = dy[c] * gate[c] * s;

            dy[c] = up[c] * (gate[c] * s); /* y */
            gate[c] = dgate;
            up[c] = dup;
        }
        if (args->y.data)
            rk_cpu_store(args->y, t, 0, dy, count);
        rk_cpu_store(args->dgate, t, 0, gate, count);
        rk_cpu_store(args->dup, t, 0, up, count);
    }
    return NULL;
}
