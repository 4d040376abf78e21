/* Goal: results do not depend on the number of threads. Method: every operator with one thread and with four,
 * on shapes with work for all threads, is bit-identical. */
#include "tests/kernels/kernel_test.h"

#include <dirent.h>
#include <string.h>

#define ROWS  3000
#define COLS  48
#define HEADS 4

static rk_tensor_t random_2d(struct kt *kt, int64_t rows, int64_t cols)
{
    return kt_randomize(kt, kt_zeros_2d(kt, RK_DTYPE_F32, rows, cols), 1.0);
}

static rk_tensor_t zeros_2d(struct kt *kt, int64_t rows, int64_t cols)
{
    return kt_zeros_2d(kt, RK_DTYPE_F32, rows, cols);
}

static rk_tensor_t heads_of(rk_tensor_t t)
{
    return rk_tensor_split_cols(t, HEADS, COLS / HEADS);
}

/* Each function runs one operator on data that depends only on the seed and returns its outputs in out[]. */
static struct rk_status *run_rmsnorm(struct kt *kt, rk_tensor_t out[4])
{
    struct rk_rmsnorm_fwd_args fwd = {.y = zeros_2d(kt, ROWS, COLS),
                                      .rstd = kt_zeros_1d(kt, RK_DTYPE_F32, ROWS),
                                      .x = random_2d(kt, ROWS, COLS),
                                      .weight = kt_randomize(kt, kt_zeros_1d(kt, RK_DTYPE_F32, COLS), 1.0),
                                      .eps = 1e-5f};
    struct rk_rmsnorm_bwd_args bwd = {.dx = zeros_2d(kt, ROWS, COLS),
                                      .dweight = kt_zeros_1d(kt, RK_DTYPE_F32, COLS),
                                      .dy = random_2d(kt, ROWS, COLS),
                                      .x = fwd.x,
                                      .weight = fwd.weight,
                                      .rstd = fwd.rstd};

    out[0] = fwd.y;
    out[1] = bwd.dx;
    out[2] = bwd.dweight;
    RK_TRY(rk_rmsnorm_fwd(kt->stream, &fwd));
    return rk_rmsnorm_bwd(kt->stream, &bwd);
}

static struct rk_status *run_head_norm(struct kt *kt, rk_tensor_t out[4])
{
    int64_t head_dim = COLS / HEADS;
    struct rk_head_norm_fwd_args fwd = {.y = heads_of(zeros_2d(kt, ROWS, COLS)),
                                        .rstd = zeros_2d(kt, ROWS, HEADS),
                                        .x = heads_of(random_2d(kt, ROWS, COLS)),
                                        .weight =
                                            kt_randomize(kt, kt_zeros_1d(kt, RK_DTYPE_F32, head_dim), 1.0),
                                        .eps = 1e-5f};
    struct rk_head_norm_bwd_args bwd = {.dx = heads_of(zeros_2d(kt, ROWS, COLS)),
                                        .dweight = kt_zeros_1d(kt, RK_DTYPE_F32, head_dim),
                                        .dy = heads_of(random_2d(kt, ROWS, COLS)),
                                        .x = fwd.x,
                                        .weight = fwd.weight,
                                        .rstd = fwd.rstd};

    out[0] = fwd.y;
    out[1] = bwd.dx;
    out[2] = bwd.dweight;
    RK_TRY(rk_head_norm_fwd(kt->stream, &fwd));
    return rk_head_norm_bwd(kt->stream, &bwd);
}

static struct rk_status *run_project(struct kt *kt, rk_tensor_t out[4])
{
    enum { LABELS = 3 };
    rk_tensor_t x = random_2d(kt, ROWS, 5 * COLS), weight = random_2d(kt, LABELS, 5 * COLS);

    out[0] = zeros_2d(kt, ROWS, LABELS);
    out[1] = zeros_2d(kt, ROWS, 5 * COLS);
    out[2] = zeros_2d(kt, LABELS, 5 * COLS);
    RK_TRY(rk_project_fwd(kt->stream,
                          &(struct rk_project_fwd_args){.scores = out[0], .x = x, .weight = weight}));
    return rk_project_bwd(kt->stream, &(struct rk_project_bwd_args){.dx = out[1],
                                                                    .dweight = out[2],
                                                                    .dscores = random_2d(kt, ROWS, LABELS),
                                                                    .x = x,
                                                                    .weight = weight});
}

