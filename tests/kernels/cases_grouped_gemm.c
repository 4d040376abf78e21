/* Goal: grouped GEMM equals three nested loops in f64 for every group, for groups without rows and with sizes
 * around those of tiles; an output does not depend on other groups. */
#include "tests/kernels/kernel_test.h"

#include <math.h>

struct grouped_case {
    const char *label;
    int64_t n, k;
    int64_t extra; /* rows after the last group */
    int32_t sizes[8];
    int64_t num_groups;
};

static const struct grouped_case cases[] = {
    {"one row", 8, 8, 0, {1}, 1},
    {"small groups", 24, 40, 3, {3, 0, 1, 7}, 4},
    {"no rows at all", 16, 16, 5, {0, 0}, 2},
    {"tails of a step of the sum", 72, 56, 1, {16, 17, 15, 31, 33, 0, 64, 65}, 8},
    {"more than a tile of rows", 136, 72, 0, {130, 0, 257, 20}, 4},
    {"more than a tile of columns", 264, 328, 2, {5, 40}, 2},
    {"odd sizes", 13, 21, 2, {4, 9, 0}, 3},
};

/* Sizes to offsets [G + 1]; returns the number of rows, including those after the last group. */
static int64_t sum_sizes(const struct grouped_case *c, int32_t offsets[9])
{
    offsets[0] = 0;
    for (int64_t g = 0; g < c->num_groups; g++)
        offsets[g + 1] = offsets[g] + c->sizes[g];
    return offsets[c->num_groups] + c->extra;
}

/* A matrix whose rows have gaps, which keep them at multiples of 16 bytes or not. */
static rk_tensor_t random_rows(struct kt *kt, rk_dtype_t dtype, int64_t rows, int64_t cols, bool aligned)
{
    int64_t pad = aligned ? 8 : 1;

    return rk_tensor_cols(kt_randomize(kt, kt_zeros_2d(kt, dtype, rows, cols + 2 * pad), 1.0), pad, cols);
}

static double *expect_rows(struct kt *kt, const struct rk_grouped_gemm_args *args, const int32_t *offsets)
{
    int64_t num_groups = args->w.shape[0], n_size = args->y.shape[1], k_size = args->x.shape[1];
    const double *x = kt_read(kt, args->x), *w = kt_read(kt, args->w);
    double *y = kt_read(kt, args->y); /* rows after the last group are not written */

    for (int64_t g = 0; g < num_groups; g++) {
        for (int64_t r = offsets[g]; r < offsets[g + 1]; r++) {
            for (int64_t n = 0; n < n_size; n++) {
                double sum = 0.0;

                for (int64_t k = 0; k < k_size; k++)
                    sum += x[r * k_size + k] *
                           w[g * n_size * k_size + (args->trans_w ? n * k_size + k : k * n_size + n)];
                y[r * n_size + n] = sum;
            }
        }
    }
    return y;
}

static void run_rows(struct kt *kt, const struct grouped_case *c, rk_dtype_t dtype, bool trans_w, bool strict)
{
    int32_t offsets[9];
    int64_t rows = sum_sizes(c, offsets);
    struct rk_grouped_gemm_args args = {
        .y = random_rows(kt, dtype, rows, c->n, c->n % 8 == 0),
        .x = random_rows(kt, dtype, rows, c->k, c->n % 8 == 0),
        .w = kt_randomize(kt,
                          trans_w ? kt_zeros_3d(kt, dtype, c->num_groups, c->n, c->k)
                                  : kt_zeros_3d(kt, dtype, c->num_groups, c->k, c->n),
                          1.0 / sqrt((double)c->k)),
        .offsets = kt_ints(kt, offsets, c->num_groups + 1),
        .trans_w = trans_w,
        .strict = strict,
    };
    double *expected = expect_rows(kt, &args, offsets);

    assert_ok(rk_grouped_gemm(kt->stream, &args));
    kt_expect_close_sum(kt, kt_label(kt, c->label, dtype), args.y, expected);
}

static void test_grouped_gemm_all_cases_equal_reference(void **state)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        for (size_t d = 0; d < RK_ARRAY_LEN(kt_dtypes); d++) {
            for (int kind = 0; kind < 4; kind++) {
                if (rk_test_in_part())
                    run_rows(*state, &cases[i], kt_dtypes[d], kind % 2 == 0, kind >= 2);
            }
        }
    }
}

