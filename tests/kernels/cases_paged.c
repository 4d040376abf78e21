/* Goal: the paged cache has the written values, and attention over it is bit-identical to attention over the
 * packed sequence for every query, for every split of the sequence into calls and blocks. (The packed
 * operator is checked against the definition in cases_attention.c.) */
#include "tests/kernels/kernel_test.h"

#include <stdlib.h>
#include <string.h>

#define NUM_SEQS   3
#define MAX_BLOCKS 12
#define MAX_TOKENS 1024

struct paged_case {
    const char *label;
    int32_t lengths[NUM_SEQS];    /* of the sequences */
    int32_t new_tokens[NUM_SEQS]; /* the last ones, queried in the call */
    int32_t block_size, num_heads, num_kv_heads, head_dim, window;
    int32_t v_head_dim; /* 0: head_dim; < 0: that many columns of the keys, without v_cache */
};

static const struct paged_case cases[] = {
    {"decode", {20, 1, 7}, {1, 1, 1}, 4, 4, 2, 8, 0, 0},
    {"prefill of everything", {20, 5, 33}, {20, 5, 33}, 16, 2, 1, 20, 0, 0},
    {"chunk, nothing and decode", {37, 9, 12}, {10, 0, 1}, 8, 6, 2, 16, 0, 0},
    {"blocks of one token", {11, 3, 2}, {4, 1, 2}, 1, 2, 2, 4, 0, 0},
    {"block longer than a sequence", {9, 17, 4}, {9, 1, 2}, 32, 1, 1, 12, 0, 0},
    {"window, decode", {40, 21, 3}, {1, 1, 1}, 4, 2, 1, 8, 6, 0},
    {"window, chunks", {40, 21, 3}, {19, 21, 2}, 4, 2, 1, 8, 6, 0},
    {"head of 128, decode", {530, 1, 20}, {1, 1, 1}, 64, 2, 1, 128, 0, 0},
    {"head of 128, chunks", {280, 40, 9}, {150, 40, 2}, 64, 3, 1, 128, 0, 0},
    {"head of 64, window", {180, 130, 16}, {40, 1, 16}, 32, 2, 1, 64, 100, 0},
    {"head of 96, decode", {150, 20, 1}, {1, 1, 1}, 16, 2, 1, 96, 0, 0},
    {"head of 256, chunks", {140, 3, 5}, {13, 1, 5}, 16, 1, 1, 256, 0, 0},
    {"values narrower, chunk and decode", {37, 9, 12}, {10, 0, 1}, 8, 6, 2, 24, 0, 16},
    {"values wider, window", {40, 21, 3}, {19, 21, 2}, 4, 2, 1, 8, 6, 20},
    {"heads of 192 and 128, decode", {150, 20, 1}, {1, 1, 1}, 16, 2, 2, 192, 0, 128},
    {"heads of 192 and 128, chunks", {140, 3, 5}, {13, 1, 5}, 16, 2, 2, 192, 0, 128},
    {"values in the keys", {37, 9, 12}, {10, 0, 1}, 8, 6, 2, 24, 0, -16},
    {"values in the keys, window", {40, 21, 3}, {1, 21, 1}, 4, 2, 1, 12, 6, -12},
    {"latent, 576 and 512", {70, 20, 1}, {3, 1, 1}, 16, 4, 1, 576, 0, -512},
    {"values in the keys, head of 64", {180, 130, 16}, {1, 1, 1}, 16, 2, 1, 64, 0, -64},
};

struct paged_data {
    rk_tensor_t q, k, v; /* of the whole sequences, packed */
    int32_t cu_seqlens[NUM_SEQS + 1];
    int32_t blocks[NUM_SEQS][MAX_BLOCKS];
    rk_tensor_t slots; /* of every packed token */
    struct rk_kv_write_args write;
    struct rk_attn_paged_args paged;
    rk_tensor_t query_rows; /* rows of q in the paged call */
};

/* Assigns blocks from the last to the first, so that a sequence's blocks are neither contiguous nor
 * ascending. */
