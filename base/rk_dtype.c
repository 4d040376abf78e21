#include "base/rk_dtype.h"

#include <math.h>
#include <string.h>

#include "base/rk_assert.h"

struct dtype_row {
    const char *name;
    const char *safetensors_name;
    const char *hf_name;
    uint8_t bytes;
    bool is_float;
};

static const struct dtype_row rows[RK_DTYPE_COUNT] = {
    [RK_DTYPE_BOOL] = {"bool", "BOOL", "bool", 1, false},
    [RK_DTYPE_U8] = {"u8", "U8", "uint8", 1, false},
    [RK_DTYPE_I8] = {"i8", "I8", "int8", 1, false},
    [RK_DTYPE_I16] = {"i16", "I16", "int16", 2, false},
    [RK_DTYPE_I32] = {"i32", "I32", "int32", 4, false},
    [RK_DTYPE_I64] = {"i64", "I64", "int64", 8, false},
    [RK_DTYPE_F16] = {"f16", "F16", "float16", 2, true},
    [RK_DTYPE_BF16] = {"bf16", "BF16", "bfloat16", 2, true},
    [RK_DTYPE_F32] = {"f32", "F32", "float32", 4, true},
    [RK_DTYPE_F64] = {"f64", "F64", "float64", 8, true},
    [RK_DTYPE_F8E4M3] = {"f8e4m3", "F8_E4M3", "float8_e4m3fn", 1, true},
    [RK_DTYPE_F8E5M2] = {"f8e5m2", "F8_E5M2", "float8_e5m2", 1, true},
};

static const struct dtype_row *row_of(rk_dtype_t dtype)
{
    RK_ASSERT(rk_dtype_is_valid((int)dtype));
    return &rows[dtype];
}

size_t rk_dtype_bytes(rk_dtype_t dtype)
{
    return row_of(dtype)->bytes;
}

bool rk_dtype_is_valid(int value)
{
    return value > RK_DTYPE_UNSPECIFIED && value < RK_DTYPE_COUNT;
}

bool rk_dtype_is_float(rk_dtype_t dtype)
{
    return row_of(dtype)->is_float;
}

const char *rk_dtype_name(rk_dtype_t dtype)
{
    return row_of(dtype)->name;
}

const char *rk_dtype_safetensors_name(rk_dtype_t dtype)
{
    return row_of(dtype)->safetensors_name;
}

const char *rk_dtype_hf_name(rk_dtype_t dtype)
{
    return row_of(dtype)->hf_name;
}

bool rk_dtype_parse_safetensors(const char *text, rk_dtype_t *out)
{
    for (int i = RK_DTYPE_UNSPECIFIED + 1; i < RK_DTYPE_COUNT; i++) {
        if (strcmp(rows[i].safetensors_name, text) == 0) {
            *out = (rk_dtype_t)i;
            return true;
        }
    }
    return false;
}

bool rk_dtype_parse_hf(const char *text, rk_dtype_t *out)
{
    static const char torch_prefix[] = "torch.";

    if (strncmp(text, torch_prefix, sizeof(torch_prefix) - 1) == 0)
        text += sizeof(torch_prefix) - 1;
    for (int i = RK_DTYPE_UNSPECIFIED + 1; i < RK_DTYPE_COUNT; i++) {
        if (strcmp(rows[i].hf_name, text) == 0) {
            *out = (rk_dtype_t)i;
            return true;
        }
    }
    return false;
}

/* Rounds to a binary format with a sign, exponent_bits and mantissa_bits, to nearest, ties to even. Adding
 * the rounded significand (hidden bit included) to the exponent field lets a carry move into the exponent,
 * from subnormal to normal and from the largest finite number to infinity. */
static uint16_t narrow_f64(double value, int mantissa_bits, int exponent_bits)
{
    const int bias = (1 << (exponent_bits - 1)) - 1;
    const uint64_t infinity = ((1ull << exponent_bits) - 1) << mantissa_bits;
    int shift = 52 - mantissa_bits;
    uint64_t bits, sign, mantissa, rounded, rest, half;
    int exponent;

    memcpy(&bits, &value, sizeof(bits));
    sign = bits >> 63 << (mantissa_bits + exponent_bits);
    exponent = (int)(bits >> 52 & 0x7ff);
    mantissa = bits & ((1ull << 52) - 1);
    if (exponent == 0x7ff) {
        uint64_t quiet = mantissa ? 1ull << (mantissa_bits - 1) | mantissa >> shift : 0;

        return (uint16_t)(sign | infinity | quiet);
    }
    exponent += bias - 1023;
    if (exponent <= 0) {
        shift += 1 - exponent;
        exponent = 1;
    }
    if (shift > 54) /* below half of the smallest subnormal; f64 subnormals end here too */
        return (uint16_t)sign;
    mantissa |= 1ull << 52;
    rounded = mantissa >> shift;
    rest = mantissa & ((1ull << shift) - 1);
    half = 1ull << (shift - 1);
    if (rest > half || (rest == half && (rounded & 1)))
        rounded++;
    rounded += (uint64_t)(exponent - 1) << mantissa_bits;
    return (uint16_t)(sign | (rounded < infinity ? rounded : infinity));
}