static double *expect_wgrad(struct kt *kt, const struct rk_grouped_gemm_wgrad_args *args,
                            const int32_t *offsets)
{
    int64_t num_groups = args->dw.shape[0], n_size = args->dy.shape[1], k_size = args->x.shape[1];
    const double *x = kt_read(kt, args->x), *dy = kt_read(kt, args->dy);
    double *dw = kt_read(kt, args->dw);

    for (int64_t g = 0; g < num_groups; g++) {
        for (int64_t n = 0; n < n_size; n++) {
            for (int64_t k = 0; k < k_size; k++) {
                double sum = 0.0, *at = &dw[(g * n_size + n) * k_size + k];

                for (int64_t r = offsets[g]; r < offsets[g + 1]; r++)
                    sum += dy[r * n_size + n] * x[r * k_size + k];
                *at = sum + (args->overwrites_dw ? 0.0 : *at);
            }
        }
    }
    return dw;
}

/* Rows after the last group are NaN: they must not affect a gradient. */
static void spoil_rest(struct kt *kt, rk_tensor_t t, int64_t first)
{
    int64_t count = (t.shape[0] - first) * t.shape[1];
    double *nans = kt_scratch(kt, count + 1);

    for (int64_t i = 0; i < count; i++)
        nans[i] = NAN;
    if (count > 0)
        kt_write(kt, rk_tensor_rows(t, first, t.shape[0] - first), nans);
}

static void run_wgrad(struct kt *kt, const struct grouped_case *c, rk_dtype_t dtype, rk_dtype_t dw_dtype,
                      bool overwrites)
{
    int32_t offsets[9];
    int64_t rows = sum_sizes(c, offsets);
    bool aligned = c->n % 8 == 0;
    struct rk_grouped_gemm_wgrad_args args = {
        .dw = kt_randomize(kt, kt_zeros_3d(kt, dw_dtype, c->num_groups, c->n, c->k), 1.0),
        .dy = kt_randomize(kt, random_rows(kt, dtype, rows, c->n, aligned), 0.1),
        .x = random_rows(kt, dtype, rows, c->k, aligned),
        .offsets = kt_ints(kt, offsets, c->num_groups + 1),
        .overwrites_dw = overwrites,
        .strict = true,
    };
    double *expected;

    spoil_rest(kt, args.dy, offsets[c->num_groups]);
    spoil_rest(kt, args.x, offsets[c->num_groups]);
    expected = expect_wgrad(kt, &args, offsets);
    assert_ok(rk_grouped_gemm_wgrad(kt->stream, &args));
    kt_expect_close_sum(kt, kt_label(kt, c->label, dtype), args.dw, expected);
}

static void test_grouped_gemm_wgrad_all_cases_equal_reference(void **state)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        for (size_t d = 0; d < RK_ARRAY_LEN(kt_dtypes); d++) {
            for (int overwrites = 0; overwrites < 2; overwrites++) {
                if (rk_test_in_part())
                    run_wgrad(*state, &cases[i], kt_dtypes[d], kt_dtypes[d], overwrites);
                if (kt_dtypes[d] != RK_DTYPE_F32 && rk_test_in_part())
                    run_wgrad(*state, &cases[i], kt_dtypes[d], RK_DTYPE_F32, overwrites);
            }
        }
    }
}

/* Goal: swiglu has the bits of swiglu_fwd of the product, and rows after the last group keep their values.
 * Method: both, for tiles of many and of few rows. */
static void run_swiglu(struct kt *kt, const struct grouped_case *c, rk_dtype_t dtype, bool has_probs,
                       int64_t likely_rows)
{
    int32_t offsets[9];
    int64_t rows = sum_sizes(c, offsets), half = c->n;
    struct rk_grouped_gemm_args fused = {
        .y = random_rows(kt, dtype, rows, 2 * half, half % 8 == 0),
        .x = random_rows(kt, dtype, rows, c->k, half % 8 == 0),
        .w = kt_randomize(kt, kt_zeros_3d(kt, dtype, c->num_groups, 2 * half, c->k), 1.0),
        .offsets = kt_ints(kt, offsets, c->num_groups + 1),
        .swiglu = random_rows(kt, dtype, rows, half, half % 8 == 0),
        .trans_w = true,
        .strict = true,
        .likely_rows = likely_rows,
    };
    struct rk_grouped_gemm_args plain = fused;
    rk_tensor_t expected = random_rows(kt, dtype, rows, half, half % 8 == 0);

    if (has_probs)
        fused.probs = kt_randomize(kt, kt_zeros_1d(kt, kt_stat_dtype(dtype), rows), 1.0);
    kt_write(kt, expected, kt_read(kt, fused.swiglu));
    plain.swiglu = (rk_tensor_t){0};
    assert_ok(rk_grouped_gemm(kt->stream, &plain));
    assert_ok(rk_swiglu_fwd(
        kt->stream, &(struct rk_swiglu_fwd_args){.y = expected,
                                                 .gate = rk_tensor_cols(plain.y, 0, half),
                                                 .up = rk_tensor_cols(plain.y, half, half),
                                                 .probs = fused.probs,
                                                 .count = rk_tensor_rows(fused.offsets, c->num_groups, 1)}));
    assert_ok(rk_grouped_gemm(kt->stream, &fused));
    kt_expect_same_bits(kt, kt_label(kt, c->label, dtype), fused.swiglu, expected);
}

