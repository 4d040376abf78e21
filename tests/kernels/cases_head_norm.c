/* Goal: the norm of every head, forward and backward, equals its formula in f64 for every dtype and shape, on
 * parts of a fused projection and in place; its gradients equal finite differences of a loss; a head does not
 * depend on the other tokens of the call. */
#include "tests/kernels/kernel_test.h"

#include <math.h>
#include <string.h>

struct shape_case {
    const char *label;
    int64_t num_tokens, num_heads, head_dim;
};

static const struct shape_case shapes[] = {
    {"no tokens", 0, 2, 8}, {"one head", 1, 1, 64},     {"one element", 5, 3, 1},
    {"odd", 33, 3, 7},      {"heads of 80", 19, 5, 80}, {"heads of 128", 40, 12, 128},
    {"widest", 9, 6, 256},  {"many heads", 700, 9, 32},
};

/* Heads [1, 1 + num_heads) of rows that have two more. */
static rk_tensor_t heads_of_deviation(struct kt *kt, const struct shape_case *c, rk_dtype_t dtype,
                                      double deviation)
{
    rk_tensor_t rows =
        kt_randomize(kt, kt_zeros_2d(kt, dtype, c->num_tokens, (c->num_heads + 2) * c->head_dim), deviation);

    return rk_tensor_split_cols(rk_tensor_cols(rows, c->head_dim, c->num_heads * c->head_dim), c->num_heads,
                                c->head_dim);
}

static rk_tensor_t random_heads(struct kt *kt, const struct shape_case *c, rk_dtype_t dtype)
{
    return heads_of_deviation(kt, c, dtype, 1.0);
}

