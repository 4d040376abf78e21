/* Fingerprints of tensors: sums of hashes, so the order of threads and parts does not matter. */
#include "kernels/cpu/cpu_internal.h"

#include <string.h>

/* Elements read at a time. */
#define BLOCK 256

/* values[i] = values[i] rounded to the dtype. */
static void round_to(rk_dtype_t dtype, double *values, int64_t count)
{
    double rounded[BLOCK]; /* large enough for every dtype */

    rk_store_f64(rounded, dtype, values, count);
    rk_load_f64(values, rounded, dtype, count);
}

static uint64_t fingerprint_row(const struct rk_fingerprint_args *args, int64_t row)
{
    uint64_t number = args->first + (uint64_t)row * args->row_pitch, sum = 0;
    double values[BLOCK];

    for (int64_t begin = 0; begin < args->x.shape[1]; begin += BLOCK) {
        int64_t count = RK_MIN(BLOCK, args->x.shape[1] - begin);

        rk_cpu_load(values, args->x, row, begin, count);
        if (args->dtype != args->x.dtype)
            round_to(args->dtype, values, count);
        for (int64_t i = 0; i < count; i++) {
            uint64_t bits;

            memcpy(&bits, &values[i], sizeof(bits));
            sum += rk_fingerprint_of(bits, number + (uint64_t)(begin + i));
        }
    }
    return sum;
}

struct rk_status *rk_cpu_fingerprint(void *dev, void *stream, const struct rk_fingerprint_args *args)
{
    const struct rk_cpu_device *cpu = dev;
    uint64_t sum = 0, before;

    (void)stream;
#pragma omp parallel for num_threads(rk_cpu_threads_over(cpu, args->x, 1.0)) reduction(+ : sum)
    for (int64_t r = 0; r < args->x.shape[0]; r++)
        sum += fingerprint_row(args, r);
    memcpy(&before, args->out.data, sizeof(before));
    sum += before;
    memcpy(args->out.data, &sum, sizeof(sum));
    return NULL;
}
