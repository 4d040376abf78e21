/* Goal: attention with separate key ranges equals attention over the whole sequences: with a zig-zag split
 * over cp ranks every query is bit-identical, and the gradients of all ranks sum to those of the whole.
 * Method: compares with one call over all, which cases_attention.c compares with the definition. Keys are at
 * odd rows between rows of NaN, which the operator must neither read nor write. */
#include "tests/kernels/kernel_test.h"

#include <math.h>

#include "base/layout/rk_zigzag.h"

#define MAX_SEQS 4
#define MAX_ROWS 1024
#define GAP      3 /* rows of NaN before each sequence's keys and after the last */

struct split_case {
    const char *label;
    int32_t cp_size, num_seqs, cu_seqlens[MAX_SEQS + 1];
    int32_t num_heads, num_kv_heads, head_dim, window;
    int32_t v_head_dim; /* 0: head_dim */
};

static int64_t v_dim_of(const struct split_case *c)
{
    return c->v_head_dim ? c->v_head_dim : c->head_dim;
}

static const struct split_case cases[] = {
    {"cp 2, lengths 16 and 64", 2, 2, {0, 16, 80}, 2, 1, 20, 0, 0},
    {"cp 4, lengths 16 and 64", 4, 2, {0, 16, 80}, 2, 2, 12, 0, 0},
    {"cp 2, 1 and 37 padded, empty", 2, 3, {0, 4, 4, 44}, 4, 2, 20, 0, 0},
    {"cp 4, 1 and 37 padded, empty", 4, 3, {0, 8, 8, 48}, 4, 2, 20, 0, 0},
    {"cp 2, window", 2, 2, {0, 64, 80}, 2, 1, 16, 21, 0},
    {"cp 4, window of one", 4, 1, {0, 40}, 1, 1, 12, 1, 0},
    {"cp 1", 1, 2, {0, 38, 40}, 2, 1, 16, 0, 0},
    {"cp 2, head of 128, two splits", 2, 2, {0, 548, 552}, 1, 1, 128, 0, 0},
    {"cp 4, head of 128, group, window", 4, 2, {0, 8, 312}, 2, 1, 128, 150, 0},
    {"cp 2, head of 64", 2, 3, {0, 140, 144, 288}, 4, 2, 64, 0, 0},
    {"cp 4, head of 64, window", 4, 1, {0, 280}, 2, 2, 64, 50, 0},
    {"cp 2, head of 96", 2, 1, {0, 280}, 2, 1, 96, 0, 0},
    {"cp 2, head of 32, window", 2, 2, {0, 100, 200}, 2, 2, 32, 40, 0},
    {"cp 2, head of 256", 2, 1, {0, 132}, 1, 1, 256, 0, 0},
    {"cp 2, values narrower", 2, 2, {0, 16, 80}, 2, 1, 24, 0, 16},
    {"cp 2, values wider, window", 2, 2, {0, 16, 80}, 4, 2, 12, 21, 20},
    {"cp 4, heads of 192 and 128", 4, 2, {0, 8, 88}, 2, 2, 192, 0, 128},
    {"cp 2, heads of 192 and 128, group, window", 2, 2, {0, 100, 300}, 2, 1, 192, 90, 128},
};

/* Half precision and F64 differ from the others only in loads and stores, for which short sequences
 * suffice. */
static bool runs_in(struct kt *kt, const struct split_case *c, rk_dtype_t dtype)
{
    bool is_short = c->cu_seqlens[c->num_seqs] <= 100;

    return !kt_is_cpu_only(kt, dtype) && (is_short || dtype == RK_DTYPE_F32 || dtype == RK_DTYPE_BF16) &&
           rk_test_in_part();
}

static struct rk_zigzag cut_of(const struct split_case *c)
{
    return (struct rk_zigzag){c->cp_size, c->num_seqs, c->cu_seqlens};
}

static rk_tensor_t random_heads(struct kt *kt, rk_dtype_t dtype, int64_t rows, int64_t heads, int64_t dim)
{
    return kt_randomize(kt, kt_zeros_3d(kt, dtype, rows, heads, dim), 1.0);
}

