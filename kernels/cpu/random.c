/* Normal random numbers, each a function of its index alone (base/rk_rng.h). */
#include "kernels/cpu/cpu_internal.h"

#include "base/rk_rng.h"

/* Elements generated in f64 before they are rounded. */
#define BLOCK 256

struct rk_status *rk_cpu_random_normal(void *dev, void *stream, const struct rk_random_normal_args *args)
{
    const struct rk_cpu_device *cpu = dev;
    int64_t num_rows = args->out.shape[0], num_cols = args->out.shape[1];

    (void)stream;
#pragma omp parallel for num_threads(rk_cpu_threads_over(cpu, args->out, 2.0 * RK_WORK_EXP))
    for (int64_t r = 0; r < num_rows; r++) {
        uint64_t row_first = args->first + (uint64_t)r * args->row_pitch;
        double values[BLOCK];

        for (int64_t begin = 0; begin < num_cols; begin += BLOCK) {
            int64_t count = RK_MIN(BLOCK, num_cols - begin);

            for (int64_t i = 0; i < count; i++)
                values[i] = args->deviation *
                            rk_rng_normal(args->seed, args->stream, row_first + (uint64_t)(begin + i));
            rk_cpu_store(args->out, r, begin, values, count);
        }
    }
    return NULL;
}
