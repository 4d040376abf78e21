/* Goal: embedding, RMSNorm, RoPE and SwiGLU, forward and backward, equal their formulas in f64 for every
 * dtype, row count and tail. grad_layers.c checks gradients against finite differences; this file checks
 * rounding, strides and accumulation. */
#include "tests/kernels/kernel_test.h"

#include <math.h>

struct shape_case {
    const char *label;
    int64_t rows, cols;
};

static const struct shape_case shapes[] = {
    {"no rows", 0, 8}, {"one row", 1, 64},      {"one column", 5, 1},   {"ragged", 33, 100},
    {"wide", 7, 257},  {"many rows", 700, 136}, {"wide rows", 3, 4104},
};

static rk_tensor_t random_2d(struct kt *kt, rk_dtype_t dtype, int64_t rows, int64_t cols)
{
    return kt_randomize(kt, kt_zeros_2d(kt, dtype, rows, cols), 1.0);
}

/* Runs `body` for every shape and dtype. */
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

#define NUM_ROWS    11 /* of this rank's part of the vocabulary */
#define VOCAB_BEGIN 4

static void run_embed_fwd(struct kt *kt, const struct shape_case *c, rk_dtype_t dtype)
{
    struct rk_embed_fwd_args args = {
        .out = random_2d(kt, dtype, c->rows, c->cols),
        .table = random_2d(kt, dtype, NUM_ROWS, c->cols),
        .tokens = kt_random_ints(kt, c->rows, NUM_ROWS + 2 * VOCAB_BEGIN),
        .vocab_begin = VOCAB_BEGIN,
    };
    const int32_t *tokens = kt_read_ints(kt, args.tokens);
    const double *table = kt_read(kt, args.table);
    double *expected = kt_scratch(kt, c->rows * c->cols);

    for (int64_t t = 0; t < c->rows; t++) {
        bool is_mine = tokens[t] >= VOCAB_BEGIN && tokens[t] < VOCAB_BEGIN + NUM_ROWS;

        for (int64_t i = 0; i < c->cols && is_mine; i++)
            expected[t * c->cols + i] = table[(tokens[t] - VOCAB_BEGIN) * c->cols + i];
    }
    assert_ok(rk_embed_fwd(kt->stream, &args));
    kt_expect_close(kt, c->label, args.out, expected);
}

static void run_embed_bwd(struct kt *kt, const struct shape_case *c, rk_dtype_t dtype)
{
    struct rk_embed_bwd_args args = {
        .dtable = random_2d(kt, kt_stat_dtype(dtype), NUM_ROWS, c->cols),
        .dout = random_2d(kt, dtype, c->rows, c->cols),
        .tokens = kt_random_ints(kt, c->rows, NUM_ROWS + 2 * VOCAB_BEGIN),
        .vocab_begin = VOCAB_BEGIN,
    };
    const int32_t *tokens = kt_read_ints(kt, args.tokens);
    const double *dout = kt_read(kt, args.dout);
    double *expected = kt_read(kt, args.dtable);

    for (int64_t t = 0; t < c->rows; t++) {
        int64_t row = tokens[t] - VOCAB_BEGIN;

        for (int64_t i = 0; i < c->cols && row >= 0 && row < NUM_ROWS; i++)
            expected[row * c->cols + i] += dout[t * c->cols + i];
    }
    assert_ok(rk_embed_bwd(kt->stream, &args));
    kt_expect_close_sum(kt, c->label, args.dtable, expected);
}

static void test_embed_fwd_all_shapes_equal_reference(void **state)
{
    for_all_shapes(*state, run_embed_fwd);
}

static void test_embed_bwd_all_shapes_equal_reference(void **state)
{
    for_all_shapes(*state, run_embed_bwd);
}

static void run_bias_bwd(struct kt *kt, const struct shape_case *c, rk_dtype_t dtype)
{
    rk_dtype_t dtypes[] = {kt_stat_dtype(dtype), dtype};

    for (int d = 0; d < 2; d++) {
        struct rk_bias_bwd_args args = {
            .dbias = kt_randomize(kt, kt_zeros_1d(kt, dtypes[d], c->cols), 1.0),
            /* Part of wider rows, with arbitrary alignment. */
            .dy = rk_tensor_cols(random_2d(kt, dtype, c->rows, c->cols + 3), 1, c->cols),
        };
        const double *dy = kt_read(kt, args.dy);
        double *expected = kt_read(kt, args.dbias);

        for (int64_t i = 0; i < c->rows * c->cols; i++)
            expected[i % c->cols] += dy[i];
        assert_ok(rk_bias_bwd(kt->stream, &args));
        kt_expect_close_sum(kt, c->label, args.dbias, expected);
    }
}

