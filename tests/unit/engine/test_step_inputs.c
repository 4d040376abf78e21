/* The flattened inputs of a step, in the form that kernels use. Without a model, on the CPU device. */
#include "tests/support/test.h"

#include <string.h>

#include "engine/rollout/rollout.h"
#include "kernels/rk_kernels.h"

#define MAX_SEQS   4
#define MAX_TOKENS 64

struct fixture {
    struct rk_device *device;
    struct rk_stream *stream;
    struct rk_arena *arena;
    struct rk_kv_block_pool pool;
    struct rk_batcher batcher;
    struct rk_step_plan plan;
    struct rk_step_inputs inputs;
    struct rk_step_device step;
    struct rk_rollout_request requests[MAX_SEQS];
    struct rk_rollout_result results[MAX_SEQS];
    int32_t prompts[MAX_SEQS][MAX_TOKENS], tokens[MAX_SEQS][MAX_TOKENS];
    float log_probs[MAX_SEQS][MAX_TOKENS];
};

/* Requests 0, 1, ... with prompts of 3, 20, 37, ... tokens. */
static void fixture_init(struct fixture *f, int num_requests)
{
    const struct rk_rollout_config config = {
        .max_num_seqs = MAX_SEQS, .max_num_batched_tokens = 100, .max_model_len = MAX_TOKENS};
    const struct rk_device_config device = {.struct_size = sizeof(device), .name = "cpu", .num_threads = 1};

    memset(f, 0, sizeof(*f));
    f->arena = rk_arena_create(4096, 0);
    assert_ok(rk_device_open(&f->device, &device));
    assert_ok(rk_stream_create(&f->stream, f->device, "test"));
    assert_ok(rk_kv_block_pool_init(&f->pool, f->arena, 17));
    assert_ok(rk_batcher_init(&f->batcher, f->arena, &config, &f->pool));
    assert_ok(rk_step_plan_init(&f->plan, f->arena, MAX_SEQS));
    assert_ok(rk_step_inputs_init(&f->inputs, f->arena, f->device, &f->batcher));
    for (int i = 0; i < num_requests; i++) {
        for (int t = 0; t < MAX_TOKENS; t++)
            f->prompts[i][t] = 100 * i + t;
        f->requests[i] = (struct rk_rollout_request){.prompt = f->prompts[i],
                                                     .prompt_len = 3 + 17 * i,
                                                     .max_tokens = 5,
                                                     .temperature = 1.0F,
                                                     .top_p = 1.0F,
                                                     .stream = (uint64_t)i + 1};
        f->results[i] = (struct rk_rollout_result){.tokens = f->tokens[i], .log_probs = f->log_probs[i]};
    }
    rk_batcher_begin(&f->batcher, f->requests, num_requests, f->results);
}

static void fixture_fini(struct fixture *f)
{
    rk_batcher_end(&f->batcher);
    rk_step_inputs_fini(&f->inputs);
    rk_stream_destroy(f->stream);
    rk_device_close(f->device);
    rk_arena_destroy(f->arena);
}

static void write_step(struct fixture *f, int32_t num_rows)
{
    rk_batcher_plan(&f->batcher, &f->plan);
    assert_ok(rk_step_inputs_write(&f->inputs, f->stream, &f->batcher, &f->plan, num_rows, &f->step));
}

/* Every row that samples gets this token. */
static void answer(struct fixture *f, int32_t token)
{
    for (int32_t i = 0; i < f->plan.num_entries; i++)
        if (f->plan.entries[i].samples)
            rk_batcher_append(&f->batcher, &f->plan.entries[i], token, 0.0F);
    rk_batcher_retire(&f->batcher);
}

static void expect_ints(rk_tensor_t t, const int32_t *expected, int64_t count)
{
    assert_int_equal(t.dtype, RK_DTYPE_I32);
    assert_int_equal(t.shape[0], count);
    for (int64_t i = 0; i < count; i++)
        assert_int_equal(((const int32_t *)t.data)[i], expected[i]);
}

static int32_t table_at(const struct fixture *f, int64_t row, int64_t col)
{
    rk_tensor_t table = f->step.paged.block_table;

    return ((const int32_t *)table.data)[row * table.row_stride + col];
}