static struct rk_status *run_bias(struct kt *kt, rk_tensor_t out[4])
{
    out[0] = kt_zeros_1d(kt, RK_DTYPE_F32, 5 * COLS);
    return rk_bias_bwd(kt->stream,
                       &(struct rk_bias_bwd_args){.dbias = out[0], .dy = random_2d(kt, ROWS, 5 * COLS)});
}

static struct rk_status *run_swiglu(struct kt *kt, rk_tensor_t out[4])
{
    struct rk_swiglu_fwd_args fwd = {
        .y = zeros_2d(kt, ROWS, COLS), .gate = random_2d(kt, ROWS, COLS), .up = random_2d(kt, ROWS, COLS)};
    struct rk_swiglu_bwd_args bwd = {.dgate = zeros_2d(kt, ROWS, COLS),
                                     .dup = zeros_2d(kt, ROWS, COLS),
                                     .dy = random_2d(kt, ROWS, COLS),
                                     .gate = fwd.gate,
                                     .up = fwd.up};

    out[0] = fwd.y;
    out[1] = bwd.dgate;
    out[2] = bwd.dup;
    RK_TRY(rk_swiglu_fwd(kt->stream, &fwd));
    return rk_swiglu_bwd(kt->stream, &bwd);
}

static struct rk_status *run_rope(struct kt *kt, rk_tensor_t out[4])
{
    out[0] = random_2d(kt, ROWS, COLS);
    return rk_rope(kt->stream, &(struct rk_rope_args){.x = heads_of(out[0]),
                                                      .cos = random_2d(kt, 50, COLS / HEADS / 2),
                                                      .sin = random_2d(kt, 50, COLS / HEADS / 2),
                                                      .positions = kt_random_ints(kt, ROWS, 50)});
}

static struct rk_status *run_attention(struct kt *kt, rk_tensor_t out[4])
{
    enum { NUM_SEQS = 12, LENGTH = 40, TOKENS = NUM_SEQS * LENGTH };
    int32_t cu_seqlens[NUM_SEQS + 1];
    struct rk_attn_varlen_bwd_args bwd = {
        .fwd = {.out = heads_of(zeros_2d(kt, TOKENS, COLS)),
                .lse = kt_zeros_2d(kt, RK_DTYPE_F32, HEADS, TOKENS),
                .q = heads_of(random_2d(kt, TOKENS, COLS)),
                .k = heads_of(random_2d(kt, TOKENS, COLS)),
                .v = heads_of(random_2d(kt, TOKENS, COLS)),
                .max_seqlen = LENGTH,
                .scale = 0.3f},
        .dq = heads_of(zeros_2d(kt, TOKENS, COLS)),
        .dk = heads_of(zeros_2d(kt, TOKENS, COLS)),
        .dv = heads_of(zeros_2d(kt, TOKENS, COLS)),
        .dout = heads_of(random_2d(kt, TOKENS, COLS)),
    };

    for (int32_t i = 0; i <= NUM_SEQS; i++)
        cu_seqlens[i] = i * LENGTH;
    bwd.fwd.cu_seqlens = kt_ints(kt, cu_seqlens, NUM_SEQS + 1);
    out[0] = bwd.fwd.out;
    out[1] = bwd.dq;
    out[2] = bwd.dk;
    out[3] = bwd.dv;
    RK_TRY(rk_attn_varlen_fwd(kt->stream, &bwd.fwd));
    return rk_attn_varlen_bwd(kt->stream, &bwd);
}

static struct rk_status *run_paged(struct kt *kt, rk_tensor_t out[4])
{
    enum { NUM_SEQS = 40, LENGTH = 60, NUM_BLOCKS = 64, BLOCK_SIZE = 16 };
    int32_t cu_q[NUM_SEQS + 1], lengths[NUM_SEQS];
    rk_tensor_t table = kt_random_ints(kt, NUM_SEQS * 4, NUM_BLOCKS);