/* Goal: sums of more rows than one part are right and reproducible. */
static void test_bias_bwd_of_many_rows_equals_reference(void **state)
{
    static const struct shape_case many[] = {{"many rows", 1000, 300}, {"aligned rows", 777, 512}};
    struct kt *kt = *state;

    for (size_t i = 0; i < RK_ARRAY_LEN(many); i++) {
        struct rk_bias_bwd_args args = {
            .dbias = kt_zeros_1d(kt, RK_DTYPE_F32, many[i].cols),
            .dy = random_2d(kt, RK_DTYPE_BF16, many[i].rows, many[i].cols),
        };
        struct rk_bias_bwd_args again = {.dbias = kt_zeros_1d(kt, RK_DTYPE_F32, many[i].cols), .dy = args.dy};
        const double *dy = kt_read(kt, args.dy);
        double *expected = kt_scratch(kt, many[i].cols);

        for (int64_t e = 0; e < many[i].rows * many[i].cols; e++)
            expected[e % many[i].cols] += dy[e];
        assert_ok(rk_bias_bwd(kt->stream, &args));
        assert_ok(rk_bias_bwd(kt->stream, &again));
        kt_expect_close_sum(kt, many[i].label, args.dbias, expected);
        kt_expect_same_bits(kt, many[i].label, again.dbias, args.dbias);
    }
}

static void test_bias_bwd_all_shapes_equal_reference(void **state)
{
    for_all_shapes(*state, run_bias_bwd);
}

/* Goal: sums over many equal tokens are right wherever a backend splits their list: every `common`-th token
 * is the same, the others are spread over the vocabulary and beyond this part. */
static void expect_embed_bwd_of_repeated(struct kt *kt, int common)
{
    enum { HIDDEN_SIZE = 24, MANY_ROWS = 300 };
    int64_t num_tokens = rk_test_is_quick() ? 700 : 9300;
    int32_t *tokens = kt_read_ints(kt, kt_random_ints(kt, num_tokens, MANY_ROWS + 2 * VOCAB_BEGIN));
    double *dout = kt_scratch(kt, num_tokens * HIDDEN_SIZE), *expected;
    struct rk_embed_bwd_args args = {
        .dtable = random_2d(kt, RK_DTYPE_F32, MANY_ROWS, HIDDEN_SIZE),
        .dout = kt_zeros_2d(kt, RK_DTYPE_BF16, num_tokens, HIDDEN_SIZE),
        .vocab_begin = VOCAB_BEGIN,
    };

    for (int64_t i = 0; i < num_tokens; i++)
        tokens[i] = i % common ? tokens[i] : VOCAB_BEGIN + 77;
    for (int64_t i = 0; i < num_tokens * HIDDEN_SIZE; i++)
        dout[i] = (double)(i * 37 % 101 - 50) / 64.0; /* exact in bf16, as are all sums in f32 */
    args.tokens = kt_ints(kt, tokens, num_tokens);
    kt_write(kt, args.dout, dout);
    kt_write(kt, args.dtable, kt_scratch(kt, MANY_ROWS * HIDDEN_SIZE));
    expected = kt_scratch(kt, MANY_ROWS * HIDDEN_SIZE);
    for (int64_t t = 0; t < num_tokens; t++) {
        int64_t row = tokens[t] - VOCAB_BEGIN;

        for (int64_t i = 0; i < HIDDEN_SIZE && row >= 0 && row < MANY_ROWS; i++)
            expected[row * HIDDEN_SIZE + i] += dout[t * HIDDEN_SIZE + i];
    }
    assert_ok(rk_embed_bwd(kt->stream, &args));
    kt_expect_close(kt, "repeated tokens", args.dtable, expected);
}

static void test_embed_bwd_repeated_tokens_equal_reference(void **state)
{
    expect_embed_bwd_of_repeated(*state, NUM_ROWS);
    expect_embed_bwd_of_repeated(*state, 2);
    expect_embed_bwd_of_repeated(*state, 1);
}