static void test_grouped_gemm_swiglu_has_the_bits_of_two_operators(void **state)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        for (size_t d = 0; d < RK_ARRAY_LEN(kt_dtypes); d++) {
            for (int kind = 0; kind < 4; kind++) {
                if (rk_test_in_part())
                    run_swiglu(*state, &cases[i], kt_dtypes[d], kind % 2 == 0, kind >= 2 ? 1 : 0);
            }
        }
    }
}

/* Goal: the result of a row does not depend on the other rows of its group, on other groups, nor on its
 * alignment, by which a GPU backend selects kernels. Method: the last rows of a group alone, as copies at odd
 * addresses. */
static void test_grouped_gemm_strict_rows_have_the_bits_of_the_rows_alone(void **state)
{
    static const int32_t sizes[] = {0, 70, 270, 300}, few[] = {0, 0, 3, 3};
    static const rk_dtype_t dtypes[] = {RK_DTYPE_F32, RK_DTYPE_BF16};
    struct kt *kt = *state;

    for (size_t d = 0; d < RK_ARRAY_LEN(dtypes) * 2; d++) {
        rk_dtype_t dtype = dtypes[d / 2];
        bool trans_w = d % 2 == 0;
        int64_t n = 144, k = 272;
        struct rk_grouped_gemm_args args = {
            .y = kt_zeros_2d(kt, dtype, 300, n),
            .x = kt_randomize(kt, kt_zeros_2d(kt, dtype, 300, k), 1.0),
            .w = kt_randomize(kt, trans_w ? kt_zeros_3d(kt, dtype, 3, n, k) : kt_zeros_3d(kt, dtype, 3, k, n),
                              1.0),
            .offsets = kt_ints(kt, sizes, 4),
            .trans_w = trans_w,
            .strict = true,
        };
        struct rk_grouped_gemm_args alone = args, narrow = args;

        alone.x = rk_tensor_cols(kt_zeros_2d(kt, dtype, 3, k + 2), 1, k);
        alone.y = kt_zeros_2d(kt, dtype, 3, n);
        alone.offsets = kt_ints(kt, few, 4);
        kt_write(kt, alone.x, kt_read(kt, rk_tensor_rows(args.x, 267, 3)));
        assert_ok(rk_grouped_gemm(kt->stream, &args));
        assert_ok(rk_grouped_gemm(kt->stream, &alone));
        kt_expect_same_bits(kt, "rows alone", alone.y, rk_tensor_rows(args.y, 267, 3));
        narrow.y = kt_zeros_2d(kt, dtype, 300, n);
        narrow.likely_rows = 1;
        assert_ok(rk_grouped_gemm(kt->stream, &narrow));
        kt_expect_same_bits(kt, "tiles for few rows", narrow.y, args.y);
    }
}

/* Goal: a group has the bits of gemm, not only strict ones, although its tiles run beside those of other
 * groups. Method: each group alone, forward and weight gradient; one group has several tiles. */
