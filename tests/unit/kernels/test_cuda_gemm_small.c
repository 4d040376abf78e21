/* Goal: every choice of the kernel for products with few rows has the bits of gemm_chain.cu, for all sizes,
 * or, with K in parts, those of the sum of the parts. Method: random operands in padded matrices, all choices
 * that support the product, memory around C unchanged. */
#include "tests/support/test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_rng.h"
#include "kernels/cuda/cuda_internal.h"
#include "kernels/cuda/gemm/gemm_small.h"

#define MAX_ROWS 128
#define MAX_COLS 4096
#define PADDING  8 /* elements after every row */

static struct rk_cuda_device *dev;
static struct rk_cuda_stream *stream;

static const struct gemm_case {
    int64_t m, n, k;
    bool has_bias;
} cases[] = {
    {1, 8, 16, false},      {1, 1536, 1536, true},   {5, 72, 40, true},      {8, 3000, 1000, false},
    {16, 2048, 1536, true}, {17, 1544, 520, false},  {31, 136, 4096, true},  {32, 96, 64, false},
    {33, 264, 72, true},    {64, 1536, 4096, false}, {64, 2048, 1536, true}, {65, 200, 192, false},
    {100, 1000, 328, true}, {128, 4096, 256, false}, {48, 3584, 2304, true}, {96, 64, 4096, false},
};

static void *take(size_t bytes)
{
    void *memory;

    assert_ok(rk_cuda_device_ops.alloc(dev, &memory, bytes));
    return memory;
}

/* Normal numbers, a block of them repeated; its size is prime, so that no two rows are equal. On the stream
 * of the products: cudaMemcpy() from pageable memory may return before the last bytes have arrived. */
static void randomize(void *device, size_t count, uint64_t stream_no)
{
    enum { BLOCK = 65521 };
    uint16_t *values = rk_calloc(count, sizeof(*values));
    struct rk_rng rng;

    rk_rng_init(&rng, rk_test_seed(), stream_no);
    for (size_t i = 0; i < count; i++) {
        float value;
        uint32_t bits;

        if (i >= BLOCK) {
            values[i] = values[i - BLOCK];
            continue;
        }
        value = (float)rk_rng_next_normal(&rng);
        memcpy(&bits, &value, sizeof(bits));
        values[i] = (uint16_t)(bits >> 16);
    }
    assert_int_equal(cudaMemcpyAsync(device, values, 2 * count, cudaMemcpyHostToDevice, stream->stream),
                     cudaSuccess);
    assert_int_equal(cudaStreamSynchronize(stream->stream), cudaSuccess);
    rk_free(values);
}

static rk_tensor_t padded(void *data, int64_t rows, int64_t cols)
{
    return rk_tensor_cols(rk_tensor_2d(data, RK_DTYPE_BF16, rows, cols + PADDING), 0, cols);
}

/* Values used instead of a choice. */
enum { CHAIN = -1, OPERATOR = -2 };

/* Returns C and the memory around it after a run. */
static void run_parts(struct rk_gemm_args args, int choice, int num_parts, uint16_t *out, size_t count)
{
    assert_int_equal(cudaMemsetAsync(args.c.data, 0xee, 2 * count, stream->stream), cudaSuccess);
    if (choice == CHAIN)
        assert_ok(rk_cuda_gemm_chain(dev, stream, &args));
    else if (choice == OPERATOR)
        assert_ok(rk_cuda_op_gemm(dev, stream, &args));
    else
        assert_ok(rk_gemm_small_run(dev, stream, choice, num_parts, &args));
    assert_int_equal(cudaStreamSynchronize(stream->stream), cudaSuccess);
    assert_int_equal(cudaMemcpy(out, args.c.data, 2 * count, cudaMemcpyDeviceToHost), cudaSuccess);
}

static void run(struct rk_gemm_args args, int choice, uint16_t *out, size_t count)
{
    run_parts(args, choice, 1, out, count);
}

/* In short test runs every fifth choice is tested, with a different offset for each case. */
static int choice_step(void)
{
    return rk_test_is_quick() ? 5 : 1;
}

