/* Goal: gemm equals three nested loops in f64 for every transpose, dtype and shape class, fast and strict. */
#include "tests/kernels/kernel_test.h"

#include <math.h>
#include <time.h>

#include "base/rk_time.h"

struct gemm_case {
    const char *label;
    int64_t m, n, k;
    bool trans_a, trans_b, has_bias;
    float alpha, beta;
};

static const struct gemm_case cases[] = {
    {"one element", 1, 1, 1, false, false, false, 1.0f, 0.0f},
    {"forward of a linear layer", 37, 48, 64, false, true, true, 1.0f, 0.0f},
    {"input gradient", 37, 64, 48, false, false, false, 1.0f, 0.0f},
    {"weight gradient, accumulated", 48, 64, 37, true, false, false, 1.0f, 1.0f},
    {"both transposed, scaled", 17, 19, 23, true, true, true, 0.5f, -2.0f},
    {"one row", 1, 130, 65, false, true, true, 1.0f, 0.0f},
    {"one column", 67, 1, 40, false, true, false, 1.0f, 0.0f},
    {"rows and inner beyond a tile", 530, 20, 263, false, true, true, 1.0f, 1.0f},
    {"columns and inner beyond a tile", 20, 531, 300, true, false, true, 1.0f, 1.0f},
    {"several tiles of the CPU backend", 291, 274, 130, true, true, true, 0.5f, 1.0f},
    {"no inner dimension", 5, 7, 0, false, true, true, 1.0f, 0.5f},
};

static double element(const double *values, int64_t columns, bool trans, int64_t row, int64_t col)
{
    return trans ? values[col * columns + row] : values[row * columns + col];
}

static double *reference(struct kt *kt, const struct rk_gemm_args *args, int64_t k_size)
{
    int64_t m_size = args->c.shape[0], n_size = args->c.shape[1];
    const double *a = kt_read(kt, args->a), *b = kt_read(kt, args->b);
    const double *bias = args->bias.data ? kt_read(kt, args->bias) : NULL;
    double *c = kt_read(kt, args->c);

    for (int64_t m = 0; m < m_size; m++) {
        for (int64_t n = 0; n < n_size; n++) {
            double sum = 0.0;

            for (int64_t k = 0; k < k_size; k++)
                sum += element(a, args->a.shape[1], args->trans_a, m, k) *
                       element(b, args->b.shape[1], args->trans_b, k, n);
            c[m * n_size + n] = args->alpha * sum + (args->beta != 0 ? args->beta * c[m * n_size + n] : 0.0) +
                                (bias ? bias[n] : 0.0);
        }
    }
    return c;
}

/* A matrix that is part of a wider one, so that its rows have gaps. */
static rk_tensor_t random_part(struct kt *kt, rk_dtype_t dtype, int64_t rows, int64_t cols, double deviation)
{
    return rk_tensor_cols(kt_randomize(kt, kt_zeros_2d(kt, dtype, rows, cols + 5), deviation), 3, cols);
}

static void run_case(struct kt *kt, const struct gemm_case *c, rk_dtype_t dtype, rk_dtype_t c_dtype,
                     bool strict)
{
    double deviation =
        1.0 / sqrt((double)RK_MAX(c->k, 1)); /* results near 1, where the tolerance is relative */
    struct rk_gemm_args args = {
        .a = c->trans_a ? random_part(kt, dtype, c->k, c->m, 1.0) : random_part(kt, dtype, c->m, c->k, 1.0),
        .b = c->trans_b ? random_part(kt, dtype, c->n, c->k, deviation)
                        : random_part(kt, dtype, c->k, c->n, deviation),
        .c = random_part(kt, c_dtype, c->m, c->n, 1.0),
        .bias = c->has_bias ? kt_randomize(kt, kt_zeros_1d(kt, dtype, c->n), 1.0) : (rk_tensor_t){0},
        .trans_a = c->trans_a,
        .trans_b = c->trans_b,
        .strict = strict,
        .alpha = c->alpha,
        .beta = c->beta,
    };
    double *expected = reference(kt, &args, c->k);

    assert_ok(rk_gemm(kt->stream, &args));
    kt_expect_close_sum(kt, kt_label(kt, c->label, dtype), args.c, expected);
}

static void run_all(struct kt *kt, bool strict)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        for (size_t d = 0; d < RK_ARRAY_LEN(kt_dtypes); d++) {
            if (rk_test_in_part())
                run_case(kt, &cases[i], kt_dtypes[d], kt_dtypes[d], strict);
            if (kt_dtypes[d] != RK_DTYPE_F32 && rk_test_in_part())
                run_case(kt, &cases[i], kt_dtypes[d], RK_DTYPE_F32, strict);
        }
    }
}

static void test_gemm_all_cases_equal_reference(void **state)
{
    run_all(*state, false);
}

static void test_gemm_strict_all_cases_equal_reference(void **state)
{
    run_all(*state, true);
}