static void test_grouped_gemm_groups_have_the_bits_of_gemm(void **state)
{
    enum { GROUPS = 4, N = 136, K = 120 };
    static const int32_t offsets[GROUPS + 1] = {0, 5, 5, 350, 420};
    static const rk_dtype_t dtypes[] = {RK_DTYPE_F32, RK_DTYPE_BF16, RK_DTYPE_F64};
    struct kt *kt = *state;

    if (!kt_is_cpu(kt))
        rk_test_skip("only the CPU's products have the same bits");
    for (size_t d = 0; d < RK_ARRAY_LEN(dtypes) * 2; d++) {
        rk_dtype_t dtype = dtypes[d / 2];
        struct rk_grouped_gemm_args args = {
            .y = kt_zeros_2d(kt, dtype, 420, N),
            .x = kt_randomize(kt, kt_zeros_2d(kt, dtype, 420, K), 1.0),
            .w = kt_randomize(kt, kt_zeros_3d(kt, dtype, GROUPS, N, K), 1.0),
            .offsets = kt_ints(kt, offsets, GROUPS + 1),
            .trans_w = true,
            .strict = d % 2 == 0,
        };
        rk_tensor_t dw = kt_zeros_3d(kt, dtype, GROUPS, N, K), y = kt_zeros_2d(kt, dtype, 420, N);

        assert_ok(rk_grouped_gemm(kt->stream, &args));
        assert_ok(
            rk_grouped_gemm_wgrad(kt->stream, &(struct rk_grouped_gemm_wgrad_args){.dw = dw,
                                                                                   .dy = args.y,
                                                                                   .x = args.x,
                                                                                   .offsets = args.offsets,
                                                                                   .strict = args.strict,
                                                                                   .overwrites_dw = true}));
        for (int64_t g = 0; g < GROUPS; g++) {
            int64_t count = offsets[g + 1] - offsets[g];
            rk_tensor_t x = rk_tensor_rows(args.x, offsets[g], count),
                        dy = rk_tensor_rows(args.y, offsets[g], count), w = rk_tensor_rows(args.w, g, 1),
                        of_group = rk_tensor_rows(dw, g, 1), alone = kt_zeros_2d(kt, dtype, N, K);

            w = rk_tensor_2d(w.data, dtype, N, K);
            of_group = rk_tensor_2d(of_group.data, dtype, N, K);
            assert_ok(rk_gemm(kt->stream, &(struct rk_gemm_args){.c = rk_tensor_rows(y, offsets[g], count),
                                                                 .a = x,
                                                                 .b = w,
                                                                 .trans_b = true,
                                                                 .strict = args.strict,
                                                                 .alpha = 1.0f}));
            assert_ok(rk_gemm(
                kt->stream,
                &(struct rk_gemm_args){
                    .c = alone, .a = dy, .b = x, .trans_a = true, .strict = args.strict, .alpha = 1.0f}));
            kt_expect_same_bits(kt, "weight gradient of a group", of_group, alone);
        }
        kt_expect_same_bits(kt, "groups", args.y, y);
    }
}

static void test_grouped_gemm_bad_arguments_are_named(void **state)
{
    static const int32_t decreasing[] = {0, 3, 2}, beyond[] = {0, 3, 5}, late[] = {1, 3, 4};
    static const struct {
        const int32_t *offsets;
        const char *text;
    } bad[] = {{decreasing, "offsets[2]=2"}, {beyond, "offsets[2]=5"}, {late, "offsets[0]=1"}};
    struct kt *kt = *state;
    struct rk_grouped_gemm_args args = {.y = kt_zeros_2d(kt, RK_DTYPE_F32, 4, 6),
                                        .x = kt_zeros_2d(kt, RK_DTYPE_F32, 4, 5),
                                        .w = kt_zeros_3d(kt, RK_DTYPE_F32, 2, 6, 5),
                                        .offsets = kt_ints(kt, late, 2),
                                        .trans_w = true};

    assert_fails(rk_grouped_gemm(kt->stream, &args), RK_INVALID_ARGUMENT,
                 "offsets is i32 [2], expected i32 [3]");
    args.offsets = kt_ints(kt, late, 3);
    args.swiglu = kt_zeros_2d(kt, RK_DTYPE_F32, 4, 4);
    assert_fails(rk_grouped_gemm(kt->stream, &args), RK_INVALID_ARGUMENT,
                 "swiglu is f32 [4, 4], expected f32 [4, 3]");
    args.swiglu = (rk_tensor_t){0};
    args.probs = kt_zeros_1d(kt, RK_DTYPE_F32, 4);
    assert_fails(rk_grouped_gemm(kt->stream, &args), RK_INVALID_ARGUMENT, "probs without swiglu");
    args.probs = (rk_tensor_t){0};
    if (!kt_is_cpu(kt))
        rk_test_skip("only the CPU backend checks the offsets");
    for (size_t i = 0; i < RK_ARRAY_LEN(bad); i++) {
        args.offsets = kt_ints(kt, bad[i].offsets, 3);
        kt_expect_refused(kt, rk_grouped_gemm(kt->stream, &args), bad[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        kt_test(test_grouped_gemm_all_cases_equal_reference),
        kt_test(test_grouped_gemm_wgrad_all_cases_equal_reference),
        kt_test(test_grouped_gemm_swiglu_has_the_bits_of_two_operators),
        kt_test(test_grouped_gemm_strict_rows_have_the_bits_of_the_rows_alone),
        kt_test(test_grouped_gemm_groups_have_the_bits_of_gemm),
        kt_test(test_grouped_gemm_bad_arguments_are_named),
    };

    return cmocka_run_group_tests_name("kernels/grouped_gemm", tests, NULL, NULL);
}