/* Two tensors side by side in one allocation, so that rows have gaps. */
static void make_pair(struct kt *kt, const struct rk_attn_varlen_args *like, int64_t rows, rk_tensor_t out[2])
{
    int64_t heads = like->k.shape[1], dims[2] = {like->k.shape[2], like->v.shape[2]};
    rk_tensor_t both = kt_randomize(kt, kt_zeros_2d(kt, like->k.dtype, rows, heads * (dims[0] + dims[1])),
                                    1.0); /* to be overwritten */

    for (int i = 0; i < 2; i++)
        out[i] =
            rk_tensor_split_cols(rk_tensor_cols(both, i * heads * dims[0], heads * dims[i]), heads, dims[i]);
}

/* Attention over all sequences, with its gradients. */
static struct rk_attn_varlen_bwd_args make_whole(struct kt *kt, const struct split_case *c, rk_dtype_t dtype)
{
    int64_t rows = c->cu_seqlens[c->num_seqs], dim = c->head_dim, v_dim = v_dim_of(c);
    struct rk_attn_varlen_bwd_args whole = {
        .fwd =
            {
                .out = kt_zeros_3d(kt, dtype, rows, c->num_heads, v_dim),
                .lse = kt_zeros_2d(kt, kt_stat_dtype(dtype), c->num_heads, rows),
                .q = random_heads(kt, dtype, rows, c->num_heads, dim),
                .k = random_heads(kt, dtype, rows, c->num_kv_heads, dim),
                .v = random_heads(kt, dtype, rows, c->num_kv_heads, v_dim),
                .cu_seqlens = kt_ints(kt, c->cu_seqlens, c->num_seqs + 1),
                .max_seqlen = (int32_t)rows,
                .window = c->window,
                .scale = 0.3f,
            },
        .dq = kt_zeros_3d(kt, dtype, rows, c->num_heads, dim),
        .dk = kt_zeros_3d(kt, dtype, rows, c->num_kv_heads, dim),
        .dv = kt_zeros_3d(kt, dtype, rows, c->num_kv_heads, v_dim),
        .dout = random_heads(kt, dtype, rows, c->num_heads, v_dim),
    };

    assert_ok(rk_attn_varlen_fwd(kt->stream, &whole.fwd));
    assert_ok(rk_attn_varlen_bwd(kt->stream, &whole));
    return whole;
}

static rk_tensor_t select_rows(struct kt *kt, rk_tensor_t t, const int32_t *rows, int64_t count)
{
    int64_t width = rk_tensor_row_elements(t);
    const double *all = kt_read(kt, t);
    double *some = kt_scratch(kt, count * width);
    rk_tensor_t out = kt_zeros_3d(kt, t.dtype, count, t.shape[1], t.shape[2]);

    for (int64_t i = 0; i < count * width; i++)
        some[i] = all[rows[i / width] * width + i % width];
    kt_write(kt, out, some);
    return out;
}

/* Row of the spread keys that has row i of the packed ones. */
static int32_t spread_row(const struct split_case *c, int32_t i)
{
    int32_t seq = 0;

    while (c->cu_seqlens[seq + 1] <= i)
        seq++;
    return i + GAP * (seq + 1);
}

static int32_t num_spread(const struct split_case *c)
{
    return c->cu_seqlens[c->num_seqs] + GAP * (c->num_seqs + 1);
}

/* Copies the keys of t to `out`, with NaN between them. */
static void spread_keys(struct kt *kt, const struct split_case *c, rk_tensor_t out, rk_tensor_t t)
{
    int64_t width = rk_tensor_row_elements(t);
    const double *packed = kt_read(kt, t);
    double *spread = kt_scratch(kt, num_spread(c) * width);

    for (int64_t i = 0; i < num_spread(c) * width; i++)
        spread[i] = NAN;
    for (int32_t i = 0; i < c->cu_seqlens[c->num_seqs]; i++) {
        for (int64_t x = 0; x < width; x++)
            spread[spread_row(c, i) * width + x] = packed[i * width + x];
    }
    kt_write(kt, out, spread);
}

/* One rank's queries, and the corresponding rows of the whole call. */
struct rank_part {
    const struct split_case *c;
    int32_t rank, num_rows;
    int32_t rows[MAX_ROWS]; /* of the whole call */
    struct rk_attn_varlen_bwd_args args;
    rk_tensor_t dkv[2];
};

