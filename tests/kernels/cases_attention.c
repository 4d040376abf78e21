/* Goal: attention over packed sequences equals the definition, written as loops over all pairs in f64,
 * forward and backward, for every dtype, GQA ratio, window and mix of lengths. */
#include "tests/kernels/kernel_test.h"

#include <math.h>

#define MAX_SEQS 6

struct attn_case {
    const char *label;
    int32_t cu_seqlens[MAX_SEQS + 1];
    int32_t num_seqs, num_heads, num_kv_heads, head_dim, window;
    int32_t v_head_dim; /* 0: head_dim */
};

static const struct attn_case cases[] = {
    {"one token", {0, 1}, 1, 1, 1, 1, 0, 0},
    {"no sequences", {0}, 0, 2, 1, 8, 0, 0},
    {"only empty sequences", {0, 0, 0}, 2, 2, 1, 8, 0, 0},
    {"one sequence, a panel and one", {0, 17}, 1, 2, 2, 16, 0, 0},
    {"ragged lengths with an empty one", {0, 5, 5, 38, 39}, 4, 4, 2, 20, 0, 0},
    {"one kv head for all", {0, 7, 20}, 2, 6, 1, 8, 0, 0},
    {"window inside a panel", {0, 40, 47}, 2, 2, 1, 12, 5, 0},
    {"window over panels", {0, 70}, 1, 1, 1, 16, 33, 0},
    {"window of one", {0, 18}, 1, 2, 1, 4, 1, 0},
    {"window longer than the sequence", {0, 9}, 1, 1, 1, 4, 100, 0},
    {"head of 64, two key blocks", {0, 77, 78, 210}, 3, 4, 2, 64, 0, 0},
    {"head of 128, window", {0, 150}, 1, 2, 1, 128, 70, 0},
    {"head of 32, window", {0, 20, 150}, 2, 2, 2, 32, 40, 0},
    {"head of 80", {0, 30, 75}, 2, 2, 1, 80, 0, 0},
    {"head of 96", {0, 70}, 1, 2, 1, 96, 0, 0},
    {"head of 256", {0, 3, 70}, 2, 1, 1, 256, 0, 0},
    {"values narrower, ragged", {0, 5, 5, 38, 39}, 4, 4, 2, 24, 0, 16},
    {"values wider, window", {0, 40, 47}, 2, 2, 1, 12, 5, 29},
    {"values of one column", {0, 19}, 1, 2, 1, 6, 0, 1},
    {"heads of 192 and 128", {0, 70, 150}, 2, 2, 2, 192, 0, 128},
    {"heads of 192 and 128, group, window, two splits", {0, 3, 640, 640}, 3, 2, 1, 192, 600, 128},
    {"heads of 64 and 128, window", {0, 90}, 1, 2, 1, 64, 33, 128},
};

/* Data of one case, with the reference's results. */
struct attn_data {
    struct rk_attn_varlen_bwd_args args;
    double *out, *lse, *dq, *dk, *dv;
};

static int64_t v_dim_of(const struct attn_case *c)
{
    return c->v_head_dim ? c->v_head_dim : c->head_dim;
}

static int32_t longest_of(const struct attn_case *c)
{
    int32_t longest = 0;

    for (int32_t s = 0; s < c->num_seqs; s++)
        longest = RK_MAX(longest, c->cu_seqlens[s + 1] - c->cu_seqlens[s]);
    return longest;
}

static rk_tensor_t qk_part(const struct attn_case *c, rk_tensor_t fused, int64_t first_head, int64_t heads)
{
    return rk_tensor_split_cols(rk_tensor_cols(fused, first_head * c->head_dim, heads * c->head_dim), heads,
                                c->head_dim);
}

static rk_tensor_t v_part(const struct attn_case *c, rk_tensor_t fused)
{
    int64_t before = (c->num_heads + c->num_kv_heads) * c->head_dim, width = c->num_kv_heads * v_dim_of(c);

    return rk_tensor_split_cols(rk_tensor_cols(fused, before, width), c->num_kv_heads, v_dim_of(c));
}

/* Columns of q, k and v side by side, rounded up to a multiple of the kernels' load size. */
static rk_tensor_t make_fused(struct kt *kt, const struct attn_case *c, rk_dtype_t dtype)
{
    int64_t columns = (c->num_heads + c->num_kv_heads) * c->head_dim + c->num_kv_heads * v_dim_of(c);

    return kt_randomize(kt, kt_zeros_2d(kt, dtype, c->cu_seqlens[c->num_seqs], columns), 1.0);
}

