/* The numbers of a validation, as verl computes them (process_validation_metrics of verl 0.9), and what its
 * random choices need: numpy's legacy generator. */
#ifndef RK_RL_VALIDATION_H
#define RK_RL_VALIDATION_H

#include <stdint.h>

#include "base/rk_json.h"

/* --- numpy.random.RandomState(seed) (mt19937.c) --- */
#define RK_MT19937_WORDS 624

struct rk_mt19937 {
    uint32_t state[RK_MT19937_WORDS];
    int next;
};

void rk_mt19937_init(struct rk_mt19937 *mt, uint32_t seed);
uint32_t rk_mt19937_u32(struct rk_mt19937 *mt);
/* Uniform in 0..max: words under the smallest mask that holds max, until one is not above it; none for 0. */
uint32_t rk_mt19937_up_to(struct rk_mt19937 *mt, uint32_t max);

/* --- metrics (validation.c) --- */
struct rk_val_variable {
    const char *name;     /* "reward", "acc" */
    const double *values; /* [num_samples]; NAN: the sample has none */
};

struct rk_val_in {
    int64_t num_prompts, num_samples;
    const char *const *data_sources; /* [num_prompts] */
    const int64_t *prompts;          /* [num_samples]: the prompt that the sample answers */
    const char *const *preds; /* [num_samples] answers that vote; NULL: the sample has none, or none has */
    int64_t num_variables;
    const struct rk_val_variable *variables;
};

/* Sets <sec>/<source>/<variable>/<metric> for each source. Over the N values of a prompt, in the order of the
 * samples:
 *
 *   mean@N; with N > 1 std@N (of the population), and for n = 2, 4, 8, ... below N and N itself
 *   best@n and worst@n /mean and /std: of the largest (smallest) of n values drawn with replacement, 1000
 * times maj@n /mean and /std, when every sample votes: the value of the first drawn sample with the commonest
 * vote, of equally common ones the one drawn first
 *
 * and then the mean over the prompts of the source that have the metric. Every draw of (N, n) uses the same
 * indices, RandomState(42).choice(N, (1000, n)). sec is val-core for mean, best and maj at the largest N of
 * acc, or of reward where the source has no acc; else val-aux. */
void rk_val_metrics(struct rk_json *metrics, const struct rk_val_in *in);

/* order[count]: 0..count-1 as RandomState(42).shuffle leaves them. */
void rk_val_shuffle(int64_t *order, int64_t count);

#endif
