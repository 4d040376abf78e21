/* Rotary frequencies and tables (Su et al., arXiv:2104.09864), the frequency-dependent interpolation of Llama
 * 3.1, and YaRN (Peng et al., arXiv:2309.00071):
 *
 *   inv_freq[k] = 1 / theta^(2k/d);   w = 2 pi / inv_freq[k]
 *   w < original / high_freq_factor: unchanged;   w > original / low_freq_factor: inv_freq / factor
 *   between: (1 - s) inv_freq / factor + s inv_freq,   s = (original / w - low) / (high - low)
 *
 *   YaRN: column(n) = d ln(original / (2 pi n)) / (2 ln theta), of which n rotations fit the original context
 *   e[k] = 1 - clamp((k - column(beta_fast)) / (column(beta_slow) - column(beta_fast)), 0, 1)
 *   (1 - e) inv_freq / factor + e inv_freq;   cos and sin are multiplied by attention_factor
 *
 * Tables are made on the host and rounded where Hugging Face rounds: the exponent, the power, its inverse and
 * the angle are fp32, because at position 1e5 another rounding of the frequency moves the angle by 1e-2. */
#include "engine/nn/nn.h"

#include <math.h>

/* Rows of the tables that are filled at a time, column by column: they fit the L1 cache. */
#define TILE_POSITIONS 64

bool rk_rope_equal(const struct rk_rope_spec *a, const struct rk_rope_spec *b)
{
    const struct rk_rope_scaling *x = &a->scaling, *y = &b->scaling;

    return a->width == b->width && a->theta == b->theta && x->type == y->type && x->factor == y->factor &&
           x->low_freq_factor == y->low_freq_factor && x->high_freq_factor == y->high_freq_factor &&
           x->beta_fast == y->beta_fast && x->beta_slow == y->beta_slow && x->truncates == y->truncates &&
           x->attention_factor == y->attention_factor &&
           x->original_max_position_embeddings == y->original_max_position_embeddings;
}

static double interpolate_llama3(const struct rk_rope_scaling *scaling, double inv_freq)
{
    double low = scaling->low_freq_factor, high = scaling->high_freq_factor;
    double original = (double)scaling->original_max_position_embeddings;
    double wavelength = 2.0 * M_PI / inv_freq;
    double slow = inv_freq / scaling->factor;
    double share;

    if (wavelength < original / high)
        return inv_freq;
    if (wavelength > original / low)
        return slow;
    share = (original / wavelength - low) / (high - low);
    return (1.0 - share) * slow + share * inv_freq;
}

/* The column with `num_rotations` rotations in the original context. */
static double yarn_column(const struct rk_rope_spec *rope, double num_rotations)
{
    double original = (double)rope->scaling.original_max_position_embeddings;

    return (double)rope->width * log(original / (num_rotations * 2.0 * M_PI)) / (2.0 * log(rope->theta));
}

/* The frequency for `power` = theta^(2k/d), in fp32 as in Hugging Face. */
static float interpolate_yarn(const struct rk_rope_spec *rope, int64_t k, float power)
{
    const struct rk_rope_scaling *scaling = &rope->scaling;
    double low = yarn_column(rope, scaling->beta_fast), high = yarn_column(rope, scaling->beta_slow);
    float ramp, fast;

    if (scaling->truncates) {
        low = floor(low);
        high = ceil(high);
    }
    low = RK_MAX(low, 0.0);
    high = RK_MIN(high, (double)rope->width - 1.0);
    if (low == high)
        high += 0.001;
    ramp = ((float)k - (float)low) / (float)(high - low);
    fast = 1.0f - RK_MIN(RK_MAX(ramp, 0.0f), 1.0f);
    return 1.0f / ((float)scaling->factor * power) * (1.0f - fast) + 1.0f / power * fast;
}

float rk_rope_inv_freq(const struct rk_rope_spec *rope, int64_t k)
{
    float exponent = (float)(2 * k) / (float)rope->width;
    float power = (float)pow((double)(float)rope->theta, (double)exponent);
    float inv_freq = 1.0f / power;

    switch (rope->scaling.type) {
    case RK_ROPE_LLAMA3:
        return (float)interpolate_llama3(&rope->scaling, inv_freq);
    case RK_ROPE_YARN:
        return interpolate_yarn(rope, k, power);
    default:
        return inv_freq;
    }
}

void rk_rope_table(const struct rk_rope_spec *rope, int64_t num_positions, float *cos_out, float *sin_out)
{
    double factor = rope->scaling.type == RK_ROPE_YARN ? rope->scaling.attention_factor : 1.0;
    int64_t half = rope->width / 2;

    for (int64_t begin = 0; begin < num_positions; begin += TILE_POSITIONS) {
        int64_t end = RK_MIN(begin + TILE_POSITIONS, num_positions);

        for (int64_t k = 0; k < half; k++) {
            float inv_freq = rk_rope_inv_freq(rope, k);

            for (int64_t p = begin; p < end; p++) {
                float angle = (float)p * inv_freq;

                cos_out[p * half + k] = (float)(cos((double)angle) * factor);
                sin_out[p * half + k] = (float)(sin((double)angle) * factor);
            }
        }
    }
}
