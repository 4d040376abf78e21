/* Goal: the backward operators of the layers are the derivatives of the forward ones. Method: finite
 * differences of a fixed random projection of the output, in f64, with respect to every element of every
 * input. */
#include "tests/kernels/kernel_test.h"

/* Arguments of a loss: those of the forward operator, and the projection. */
struct gemm_loss {
    struct rk_gemm_args args;
    rk_tensor_t weight;
};

static rk_tensor_t random_1d(struct kt *kt, int64_t dim0)
{
    return kt_randomize(kt, kt_zeros_1d(kt, RK_DTYPE_F64, dim0), 1.0);
}

static rk_tensor_t random_2d(struct kt *kt, int64_t dim0, int64_t dim1)
{
    return kt_randomize(kt, kt_zeros_2d(kt, RK_DTYPE_F64, dim0, dim1), 1.0);
}

static double gemm_loss(struct kt *kt, void *user)
{
    struct gemm_loss *loss = user;

    assert_ok(rk_gemm(kt->stream, &loss->args));
    return kt_project(kt, loss->args.c, loss->weight);
}

/* The GEMMs of a linear layer Y = X W^T + b, as in the header, and the sum for its bias. */
static void test_gemm_linear_layer_gradients_match(void **state)
{
    struct kt *kt = *state;

    for (int strict = 0; strict < 2; strict++) {
        rk_tensor_t x = random_2d(kt, 7, 5), w = random_2d(kt, 6, 5), dy = random_2d(kt, 7, 6);
        rk_tensor_t dx = kt_zeros_2d(kt, RK_DTYPE_F64, 7, 5), dw = kt_zeros_2d(kt, RK_DTYPE_F64, 6, 5);
        rk_tensor_t db = kt_zeros_1d(kt, RK_DTYPE_F64, 6);
        struct gemm_loss loss = {
            .args = {.c = kt_zeros_2d(kt, RK_DTYPE_F64, 7, 6),
                     .a = x,
                     .b = w,
                     .bias = random_1d(kt, 6),
                     .trans_b = true,
                     .strict = strict,
                     .alpha = 0.75f},
            .weight = dy,
        };

        assert_ok(rk_gemm(
            kt->stream, &(struct rk_gemm_args){.c = dx, .a = dy, .b = w, .strict = strict, .alpha = 0.75f}));
        assert_ok(rk_gemm(
            kt->stream,
            &(struct rk_gemm_args){
                .c = dw, .a = dy, .b = x, .trans_a = true, .strict = strict, .alpha = 0.75f, .beta = 1.0f}));
        kt_expect_gradient(kt, "dX = dY W", x, dx, gemm_loss, &loss);
        kt_expect_gradient(kt, "dW += dY^T X", w, dw, gemm_loss, &loss);
        assert_ok(rk_bias_bwd(kt->stream, &(struct rk_bias_bwd_args){.dbias = db, .dy = dy}));
        kt_expect_gradient(kt, "db += sum of dY", loss.args.bias, db, gemm_loss, &loss);
    }
}

struct embed_loss {
    struct rk_embed_fwd_args args;
    rk_tensor_t weight;
};

static double embed_loss(struct kt *kt, void *user)
{
    struct embed_loss *loss = user;

    assert_ok(rk_embed_fwd(kt->stream, &loss->args));
    return kt_project(kt, loss->args.out, loss->weight);
}

static void test_embed_bwd_gradient_matches(void **state)
{
    static const int32_t tokens[] = {3, 9, 3, 5, 2, 4, 3}; /* repeated, and out of range on both sides */
    struct kt *kt = *state;
    struct embed_loss loss = {
        .args = {.out = kt_zeros_2d(kt, RK_DTYPE_F64, 7, 4),
                 .table = random_2d(kt, 5, 4),
                 .tokens = kt_ints(kt, tokens, 7),
                 .vocab_begin = 3},
        .weight = random_2d(kt, 7, 4),
    };
    rk_tensor_t dtable = kt_zeros_2d(kt, RK_DTYPE_F64, 5, 4);

    assert_ok(rk_embed_bwd(kt->stream, &(struct rk_embed_bwd_args){.dtable = dtable,
                                                                   .dout = loss.weight,
                                                                   .tokens = loss.args.tokens,
                                                                   .vocab_begin = 3}));
    kt_expect_gradient(kt, "dtable", loss.args.table, dtable, embed_loss, &loss);
}

struct norm_loss {
    struct rk_rmsnorm_fwd_args args;
    rk_tensor_t weight, sum_weight; /* of y, and of s, which continues as the residual stream */
};

static double norm_loss(struct kt *kt, void *user)
{
    struct norm_loss *loss = user;
    double value;

    assert_ok(rk_rmsnorm_fwd(kt->stream, &loss->args));
    value = kt_project(kt, loss->args.y, loss->weight);
    return loss->args.sum.data ? value + kt_project(kt, loss->args.sum, loss->sum_weight) : value;
}