static void test_write_prefill_lists_all_tokens(void **state)
{
    static const int32_t cu_q[] = {0, 3, 23}, seq_lens[] = {3, 20}, logits_index[] = {2, 22};
    struct fixture f;

    (void)state;
    fixture_init(&f, 2);
    write_step(&f, 0);
    assert_int_equal(f.step.paged.num_tokens, 23);
    expect_ints(f.step.paged.cu_q, cu_q, 3);
    expect_ints(f.step.paged.seq_lens, seq_lens, 2);
    expect_ints(f.step.paged.logits_index, logits_index, 2);
    for (int32_t t = 0; t < 23; t++) {
        int32_t row = t < 3 ? 0 : 1, p = t < 3 ? t : t - 3;

        assert_int_equal(((int32_t *)f.step.paged.tokens.data)[t], 100 * row + p);
        assert_int_equal(((int32_t *)f.step.paged.positions.data)[t], p);
        assert_int_equal(((int32_t *)f.step.source.data)[t], -1);
        assert_int_equal(((int32_t *)f.step.paged.slot_mapping.data)[t],
                         table_at(&f, row, p / RK_KV_BLOCK_TOKENS) * RK_KV_BLOCK_TOKENS +
                             p % RK_KV_BLOCK_TOKENS);
    }
    assert_int_equal(f.step.params[0].position, 3);
    assert_int_equal(f.step.params[1].position, 20);
    assert_int_equal(f.step.params[1].stream, 2);
    assert_int_equal(table_at(&f, 0, 1), 0); /* the shorter sequence's row ends with null blocks */
    fixture_fini(&f);
}

/* Goal: padding rows write to no cache position and attend to one key of the null block, and the addresses
 * depend on the number of rows only, not on the number of sequences. */
static void test_write_decode_is_padded(void **state)
{
    static const int32_t cu_q[] = {0, 1, 2, 3, 4}, seq_lens[] = {4, 21, 1, 1}, index[] = {0, 1, 2, 3},
                         tokens[] = {7, 7, 0, 0}, positions[] = {3, 20, 0, 0}, source[] = {-1, -1, -1, -1};
    struct fixture f;
    struct rk_step_device first;
    const int32_t *slots;

    (void)state;
    fixture_init(&f, 2);
    write_step(&f, 0);
    answer(&f, 7);
    write_step(&f, 4);
    first = f.step;
    assert_int_equal(f.step.paged.num_tokens, 4);
    assert_int_equal(f.step.paged.num_logits, 4);
    expect_ints(f.step.paged.cu_q, cu_q, 5);
    expect_ints(f.step.paged.seq_lens, seq_lens, 4);
    expect_ints(f.step.paged.logits_index, index, 4);
    expect_ints(f.step.paged.tokens, tokens, 4);
    expect_ints(f.step.paged.positions, positions, 4);
    expect_ints(f.step.source, source, 4);
    slots = f.step.paged.slot_mapping.data;
    assert_int_equal(slots[1], table_at(&f, 1, 1) * RK_KV_BLOCK_TOKENS + 4);
    for (int row = 2; row < 4; row++) {
        assert_int_equal(slots[row], -1);
        assert_int_equal(table_at(&f, row, 0), 0);
        assert_true(f.step.params[row].temperature == 0.0F);
    }
    assert_int_equal(f.step.paged.block_table.shape[1], MAX_TOKENS / RK_KV_BLOCK_TOKENS);

    rk_batcher_end(&f.batcher);
    rk_batcher_begin(&f.batcher, f.requests, 1, f.results);
    write_step(&f, 0);
    answer(&f, 7);
    write_step(&f, 4);
    assert_memory_equal(&f.step, &first, sizeof(first));
    fixture_fini(&f);
}

/* Goal: a step planned ahead takes its tokens from the rows of the previous step. */
static void test_write_ahead_names_the_source(void **state)
{
    static const int32_t source[] = {0, 1};
    struct fixture f;

    (void)state;
    fixture_init(&f, 2);
    write_step(&f, 0);
    write_step(&f, 0);
    expect_ints(f.step.source, source, 2);
    fixture_fini(&f);
}

/* Goal: block tables are copied to the device only if the sequence of a row has changed. */
static void test_write_copies_changed_tables_only(void **state)
{
    struct fixture f;
    int32_t *table;

    (void)state;
    fixture_init(&f, 3);
    write_step(&f, 0);
    table = f.inputs.table;
    answer(&f, 7);
    table[0] = -5;
    write_step(&f, 0);
    assert_int_equal(table[0], -5); /* the same sequences in the same rows: not copied */
    answer(&f, 7);
    rk_batcher_end(&f.batcher);
    rk_batcher_begin(&f.batcher, f.requests, 3, f.results);
    write_step(&f, 0);
    assert_int_equal(table[0], rk_batcher_blocks(&f.batcher, f.plan.entries[0].slot)[0]);
    fixture_fini(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_write_prefill_lists_all_tokens),
        cmocka_unit_test(test_write_decode_is_padded),
        cmocka_unit_test(test_write_ahead_names_the_source),
        cmocka_unit_test(test_write_copies_changed_tables_only),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