/* Goal: beta 0 does not read C. Method: C is full of NaN before the call. */
static void test_gemm_beta_zero_ignores_nan_in_c(void **state)
{
    static const double nans[6] = {NAN, NAN, NAN, NAN, NAN, NAN};
    struct kt *kt = *state;

    for (int strict = 0; strict < 2; strict++) {
        for (size_t d = 0; d < RK_ARRAY_LEN(kt_dtypes); d++) {
            struct rk_gemm_args args = {
                .a = kt_randomize(kt, kt_zeros_2d(kt, kt_dtypes[d], 2, 4), 1.0),
                .b = kt_randomize(kt, kt_zeros_2d(kt, kt_dtypes[d], 4, 3), 1.0),
                .c = kt_zeros_2d(kt, kt_dtypes[d], 2, 3),
                .strict = strict,
                .alpha = 1.0f,
            };
            double *expected = reference(kt, &args, 4);

            kt_write(kt, args.c, nans);
            assert_ok(rk_gemm(kt->stream, &args));
            kt_expect_close_sum(kt, "beta 0", args.c, expected);
        }
    }
}

/* Goal: strict bits do not depend on M or N. Method: a part of the GEMM, computed alone, equals that part of
 * the whole; the inner dimension spans several blocks. */
static void test_gemm_strict_part_alone_has_same_bits(void **state)
{
    static const rk_dtype_t dtypes[] = {RK_DTYPE_F32, RK_DTYPE_BF16};
    struct kt *kt = *state;

    for (size_t d = 0; d < RK_ARRAY_LEN(dtypes); d++) {
        rk_tensor_t a = kt_randomize(kt, kt_zeros_2d(kt, dtypes[d], 150, 600), 1.0);
        rk_tensor_t b = kt_randomize(kt, kt_zeros_2d(kt, dtypes[d], 300, 600), 1.0);
        rk_tensor_t whole = kt_zeros_2d(kt, dtypes[d], 150, 300), part = kt_zeros_2d(kt, dtypes[d], 3, 7);
        struct rk_gemm_args args = {
            .a = a, .b = b, .c = whole, .trans_b = true, .strict = true, .alpha = 1.0f};

        assert_ok(rk_gemm(kt->stream, &args));
        args.a = rk_tensor_rows(a, 70, 3);
        args.b = rk_tensor_rows(b, 201, 7);
        args.c = part;
        assert_ok(rk_gemm(kt->stream, &args));
        kt_expect_same_bits(kt, "part of a product", part,
                            rk_tensor_cols(rk_tensor_rows(whole, 70, 3), 201, 7));
    }
}

struct strict_shape {
    const char *label;
    int64_t m, n, k;
    bool has_bias;
};

/* Runs the GEMM, the same on copies that start at odd elements, and on the first rows alone. */
static void run_strict_shape(struct kt *kt, const struct strict_shape *shape, rk_dtype_t dtype)
{
    int64_t m = shape->m, n = shape->n, k = shape->k;
    struct rk_gemm_args args = {
        .a = kt_randomize(kt, kt_zeros_2d(kt, dtype, m, k), 1.0),
        .b = kt_randomize(kt, kt_zeros_2d(kt, dtype, n, k), 1.0),
        .c = kt_zeros_2d(kt, dtype, m, n),
        .trans_b = true,
        .strict = true,
        .alpha = 1.0f,
    };
    struct rk_gemm_args odd = args, few = args;

    if (shape->has_bias)
        few.bias = odd.bias = args.bias = kt_randomize(kt, kt_zeros_1d(kt, dtype, n), 1.0);
    odd.a = rk_tensor_cols(kt_zeros_2d(kt, dtype, m, k + 2), 1, k);
    odd.b = rk_tensor_cols(kt_zeros_2d(kt, dtype, n, k + 2), 1, k);
    odd.c = rk_tensor_cols(kt_zeros_2d(kt, dtype, m, n + 2), 1, n);
    kt_write(kt, odd.a, kt_read(kt, args.a));
    kt_write(kt, odd.b, kt_read(kt, args.b));
    few.a = rk_tensor_rows(args.a, 0, RK_MIN(m, 3));
    few.c = kt_zeros_2d(kt, dtype, RK_MIN(m, 3), n);
    assert_ok(rk_gemm(kt->stream, &args));
    assert_ok(rk_gemm(kt->stream, &odd));
    assert_ok(rk_gemm(kt->stream, &few));
    kt_expect_same_bits(kt, shape->label, odd.c, args.c);
    kt_expect_same_bits(kt, shape->label, few.c, rk_tensor_rows(args.c, 0, RK_MIN(m, 3)));
}

/* Goal: strict bits do not depend on a matrix's alignment and number of rows, by which a GPU backend selects
 * kernels. */
static void test_gemm_strict_alignment_and_rows_have_no_effect(void **state)
{
    static const struct strict_shape shapes[] = {
        {"one token", 1, 64, 128, false},
        {"one step of the chain", 48, 32, 16, false},
        {"decode", 24, 256, 512, true},
        {"tiles and a rest", 200, 136, 1040, false},
        {"long inner dimension", 64, 96, 8960, true},
        {"training", 1000, 256, 1536, false},
    };
    static const rk_dtype_t dtypes[] = {RK_DTYPE_F32, RK_DTYPE_BF16, RK_DTYPE_F16};

    /* Each shape runs dozens of cuBLASLt's kernels, which compute-sanitizer must instrument first. */
    for (size_t i = 0; i < RK_ARRAY_LEN(shapes); i += rk_test_is_quick() ? 3 : 1) {
        for (size_t d = 0; d < RK_ARRAY_LEN(dtypes); d++) {
            if (rk_test_in_part())
                run_strict_shape(*state, &shapes[i], dtypes[d]);
        }
    }
}

