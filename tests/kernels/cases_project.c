/* Goal: a narrow linear layer, forward and backward, equals its sums in f64 for every dtype and shape, on
 * parts of wider rows; its gradients equal finite differences of a loss; a row does not depend on other rows
 * and columns of the call; gradients are reproducible. */
#include "tests/kernels/kernel_test.h"

#include <math.h>

struct shape_case {
    const char *label;
    int64_t num_tokens, hidden_size, columns;
};

static const struct shape_case shapes[] = {
    {"no tokens", 0, 8, 2},     {"one of everything", 1, 1, 1}, {"value head", 70, 64, 1},
    {"odd", 33, 77, 3},         {"two labels", 19, 300, 2},     {"five columns", 40, 520, 5},
    {"sixteen", 9, 1536, 16},   {"one column more", 5, 48, 17}, {"one row, long", 1, 3584, 1},
    {"many rows", 3000, 40, 1}, {"router", 300, 136, 64},       {"wide, odd", 261, 147, 131},
};

/* The middle of rows that are wider on both sides. */
static rk_tensor_t random_rows(struct kt *kt, rk_dtype_t dtype, int64_t rows, int64_t cols, double deviation)
{
    return rk_tensor_cols(kt_randomize(kt, kt_zeros_2d(kt, dtype, rows, cols + 16), deviation), 8, cols);
}

static rk_tensor_t random_2d(struct kt *kt, rk_dtype_t dtype, int64_t rows, int64_t cols, double deviation)
{
    return kt_randomize(kt, kt_zeros_2d(kt, dtype, rows, cols), deviation);
}

static void for_all_shapes(struct kt *kt,
                           void (*body)(struct kt *kt, const struct shape_case *c, rk_dtype_t dtype))
{
    for (size_t i = 0; i < RK_ARRAY_LEN(shapes); i++) {
        for (size_t d = 0; d < RK_ARRAY_LEN(kt_dtypes); d++) {
            if (rk_test_in_part())
                body(kt, &shapes[i], kt_dtypes[d]);
        }
    }
}

/* Scores are near 1. */
static struct rk_project_fwd_args make_fwd(struct kt *kt, const struct shape_case *c, rk_dtype_t dtype)
{
    return (struct rk_project_fwd_args){
        .scores = random_2d(kt, kt_stat_dtype(dtype), c->num_tokens, c->columns, 1.0),
        .x = random_rows(kt, dtype, c->num_tokens, c->hidden_size, 1.0),
        .weight = random_2d(kt, dtype, c->columns, c->hidden_size, 1 / sqrt((double)c->hidden_size)),
        .bias = kt_randomize(kt, kt_zeros_1d(kt, dtype, c->columns), 1.0),
    };
}

static void run_fwd(struct kt *kt, const struct shape_case *c, rk_dtype_t dtype)
{
    struct rk_project_fwd_args args = make_fwd(kt, c, dtype);
    const double *x = kt_read(kt, args.x), *weight = kt_read(kt, args.weight), *bias = kt_read(kt, args.bias);
    double *sums = kt_scratch(kt, c->num_tokens * c->columns);
    double *scores = kt_scratch(kt, c->num_tokens * c->columns);

    for (int64_t t = 0; t < c->num_tokens; t++) {
        for (int64_t j = 0; j < c->columns; j++) {
            double *sum = &sums[t * c->columns + j];

            for (int64_t i = 0; i < c->hidden_size; i++)
                *sum += x[t * c->hidden_size + i] * weight[j * c->hidden_size + i];
            scores[t * c->columns + j] = *sum + bias[j];
        }
    }
    assert_ok(rk_project_fwd(kt->stream, &args));
    kt_expect_close(kt, c->label, args.scores, scores);
    args.bias = (rk_tensor_t){0};
    assert_ok(rk_project_fwd(kt->stream, &args));
    kt_expect_close(kt, c->label, args.scores, sums);
}

/* dweight and dx are near 1. */
static struct rk_project_bwd_args make_bwd(struct kt *kt, const struct shape_case *c, rk_dtype_t dtype)
{
    double rows = 1 / sqrt((double)RK_MAX(c->num_tokens, 1));

    return (struct rk_project_bwd_args){
        .dx = random_rows(kt, dtype, c->num_tokens, c->hidden_size, 1.0),
        .dweight = random_2d(kt, kt_stat_dtype(dtype), c->columns, c->hidden_size, 1.0),
        .dscores = random_2d(kt, kt_stat_dtype(dtype), c->num_tokens, c->columns, rows),
        .x = random_rows(kt, dtype, c->num_tokens, c->hidden_size, 1.0),
        .weight = random_2d(kt, dtype, c->columns, c->hidden_size, 1.0),
    };
}