static struct rank_part make_part(struct kt *kt, const struct split_case *c, int32_t rank,
                                  const struct rk_attn_varlen_bwd_args *whole)
{
    const struct rk_zigzag cut = cut_of(c);
    struct rank_part part = {.c = c, .rank = rank, .num_rows = rk_zigzag_num_rows(&cut), .args = *whole};
    rk_tensor_t kv[2], q = whole->fwd.q;

    assert_true(part.num_rows <= MAX_ROWS);
    rk_zigzag_rows(&cut, rank, part.rows);
    part.args.fwd.q = select_rows(kt, q, part.rows, part.num_rows);
    part.args.dout = select_rows(kt, whole->dout, part.rows, part.num_rows);
    part.args.fwd.out = random_heads(kt, q.dtype, part.num_rows, q.shape[1], v_dim_of(c));
    part.args.dq = random_heads(kt, q.dtype, part.num_rows, q.shape[1], q.shape[2]);
    part.args.fwd.lse = kt_zeros_2d(kt, kt_stat_dtype(q.dtype), q.shape[1], part.num_rows);
    make_pair(kt, &whole->fwd, num_spread(c), kv);
    spread_keys(kt, c, kv[0], whole->fwd.k);
    spread_keys(kt, c, kv[1], whole->fwd.v);
    part.args.fwd.k = kv[0];
    part.args.fwd.v = kv[1];
    make_pair(kt, &whole->fwd, num_spread(c), part.dkv);
    part.args.dk = part.dkv[0];
    part.args.dv = part.dkv[1];
    return part;
}

/* Selects the segments that a call computes. */
static void take_halves(struct kt *kt, struct rank_part *part, unsigned halves)
{
    const struct rk_zigzag cut = cut_of(part->c);
    int32_t cu_seqlens[2 * MAX_SEQS + 1], k_begin[2 * MAX_SEQS], k_lens[2 * MAX_SEQS];
    struct rk_zigzag_segments segments = {cu_seqlens, k_begin, k_lens};
    int32_t num_segments = 2 * cut.num_seqs;

    rk_zigzag_list_segments(&cut, part->rank, halves, &segments);
    for (int32_t i = 0; i < num_segments; i++)
        k_begin[i] = k_lens[i] ? k_begin[i] + GAP * (i / 2 + 1) : -1;
    part->args.fwd.cu_seqlens = kt_ints(kt, cu_seqlens, num_segments + 1);
    part->args.fwd.k_begin = kt_ints(kt, k_begin, num_segments);
    part->args.fwd.k_lens = kt_ints(kt, k_lens, num_segments);
}

static void expect_whole_forward(struct kt *kt, const struct rank_part *part,
                                 const struct rk_attn_varlen_bwd_args *whole)
{
    const char *label = part->c->label;
    const double *lse = kt_read(kt, part->args.fwd.lse), *all = kt_read(kt, whole->fwd.lse);
    int64_t num_all = whole->fwd.lse.shape[1];

    kt_expect_same_bits(kt, label, part->args.fwd.out,
                        select_rows(kt, whole->fwd.out, part->rows, part->num_rows));
    for (int64_t h = 0; h < part->c->num_heads; h++) {
        for (int32_t i = 0; i < part->num_rows; i++)
            assert_true(lse[h * part->num_rows + i] == all[h * num_all + part->rows[i]]);
    }
}

/* Both halves in one call, or in two calls, each of which leaves the other half's rows unchanged. */
static void run_forward(struct kt *kt, struct rank_part *part, const struct rk_attn_varlen_bwd_args *whole)
{
    take_halves(kt, part, RK_ZIGZAG_BOTH);
    assert_ok(rk_attn_varlen_fwd(kt->stream, &part->args.fwd));
    expect_whole_forward(kt, part, whole);
    kt_randomize(kt, part->args.fwd.out, 1.0);
    kt_randomize(kt, part->args.fwd.lse, 1.0);
    take_halves(kt, part, RK_ZIGZAG_LATE);
    assert_ok(rk_attn_varlen_fwd(kt->stream, &part->args.fwd));
    take_halves(kt, part, RK_ZIGZAG_EARLY);
    assert_ok(rk_attn_varlen_fwd(kt->stream, &part->args.fwd));
    expect_whole_forward(kt, part, whole);
}

/* Sums of dk or dv over the calls, by row of the whole call, and of their absolute values. */
struct kv_sums {
    double *sum, *size;
};

static struct kv_sums make_sums(struct kt *kt, rk_tensor_t like)
{
    int64_t count = rk_tensor_num_elements(like);

    return (struct kv_sums){kt_scratch(kt, count), kt_scratch(kt, count)};
}

