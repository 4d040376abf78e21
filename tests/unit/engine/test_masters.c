/* Parameters in bf16 and their masters in f32. */
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "engine/optim/trainer.h"
#include "tests/support/models.h"

#define CONFIG                                                                                              \
    "{\"model_type\": \"qwen2\", \"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": 1," \
    " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"vocab_size\": 67, "                         \
    "\"max_position_embeddings\": 64, \"initializer_range\": 0.15}"
#define NUM_TOKENS 16

static const int32_t cu_seqlens[] = {0, NUM_TOKENS};

struct batch {
    struct rk_packed packed;
    int32_t tokens[NUM_TOKENS], positions[NUM_TOKENS], labels[NUM_TOKENS];
};

static void make_batch(struct batch *batch)
{
    for (int32_t t = 0; t < NUM_TOKENS; t++) {
        batch->tokens[t] = (5 * t + 3) % 67;
        batch->positions[t] = t;
        batch->labels[t] = (11 * t + 1) % 67;
    }
    batch->packed = (struct rk_packed){.num_seqs = 1,
                                       .num_tokens = NUM_TOKENS,
                                       .max_seqlen = NUM_TOKENS,
                                       .tokens = batch->tokens,
                                       .positions = batch->positions,
                                       .cu_seqlens = cu_seqlens,
                                       .labels = batch->labels};
}

static void run_steps(struct rk_model *model, struct batch *batch, int count)
{
    struct rk_step_stats stats;
    double loss;

    for (int step = 0; step < count; step++) {
        assert_ok(rk_test_mean_pass(&loss, model, &batch->packed));
        assert_ok(rk_trainer_step(rk_model_trainer(model), &stats));
        assert_false(stats.was_skipped);
    }
}

/* `dir` NULL: CONFIG, at random. */
static void open_model(struct rk_test_model *test, const char *dir, rk_dtype_t dtype)
{
    assert_ok(rk_test_model_open(
        test,
        &(struct rk_test_model_spec){.config = dir ? NULL : CONFIG, .dir = dir, .seed = 3, .dtype = dtype}));
}

static void open_training(struct rk_test_model *test, const char *dir, double lr)
{
    struct rk_optim_config optim = rk_test_adamw(lr, 0, 0);

    open_model(test, dir, RK_DTYPE_BF16);
    assert_ok(rk_test_enable_training(test->model, &optim));
}

/* Every parameter is its master, rounded; returns how many lost something by that. */
static int64_t count_rounded(const struct rk_model *model)
{
    const float *masters = model->core->masters.values;
    const uint16_t *params = model->core->values;
    int64_t count = 0;

    assert_non_null(masters);
    for (int64_t i = 0; i < model->core->params.num_elements; i++) {
        assert_int_equal(params[i], rk_f32_to_bf16(masters[i]));
        count += rk_bf16_to_f32(params[i]) != masters[i];
    }
    return count;
}

/* Goal: masters are initialized with the parameters' values before rounding, where the source has more
 * bits. */
static void test_masters_start_as_the_parameters_unrounded(void **state)
{
    char *narrow = rk_test_fixture_path("golden/qwen2_tiny"),
         *wide = rk_test_fixture_path("golden/llama_tiny");
    struct rk_test_model test, exact;

    (void)state;
    open_training(&test, NULL, 1e-3);
    assert_int_equal(count_rounded(test.model), 0);
    assert_ok(rk_model_init_random(test.model, 4, NULL)); /* masters follow another initialization */
    assert_int_equal(count_rounded(test.model), 0);
    rk_test_model_close(&test);

    open_training(&test, wide, 1e-3);
    assert_int_equal(count_rounded(test.model), 0);
    assert_ok(rk_model_load_hf(test.model, wide, NULL));
    assert_true(count_rounded(test.model) > 1000);
    open_model(&exact, wide, RK_DTYPE_F32);
    assert_memory_equal(test.model->core->masters.values, exact.model->core->values,
                        (size_t)exact.model->core->params.num_elements * sizeof(float));
    rk_test_model_close(&exact);
    rk_test_model_close(&test);

    open_training(&test, narrow, 1e-3);
    assert_ok(rk_model_load_hf(test.model, narrow, NULL));
    assert_int_equal(count_rounded(test.model), 0); /* a bf16 file has no more bits */
    rk_test_model_close(&test);
    rk_free(narrow);
    rk_free(wide);
}

/* Goal: a training and an inference model load the same parameters from a file. */
static void test_load_of_f32_file_rounds_alike_with_and_without_training(void **state)
{
    char *wide = rk_test_fixture_path("golden/llama_tiny");
    struct rk_test_model trains, other;

    (void)state;
    open_training(&trains, wide, 1e-3);
    assert_ok(rk_model_load_hf(trains.model, wide, NULL));
    open_model(&other, wide, RK_DTYPE_BF16);
    assert_memory_equal(trains.model->core->values, other.model->core->values,
                        (size_t)other.model->core->params.num_elements * sizeof(uint16_t));
    rk_test_model_close(&trains);
    rk_test_model_close(&other);
    rk_free(wide);
}

