/* Goal: the backward pass of attention is the derivative of the forward one. Method: finite differences of a
 * fixed random projection of the output, in f64, with respect to every element of q, k and v. */
#include "tests/kernels/kernel_test.h"

struct attn_case {
    const char *label;
    int32_t cu_seqlens[4], num_heads, num_kv_heads, head_dim, window;
    int32_t num_keys, k_begin[3], k_lens[3]; /* num_keys 0: those of the queries */
    int32_t v_head_dim;                      /* 0: head_dim */
};

static const struct attn_case cases[] = {
    {"group of 2", {0, 4, 4, 9}, 4, 2, 3, 0, 0, {0}, {0}, 0},
    {"group of 1, window", {0, 7, 8, 10}, 2, 2, 4, 3, 0, {0}, {0}, 0},
    {"more than a panel", {0, 19, 20, 21}, 1, 1, 2, 0, 0, {0}, {0}, 0},
    {"keys elsewhere", {0, 3, 3, 7}, 4, 2, 3, 0, 16, {2, 0, 10}, {7, 2, 5}, 0},
    {"keys elsewhere, window", {0, 3, 6, 7}, 2, 2, 3, 4, 24, {5, 1, 0}, {19, 4, 1}, 0},
    {"values narrower", {0, 4, 4, 9}, 4, 2, 5, 0, 0, {0}, {0}, 3},
    {"values wider, window", {0, 7, 8, 10}, 2, 2, 3, 3, 0, {0}, {0}, 6},
    {"values wider, keys elsewhere", {0, 3, 3, 7}, 4, 2, 2, 0, 16, {2, 0, 10}, {7, 2, 5}, 5},
    {"a panel's width and less", {0, 9, 9, 12}, 1, 1, 18, 0, 0, {0}, {0}, 2},
};

struct attn_loss {
    struct rk_attn_varlen_args args;
    rk_tensor_t weight;
};

static double attn_loss(struct kt *kt, void *user)
{
    struct attn_loss *loss = user;

    assert_ok(rk_attn_varlen_fwd(kt->stream, &loss->args));
    return kt_project(kt, loss->args.out, loss->weight);
}

static rk_tensor_t random_heads(struct kt *kt, int64_t tokens, int64_t heads, int64_t head_dim)
{
    return kt_randomize(kt, kt_zeros_3d(kt, RK_DTYPE_F64, tokens, heads, head_dim), 1.0);
}

static void run_case(struct kt *kt, const struct attn_case *c)
{
    int64_t num_tokens = c->cu_seqlens[3], num_keys = c->num_keys ? c->num_keys : num_tokens;
    int64_t v_head_dim = c->v_head_dim ? c->v_head_dim : c->head_dim;
    struct attn_loss loss = {
        .args =
            {
                .out = random_heads(kt, num_tokens, c->num_heads, v_head_dim),
                .lse = kt_zeros_2d(kt, RK_DTYPE_F64, c->num_heads, num_tokens),
                .q = random_heads(kt, num_tokens, c->num_heads, c->head_dim),
                .k = random_heads(kt, num_keys, c->num_kv_heads, c->head_dim),
                .v = random_heads(kt, num_keys, c->num_kv_heads, v_head_dim),
                .cu_seqlens = kt_ints(kt, c->cu_seqlens, 4),
                .max_seqlen = (int32_t)num_tokens,
                .window = c->window,
                .scale = 0.6f,
            },
        .weight = random_heads(kt, num_tokens, c->num_heads, v_head_dim),
    };
    struct rk_attn_varlen_bwd_args bwd = {
        .dq = random_heads(kt, num_tokens, c->num_heads, c->head_dim), /* overwritten */
        .dk = random_heads(kt, num_keys, c->num_kv_heads, c->head_dim),
        .dv = random_heads(kt, num_keys, c->num_kv_heads, v_head_dim),
        .dout = loss.weight,
    };

    if (c->num_keys) {
        loss.args.k_begin = kt_ints(kt, c->k_begin, 3);
        loss.args.k_lens = kt_ints(kt, c->k_lens, 3);
    }
    attn_loss(kt, &loss);
    bwd.fwd = loss.args;
    assert_ok(rk_attn_varlen_bwd(kt->stream, &bwd));
    kt_expect_gradient(kt, c->label, loss.args.q, bwd.dq, attn_loss, &loss);
    kt_expect_gradient(kt, c->label, loss.args.k, bwd.dk, attn_loss, &loss);
    kt_expect_gradient(kt, c->label, loss.args.v, bwd.dv, attn_loss, &loss);
}

static void test_attn_varlen_bwd_gradients_match(void **state)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++)
        run_case(*state, &cases[i]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        kt_test(test_attn_varlen_bwd_gradients_match),
    };

    return cmocka_run_group_tests_name("kernels/grad_attention", tests, NULL, NULL);
}