/* Goal: the first and last rows of a large table get their gradients, and no other row is written. */
static void test_embed_bwd_of_a_large_table_equals_reference(void **state)
{
    enum { MANY_ROWS = (1 << 18) + 5, NUM_TOKENS = 9, HIDDEN_SIZE = 3 };
    static const int32_t rows[NUM_TOKENS] = {0,       1 << 18, MANY_ROWS - 1, 77, 0, MANY_ROWS,
                                             1 << 17, -1,      1 << 18};
    struct kt *kt = *state;
    int32_t *tokens = kt_read_ints(kt, kt_random_ints(kt, NUM_TOKENS, 1));
    struct rk_embed_bwd_args args = {
        .dtable = kt_zeros_2d(kt, RK_DTYPE_F32, MANY_ROWS, HIDDEN_SIZE),
        .dout = random_2d(kt, RK_DTYPE_BF16, NUM_TOKENS, HIDDEN_SIZE),
        .vocab_begin = VOCAB_BEGIN,
    };
    const double *dout = kt_read(kt, args.dout);
    double *expected = kt_scratch(kt, (int64_t)MANY_ROWS * HIDDEN_SIZE);

    for (int t = 0; t < NUM_TOKENS; t++) {
        tokens[t] = rows[t] + VOCAB_BEGIN;
        for (int i = 0; i < HIDDEN_SIZE && rows[t] >= 0 && rows[t] < MANY_ROWS; i++)
            expected[rows[t] * HIDDEN_SIZE + i] += dout[t * HIDDEN_SIZE + i];
    }
    args.tokens = kt_ints(kt, tokens, NUM_TOKENS);
    assert_ok(rk_embed_bwd(kt->stream, &args));
    kt_expect_close(kt, "large table", args.dtable, expected);
}

/* Goal: a sum of many rows is bit-identical in every run. */
static void test_embed_bwd_is_repeatable(void **state)
{
    enum { NUM_TOKENS = 3000, HIDDEN_SIZE = 40, FEW_ROWS = 9 };
    struct kt *kt = *state;
    rk_tensor_t tables[3];
    struct rk_embed_bwd_args args = {
        .dout = random_2d(kt, RK_DTYPE_BF16, NUM_TOKENS, HIDDEN_SIZE),
        .tokens = kt_random_ints(kt, NUM_TOKENS, FEW_ROWS),
    };

    for (size_t i = 0; i < RK_ARRAY_LEN(tables); i++) {
        tables[i] = kt_zeros_2d(kt, RK_DTYPE_F32, FEW_ROWS, HIDDEN_SIZE);
        args.dtable = tables[i];
        assert_ok(rk_embed_bwd(kt->stream, &args));
        kt_expect_same_bits(kt, "repeated", tables[i], tables[0]);
    }
}

static void norm_reference(const double *s, const double *weight, double eps, int64_t cols, double *y,
                           double *rstd)
{
    double mean = 0.0;

    for (int64_t i = 0; i < cols; i++)
        mean += s[i] * s[i] / (double)cols;
    *rstd = 1.0 / sqrt(mean + eps);
    for (int64_t i = 0; i < cols; i++)
        y[i] = s[i] * *rstd * weight[i];
}

static void run_rmsnorm_fwd(struct kt *kt, const struct shape_case *c, rk_dtype_t dtype)
{
    struct rk_rmsnorm_fwd_args args = {
        .y = random_2d(kt, dtype, c->rows, c->cols),
        .rstd = kt_zeros_1d(kt, kt_stat_dtype(dtype), c->rows),
        .x = random_2d(kt, dtype, c->rows, c->cols),
        .weight = kt_randomize(kt, kt_zeros_1d(kt, dtype, c->cols), 1.0),
        .eps = 1e-5f,
    };
    const double *weight = kt_read(kt, args.weight);
    double *y = kt_scratch(kt, c->rows * c->cols), *rstd = kt_scratch(kt, c->rows);
    const double *s;

    for (int has_residual = 0; has_residual < 2; has_residual++) {
        if (has_residual) {
            double *sum = kt_read(kt, args.x);
            const double *residual;

            args.residual = random_2d(kt, dtype, c->rows, c->cols);
            args.sum = args.x; /* may alias */
            residual = kt_read(kt, args.residual);
            for (int64_t i = 0; i < c->rows * c->cols; i++)
                sum[i] += residual[i];
            assert_ok(rk_rmsnorm_fwd(kt->stream, &args));
            kt_expect_close(kt, c->label, args.sum, sum);
        } else {
            assert_ok(rk_rmsnorm_fwd(kt->stream, &args));
        }
        s = kt_read(kt, args.x); /* input of the norm after rounding */
        for (int64_t t = 0; t < c->rows; t++)
            norm_reference(s + t * c->cols, weight, args.eps, c->cols, y + t * c->cols, &rstd[t]);
        kt_expect_close(kt, c->label, args.y, y);
        kt_expect_close(kt, c->label, args.rstd, rstd);
    }
}

