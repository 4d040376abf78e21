/* Goal: row moves, axpby, the sum of squares, random numbers and AdamW equal their formulas in f64 for every
 * dtype, tail and block border. */
#include "tests/kernels/kernel_test.h"

#include <math.h>
#include <string.h>

static const int64_t counts[] = {0, 1, 1023, 1024, 1025, 5000};

static void test_gather_rows_repeated_index_copies_rows(void **state)
{
    static const int32_t index[] = {4, 0, 4, 2};
    static const rk_dtype_t dtypes[] = {RK_DTYPE_F64, RK_DTYPE_F32, RK_DTYPE_BF16};
    struct kt *kt = *state;

    for (size_t d = 0; d < RK_ARRAY_LEN(dtypes); d++) {
        struct rk_rows_args args = {
            .out = kt_zeros_2d(kt, dtypes[d], 4, 7),
            .x = rk_tensor_cols(kt_randomize(kt, kt_zeros_2d(kt, dtypes[d], 5, 9), 1.0), 1, 7),
            .index = kt_ints(kt, index, 4),
        };

        assert_ok(rk_gather_rows(kt->stream, &args));
        for (int64_t r = 0; r < 4; r++)
            kt_expect_same_bits(kt, "gather", rk_tensor_rows(args.out, r, 1),
                                rk_tensor_rows(args.x, index[r], 1));
    }
}

static void test_scatter_rows_other_rows_stay(void **state)
{
    static const int32_t index[] = {3, 0};
    static const double before[8] = {1, 2, 3, 4, 5, 6, 7, 8}, x[4] = {10, 11, 12, 13};
    static const double after[8] = {12, 13, 3, 4, 5, 6, 10, 11};
    struct kt *kt = *state;
    struct rk_rows_args args = {
        .out = kt_zeros_2d(kt, RK_DTYPE_F32, 4, 2),
        .x = kt_zeros_2d(kt, RK_DTYPE_F32, 2, 2),
        .index = kt_ints(kt, index, 2),
    };

    kt_write(kt, args.out, before);
    kt_write(kt, args.x, x);
    assert_ok(rk_scatter_rows(kt->stream, &args));
    kt_expect_close(kt, "scatter", args.out, after);
}

static void test_rows_with_gaps_are_zero_or_stay(void **state)
{
    static const int32_t index[] = {2, -1, 0, -1};
    struct kt *kt = *state;
    rk_tensor_t x = kt_randomize(kt, kt_zeros_2d(kt, RK_DTYPE_F32, 4, 7), 1.0);
    struct rk_rows_args gather = {.out = kt_randomize(kt, kt_zeros_2d(kt, RK_DTYPE_F32, 4, 7), 1.0),
                                  .x = x,
                                  .index = kt_ints(kt, index, 4),
                                  .has_gaps = true};
    struct rk_rows_args scatter = gather;
    const double *from = kt_read(kt, x);
    double *gathered = kt_scratch(kt, 4 * 7), *scattered;

    scatter.out = kt_randomize(kt, kt_zeros_2d(kt, RK_DTYPE_F32, 3, 7), 1.0);
    scattered = kt_read(kt, scatter.out);
    for (int r = 0; r < 4; r++) {
        for (int c = 0; index[r] >= 0 && c < 7; c++) {
            gathered[r * 7 + c] = from[index[r] * 7 + c];
            scattered[index[r] * 7 + c] = from[r * 7 + c];
        }
    }
    assert_ok(rk_gather_rows(kt->stream, &gather));
    assert_ok(rk_scatter_rows(kt->stream, &scatter));
    kt_expect_close(kt, "gather", gather.out, gathered);
    kt_expect_close(kt, "scatter", scatter.out, scattered);
}