static void lay_out(const struct paged_case *c, struct paged_data *data, int32_t num_blocks, int32_t *slots)
{
    int32_t next = num_blocks - 1;

    for (int32_t b = 0; b < MAX_BLOCKS; b++) {
        for (int32_t r = 0; r < NUM_SEQS; r++)
            data->blocks[r][b] = b * c->block_size < c->lengths[r] ? next-- : -1;
    }
    for (int32_t r = 0; r < NUM_SEQS; r++) {
        data->cu_seqlens[r + 1] = data->cu_seqlens[r] + c->lengths[r];
        for (int32_t p = 0; p < c->lengths[r]; p++)
            slots[data->cu_seqlens[r] + p] =
                data->blocks[r][p / c->block_size] * c->block_size + p % c->block_size;
    }
}

static int64_t v_dim_of(const struct paged_case *c)
{
    return c->v_head_dim ? abs(c->v_head_dim) : c->head_dim;
}

static rk_tensor_t random_heads(struct kt *kt, rk_dtype_t dtype, int64_t tokens, int64_t heads,
                                int64_t head_dim)
{
    return kt_randomize(kt, kt_zeros_3d(kt, dtype, tokens, heads, head_dim), 1.0);
}

static void make_query(struct kt *kt, const struct paged_case *c, rk_dtype_t dtype, struct paged_data *data)
{
    int32_t cu_q[NUM_SEQS + 1] = {0}, rows[MAX_TOKENS], num_rows = 0;
    rk_tensor_t q;

    for (int32_t r = 0; r < NUM_SEQS; r++) {
        cu_q[r + 1] = cu_q[r] + c->new_tokens[r];
        for (int32_t i = c->new_tokens[r]; i > 0; i--)
            rows[num_rows++] = data->cu_seqlens[r + 1] - i;
    }
    data->query_rows = kt_ints(kt, rows, num_rows);
    q = kt_zeros_2d(kt, dtype, num_rows, c->num_heads * c->head_dim);
    assert_ok(rk_gather_rows(
        kt->stream,
        &(struct rk_rows_args){.out = q, .x = rk_tensor_merge_cols(data->q), .index = data->query_rows}));
    data->paged = (struct rk_attn_paged_args){
        .out = kt_zeros_3d(kt, dtype, num_rows, c->num_heads, v_dim_of(c)),
        .q = rk_tensor_split_cols(q, c->num_heads, c->head_dim),
        .k_cache = data->write.k_cache,
        .v_cache = data->write.v_cache,
        .block_table = kt_ints(kt, data->blocks[0], NUM_SEQS * MAX_BLOCKS),
        .cu_q = kt_ints(kt, cu_q, NUM_SEQS + 1),
        .seq_lens = kt_ints(kt, c->lengths, NUM_SEQS),
        .window = c->window,
        .scale = 0.3f,
    };
    data->paged.block_table = rk_tensor_2d(data->paged.block_table.data, RK_DTYPE_I32, NUM_SEQS, MAX_BLOCKS);
}

/* Copies the first columns of every head. */
static rk_tensor_t first_columns(struct kt *kt, rk_tensor_t heads, int64_t columns)
{
    int64_t rows = heads.shape[0] * heads.shape[1], head_dim = heads.shape[2];
    rk_tensor_t out = kt_zeros_3d(kt, heads.dtype, heads.shape[0], heads.shape[1], columns);
    const double *all = kt_read(kt, heads);
    double *some = kt_scratch(kt, rows * columns);

    for (int64_t i = 0; i < rows * columns; i++)
        some[i] = all[i / columns * head_dim + i % columns];
    kt_write(kt, out, some);
    return out;
}

static struct paged_data make_data(struct kt *kt, const struct paged_case *c, rk_dtype_t dtype)
{
    int32_t num_blocks = NUM_SEQS * MAX_BLOCKS, slots[MAX_TOKENS];
    struct paged_data data = {.cu_seqlens = {0}};
    int64_t num_tokens;

    lay_out(c, &data, num_blocks, slots);
    num_tokens = data.cu_seqlens[NUM_SEQS];
    data.q = random_heads(kt, dtype, num_tokens, c->num_heads, c->head_dim);
    data.k = random_heads(kt, dtype, num_tokens, c->num_kv_heads, c->head_dim);
    data.v = c->v_head_dim < 0 ? first_columns(kt, data.k, v_dim_of(c))
                               : random_heads(kt, dtype, num_tokens, c->num_kv_heads, v_dim_of(c));
    data.slots = kt_ints(kt, slots, num_tokens);
    data.write = (struct rk_kv_write_args){
        .k_cache = kt_zeros_4d(kt, dtype, num_blocks, c->num_kv_heads, c->block_size, c->head_dim),
        .k = data.k,
        .slot_mapping = data.slots,
    };
    if (c->v_head_dim >= 0) {
        data.write.v_cache = kt_zeros_4d(kt, dtype, num_blocks, c->num_kv_heads, c->block_size, v_dim_of(c));
        data.write.v = data.v;
    }
    assert_ok(rk_kv_write(kt->stream, &data.write));
    make_query(kt, c, dtype, &data);
    return data;
}

