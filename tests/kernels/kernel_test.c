#include "tests/kernels/kernel_test.h"

#include "base/rk_assert.h"
#include "base/rk_str.h"
#include "tests/support/device.h"

#include <math.h>
#include <string.h>

/* ThreadSanitizer does not recognize the barriers of the OpenMP runtime. */
#ifdef __SANITIZE_THREAD__
#define MAX_THREADS 1
#else
#define MAX_THREADS 64
#endif

const rk_dtype_t kt_dtypes[4] = {RK_DTYPE_F64, RK_DTYPE_F32, RK_DTYPE_BF16, RK_DTYPE_F16};

struct kt *kt_create(int num_threads)
{
    struct kt *kt = rk_calloc(1, sizeof(*kt));

    assert_ok(rk_test_device_open(&kt->device, RK_MIN(num_threads, MAX_THREADS)));
    assert_ok(rk_stream_create(&kt->stream, kt->device, "test"));
    rk_rng_init(&kt->rng, rk_test_seed(), 0);
    return kt;
}

void kt_destroy(struct kt *kt)
{
    for (int64_t i = 0; i < kt->num_device; i++)
        rk_device_free(kt->device, kt->device_memory[i]);
    for (int64_t i = 0; i < kt->num_host; i++)
        rk_free(kt->host_memory[i]);
    rk_free(kt->device_memory);
    rk_free(kt->host_memory);
    rk_stream_destroy(kt->stream);
    rk_device_close(kt->device);
    rk_free(kt);
}

bool kt_is_cpu(const struct kt *kt)
{
    return rk_test_device_is_cpu(kt->device);
}

bool kt_is_cpu_only(const struct kt *kt, rk_dtype_t dtype)
{
    return dtype == RK_DTYPE_F64 && !kt_is_cpu(kt);
}

int kt_setup(void **state)
{
    *state = kt_create(2);
    return 0;
}

int kt_teardown(void **state)
{
    kt_destroy(*state);
    return 0;
}

static void remember(void ***list, int64_t *count, int64_t *capacity, void *ptr)
{
    if (*count == *capacity) {
        *capacity = *capacity ? 2 * *capacity : 64;
        *list = rk_realloc(*list, (size_t)*capacity * sizeof(**list));
    }
    (*list)[(*count)++] = ptr;
}

static void *host_memory(struct kt *kt, size_t bytes)
{
    void *ptr = rk_calloc(1, bytes);

    remember(&kt->host_memory, &kt->num_host, &kt->host_capacity, ptr);
    return ptr;
}

static rk_tensor_t with_memory(struct kt *kt, rk_tensor_t t)
{
    assert_ok(rk_device_alloc(kt->device, &t.data, rk_tensor_bytes(t), "test tensor"));
    remember(&kt->device_memory, &kt->num_device, &kt->device_capacity, t.data);
    return t;
}

rk_tensor_t kt_zeros_1d(struct kt *kt, rk_dtype_t dtype, int64_t dim0)
{
    return with_memory(kt, rk_tensor_1d(NULL, dtype, dim0));
}

rk_tensor_t kt_zeros_2d(struct kt *kt, rk_dtype_t dtype, int64_t dim0, int64_t dim1)
{
    return with_memory(kt, rk_tensor_2d(NULL, dtype, dim0, dim1));
}

rk_tensor_t kt_zeros_3d(struct kt *kt, rk_dtype_t dtype, int64_t dim0, int64_t dim1, int64_t dim2)
{
    return with_memory(kt, rk_tensor_3d(NULL, dtype, dim0, dim1, dim2));
}

rk_tensor_t kt_zeros_4d(struct kt *kt, rk_dtype_t dtype, int64_t dim0, int64_t dim1, int64_t dim2,
                        int64_t dim3)
{
    return with_memory(kt, rk_tensor_4d(NULL, dtype, dim0, dim1, dim2, dim3));
}

/* Bytes from the first row to the last one, including gaps. */
static size_t span_bytes(rk_tensor_t t)
{
    if (t.shape[0] == 0)
        return 0;
    return (size_t)((t.shape[0] - 1) * t.row_stride + rk_tensor_row_elements(t)) * rk_dtype_bytes(t.dtype);
}

static void copy_span(struct kt *kt, rk_tensor_t t, void *span, rk_copy_kind_t kind)
{
    bool writes = kind == RK_COPY_H2D;

    assert_ok(
        rk_stream_copy(kt->stream, writes ? t.data : span, writes ? span : t.data, span_bytes(t), kind));
    assert_ok(rk_stream_sync(kt->stream));
}

