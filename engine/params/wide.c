/* Parameters that files have in fp32 whatever the model's dtype is (RK_PARAM_WIDE): the choice of experts
 * depends on differences between correction biases that bf16 cannot represent.
 *
 * The flat buffers have one dtype. Such a parameter therefore has RK_PARAM_WIDE_PARTS runs there, each of
 * which is exact in bf16: the value rounded to bf16, the remainder rounded to bf16, and the remainder of
 * that. Three times 8 bits are the 24 of fp32, and the sum of the three in fp32 is the value. All other code
 * treats the parameter as a vector. */
#include "engine/params/params.h"

static double round_to_bf16(double value)
{
    uint16_t bits;

    rk_store_f64(&bits, RK_DTYPE_BF16, &value, 1);
    rk_load_f64(&value, &bits, RK_DTYPE_BF16, 1);
    return value;
}

void rk_param_wide_split(const double *values, int64_t count, double *parts)
{
    for (int64_t i = 0; i < count; i++) {
        double rest = values[i];

        for (int64_t part = 0; part < RK_PARAM_WIDE_PARTS; part++) {
            parts[part * count + i] = round_to_bf16(rest);
            rest -= parts[part * count + i];
        }
    }
}

void rk_param_wide_join(const void *parts, rk_dtype_t dtype, int64_t count, float *out)
{
    for (int64_t i = 0; i < count; i++) {
        double sum = 0;

        for (int64_t part = 0; part < RK_PARAM_WIDE_PARTS; part++) {
            double value;

            rk_load_f64(&value, (const char *)parts + (size_t)(part * count + i) * rk_dtype_bytes(dtype),
                        dtype, 1);
            sum += value;
        }
        out[i] = (float)sum;
    }
}
