/* Private to kernels/cpu/: common functions of operators over rows of logits. Training statistics and sampler
 * use the same softmax of a row, so that equal logits give bit-identical results. */
#ifndef RK_CPU_VOCAB_INTERNAL_H
#define RK_CPU_VOCAB_INTERNAL_H

#include <math.h>
#include <stdint.h>

/* Column of an id in a part of the vocabulary; -1: it is in another part, or none. */
static inline int64_t rk_vocab_column(int32_t id, int64_t vocab_begin, int64_t num_valid)
{
    int64_t column = id - vocab_begin;

    return column >= 0 && column < num_valid ? column : -1;
}

/* An element of a row to be sorted. */
struct rk_candidate {
    double z;
    int32_t token;
};

/* For qsort: descending z, equal ones by ascending token. */
int rk_candidate_compare(const void *a, const void *b);

struct rk_softmax_stats {
    double max;    /* -inf for an empty row */
    double sum;    /* of e^(z - max), in ascending order; NaN when a z is NaN or +inf */
    double moment; /* of e^(z - max) * (z - max) */
};

struct rk_softmax_stats rk_softmax_stats_of(const double *z, int64_t count);

static inline double rk_softmax_log_prob(double z, double max, double sum)
{
    return z - max - log(sum);
}

#endif