static void add_call(struct kt *kt, const struct split_case *c, struct kv_sums *sums, rk_tensor_t spread)
{
    int64_t width = rk_tensor_row_elements(spread);
    const double *values = kt_read(kt, spread);
    bool is_key[MAX_ROWS] = {0};

    assert_true(num_spread(c) <= MAX_ROWS);

    for (int32_t i = 0; i < c->cu_seqlens[c->num_seqs]; i++) {
        is_key[spread_row(c, i)] = true;
        for (int64_t x = 0; x < width; x++) {
            double value = values[spread_row(c, i) * width + x];

            sums->sum[i * width + x] += value;
            sums->size[i * width + x] += fabs(value);
        }
    }
    for (int64_t i = 0; i < num_spread(c) * width; i++)
        assert_true(is_key[i / width] || values[i] == 0.0);
}

/* Every tensor in the sum was rounded once, like the whole one. */
static void expect_sums(struct kt *kt, const struct split_case *c, const struct kv_sums *sums, rk_tensor_t t)
{
    static const double roundings[RK_DTYPE_COUNT] = {[RK_DTYPE_F64] = RK_TOL_F64_SUM,
                                                     [RK_DTYPE_F32] = RK_TOL_F32_ELEMENT,
                                                     [RK_DTYPE_BF16] = RK_TOL_BF16_ROUND,
                                                     [RK_DTYPE_F16] = RK_TOL_F16_ROUND};
    double order = t.dtype == RK_DTYPE_F64 ? RK_TOL_F64_SUM : RK_TOL_F32_SUM, largest = 0.0, worst = 0.0;
    const double *whole = kt_read(kt, t);

    for (int64_t i = 0; i < rk_tensor_num_elements(t); i++)
        largest = fmax(largest, fabs(whole[i]));
    for (int64_t i = 0; i < rk_tensor_num_elements(t); i++) {
        double allowed = roundings[t.dtype] * (sums->size[i] + fabs(whole[i])) + order * largest;

        assert_true(isfinite(sums->sum[i]));
        worst = fmax(worst, fabs(sums->sum[i] - whole[i]) / allowed);
    }
    assert_below(kt_label(kt, c->label, t.dtype), worst, 1.0);
}

static void run_backward(struct kt *kt, struct rank_part *part, const struct rk_attn_varlen_bwd_args *whole,
                         struct kv_sums sums[2])
{
    static const unsigned halves[2] = {RK_ZIGZAG_EARLY, RK_ZIGZAG_LATE};
    rk_tensor_t dq;

    for (int i = 0; i < 2; i++) {
        take_halves(kt, part, halves[i]);
        kt_randomize(kt, part->args.dk, 1.0);
        kt_randomize(kt, part->args.dv, 1.0);
        assert_ok(rk_attn_varlen_bwd(kt->stream, &part->args));
        add_call(kt, part->c, &sums[0], part->args.dk);
        add_call(kt, part->c, &sums[1], part->args.dv);
    }
    dq = select_rows(kt, whole->dq, part->rows, part->num_rows);
    if (kt_is_cpu(kt))
        kt_expect_same_bits(kt, part->c->label, part->args.dq, dq);
    else
        kt_expect_close_attention(kt, part->c->label, part->args.dq, kt_read(kt, dq));
}

static void run_case(struct kt *kt, const struct split_case *c, rk_dtype_t dtype)
{
    struct rk_attn_varlen_bwd_args whole = make_whole(kt, c, dtype);
    struct kv_sums sums[2] = {make_sums(kt, whole.dk), make_sums(kt, whole.dv)};

    for (int32_t r = 0; r < c->cp_size; r++) {
        struct rank_part part = make_part(kt, c, r, &whole);

        run_forward(kt, &part, &whole);
        run_backward(kt, &part, &whole, sums);
    }
    expect_sums(kt, c, &sums[0], whole.dk);
    expect_sums(kt, c, &sums[1], whole.dv);
}

static void test_attn_varlen_zigzag_ranks_equal_whole(void **state)
{
    struct kt *kt = *state;

    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        for (size_t d = 0; d < RK_ARRAY_LEN(kt_dtypes); d++) {
            if (runs_in(kt, &cases[i], kt_dtypes[d]))
                run_case(kt, &cases[i], kt_dtypes[d]);
        }
    }
}