/* Goal: with a count, rows from there on are not moved. */
static void test_rows_with_a_count_move_the_first_rows(void **state)
{
    static const int32_t index[] = {2, 0, 3, 1}, counts_of[] = {0, 1, 3, 4}, beyond = 5;
    struct kt *kt = *state;
    rk_tensor_t x = kt_randomize(kt, kt_zeros_2d(kt, RK_DTYPE_F32, 4, 7), 1.0);
    const double *from = kt_read(kt, x);
    struct rk_rows_args bad = {.out = kt_zeros_2d(kt, RK_DTYPE_F32, 4, 7),
                               .x = x,
                               .index = kt_ints(kt, index, 4),
                               .count = kt_ints(kt, &beyond, 1)};

    for (size_t i = 0; i < RK_ARRAY_LEN(counts_of); i++) {
        struct rk_rows_args gather = {.out = kt_randomize(kt, kt_zeros_2d(kt, RK_DTYPE_F32, 4, 7), 1.0),
                                      .x = x,
                                      .index = kt_ints(kt, index, 4),
                                      .count = kt_ints(kt, &counts_of[i], 1)};
        struct rk_rows_args scatter = gather;
        double *gathered = kt_read(kt, gather.out), *scattered;

        scatter.out = kt_randomize(kt, kt_zeros_2d(kt, RK_DTYPE_F32, 4, 7), 1.0);
        scattered = kt_read(kt, scatter.out);
        for (int r = 0; r < counts_of[i]; r++) {
            for (int c = 0; c < 7; c++) {
                gathered[r * 7 + c] = from[index[r] * 7 + c];
                scattered[index[r] * 7 + c] = from[r * 7 + c];
            }
        }
        assert_ok(rk_gather_rows(kt->stream, &gather));
        assert_ok(rk_scatter_rows(kt->stream, &scatter));
        kt_expect_close(kt, "gather", gather.out, gathered);
        kt_expect_close(kt, "scatter", scatter.out, scattered);
    }
    kt_expect_refused(kt, rk_gather_rows(kt->stream, &bad), "gather_rows: count[0]=5");
    kt_expect_refused(kt, rk_scatter_rows(kt->stream, &bad), "scatter_rows: count[0]=5");
}

static void test_rows_index_outside_fails(void **state)
{
    static const int32_t bad[][2] = {{0, 3}, {-1, 0}};
    struct kt *kt = *state;

    for (size_t i = 0; i < RK_ARRAY_LEN(bad); i++) {
        struct rk_rows_args gather = {
            .out = kt_zeros_2d(kt, RK_DTYPE_F32, 2, 2),
            .x = kt_zeros_2d(kt, RK_DTYPE_F32, 3, 2),
            .index = kt_ints(kt, bad[i], 2),
        };
        struct rk_rows_args scatter = {.out = gather.x, .x = gather.out, .index = gather.index};

        kt_expect_refused(kt, rk_gather_rows(kt->stream, &gather), "gather_rows: index[");
        kt_expect_refused(kt, rk_scatter_rows(kt->stream, &scatter), "scatter_rows: index[");
    }
}

static void test_axpby_all_dtypes_equal_reference(void **state)
{
    static const float betas[] = {0.0f, 1.0f, -0.5f};
    struct kt *kt = *state;

    for (size_t i = 0; i < RK_ARRAY_LEN(counts) * RK_ARRAY_LEN(kt_dtypes) * RK_ARRAY_LEN(kt_dtypes); i++) {
        int64_t count = counts[i % RK_ARRAY_LEN(counts)];
        rk_dtype_t y_dtype = kt_dtypes[i / RK_ARRAY_LEN(counts) % 4],
                   x_dtype = kt_dtypes[i / RK_ARRAY_LEN(counts) / 4];
        struct rk_axpby_args args = {
            .y = kt_randomize(kt, kt_zeros_1d(kt, y_dtype, count), 1.0),
            .x = kt_randomize(kt, kt_zeros_1d(kt, x_dtype, count), 1.0),
            .alpha = 0.75f,
            .beta = betas[i % 3],
        };
        const double *x = kt_read(kt, args.x);
        double *y = kt_read(kt, args.y);

        for (int64_t e = 0; e < count; e++)
            y[e] = 0.75 * x[e] + (double)args.beta * y[e];
        assert_ok(rk_axpby(kt->stream, &args));
        kt_expect_close(kt, "axpby", args.y, y);
    }
}

static void test_axpby_beta_zero_ignores_nan_in_y(void **state)
{
    static const double nans[3] = {NAN, NAN, NAN}, x[3] = {1.0, -2.0, 0.5};
    struct kt *kt = *state;
    struct rk_axpby_args args = {
        .y = kt_zeros_1d(kt, RK_DTYPE_BF16, 3),
        .x = kt_zeros_1d(kt, RK_DTYPE_F32, 3),
        .alpha = 1.0f,
    };

    kt_write(kt, args.y, nans);
    kt_write(kt, args.x, x);
    assert_ok(rk_axpby(kt->stream, &args));
    kt_expect_close(kt, "cast", args.y, x);
}