/* q, k and v are parts of one fused tensor, as are their gradients. */
static struct attn_data make_data(struct kt *kt, const struct attn_case *c, rk_dtype_t dtype)
{
    int64_t num_tokens = c->cu_seqlens[c->num_seqs], v_head_dim = v_dim_of(c);
    rk_tensor_t qkv = make_fused(kt, c, dtype), dqkv = make_fused(kt, c, dtype);
    int64_t q_rows = num_tokens * c->num_heads, kv_rows = num_tokens * c->num_kv_heads;

    return (struct attn_data){
        .args =
            {
                .fwd =
                    {
                        .out = kt_zeros_3d(kt, dtype, num_tokens, c->num_heads, v_head_dim),
                        .lse = kt_zeros_2d(kt, kt_stat_dtype(dtype), c->num_heads, num_tokens),
                        .q = qk_part(c, qkv, 0, c->num_heads),
                        .k = qk_part(c, qkv, c->num_heads, c->num_kv_heads),
                        .v = v_part(c, qkv),
                        .cu_seqlens = kt_ints(kt, c->cu_seqlens, c->num_seqs + 1),
                        .max_seqlen = longest_of(c),
                        .window = c->window,
                        .scale = 0.3f,
                    },
                .dq = qk_part(c, dqkv, 0, c->num_heads),
                .dk = qk_part(c, dqkv, c->num_heads, c->num_kv_heads),
                .dv = v_part(c, dqkv),
                .dout = kt_randomize(kt, kt_zeros_3d(kt, dtype, num_tokens, c->num_heads, v_head_dim), 1.0),
            },
        .out = kt_scratch(kt, q_rows * v_head_dim),
        .lse = kt_scratch(kt, c->num_heads * num_tokens),
        .dq = kt_scratch(kt, q_rows * c->head_dim),
        .dk = kt_scratch(kt, kv_rows * c->head_dim),
        .dv = kt_scratch(kt, kv_rows * v_head_dim),
    };
}

static bool is_visible(const struct attn_case *c, int64_t i, int64_t j)
{
    int64_t seq_of_i = 0, seq_of_j = 0;

    while (c->cu_seqlens[seq_of_i + 1] <= i)
        seq_of_i++;
    while (c->cu_seqlens[seq_of_j + 1] <= j)
        seq_of_j++;
    return seq_of_i == seq_of_j && j <= i && (c->window == 0 || i - j < c->window);
}

static double dot(const double *a, const double *b, int64_t count)
{
    double sum = 0.0;

    for (int64_t i = 0; i < count; i++)
        sum += a[i] * b[i];
    return sum;
}

/* Softmax weights of query i of head h into p[T]; returns the log-sum-exp. */
static double weights_of(const struct attn_case *c, const double *q, const double *k, double scale, int64_t i,
                         int64_t h, double *p)
{
    int64_t num_tokens = c->cu_seqlens[c->num_seqs], kv = h / (c->num_heads / c->num_kv_heads);
    double sum = 0.0;

    for (int64_t j = 0; j < num_tokens; j++) {
        double s = scale * dot(q + (i * c->num_heads + h) * c->head_dim,
                               k + (j * c->num_kv_heads + kv) * c->head_dim, c->head_dim);

        p[j] = is_visible(c, i, j) ? exp(s) : 0.0;
        sum += p[j];
    }
    for (int64_t j = 0; j < num_tokens; j++)
        p[j] /= sum;
    return log(sum);
}

/* Call after the forward pass: the gradients are computed from the rounded output. */
static void reference(struct kt *kt, const struct attn_case *c, struct attn_data *data)
{
    const struct rk_attn_varlen_args *fwd = &data->args.fwd;
    const double *q = kt_read(kt, fwd->q), *k = kt_read(kt, fwd->k), *v = kt_read(kt, fwd->v);
    const double *dout = kt_read(kt, data->args.dout), *out = kt_read(kt, fwd->out);
    int64_t num_tokens = c->cu_seqlens[c->num_seqs], d = c->head_dim, d_v = v_dim_of(c);
    double *p = kt_scratch(kt, num_tokens);

    for (int64_t row = 0; row < num_tokens * c->num_heads; row++) {
        int64_t i = row / c->num_heads, h = row % c->num_heads, kv = h / (c->num_heads / c->num_kv_heads);
        double d_row = dot(dout + row * d_v, out + row * d_v, d_v);

        data->lse[h * num_tokens + i] = weights_of(c, q, k, fwd->scale, i, h, p);
        for (int64_t j = 0; j < num_tokens; j++) {
            for (int64_t x = 0; x < d_v; x++)
                data->out[row * d_v + x] += p[j] * v[(j * c->num_kv_heads + kv) * d_v + x];
        }
        for (int64_t j = 0; j < num_tokens; j++) {
            int64_t key = j * c->num_kv_heads + kv;
            double ds = fwd->scale * p[j] * (dot(dout + row * d_v, v + key * d_v, d_v) - d_row);

            for (int64_t x = 0; x < d; x++) {
                data->dq[row * d + x] += ds * k[key * d + x];
                data->dk[key * d + x] += ds * q[row * d + x];
            }
            for (int64_t x = 0; x < d_v; x++)
                data->dv[key * d_v + x] += p[j] * dout[row * d_v + x];
        }
    }
}

