/* Goal: keys and values of latent attention are put together as their definition says, packed and in blocks;
 * their gradients are the transposed map; copied blocks are where the table of the copy says. Any widths:
 * also those that no vector of a GPU divides. */
#include "tests/kernels/kernel_test.h"

struct shape {
    int64_t tokens, heads, nope, rope, v;
};

static const struct shape shapes[] = {
    {8, 3, 5, 2, 7}, {16, 1, 1, 2, 1}, {8, 4, 16, 8, 24}, {24, 2, 128, 64, 128}, {0, 2, 4, 2, 4},
};

static rk_tensor_t random_3d(struct kt *kt, rk_dtype_t dtype, int64_t rows, int64_t heads, int64_t width)
{
    /* rows with gaps */
    rk_tensor_t wide = kt_randomize(kt, kt_zeros_2d(kt, dtype, rows, heads * width + 3), 1.0);

    return rk_tensor_split_cols(rk_tensor_cols(wide, 1, heads * width), heads, width);
}

static struct rk_latent_kv_args make_args(struct kt *kt, const struct shape *s, rk_dtype_t dtype)
{
    return (struct rk_latent_kv_args){
        .k = random_3d(kt, dtype, s->tokens, s->heads, s->nope + s->rope),
        .v = random_3d(kt, dtype, s->tokens, s->heads, s->v),
        .kv = random_3d(kt, dtype, s->tokens, s->heads, s->nope + s->v),
        .rope = rk_tensor_merge_cols(random_3d(kt, dtype, s->tokens, 1, s->rope)),
    };
}

/* What k or v of token t and head h has in column c. */
static double key_of(const struct shape *s, const double *kv, const double *rope, int64_t row, int64_t c)
{
    return c < s->nope ? kv[row * (s->nope + s->v) + c] : rope[row / s->heads * s->rope + c - s->nope];
}

static void check_packed(struct kt *kt, const struct shape *s, rk_dtype_t dtype)
{
    struct rk_latent_kv_args args = make_args(kt, s, dtype);
    int64_t rows = s->tokens * s->heads, head_dim = s->nope + s->rope;
    const double *kv = kt_read(kt, args.kv), *rope = kt_read(kt, args.rope), *k, *v;

    assert_ok(rk_latent_kv(kt->stream, &args));
    k = kt_read(kt, args.k);
    v = kt_read(kt, args.v);
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t c = 0; c < head_dim; c++)
            assert_true(k[row * head_dim + c] == key_of(s, kv, rope, row, c));
        for (int64_t c = 0; c < s->v; c++)
            assert_true(v[row * s->v + c] == kv[row * (s->nope + s->v) + s->nope + c]);
    }
}

static void check_blocks(struct kt *kt, const struct shape *s, rk_dtype_t dtype)
{
    enum { BLOCK = 4 };
    struct rk_latent_kv_args args = make_args(kt, s, dtype);
    int64_t head_dim = s->nope + s->rope;
    const double *kv = kt_read(kt, args.kv), *rope = kt_read(kt, args.rope), *k, *v;

    args.k = kt_zeros_4d(kt, dtype, s->tokens / BLOCK, s->heads, BLOCK, head_dim);
    args.v = kt_zeros_4d(kt, dtype, s->tokens / BLOCK, s->heads, BLOCK, s->v);
    assert_ok(rk_latent_kv(kt->stream, &args));
    k = kt_read(kt, args.k);
    v = kt_read(kt, args.v);
    for (int64_t row = 0; row < s->tokens * s->heads; row++) {
        int64_t t = row / s->heads, h = row % s->heads;
        int64_t at = (t / BLOCK * s->heads + h) * BLOCK + t % BLOCK;

        for (int64_t c = 0; c < head_dim; c++)
            assert_true(k[at * head_dim + c] == key_of(s, kv, rope, row, c));
        for (int64_t c = 0; c < s->v; c++)
            assert_true(v[at * s->v + c] == kv[row * (s->nope + s->v) + s->nope + c]);
    }
}