/* Copies rows of a span to or from packed rows. */
static void move_rows(rk_tensor_t t, char *span, char *packed, bool packs)
{
    size_t row_bytes = (size_t)rk_tensor_row_elements(t) * rk_dtype_bytes(t.dtype);
    size_t pitch = (size_t)t.row_stride * rk_dtype_bytes(t.dtype);

    for (int64_t r = 0; r < t.shape[0]; r++) {
        char *in_span = span + (size_t)r * pitch, *in_packed = packed + (size_t)r * row_bytes;

        memcpy(packs ? in_packed : in_span, packs ? in_span : in_packed, row_bytes);
    }
}

/* One copy, not one per row, which would be slow under tools that check every call. The gaps are written back
 * unchanged. */
void kt_write(struct kt *kt, rk_tensor_t t, const double *values)
{
    char *packed = rk_malloc(rk_tensor_bytes(t)), *span = rk_malloc(span_bytes(t));

    rk_store_f64(packed, t.dtype, values, rk_tensor_num_elements(t));
    if (span_bytes(t) > rk_tensor_bytes(t))
        copy_span(kt, t, span, RK_COPY_D2H);
    move_rows(t, span, packed, false);
    copy_span(kt, t, span, RK_COPY_H2D);
    rk_free(packed);
    rk_free(span);
}

void *kt_read_bytes(struct kt *kt, rk_tensor_t t)
{
    char *packed = host_memory(kt, rk_tensor_bytes(t)), *span = rk_malloc(span_bytes(t));

    copy_span(kt, t, span, RK_COPY_D2H);
    move_rows(t, span, packed, true);
    rk_free(span);
    return packed;
}

double *kt_read(struct kt *kt, rk_tensor_t t)
{
    int64_t count = rk_tensor_num_elements(t);
    double *values = kt_scratch(kt, count);

    rk_load_f64(values, kt_read_bytes(kt, t), t.dtype, count);
    return values;
}

int32_t *kt_read_ints(struct kt *kt, rk_tensor_t t)
{
    RK_ASSERT(t.dtype == RK_DTYPE_I32);
    return kt_read_bytes(kt, t);
}

double *kt_scratch(struct kt *kt, int64_t count)
{
    return host_memory(kt, (size_t)count * sizeof(double));
}

rk_tensor_t kt_randomize(struct kt *kt, rk_tensor_t t, double deviation)
{
    int64_t count = rk_tensor_num_elements(t);
    double *values = rk_malloc((size_t)count * sizeof(*values));

    for (int64_t i = 0; i < count; i++)
        values[i] = deviation * rk_rng_next_normal(&kt->rng);
    kt_write(kt, t, values);
    rk_free(values);
    return t;
}

rk_tensor_t kt_ints(struct kt *kt, const int32_t *values, int64_t count)
{
    rk_tensor_t t = kt_zeros_1d(kt, RK_DTYPE_I32, count);

    assert_ok(rk_stream_copy(kt->stream, t.data, values, rk_tensor_bytes(t), RK_COPY_H2D));
    assert_ok(rk_stream_sync(kt->stream));
    return t;
}

rk_tensor_t kt_random_ints(struct kt *kt, int64_t count, int64_t below)
{
    int32_t *values = host_memory(kt, (size_t)count * sizeof(*values));

    for (int64_t i = 0; i < count; i++)
        values[i] = (int32_t)rk_rng_next_below(&kt->rng, below);
    return kt_ints(kt, values, count);
}

static double rounding_of(rk_dtype_t dtype)
{
    switch (dtype) {
    case RK_DTYPE_F64:
        return RK_TOL_F64_SUM;
    case RK_DTYPE_F32:
        return RK_TOL_F32_ELEMENT;
    case RK_DTYPE_BF16:
        return RK_TOL_BF16_ROUND;
    default:
        RK_ASSERT(dtype == RK_DTYPE_F16);
        return RK_TOL_F16_ROUND;
    }
}

/* Tolerance of an element: `rounding` relative to its value or `floor`, plus `absolute` relative to its value
 * or `term`, the size of the summed terms. */
struct bound {
    double rounding, floor, absolute, term;
};

static struct bound bound_of(const struct kt *kt, rk_dtype_t dtype)
{
    return (struct bound){
        .rounding = rounding_of(dtype),
        .floor = RK_TOL_FLOOR,
        .absolute = kt_is_cpu(kt) || dtype == RK_DTYPE_F64 ? 0.0 : RK_TOL_F32_SUM,
        .term = 1.0,
    };
}

/* The maximum error in units of its bound. */
static double worst_error(const double *actual, const double *expected, int64_t count, struct bound bound)
{
    double worst = 0.0;

    for (int64_t i = 0; i < count; i++) {
        double size = fabs(expected[i]);
        double allowed = bound.rounding * fmax(size, bound.floor) + bound.absolute * fmax(size, bound.term);
        double error = actual[i] == expected[i] ? 0.0 : fabs(actual[i] - expected[i]) / allowed;

        worst = error <= worst ? worst : isnan(error) ? INFINITY : error;
    }
    return worst;
}

