/* Reduction in rank order. The order of additions is fixed per element and does not depend on the partition
 * of a tensor, so all algorithms of the CPU backend give bit-identical results. */
#include "engine/comm/comm_cpu_internal.h"

#include <math.h>
#include <string.h>

#include "base/rk_assert.h"

/* Elements per pass: the accumulator of the widest type stays in the L1 cache. */
#define BLOCK_ELEMENTS 1024

typedef void (*fold_fn_t)(void *acc, const void *x, int64_t count);

#define FOLD(name, T, expr)                                     \
    static void name(void *acc_, const void *x_, int64_t count) \
    {                                                           \
        T *acc = acc_;                                          \
        const T *in = x_;                                       \
                                                                \
        for (int64_t i = 0; i < count; i++) {                   \
            T a = acc[i], x = in[i];                            \
                                                                \
            acc[i] = (T)(expr);                                 \
        }                                                       \
    }

/* NaN propagates from either operand: if `a` is NaN, every comparison with it is false and `a` stays. */
FOLD(sum_f32, float, a + x)
FOLD(max_f32, float, x > a || isnan(x) ? x : a)
FOLD(min_f32, float, x < a || isnan(x) ? x : a)
FOLD(sum_f64, double, a + x)
FOLD(max_f64, double, x > a || isnan(x) ? x : a)
FOLD(min_f64, double, x < a || isnan(x) ? x : a)
/* Unsigned, because signed overflow is undefined; the result is that of two's complement. */
FOLD(sum_i32, uint32_t, a + x)
FOLD(max_i32, int32_t, x > a ? x : a)
FOLD(min_i32, int32_t, x < a ? x : a)
FOLD(sum_i64, uint64_t, a + x)
FOLD(max_i64, int64_t, x > a ? x : a)
FOLD(min_i64, int64_t, x < a ? x : a)
FOLD(sum_u8, uint8_t, a + x)
FOLD(max_u8, uint8_t, x > a ? x : a)
FOLD(min_u8, uint8_t, x < a ? x : a)

/* Indexed by the type of the accumulator. Every sum of this backend is an ordered sum. */
static const fold_fn_t folds[RK_DTYPE_COUNT][RK_REDUCE_OP_COUNT] = {
    [RK_DTYPE_F32] = {sum_f32, max_f32, min_f32, sum_f32},
    [RK_DTYPE_F64] = {sum_f64, max_f64, min_f64, sum_f64},
    [RK_DTYPE_I32] = {[RK_REDUCE_SUM] = sum_i32, [RK_REDUCE_MAX] = max_i32, [RK_REDUCE_MIN] = min_i32},
    [RK_DTYPE_I64] = {[RK_REDUCE_SUM] = sum_i64, [RK_REDUCE_MAX] = max_i64, [RK_REDUCE_MIN] = min_i64},
    [RK_DTYPE_U8] = {[RK_REDUCE_SUM] = sum_u8, [RK_REDUCE_MAX] = max_u8, [RK_REDUCE_MIN] = min_u8},
};

void rk_cpu_reduce(void *out, const void *const *parts, int32_t num_parts, int64_t count, rk_dtype_t dtype,
                   rk_reduce_op_t op)
{
    bool is_narrow = dtype == RK_DTYPE_BF16 || dtype == RK_DTYPE_F16;
    fold_fn_t fold = folds[is_narrow ? RK_DTYPE_F32 : dtype][op];
    size_t elem_bytes = rk_dtype_bytes(dtype);
    int64_t acc[BLOCK_ELEMENTS]; /* room for 8-byte elements, and their alignment */
    float widened[BLOCK_ELEMENTS];

    RK_ASSERT(num_parts >= 1);
    RK_ASSERT(fold);
    for (int64_t begin = 0; begin < count; begin += BLOCK_ELEMENTS) {
        int64_t block = RK_MIN(count - begin, BLOCK_ELEMENTS);
        size_t offset = (size_t)begin * elem_bytes;

        for (int32_t p = 0; p < num_parts; p++) {
            const char *part = (const char *)parts[p] + offset;

            if (is_narrow)
                rk_convert(p == 0 ? (void *)acc : (void *)widened, RK_DTYPE_F32, part, dtype, block);
            else if (p == 0)
                memcpy(acc, part, (size_t)block * elem_bytes);
            if (p > 0)
                fold(acc, is_narrow ? (const void *)widened : (const void *)part, block);
        }
        if (is_narrow)
            rk_convert((char *)out + offset, dtype, acc, RK_DTYPE_F32, block);
        else
            memcpy((char *)out + offset, acc, (size_t)block * elem_bytes);
    }
}