static int first_choice(size_t number)
{
    return (int)number % choice_step();
}

static void test_gemm_small_all_choices_have_bits_of_chain(void **state)
{
    void *a = take(2 * MAX_ROWS * (MAX_COLS + PADDING)), *b = take(2 * MAX_COLS * (MAX_COLS + PADDING));
    void *c = take(2 * MAX_ROWS * (MAX_COLS + PADDING)), *bias = take(2 * MAX_COLS);

    (void)state;
    randomize(a, MAX_ROWS * (MAX_COLS + PADDING), 1);
    randomize(b, (size_t)MAX_COLS * (MAX_COLS + PADDING), 2);
    randomize(bias, MAX_COLS, 3);
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        const struct gemm_case *test = &cases[i];
        size_t count = (size_t)(test->m * (test->n + PADDING));
        uint16_t *expected, *actual;
        struct rk_gemm_args args = {.c = padded(c, test->m, test->n),
                                    .a = padded(a, test->m, test->k),
                                    .b = padded(b, test->n, test->k),
                                    .trans_b = true,
                                    .strict = true,
                                    .alpha = 1.0F};
        int choices[RK_GEMM_SMALL_MAX_CHOICES], num_choices;

        if (!rk_test_in_part())
            continue;
        expected = rk_calloc(count, 2);
        actual = rk_calloc(count, 2);
        if (test->has_bias)
            args.bias = rk_tensor_1d(bias, RK_DTYPE_BF16, test->n);
        num_choices = rk_gemm_small_choices(dev, &args, 1, choices);
        assert_true(num_choices > 0);
        run(args, CHAIN, expected, count);
        for (int j = first_choice(i); j < num_choices; j += choice_step()) {
            char text[32];

            args.b_is_settled = j % 2 > 0;
            run(args, choices[j], actual, count);
            if (memcmp(actual, expected, 2 * count) != 0)
                fail_msg("m=%lld n=%lld k=%lld: %s has other bits", (long long)test->m, (long long)test->n,
                         (long long)test->k, rk_gemm_small_name(choices[j], text, sizeof(text)));
        }
        rk_free(expected);
        rk_free(actual);
    }
    rk_cuda_device_ops.free(dev, a);
    rk_cuda_device_ops.free(dev, b);
    rk_cuda_device_ops.free(dev, c);
    rk_cuda_device_ops.free(dev, bias);
}