uint16_t rk_f32_to_bf16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u); /* a NaN with payload only in the lower half must stay a NaN */
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

float rk_bf16_to_f32(uint16_t bits)
{
    uint32_t wide = (uint32_t)bits << 16;
    float value;

    memcpy(&value, &wide, sizeof(value));
    return value;
}

uint16_t rk_f32_to_f16(float value)
{
    return narrow_f64((double)value, 10, 5); /* widening is exact, so this rounds once */
}

float rk_f8e4m3_to_f32(uint8_t bits)
{
    int exponent = (bits >> 3) & 15, fraction = bits & 7;
    float magnitude =
        exponent == 0 ? ldexpf((float)fraction, -9) : ldexpf((float)(8 + fraction), exponent - 10);

    if ((bits & 0x7f) == 0x7f)
        return NAN;
    return bits & 0x80 ? -magnitude : magnitude;
}

float rk_f16_to_f32(uint16_t bits)
{
    uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    uint32_t exponent = bits >> 10 & 0x1fu;
    uint32_t mantissa = bits & 0x3ffu;
    uint32_t wide;
    float value;

    if (exponent == 0) {
        value = (float)mantissa * 0x1p-24f;
        return sign ? -value : value;
    }
    wide = sign | (exponent == 0x1f ? 0xffu : exponent + 127 - 15) << 23 | mantissa << 13;
    if (exponent == 0x1f && mantissa)
        wide |= 0x400000u;
    memcpy(&value, &wide, sizeof(value));
    return value;
}

void rk_load_f64(double *dst, const void *src, rk_dtype_t src_dtype, int64_t count)
{
    const uint16_t *half = src;
    const float *single = src;

    switch (src_dtype) {
    case RK_DTYPE_F16:
        for (int64_t i = 0; i < count; i++)
            dst[i] = (double)rk_f16_to_f32(half[i]);
        break;
    case RK_DTYPE_BF16:
        for (int64_t i = 0; i < count; i++)
            dst[i] = (double)rk_bf16_to_f32(half[i]);
        break;
    case RK_DTYPE_F32:
        for (int64_t i = 0; i < count; i++)
            dst[i] = (double)single[i];
        break;
    default:
        RK_ASSERT(src_dtype == RK_DTYPE_F64);
        if (count > 0)
            memcpy(dst, src, (size_t)count * sizeof(*dst));
    }
}

void rk_store_f64(void *dst, rk_dtype_t dst_dtype, const double *src, int64_t count)
{
    uint16_t *half = dst;
    float *single = dst;

    switch (dst_dtype) {
    case RK_DTYPE_F16:
        for (int64_t i = 0; i < count; i++)
            half[i] = narrow_f64(src[i], 10, 5);
        break;
    case RK_DTYPE_BF16:
        for (int64_t i = 0; i < count; i++)
            half[i] = narrow_f64(src[i], 7, 8);
        break;
    case RK_DTYPE_F32:
        for (int64_t i = 0; i < count; i++)
            single[i] = (float)src[i];
        break;
    default:
        RK_ASSERT(dst_dtype == RK_DTYPE_F64);
        if (count > 0)
            memcpy(dst, src, (size_t)count * sizeof(*src));
    }
}

/* Widening to f64 is exact for every source, so the narrowing is the only rounding. */
static void convert_through_f64(char *dst, rk_dtype_t dst_dtype, const char *src, rk_dtype_t src_dtype,
                                int64_t count)
{
    double wide[256];
    int64_t chunk;

    for (int64_t i = 0; i < count; i += chunk) {
        chunk = RK_MIN(count - i, (int64_t)RK_ARRAY_LEN(wide));
        rk_load_f64(wide, src + (size_t)i * rk_dtype_bytes(src_dtype), src_dtype, chunk);
        rk_store_f64(dst + (size_t)i * rk_dtype_bytes(dst_dtype), dst_dtype, wide, chunk);
    }
}

void rk_convert(void *dst, rk_dtype_t dst_dtype, const void *src, rk_dtype_t src_dtype, int64_t count)
{
    RK_ASSERT(rk_dtype_is_float(dst_dtype));
    RK_ASSERT(rk_dtype_is_float(src_dtype));
    if (count <= 0)
        return;
    if (dst_dtype == src_dtype) {
        memcpy(dst, src, (size_t)count * rk_dtype_bytes(src_dtype));
    } else if (dst_dtype == RK_DTYPE_BF16 && src_dtype == RK_DTYPE_F32) {
        for (int64_t i = 0; i < count; i++)
            ((uint16_t *)dst)[i] = rk_f32_to_bf16(((const float *)src)[i]);
    } else if (dst_dtype == RK_DTYPE_F32 && src_dtype == RK_DTYPE_BF16) {
        for (int64_t i = 0; i < count; i++)
            ((float *)dst)[i] = rk_bf16_to_f32(((const uint16_t *)src)[i]);
    } else {
        convert_through_f64(dst, dst_dtype, src, src_dtype, count);
    }
}