/* The expected results of the paged call: rows of packed attention. */
static rk_tensor_t packed_rows(struct kt *kt, const struct paged_case *c, const struct paged_data *data)
{
    struct rk_attn_varlen_args args = {
        .out = kt_zeros_3d(kt, data->q.dtype, data->q.shape[0], c->num_heads, v_dim_of(c)),
        .q = data->q,
        .k = data->k,
        .v = data->v,
        .cu_seqlens = kt_ints(kt, data->cu_seqlens, NUM_SEQS + 1),
        .max_seqlen = (int32_t)data->q.shape[0],
        .window = c->window,
        .scale = data->paged.scale,
    };
    rk_tensor_t rows = kt_zeros_2d(kt, data->q.dtype, data->query_rows.shape[0], c->num_heads * v_dim_of(c));

    assert_ok(rk_attn_varlen_fwd(kt->stream, &args));
    assert_ok(rk_gather_rows(
        kt->stream,
        &(struct rk_rows_args){.out = rows, .x = rk_tensor_merge_cols(args.out), .index = data->query_rows}));
    return rk_tensor_split_cols(rows, c->num_heads, v_dim_of(c));
}

/* Whether paged attention over this cache has kernels of its own: on a GPU, for latents in bf16. */
static bool has_own_bits(const struct kt *kt, const struct paged_case *c, rk_dtype_t dtype)
{
    return !kt_is_cpu(kt) && dtype == RK_DTYPE_BF16 && c->head_dim == 576 && c->v_head_dim == -512;
}

static void expect_packed(struct kt *kt, const struct paged_case *c, const struct paged_data *data)
{
    rk_tensor_t packed = packed_rows(kt, c, data);

    if (has_own_bits(kt, c, data->q.dtype))
        kt_expect_close_attention(kt, c->label, data->paged.out, kt_read(kt, packed));
    else
        kt_expect_same_bits(kt, c->label, data->paged.out, packed);
}

static void test_attn_paged_all_cases_have_bits_of_packed(void **state)
{
    struct kt *kt = *state;

    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        for (size_t d = 0; d < RK_ARRAY_LEN(kt_dtypes); d++) {
            struct paged_data data;

            if (kt_is_cpu_only(kt, kt_dtypes[d]) || !rk_test_in_part())
                continue;
            data = make_data(kt, &cases[i], kt_dtypes[d]);
            assert_ok(rk_attn_paged(kt->stream, &data.paged));
            expect_packed(kt, &cases[i], &data);
            assert_ok(rk_stream_sync(kt->stream)); /* required for past_is_settled */
            data.paged.past_is_settled = true;
            data.paged.out = kt_zeros_3d(kt, data.q.dtype, data.query_rows.shape[0], cases[i].num_heads,
                                         v_dim_of(&cases[i]));
            assert_ok(rk_attn_paged(kt->stream, &data.paged));
            expect_packed(kt, &cases[i], &data);
        }
    }
}

/* Goal: the result of a query over latents does not depend on the rest of the call. Method: all tokens in one
 * call, then each of the last ones as the only new token of its sequence. The longest sequence has several
 * splits of keys. */