static void run_rmsnorm_bwd(struct kt *kt, const struct shape_case *c, rk_dtype_t dtype)
{
    struct rk_rmsnorm_bwd_args args = {
        .dweight = kt_randomize(kt, kt_zeros_1d(kt, kt_stat_dtype(dtype), c->cols), 1.0),
        .dy = random_2d(kt, dtype, c->rows, c->cols),
        .x = random_2d(kt, dtype, c->rows, c->cols),
        .dresidual = random_2d(kt, dtype, c->rows, c->cols),
        .weight = kt_randomize(kt, kt_zeros_1d(kt, dtype, c->cols), 1.0),
        .rstd = kt_randomize(kt, kt_zeros_1d(kt, kt_stat_dtype(dtype), c->rows), 1.0),
    };
    const double *dy = kt_read(kt, args.dy), *x = kt_read(kt, args.x), *weight = kt_read(kt, args.weight);
    const double *rstd = kt_read(kt, args.rstd);
    double *dx = kt_read(kt, args.dresidual), *dweight = kt_read(kt, args.dweight);

    for (int64_t t = 0; t < c->rows; t++) {
        const double *dy_row = dy + t * c->cols, *x_row = x + t * c->cols;
        double mean = 0.0;

        for (int64_t i = 0; i < c->cols; i++) {
            mean += dy_row[i] * weight[i] * x_row[i] * rstd[t] / (double)c->cols;
            dweight[i] += dy_row[i] * x_row[i] * rstd[t];
        }
        for (int64_t i = 0; i < c->cols; i++)
            dx[t * c->cols + i] += rstd[t] * (dy_row[i] * weight[i] - x_row[i] * rstd[t] * mean);
    }
    args.dx = args.dresidual; /* may alias */
    assert_ok(rk_rmsnorm_bwd(kt->stream, &args));
    kt_expect_close(kt, c->label, args.dx, dx);
    kt_expect_close_sum(kt, c->label, args.dweight, dweight);
}

static void test_rmsnorm_fwd_all_shapes_equal_reference(void **state)
{
    for_all_shapes(*state, run_rmsnorm_fwd);
}

static void test_rmsnorm_bwd_all_shapes_equal_reference(void **state)
{
    for_all_shapes(*state, run_rmsnorm_bwd);
}

/* Goal: many rows, so that every thread block of a backend has several, some of which are loaded ahead. */
static void test_rmsnorm_bwd_of_many_rows_equals_reference(void **state)
{
    static const struct shape_case many = {"rows in turn", 1700, 1536};

    run_rmsnorm_bwd(*state, &many, RK_DTYPE_BF16);
}

static void test_rmsnorm_bwd_is_repeatable(void **state)
{
    enum { NUM_ROWS_HERE = 1000, COLS = 200 };
    struct kt *kt = *state;
    rk_tensor_t dx[3], dweight[3];
    struct rk_rmsnorm_bwd_args args = {
        .dy = random_2d(kt, RK_DTYPE_BF16, NUM_ROWS_HERE, COLS),
        .x = random_2d(kt, RK_DTYPE_BF16, NUM_ROWS_HERE, COLS),
        .weight = kt_randomize(kt, kt_zeros_1d(kt, RK_DTYPE_BF16, COLS), 1.0),
        .rstd = kt_randomize(kt, kt_zeros_1d(kt, RK_DTYPE_F32, NUM_ROWS_HERE), 1.0),
    };

    for (size_t i = 0; i < RK_ARRAY_LEN(dx); i++) {
        args.dx = dx[i] = kt_zeros_2d(kt, RK_DTYPE_BF16, NUM_ROWS_HERE, COLS);
        args.dweight = dweight[i] = kt_zeros_1d(kt, RK_DTYPE_F32, COLS);
        assert_ok(rk_rmsnorm_bwd(kt->stream, &args));
        kt_expect_same_bits(kt, "dx", dx[i], dx[0]);
        kt_expect_same_bits(kt, "dweight", dweight[i], dweight[0]);
    }
}