static void run_bwd(struct kt *kt, const struct shape_case *c, rk_dtype_t dtype)
{
    struct rk_project_bwd_args args = make_bwd(kt, c, dtype);
    const double *x = kt_read(kt, args.x), *weight = kt_read(kt, args.weight);
    const double *dscores = kt_read(kt, args.dscores), *before = kt_read(kt, args.dweight);
    double *dx = kt_scratch(kt, c->num_tokens * c->hidden_size);
    double *dweight = kt_scratch(kt, c->columns * c->hidden_size);
    double *added = kt_scratch(kt, c->columns * c->hidden_size);

    for (int64_t t = 0; t < c->num_tokens; t++) {
        for (int64_t j = 0; j < c->columns; j++) {
            for (int64_t i = 0; i < c->hidden_size; i++) {
                dx[t * c->hidden_size + i] += dscores[t * c->columns + j] * weight[j * c->hidden_size + i];
                dweight[j * c->hidden_size + i] += dscores[t * c->columns + j] * x[t * c->hidden_size + i];
            }
        }
    }
    for (int64_t i = 0; i < c->columns * c->hidden_size; i++)
        added[i] = before[i] + dweight[i];
    assert_ok(rk_project_bwd(kt->stream, &args));
    kt_expect_close(kt, c->label, args.dx, dx);
    kt_expect_close_sum(kt, c->label, args.dweight, added);
    if (c->num_tokens == 0)
        return;
    args.overwrites_dweight = true;
    assert_ok(rk_project_bwd(kt->stream, &args));
    kt_expect_close(kt, c->label, args.dx, dx);
    kt_expect_close_sum(kt, c->label, args.dweight, dweight);
}

static void test_project_fwd_equals_reference(void **state)
{
    for_all_shapes(*state, run_fwd);
}

static void test_project_bwd_equals_reference(void **state)
{
    for_all_shapes(*state, run_bwd);
}

/* Old contents of an overwritten gradient are not read. */
static void test_project_bwd_overwrites_nan(void **state)
{
    static const double nan_of[2] = {NAN, NAN}, expected[2] = {0.5, -1.0}, x[2] = {1.0, -2.0}, half = 0.5;
    struct kt *kt = *state;
    struct rk_project_bwd_args args = {
        .dx = kt_zeros_2d(kt, RK_DTYPE_F32, 1, 2),
        .dweight = kt_zeros_2d(kt, RK_DTYPE_F32, 1, 2),
        .dscores = kt_zeros_2d(kt, RK_DTYPE_F32, 1, 1),
        .x = kt_zeros_2d(kt, RK_DTYPE_F32, 1, 2),
        .weight = kt_zeros_2d(kt, RK_DTYPE_F32, 1, 2),
        .overwrites_dweight = true,
    };

    kt_write(kt, args.dweight, nan_of);
    kt_write(kt, args.dscores, &half);
    kt_write(kt, args.x, x);
    assert_ok(rk_project_bwd(kt->stream, &args));
    kt_expect_close(kt, "dweight", args.dweight, expected);
}

struct project_loss {
    struct rk_project_fwd_args args;
    rk_tensor_t weight;
};

static double project_loss(struct kt *kt, void *user)
{
    struct project_loss *loss = user;

    assert_ok(rk_project_fwd(kt->stream, &loss->args));
    return kt_project(kt, loss->args.scores, loss->weight);
}

static void test_project_bwd_gradients_match(void **state)
{
    static const struct shape_case c = {"gradients", 5, 9, 3};
    struct kt *kt = *state;
    struct project_loss loss = {.args = make_fwd(kt, &c, RK_DTYPE_F64)};
    struct rk_project_bwd_args bwd = make_bwd(kt, &c, RK_DTYPE_F64);
    rk_tensor_t dbias = kt_zeros_1d(kt, RK_DTYPE_F64, c.columns);

    loss.args.x = random_2d(kt, RK_DTYPE_F64, c.num_tokens, c.hidden_size, 1.0); /* without gaps */
    loss.weight = bwd.dscores;
    bwd.dx = kt_zeros_2d(kt, RK_DTYPE_F64, c.num_tokens, c.hidden_size);
    bwd.x = loss.args.x;
    bwd.weight = loss.args.weight;
    bwd.overwrites_dweight = true;
    assert_ok(rk_project_bwd(kt->stream, &bwd));
    assert_ok(rk_bias_bwd(kt->stream, &(struct rk_bias_bwd_args){.dbias = dbias, .dy = bwd.dscores}));
    kt_expect_gradient(kt, "dx", loss.args.x, bwd.dx, project_loss, &loss);
    kt_expect_gradient(kt, "dweight", loss.args.weight, bwd.dweight, project_loss, &loss);
    kt_expect_gradient(kt, "dbias", loss.args.bias, dbias, project_loss, &loss);
}