static rk_tensor_t random_1d(struct kt *kt, rk_dtype_t dtype, int64_t count)
{
    return kt_randomize(kt, kt_zeros_1d(kt, dtype, count), 1.0);
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

static void run_fwd(struct kt *kt, const struct shape_case *c, rk_dtype_t dtype)
{
    int64_t num_rows = c->num_tokens * c->num_heads;
    struct rk_head_norm_fwd_args args = {
        .y = random_heads(kt, c, dtype),
        .rstd = kt_zeros_2d(kt, kt_stat_dtype(dtype), c->num_tokens, c->num_heads),
        .x = random_heads(kt, c, dtype),
        .weight = random_1d(kt, dtype, c->head_dim),
        .eps = 1e-5f,
    };
    const double *x = kt_read(kt, args.x), *weight = kt_read(kt, args.weight);
    double *y = kt_scratch(kt, num_rows * c->head_dim), *rstd = kt_scratch(kt, num_rows);

    for (int64_t r = 0; r < num_rows; r++) {
        const double *row = x + r * c->head_dim;
        double mean = 0.0;

        for (int64_t i = 0; i < c->head_dim; i++)
            mean += row[i] * row[i] / (double)c->head_dim;
        rstd[r] = 1.0 / sqrt(mean + args.eps);
        for (int64_t i = 0; i < c->head_dim; i++)
            y[r * c->head_dim + i] = row[i] * rstd[r] * weight[i];
    }
    assert_ok(rk_head_norm_fwd(kt->stream, &args));
    kt_expect_close(kt, c->label, args.y, y);
    kt_expect_close(kt, c->label, args.rstd, rstd);
    args.y = args.x; /* may alias */
    args.rstd = (rk_tensor_t){0};
    assert_ok(rk_head_norm_fwd(kt->stream, &args));
    kt_expect_close(kt, c->label, args.y, y);
}

static void run_bwd(struct kt *kt, const struct shape_case *c, rk_dtype_t dtype)
{
    int64_t num_rows = c->num_tokens * c->num_heads;
    struct rk_head_norm_bwd_args args = {
        .dweight = random_1d(kt, kt_stat_dtype(dtype), c->head_dim),
        .dy = heads_of_deviation(kt, c, dtype, 1 / sqrt((double)RK_MAX(num_rows, 1))), /* dweight is near 1 */
        .x = random_heads(kt, c, dtype),
        .weight = random_1d(kt, dtype, c->head_dim),
        .rstd = kt_randomize(kt, kt_zeros_2d(kt, kt_stat_dtype(dtype), c->num_tokens, c->num_heads), 1.0),
    };
    const double *dy = kt_read(kt, args.dy), *x = kt_read(kt, args.x), *weight = kt_read(kt, args.weight);
    const double *rstd = kt_read(kt, args.rstd);
    double *dx = kt_scratch(kt, num_rows * c->head_dim), *dweight = kt_read(kt, args.dweight);

    for (int64_t r = 0; r < num_rows; r++) {
        const double *dy_row = dy + r * c->head_dim, *x_row = x + r * c->head_dim;
        double mean = 0.0;

        for (int64_t i = 0; i < c->head_dim; i++) {
            mean += dy_row[i] * weight[i] * x_row[i] * rstd[r] / (double)c->head_dim;
            dweight[i] += dy_row[i] * x_row[i] * rstd[r];
        }
        for (int64_t i = 0; i < c->head_dim; i++)
            dx[r * c->head_dim + i] = rstd[r] * (dy_row[i] * weight[i] - x_row[i] * rstd[r] * mean);
    }
    args.dx = args.dy; /* may alias */
    assert_ok(rk_head_norm_bwd(kt->stream, &args));
    kt_expect_close(kt, c->label, args.dx, dx);
    kt_expect_close_sum(kt, c->label, args.dweight, dweight);
}

static void test_head_norm_fwd_equals_reference(void **state)
{
    for_all_shapes(*state, run_fwd);
}

static void test_head_norm_bwd_equals_reference(void **state)
{
    for_all_shapes(*state, run_bwd);
}

struct norm_loss {
    struct rk_head_norm_fwd_args args;
    rk_tensor_t weight;
};

static double norm_loss(struct kt *kt, void *user)
{
    struct norm_loss *loss = user;

    assert_ok(rk_head_norm_fwd(kt->stream, &loss->args));
    return kt_project(kt, loss->args.y, loss->weight);
}

static void test_head_norm_bwd_gradients_match(void **state)
{
    struct kt *kt = *state;
    struct norm_loss loss = {
        .args = {.y = kt_zeros_3d(kt, RK_DTYPE_F64, 4, 2, 6),
                 .rstd = kt_zeros_2d(kt, RK_DTYPE_F64, 4, 2),
                 .x = kt_randomize(kt, kt_zeros_3d(kt, RK_DTYPE_F64, 4, 2, 6), 1.0),
                 .weight = random_1d(kt, RK_DTYPE_F64, 6),
                 .eps = 0.1f},
        .weight = kt_randomize(kt, kt_zeros_3d(kt, RK_DTYPE_F64, 4, 2, 6), 1.0),
    };
    struct rk_head_norm_bwd_args bwd = {.dx = kt_zeros_3d(kt, RK_DTYPE_F64, 4, 2, 6),
                                        .dweight = kt_zeros_1d(kt, RK_DTYPE_F64, 6),
                                        .dy = loss.weight,
                                        .x = loss.args.x,
                                        .weight = loss.args.weight,
                                        .rstd = loss.args.rstd};

    if (kt_is_cpu_only(kt, RK_DTYPE_F64))
        rk_test_skip("only the CPU computes in F64");
    norm_loss(kt, &loss);
    assert_ok(rk_head_norm_bwd(kt->stream, &bwd));
    kt_expect_gradient(kt, "dx", loss.args.x, bwd.dx, norm_loss, &loss);
    kt_expect_gradient(kt, "dweight", loss.args.weight, bwd.dweight, norm_loss, &loss);
}

static void test_head_norm_bwd_is_repeatable(void **state)
{
    static const struct shape_case c = {"repeatable", 500, 5, 64};
    struct kt *kt = *state;
    rk_tensor_t dx[3], dweight[3];
    struct rk_head_norm_bwd_args args = {
        .dy = random_heads(kt, &c, RK_DTYPE_BF16),
        .x = random_heads(kt, &c, RK_DTYPE_BF16),
        .weight = random_1d(kt, RK_DTYPE_BF16, c.head_dim),
        .rstd = kt_randomize(kt, kt_zeros_2d(kt, RK_DTYPE_F32, c.num_tokens, c.num_heads), 1.0),
    };

    for (size_t i = 0; i < RK_ARRAY_LEN(dx); i++) {
        args.dx = dx[i] = kt_zeros_3d(kt, RK_DTYPE_BF16, c.num_tokens, c.num_heads, c.head_dim);
        args.dweight = dweight[i] = kt_zeros_1d(kt, RK_DTYPE_F32, c.head_dim);
        assert_ok(rk_head_norm_bwd(kt->stream, &args));
        kt_expect_same_bits(kt, "dx", dx[i], dx[0]);
        kt_expect_same_bits(kt, "dweight", dweight[i], dweight[0]);
    }
}

/* Compares one token at a time, in separate memory, with all at once. */
static void test_head_norm_other_tokens_have_no_effect(void **state)
{
    static const struct shape_case c = {"alone", 37, 3, 48};
    struct kt *kt = *state;
    rk_tensor_t all = kt_zeros_3d(kt, RK_DTYPE_BF16, c.num_tokens, c.num_heads, c.head_dim);
    rk_tensor_t alone = kt_zeros_3d(kt, RK_DTYPE_BF16, c.num_tokens, c.num_heads, c.head_dim);
    struct rk_head_norm_fwd_args args = {.y = all,
                                         .x = random_heads(kt, &c, RK_DTYPE_BF16),
                                         .weight = random_1d(kt, RK_DTYPE_BF16, c.head_dim),
                                         .eps = 1e-6f};
    rk_tensor_t x = args.x;

    assert_ok(rk_head_norm_fwd(kt->stream, &args));
    for (int64_t t = 0; t < c.num_tokens; t++) {
        args.x = rk_tensor_rows(x, t, 1);
        args.y = rk_tensor_rows(alone, t, 1);
        assert_ok(rk_head_norm_fwd(kt->stream, &args));
    }
    kt_expect_same_bits(kt, c.label, alone, all);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        kt_test(test_head_norm_fwd_equals_reference),        kt_test(test_head_norm_bwd_equals_reference),
        kt_test(test_head_norm_bwd_gradients_match),         kt_test(test_head_norm_bwd_is_repeatable),
        kt_test(test_head_norm_other_tokens_have_no_effect),
    };

    return cmocka_run_group_tests_name("kernels/cases_head_norm", tests, NULL, NULL);
}