static void test_attn_paged_latents_same_bits_in_every_call(void **state)
{
    struct kt *kt = *state;
    struct paged_case c = {"latent in calls", {700, 64, 33}, {40, 3, 33}, 64, 4, 1, 576, 0, -512};
    static const rk_dtype_t dtypes[] = {RK_DTYPE_BF16, RK_DTYPE_F32};

    for (size_t d = 0; d < RK_ARRAY_LEN(dtypes); d++) {
        struct paged_data data = make_data(kt, &c, dtypes[d]);
        int32_t ends[NUM_SEQS];
        rk_tensor_t all;

        assert_ok(rk_attn_paged(kt->stream, &data.paged));
        all = data.paged.out;
        for (int32_t r = 0, end = 0; r < NUM_SEQS; r++) {
            end += c.new_tokens[r];
            ends[r] = end - 1;
        }
        for (int32_t r = 0; r < NUM_SEQS; r++) {
            int32_t cu_q[2] = {0, 1};
            struct rk_attn_paged_args one = data.paged;

            one.q = rk_tensor_rows(data.paged.q, ends[r], 1);
            one.out = kt_zeros_3d(kt, dtypes[d], 1, c.num_heads, 512);
            one.cu_q = kt_ints(kt, cu_q, 2);
            one.seq_lens = kt_ints(kt, &c.lengths[r], 1);
            one.block_table = rk_tensor_rows(data.paged.block_table, r, 1);
            assert_ok(rk_attn_paged(kt->stream, &one));
            kt_expect_same_bits(kt, c.label, one.out, rk_tensor_rows(all, ends[r], 1));
        }
    }
}

/* Goal: blocks before the window are not needed. Method: they are removed from the table. */
static void test_attn_paged_window_without_old_blocks_has_same_bits(void **state)
{
    static const struct paged_case c = {"window", {40, 21, 3}, {3, 1, 1}, 4, 2, 1, 8, 6, 0};
    struct kt *kt = *state;
    struct paged_data data = make_data(kt, &c, RK_DTYPE_F32);

    for (int32_t b = 0; b < 8; b++)
        data.blocks[0][b] = -1; /* positions 0 to 31; the first query, at 37, attends to 32 and later */
    data.paged.block_table = rk_tensor_2d(kt_ints(kt, data.blocks[0], NUM_SEQS * MAX_BLOCKS).data,
                                          RK_DTYPE_I32, NUM_SEQS, MAX_BLOCKS);
    assert_ok(rk_attn_paged(kt->stream, &data.paged));
    kt_expect_same_bits(kt, c.label, data.paged.out, packed_rows(kt, &c, &data));
    if (!kt_is_cpu(kt))
        rk_test_skip("only the CPU backend detects a missing block");
    data.blocks[0][8] = -1;
    data.paged.block_table = rk_tensor_2d(kt_ints(kt, data.blocks[0], NUM_SEQS * MAX_BLOCKS).data,
                                          RK_DTYPE_I32, NUM_SEQS, MAX_BLOCKS);
    assert_fails(rk_attn_paged(kt->stream, &data.paged), RK_INVALID_ARGUMENT,
                 "attn_paged: block_table[0]=-1");
}

/* Goal: a token with slot -1 is not written, and others are written to their slots. */
static void test_kv_write_negative_slot_writes_nothing(void **state)
{
    static const int32_t slots[] = {-1, 5};
    static const double k[2] = {7.0, 8.0}, v[2] = {9.0, 10.0};
    static const double expected_k[6] = {0, 0, 0, 0, 0, 8.0}, expected_v[6] = {0, 0, 0, 0, 0, 10.0};
    struct kt *kt = *state;
    struct rk_kv_write_args args = {
        .k_cache = kt_zeros_4d(kt, RK_DTYPE_F32, 3, 1, 2, 1),
        .v_cache = kt_zeros_4d(kt, RK_DTYPE_F32, 3, 1, 2, 1),
        .k = kt_zeros_3d(kt, RK_DTYPE_F32, 2, 1, 1),
        .v = kt_zeros_3d(kt, RK_DTYPE_F32, 2, 1, 1),
        .slot_mapping = kt_ints(kt, slots, 2),
    };

    kt_write(kt, args.k, k);
    kt_write(kt, args.v, v);
    assert_ok(rk_kv_write(kt->stream, &args));
    kt_expect_close(kt, "k_cache", args.k_cache, expected_k);
    kt_expect_close(kt, "v_cache", args.v_cache, expected_v);
}

static void test_kv_write_slot_outside_cache_fails(void **state)
{
    static const int32_t bad[] = {-2, 36 * 4};
    struct kt *kt = *state;
    struct paged_data data = make_data(kt, &cases[0], RK_DTYPE_F32);

    for (size_t i = 0; i < RK_ARRAY_LEN(bad); i++) {
        struct rk_kv_write_args args = data.write;

        args.k = rk_tensor_rows(args.k, 0, 1);
        args.v = rk_tensor_rows(args.v, 0, 1);
        args.slot_mapping = kt_ints(kt, &bad[i], 1);
        kt_expect_refused(kt, rk_kv_write(kt->stream, &args), "kv_write: slot_mapping[0]=");
    }
}