static void test_rmsnorm_bwd_gradients_match(void **state)
{
    struct kt *kt = *state;

    for (int has_residual = 0; has_residual < 2; has_residual++) {
        struct norm_loss loss = {
            .args = {.y = kt_zeros_2d(kt, RK_DTYPE_F64, 4, 9),
                     .rstd = kt_zeros_1d(kt, RK_DTYPE_F64, 4),
                     .x = random_2d(kt, 4, 9),
                     .weight = random_1d(kt, 9),
                     .eps = 0.1f},
            .weight = random_2d(kt, 4, 9),
            .sum_weight = random_2d(kt, 4, 9),
        };
        struct rk_rmsnorm_bwd_args bwd = {.dx = kt_zeros_2d(kt, RK_DTYPE_F64, 4, 9),
                                          .dweight = kt_zeros_1d(kt, RK_DTYPE_F64, 9)};

        if (has_residual) {
            loss.args.residual = random_2d(kt, 4, 9);
            loss.args.sum = kt_zeros_2d(kt, RK_DTYPE_F64, 4, 9);
            bwd.dresidual = loss.sum_weight;
        }
        norm_loss(kt, &loss);
        bwd.dy = loss.weight;
        bwd.x = has_residual ? loss.args.sum : loss.args.x;
        bwd.weight = loss.args.weight;
        bwd.rstd = loss.args.rstd;
        assert_ok(rk_rmsnorm_bwd(kt->stream, &bwd));
        kt_expect_gradient(kt, "dx", loss.args.x, bwd.dx, norm_loss, &loss);
        kt_expect_gradient(kt, "dweight", loss.args.weight, bwd.dweight, norm_loss, &loss);
        if (has_residual)
            kt_expect_gradient(kt, "dresidual", loss.args.residual, bwd.dx, norm_loss, &loss);
    }
}

struct swiglu_loss {
    struct rk_swiglu_fwd_args args;
    rk_tensor_t weight;
};

static double swiglu_loss(struct kt *kt, void *user)
{
    struct swiglu_loss *loss = user;

    assert_ok(rk_swiglu_fwd(kt->stream, &loss->args));
    return kt_project(kt, loss->args.y, loss->weight);
}

static void expect_swiglu_gradients(struct kt *kt, bool has_probs)
{
    struct swiglu_loss loss = {
        .args = {.y = kt_zeros_2d(kt, RK_DTYPE_F64, 5, 6),
                 .gate = random_2d(kt, 5, 6),
                 .up = random_2d(kt, 5, 6),
                 .probs = has_probs ? random_1d(kt, 5) : (rk_tensor_t){0}},
        .weight = random_2d(kt, 5, 6),
    };
    struct rk_swiglu_bwd_args bwd = {
        .dgate = kt_zeros_2d(kt, RK_DTYPE_F64, 5, 6),
        .dup = kt_zeros_2d(kt, RK_DTYPE_F64, 5, 6),
        .dy = loss.weight,
        .gate = loss.args.gate,
        .up = loss.args.up,
        .probs = loss.args.probs,
    };

    if (has_probs)
        bwd.dprobs = kt_zeros_1d(kt, RK_DTYPE_F64, 5);
    assert_ok(rk_swiglu_bwd(kt->stream, &bwd));
    kt_expect_gradient(kt, "dgate", loss.args.gate, bwd.dgate, swiglu_loss, &loss);
    kt_expect_gradient(kt, "dup", loss.args.up, bwd.dup, swiglu_loss, &loss);
    if (has_probs)
        kt_expect_gradient(kt, "dprobs", loss.args.probs, bwd.dprobs, swiglu_loss, &loss);
}

static void test_swiglu_bwd_gradients_match(void **state)
{
    expect_swiglu_gradients(*state, false);
    expect_swiglu_gradients(*state, true);
}

/* RoPE is in place, so the loss works on a copy. */
struct rope_loss {
    struct rk_rope_args args;
    rk_tensor_t input, weight;
};

static double rope_loss(struct kt *kt, void *user)
{
    struct rope_loss *loss = user;

    kt_write(kt, loss->args.x, kt_read(kt, loss->input));
    assert_ok(rk_rope(kt->stream, &loss->args));
    return kt_project(kt, loss->args.x, loss->weight);
}

/* cos and sin are arbitrary numbers here: the backward pass is the transposed map for all values. */
static void check_rope_gradient(struct kt *kt, bool is_interleaved)
{
    static const int32_t positions[] = {0, 3, 1, 7};
    struct rope_loss loss = {
        .args = {.x = kt_zeros_3d(kt, RK_DTYPE_F64, 4, 2, 6),
                 .cos = kt_randomize(kt, kt_zeros_2d(kt, RK_DTYPE_F32, 8, 3), 1.0),
                 .sin = kt_randomize(kt, kt_zeros_2d(kt, RK_DTYPE_F32, 8, 3), 1.0),
                 .positions = kt_ints(kt, positions, 4),
                 .is_interleaved = is_interleaved},
        .input = kt_randomize(kt, kt_zeros_3d(kt, RK_DTYPE_F64, 4, 2, 6), 1.0),
        .weight = kt_randomize(kt, kt_zeros_3d(kt, RK_DTYPE_F64, 4, 2, 6), 1.0),
    };
    struct rk_rope_args bwd = loss.args;

    bwd.x = kt_zeros_3d(kt, RK_DTYPE_F64, 4, 2, 6);
    bwd.inverse = true;
    kt_write(kt, bwd.x, kt_read(kt, loss.weight));
    assert_ok(rk_rope(kt->stream, &bwd));
    kt_expect_gradient(kt, "dx", loss.input, bwd.x, rope_loss, &loss);
}

static void test_rope_inverse_is_gradient(void **state)
{
    check_rope_gradient(*state, false);
    check_rope_gradient(*state, true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        kt_test(test_gemm_linear_layer_gradients_match), kt_test(test_embed_bwd_gradient_matches),
        kt_test(test_rmsnorm_bwd_gradients_match),       kt_test(test_swiglu_bwd_gradients_match),
        kt_test(test_rope_inverse_is_gradient),
    };

    return cmocka_run_group_tests_name("kernels/grad_layers", tests, NULL, NULL);
}
