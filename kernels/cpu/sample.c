/* Samples one token per row: temperature, top-k, top-p, then argmax(z - log E) with Exp(1) noise E, which
 * samples from softmax(z). The noise is a function of seed, stream, position and token id, so the token
 * depends only on the row and its parameters.
 *
 * top-k  keeps every z not below the k-th largest: ties at the threshold all stay.
 * top-p  softmax over what top-k kept, summed from the smallest up; entries drop while the sum is <= 1 - p.
 * Of equal entries the larger id drops first; the largest entry always stays. A row with a NaN or +inf has no
 * distribution: it gives token 0 with log-probability NaN, which the caller must check. */
#include "base/rk_rng.h"
#include "kernels/cpu/cpu_internal.h"
#include "kernels/cpu/vocab_internal.h"

#include <math.h>
#include <stdlib.h>

/* Smaller temperatures are greedy: dividing by them would only overflow. */
#define GREEDY_TEMPERATURE 1e-5f

int rk_candidate_compare(const void *a, const void *b)
{
    const struct rk_candidate *x = a, *y = b;

    if (x->z != y->z)
        return x->z > y->z ? -1 : 1;
    return x->token < y->token ? -1 : 1;
}

/* Number of sorted candidates that top-p keeps. */
static int64_t count_top_p(const struct rk_candidate *sorted, int64_t count, double top_p)
{
    double sum = 0.0, tail = 0.0;

    for (int64_t i = 0; i < count; i++)
        sum += exp(sorted[i].z - sorted[0].z);
    while (count > 1) {
        tail += exp(sorted[count - 1].z - sorted[0].z);
        if (tail / sum > 1.0 - top_p)
            break;
        count--;
    }
    return count;
}

/* Sets z of filtered tokens to -inf. */
static void filter(double *z, int64_t vocab_size, const struct rk_sample_params *params,
                   struct rk_candidate *sorted)
{
    int64_t kept = vocab_size;

    for (int64_t v = 0; v < vocab_size; v++)
        sorted[v] = (struct rk_candidate){z[v], (int32_t)v};
    qsort(sorted, (size_t)vocab_size, sizeof(*sorted), rk_candidate_compare);
    if (params->top_k > 0 && params->top_k < vocab_size) {
        kept = params->top_k;
        while (kept < vocab_size && sorted[kept].z == sorted[params->top_k - 1].z)
            kept++;
    }
    if (params->top_p < 1.0f)
        kept = count_top_p(sorted, kept, params->top_p);
    for (int64_t i = kept; i < vocab_size; i++)
        z[sorted[i].token] = -INFINITY;
}

static int32_t argmax(const double *z, int64_t count)
{
    int64_t best = 0;

    for (int64_t v = 1; v < count; v++)
        best = z[v] > z[best] ? v : best;
    return (int32_t)best;
}

static int32_t argmax_perturbed(const double *z, int64_t count, const struct rk_sample_params *params)
{
    double best_score = -INFINITY;
    int64_t best = 0;

    for (int64_t v = 0; v < count; v++) {
        uint32_t word;
        double score;

        if (z[v] == -INFINITY)
            continue;
        word = rk_rng_token_word(params->seed, params->stream, (uint32_t)params->position, (uint32_t)v);
        score = z[v] - log(rk_rng_exponential(word));
        if (score > best_score) {
            best_score = score;
            best = v;
        }
    }
    return (int32_t)best;
}

static bool has_filter(const struct rk_sample_params *params, int64_t vocab_size)
{
    return (params->top_k > 0 && params->top_k < vocab_size) || params->top_p < 1.0f;
}

static void sample_row(const struct rk_sample_args *args, int64_t r, double *z)
{
    const struct rk_sample_params *params = &args->params[r];
    bool greedy = params->temperature < GREEDY_TEMPERATURE;
    double inv_temperature = greedy ? 1.0 : (double)(1.0f / params->temperature);
    int64_t vocab_size = args->vocab_size;
    struct rk_softmax_stats stats;
    double log_prob = NAN;
    int32_t token = 0;

    rk_cpu_load(z, args->logits, r, 0, vocab_size);
    for (int64_t v = 0; v < vocab_size; v++)
        z[v] *= inv_temperature;
    stats = rk_softmax_stats_of(z, vocab_size);
    if (!isnan(stats.sum)) {
        if (!greedy && has_filter(params, vocab_size)) {
            filter(z, vocab_size, params, (struct rk_candidate *)(z + vocab_size));
            stats = rk_softmax_stats_of(z, vocab_size);
        }
        token = greedy ? argmax(z, vocab_size) : argmax_perturbed(z, vocab_size, params);
        log_prob = rk_softmax_log_prob(z[token], stats.max, stats.sum);
    }
    ((int32_t *)args->tokens.data)[r] = token;
    rk_cpu_store(args->log_probs, 0, r, &log_prob, 1);
}

static struct rk_status *check_params(const struct rk_sample_params *params, int64_t r)
{
    if (!(params->temperature >= 0.0f) || isinf(params->temperature))
        return RK_FAIL(RK_INVALID_ARGUMENT, "sample: params[%lld].temperature=%g, expected finite and >= 0",
                       (long long)r, (double)params->temperature);
    if (!(params->top_p > 0.0f))
        return RK_FAIL(RK_INVALID_ARGUMENT, "sample: params[%lld].top_p=%g, expected > 0", (long long)r,
                       (double)params->top_p);
    if (params->position < 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "sample: params[%lld].position=%d, expected >= 0", (long long)r,
                       params->position);
    return NULL;
}

struct rk_status *rk_cpu_sample(void *dev, void *stream, const struct rk_sample_args *args)
{
    struct rk_cpu_device *cpu = dev;
    int64_t num_rows = args->logits.shape[0];

    (void)stream;
    for (int64_t r = 0; r < num_rows; r++)
        RK_TRY(check_params(&args->params[r], r));
    /* a row of z, followed by one candidate (two doubles) per element */
    _Static_assert(sizeof(struct rk_candidate) == 2 * sizeof(double),
                   "candidates are stored in the f64 scratch memory");
    RK_TRY(rk_cpu_scratch_reserve(cpu, 3 * args->vocab_size));
#pragma omp parallel for num_threads(rk_cpu_threads_over(cpu, args->logits, RK_WORK_SORT))
    for (int64_t r = 0; r < num_rows; r++)
        sample_row(args, r, rk_cpu_scratch(cpu));
    return NULL;
}