static void expect_within(struct kt *kt, const char *label, rk_tensor_t actual, const double *expected,
                          struct bound bound)
{
    int64_t count = rk_tensor_num_elements(actual);

    assert_below(kt_label(kt, label, actual.dtype), worst_error(kt_read(kt, actual), expected, count, bound),
                 1.0);
}

void kt_expect_close(struct kt *kt, const char *label, rk_tensor_t actual, const double *expected)
{
    expect_within(kt, label, actual, expected, bound_of(kt, actual.dtype));
}

void kt_expect_close_sum(struct kt *kt, const char *label, rk_tensor_t actual, const double *expected)
{
    struct bound bound = bound_of(kt, actual.dtype);

    if (actual.dtype != RK_DTYPE_F64)
        bound.absolute = RK_TOL_F32_SUM;
    expect_within(kt, label, actual, expected, bound);
}

void kt_expect_close_attention(struct kt *kt, const char *label, rk_tensor_t actual, const double *expected)
{
    struct bound bound = bound_of(kt, actual.dtype);

    for (int64_t i = 0; i < rk_tensor_num_elements(actual); i++)
        bound.term = fmax(bound.term, fabs(expected[i]));
    if (actual.dtype != RK_DTYPE_F64)
        bound.absolute = RK_TOL_F32_SUM;
    if (actual.dtype == RK_DTYPE_BF16 && !kt_is_cpu(kt)) {
        bound.rounding = RK_TOL_BF16_PRODUCT;
        bound.floor = bound.term;
    }
    expect_within(kt, label, actual, expected, bound);
}

void kt_expect_refused(struct kt *kt, struct rk_status *st, const char *text)
{
    if (kt_is_cpu(kt)) {
        assert_fails(st, RK_INVALID_ARGUMENT, text);
    } else {
        assert_ok(st);
        assert_ok(rk_stream_sync(kt->stream));
    }
}

void kt_expect_same_bits(struct kt *kt, const char *label, rk_tensor_t actual, rk_tensor_t expected)
{
    assert_int_equal(rk_tensor_bytes(actual), rk_tensor_bytes(expected));
    if (memcmp(kt_read_bytes(kt, actual), kt_read_bytes(kt, expected), rk_tensor_bytes(actual)) != 0)
        fail_msg("%s: the bits differ", kt_label(kt, label, actual.dtype));
}

const char *kt_label(struct kt *kt, const char *label, rk_dtype_t dtype)
{
    char *text = rk_format("%s %s", label, rk_dtype_name(dtype));

    remember(&kt->host_memory, &kt->num_host, &kt->host_capacity, text);
    return text;
}

double kt_project(struct kt *kt, rk_tensor_t t, rk_tensor_t weight)
{
    const double *values = kt_read(kt, t), *weights = kt_read(kt, weight);
    double sum = 0.0;

    for (int64_t i = 0; i < rk_tensor_num_elements(t); i++)
        sum += weights[i] * values[i];
    return sum;
}

/* Five-point stencil: the error is of order h^4, so h can be large, which limits cancellation. */
static double difference(struct kt *kt, rk_tensor_t input, double *values, int64_t i,
                         double (*loss)(struct kt *kt, void *user), void *user)
{
    static const double steps[4] = {-2, -1, 1, 2}, weights[4] = {1, -8, 8, -1};
    double h = 2e-4, centre = values[i], sum = 0.0;

    for (int s = 0; s < 4; s++) {
        values[i] = centre + steps[s] * h;
        kt_write(kt, input, values);
        sum += weights[s] * loss(kt, user);
    }
    values[i] = centre;
    kt_write(kt, input, values);
    return sum / (12 * h);
}

void kt_expect_gradient(struct kt *kt, const char *label, rk_tensor_t input, rk_tensor_t gradient,
                        double (*loss)(struct kt *kt, void *user), void *user)
{
    int64_t count = rk_tensor_num_elements(input);
    double worst = 0.0, largest = 0.0, *values;
    const double *analytic;

    RK_ASSERT(input.dtype == RK_DTYPE_F64);
    if (!rk_test_in_part())
        return;
    values = kt_read(kt, input);
    analytic = kt_read(kt, gradient);
    for (int64_t i = 0; i < count; i++) {
        int64_t num_host = kt->num_host;
        double error = fabs(difference(kt, input, values, i, loss, user) - analytic[i]);

        worst = error > worst ? error : worst;
        largest = fabs(analytic[i]) > largest ? fabs(analytic[i]) : largest;
        while (kt->num_host > num_host) /* arrays that the loss has read back */
            rk_free(kt->host_memory[--kt->num_host]);
    }
    assert_true(largest > 0.0);
    assert_below(label, worst / largest, RK_TOL_GRADIENT_KERNEL);
}