static void check_backward(struct kt *kt, const struct shape *s, rk_dtype_t dtype)
{
    struct rk_latent_kv_args fwd = make_args(kt, s, dtype);
    struct rk_latent_kv_bwd_args args = {.dkv = fwd.kv, .drope = fwd.rope, .dk = fwd.k, .dv = fwd.v};
    int64_t rows = s->tokens * s->heads, head_dim = s->nope + s->rope, width = s->nope + s->v;
    const double *dk = kt_read(kt, args.dk), *dv = kt_read(kt, args.dv), *dkv;
    double *sums = kt_scratch(kt, s->tokens * s->rope + 1);

    assert_ok(rk_latent_kv_bwd(kt->stream, &args));
    dkv = kt_read(kt, args.dkv);
    for (int64_t row = 0; row < rows; row++) {
        for (int64_t c = 0; c < width; c++)
            assert_true(dkv[row * width + c] ==
                        (c < s->nope ? dk[row * head_dim + c] : dv[row * s->v + c - s->nope]));
        for (int64_t c = 0; c < s->rope; c++)
            sums[row / s->heads * s->rope + c] += dk[row * head_dim + s->nope + c];
    }
    kt_expect_close_sum(kt, kt_label(kt, "drope", dtype), args.drope, sums);
}

static void test_latent_kv_equals_its_definition(void **state)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(shapes); i++) {
        for (size_t d = 0; d < RK_ARRAY_LEN(kt_dtypes); d++) {
            if (kt_is_cpu_only(*state, kt_dtypes[d]))
                continue;
            check_packed(*state, &shapes[i], kt_dtypes[d]);
            check_blocks(*state, &shapes[i], kt_dtypes[d]);
            check_backward(*state, &shapes[i], kt_dtypes[d]);
        }
    }
}

struct heads_case {
    int64_t tokens, heads, n, k, more_y, more_x, gap;
    bool trans_w;
};

/* Columns after the first n of y's heads keep their values; gaps between matrices are not read. */
static void check_heads(struct kt *kt, const struct heads_case *c, rk_dtype_t dtype)
{
    int64_t matrix = c->n * c->k + c->gap, y_width = c->n + c->more_y, x_width = c->k + c->more_x;
    rk_tensor_t weights = kt_randomize(kt, kt_zeros_2d(kt, dtype, c->heads, matrix), 1.0);
    struct rk_batched_gemm_args args = {
        .y = random_3d(kt, dtype, c->tokens, c->heads, y_width),
        .x = random_3d(kt, dtype, c->tokens, c->heads, x_width),
        .w = rk_tensor_split_cols(rk_tensor_cols(weights, 0, c->n * c->k), c->trans_w ? c->n : c->k,
                                  c->trans_w ? c->k : c->n),
        .trans_w = c->trans_w,
    };
    const double *x = kt_read(kt, args.x), *w = kt_read(kt, weights);
    double *expected = kt_read(kt, args.y);

    for (int64_t row = 0; row < c->tokens * c->heads; row++) {
        const double *own = w + row % c->heads * matrix;

        for (int64_t n = 0; n < c->n; n++) {
            double sum = 0;

            for (int64_t k = 0; k < c->k; k++)
                sum += x[row * x_width + k] * own[c->trans_w ? n * c->k + k : k * c->n + n];
            expected[row * y_width + n] = sum;
        }
    }
    assert_ok(rk_batched_gemm(kt->stream, &args));
    kt_expect_close_sum(kt, kt_label(kt, "batched_gemm", dtype), args.y, expected);
}

static void test_batched_gemm_equals_loops(void **state)
{
    static const struct heads_case heads_cases[] = {{5, 3, 7, 4, 2, 1, 3, false},
                                                    {5, 3, 7, 4, 0, 0, 0, true},
                                                    {70, 2, 72, 40, 8, 24, 16, false},
                                                    {70, 2, 40, 72, 0, 0, 8, true},
                                                    {0, 2, 4, 4, 0, 0, 0, false}};

    for (size_t i = 0; i < RK_ARRAY_LEN(heads_cases); i++) {
        for (size_t d = 0; d < RK_ARRAY_LEN(kt_dtypes); d++) {
            if (!kt_is_cpu_only(*state, kt_dtypes[d]))
                check_heads(*state, &heads_cases[i], kt_dtypes[d]);
        }
    }
}

