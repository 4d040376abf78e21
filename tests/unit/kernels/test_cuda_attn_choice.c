/* Goal: the choice of the attention kernel and its planned workspace are right for all GPU types. Host code
 * only: no GPU is needed. */
#include "tests/support/test.h"

#include "kernels/cuda/attention/attn.h"
#include "kernels/cuda/cuda_internal.h"

#define KIB 1024

static struct rk_cuda_attn_paged_args make_args(int32_t heads, int32_t kv_heads, int32_t head_dim,
                                                int32_t max_model_len)
{
    return (struct rk_cuda_attn_paged_args){
        .device = {.num_sms = 108, .max_shared_bytes = 163 * KIB},
        .dtype = RK_DTYPE_BF16,
        .num_heads = heads,
        .num_kv_heads = kv_heads,
        .head_dim = head_dim,
        .v_head_dim = head_dim,
        .scale = 1.0F,
        .block_size = 16,
        .max_blocks = max_model_len / 16,
    };
}

/* Goal: no step needs more workspace than planned for the largest step, for any distribution of its tokens to
 * sequences, and one step needs all of it. Method: every number of sequences, with the most tokens that still
 * are a decode step. */
static void test_attn_paged_plan_is_most_of_all_steps(void **state)
{
    static const struct {
        int32_t heads, kv_heads, head_dim, max_seqs, max_tokens, max_model_len;
    } cases[] = {
        {12, 2, 128, 256, 8192, 4096},
        {28, 4, 128, 1024, 8192, 2048},
        {32, 32, 128, 2048, 8192, 4096},
        {40, 40, 128, 1536, 8192, 4096},
        {16, 16, 64, 4096, 16384, 2048},
        {32, 8, 128, 2048, 32768, 4096},
        {8, 8, 32, 3, 5, 64},
    };

    (void)state;
    for (size_t c = 0; c < RK_ARRAY_LEN(cases); c++) {
        struct rk_cuda_attn_paged_args args =
            make_args(cases[c].heads, cases[c].kv_heads, cases[c].head_dim, cases[c].max_model_len);
        int32_t group = args.num_heads / args.num_kv_heads;
        size_t planned, most = 0;

        args.num_seqs = cases[c].max_seqs;
        args.num_tokens = cases[c].max_tokens;
        planned = rk_cuda_attn_paged_max_workspace_bytes(&args);
        for (args.num_seqs = 1; args.num_seqs <= cases[c].max_seqs; args.num_seqs++) {
            size_t bytes = 0;

            args.num_tokens = RK_MIN(cases[c].max_tokens, 64 * args.num_seqs / group);
            for (; args.num_tokens > 0 && bytes == 0; args.num_tokens--)
                bytes = rk_cuda_attn_paged_workspace_bytes(&args);
            most = RK_MAX(most, bytes);
        }
        assert_int_equal(planned, most);
    }
}

/* Goal: a head size whose kernels do not fit into a block's shared memory uses another kernel instead of
 * failing. 99 KiB: compute capability 8.6 and 8.9; 163: 8.0; 227: 9.0. */
static void test_attn_kernel_fits_the_gpu(void **state)
{
    static const struct {
        int32_t shared_kib, head_dim;
        bool splits_keys;
    } cases[] = {
        {99, 32, true},   {99, 64, true},    {99, 96, true},   {99, 128, false}, {99, 256, false},
        {163, 128, true}, {163, 256, false}, {227, 128, true}, {227, 256, true},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_cuda_attn_paged_args args = make_args(8, 8, cases[i].head_dim, 4096);

        args.device.max_shared_bytes = cases[i].shared_kib * KIB;
        args.num_tokens = args.num_seqs = 4;
        if ((rk_cuda_attn_paged_workspace_bytes(&args) > 0) != cases[i].splits_keys)
            fail_msg("head_dim %d with %d KiB", cases[i].head_dim, cases[i].shared_kib);
    }
}

/* Goal: keys and values of different widths use the kernel without tensor cores, in all passes: no
 * workspace. */
