/* Training that recomputes activations instead of keeping them. */
#include "tests/support/test.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "tests/support/models.h"

#define NUM_LAYERS 5
#define CONFIG(type)                                                                \
    "{\"model_type\": \"" type                                                      \
    "\", \"hidden_size\": 32, \"intermediate_size\": 48, \"num_hidden_layers\": 5," \
    " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"vocab_size\": 67, " \
    "\"max_position_embeddings\": 64, \"initializer_range\": 0.15}"
#define NUM_TOKENS 40
#define NUM_MICRO  3 /* the last one is empty */

struct batch {
    struct rk_packed packed;
    int32_t tokens[NUM_TOKENS], positions[NUM_TOKENS], labels[NUM_TOKENS], cu_seqlens[3];
};

static void make_batch(struct batch *batch, int32_t index)
{
    int32_t num_tokens = index == NUM_MICRO - 1 ? 0 : NUM_TOKENS, first = 13 + index;

    *batch = (struct batch){.cu_seqlens = {0, num_tokens > 0 ? first : 0, num_tokens}};
    for (int32_t t = 0; t < num_tokens; t++) {
        batch->tokens[t] = (5 * t + 3 + index) % 67;
        batch->positions[t] = t < first ? t : t - first;
        batch->labels[t] = t % 3 == 0 ? RK_LABEL_NONE : (11 * t + 1) % 67;
    }
    batch->packed = (struct rk_packed){.num_seqs = num_tokens > 0 ? 2 : 0,
                                       .num_tokens = num_tokens,
                                       .max_seqlen = num_tokens > 0 ? NUM_TOKENS - first : 0,
                                       .tokens = batch->tokens,
                                       .positions = batch->positions,
                                       .cu_seqlens = batch->cu_seqlens,
                                       .labels = batch->labels};
}

/* The results of a training step: all gradients before it, all parameters after it, and its memory. */
struct outcome {
    double *values;
    int64_t count;
    uint64_t peak_bytes;
    int64_t num_alive; /* number of progress reports of a pass */
};

static void gather(struct rk_model *model, rk_test_kind_t kind, struct outcome *out)
{
    for (int64_t i = 0; i < rk_model_num_params(model); i++) {
        const struct rk_param *param = rk_model_param_at(model, i);

        assert_ok(rk_test_gather(model, i, kind, out->values + out->count));
        out->count += param->shape[0] * param->shape[1];
    }
}

static void count_alive(void *user)
{
    ++*(int64_t *)user;
}

static struct outcome train(const char *config, rk_dtype_t dtype, int64_t recompute_num_layers)
{
    struct rk_optim_config optim = rk_test_adamw(1e-2, 0.1, 1.0);
    struct rk_step_stats stats;
    struct rk_test_model test;
    struct outcome out = {0};
    const struct rk_engine_hooks hooks = {.user = &out.num_alive, .on_alive = count_alive};

    assert_ok(rk_test_model_open(
        &test,
        &(struct rk_test_model_spec){
            .config = config, .seed = 3, .dtype = dtype, .recompute_num_layers = recompute_num_layers}));
    assert_ok(rk_test_enable_training(test.model, &optim));
    assert_ok(rk_trainer_begin(rk_model_trainer(test.model)));
    for (int32_t m = 0; m < NUM_MICRO; m++) {
        struct batch batch;

        make_batch(&batch, m);
        assert_ok(rk_trainer_micro_batch(rk_model_trainer(test.model),
                                         &(struct rk_train_micro){.packed = &batch.packed,
                                                                  .temperature = 0.8,
                                                                  .outputs = RK_HEAD_BIT(RK_HEAD_LOG_PROBS),
                                                                  .loss_fn = rk_test_weigh_tokens,
                                                                  .user = &batch.packed,
                                                                  .hooks = &hooks}));
    }
    out.peak_bytes = rk_model_get_memory(test.model).activation_peak_bytes;
    out.values = rk_calloc(2 * (size_t)rk_model_num_elements(test.model), sizeof(*out.values));
    gather(test.model, RK_TEST_GRADIENT, &out);
    assert_ok(rk_trainer_step(rk_model_trainer(test.model), &stats));
    gather(test.model, RK_TEST_VALUE, &out);
    rk_test_model_close(&test);
    return out;
}

/* Goal: recomputed activations have the same bits. Method: all gradients and the parameters after a step, for
 * parts that divide the layers, that do not, and that have more layers than the model. */
static void test_recompute_of_any_part_gives_the_same_bits(void **state)
{
    static const int64_t parts[] = {1, 2, NUM_LAYERS, NUM_LAYERS + 2};
    static const struct {
        const char *config;
        rk_dtype_t dtype;
    } cases[] = {
        {CONFIG("llama"), RK_DTYPE_F32}, {CONFIG("qwen2"), RK_DTYPE_BF16}, {CONFIG("qwen3"), RK_DTYPE_BF16}};

    (void)state;
    for (size_t c = 0; c < RK_ARRAY_LEN(cases); c++) {
        struct outcome expected = train(cases[c].config, cases[c].dtype, 0);

        for (size_t p = 0; p < RK_ARRAY_LEN(parts); p++) {
            struct outcome actual = train(cases[c].config, cases[c].dtype, parts[p]);

            assert_int_equal(actual.count, expected.count);
            assert_memory_equal(actual.values, expected.values,
                                (size_t)expected.count * sizeof(*expected.values));
            rk_free(actual.values);
        }
        rk_free(expected.values);
    }
}

/* Goal: a pass reports progress for every block (forward, recomputation, backward) and for the head. */
static void test_pass_reports_progress(void **state)
{
    enum { NUM_BLOCKS = 2 * NUM_LAYERS * NUM_MICRO, NUM_HEADS = 2 * (NUM_MICRO - 1) };
    struct outcome none = train(CONFIG("llama"), RK_DTYPE_F32, 0);
    struct outcome again = train(CONFIG("llama"), RK_DTYPE_F32, 2);

    (void)state;
    assert_int_equal(none.num_alive, 2 * NUM_BLOCKS + NUM_HEADS);
    assert_int_equal(again.num_alive, 3 * NUM_BLOCKS + NUM_HEADS);
    rk_free(none.values);
    rk_free(again.values);
}

/* Goal: recomputation reduces memory. Method: the peak of a micro-batch decreases with the number of layers
 * per part. */
static void test_recompute_of_smaller_parts_needs_less_memory(void **state)
{
    struct outcome none = train(CONFIG("qwen2"), RK_DTYPE_F32, 0);
    struct outcome two = train(CONFIG("qwen2"), RK_DTYPE_F32, 2);
    struct outcome one = train(CONFIG("qwen2"), RK_DTYPE_F32, 1);

    (void)state;
    print_message("peaks: %llu, %llu and %llu bytes\n", (unsigned long long)none.peak_bytes,
                  (unsigned long long)two.peak_bytes, (unsigned long long)one.peak_bytes);
    assert_true(two.peak_bytes < none.peak_bytes);
    assert_true(one.peak_bytes < two.peak_bytes);
    rk_free(none.values);
    rk_free(two.values);
    rk_free(one.values);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_recompute_of_any_part_gives_the_same_bits),
        cmocka_unit_test(test_pass_reports_progress),
        cmocka_unit_test(test_recompute_of_smaller_parts_needs_less_memory),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
