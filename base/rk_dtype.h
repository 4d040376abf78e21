/* Element types and conversion. Values equal rankd.v1.DType. */
#ifndef RK_DTYPE_H
#define RK_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rk_compiler.h"

RK_BEGIN_DECLS

typedef enum rk_dtype {
    RK_DTYPE_UNSPECIFIED = 0,
    RK_DTYPE_BOOL = 1,
    RK_DTYPE_U8 = 2,
    RK_DTYPE_I8 = 3,
    RK_DTYPE_I16 = 4,
    RK_DTYPE_I32 = 5,
    RK_DTYPE_I64 = 6,
    RK_DTYPE_F16 = 7,
    RK_DTYPE_BF16 = 8,
    RK_DTYPE_F32 = 9,
    RK_DTYPE_F64 = 10,
    RK_DTYPE_F8E4M3 = 11,
    RK_DTYPE_F8E5M2 = 12,
    RK_DTYPE_COUNT
} rk_dtype_t;

size_t rk_dtype_bytes(rk_dtype_t dtype); /* asserts on UNSPECIFIED */
bool rk_dtype_is_valid(int value);       /* a known type other than UNSPECIFIED */
bool rk_dtype_is_float(rk_dtype_t dtype);
const char *rk_dtype_name(rk_dtype_t dtype);                        /* "bf16", "i64", ... */
const char *rk_dtype_safetensors_name(rk_dtype_t dtype);            /* "BF16", "I64", ... */
const char *rk_dtype_hf_name(rk_dtype_t dtype);                     /* "bfloat16", "int64", ... */
bool rk_dtype_parse_safetensors(const char *text, rk_dtype_t *out); /* "F8_E4M3" too */
bool rk_dtype_parse_hf(const char *text, rk_dtype_t *out); /* "float32", "bfloat16", "torch.float16" */

/* Scalar conversions. To the narrower type: round to nearest, ties to even; NaN stays a (quiet) NaN. */
uint16_t rk_f32_to_bf16(float value);
float rk_bf16_to_f32(uint16_t bits);
uint16_t rk_f32_to_f16(float value);
float rk_f16_to_f32(uint16_t bits);
float rk_f8e4m3_to_f32(uint8_t bits); /* no infinities; 0x7f and 0xff are NaN */
/* Rows of floating point elements to and from f64. dtype is one of F16, BF16, F32, F64. Narrowing f64 to f16
 * or bf16 rounds once (not by way of f32). src and dst may not overlap. */
void rk_load_f64(double *dst, const void *src, rk_dtype_t src_dtype, int64_t count);
void rk_store_f64(void *dst, rk_dtype_t dst_dtype, const double *src, int64_t count);
/* Any float dtype to any float dtype, element by element, rounding once. */
void rk_convert(void *dst, rk_dtype_t dst_dtype, const void *src, rk_dtype_t src_dtype, int64_t count);

RK_END_DECLS

#endif
