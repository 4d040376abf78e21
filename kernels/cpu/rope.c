/* Rotary position embedding in place, NeoX pairs (k, k + head_dim/2) or neighbours (2 k, 2 k + 1). The
 * inverse rotation, by -angle, is both the transpose and so the backward pass. */
#include "kernels/cpu/cpu_internal.h"

/* Pair k: x[k * step] and x[k * step + apart]. */
static void rotate_head(double *x, const double *cos, const double *sin, int64_t half, int64_t step,
                        int64_t apart)
{
    for (int64_t k = 0; k < half; k++) {
        double first = x[k * step], second = x[k * step + apart];

        x[k * step] = first * cos[k] - second * sin[k];
        x[k * step + apart] = second * cos[k] + first * sin[k];
    }
}

static void rotate_token(const struct rk_rope_args *args, int64_t t, double *scratch)
{
    int64_t num_heads = args->x.shape[1], head_dim = args->x.shape[2], half = (head_dim - args->begin) / 2;
    int64_t position = rk_cpu_i32(args->positions)[t];
    double *cos = scratch, *sin = cos + half, *x = sin + half;

    rk_cpu_load(cos, args->cos, position, 0, half);
    rk_cpu_load(sin, args->sin, position, 0, half);
    for (int64_t k = 0; args->inverse && k < half; k++)
        sin[k] = -sin[k];
    rk_cpu_load(x, args->x, t, 0, num_heads * head_dim);
    for (int64_t h = 0; h < num_heads; h++)
        rotate_head(x + h * head_dim + args->begin, cos, sin, half, args->is_interleaved ? 2 : 1,
                    args->is_interleaved ? 1 : half);
    rk_cpu_store(args->x, t, 0, x, num_heads * head_dim);
}

struct rk_status *rk_cpu_rope(void *dev, void *stream, const struct rk_rope_args *args)
{
    struct rk_cpu_device *cpu = dev;

    (void)stream;
    RK_TRY(rk_cpu_check_range("rope", "positions", args->positions, 0, args->cos.shape[0] - 1));
    RK_TRY(rk_cpu_scratch_reserve(cpu, (args->x.shape[1] + 1) * args->x.shape[2]));
#pragma omp parallel for num_threads(rk_cpu_threads_over(cpu, args->x, 2.0))
    for (int64_t t = 0; t < args->x.shape[0]; t++)
        rotate_token(args, t, rk_cpu_scratch(cpu));
    return NULL;
}

struct rk_status *rk_cpu_rope_kv_write(void *dev, void *stream, const struct rk_rope_kv_write_args *args)
{
    struct rk_rope_args q = {.x = args->q, .cos = args->cos, .sin = args->sin, .positions = args->positions};
    struct rk_rope_args k = q;

    k.x = args->kv.k;
    RK_TRY(rk_cpu_rope(dev, stream, &q));
    RK_TRY(rk_cpu_rope(dev, stream, &k));
    return rk_cpu_kv_write(dev, stream, &args->kv);
}
