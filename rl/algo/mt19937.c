#include "rl/algo/validation.h"

#define SHIFT 397

/* Matsumoto and Nishimura, "Mersenne twister", ACM TOMACS 8(1), 1998; the seeding is init_genrand of 2002. */
void rk_mt19937_init(struct rk_mt19937 *mt, uint32_t seed)
{
    mt->state[0] = seed;
    for (uint32_t i = 1; i < RK_MT19937_WORDS; i++)
        mt->state[i] = 1812433253u * (mt->state[i - 1] ^ mt->state[i - 1] >> 30) + i;
    mt->next = RK_MT19937_WORDS;
}

static void twist(struct rk_mt19937 *mt)
{
    for (int i = 0; i < RK_MT19937_WORDS; i++) {
        uint32_t y = (mt->state[i] & 0x80000000u) | (mt->state[(i + 1) % RK_MT19937_WORDS] & 0x7fffffffu);

        mt->state[i] = mt->state[(i + SHIFT) % RK_MT19937_WORDS] ^ y >> 1 ^ (y & 1 ? 0x9908b0dfu : 0u);
    }
    mt->next = 0;
}

uint32_t rk_mt19937_u32(struct rk_mt19937 *mt)
{
    uint32_t y;

    if (mt->next == RK_MT19937_WORDS)
        twist(mt);
    y = mt->state[mt->next++];
    y ^= y >> 11;
    y ^= y << 7 & 0x9d2c5680u;
    y ^= y << 15 & 0xefc60000u;
    return y ^ y >> 18;
}

uint32_t rk_mt19937_up_to(struct rk_mt19937 *mt, uint32_t max)
{
    uint32_t mask = max, value;

    if (max == 0)
        return 0;
    for (int shift = 1; shift < 32; shift *= 2)
        mask |= mask >> shift;
    do
        value = rk_mt19937_u32(mt) & mask;
    while (value > max);
    return value;
}