static void test_attn_unequal_widths_take_the_simple_kernel(void **state)
{
    struct rk_cuda_attn_paged_args args = make_args(8, 8, 128, 4096);

    (void)state;
    args.num_tokens = args.num_seqs = 4;
    assert_true(rk_cuda_attn_paged_workspace_bytes(&args) > 0);
    args.head_dim = 192;
    assert_int_equal(rk_cuda_attn_paged_workspace_bytes(&args), 0);
    args.head_dim = 64;
    assert_int_equal(rk_cuda_attn_paged_workspace_bytes(&args), 0);
}

static rk_tensor_t heads_of(rk_dtype_t dtype, int64_t tokens, int64_t heads, int64_t head_dim)
{
    return rk_tensor_3d(NULL, dtype, tokens, heads, head_dim);
}

static struct rk_attn_varlen_bwd_args varlen_of(rk_dtype_t dtype, int64_t head_dim, int64_t v_head_dim)
{
    return (struct rk_attn_varlen_bwd_args){.fwd = {.q = heads_of(dtype, 5, 4, head_dim),
                                                    .k = heads_of(dtype, 5, 2, head_dim),
                                                    .v = heads_of(dtype, 5, 2, v_head_dim),
                                                    .out = heads_of(dtype, 5, 4, v_head_dim),
                                                    .scale = 1.0F}};
}

/* Goal: widths that no kernel supports are refused with the names of the tensors, before any allocation. */
static void test_attn_widths_beyond_kernels_are_refused(void **state)
{
    struct rk_attn_varlen_bwd_args args = varlen_of(RK_DTYPE_BF16, 192, 128);
    struct rk_attn_paged_args paged = {.scale = 1.0F};

    (void)state;
    assert_ok(rk_cuda_limit_attn_varlen_fwd(NULL, &args.fwd));
    assert_ok(rk_cuda_limit_attn_varlen_bwd(NULL, &args));
    args = varlen_of(RK_DTYPE_BF16, 576, 512);
    assert_ok(rk_cuda_limit_attn_varlen_fwd(NULL, &args.fwd));
    assert_fails(rk_cuda_limit_attn_varlen_bwd(NULL, &args), RK_UNIMPLEMENTED,
                 "attn_varlen_bwd: q and k have head_dim=576, this backend supports at most 256");
    args = varlen_of(RK_DTYPE_F32, 64, 257);
    assert_fails(rk_cuda_limit_attn_varlen_bwd(NULL, &args), RK_UNIMPLEMENTED,
                 "attn_varlen_bwd: v and out have v_head_dim=257, this backend supports at most 256");
    args = varlen_of(RK_DTYPE_F32, 577, 64);
    assert_fails(rk_cuda_limit_attn_varlen_fwd(NULL, &args.fwd), RK_UNIMPLEMENTED,
                 "attn_varlen_fwd: q and k have head_dim=577, this backend supports at most 576");
    args = varlen_of(RK_DTYPE_F64, 64, 64);
    assert_fails(rk_cuda_limit_attn_varlen_fwd(NULL, &args.fwd), RK_UNIMPLEMENTED, "q is f64");
    paged.q = heads_of(RK_DTYPE_BF16, 3, 4, 576);
    paged.out = heads_of(RK_DTYPE_BF16, 3, 4, 512);
    assert_ok(rk_cuda_limit_attn_paged(NULL, &paged));
    paged.out = heads_of(RK_DTYPE_BF16, 3, 4, 513);
    assert_fails(rk_cuda_limit_attn_paged(NULL, &paged), RK_UNIMPLEMENTED,
                 "attn_paged: v and out have v_head_dim=513, this backend supports at most 512");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attn_paged_plan_is_most_of_all_steps),
        cmocka_unit_test(test_attn_kernel_fits_the_gpu),
        cmocka_unit_test(test_attn_unequal_widths_take_the_simple_kernel),
        cmocka_unit_test(test_attn_widths_beyond_kernels_are_refused),
    };

    return cmocka_run_group_tests_name("unit/kernels/cuda_attn_choice", tests, NULL, NULL);
}
