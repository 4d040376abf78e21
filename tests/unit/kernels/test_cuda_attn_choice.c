/* Goal: which attention kernel a call takes, and the workspace that is planned for it, are right for GPUs
 * that nobody has at hand. Host code only: no GPU is needed. */
#include "tests/support/test.h"

#include "kernels/cuda/attention/attn.h"

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
        .scale = 1.0F,
        .block_size = 16,
        .max_blocks = max_model_len / 16,
    };
}

/* Goal: no step takes more than is planned for the largest, however its tokens fall into sequences; and one
 * takes it. Method: every number of sequences, with the most tokens that still are a decode step. */
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

/* Goal: a head size whose kernels do not fit into a block's shared memory takes another kernel, it does not
 * fail. 99 KiB: compute capability 8.6 and 8.9; 163: 8.0; 227: 9.0. */
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attn_paged_plan_is_most_of_all_steps),
        cmocka_unit_test(test_attn_kernel_fits_the_gpu),
    };

    return cmocka_run_group_tests_name("unit/kernels/cuda_attn_choice", tests, NULL, NULL);
}