/* Goal: the sum is added to the old value, and non-finite elements are counted. */
static void test_sum_squares_all_counts_accumulate(void **state)
{
    struct kt *kt = *state;

    for (size_t i = 0; i < RK_ARRAY_LEN(counts) * RK_ARRAY_LEN(kt_dtypes); i++) {
        int64_t count = counts[i % RK_ARRAY_LEN(counts)];
        struct rk_sum_squares_args args = {
            .out = kt_randomize(kt, kt_zeros_1d(kt, RK_DTYPE_F64, 2), 1.0),
            .x = kt_randomize(kt, kt_zeros_1d(kt, kt_dtypes[i / RK_ARRAY_LEN(counts)], count), 1.0),
        };
        const double *x = kt_read(kt, args.x);
        double *expected = kt_read(kt, args.out);

        for (int64_t e = 0; e < count; e++)
            expected[0] += x[e] * x[e];
        assert_ok(rk_sum_squares(kt->stream, &args));
        kt_expect_close(kt, "sum of squares", args.out, expected);
    }
}

/* Goal: in a strided part of a tensor every element is the number of its index in the whole tensor. */
static void test_random_normal_part_of_tensor_equals_sequence(void **state)
{
    enum { ROWS = 3, COLS = 300, PITCH = 1000, FIRST = 7 };
    struct kt *kt = *state;

    for (size_t d = 0; d < RK_ARRAY_LEN(kt_dtypes); d++) {
        rk_tensor_t whole = kt_zeros_2d(kt, kt_dtypes[d], ROWS, COLS + 5);
        struct rk_random_normal_args args = {
            .out = rk_tensor_cols(whole, 2, COLS),
            .deviation = 0.25,
            .seed = 0x123456789abcULL,
            .stream = 0xfedcba9876543210ULL,
            .first = (1ULL << 33) + FIRST, /* more than 2^32 blocks */
            .row_pitch = PITCH,
        };
        double *expected = kt_scratch(kt, (int64_t)ROWS * COLS), *outside;

        for (int64_t i = 0; i < (int64_t)ROWS * COLS; i++)
            expected[i] = 0.25 * rk_rng_normal(args.seed, args.stream,
                                               args.first + (uint64_t)(i / COLS * PITCH + i % COLS));
        assert_ok(rk_random_normal(kt->stream, &args));
        kt_expect_close(kt, "random normal", args.out, expected);
        outside = kt_read(kt, rk_tensor_cols(whole, COLS + 2, 3));
        for (int64_t i = 0; i < 3 * ROWS; i++)
            assert_true(outside[i] == 0);
    }
}

/* Goal: copies a part of one matrix to a part of another, bit for bit, or rounded once to the other dtype. */
static void test_copy_2d_all_dtypes_equal_reference(void **state)
{
    enum { ROWS = 5, COLS = 5003 };
    struct kt *kt = *state;

    for (size_t i = 0; i < RK_ARRAY_LEN(kt_dtypes) * RK_ARRAY_LEN(kt_dtypes); i++) {
        rk_dtype_t out_dtype = kt_dtypes[i % 4], x_dtype = kt_dtypes[i / 4];
        rk_tensor_t whole = kt_zeros_2d(kt, out_dtype, ROWS, COLS + 3);
        struct rk_copy_2d_args args = {
            .out = rk_tensor_cols(whole, 1, COLS),
            .x = rk_tensor_cols(kt_randomize(kt, kt_zeros_2d(kt, x_dtype, ROWS, COLS + 9), 1.0), 4, COLS),
        };
        double *outside;

        assert_ok(rk_copy_2d(kt->stream, &args));
        if (out_dtype == x_dtype)
            kt_expect_same_bits(kt, "copy_2d", args.out, args.x);
        else
            kt_expect_close(kt, "copy_2d", args.out, kt_read(kt, args.x));
        outside = kt_read(kt, rk_tensor_cols(whole, COLS + 1, 2));
        for (int64_t e = 0; e < 2 * ROWS; e++)
            assert_true(outside[e] == 0);
    }
}