/* Goal: small updates accumulate in the masters. Method: steps of 5e-5 at norm weights of 1, where
 * neighbouring bf16 values differ by 2^-8 = 4e-3. One step is lost by rounding; after a hundred the
 * parameters equal those of a model in f32. */
static void test_many_tiny_updates_are_not_lost(void **state)
{
    struct rk_optim_config optim = rk_test_adamw(5e-5, 0, 0);
    struct rk_test_model test, exact;
    struct batch batch;
    const struct rk_placement *norm;
    int64_t num_moved = 0;

    (void)state;
    make_batch(&batch);
    open_training(&test, NULL, 5e-5);
    open_model(&exact, NULL, RK_DTYPE_F32);
    assert_ok(rk_test_enable_training(exact.model, &optim));
    norm = rk_model_placement_at(test.model, rk_model_find_param(test.model, "model.norm.weight"));
    for (int round = 0; round < 2; round++) {
        const uint16_t *params = (const uint16_t *)test.model->core->values + norm->offset;
        const float *masters = (const float *)test.model->core->masters.values + norm->offset;
        const float *expected = (const float *)exact.model->core->values + norm->offset;
        double error = 0, distance = 0;

        run_steps(test.model, &batch, round == 0 ? 1 : 99);
        run_steps(exact.model, &batch, round == 0 ? 1 : 99);
        (void)count_rounded(test.model);
        for (int64_t i = 0; i < norm->local_shape[0]; i++) {
            error += fabs((double)masters[i] - (double)expected[i]);
            distance += fabs((double)expected[i] - 1);
            num_moved += params[i] != rk_f32_to_bf16(1);
        }
        assert_true(round == 0 ? num_moved == 0 : num_moved > norm->local_shape[0] / 2);
        assert_below("masters against f32", error / distance, RK_TOL_BF16_MODEL);
    }
    rk_test_model_close(&test);
    rk_test_model_close(&exact);
}

/* Goal: values are written to the masters of this shard only. Method: ranges before, across both ends of,
 * inside, around and after the parts of four buckets, elements 10 to 19, 30 to 39 and so on. */
static void test_set_masters_takes_what_lies_in_the_shard(void **state)
{
    static const struct {
        int64_t begin, count;
    } ranges[] = {{0, 10}, {5, 10}, {12, 3}, {15, 20}, {0, 64}, {40, 5}, {10, 10}, {20, 10}, {32, 30}};
    struct rk_test_model test;

    (void)state;
    open_model(&test, NULL, RK_DTYPE_F32); /* for its device */
    for (size_t r = 0; r < RK_ARRAY_LEN(ranges); r++) {
        const struct rk_shard_maps shards = {
            .of[RK_GRAD_DENSE] = {.num_elements = 80, .bucket_elements = 20, .num_shards = 2, .index = 1}};
        struct rk_model_core core = {
            .dtype = RK_DTYPE_BF16, .stream = test.stream, .masters = {.shards = &shards}};
        float values[64], masters[40];

        for (int i = 0; i < 64; i++)
            values[i] = (float)(ranges[r].begin + i);
        assert_ok(rk_device_alloc(test.device, &core.masters.values, sizeof(masters), "test"));
        assert_ok(rk_model_set_masters(&core, ranges[r].begin, ranges[r].count, values));
        memcpy(masters, core.masters.values, sizeof(masters));
        for (int64_t i = 0; i < 40; i++) {
            int64_t at = i / 10 * 20 + 10 + i % 10;
            bool is_covered = at >= ranges[r].begin && at < ranges[r].begin + ranges[r].count;

            assert_true(masters[i] == (is_covered ? (float)at : 0.0f));
        }
        rk_device_free(test.device, core.masters.values);
    }
    assert_ok(rk_model_set_masters(test.model->core, 0, 4, NULL));
    rk_test_model_close(&test);
}

/* Goal: the report of memory counts masters. */
static void test_memory_report_of_bf16_model_counts_masters(void **state)
{
    struct rk_model_memory memory;
    struct rk_test_model test;
    uint64_t count;

    (void)state;
    open_training(&test, NULL, 1e-3);
    memory = rk_model_get_memory(test.model);
    count = (uint64_t)test.model->core->params.num_elements;
    assert_int_equal(memory.param_bytes, 2 * count + 2 * 64 * 8 * sizeof(float)); /* plus rotary tables */
    assert_int_equal(memory.grad_bytes, 4 * count);
    assert_int_equal(memory.master_bytes, 4 * count);
    assert_int_equal(memory.optimizer_bytes, 8 * count);
    rk_test_model_close(&test);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_masters_start_as_the_parameters_unrounded),
        cmocka_unit_test(test_load_of_f32_file_rounds_alike_with_and_without_training),
        cmocka_unit_test(test_many_tiny_updates_are_not_lost),
        cmocka_unit_test(test_set_masters_takes_what_lies_in_the_shard),
        cmocka_unit_test(test_memory_report_of_bf16_model_counts_masters),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
