#include "base/rk_rng.h"

#include <math.h>

#include "base/rk_assert.h"

#define PHILOX_ROUNDS 10
#define PHILOX_M0     0xD2511F53u
#define PHILOX_M1     0xCD9E8D57u
#define PHILOX_W0     0x9E3779B9u /* golden ratio */
#define PHILOX_W1     0xBB67AE85u /* sqrt(3) - 1 */
#define TWO_PI        6.283185307179586476925286766559

rk_philox_block_t rk_philox4x32(const uint32_t counter[4], const uint32_t key[2])
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];
    uint32_t k0 = key[0], k1 = key[1];

    for (int round = 0; round < PHILOX_ROUNDS; round++) {
        uint64_t product0 = (uint64_t)PHILOX_M0 * c0;
        uint64_t product1 = (uint64_t)PHILOX_M1 * c2;

        c0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)product1;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)product0;
        k0 += PHILOX_W0;
        k1 += PHILOX_W1;
    }
    return (rk_philox_block_t){{c0, c1, c2, c3}};
}

/* Block number `block` of the sequence (seed, stream). */
static rk_philox_block_t block_at(uint64_t seed, uint64_t stream, uint64_t block)
{
    const uint32_t counter[4] = {(uint32_t)block, (uint32_t)(block >> 32), (uint32_t)stream,
                                 (uint32_t)(stream >> 32)};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};

    return rk_philox4x32(counter, key);
}

/* Uniform in (0, 1) with 53 bits. */
static double uniform53(uint32_t high, uint32_t low)
{
    uint64_t bits = ((uint64_t)high << 32 | low) >> 11;

    return ((double)bits + 0.5) * 0x1p-53;
}

double rk_rng_uniform(uint32_t x)
{
    return ((double)x + 0.5) * 0x1p-32;
}

double rk_rng_exponential(uint32_t x)
{
    return -log1p(-rk_rng_uniform(x));
}

uint32_t rk_rng_token_word(uint64_t seed, uint64_t stream, uint32_t position, uint32_t token)
{
    return block_at(seed, stream, (uint64_t)position << 32 | token >> 2).word[token & 3];
}

double rk_rng_normal(uint64_t seed, uint64_t stream, uint64_t i)
{
    rk_philox_block_t block = block_at(seed, stream, i >> 1);
    double radius = sqrt(-2.0 * log(uniform53(block.word[0], block.word[1])));
    double angle = TWO_PI * uniform53(block.word[2], block.word[3]);

    return radius * (i & 1 ? sin(angle) : cos(angle));
}

uint64_t rk_rng_stream_of_name(const char *name)
{
    uint64_t hash = 0xcbf29ce484222325u;

    for (const unsigned char *p = (const unsigned char *)name; *p; p++)
        hash = (hash ^ *p) * 0x100000001b3u;
    return hash;
}

void rk_rng_permutation(uint64_t seed, uint64_t stream, int64_t n, int64_t *out)
{
    struct rk_rng rng;

    rk_rng_init(&rng, seed, stream);
    for (int64_t i = 0; i < n; i++) {
        int64_t j = rk_rng_next_below(&rng, i + 1);

        out[i] = out[j];
        out[j] = i;
    }
}

void rk_rng_init(struct rk_rng *rng, uint64_t seed, uint64_t stream)
{
    *rng = (struct rk_rng){.seed = seed, .stream = stream};
}

uint32_t rk_rng_next_u32(struct rk_rng *rng)
{
    uint64_t at = rng->next++;

    return block_at(rng->seed, rng->stream, at >> 2).word[at & 3];
}

double rk_rng_next_uniform(struct rk_rng *rng)
{
    uint32_t high = rk_rng_next_u32(rng);

    return uniform53(high, rk_rng_next_u32(rng));
}

double rk_rng_next_normal(struct rk_rng *rng)
{
    double radius = sqrt(-2.0 * log(rk_rng_next_uniform(rng)));

    return radius * cos(TWO_PI * rk_rng_next_uniform(rng));
}

int64_t rk_rng_next_below(struct rk_rng *rng, int64_t bound)
{
    uint64_t range = (uint64_t)bound;
    uint64_t rejected, draw;

    RK_ASSERT(bound > 0);
    /* The lowest 2^64 mod bound draws are dropped, so that every residue is equally likely. */
    rejected = (0 - range) % range;
    do {
        draw = (uint64_t)rk_rng_next_u32(rng) << 32;
        draw |= rk_rng_next_u32(rng);
    } while (draw < rejected);
    return (int64_t)(draw % range);
}
