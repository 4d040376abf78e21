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

static double interpolate_llama3(const struct rk_model_config *config, double inv_freq)
{
    double low = config->rope_scaling.low_freq_factor, high = config->rope_scaling.high_freq_factor;
    double original = (double)config->rope_scaling.original_max_position_embeddings;
    double wavelength = 2.0 * M_PI / inv_freq;
    double slow = inv_freq / config->rope_scaling.factor;
    double share;

    if (wavelength < original / high)
        return inv_freq;
    if (wavelength > original / low)
        return slow;
    share = (original / wavelength - low) / (high - low);
    return (1.0 - share) * slow + share * inv_freq;
}

float rk_rope_inv_freq(const struct rk_model_config *config, int64_t k)
{
    float exponent = (float)(2 * k) / (float)config->head_dim;
    float power = (float)pow((double)(float)config->rope_theta, (double)exponent);
    float inv_freq = 1.0f / power;

    return config->rope_scaling.is_llama3 ? (float)interpolate_llama3(config, inv_freq) : inv_freq;
}

void rk_rope_table(const struct rk_model_config *config, int64_t num_positions, float *cos_out,
                   float *sin_out)
{
    int64_t half = config->head_dim / 2;

    for (int64_t begin = 0; begin < num_positions; begin += TILE_POSITIONS) {
        int64_t end = RK_MIN(begin + TILE_POSITIONS, num_positions);

        for (int64_t k = 0; k < half; k++) {
            float inv_freq = rk_rope_inv_freq(config, k);

            for (int64_t p = begin; p < end; p++) {
                float angle = (float)p * inv_freq;

                cos_out[p * half + k] = (float)cos((double)angle);
                sin_out[p * half + k] = (float)sin((double)angle);
            }
        }
    }
}
