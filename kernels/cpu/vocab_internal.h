/* Private to kernels/cpu/: softmax of one row, shared by the training statistics and the sampler, so that
 * both report the same bits for the same logits. */
#ifndef RK_CPU_VOCAB_INTERNAL_H
#define RK_CPU_VOCAB_INTERNAL_H

#include <math.h>
#include <stdint.h>

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
