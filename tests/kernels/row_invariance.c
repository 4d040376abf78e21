/* Goal: a row does not depend on the other rows of the call, bit for bit. Method: every row-wise operator
 * runs over all rows, then over each row, or each sequence, alone. (Strict GEMM: cases_gemm.c; paged
 * attention: cases_paged.c.) */
#include "tests/kernels/kernel_test.h"

#define ROWS 9
#define COLS 37

static const rk_dtype_t dtypes[] = {RK_DTYPE_F32, RK_DTYPE_BF16};

static rk_tensor_t random_2d(struct kt *kt, rk_dtype_t dtype, int64_t rows, int64_t cols)
{
    return kt_randomize(kt, kt_zeros_2d(kt, dtype, rows, cols), 1.0);
}

/* The tensors of one operator, row by row. */
struct rows {
    rk_tensor_t in[4], weight, labels, out[2], stat;
    rk_tensor_t cos, sin;
};

static rk_tensor_t stat_rows(rk_tensor_t stat, int64_t begin, int64_t count)
{
    return rk_tensor_1d((char *)stat.data + (size_t)begin * rk_dtype_bytes(stat.dtype), stat.dtype, count);
}

static struct rows slice(const struct rows *all, int64_t begin, int64_t count)
{
    struct rows part = *all;

    for (int i = 0; i < 4; i++)
        part.in[i] = rk_tensor_rows(all->in[i], begin, count);
    for (int i = 0; i < 2; i++)
        part.out[i] = rk_tensor_rows(all->out[i], begin, count);
    part.labels = stat_rows(all->labels, begin, count);
    part.stat = stat_rows(all->stat, begin, count);
    return part;
}

static struct rk_status *run_rmsnorm_fwd(struct kt *kt, const struct rows *r)
{
    return rk_rmsnorm_fwd(kt->stream, &(struct rk_rmsnorm_fwd_args){.y = r->out[0],
                                                                    .x = r->in[0],
                                                                    .residual = r->in[1],
                                                                    .sum = r->out[1],
                                                                    .weight = r->weight,
                                                                    .eps = 1e-5f});
}

static struct rk_status *run_rmsnorm_bwd(struct kt *kt, const struct rows *r)
{
    return rk_rmsnorm_bwd(kt->stream,
                          &(struct rk_rmsnorm_bwd_args){.dx = r->out[0],
                                                        .dweight = kt_zeros_1d(kt, RK_DTYPE_F32, COLS),
                                                        .dy = r->in[0],
                                                        .x = r->in[1],
                                                        .dresidual = r->in[2],
                                                        .weight = r->weight,
                                                        .rstd = r->stat});
}

static struct rk_status *run_swiglu_fwd(struct kt *kt, const struct rows *r)
{
    return rk_swiglu_fwd(kt->stream,
                         &(struct rk_swiglu_fwd_args){.y = r->out[0], .gate = r->in[0], .up = r->in[1]});
}

static struct rk_status *run_swiglu_bwd(struct kt *kt, const struct rows *r)
{
    return rk_swiglu_bwd(
        kt->stream,
        &(struct rk_swiglu_bwd_args){
            .dgate = r->out[0], .dup = r->out[1], .dy = r->in[0], .gate = r->in[1], .up = r->in[2]});
}

/* The gradient of the probabilities is widened into a column of an output. */
static struct rk_status *run_weighted_swiglu(struct kt *kt, const struct rows *r)
{
    int64_t num_rows = r->in[0].shape[0];
    rk_tensor_t dprobs = kt_zeros_1d(kt, RK_DTYPE_F32, num_rows);

    RK_TRY(rk_swiglu_bwd(kt->stream, &(struct rk_swiglu_bwd_args){.dgate = r->out[0],
                                                                  .dup = r->out[1],
                                                                  .dy = r->in[0],
                                                                  .gate = r->in[1],
                                                                  .up = r->in[2],
                                                                  .probs = r->stat,
                                                                  .dprobs = dprobs}));
    return rk_copy_2d(kt->stream,
                      &(struct rk_copy_2d_args){rk_tensor_cols(r->out[0], 0, 1),
                                                rk_tensor_2d(dprobs.data, RK_DTYPE_F32, num_rows, 1)});
}

/* COLS columns are one head of COLS - 1; RoPE is in place in a copy. */
static struct rk_status *run_rope(struct kt *kt, const struct rows *r)
{
    rk_tensor_t x = rk_tensor_cols(r->out[0], 0, COLS - 1);

