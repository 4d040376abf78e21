/* Rotary frequencies and tables (Su et al., arXiv:2104.09864), and the frequency-dependent interpolation of
 * Llama 3.1:
 *
 *   inv_freq[k] = 1 / theta^(2k/d);   w = 2 pi / inv_freq[k]
 *   w < original / high_freq_factor: unchanged;   w > original / low_freq_factor: inv_freq / factor
 *   between: (1 - s) inv_freq / factor + s inv_freq,   s = (original / w - low) / (high - low)
 *
 * Tables are made on the host and rounded where Hugging Face rounds: the exponent, the power, its inverse and
 * the angle are fp32, because at position 1e5 another rounding of the frequency moves the angle by 1e-2. */
#include "engine/nn/nn_internal.h"

#include <math.h>

/* Rows of the tables that are filled at a time, column by column: they fit the first-level cache. */
#define TILE_POSITIONS 64

struct rk_rope_spec rk_rope_of_config(const struct rk_model_config *config)
{
    return (struct rk_rope_spec){
        .width = config->head_dim, .theta = config->rope_theta, .scaling = config->rope_scaling};
}

bool rk_rope_equal(const struct rk_rope_spec *a, const struct rk_rope_spec *b)
{
    const struct rk_rope_scaling *x = &a->scaling, *y = &b->scaling;

    return a->width == b->width && a->is_interleaved == b->is_interleaved && a->theta == b->theta &&
           x->is_llama3 == y->is_llama3 && x->factor == y->factor &&
           x->low_freq_factor == y->low_freq_factor && x->high_freq_factor == y->high_freq_factor &&
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

float rk_rope_inv_freq(const struct rk_rope_spec *rope, int64_t k)
{
    float exponent = (float)(2 * k) / (float)rope->width;
    float power = (float)pow((double)(float)rope->theta, (double)exponent);
    float inv_freq = 1.0f / power;

    return rope->scaling.is_llama3 ? (float)interpolate_llama3(&rope->scaling, inv_freq) : inv_freq;
}

void rk_rope_table(const struct rk_rope_spec *rope, int64_t num_positions, float *cos_out, float *sin_out)
{
    int64_t half = rope->width / 2;

    for (int64_t begin = 0; begin < num_positions; begin += TILE_POSITIONS) {
        int64_t end = RK_MIN(begin + TILE_POSITIONS, num_positions);

        for (int64_t k = 0; k < half; k++) {
            float inv_freq = rk_rope_inv_freq(rope, k);

            for (int64_t p = begin; p < end; p++) {
                float angle = (float)p * inv_freq;

                cos_out[p * half + k] = (float)cos((double)angle);
                sin_out[p * half + k] = (float)sin((double)angle);
            }
        }
    }
}
