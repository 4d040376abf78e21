/* The K largest of every row, with their ids. */
#include "kernels/cpu/cpu_internal.h"
#include "kernels/cpu/vocab_internal.h"

#include <math.h>
#include <stdlib.h>

static void store_top(const struct rk_top_k_args *args, int64_t t, const struct rk_candidate *sorted,
                      int64_t count)
{
    const int32_t *source = args->source_ids.data ? rk_cpu_at(args->source_ids, t, 0) : NULL;
    int32_t *ids = rk_cpu_at(args->ids, t, 0);

    for (int64_t k = 0; k < args->ids.shape[1]; k++) {
        double value = k < count ? sorted[k].z : -INFINITY;

        ids[k] = -1;
        if (k < count)
            ids[k] = source ? source[sorted[k].token] : (int32_t)(args->vocab_begin + sorted[k].token);
        rk_cpu_store(args->values, t, k, &value, 1);
    }
}

static void top_of_row(const struct rk_top_k_args *args, int64_t t, double *z)
{
    struct rk_candidate *candidates = (struct rk_candidate *)(z + args->num_valid);
    int64_t count = 0;

    rk_cpu_load(z, args->logits, t, 0, args->num_valid);
    for (int64_t j = 0; j < args->num_valid; j++) {
        if (z[j] > -INFINITY) /* nor NaN */
            candidates[count++] = (struct rk_candidate){z[j], (int32_t)j};
    }
    qsort(candidates, (size_t)count, sizeof(*candidates), rk_candidate_compare);
    store_top(args, t, candidates, count);
}

struct rk_status *rk_cpu_top_k(void *dev, void *stream, const struct rk_top_k_args *args)
{
    struct rk_cpu_device *cpu = dev;

    (void)stream;
    /* a row, followed by one candidate (two doubles) per element */
    _Static_assert(sizeof(struct rk_candidate) == 2 * sizeof(double),
                   "candidates are stored in the f64 scratch memory");
    RK_TRY(rk_cpu_scratch_reserve(cpu, 3 * args->num_valid));
#pragma omp parallel for num_threads(rk_cpu_threads_over(cpu, args->logits, RK_WORK_SORT))
    for (int64_t t = 0; t < args->logits.shape[0]; t++)
        top_of_row(args, t, rk_cpu_scratch(cpu));
    return NULL;
}