    kt_write(kt, r->out[0], kt_read(kt, r->in[0]));
    return rk_rope(kt->stream, &(struct rk_rope_args){.x = rk_tensor_split_cols(x, 1, COLS - 1),
                                                      .cos = r->cos,
                                                      .sin = r->sin,
                                                      .positions = r->labels});
}

/* The gradient, from the statistics of the same call. */
static struct rk_status *run_vocab_stats(struct kt *kt, const struct rows *r)
{
    int64_t num_rows = r->in[0].shape[0];
    rk_tensor_t stats = kt_zeros_2d(kt, RK_DTYPE_F64, num_rows, 4);
    rk_tensor_t squares = kt_zeros_1d(kt, RK_DTYPE_F64, num_rows);

    RK_TRY(rk_vocab_stats(kt->stream, &(struct rk_vocab_stats_args){.stats = stats,
                                                                    .squares = squares,
                                                                    .logits = r->in[0],
                                                                    .labels = r->labels,
                                                                    .num_valid = COLS,
                                                                    .inv_temperature = 0.7f}));
    return rk_vocab_stats_bwd(kt->stream, &(struct rk_vocab_stats_bwd_args){.dlogits = r->out[0],
                                                                            .logits = r->in[0],
                                                                            .stats = stats,
                                                                            .squares = squares,
                                                                            .dlog_probs = r->stat,
                                                                            .dentropy = r->stat,
                                                                            .dsum_pi_squared = r->stat,
                                                                            .labels = r->labels,
                                                                            .num_valid = COLS,
                                                                            .inv_temperature = 0.7f});
}

static const struct {
    const char *label;
    struct rk_status *(*run)(struct kt *kt, const struct rows *rows);
} operators[] = {
    {"rmsnorm_fwd", run_rmsnorm_fwd},
    {"rmsnorm_bwd", run_rmsnorm_bwd},
    {"swiglu_fwd", run_swiglu_fwd},
    {"swiglu_bwd", run_swiglu_bwd},
    {"swiglu_bwd with probs", run_weighted_swiglu},
    {"rope", run_rope},
    {"vocab_stats", run_vocab_stats},
};

static struct rows make_rows(struct kt *kt, rk_dtype_t dtype)
{
    struct rows rows = {
        .weight = kt_randomize(kt, kt_zeros_1d(kt, dtype, COLS), 1.0),
        .labels = kt_random_ints(kt, ROWS, COLS),
        .stat = kt_randomize(kt, kt_zeros_1d(kt, RK_DTYPE_F32, ROWS), 1.0),
        .cos = kt_randomize(kt, kt_zeros_2d(kt, RK_DTYPE_F32, COLS, (COLS - 1) / 2), 1.0),
        .sin = kt_randomize(kt, kt_zeros_2d(kt, RK_DTYPE_F32, COLS, (COLS - 1) / 2), 1.0),
    };

    for (int i = 0; i < 4; i++)
        rows.in[i] = random_2d(kt, dtype, ROWS, COLS);
    for (int i = 0; i < 2; i++)
        rows.out[i] = kt_zeros_2d(kt, dtype, ROWS, COLS);
    return rows;
}

static void test_row_wise_operators_row_alone_has_same_bits(void **state)
{
    struct kt *kt = *state;

    for (size_t i = 0; i < RK_ARRAY_LEN(operators) * RK_ARRAY_LEN(dtypes); i++) {
        size_t op = i / RK_ARRAY_LEN(dtypes);
        struct rows all, alone;

        if (!rk_test_in_part())
            continue;
        alone = all = make_rows(kt, dtypes[i % RK_ARRAY_LEN(dtypes)]);
        for (int o = 0; o < 2; o++)
            alone.out[o] = kt_zeros_2d(kt, all.out[o].dtype, ROWS, COLS);
        assert_ok(operators[op].run(kt, &all));
        for (int64_t t = 0; t < ROWS; t++) {
            struct rows row = slice(&alone, t, 1);

            assert_ok(operators[op].run(kt, &row));
        }
        for (int o = 0; o < 2; o++)
            kt_expect_same_bits(kt, operators[op].label, alone.out[o], all.out[o]);
    }
}

#define NUM_SEQS 3

static const int32_t cu_seqlens[NUM_SEQS + 1] = {0, 21, 26, 60};

static rk_tensor_t random_heads(struct kt *kt, rk_dtype_t dtype, int64_t heads)
{
    return kt_randomize(kt, kt_zeros_3d(kt, dtype, cu_seqlens[NUM_SEQS], heads, 12), 1.0);
}