    for (int32_t i = 0; i <= NUM_SEQS; i++)
        cu_q[i] = i;
    for (int32_t i = 0; i < NUM_SEQS; i++)
        lengths[i] = LENGTH;
    out[0] = heads_of(zeros_2d(kt, NUM_SEQS, COLS));
    return rk_attn_paged(
        kt->stream,
        &(struct rk_attn_paged_args){
            .out = out[0],
            .q = heads_of(random_2d(kt, NUM_SEQS, COLS)),
            .k_cache =
                kt_randomize(kt, kt_zeros_4d(kt, RK_DTYPE_F32, NUM_BLOCKS, 2, BLOCK_SIZE, COLS / HEADS), 1.0),
            .v_cache =
                kt_randomize(kt, kt_zeros_4d(kt, RK_DTYPE_F32, NUM_BLOCKS, 2, BLOCK_SIZE, COLS / HEADS), 1.0),
            .block_table = rk_tensor_2d(table.data, RK_DTYPE_I32, NUM_SEQS, 4),
            .cu_q = kt_ints(kt, cu_q, NUM_SEQS + 1),
            .seq_lens = kt_ints(kt, lengths, NUM_SEQS),
            .scale = 0.3f});
}

static struct rk_status *run_gemm_strict(struct kt *kt, rk_tensor_t out[4])
{
    out[0] = zeros_2d(kt, 300, 200);
    return rk_gemm(kt->stream, &(struct rk_gemm_args){.c = out[0],
                                                      .a = random_2d(kt, 300, 100),
                                                      .b = random_2d(kt, 100, 200),
                                                      .strict = true,
                                                      .alpha = 1.0f});
}

/* Groups, also without rows, that the CPU backend gives to threads as a whole. (It divides larger GEMMs;
 * their bits may depend on the number of threads unless they are strict.) */
static struct rk_status *run_grouped_gemm(struct kt *kt, rk_tensor_t out[4])
{
    enum { GROUPS = 5, TOKENS = 400, N = 150, K = 140 };
    static const int32_t offsets[GROUPS + 1] = {0, 30, 30, 190, 200, 390};
    rk_tensor_t x = random_2d(kt, TOKENS, K), dy = random_2d(kt, TOKENS, N);
    struct rk_grouped_gemm_args args = {
        .x = x,
        .w = kt_randomize(kt, kt_zeros_3d(kt, RK_DTYPE_F32, GROUPS, N, K), 1.0),
        .offsets = kt_ints(kt, offsets, GROUPS + 1),
        .trans_w = true};

    for (int i = 0; i < 2; i++) {
        args.y = out[i] = zeros_2d(kt, TOKENS, N);
        args.strict = i == 1;
        RK_TRY(rk_grouped_gemm(kt->stream, &args));
        out[2 + i] = kt_randomize(kt, kt_zeros_3d(kt, RK_DTYPE_F32, GROUPS, N, K), 1.0);
        RK_TRY(rk_grouped_gemm_wgrad(
            kt->stream,
            &(struct rk_grouped_gemm_wgrad_args){
                .dw = out[2 + i], .dy = dy, .x = x, .offsets = args.offsets, .strict = args.strict}));
    }
    return NULL;
}

static struct rk_status *run_batched_gemm(struct kt *kt, rk_tensor_t out[4])
{
    rk_tensor_t y = zeros_2d(kt, ROWS / 2, HEADS * COLS);

    out[0] = y;
    return rk_batched_gemm(kt->stream,
                           &(struct rk_batched_gemm_args){
                               .y = rk_tensor_split_cols(y, HEADS, COLS),
                               .x = rk_tensor_split_cols(random_2d(kt, ROWS / 2, HEADS * COLS), HEADS, COLS),
                               .w = kt_randomize(kt, kt_zeros_3d(kt, RK_DTYPE_F32, HEADS, COLS, COLS), 1.0)});
}

static struct rk_status *run_vocab(struct kt *kt, rk_tensor_t out[4])
{
    rk_tensor_t logits = random_2d(kt, ROWS, COLS),
                upstream = kt_randomize(kt, kt_zeros_1d(kt, RK_DTYPE_F32, ROWS), 1.0);
    rk_tensor_t labels = kt_random_ints(kt, ROWS, COLS);

    out[0] = kt_zeros_2d(kt, RK_DTYPE_F64, ROWS, 4);
    out[1] = zeros_2d(kt, ROWS, COLS);
    out[2] = kt_zeros_1d(kt, RK_DTYPE_F64, ROWS);
    RK_TRY(rk_vocab_stats(kt->stream, &(struct rk_vocab_stats_args){.stats = out[0],
                                                                    .squares = out[2],
                                                                    .logits = logits,
                                                                    .labels = labels,
                                                                    .num_valid = COLS,
                                                                    .inv_temperature = 1.0f}));
    return rk_vocab_stats_bwd(kt->stream, &(struct rk_vocab_stats_bwd_args){.dlogits = out[1],
                                                                            .logits = logits,
                                                                            .stats = out[0],
                                                                            .squares = out[2],
                                                                            .dlog_probs = upstream,
                                                                            .dsum_pi_squared = upstream,
                                                                            .labels = labels,
                                                                            .num_valid = COLS,
                                                                            .inv_temperature = 1.0f});
}