static void check_repeatable(struct kt *kt, const struct shape_case *c)
{
    struct rk_project_bwd_args args = make_bwd(kt, c, RK_DTYPE_BF16);
    rk_tensor_t dx[3], dweight[3];

    for (size_t i = 0; i < RK_ARRAY_LEN(dx); i++) {
        args.dx = dx[i] = kt_zeros_2d(kt, RK_DTYPE_BF16, c->num_tokens, c->hidden_size);
        args.dweight = dweight[i] = kt_zeros_2d(kt, RK_DTYPE_F32, c->columns, c->hidden_size);
        assert_ok(rk_project_bwd(kt->stream, &args));
        kt_expect_same_bits(kt, "dx", dx[i], dx[0]);
        kt_expect_same_bits(kt, "dweight", dweight[i], dweight[0]);
    }
}

static void test_project_bwd_is_repeatable(void **state)
{
    check_repeatable(*state, &(struct shape_case){"repeatable", 700, 200, 3});
    check_repeatable(*state, &(struct shape_case){"repeatable, wide", 700, 200, 70});
}

/* Compares rows one at a time, and columns one at a time, with all at once. */
static void check_alone(struct kt *kt, const struct shape_case *c)
{
    struct rk_project_fwd_args fwd = make_fwd(kt, c, RK_DTYPE_BF16), part = fwd;
    struct rk_project_bwd_args bwd = make_bwd(kt, c, RK_DTYPE_BF16), row = bwd;
    rk_tensor_t scores = kt_zeros_2d(kt, RK_DTYPE_F32, c->num_tokens, c->columns);
    rk_tensor_t dx = kt_zeros_2d(kt, RK_DTYPE_BF16, c->num_tokens, c->hidden_size);

    bwd.dx = kt_zeros_2d(kt, RK_DTYPE_BF16, c->num_tokens, c->hidden_size);
    assert_ok(rk_project_fwd(kt->stream, &fwd));
    assert_ok(rk_project_bwd(kt->stream, &bwd));
    for (int64_t t = 0; t < c->num_tokens; t++) {
        part.x = rk_tensor_rows(fwd.x, t, 1);
        part.scores = rk_tensor_rows(scores, t, 1);
        assert_ok(rk_project_fwd(kt->stream, &part));
        row.x = rk_tensor_rows(bwd.x, t, 1);
        row.dscores = rk_tensor_rows(bwd.dscores, t, 1);
        row.dx = rk_tensor_rows(dx, t, 1);
        assert_ok(rk_project_bwd(kt->stream, &row));
    }
    kt_expect_same_bits(kt, "scores of rows", scores, fwd.scores);
    kt_expect_same_bits(kt, "dx of rows", dx, bwd.dx);
    part.bias = (rk_tensor_t){0};
    fwd.bias = (rk_tensor_t){0};
    part.x = fwd.x;
    assert_ok(rk_project_fwd(kt->stream, &fwd));
    for (int64_t j = 0; j < c->columns; j++) {
        part.weight = rk_tensor_rows(fwd.weight, j, 1);
        part.scores = rk_tensor_cols(scores, j, 1);
        assert_ok(rk_project_fwd(kt->stream, &part));
    }
    kt_expect_same_bits(kt, "scores of columns", scores, fwd.scores);
}

static void test_project_other_rows_and_columns_have_no_effect(void **state)
{
    check_alone(*state, &(struct shape_case){"alone", 37, 600, 5});
    check_alone(*state, &(struct shape_case){"alone, wide", 37, 600, 40});
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        kt_test(test_project_fwd_equals_reference),
        kt_test(test_project_bwd_equals_reference),
        kt_test(test_project_bwd_overwrites_nan),
        kt_test(test_project_bwd_gradients_match),
        kt_test(test_project_bwd_is_repeatable),
        kt_test(test_project_other_rows_and_columns_have_no_effect),
    };

    return cmocka_run_group_tests_name("kernels/project", tests, NULL, NULL);
}
