/* Softmax statistics of rows of logits, in parts of the vocabulary, and their gradient.
 *
 * With z = logits * inv_temperature a part has m = max z, S = sum e^(z-m), U = sum e^(z-m) (z-m) and the
 * label's z. Relative to m there is no cancellation for large logits: log_prob = z_label - m - log S and
 * entropy = log S - U/S. Columns from num_valid on are not read: a probability of 0 times z = -inf would be
 * NaN. The sum of squared probabilities is Q/S^2 with Q = sum e^(2(z-m)). */
#include "kernels/cpu/cpu_internal.h"
#include "kernels/cpu/vocab_internal.h"

#include <math.h>

struct rk_softmax_stats rk_softmax_stats_of(const double *z, int64_t count)
{
    struct rk_softmax_stats stats = {.max = -INFINITY};

    for (int64_t j = 0; j < count; j++)
        stats.max = z[j] > stats.max ? z[j] : stats.max;
    for (int64_t j = 0; j < count; j++) {
        double e = exp(z[j] - stats.max);

        stats.sum += e;
        stats.moment += e > 0.0 ? e * (z[j] - stats.max) : 0.0;
    }
    return stats;
}

static double sum_squares(const double *z, int64_t count, double max)
{
    double sum = 0.0;

    for (int64_t j = 0; j < count; j++) {
        double e = exp(z[j] - max);

        sum += e * e;
    }
    return sum;
}

static void load_scaled(double *z, rk_tensor_t logits, int64_t t, int64_t count, double inv_temperature)
{
    rk_cpu_load(z, logits, t, 0, count);
    for (int64_t j = 0; j < count; j++)
        z[j] *= inv_temperature;
}

struct rk_status *rk_cpu_vocab_stats(void *dev, void *stream, const struct rk_vocab_stats_args *args)
{
    struct rk_cpu_device *cpu = dev;

    (void)stream;
    RK_TRY(rk_cpu_scratch_reserve(cpu, args->num_valid));
#pragma omp parallel for num_threads(rk_cpu_threads_over(cpu, args->logits, RK_WORK_EXP))
    for (int64_t t = 0; t < args->logits.shape[0]; t++) {
        int64_t label = rk_vocab_column(rk_cpu_i32(args->labels)[t], args->vocab_begin, args->num_valid);
        double *z = rk_cpu_scratch(cpu);
        double *out = rk_cpu_at(args->stats, t, 0);
        struct rk_softmax_stats stats;

        load_scaled(z, args->logits, t, args->num_valid, args->inv_temperature);
        stats = rk_softmax_stats_of(z, args->num_valid);
        out[RK_STAT_MAX] = stats.max;
        out[RK_STAT_SUM] = stats.sum;
        out[RK_STAT_MOMENT] = stats.moment;
        out[RK_STAT_LABEL] = label >= 0 ? z[label] : 0.0;
        if (args->squares.data)
            ((double *)args->squares.data)[t] = sum_squares(z, args->num_valid, stats.max);
    }
    return NULL;
}

static void merge_row(double merged[RK_NUM_STATS], rk_tensor_t parts, int64_t t)
{
    merged[RK_STAT_MAX] = -INFINITY;
    merged[RK_STAT_SUM] = merged[RK_STAT_MOMENT] = merged[RK_STAT_LABEL] = 0.0;
    for (int64_t i = 0; i < parts.shape[0]; i++) {
        const double *part = rk_cpu_at(parts, i, t * RK_NUM_STATS);

        merged[RK_STAT_MAX] =
            part[RK_STAT_MAX] > merged[RK_STAT_MAX] ? part[RK_STAT_MAX] : merged[RK_STAT_MAX];
    }
    for (int64_t i = 0; i < parts.shape[0]; i++) {
        const double *part = rk_cpu_at(parts, i, t * RK_NUM_STATS);
        double shift = part[RK_STAT_MAX] - merged[RK_STAT_MAX];

        merged[RK_STAT_LABEL] += part[RK_STAT_LABEL];
        if (part[RK_STAT_MAX] == -INFINITY)
            continue;
        merged[RK_STAT_SUM] += part[RK_STAT_SUM] * exp(shift);
        merged[RK_STAT_MOMENT] += exp(shift) * (part[RK_STAT_MOMENT] + shift * part[RK_STAT_SUM]);
    }
}

static void merge_squares(const struct rk_vocab_stats_merge_args *args, int64_t t,
                          const double merged[RK_NUM_STATS])
{
    double squares = 0.0, sum_pi_squared;

    for (int64_t i = 0; i < args->parts.shape[0]; i++) {
        const double *part = rk_cpu_at(args->parts, i, t * RK_NUM_STATS);

        if (part[RK_STAT_MAX] != -INFINITY)
            squares += rk_cpu_load_one(args->square_parts, i, t) *
                       exp(2.0 * (part[RK_STAT_MAX] - merged[RK_STAT_MAX]));
    }
    sum_pi_squared = squares / (merged[RK_STAT_SUM] * merged[RK_STAT_SUM]);
    if (args->squares.data)
        rk_cpu_store(args->squares, 0, t, &squares, 1);
    if (args->sum_pi_squared.data)
        rk_cpu_store(args->sum_pi_squared, 0, t, &sum_pi_squared, 1);
}