/* Goal: k_begin and k_lens equal to the default change no bit, forward or backward. */
static void test_attn_varlen_own_keys_named_same_bits(void **state)
{
    struct kt *kt = *state;

    for (size_t i = 0; i < RK_ARRAY_LEN(cases) * RK_ARRAY_LEN(kt_dtypes); i++) {
        const struct split_case *c = &cases[i / RK_ARRAY_LEN(kt_dtypes)];
        rk_dtype_t dtype = kt_dtypes[i % RK_ARRAY_LEN(kt_dtypes)];
        struct rk_attn_varlen_bwd_args whole, named;
        int32_t lengths[MAX_SEQS];

        if (!runs_in(kt, c, dtype))
            continue;
        for (int32_t s = 0; s < c->num_seqs; s++)
            lengths[s] = c->cu_seqlens[s + 1] - c->cu_seqlens[s];
        named = whole = make_whole(kt, c, dtype);
        named.fwd.k_begin = kt_ints(kt, c->cu_seqlens, c->num_seqs);
        named.fwd.k_lens = kt_ints(kt, lengths, c->num_seqs);
        named.fwd.out = random_heads(kt, dtype, whole.dq.shape[0], c->num_heads, v_dim_of(c));
        named.fwd.lse = kt_zeros_2d(kt, kt_stat_dtype(dtype), c->num_heads, whole.dq.shape[0]);
        named.dq = random_heads(kt, dtype, whole.dq.shape[0], c->num_heads, c->head_dim);
        named.dk = random_heads(kt, dtype, whole.dk.shape[0], c->num_kv_heads, c->head_dim);
        named.dv = random_heads(kt, dtype, whole.dk.shape[0], c->num_kv_heads, v_dim_of(c));
        assert_ok(rk_attn_varlen_fwd(kt->stream, &named.fwd));
        assert_ok(rk_attn_varlen_bwd(kt->stream, &named));
        kt_expect_same_bits(kt, c->label, named.fwd.out, whole.fwd.out);
        kt_expect_same_bits(kt, c->label, named.fwd.lse, whole.fwd.lse);
        kt_expect_same_bits(kt, c->label, named.dq, whole.dq);
        kt_expect_same_bits(kt, c->label, named.dk, whole.dk);
        kt_expect_same_bits(kt, c->label, named.dv, whole.dv);
    }
}

/* Two segments with head_dim 64; the first has `num_queries` of the 5 rows of q. */
static struct rk_attn_varlen_bwd_args make_two(struct kt *kt, rk_dtype_t dtype, int32_t num_queries,
                                               const int32_t k_begin[2], const int32_t k_lens[2])
{
    const int32_t cu_seqlens[3] = {0, num_queries, 5};

    return (struct rk_attn_varlen_bwd_args){
        .fwd =
            {
                .out = random_heads(kt, dtype, 5, 2, 64),
                .lse = kt_randomize(kt, kt_zeros_2d(kt, kt_stat_dtype(dtype), 2, 5), 1.0),
                .q = random_heads(kt, dtype, 5, 2, 64),
                .k = random_heads(kt, dtype, 20, 1, 64),
                .v = random_heads(kt, dtype, 20, 1, 64),
                .cu_seqlens = kt_ints(kt, cu_seqlens, 3),
                .k_begin = kt_ints(kt, k_begin, 2),
                .k_lens = kt_ints(kt, k_lens, 2),
                .max_seqlen = 5,
                .scale = 0.3f,
            },
        .dq = random_heads(kt, dtype, 5, 2, 64),
        .dk = random_heads(kt, dtype, 20, 1, 64),
        .dv = random_heads(kt, dtype, 20, 1, 64),
        .dout = random_heads(kt, dtype, 5, 2, 64),
    };
}

static void expect_zero(struct kt *kt, rk_tensor_t t)
{
    const double *values = kt_read(kt, t);

    for (int64_t i = 0; i < rk_tensor_num_elements(t); i++)
        assert_true(values[i] == 0.0);
}

/* Goal: a call whose segments are all skipped, or have no queries, writes zeros to dk and dv and nothing
 * else. */