static uint16_t to_bf16(float value)
{
    uint32_t bits;

    memcpy(&bits, &value, sizeof(bits));
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

/* The sum of the chains over `part` columns of K each, in f32 and in ascending order, rounded once. */
static void sum_parts(struct rk_gemm_args args, int64_t part, uint16_t *out)
{
    int64_t m = args.c.shape[0], n = args.c.shape[1], k = args.a.shape[1];
    size_t count = (size_t)(m * n);
    float *sum = rk_calloc(count, sizeof(*sum)), *next = rk_calloc(count, sizeof(*next));
    void *device = take(count * sizeof(*next));

    for (int64_t begin = 0; begin < k; begin += part) {
        int64_t length = RK_MIN(part, k - begin);
        struct rk_gemm_args slice = args;

        slice.a = rk_tensor_cols(args.a, begin, length);
        slice.b = rk_tensor_cols(args.b, begin, length);
        slice.c = rk_tensor_2d(device, RK_DTYPE_F32, m, n);
        assert_ok(rk_cuda_gemm_chain(dev, stream, &slice));
        assert_int_equal(cudaStreamSynchronize(stream->stream), cudaSuccess);
        assert_int_equal(cudaMemcpy(next, device, count * sizeof(*next), cudaMemcpyDeviceToHost),
                         cudaSuccess);
        for (size_t i = 0; i < count; i++)
            sum[i] = begin == 0 ? next[i] : sum[i] + next[i];
    }
    for (size_t i = 0; i < count; i++)
        out[i] = to_bf16(sum[i]);
    rk_cuda_device_ops.free(dev, device);
    rk_free(sum);
    rk_free(next);
}

static void check_parts(struct rk_gemm_args args, int num_parts)
{
    int64_t boxes = (args.a.shape[1] + 63) / 64, part = (boxes + 4 * num_parts - 1) / (4 * num_parts) * 256;
    size_t count = (size_t)(args.c.shape[0] * args.c.shape[1]);
    uint16_t *expected = rk_calloc(count, 2), *actual = rk_calloc(count, 2);
    int choices[RK_GEMM_SMALL_MAX_CHOICES];
    int num_choices = rk_gemm_small_choices(dev, &args, num_parts, choices);

    assert_true(num_choices > 0);
    sum_parts(args, part, expected);
    for (int j = 0; j < num_choices; j += choice_step()) {
        char text[32];

        args.b_is_settled = j % 2 > 0;
        run_parts(args, choices[j], num_parts, actual, count);
        if (memcmp(actual, expected, 2 * count) != 0)
            fail_msg("m=%lld n=%lld k=%lld in %d parts: %s has other bits", (long long)args.c.shape[0],
                     (long long)args.c.shape[1], (long long)args.a.shape[1], num_parts,
                     rk_gemm_small_name(choices[j], text, sizeof(text)));
    }
    rk_free(expected);
    rk_free(actual);
}

/* Goal: with K in parts the bits are those of the sum of the parts' chains, for every tile; fast numerics use
 * them.
 */
static void test_gemm_small_parts_have_bits_of_their_sum(void **state)
{
    static const struct gemm_case parts_cases[] = {
        {5, 72, 1000, false}, {33, 264, 520, false}, {17, 1000, 8192, false}, {64, 512, 4096, false}};
    void *a = take(2 * 64 * (size_t)8192), *b = take(2 * 1000 * (size_t)8192),
         *c = take(2 * 64 * (size_t)1000);

    (void)state;
    randomize(a, 64 * (size_t)8192, 6);
    randomize(b, 1000 * (size_t)8192, 7);
    for (size_t i = 0; i < RK_ARRAY_LEN(parts_cases); i++) {
        const struct gemm_case *test = &parts_cases[i];
        struct rk_gemm_args args = {.c = rk_tensor_2d(c, RK_DTYPE_BF16, test->m, test->n),
                                    .a = rk_tensor_2d(a, RK_DTYPE_BF16, test->m, test->k),
                                    .b = rk_tensor_2d(b, RK_DTYPE_BF16, test->n, test->k),
                                    .trans_b = true,
                                    .alpha = 1.0F};

        if (!rk_test_in_part() || (rk_test_is_quick() && test->k > 4000))
            continue;
        check_parts(args, 2);
        check_parts(args, 4);
        if (i == RK_ARRAY_LEN(parts_cases) - 1) { /* the operator with fast numerics */
            size_t count = (size_t)(test->m * test->n);
            uint16_t *expected = rk_calloc(count, 2), *actual = rk_calloc(count, 2);

            sum_parts(args, 1024, expected);
            assert_int_equal(rk_gemm_small_parts(&args), 4);
            run(args, OPERATOR, actual, count);
            assert_memory_equal(actual, expected, 2 * count);
            rk_free(expected);
            rk_free(actual);
        }
    }
    rk_cuda_device_ops.free(dev, a);
    rk_cuda_device_ops.free(dev, b);
    rk_cuda_device_ops.free(dev, c);
}

/* Goal: with a fused swiglu, every choice has the bits of the chain followed by swiglu. */
static void test_gemm_small_swiglu_has_bits_of_its_parts(void **state)
{
    static const struct gemm_case swiglu_cases[] = {{64, 1040, 512, false}, {9, 208, 136, false}};
    void *a = take(2 * 64 * 512), *b = take(2 * 1040 * 512), *c = take(2 * 64 * 1040), *y = take(64 * 1040);
    uint16_t *expected = rk_calloc(64 * 520, 2), *actual = rk_calloc(64 * 520, 2);

    (void)state;
    randomize(a, 64 * 512, 8);
    randomize(b, 1040 * 512, 9);
    for (size_t i = 0; i < RK_ARRAY_LEN(swiglu_cases); i++) {
        const struct gemm_case *test = &swiglu_cases[i];
        int64_t half = test->n / 2;
        size_t bytes = (size_t)(test->m * half) * 2;
        struct rk_gemm_args args = {.c = rk_tensor_2d(c, RK_DTYPE_BF16, test->m, test->n),
                                    .a = rk_tensor_2d(a, RK_DTYPE_BF16, test->m, test->k),
                                    .b = rk_tensor_2d(b, RK_DTYPE_BF16, test->n, test->k),
                                    .trans_b = true,
                                    .strict = true,
                                    .b_is_settled = true,
                                    .alpha = 1.0F};
        struct rk_swiglu_fwd_args swiglu = {.y = rk_tensor_2d(y, RK_DTYPE_BF16, test->m, half),
                                            .gate = rk_tensor_cols(args.c, 0, half),
                                            .up = rk_tensor_cols(args.c, half, half)};
        int choices[RK_GEMM_SMALL_MAX_CHOICES], num_choices;

        if (!rk_test_in_part())
            continue;
        assert_ok(rk_cuda_gemm_chain(dev, stream, &args));
        assert_ok(rk_cuda_op_swiglu_fwd(dev, stream, &swiglu));
        assert_int_equal(cudaStreamSynchronize(stream->stream), cudaSuccess);
        assert_int_equal(cudaMemcpy(expected, y, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
        args.swiglu = swiglu.y;
        num_choices = rk_gemm_small_choices(dev, &args, 1, choices);
        assert_true(num_choices > 0);
        for (int j = first_choice(i); j < num_choices; j += choice_step()) {
            char text[32];

            assert_int_equal(cudaMemsetAsync(y, 0xee, bytes, stream->stream), cudaSuccess);
            assert_ok(rk_gemm_small_run(dev, stream, choices[j], 1, &args));
            assert_int_equal(cudaStreamSynchronize(stream->stream), cudaSuccess);
            assert_int_equal(cudaMemcpy(actual, y, bytes, cudaMemcpyDeviceToHost), cudaSuccess);
            if (memcmp(actual, expected, bytes) != 0)
                fail_msg("m=%lld: %s with swiglu has other bits", (long long)test->m,
                         rk_gemm_small_name(choices[j], text, sizeof(text)));
        }
    }
    rk_free(expected);
    rk_free(actual);
    rk_cuda_device_ops.free(dev, a);
    rk_cuda_device_ops.free(dev, b);
    rk_cuda_device_ops.free(dev, c);
    rk_cuda_device_ops.free(dev, y);
}

/* Runs the operator inside a graph. */
static void run_recorded(struct rk_gemm_args args, uint16_t *out, size_t count)
{
    void *graph;

    assert_int_equal(cudaMemsetAsync(args.c.data, 0xee, 2 * count, stream->stream), cudaSuccess);
    assert_ok(rk_cuda_device_ops.graph_begin(dev, stream));
    assert_ok(rk_cuda_op_gemm(dev, stream, &args));
    assert_ok(rk_cuda_device_ops.graph_end(dev, stream, &graph));
    assert_ok(rk_cuda_device_ops.graph_launch(dev, stream, graph));
    assert_int_equal(cudaStreamSynchronize(stream->stream), cudaSuccess);
    assert_int_equal(cudaMemcpy(out, args.c.data, 2 * count, cudaMemcpyDeviceToHost), cudaSuccess);
    rk_cuda_device_ops.graph_destroy(dev, graph);
}

static void check_operator(int64_t n, int64_t k)
{
    enum { M = 64 };
    size_t count = (size_t)(M * n);
    void *a = take(2 * (size_t)(M * k)), *b = take(2 * (size_t)(n * k)), *c = take(2 * count);
    uint16_t *expected = rk_calloc(count, 2), *actual = rk_calloc(count, 2);
    struct rk_gemm_args args = {.c = rk_tensor_2d(c, RK_DTYPE_BF16, M, n),
                                .a = rk_tensor_2d(a, RK_DTYPE_BF16, M, k),
                                .b = rk_tensor_2d(b, RK_DTYPE_BF16, n, k),
                                .trans_b = true,
                                .strict = true,
                                .alpha = 1.0F};
    const struct rk_workspace workspace = rk_cuda_workspace_gemm(dev, &args);

    assert_ok(rk_cuda_device_ops.reserve(dev, stream, &workspace));
    randomize(a, (size_t)(M * k), 4);
    randomize(b, (size_t)(n * k), 5);
    for (int64_t m = M / 2; m <= M; m += M / 2) { /* 32 is used first in a graph, 64 is not */
        args.c.shape[0] = args.a.shape[0] = m;
        count = (size_t)(m * n);
        for (int i = m == M; i < 4; i++) {
            args.alpha = i == 2 ? 2.0F : 1.0F;
            run(args, CHAIN, expected, count);
            if (i == 0 || i == 3)
                run_recorded(args, actual, count);
            else
                run(args, OPERATOR, actual, count);
            if (memcmp(actual, expected, 2 * count) != 0)
                fail_msg("m=%lld, call %d has other bits", (long long)m, i);
        }
    }
    rk_free(expected);
    rk_free(actual);
    rk_cuda_device_ops.free(dev, a);
    rk_cuda_device_ops.free(dev, b);
    rk_cuda_device_ops.free(dev, c);
}

/* Goal: the operator's bits are the same with and without this kernel; its choice for one product is not used
 * for another product of the same plan that the kernel does not support. Method: first in a graph, where
 * timing is impossible, then directly, with another factor, and in a graph again. */
static void test_gemm_small_operator_has_bits_of_chain(void **state)
{
    (void)state;
    if (!rk_test_in_part())
        rk_test_skip("belongs to another part");
    if (rk_test_is_quick())
        check_operator(128, 256);
    else
        check_operator(1536, 4096);
}

/* Goal: products that the kernel does not support are refused before a launch. */
static void test_gemm_small_other_products_have_no_choices(void **state)
{
    void *nowhere = (void *)(uintptr_t)4096;
    struct rk_gemm_args good = {.c = rk_tensor_2d(nowhere, RK_DTYPE_BF16, 4, 16),
                                .a = rk_tensor_2d(nowhere, RK_DTYPE_BF16, 4, 32),
                                .b = rk_tensor_2d(nowhere, RK_DTYPE_BF16, 16, 32),
                                .trans_b = true,
                                .alpha = 1.0F};
    int choices[RK_GEMM_SMALL_MAX_CHOICES];
    struct rk_gemm_args bad[6];

    (void)state;
    assert_true(rk_gemm_small_choices(dev, &good, 1, choices) > 0);
    for (int i = 0; i < 6; i++)
        bad[i] = good;
    bad[0].beta = 1.0F;
    bad[1].trans_b = false;
    bad[2].c.dtype = RK_DTYPE_F32;
    bad[3].c.shape[0] = bad[3].a.shape[0] = 129;
    bad[4].b.data = (void *)(uintptr_t)4104;
    bad[5].alpha = 2.0F;
    for (int i = 0; i < 6; i++)
        assert_int_equal(rk_gemm_small_choices(dev, &bad[i], 1, choices), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gemm_small_all_choices_have_bits_of_chain),
        cmocka_unit_test(test_gemm_small_parts_have_bits_of_their_sum),
        cmocka_unit_test(test_gemm_small_swiglu_has_bits_of_its_parts),
        cmocka_unit_test(test_gemm_small_operator_has_bits_of_chain),
        cmocka_unit_test(test_gemm_small_other_products_have_no_choices),
    };
    const struct rk_device_config config = {.struct_size = sizeof(config), .name = "cuda:0"};
    struct rk_status *st;
    void *handle = NULL;
    int failed;

    st = rk_cuda_device_ops.open(&handle, 0, &config);
    if (st)
        rk_test_skip_program("%s", rk_status_message(st));
    dev = handle;
    if (!dev->has_sm90a)
        rk_test_skip_program("the device has no sm90a");
    st = rk_cuda_device_ops.stream_create(dev, &handle, "test");
    if (st)
        return EXIT_FAILURE;
    stream = handle;
    failed = cmocka_run_group_tests(tests, NULL, NULL);
    rk_cuda_device_ops.stream_destroy(dev, stream);
    rk_cuda_device_ops.close(dev);
    return failed;
}