static struct rk_attn_varlen_bwd_args make_attention(struct kt *kt, rk_dtype_t dtype)
{
    return (struct rk_attn_varlen_bwd_args){
        .fwd =
            {
                .out = random_heads(kt, dtype, 4),
                .lse = kt_zeros_2d(kt, RK_DTYPE_F32, 4, cu_seqlens[NUM_SEQS]),
                .q = random_heads(kt, dtype, 4),
                .k = random_heads(kt, dtype, 2),
                .v = random_heads(kt, dtype, 2),
                .cu_seqlens = kt_ints(kt, cu_seqlens, NUM_SEQS + 1),
                .max_seqlen = 40,
                .scale = 0.3f,
            },
        .dq = random_heads(kt, dtype, 4),
        .dk = random_heads(kt, dtype, 2),
        .dv = random_heads(kt, dtype, 2),
        .dout = random_heads(kt, dtype, 4),
    };
}

/* Tokens begin.. of every tensor, as a separate sequence with its own outputs. */
static struct rk_attn_varlen_bwd_args one_sequence(struct kt *kt, const struct rk_attn_varlen_bwd_args *all,
                                                   int32_t begin, int32_t count)
{
    const int32_t bounds[2] = {0, count};
    struct rk_attn_varlen_bwd_args args = make_attention(kt, all->dq.dtype);

    args.fwd.out = rk_tensor_rows(args.fwd.out, 0, count);
    args.fwd.lse = kt_zeros_2d(kt, RK_DTYPE_F32, 4, count);
    args.fwd.q = rk_tensor_rows(all->fwd.q, begin, count);
    args.fwd.k = rk_tensor_rows(all->fwd.k, begin, count);
    args.fwd.v = rk_tensor_rows(all->fwd.v, begin, count);
    args.fwd.cu_seqlens = kt_ints(kt, bounds, 2);
    args.dq = rk_tensor_rows(args.dq, 0, count);
    args.dk = rk_tensor_rows(args.dk, 0, count);
    args.dv = rk_tensor_rows(args.dv, 0, count);
    args.dout = rk_tensor_rows(all->dout, begin, count);
    return args;
}

static void test_attn_varlen_sequence_alone_has_same_bits(void **state)
{
    struct kt *kt = *state;

    for (size_t d = 0; d < RK_ARRAY_LEN(dtypes); d++) {
        struct rk_attn_varlen_bwd_args all = make_attention(kt, dtypes[d]);

        assert_ok(rk_attn_varlen_fwd(kt->stream, &all.fwd));
        assert_ok(rk_attn_varlen_bwd(kt->stream, &all));
        for (int s = 0; s < NUM_SEQS; s++) {
            int32_t begin = cu_seqlens[s], count = cu_seqlens[s + 1] - begin;
            struct rk_attn_varlen_bwd_args alone = one_sequence(kt, &all, begin, count);

            assert_ok(rk_attn_varlen_fwd(kt->stream, &alone.fwd));
            assert_ok(rk_attn_varlen_bwd(kt->stream, &alone));
            kt_expect_same_bits(kt, "out", alone.fwd.out, rk_tensor_rows(all.fwd.out, begin, count));
            kt_expect_same_bits(kt, "lse", alone.fwd.lse, rk_tensor_cols(all.fwd.lse, begin, count));
            kt_expect_same_bits(kt, "dq", alone.dq, rk_tensor_rows(all.dq, begin, count));
            kt_expect_same_bits(kt, "dk", alone.dk, rk_tensor_rows(all.dk, begin, count));
            kt_expect_same_bits(kt, "dv", alone.dv, rk_tensor_rows(all.dv, begin, count));
        }
    }
}

#define SPLIT_TOKENS 700
#define NUM_PARTS    8

/* Where the queries of a sequence are split: at block bounds, next to them, and twice at one position. */
static const int32_t part_bounds[NUM_PARTS + 1] = {0, 1, 130, 130, 384, 387, 513, 699, SPLIT_TOKENS};

static struct rk_attn_varlen_args make_split(struct kt *kt, rk_dtype_t dtype, int32_t head_dim)
{
    return (struct rk_attn_varlen_args){
        .out = kt_zeros_3d(kt, dtype, SPLIT_TOKENS, 2, head_dim),
        .lse = kt_zeros_2d(kt, RK_DTYPE_F32, 2, SPLIT_TOKENS),
        .q = kt_randomize(kt, kt_zeros_3d(kt, dtype, SPLIT_TOKENS, 2, head_dim), 1.0),
        .k = kt_randomize(kt, kt_zeros_3d(kt, dtype, SPLIT_TOKENS, 1, head_dim), 1.0),
        .v = kt_randomize(kt, kt_zeros_3d(kt, dtype, SPLIT_TOKENS, 1, head_dim), 1.0),
        .cu_seqlens = kt_ints(kt, (const int32_t[]){0, SPLIT_TOKENS}, 2),
        .max_seqlen = SPLIT_TOKENS,
        .scale = 0.3f,
    };
}