static uint64_t fingerprint_reference(const double *values, int64_t count)
{
    uint64_t sum = 0;

    for (int64_t i = 0; i < count; i++) {
        uint64_t bits;

        memcpy(&bits, &values[i], sizeof(bits));
        sum += rk_fingerprint_of(bits, (uint64_t)i);
    }
    return sum;
}

static uint64_t read_u64(struct kt *kt, rk_tensor_t t)
{
    uint64_t value;

    memcpy(&value, kt_read_bytes(kt, t), sizeof(value));
    return value;
}

/* Goal: fingerprints of parts sum to that of the whole matrix, in every dtype; values are rounded before they
 * are hashed; flipping one bit, or swapping two elements, changes the fingerprint. */
static void test_fingerprint_of_parts_is_that_of_the_whole(void **state)
{
    enum { ROWS = 7, COLS = 4270, CUT = 2113 };
    struct kt *kt = *state;

    for (size_t i = 0; i < RK_ARRAY_LEN(kt_dtypes) * RK_ARRAY_LEN(kt_dtypes); i++) {
        rk_tensor_t x = kt_randomize(kt, kt_zeros_2d(kt, kt_dtypes[i / 4], ROWS, COLS), 1.0);
        rk_tensor_t rounded = kt_zeros_2d(kt, kt_dtypes[i % 4], ROWS, COLS);
        struct rk_fingerprint_args args = {
            .out = kt_zeros_1d(kt, RK_DTYPE_I64, 1), .dtype = rounded.dtype, .row_pitch = COLS};
        double *values;
        uint64_t expected;

        assert_ok(rk_copy_2d(kt->stream, &(struct rk_copy_2d_args){.out = rounded, .x = x}));
        values = kt_read(kt, rounded);
        expected = fingerprint_reference(values, ROWS * COLS);
        args.x = rk_tensor_cols(x, CUT, COLS - CUT);
        args.first = CUT;
        assert_ok(rk_fingerprint(kt->stream, &args));
        assert_true(read_u64(kt, args.out) != expected);
        args.x = rk_tensor_cols(x, 0, CUT);
        args.first = 0;
        assert_ok(rk_fingerprint(kt->stream, &args));
        assert_true(read_u64(kt, args.out) == expected);
        if (values[0] != values[1]) {
            double first = values[0];

            values[0] = values[1];
            values[1] = first;
            assert_true(fingerprint_reference(values, ROWS * COLS) != expected);
        }
    }
}

static void test_sum_squares_non_finite_are_counted(void **state)
{
    static const double x[5] = {NAN, 1.0, INFINITY, -INFINITY, 2.0};
    struct kt *kt = *state;
    struct rk_sum_squares_args args = {
        .out = kt_zeros_1d(kt, RK_DTYPE_F64, 2),
        .x = kt_zeros_1d(kt, RK_DTYPE_F32, 5),
    };

    kt_write(kt, args.x, x);
    assert_ok(rk_sum_squares(kt->stream, &args));
    assert_true(kt_read(kt, args.out)[1] == 3.0);
    assert_true(isnan(kt_read(kt, args.out)[0]));
}

struct adamw_case {
    const char *label;
    rk_dtype_t param_dtype;
    int64_t count;
    bool aliased; /* the parameter is its own master */
};

static const struct adamw_case adamw_cases[] = {
    {"f32", RK_DTYPE_F32, 1500, false},          {"f32, no master", RK_DTYPE_F32, 1025, true},
    {"f64, no master", RK_DTYPE_F64, 100, true}, {"bf16", RK_DTYPE_BF16, 1024, false},
    {"empty", RK_DTYPE_F32, 0, false},
};

/* Goal: three steps equal the update of the paper's algorithm 2, within one fp32 rounding of the state per
 * step. */
