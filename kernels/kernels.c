/* The operators for callers: check the arguments, then call the stream's backend. */
#include "kernels/rk_kernels.h"

#include "base/rk_assert.h"
#include "kernels/checks_internal.h"
#include "kernels/rk_trace.h"

#include <stdarg.h>
#include <stdio.h>

#define X(name_, args_type)                                                                           \
    struct rk_status *rk_##name_(struct rk_stream *stream, const struct args_type *args)              \
    {                                                                                                 \
        void *device, *handle;                                                                        \
        struct rk_check check = {.op = #name_};                                                       \
        int64_t work;                                                                                 \
                                                                                                      \
        RK_ASSERT(stream);                                                                            \
        RK_ASSERT(args);                                                                              \
        work = rk_check_##name_(&check, args);                                                        \
        if (check.st || work == 0)                                                                    \
            return check.st;                                                                          \
        device = rk_device_handle(rk_stream_device(stream));                                          \
        handle = rk_stream_handle(stream);                                                            \
        if (!rk_stream_trace(stream))                                                                 \
            return rk_stream_kernels(stream)->name_(device, handle, args);                            \
        rk_trace_begin(stream, &(struct rk_trace_span){.kind = RK_TRACE_OPERATOR, .name = check.op}); \
        check.st = rk_stream_kernels(stream)->name_(device, handle, args);                            \
        rk_trace_end(stream);                                                                         \
        return check.st;                                                                              \
    }
RK_KERNEL_TABLE(X)
#undef X

#define DIMS_TEXT_BYTES 96

/* "[2, 3]" */
static const char *format_dims(char text[DIMS_TEXT_BYTES], int32_t rank, const int64_t *size)
{
    int used = snprintf(text, DIMS_TEXT_BYTES, "[");

    for (int32_t i = 0; i < rank && used < DIMS_TEXT_BYTES - 1; i++)
        used += snprintf(text + used, (size_t)(DIMS_TEXT_BYTES - used), "%s%lld", i ? ", " : "",
                         (long long)size[i]);
    if (used < DIMS_TEXT_BYTES - 1)
        snprintf(text + used, (size_t)(DIMS_TEXT_BYTES - used), "]");
    return text;
}

void rk_expect(struct rk_check *check, bool ok, const char *fmt, ...)
{
    char text[256];
    va_list args;

    if (check->st || ok)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    check->st = RK_FAIL(RK_INVALID_ARGUMENT, "%s: %s", check->op, text);
}

/* Rank in range, known dtype, non-NULL data if there are elements, non-overlapping rows. */
static void expect_view(struct rk_check *check, const char *arg, rk_tensor_t t)
{
    int64_t row_elements;

    rk_expect(check, t.rank >= 1 && t.rank <= RK_TENSOR_MAX_RANK, "%s has rank %d, expected 1 to %d", arg,
              t.rank, RK_TENSOR_MAX_RANK);
    rk_expect(check, rk_dtype_is_valid((int)t.dtype), "%s has dtype %d, expected a known one", arg,
              (int)t.dtype);
    if (check->st)
        return;
    row_elements = rk_tensor_row_elements(t);
    rk_expect(check, t.data || t.shape[0] * row_elements == 0, "%s is none, expected a tensor", arg);
    if (t.rank == 1)
        rk_expect(check, t.shape[0] <= 1 || t.row_stride == 1, "%s has row_stride=%lld, expected 1", arg,
                  (long long)t.row_stride);
    else
        rk_expect(check, t.shape[0] <= 1 || t.row_stride >= row_elements,
                  "%s has row_stride=%lld, expected >= %lld", arg, (long long)t.row_stride,
                  (long long)row_elements);
}

void rk_expect_tensor(struct rk_check *check, const char *arg, rk_tensor_t t, rk_dtype_t dtype,
                      struct rk_dims dims)
{
    char actual[DIMS_TEXT_BYTES], expected[DIMS_TEXT_BYTES];
    bool same = t.rank == dims.rank;

    expect_view(check, arg, t);
    if (check->st)
        return;
    for (int32_t i = 0; same && i < dims.rank; i++)
        same = t.shape[i] == dims.size[i];
    rk_expect(check, same && t.dtype == dtype, "%s is %s %s, expected %s %s", arg, rk_dtype_name(t.dtype),
              format_dims(actual, t.rank, t.shape), rk_dtype_name(dtype),
              format_dims(expected, dims.rank, dims.size));
}

void rk_expect_optional(struct rk_check *check, const char *arg, rk_tensor_t t, rk_dtype_t dtype,
                        struct rk_dims dims)
{
    if (t.data)
        rk_expect_tensor(check, arg, t, dtype, dims);
}

void rk_expect_source(struct rk_check *check, const char *arg, rk_tensor_t t, int32_t rank)
{
    expect_view(check, arg, t);
    if (check->st)
        return;
    rk_expect(check, rk_dtype_is_float(t.dtype), "%s is %s, expected a float type", arg,
              rk_dtype_name(t.dtype));
    rk_expect(check, t.rank == rank, "%s has rank %d, expected %d", arg, t.rank, rank);
}

void rk_expect_contiguous(struct rk_check *check, const char *arg, rk_tensor_t t)
{
    rk_expect(check, rk_tensor_is_contiguous(t), "%s has row_stride=%lld, expected contiguous rows of %lld",
              arg, (long long)t.row_stride, (long long)rk_tensor_row_elements(t));
}

/* Views of one fused allocation may interleave, so only an equal start proves an alias. */
void rk_expect_no_alias(struct rk_check *check, const char *out_arg, rk_tensor_t out, const char *in_arg,
                        rk_tensor_t in)
{
    rk_expect(check, !out.data || out.data != in.data, "%s aliases %s, expected separate memory", out_arg,
              in_arg);
}