static void run_swiglu(struct kt *kt, const struct shape_case *c, rk_dtype_t dtype)
{
    int64_t count = c->rows * c->cols;
    rk_tensor_t fused = random_2d(kt, dtype, c->rows, 2 * c->cols); /* [gate; up], as the layers hold it */
    struct rk_swiglu_fwd_args fwd = {
        .y = kt_zeros_2d(kt, dtype, c->rows, c->cols),
        .gate = rk_tensor_cols(fused, 0, c->cols),
        .up = rk_tensor_cols(fused, c->cols, c->cols),
    };
    struct rk_swiglu_bwd_args bwd = {
        .dgate = fwd.gate,
        .dup = fwd.up, /* may alias */
        .dy = random_2d(kt, dtype, c->rows, c->cols),
        .gate = fwd.gate,
        .up = fwd.up,
    };
    const double *gate = kt_read(kt, fwd.gate), *up = kt_read(kt, fwd.up), *dy = kt_read(kt, bwd.dy);
    double *y = kt_scratch(kt, count), *dgate = kt_scratch(kt, count), *dup = kt_scratch(kt, count);

    for (int64_t i = 0; i < count; i++) {
        double s = 1.0 / (1.0 + exp(-gate[i]));

        y[i] = gate[i] * s * up[i];
        dup[i] = dy[i] * gate[i] * s;
        dgate[i] = dy[i] * up[i] * (s + gate[i] * s * (1.0 - s));
    }
    assert_ok(rk_swiglu_fwd(kt->stream, &fwd));
    kt_expect_close(kt, c->label, fwd.y, y);
    bwd.y = bwd.dy; /* may alias */
    assert_ok(rk_swiglu_bwd(kt->stream, &bwd));
    kt_expect_same_bits(kt, c->label, bwd.y, fwd.y);
    kt_expect_close(kt, c->label, bwd.dgate, dgate);
    kt_expect_close(kt, c->label, bwd.dup, dup);
}

static void test_swiglu_all_shapes_equal_reference(void **state)
{
    for_all_shapes(*state, run_swiglu);
}

/* The factor of each row, and its gradient. */
static void expect_weighted(struct kt *kt, const char *label, const struct rk_swiglu_bwd_args *args,
                            const struct rk_swiglu_fwd_args *fwd)
{
    int64_t rows = fwd->gate.shape[0], cols = fwd->gate.shape[1];
    const double *gate = kt_read(kt, fwd->gate), *up = kt_read(kt, fwd->up), *dy = kt_read(kt, args->dy);
    const double *probs = kt_read(kt, fwd->probs);
    double *y = kt_scratch(kt, rows * cols), *dgate = kt_scratch(kt, rows * cols);
    double *dup = kt_scratch(kt, rows * cols), *dprobs = kt_scratch(kt, rows);
    struct rk_swiglu_bwd_args bwd = *args;

    for (int64_t r = 0; r < rows; r++) {
        dprobs[r] = 0;
        for (int64_t i = r * cols; i < (r + 1) * cols; i++) {
            double s = 1.0 / (1.0 + exp(-gate[i]));

            y[i] = probs[r] * gate[i] * s * up[i];
            dprobs[r] += dy[i] * gate[i] * s * up[i];
            dup[i] = probs[r] * dy[i] * gate[i] * s;
            dgate[i] = probs[r] * dy[i] * up[i] * (s + gate[i] * s * (1.0 - s));
        }
    }
    assert_ok(rk_swiglu_fwd(kt->stream, fwd));
    kt_expect_close(kt, label, fwd->y, y);
    bwd.y = bwd.dy;
    assert_ok(rk_swiglu_bwd(kt->stream, &bwd));
    kt_expect_same_bits(kt, label, bwd.y, fwd->y);
    kt_expect_close(kt, label, bwd.dgate, dgate);
    kt_expect_close(kt, label, bwd.dup, dup);
    kt_expect_close_sum(kt, label, bwd.dprobs, dprobs);
}