static void test_adamw_three_steps_equal_reference(void **state)
{
    struct kt *kt = *state;

    for (size_t i = 0; i < RK_ARRAY_LEN(adamw_cases); i++) {
        const struct adamw_case *c = &adamw_cases[i];
        rk_dtype_t stat = kt_stat_dtype(c->param_dtype);
        struct rk_adamw_args args = {
            .param = kt_randomize(kt, kt_zeros_1d(kt, c->param_dtype, c->count), 1.0),
            .m = kt_zeros_1d(kt, stat, c->count),
            .v = kt_zeros_1d(kt, stat, c->count),
            .grad = kt_zeros_1d(kt, stat, c->count),
            .lr = 0.01,
            .beta1 = 0.9,
            .beta2 = 0.95,
            .eps = 1e-8,
            .weight_decay = 0.1,
            .grad_scale = 0.5,
        };
        double *w, *m = kt_scratch(kt, c->count), *v = kt_scratch(kt, c->count);

        args.master = c->aliased ? args.param : kt_randomize(kt, kt_zeros_1d(kt, stat, c->count), 1.0);
        w = kt_read(kt, args.master);
        for (int step = 1; step <= 3; step++) {
            const double *g = kt_read(kt, kt_randomize(kt, args.grad, 2.0));

            args.correction1 = 1.0 - pow(args.beta1, step);
            args.correction2 = 1.0 - pow(args.beta2, step);
            for (int64_t e = 0; e < c->count; e++) {
                double grad = 0.5 * g[e];

                m[e] = 0.9 * m[e] + 0.1 * grad;
                v[e] = 0.95 * v[e] + 0.05 * grad * grad;
                w[e] = w[e] * (1 - 0.01 * 0.1) -
                       0.01 * (m[e] / args.correction1) / (sqrt(v[e] / args.correction2) + 1e-8);
            }
            assert_ok(rk_adamw(kt->stream, &args));
        }
        kt_expect_close_sum(kt, c->label, args.m, m);
        kt_expect_close_sum(kt, c->label, args.v, v);
        kt_expect_close_sum(kt, c->label, args.master, w);
        kt_expect_close(kt, c->label, args.param, kt_read(kt, args.master));
    }
}

/* Goal: a bf16 parameter is its stored f32 master rounded, so it can be restored from the master. Method:
 * masters just above the middle of two bf16 values, by less than f32 resolves. */
static void test_adamw_param_is_its_master_rounded(void **state)
{
    enum { COUNT = 4096 };
    struct kt *kt = *state;
    struct rk_adamw_args args = {
        .param = kt_zeros_1d(kt, RK_DTYPE_BF16, COUNT),
        .master = kt_zeros_1d(kt, RK_DTYPE_F32, COUNT),
        .m = kt_zeros_1d(kt, RK_DTYPE_F32, COUNT),
        .v = kt_zeros_1d(kt, RK_DTYPE_F32, COUNT),
        .grad = kt_zeros_1d(kt, RK_DTYPE_F32, COUNT),
        .lr = 1e-11,
        .beta1 = 0.9,
        .beta2 = 0.95,
        .weight_decay = 1.0,
        .eps = 1e-8,
        .correction1 = 0.1,
        .correction2 = 0.05,
        .grad_scale = 1.0,
    };
    rk_tensor_t restored = kt_zeros_1d(kt, RK_DTYPE_BF16, COUNT);
    double *middle = kt_scratch(kt, COUNT);

    for (int i = 0; i < COUNT; i++)
        middle[i] = 1.0 + (2 * (i % 128) + 1) * 0x1p-8;
    kt_write(kt, args.master, middle);
    assert_ok(rk_adamw(kt->stream, &args));
    assert_ok(rk_axpby(kt->stream, &(struct rk_axpby_args){.y = restored, .x = args.master, .alpha = 1.0f}));
    kt_expect_same_bits(kt, "restored", restored, args.param);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        kt_test(test_gather_rows_repeated_index_copies_rows),
        kt_test(test_scatter_rows_other_rows_stay),
        kt_test(test_rows_with_gaps_are_zero_or_stay),
        kt_test(test_rows_with_a_count_move_the_first_rows),
        kt_test(test_rows_index_outside_fails),
        kt_test(test_axpby_all_dtypes_equal_reference),
        kt_test(test_axpby_beta_zero_ignores_nan_in_y),
        kt_test(test_sum_squares_all_counts_accumulate),
        kt_test(test_sum_squares_non_finite_are_counted),
        kt_test(test_random_normal_part_of_tensor_equals_sequence),
        kt_test(test_copy_2d_all_dtypes_equal_reference),
        kt_test(test_fingerprint_of_parts_is_that_of_the_whole),
        kt_test(test_adamw_three_steps_equal_reference),
        kt_test(test_adamw_param_is_its_master_rounded),
    };

    return cmocka_run_group_tests_name("kernels/flat", tests, NULL, NULL);
}
