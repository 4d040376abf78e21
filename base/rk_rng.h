/* Counter-based random numbers: Philox4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3",
 * SC11).
 *
 * A number is a pure function of (key, counter): there is no state, so results depend neither on the order in
 * which they are drawn nor on the layout of the ranks. */
#ifndef RK_RNG_H
#define RK_RNG_H

#include <stdint.h>

#include "base/rk_compiler.h"

RK_BEGIN_DECLS

typedef struct rk_philox_block {
    uint32_t word[4];
} rk_philox_block_t;

rk_philox_block_t rk_philox4x32(const uint32_t counter[4], const uint32_t key[2]);

/* Uniform in (0, 1): (x + 0.5) * 2^-32. */
double rk_rng_uniform(uint32_t x);
/* Exp(1) noise for sampling: -log1p(-u); at least 1.16e-10, never 0. */
double rk_rng_exponential(uint32_t x);
/* The 32-bit word used for vocabulary id `token` at `position` of `stream`: key = seed, counter = (token >>
 * 2, position, stream low, stream high), output word token & 3. */
uint32_t rk_rng_token_word(uint64_t seed, uint64_t stream, uint32_t position, uint32_t token);
/* Standard normal number i of the sequence named by (seed, stream): Box-Muller over one Philox block a pair.
 */
double rk_rng_normal(uint64_t seed, uint64_t stream, uint64_t i);
/* 64-bit FNV-1a hash of a name, to derive a random stream from a tensor or column name. */
uint64_t rk_rng_stream_of_name(const char *name);
/* Fisher-Yates permutation of 0..n-1 for (seed, stream). */
void rk_rng_permutation(uint64_t seed, uint64_t stream, int64_t n, int64_t *out);

/* Sequential convenience generator over Philox, for tests and jitter. */
struct rk_rng {
    uint64_t seed;
    uint64_t stream;
    uint64_t next;
};

void rk_rng_init(struct rk_rng *rng, uint64_t seed, uint64_t stream);
uint32_t rk_rng_next_u32(struct rk_rng *rng);
double rk_rng_next_uniform(struct rk_rng *rng); /* (0, 1) */
double rk_rng_next_normal(struct rk_rng *rng);
int64_t rk_rng_next_below(struct rk_rng *rng, int64_t bound); /* 0 <= result < bound, without bias */

RK_END_DECLS

#endif