/* Sequences share blocks, and rows of the table are longer than what is asked for. */
static void test_gather_blocks_copies_by_the_table(void **state)
{
    enum { SEQS = 3, TABLE = 5, USED = 4, BLOCKS = 6 };
    static const int32_t table[SEQS * TABLE] = {5, 0, 3, 3, -7, 1, 2, 4, 0, 99, 0, 0, 5, 1, 1 << 30};
    struct kt *kt = *state;

    for (size_t d = 0; d < RK_ARRAY_LEN(kt_dtypes); d++) {
        rk_tensor_t ids = rk_tensor_2d(kt_ints(kt, table, SEQS * TABLE).data, RK_DTYPE_I32, SEQS, TABLE);
        struct rk_gather_blocks_args args = {
            .out = kt_zeros_4d(kt, kt_dtypes[d], SEQS * USED, 2, 3, 7),
            .numbers = kt_zeros_2d(kt, RK_DTYPE_I32, SEQS, USED),
            .cache = kt_randomize(kt, kt_zeros_4d(kt, kt_dtypes[d], BLOCKS, 2, 3, 7), 1.0),
            .block_table = rk_tensor_cols(ids, 0, USED),
        };
        const double *cache = kt_read(kt, args.cache), *out;
        const int32_t *numbers;

        assert_ok(rk_gather_blocks(kt->stream, &args));
        out = kt_read(kt, args.out);
        numbers = kt_read_ints(kt, args.numbers);
        for (int i = 0; i < SEQS * USED; i++) {
            int32_t block = table[i / USED * TABLE + i % USED];

            assert_int_equal(numbers[i], i);
            for (int c = 0; c < 42; c++)
                assert_true(out[i * 42 + c] == cache[block * 42 + c]);
        }
    }
}

/* Goal: a block that the cache does not have is refused, or at least not read. */
static void test_gather_blocks_beyond_the_cache_fails(void **state)
{
    static const int32_t bad[] = {-1, 2};
    struct kt *kt = *state;

    for (size_t i = 0; i < RK_ARRAY_LEN(bad); i++) {
        struct rk_gather_blocks_args args = {
            .out = kt_zeros_4d(kt, RK_DTYPE_F32, 1, 1, 4, 3),
            .numbers = kt_zeros_2d(kt, RK_DTYPE_I32, 1, 1),
            .cache = kt_zeros_4d(kt, RK_DTYPE_F32, 2, 1, 4, 3),
            .block_table = rk_tensor_2d(kt_ints(kt, &bad[i], 1).data, RK_DTYPE_I32, 1, 1),
        };

        kt_expect_refused(kt, rk_gather_blocks(kt->stream, &args), "gather_blocks: block_table[");
    }
}

/* Goal: shapes that do not fit one another are refused by name. */
static void test_latent_kv_of_other_widths_fails(void **state)
{
    static const struct shape shape = {8, 2, 4, 2, 6};
    struct kt *kt = *state;
    struct rk_latent_kv_args args = make_args(kt, &shape, RK_DTYPE_F32);
    struct rk_latent_kv_args bad = args;

    bad.kv = random_3d(kt, RK_DTYPE_F32, 8, 2, 11);
    assert_fails(rk_latent_kv(kt->stream, &bad), RK_INVALID_ARGUMENT, "latent_kv: kv has 11 columns");
    bad = args;
    bad.rope = rk_tensor_merge_cols(random_3d(kt, RK_DTYPE_F32, 8, 1, 6));
    assert_fails(rk_latent_kv(kt->stream, &bad), RK_INVALID_ARGUMENT, "latent_kv: rope has 6 columns");
    bad = args;
    bad.k = kt_zeros_4d(kt, RK_DTYPE_F32, 2, 2, 3, 6);
    bad.v = kt_zeros_4d(kt, RK_DTYPE_F32, 2, 2, 3, 6);
    assert_fails(rk_latent_kv(kt->stream, &bad), RK_INVALID_ARGUMENT, "latent_kv: k has block_size=3");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        kt_test(test_latent_kv_equals_its_definition),   kt_test(test_batched_gemm_equals_loops),
        kt_test(test_gather_blocks_copies_by_the_table), kt_test(test_gather_blocks_beyond_the_cache_fails),
        kt_test(test_latent_kv_of_other_widths_fails),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