struct rk_status *rk_cpu_vocab_stats_merge(void *dev, void *stream,
                                           const struct rk_vocab_stats_merge_args *args)
{
    const struct rk_cpu_device *cpu = dev;

    (void)stream;
#pragma omp parallel for num_threads(rk_cpu_threads_over(cpu, args->parts, RK_WORK_EXP))
    for (int64_t t = 0; t < args->parts.shape[1]; t++) {
        double merged[RK_NUM_STATS], log_prob, entropy;

        merge_row(merged, args->parts, t);
        log_prob = rk_softmax_log_prob(merged[RK_STAT_LABEL], merged[RK_STAT_MAX], merged[RK_STAT_SUM]);
        entropy = log(merged[RK_STAT_SUM]) - merged[RK_STAT_MOMENT] / merged[RK_STAT_SUM];
        rk_cpu_store(args->log_probs, 0, t, &log_prob, 1);
        if (args->entropy.data)
            rk_cpu_store(args->entropy, 0, t, &entropy, 1);
        if (args->square_parts.data)
            merge_squares(args, t, merged);
        if (args->stats.data)
            rk_cpu_store(args->stats, t, 0, merged, RK_NUM_STATS);
    }
    return NULL;
}

/* z[id] += inv_temperature * g, where z is a gradient already. */
static void add_gathered(const struct rk_vocab_stats_bwd_args *args, int64_t t, double *z)
{
    const int32_t *ids = rk_cpu_at(args->gathered.ids, t, 0);

    for (int64_t k = 0; k < args->gathered.ids.shape[1]; k++) {
        int64_t column = rk_vocab_column(ids[k], args->vocab_begin, args->num_valid);

        if (column >= 0)
            z[column] += args->inv_temperature * rk_cpu_load_one(args->gathered.dlog_probs, t, k);
    }
}

static void backward_row(const struct rk_vocab_stats_bwd_args *args, int64_t t, double *z)
{
    const double *stats = rk_cpu_at(args->stats, t, 0);
    int64_t label = rk_vocab_column(rk_cpu_i32(args->labels)[t], args->vocab_begin, args->num_valid);
    double a = rk_cpu_load_one(args->dlog_probs, 0, t);
    double b = args->dentropy.data ? rk_cpu_load_one(args->dentropy, 0, t) : 0.0;
    double mean = stats[RK_STAT_MOMENT] / stats[RK_STAT_SUM]; /* of z - m under p */
    bool is_gathered = args->gathered.ids.data;
    double dense = is_gathered ? a + rk_cpu_load_one(args->gathered.dsum, 0, t) : a;
    bool has_squares = args->dsum_pi_squared.data;
    double c = has_squares ? 2.0 * rk_cpu_load_one(args->dsum_pi_squared, 0, t) : 0.0;
    double sum_pi_squared =
        has_squares ? rk_cpu_load_one(args->squares, 0, t) / (stats[RK_STAT_SUM] * stats[RK_STAT_SUM]) : 0.0;

    load_scaled(z, args->logits, t, args->num_valid, args->inv_temperature);
    for (int64_t j = 0; j < args->num_valid; j++) {
        double shifted = z[j] - stats[RK_STAT_MAX];
        double p = exp(shifted) / stats[RK_STAT_SUM];
        double dz = -dense * p;

        if (p > 0.0)
            dz -= b * p * (shifted - mean);
        if (has_squares)
            dz += c * p * (p - sum_pi_squared);
        z[j] = args->inv_temperature * (j == label ? dz + a : dz);
    }
    for (int64_t j = args->num_valid; j < args->logits.shape[1]; j++)
        z[j] = 0.0;
    if (is_gathered)
        add_gathered(args, t, z);
    rk_cpu_store(args->dlogits, t, 0, z, args->logits.shape[1]);
}

struct rk_status *rk_cpu_vocab_stats_bwd(void *dev, void *stream, const struct rk_vocab_stats_bwd_args *args)
{
    struct rk_cpu_device *cpu = dev;

    (void)stream;
    RK_TRY(rk_cpu_scratch_reserve(cpu, args->logits.shape[1]));
#pragma omp parallel for num_threads(rk_cpu_threads_over(cpu, args->logits, RK_WORK_EXP))
    for (int64_t t = 0; t < args->logits.shape[0]; t++)
        backward_row(args, t, rk_cpu_scratch(cpu));
    return NULL;
}