static void test_attn_varlen_all_cases_equal_reference(void **state)
{
    struct kt *kt = *state;

    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        for (size_t d = 0; d < RK_ARRAY_LEN(kt_dtypes); d++) {
            struct attn_data data;
            const char *label = cases[i].label;

            if (kt_is_cpu_only(kt, kt_dtypes[d]) || !rk_test_in_part())
                continue;
            data = make_data(kt, &cases[i], kt_dtypes[d]);
            assert_ok(rk_attn_varlen_fwd(kt->stream, &data.args.fwd));
            reference(kt, &cases[i], &data);
            kt_expect_close_attention(kt, label, data.args.fwd.out, data.out);
            kt_expect_close(kt, label, data.args.fwd.lse, data.lse);
            assert_ok(rk_attn_varlen_bwd(kt->stream, &data.args));
            kt_expect_close_attention(kt, label, data.args.dq, data.dq);
            kt_expect_close_attention(kt, label, data.args.dk, data.dk);
            kt_expect_close_attention(kt, label, data.args.dv, data.dv);
        }
    }
}

/* Goal: scores far beyond the range of exp give the limit of the softmax. Method: the score of one key is
 * larger by 1e4. */
static void test_attn_varlen_fwd_huge_scores_stay_finite(void **state)
{
    static const int32_t cu_seqlens[] = {0, 2};
    static const double q[2] = {100.0, 100.0}, k[2] = {100.0, -100.0}, v[2] = {3.0, 5.0},
                        expected[2] = {3.0, 3.0};
    static const double lse[2] = {1e4, 1e4};
    struct kt *kt = *state;
    struct rk_attn_varlen_args args = {
        .out = kt_zeros_3d(kt, RK_DTYPE_F32, 2, 1, 1),
        .lse = kt_zeros_2d(kt, RK_DTYPE_F32, 1, 2),
        .q = kt_zeros_3d(kt, RK_DTYPE_F32, 2, 1, 1),
        .k = kt_zeros_3d(kt, RK_DTYPE_F32, 2, 1, 1),
        .v = kt_zeros_3d(kt, RK_DTYPE_F32, 2, 1, 1),
        .cu_seqlens = kt_ints(kt, cu_seqlens, 2),
        .max_seqlen = 2,
        .scale = 1.0f,
    };

    kt_write(kt, args.q, q);
    kt_write(kt, args.k, k);
    kt_write(kt, args.v, v);
    assert_ok(rk_attn_varlen_fwd(kt->stream, &args));
    kt_expect_close(kt, "huge scores", args.out, expected);
    kt_expect_close(kt, "huge scores", args.lse, lse);
}

/* Goal: sequence bounds that do not fit the tokens are rejected. */
static void test_attn_varlen_bad_cu_seqlens_fails(void **state)
{
    static const struct {
        int32_t cu_seqlens[3], max_seqlen;
        const char *text;
    } bad[] = {
        {{1, 2, 4}, 4, "cu_seqlens runs from 1 to 4, expected 0 to 4"},
        {{0, 2, 5}, 4, "cu_seqlens runs from 0 to 5, expected 0 to 4"},
        {{0, 6, 4}, 8, "cu_seqlens has a step of -2 at 1, expected 0 to 8"},
        {{0, 1, 4}, 2, "cu_seqlens has a step of 3 at 1, expected 0 to 2"},
    };
    struct kt *kt = *state;

    if (!kt_is_cpu(kt))
        rk_test_skip("only the CPU backend checks these arrays");
    for (size_t i = 0; i < RK_ARRAY_LEN(bad); i++) {
        struct attn_case c = {"bad", {0, 4}, 1, 1, 1, 4, 0, 0};
        struct attn_data data = make_data(kt, &c, RK_DTYPE_F32);

        data.args.fwd.cu_seqlens = kt_ints(kt, bad[i].cu_seqlens, 3);
        data.args.fwd.max_seqlen = bad[i].max_seqlen;
        assert_fails(rk_attn_varlen_fwd(kt->stream, &data.args.fwd), RK_INVALID_ARGUMENT, bad[i].text);
        assert_fails(rk_attn_varlen_bwd(kt->stream, &data.args), RK_INVALID_ARGUMENT, bad[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        kt_test(test_attn_varlen_all_cases_equal_reference),
        kt_test(test_attn_varlen_fwd_huge_scores_stay_finite),
        kt_test(test_attn_varlen_bad_cu_seqlens_fails),
    };

    return cmocka_run_group_tests_name("kernels/attention", tests, NULL, NULL);
}