static void run_weighted_swiglu(struct kt *kt, const struct shape_case *c, rk_dtype_t dtype)
{
    rk_dtype_t stat = dtype == RK_DTYPE_F64 ? RK_DTYPE_F64 : RK_DTYPE_F32;
    rk_tensor_t fused = random_2d(kt, dtype, c->rows, 2 * c->cols);
    struct rk_swiglu_fwd_args fwd = {
        .y = kt_zeros_2d(kt, dtype, c->rows, c->cols),
        .gate = rk_tensor_cols(fused, 0, c->cols),
        .up = rk_tensor_cols(fused, c->cols, c->cols),
        .probs = kt_randomize(kt, kt_zeros_1d(kt, stat, c->rows), 1.0),
    };
    struct rk_swiglu_bwd_args bwd = {
        .dgate = fwd.gate,
        .dup = fwd.up,
        .dy = random_2d(kt, dtype, c->rows, c->cols),
        .gate = fwd.gate,
        .up = fwd.up,
        .probs = fwd.probs,
        .dprobs = kt_zeros_1d(kt, stat, c->rows),
    };

    expect_weighted(kt, c->label, &bwd, &fwd);
}

static void test_swiglu_with_probs_equals_reference(void **state)
{
    for_all_shapes(*state, run_weighted_swiglu);
}

/* Goal: with a count, the first rows have the bits that they have without, and the others stay. */
static void run_counted_swiglu(struct kt *kt, const struct shape_case *c, rk_dtype_t dtype)
{
    int32_t count = (int32_t)(2 * c->rows / 3);
    rk_tensor_t fused = random_2d(kt, dtype, c->rows, 2 * c->cols);
    struct rk_swiglu_fwd_args whole = {
        .y = kt_zeros_2d(kt, dtype, c->rows, c->cols),
        .gate = rk_tensor_cols(fused, 0, c->cols),
        .up = rk_tensor_cols(fused, c->cols, c->cols),
    };
    struct rk_swiglu_fwd_args counted = whole;

    counted.y = kt_zeros_2d(kt, dtype, c->rows, c->cols);
    counted.count = kt_ints(kt, &count, 1);
    assert_ok(rk_swiglu_fwd(kt->stream, &whole));
    assert_ok(rk_swiglu_fwd(kt->stream, &counted));
    kt_expect_same_bits(kt, c->label, rk_tensor_rows(counted.y, 0, count), rk_tensor_rows(whole.y, 0, count));
    kt_expect_same_bits(kt, c->label, rk_tensor_rows(counted.y, count, c->rows - count),
                        kt_zeros_2d(kt, dtype, c->rows - count, c->cols));
}

static void test_swiglu_fwd_with_a_count_computes_the_first_rows(void **state)
{
    for_all_shapes(*state, run_counted_swiglu);
}

/* Outputs of a backward call, all apart from its inputs. */
static void make_swiglu_grads(struct kt *kt, struct rk_swiglu_bwd_args *args)
{
    int64_t rows = args->gate.shape[0], cols = args->gate.shape[1];
    rk_dtype_t dtype = args->gate.dtype;

    args->dgate = kt_zeros_2d(kt, dtype, rows, cols);
    args->dup = kt_zeros_2d(kt, dtype, rows, cols);
    args->y = kt_zeros_2d(kt, dtype, rows, cols);
    if (args->probs.data)
        args->dprobs = kt_zeros_1d(kt, args->probs.dtype, rows);
}

static void expect_first_rows(struct kt *kt, const char *label, rk_tensor_t counted, rk_tensor_t whole,
                              int64_t count)
{
    int64_t num_rows = whole.shape[0], cols = whole.rank == 2 ? whole.shape[1] : 1;

    counted = rk_tensor_2d(counted.data, counted.dtype, num_rows, cols);
    whole = rk_tensor_2d(whole.data, whole.dtype, num_rows, cols);
    kt_expect_same_bits(kt, label, rk_tensor_rows(counted, 0, count), rk_tensor_rows(whole, 0, count));
    kt_expect_same_bits(kt, label, rk_tensor_rows(counted, count, num_rows - count),
                        kt_zeros_2d(kt, whole.dtype, num_rows - count, cols));
}