static void run_swiglu(struct kt *kt, int64_t m, int64_t n, int64_t k, bool strict, rk_dtype_t dtype)
{
    rk_tensor_t parts = kt_zeros_2d(kt, dtype, m, n / 2), whole = kt_zeros_2d(kt, dtype, m, n / 2);
    struct rk_gemm_args args = {.c = kt_zeros_2d(kt, dtype, m, n),
                                .a = kt_randomize(kt, kt_zeros_2d(kt, dtype, m, k), 0.5),
                                .b = kt_randomize(kt, kt_zeros_2d(kt, dtype, n, k), 0.5),
                                .trans_b = true,
                                .strict = strict,
                                .alpha = 1.0f};

    assert_ok(rk_gemm(kt->stream, &args));
    assert_ok(
        rk_swiglu_fwd(kt->stream, &(struct rk_swiglu_fwd_args){.y = parts,
                                                               .gate = rk_tensor_cols(args.c, 0, n / 2),
                                                               .up = rk_tensor_cols(args.c, n / 2, n / 2)}));
    assert_ok(rk_stream_sync(kt->stream));
    args.b_is_settled = true;
    args.swiglu = whole;
    assert_ok(rk_gemm(kt->stream, &args));
    kt_expect_same_bits(kt, "swiglu", whole, parts);
}

/* Goal: a GEMM with fused swiglu is bit-identical to both operators in sequence. Method: shapes that the
 * kernels for few rows support, with numbers of columns that are not multiples of their tiles, and shapes
 * that they do not. */
static void test_gemm_swiglu_has_bits_of_its_parts(void **state)
{
    static const int64_t sizes[][3] = {
        {1, 16, 64}, {5, 208, 136}, {64, 1040, 512}, {37, 6, 40}, {130, 96, 64}};
    struct kt *kt = *state;

    for (size_t i = 0; i < RK_ARRAY_LEN(sizes); i++) {
        int64_t k = rk_test_is_quick() ? RK_MIN(sizes[i][2], 128) : sizes[i][2];

        for (size_t d = 0; d < RK_ARRAY_LEN(kt_dtypes); d++) {
            if (kt_is_cpu_only(kt, kt_dtypes[d]) || !rk_test_in_part())
                continue;
            for (int strict = 0; strict < 2; strict++)
                run_swiglu(kt, sizes[i][0], sizes[i][1], k, strict, kt_dtypes[d]);
        }
    }
}

static double processor_ms(void)
{
    struct timespec time;

    assert_int_equal(clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time), 0);
    return (double)time.tv_sec * 1e3 + (double)time.tv_nsec / 1e6;
}

/* Goal: threads sleep when a GEMM has ended; while they spin, another daemon on the same cores waits. Method:
 * processor time of the process in a pause after a GEMM for all threads. OpenBLAS's own threads spin for
 * about 25 ms each. */
static void test_gemm_threads_sleep_after_the_call(void **state)
{
    enum { SIZE = 512 };
    struct kt *kt = kt_create(4);
    struct rk_gemm_args args = {.c = kt_zeros_2d(kt, RK_DTYPE_F32, SIZE, SIZE),
                                .a = kt_zeros_2d(kt, RK_DTYPE_F32, SIZE, SIZE),
                                .b = kt_zeros_2d(kt, RK_DTYPE_F32, SIZE, SIZE),
                                .alpha = 1.0f};
    double least = 1e9;

    (void)state;
    if (!kt_is_cpu(kt)) {
        kt_destroy(kt);
        rk_test_skip("a GPU's operators have no threads of the host");
    }
    for (int i = 0; i < 5 && least > 2.0; i++) {
        double begin;

        assert_ok(rk_gemm(kt->stream, &args));
        begin = processor_ms();
        rk_time_sleep_ms(60);
        least = RK_MIN(least, processor_ms() - begin);
    }
    if (least > 2.0)
        fail_msg("%.1f ms of processor time in a pause of 60 ms", least);
    kt_destroy(kt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        kt_test(test_gemm_all_cases_equal_reference),
        kt_test(test_gemm_strict_all_cases_equal_reference),
        kt_test(test_gemm_beta_zero_ignores_nan_in_c),
        kt_test(test_gemm_strict_part_alone_has_same_bits),
        kt_test(test_gemm_strict_alignment_and_rows_have_no_effect),
        kt_test(test_gemm_swiglu_has_bits_of_its_parts),
        cmocka_unit_test(test_gemm_threads_sleep_after_the_call),
    };

    return cmocka_run_group_tests_name("kernels/gemm", tests, NULL, NULL);
}
