/* Log-probabilities of several ids per row, each in one part of the vocabulary. Their gradient is
 * that of vocab_stats_bwd. */
#include "kernels/cpu/cpu_internal.h"
#include "kernels/cpu/vocab_internal.h"

struct rk_status *rk_cpu_vocab_gather(void *dev, void *stream, const struct rk_vocab_gather_args *args)
{
    const struct rk_cpu_device *cpu = dev;
    int64_t num_ids = args->ids.shape[1];

    (void)stream;
#pragma omp parallel for num_threads(rk_cpu_threads_over(cpu, args->ids, 1.0))
    for (int64_t t = 0; t < args->ids.shape[0]; t++) {
        const int32_t *ids = rk_cpu_at(args->ids, t, 0);
        double *z = rk_cpu_at(args->z, t, 0);

        for (int64_t k = 0; k < num_ids; k++) {
            int64_t column = rk_vocab_column(ids[k], args->vocab_begin, args->num_valid);

            z[k] = column >= 0 ? rk_cpu_load_one(args->logits, t, column) * args->inv_temperature : 0.0;
        }
    }
    return NULL;
}

struct rk_status *rk_cpu_vocab_gather_merge(void *dev, void *stream,
                                            const struct rk_vocab_gather_merge_args *args)
{
    const struct rk_cpu_device *cpu = dev;
    int64_t num_ids = args->ids.shape[1];

    (void)stream;
#pragma omp parallel for num_threads(rk_cpu_threads_over(cpu, args->parts, 1.0))
    for (int64_t t = 0; t < args->ids.shape[0]; t++) {
        const int32_t *ids = rk_cpu_at(args->ids, t, 0);
        const double *stats = rk_cpu_at(args->stats, t, 0);

        for (int64_t k = 0; k < num_ids; k++) {
            double log_prob = 0.0;

            for (int64_t i = 0; i < args->parts.shape[0]; i++)
                log_prob += rk_cpu_load_one(args->parts, i, t * num_ids + k);
            log_prob =
                ids[k] < 0 ? 0.0 : rk_softmax_log_prob(log_prob, stats[RK_STAT_MAX], stats[RK_STAT_SUM]);
            rk_cpu_store(args->log_probs, t, k, &log_prob, 1);
        }
    }
    return NULL;
}