static void run_counted_swiglu_bwd(struct kt *kt, const struct shape_case *c, rk_dtype_t dtype,
                                   bool has_probs)
{
    int32_t counts[] = {0, (int32_t)(2 * c->rows / 3), (int32_t)c->rows};
    rk_tensor_t fused = random_2d(kt, dtype, c->rows, 2 * c->cols);
    struct rk_swiglu_bwd_args whole = {
        .dy = random_2d(kt, dtype, c->rows, c->cols),
        .gate = rk_tensor_cols(fused, 0, c->cols),
        .up = rk_tensor_cols(fused, c->cols, c->cols),
    };

    if (has_probs)
        whole.probs = kt_randomize(kt, kt_zeros_1d(kt, kt_stat_dtype(dtype), c->rows), 1.0);
    make_swiglu_grads(kt, &whole);
    assert_ok(rk_swiglu_bwd(kt->stream, &whole));
    for (size_t i = 0; i < RK_ARRAY_LEN(counts); i++) {
        struct rk_swiglu_bwd_args counted = whole;

        make_swiglu_grads(kt, &counted);
        counted.count = kt_ints(kt, &counts[i], 1);
        assert_ok(rk_swiglu_bwd(kt->stream, &counted));
        expect_first_rows(kt, c->label, counted.dgate, whole.dgate, counts[i]);
        expect_first_rows(kt, c->label, counted.dup, whole.dup, counts[i]);
        expect_first_rows(kt, c->label, counted.y, whole.y, counts[i]);
        if (has_probs)
            expect_first_rows(kt, c->label, counted.dprobs, whole.dprobs, counts[i]);
    }
}

static void run_counted_weighted_bwd(struct kt *kt, const struct shape_case *c, rk_dtype_t dtype)
{
    run_counted_swiglu_bwd(kt, c, dtype, true);
}

static void run_counted_plain_bwd(struct kt *kt, const struct shape_case *c, rk_dtype_t dtype)
{
    run_counted_swiglu_bwd(kt, c, dtype, false);
}

/* Goal: the same of the backward pass, with and without probabilities. */
static void test_swiglu_bwd_with_a_count_computes_the_first_rows(void **state)
{
    static const int32_t beyond = 5;
    struct kt *kt = *state;
    struct rk_swiglu_bwd_args bad = {.gate = random_2d(kt, RK_DTYPE_F32, 4, 3),
                                     .up = random_2d(kt, RK_DTYPE_F32, 4, 3),
                                     .dy = random_2d(kt, RK_DTYPE_F32, 4, 3),
                                     .count = kt_ints(kt, &beyond, 1)};

    for_all_shapes(kt, run_counted_weighted_bwd);
    for_all_shapes(kt, run_counted_plain_bwd);
    make_swiglu_grads(kt, &bad);
    kt_expect_refused(kt, rk_swiglu_bwd(kt->stream, &bad), "swiglu_bwd: count[0]=5");
}

/* Goal: silu has its limits at arguments whose exponential overflows. */
static void test_swiglu_fwd_huge_gate_stays_finite(void **state)
{
    static const double gate[4] = {-1e4, 1e4, -800.0, 0.0}, up[4] = {3.0, 3.0, 3.0, 3.0};
    static const double expected[4] = {0.0, 3e4, 0.0, 0.0};
    struct kt *kt = *state;
    struct rk_swiglu_fwd_args args = {
        .y = kt_zeros_2d(kt, RK_DTYPE_F32, 1, 4),
        .gate = kt_zeros_2d(kt, RK_DTYPE_F32, 1, 4),
        .up = kt_zeros_2d(kt, RK_DTYPE_F32, 1, 4),
    };

    kt_write(kt, args.gate, gate);
    kt_write(kt, args.up, up);
    assert_ok(rk_swiglu_fwd(kt->stream, &args));
    kt_expect_close(kt, "huge gate", args.y, expected);
}

struct rope_case {
    const char *label;
    int64_t num_tokens, num_heads, head_dim, begin;
};

static const struct rope_case rope_cases[] = {
    {"no tokens", 0, 2, 8, 0},
    {"smallest head", 3, 1, 2, 0},
    {"one token", 1, 4, 32, 0},
    {"ragged", 19, 3, 10, 0},
    {"several packs", 5, 2, 64, 0},
    {"last columns", 5, 3, 48, 16},
    {"last columns, ragged", 7, 3, 11, 5},
};

#define MAX_POSITION 50