/* Goal: rope_kv_write is bit-identical to rope on q and on k followed by kv_write, for heads whose halves are
 * whole packs and for others, and for a token without a slot. */
static void test_rope_kv_write_has_bits_of_its_parts(void **state)
{
    enum { T = 5, MAX_POSITION = 50 };
    static const int32_t positions[T] = {0, 49, 7, 7, 31}, slots[T] = {3, -1, 17, 0, 23};
    /* of q and k, and of v; 0: the cache is one tensor */
    static const int64_t head_dims[][2] = {{128, 128}, {64, 64}, {20, 20}, {6, 6},
                                           {192, 128}, {12, 20}, {24, 0}};
    struct kt *kt = *state;

    for (size_t i = 0; i < RK_ARRAY_LEN(head_dims) * RK_ARRAY_LEN(kt_dtypes); i++) {
        int64_t head_dim = head_dims[i / RK_ARRAY_LEN(kt_dtypes)][0];
        int64_t v_head_dim = head_dims[i / RK_ARRAY_LEN(kt_dtypes)][1];
        int64_t columns = 8 * head_dim + 2 * v_head_dim; /* 6 + 2 + 2 heads */
        rk_dtype_t dtype = kt_dtypes[i % RK_ARRAY_LEN(kt_dtypes)];
        rk_tensor_t fused, split[2], q[2];
        struct rk_kv_write_args kv[2] = {{.slot_mapping = kt_ints(kt, slots, T)}};
        rk_tensor_t cos = kt_randomize(kt, kt_zeros_2d(kt, RK_DTYPE_F32, MAX_POSITION, head_dim / 2), 1.0);
        rk_tensor_t sin = kt_randomize(kt, kt_zeros_2d(kt, RK_DTYPE_F32, MAX_POSITION, head_dim / 2), 1.0);

        if (kt_is_cpu_only(kt, dtype))
            continue;
        fused = kt_randomize(kt, kt_zeros_2d(kt, dtype, T, columns), 1.0);
        split[0] = fused;
        split[1] = kt_zeros_2d(kt, dtype, T, columns);
        kt_write(kt, split[1], kt_read(kt, fused));
        for (int k = 0; k < 2; k++) {
            q[k] = rk_tensor_split_cols(rk_tensor_cols(split[k], 0, 6 * head_dim), 6, head_dim);
            kv[k].slot_mapping = kv[0].slot_mapping;
            kv[k].k = rk_tensor_split_cols(rk_tensor_cols(split[k], 6 * head_dim, 2 * head_dim), 2, head_dim);
            kv[k].k_cache = kt_zeros_4d(kt, dtype, 3, 2, 8, head_dim);
            if (v_head_dim == 0)
                continue;
            kv[k].v =
                rk_tensor_split_cols(rk_tensor_cols(split[k], 8 * head_dim, 2 * v_head_dim), 2, v_head_dim);
            kv[k].v_cache = kt_zeros_4d(kt, dtype, 3, 2, 8, v_head_dim);
        }
        assert_ok(rk_rope_kv_write(kt->stream, &(struct rk_rope_kv_write_args){
                                                   .q = q[0],
                                                   .cos = cos,
                                                   .sin = sin,
                                                   .positions = kt_ints(kt, positions, T),
                                                   .kv = kv[0],
                                               }));
        assert_ok(rk_rope(
            kt->stream, &(struct rk_rope_args){q[1], cos, sin, kt_ints(kt, positions, T), false, false, 0}));
        assert_ok(rk_rope(kt->stream, &(struct rk_rope_args){kv[1].k, cos, sin, kt_ints(kt, positions, T),
                                                             false, false, 0}));
        assert_ok(rk_kv_write(kt->stream, &kv[1]));
        kt_expect_same_bits(kt, kt_label(kt, "q, k, v", dtype), split[0], split[1]);
        kt_expect_same_bits(kt, kt_label(kt, "k_cache", dtype), kv[0].k_cache, kv[1].k_cache);
        if (v_head_dim > 0)
            kt_expect_same_bits(kt, kt_label(kt, "v_cache", dtype), kv[0].v_cache, kv[1].v_cache);
    }
}