static struct rk_status *run_top_k(struct kt *kt, rk_tensor_t out[4])
{
    out[0] = zeros_2d(kt, ROWS, 5);
    out[1] = kt_zeros_2d(kt, RK_DTYPE_I32, ROWS, 5);
    return rk_top_k(kt->stream, &(struct rk_top_k_args){.values = out[0],
                                                        .ids = out[1],
                                                        .logits = random_2d(kt, ROWS, COLS),
                                                        .num_valid = COLS});
}

static struct rk_status *run_sample(struct kt *kt, rk_tensor_t out[4])
{
    static struct rk_sample_params params[ROWS];
    const int32_t rows = rk_test_is_quick() ? 12 : ROWS;
    rk_tensor_t memory = kt_zeros_1d(kt, RK_DTYPE_U8, (int64_t)sizeof(params));

    for (int32_t r = 0; r < rows; r++)
        params[r] = (struct rk_sample_params){.temperature = 1.0f, .top_k = 9, .top_p = 0.9f, .position = r};
    out[0] = kt_zeros_1d(kt, RK_DTYPE_I32, rows);
    out[1] = kt_zeros_1d(kt, RK_DTYPE_F32, rows);
    RK_TRY(rk_stream_copy(kt->stream, memory.data, params, sizeof(params), RK_COPY_H2D));
    return rk_sample(kt->stream, &(struct rk_sample_args){.tokens = out[0],
                                                          .log_probs = out[1],
                                                          .logits = random_2d(kt, rows, COLS),
                                                          .vocab_size = COLS,
                                                          .params = memory.data});
}

static struct rk_status *run_flat(struct kt *kt, rk_tensor_t out[4])
{
    rk_tensor_t grad = kt_randomize(kt, kt_zeros_1d(kt, RK_DTYPE_F32, ROWS * COLS), 1.0);

    out[0] = kt_zeros_1d(kt, RK_DTYPE_F64, 2);
    out[1] = kt_zeros_1d(kt, RK_DTYPE_F32, ROWS * COLS);
    out[2] = kt_zeros_1d(kt, RK_DTYPE_BF16, ROWS * COLS);
    RK_TRY(rk_sum_squares(kt->stream, &(struct rk_sum_squares_args){.out = out[0], .x = grad}));
    RK_TRY(rk_axpby(kt->stream, &(struct rk_axpby_args){.y = out[2], .x = grad, .alpha = 0.5f}));
    return rk_adamw(kt->stream, &(struct rk_adamw_args){.param = out[1],
                                                        .master = out[1],
                                                        .m = kt_zeros_1d(kt, RK_DTYPE_F32, ROWS * COLS),
                                                        .v = kt_zeros_1d(kt, RK_DTYPE_F32, ROWS * COLS),
                                                        .grad = grad,
                                                        .lr = 0.1,
                                                        .beta1 = 0.9,
                                                        .beta2 = 0.95,
                                                        .eps = 1e-8,
                                                        .correction1 = 0.1,
                                                        .correction2 = 0.05,
                                                        .grad_scale = 1.0});
}

static struct rk_status *run_moe_balance(struct kt *kt, rk_tensor_t out[4])
{
    enum { SEGMENTS = 3 };
    rk_tensor_t ids = kt_random_ints(kt, ROWS, COLS), segments = kt_random_ints(kt, ROWS, SEGMENTS);

    ids = rk_tensor_2d(ids.data, RK_DTYPE_I32, ROWS, 1);
    out[0] = kt_zeros_1d(kt, RK_DTYPE_F64, COLS + RK_NUM_ROUTER_SUMS);
    out[1] = zeros_2d(kt, ROWS, COLS);
    out[2] = zeros_2d(kt, SEGMENTS, COLS);
    RK_TRY(rk_moe_count(kt->stream,
                        &(struct rk_moe_count_args){.counts = out[2], .ids = ids, .segments = segments}));
    return rk_moe_balance(kt->stream,
                          &(struct rk_moe_balance_args){
                              .sums = out[0],
                              .dlogits = out[1],
                              .logits = random_2d(kt, ROWS, COLS),
                              .ids = ids,
                              .segments = segments,
                              .counts = out[2],
                              .weights = kt_randomize(kt, kt_zeros_1d(kt, RK_DTYPE_F32, SEGMENTS), 1.0),
                              .z_weight = 0.5});
}