static void run_rope(struct kt *kt, const struct rope_case *c, rk_dtype_t dtype, bool inverse,
                     bool is_interleaved)
{
    int64_t half = (c->head_dim - c->begin) / 2, row = c->num_heads * c->head_dim;
    /* Part of a fused [q; k; v] row, so rows have gaps. */
    rk_tensor_t x = rk_tensor_cols(random_2d(kt, dtype, c->num_tokens, row + 6), 2, row);
    struct rk_rope_args args = {
        .x = rk_tensor_split_cols(x, c->num_heads, c->head_dim),
        .cos = random_2d(kt, RK_DTYPE_F32, MAX_POSITION, half),
        .sin = random_2d(kt, RK_DTYPE_F32, MAX_POSITION, half),
        .positions = kt_random_ints(kt, c->num_tokens, MAX_POSITION),
        .inverse = inverse,
        .is_interleaved = is_interleaved,
        .begin = c->begin,
    };
    const int32_t *positions = kt_read_ints(kt, args.positions);
    const double *in = kt_read(kt, args.x), *cos = kt_read(kt, args.cos), *sin = kt_read(kt, args.sin);
    double *expected = kt_scratch(kt, c->num_tokens * row);

    for (int64_t i = 0; i < c->num_tokens * row; i++) {
        int64_t col = i % c->head_dim - c->begin, k = is_interleaved ? col / 2 : col % half;
        int64_t table = positions[i / row] * half + k, apart = is_interleaved ? 1 : half;
        bool is_first = is_interleaved ? col % 2 == 0 : col < half;
        double other;

        expected[i] = in[i];
        if (col < 0)
            continue;
        other = is_first ? -in[i + apart] : in[i - apart];
        expected[i] = in[i] * cos[table] + (inverse ? -1 : 1) * other * sin[table];
    }
    assert_ok(rk_rope(kt->stream, &args));
    kt_expect_close(kt, c->label, args.x, expected);
}

static void test_rope_all_cases_equal_reference(void **state)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(rope_cases); i++) {
        for (size_t d = 0; d < RK_ARRAY_LEN(kt_dtypes); d++) {
            for (int way = 0; way < 4; way++)
                run_rope(*state, &rope_cases[i], kt_dtypes[d], way & 1, way & 2);
        }
    }
}

/* Goal: a position outside of the tables is rejected, or at least not read. */
static void test_rope_position_beyond_table_fails(void **state)
{
    static const int32_t bad[][2] = {{0, 4}, {-1, 0}};
    struct kt *kt = *state;

    for (size_t i = 0; i < RK_ARRAY_LEN(bad); i++) {
        struct rk_rope_args args = {
            .x = kt_zeros_3d(kt, RK_DTYPE_F32, 2, 1, 4),
            .cos = kt_zeros_2d(kt, RK_DTYPE_F32, 4, 2),
            .sin = kt_zeros_2d(kt, RK_DTYPE_F32, 4, 2),
            .positions = kt_ints(kt, bad[i], 2),
        };

        kt_expect_refused(kt, rk_rope(kt->stream, &args), "rope: positions[");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        kt_test(test_bias_bwd_all_shapes_equal_reference),
        kt_test(test_bias_bwd_of_many_rows_equals_reference),
        kt_test(test_embed_fwd_all_shapes_equal_reference),
        kt_test(test_embed_bwd_all_shapes_equal_reference),
        kt_test(test_embed_bwd_repeated_tokens_equal_reference),
        kt_test(test_embed_bwd_of_a_large_table_equals_reference),
        kt_test(test_embed_bwd_is_repeatable),
        kt_test(test_rmsnorm_fwd_all_shapes_equal_reference),
        kt_test(test_rmsnorm_bwd_all_shapes_equal_reference),
        kt_test(test_rmsnorm_bwd_of_many_rows_equals_reference),
        kt_test(test_rmsnorm_bwd_is_repeatable),
        kt_test(test_swiglu_all_shapes_equal_reference),
        kt_test(test_swiglu_with_probs_equals_reference),
        kt_test(test_swiglu_fwd_with_a_count_computes_the_first_rows),
        kt_test(test_swiglu_bwd_with_a_count_computes_the_first_rows),
        kt_test(test_swiglu_fwd_huge_gate_stays_finite),
        kt_test(test_rope_all_cases_equal_reference),
        kt_test(test_rope_position_beyond_table_fails),
    };

    return cmocka_run_group_tests_name("kernels/layers", tests, NULL, NULL);
}