/* Goal: a query does not depend on the other queries in its segment, bit for bit. */
static void test_attn_varlen_queries_split_have_same_bits(void **state)
{
    static const int32_t head_dims[] = {12, 64, 96, 128}, zeros[NUM_PARTS] = {0};
    struct kt *kt = *state;

    for (size_t i = 0; i < RK_ARRAY_LEN(head_dims) * RK_ARRAY_LEN(dtypes); i++) {
        struct rk_attn_varlen_args whole, split;

        if (!rk_test_in_part())
            continue;
        whole = make_split(kt, dtypes[i % RK_ARRAY_LEN(dtypes)], head_dims[i / RK_ARRAY_LEN(dtypes)]);
        whole.window = i % 3 ? 0 : 200;
        split = whole;
        split.out = kt_zeros_3d(kt, whole.q.dtype, SPLIT_TOKENS, 2, whole.q.shape[2]);
        split.lse = kt_zeros_2d(kt, RK_DTYPE_F32, 2, SPLIT_TOKENS);
        split.cu_seqlens = kt_ints(kt, part_bounds, NUM_PARTS + 1);
        split.k_begin = kt_ints(kt, zeros, NUM_PARTS);
        split.k_lens = kt_ints(kt, part_bounds + 1, NUM_PARTS);
        assert_ok(rk_attn_varlen_fwd(kt->stream, &whole));
        assert_ok(rk_attn_varlen_fwd(kt->stream, &split));
        kt_expect_same_bits(kt, "out", split.out, whole.out);
        kt_expect_same_bits(kt, "lse", split.lse, whole.lse);
    }
}

/* Goal: the token of a row depends on the row and its parameters only. Method: rows in another order. */
static void test_sample_rows_in_other_order_have_same_bits(void **state)
{
    enum { NUM_ROWS = 50, VOCAB = 41 };
    const int32_t num_rows = rk_test_is_quick() ? 10 : NUM_ROWS;
    struct kt *kt = *state;
    struct rk_sample_params params[NUM_ROWS] = {0}, reversed[NUM_ROWS] = {0};
    rk_tensor_t memory = kt_zeros_1d(kt, RK_DTYPE_U8, (int64_t)sizeof(params));
    rk_tensor_t logits = random_2d(kt, RK_DTYPE_F32, num_rows, VOCAB);
    rk_tensor_t moved = kt_zeros_2d(kt, RK_DTYPE_F32, num_rows, VOCAB);
    int32_t order[NUM_ROWS];
    const int32_t *tokens[2];
    struct rk_sample_args args = {
        .log_probs = kt_zeros_1d(kt, RK_DTYPE_F32, num_rows), .vocab_size = VOCAB, .params = memory.data};

    if (!rk_test_in_part())
        rk_test_skip("belongs to another part");
    for (int32_t r = 0; r < num_rows; r++) {
        params[r] = (struct rk_sample_params){.temperature = 1.0f,
                                              .top_k = r % 3 ? 0 : 7,
                                              .top_p = r % 5 ? 1.0f : 0.8f,
                                              .position = r / 2,
                                              .seed = 5,
                                              .stream = (uint64_t)r};
        reversed[num_rows - 1 - r] = params[r];
        order[r] = num_rows - 1 - r;
    }
    assert_ok(rk_gather_rows(
        kt->stream,
        &(struct rk_rows_args){.out = moved, .x = logits, .index = kt_ints(kt, order, num_rows)}));
    for (int pass = 0; pass < 2; pass++) {
        args.logits = pass ? moved : logits;
        args.tokens = kt_zeros_1d(kt, RK_DTYPE_I32, num_rows);
        assert_ok(
            rk_stream_copy(kt->stream, memory.data, pass ? reversed : params, sizeof(params), RK_COPY_H2D));
        assert_ok(rk_sample(kt->stream, &args));
        tokens[pass] = kt_read_ints(kt, args.tokens);
    }
    for (int32_t r = 0; r < num_rows; r++)
        assert_int_equal(tokens[0][r], tokens[1][num_rows - 1 - r]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        kt_test(test_row_wise_operators_row_alone_has_same_bits),
        kt_test(test_attn_varlen_sequence_alone_has_same_bits),
        kt_test(test_attn_varlen_queries_split_have_same_bits),
        kt_test(test_sample_rows_in_other_order_have_same_bits),
    };

    return cmocka_run_group_tests_name("kernels/row_invariance", tests, NULL, NULL);
}