static void test_attn_varlen_nothing_to_see_leaves_rows(void **state)
{
    static const int32_t k_begin[2] = {3, 9}, skipped[2] = {0, 0}, no_queries[2] = {5, 0};
    struct kt *kt = *state;

    for (size_t i = 0; i < 3 * RK_ARRAY_LEN(kt_dtypes); i++) {
        rk_dtype_t dtype = kt_dtypes[i / 3];
        struct rk_attn_varlen_bwd_args args, before;

        if (kt_is_cpu_only(kt, dtype))
            continue;
        before = args = make_two(kt, dtype, i % 3 ? 0 : 2, k_begin, i % 3 ? no_queries : skipped);
        if (i % 3 == 2) { /* and no rows of q at all */
            args.fwd.q = rk_tensor_rows(args.fwd.q, 0, 0);
            args.fwd.out = rk_tensor_rows(args.fwd.out, 0, 0);
            args.dq = rk_tensor_rows(args.dq, 0, 0);
            args.dout = rk_tensor_rows(args.dout, 0, 0);
            args.fwd.lse = rk_tensor_2d(args.fwd.lse.data, args.fwd.lse.dtype, 2, 0);
            args.fwd.cu_seqlens = kt_ints(kt, (const int32_t[]){0, 0, 0}, 3);
        }
        before.fwd.out = select_rows(kt, before.fwd.out, (const int32_t[]){0, 1, 2, 3, 4}, 5);
        before.dq = select_rows(kt, before.dq, (const int32_t[]){0, 1, 2, 3, 4}, 5);
        assert_ok(rk_attn_varlen_fwd(kt->stream, &args.fwd));
        assert_ok(rk_attn_varlen_bwd(kt->stream, &args));
        kt_expect_same_bits(kt, "out", args.fwd.out, rk_tensor_rows(before.fwd.out, 0, args.dq.shape[0]));
        kt_expect_same_bits(kt, "dq", args.dq, rk_tensor_rows(before.dq, 0, args.dq.shape[0]));
        expect_zero(kt, args.dk);
        expect_zero(kt, args.dv);
    }
}

/* Goal: invalid key ranges are rejected; overlapping ones only in the backward pass.
 */
static void test_attn_varlen_bad_key_ranges_fail(void **state)
{
    static const struct {
        int32_t k_begin[2], k_lens[2];
        const char *text;
    } bad[] = {
        {{-1, 9}, {5, 5}, "k_begin[0]=-1, expected 0 to 20"},
        {{0, 21}, {5, 5}, "k_begin[1]=21, expected 0 to 20"},
        {{0, 9}, {1, 5}, "k_lens[0]=1, expected 0 or 2 to 20"},
        {{0, 9}, {-2, 5}, "k_lens[0]=-2, expected 0 or 2 to 20"},
        {{0, 9}, {5, 12}, "k_lens[1]=12, expected 0 or 3 to 11"},
    };
    static const int32_t apart[2] = {5, 0}, touching[2] = {3, 0}, lengths[2] = {4, 4};
    struct kt *kt = *state;
    struct rk_attn_varlen_bwd_args args;

    if (!kt_is_cpu(kt))
        rk_test_skip("only the CPU backend checks these arrays");
    for (size_t i = 0; i < RK_ARRAY_LEN(bad); i++) {
        args = make_two(kt, RK_DTYPE_F32, 2, bad[i].k_begin, bad[i].k_lens);
        assert_fails(rk_attn_varlen_fwd(kt->stream, &args.fwd), RK_INVALID_ARGUMENT, bad[i].text);
        assert_fails(rk_attn_varlen_bwd(kt->stream, &args), RK_INVALID_ARGUMENT, bad[i].text);
    }
    args = make_two(kt, RK_DTYPE_F32, 2, touching, lengths);
    assert_ok(rk_attn_varlen_fwd(kt->stream, &args.fwd));
    assert_fails(rk_attn_varlen_bwd(kt->stream, &args), RK_INVALID_ARGUMENT,
                 "keys 0 to 4 of segment 1 overlap those of segment 0");
    args = make_two(kt, RK_DTYPE_F32, 2, apart, lengths);
    assert_ok(rk_attn_varlen_fwd(kt->stream, &args.fwd));
    assert_ok(rk_attn_varlen_bwd(kt->stream, &args));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        kt_test(test_attn_varlen_zigzag_ranks_equal_whole),
        kt_test(test_attn_varlen_own_keys_named_same_bits),
        kt_test(test_attn_varlen_nothing_to_see_leaves_rows),
        kt_test(test_attn_varlen_bad_key_ranges_fail),
    };

    return cmocka_run_group_tests_name("kernels/attention_split", tests, NULL, NULL);
}