/* Goal: a cache of one tensor has the written values, and so has one with a different width of values. */
static void test_kv_write_other_shapes_hold_what_was_written(void **state)
{
    static const int32_t slots[] = {5, -1, 2};
    static const int64_t widths[][2] = {{3, 1}, {2, 4}, {16, 8}, {4, 0}};
    struct kt *kt = *state;

    for (size_t i = 0; i < RK_ARRAY_LEN(widths); i++) {
        int64_t head_dim = widths[i][0], v_head_dim = widths[i][1];
        struct rk_kv_write_args args = {.k_cache = kt_zeros_4d(kt, RK_DTYPE_BF16, 3, 1, 2, head_dim),
                                        .k = random_heads(kt, RK_DTYPE_BF16, 3, 1, head_dim),
                                        .slot_mapping = kt_ints(kt, slots, 3)};
        double *expected_k = kt_scratch(kt, 6 * head_dim), *expected_v = kt_scratch(kt, 6 * v_head_dim);

        if (v_head_dim > 0) {
            args.v_cache = kt_zeros_4d(kt, RK_DTYPE_BF16, 3, 1, 2, v_head_dim);
            args.v = random_heads(kt, RK_DTYPE_BF16, 3, 1, v_head_dim);
        }
        assert_ok(rk_kv_write(kt->stream, &args));
        for (int t = 0; t < 3; t++) {
            if (slots[t] < 0)
                continue;
            memcpy(expected_k + slots[t] * head_dim, kt_read(kt, args.k) + t * head_dim,
                   (size_t)head_dim * sizeof(double));
            if (v_head_dim > 0)
                memcpy(expected_v + slots[t] * v_head_dim, kt_read(kt, args.v) + t * v_head_dim,
                       (size_t)v_head_dim * sizeof(double));
        }
        kt_expect_close(kt, "k_cache", args.k_cache, expected_k);
        if (v_head_dim > 0)
            kt_expect_close(kt, "v_cache", args.v_cache, expected_v);
    }
}

/* Goal: lengths and bounds that do not fit the call are rejected. */
static void test_attn_paged_bad_lengths_fail(void **state)
{
    static const struct {
        int32_t cu_q[NUM_SEQS + 1], seq_lens[NUM_SEQS];
        const char *text;
    } bad[] = {
        {{0, 1, 2, 4}, {20, 1, 7}, "cu_q runs from 0 to 4, expected 0 to 3"},
        {{0, 2, 1, 3}, {20, 1, 7}, "cu_q has a step of -1 at 1"},
        {{0, 1, 2, 3}, {0, 1, 7}, "seq_lens[0]=0, expected 1 to 48"},
        {{0, 1, 2, 3}, {20, 49, 7}, "seq_lens[1]=49, expected 1 to 48"},
        {{0, 1, 2, 3}, {20, 9, 7}, "block_table[1]=-1, expected 0 to 35"},
    };
    struct kt *kt = *state;
    struct paged_data data;

    if (!kt_is_cpu(kt))
        rk_test_skip("only the CPU backend checks these arrays");
    data = make_data(kt, &cases[0], RK_DTYPE_F32);
    for (size_t i = 0; i < RK_ARRAY_LEN(bad); i++) {
        struct rk_attn_paged_args args = data.paged;

        args.cu_q = kt_ints(kt, bad[i].cu_q, NUM_SEQS + 1);
        args.seq_lens = kt_ints(kt, bad[i].seq_lens, NUM_SEQS);
        assert_fails(rk_attn_paged(kt->stream, &args), RK_INVALID_ARGUMENT, bad[i].text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        kt_test(test_attn_paged_all_cases_have_bits_of_packed),
        kt_test(test_attn_paged_latents_same_bits_in_every_call),
        kt_test(test_attn_paged_window_without_old_blocks_has_same_bits),
        kt_test(test_kv_write_negative_slot_writes_nothing),
        kt_test(test_kv_write_slot_outside_cache_fails),
        kt_test(test_rope_kv_write_has_bits_of_its_parts),
        kt_test(test_kv_write_other_shapes_hold_what_was_written),
        kt_test(test_attn_paged_bad_lengths_fail),
    };

    return cmocka_run_group_tests_name("kernels/paged", tests, NULL, NULL);
}