static const struct {
    const char *label;
    struct rk_status *(*run)(struct kt *kt, rk_tensor_t out[4]);
} operators[] = {
    {"rmsnorm", run_rmsnorm},
    {"head_norm", run_head_norm},
    {"swiglu", run_swiglu},
    {"rope", run_rope},
    {"attn_varlen", run_attention},
    {"attn_paged", run_paged},
    {"vocab_stats", run_vocab},
    {"top_k", run_top_k},
    {"sample", run_sample},
    {"flat", run_flat},
    {"strict gemm", run_gemm_strict},
    {"bias", run_bias},
    {"project", run_project},
    {"moe_balance", run_moe_balance},
    {"grouped_gemm", run_grouped_gemm},
    {"batched_gemm", run_batched_gemm},
};

static void test_operators_thread_count_has_no_effect(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(operators); i++) {
        rk_tensor_t expected[4] = {{0}}, actual[4] = {{0}};
        struct kt *one, *four;

        if (!rk_test_in_part())
            continue;
        one = kt_create(1);
        four = kt_create(4);
        assert_ok(operators[i].run(one, expected));
        assert_ok(operators[i].run(four, actual));
        for (int o = 0; o < 4 && expected[o].data; o++) {
            if (memcmp(kt_read_bytes(one, expected[o]), kt_read_bytes(four, actual[o]),
                       rk_tensor_bytes(actual[o])))
                fail_msg("%s: output %d depends on the number of threads", operators[i].label, o);
        }
        kt_destroy(one);
        kt_destroy(four);
    }
}

static int num_tasks(void)
{
    DIR *dir = opendir("/proc/self/task");
    int count = 0;

    assert_non_null(dir);
    while (readdir(dir))
        count++;
    closedir(dir);
    return count;
}

static void run_small(struct kt *kt)
{
    static const int32_t offsets[] = {0, 3, 3, 16};
    rk_tensor_t x = random_2d(kt, 16, COLS), y = zeros_2d(kt, 16, COLS), w = random_2d(kt, COLS, COLS);

    assert_ok(rk_gemm(kt->stream, &(struct rk_gemm_args){.c = y, .a = x, .b = w, .alpha = 1.0f}));
    assert_ok(
        rk_gemm(kt->stream, &(struct rk_gemm_args){.c = y, .a = x, .b = w, .alpha = 1.0f, .strict = true}));
    assert_ok(rk_grouped_gemm(kt->stream,
                              &(struct rk_grouped_gemm_args){
                                  .y = y,
                                  .x = x,
                                  .w = kt_randomize(kt, kt_zeros_3d(kt, RK_DTYPE_F32, 3, COLS, COLS), 1.0),
                                  .offsets = kt_ints(kt, offsets, 4)}));
    assert_ok(rk_swiglu_fwd(kt->stream, &(struct rk_swiglu_fwd_args){.y = y, .gate = x, .up = x}));
    assert_ok(rk_axpby(kt->stream, &(struct rk_axpby_args){.y = y, .x = x, .alpha = 0.5f}));
}

/* Goal: small calls run on the calling thread, so daemons that share cores do not wait for one another's
 * threads. Method: threads of the process, which starts them when a loop first needs them. */
static void test_operators_small_calls_start_no_threads(void **state)
{
    struct kt *kt = kt_create(4);
    int before = num_tasks();

    (void)state;
    if (!kt_is_cpu(kt)) {
        kt_destroy(kt);
        rk_test_skip("a GPU's operators have no threads of the host");
    }
    run_small(kt);
    assert_int_equal(num_tasks(), before);
    assert_ok(rk_axpby(kt->stream, &(struct rk_axpby_args){.y = zeros_2d(kt, ROWS, COLS),
                                                           .x = zeros_2d(kt, ROWS, COLS),
                                                           .alpha = 0.5f}));
#ifndef __SANITIZE_THREAD__
    assert_int_equal(num_tasks(), before + 3);
#endif
    kt_destroy(kt);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        /* first, while the process has no threads of another call */
        cmocka_unit_test(test_operators_small_calls_start_no_threads),
        cmocka_unit_test(test_operators_thread_count_has_no_effect),
    };

    return cmocka_run_group_tests_name("kernels/thread_invariance", tests, NULL, NULL);
}
