/* Goal: attention over a latent keeps what is said of it, to the byte; the two forms of attention over its
 * cache agree with packed passes: in strict numerics bit for bit, in whatever rounds the heads come, and the
 * absorbed form up to the rounding of f64; gradients are those of its loss. Logits and gradients against
 * transformers: tests/golden. Layouts against one rank: tests/equivalence. */
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "engine/model/model.h"
#include "engine/nn/latent_internal.h"
#include "engine/rk_train.h"
#include "tests/support/answers.h"

enum { VOCAB_SIZE = RK_TEST_VOCAB_SIZE, NUM_TOKENS = RK_TEST_PACKED_TOKENS, MAX_LEN = RK_TEST_MAX_LEN };

/* The first layer has an MLP, the others experts. Products of the expanded form are fewer from 15 tokens a
 * sequence on. */
#define CONFIG(q_lora_rank, more)                                                                   \
    "{\"model_type\": \"deepseek_v3\", \"hidden_size\": 32, \"intermediate_size\": 48,"             \
    " \"num_hidden_layers\": 3, \"num_attention_heads\": 4, \"vocab_size\": 61,"                    \
    " \"max_position_embeddings\": 96, \"initializer_range\": 0.3, \"q_lora_rank\": " q_lora_rank   \
    ", \"kv_lora_rank\": 16, \"qk_nope_head_dim\": 12, \"qk_rope_head_dim\": 4, \"v_head_dim\": 8," \
    " \"first_k_dense_replace\": " more ", \"n_routed_experts\": 4, \"num_experts_per_tok\": 2,"    \
    " \"n_group\": 2, \"topk_group\": 2, \"moe_intermediate_size\": 8, \"rope_scaling\":"           \
    " {\"type\": \"yarn\", \"factor\": 4, \"mscale\": 1.0, \"mscale_all_dim\": 1.0,"                \
    " \"original_max_position_embeddings\": 24}}"
#define WITH_RANK    CONFIG("24", "1")
#define WITHOUT_RANK CONFIG("null", "1")
#define DENSE        CONFIG("24", "3")

static struct rk_test_model open_model(const char *config, rk_dtype_t dtype, rk_numerics_t numerics)
{
    const struct rk_test_model_spec spec = {
        .config = config, .seed = 5, .dtype = dtype, .numerics = numerics};
    struct rk_test_model test;

    assert_ok(rk_test_model_open(&test, &spec));
    return test;
}

/* --- what is kept --- */

/* Goal: random weights begin with a correction bias of zero. */
static void test_correction_bias_begins_with_zeros(void **state)
{
    struct rk_test_model test = open_model(WITH_RANK, RK_DTYPE_F32, RK_NUMERICS_FAST);
    int64_t param = rk_model_find_param(test.model, "model.layers.1.mlp.gate.e_score_correction_bias");
    double values[RK_PARAM_WIDE_PARTS * 4];

    (void)state;
    assert_true(param >= 0);
    assert_ok(rk_model_gather_param(test.model, param, values));
    for (size_t i = 0; i < RK_ARRAY_LEN(values); i++)
        assert_true(values[i] == 0);
    rk_test_model_close(&test);
}

/* Cache of DeepSeek-V3 and Moonlight: 512 + 64 values a token and layer. */
static void test_cache_is_one_tensor_of_the_latent(void **state)
{
    struct rk_test_model test = open_model(WITH_RANK, RK_DTYPE_BF16, RK_NUMERICS_FAST);
    const struct rk_block *block = &test.model->core->blocks[2];

    (void)state;
    assert_int_equal(block->decl.num_caches, 1);
    assert_int_equal(block->decl.caches[0].heads, 1);
    assert_int_equal(block->decl.caches[0].width, 16 + 4);
    assert_int_equal(rk_model_cache_bytes(test.model), 3 * (16 + 4) * 2);
    rk_test_model_close(&test);
}

/* Bytes that a forward pass keeps for the backward pass. */
static int64_t kept_bytes(const char *config)
{
    struct rk_test_model test = open_model(config, RK_DTYPE_F32, RK_NUMERICS_FAST);
    const struct rk_model_core *core = test.model->core;
    struct rk_pass_memory memory = {.arena = rk_step_arena_create(test.device),
                                    .host = rk_arena_create(RK_PASS_HOST_BLOCK_BYTES, 0)};
    int32_t ids[3 * NUM_TOKENS];
    struct rk_trunk_saved saved;
    struct rk_packed packed;
    struct rk_pass pass;
    rk_tensor_t out;
    size_t before;
    int64_t bytes;

    rk_test_fill_packed(&packed, ids);
    assert_ok(rk_model_begin_packed(test.model, &memory, &pass, &packed));
    before = rk_step_arena_mark(memory.arena).live_bytes;
    assert_ok(rk_trunk_fwd(core, &core->chunks[0], &pass, (rk_tensor_t){0}, &out, &saved));
    bytes = (int64_t)(rk_step_arena_mark(memory.arena).live_bytes - before);
    rk_step_arena_destroy(memory.arena);
    rk_arena_destroy(memory.host);
    rk_test_model_close(&test);
    return bytes;
}

/* Goal: neither keys nor values are kept, nor queries that a latent makes; to the byte. */
static void test_kept_activations_are_latents(void **state)
{
    /* Three layers, in values of four bytes: residual and statistic in front of both blocks, [gate; up];
     * the product down, what attention gave, its lse, the statistics of the norms of the latents. */
    int64_t rest = 2 * (32 + 1) + 2 * 48, attention = 4 * 8 + 4, kv = 16 + 4 + 1;

    (void)state;
    assert_int_equal(kept_bytes(DENSE), NUM_TOKENS * 4 * (3 * (rest + attention + kv + 24 + 1) + 32 + 1));
    /* Queries that the hidden state makes are kept. */
    assert_int_equal(kept_bytes(CONFIG("null", "3")),
                     NUM_TOKENS * 4 * (3 * (rest + attention + kv + 4 * 16) + 32 + 1));
}

/* --- attention over the cache --- */

static void set_expanded_bytes(struct rk_test_model *test, int64_t bytes)
{
    for (int64_t i = 0; i < test->model->core->num_blocks; i++) {
        struct rk_block *block = &test->model->core->blocks[i];

        if (block->ops == &rk_block_latent)
            ((struct rk_latent *)block->own)->expanded_bytes = bytes;
    }
}

static void check_strict(const char *config, rk_dtype_t dtype)
{
    struct rk_test_model test = open_model(config, dtype, RK_NUMERICS_STRICT);
    struct rk_test_answers all, few;

    rk_test_generate(&test, &all, 60, RK_TEST_NUM_REQUESTS, 512);
    set_expanded_bytes(&test, 1); /* a head at a time */
    rk_test_generate(&test, &few, 60, 2, 7);
    rk_test_expect_packed_bits(&test, &all, &few);
    rk_test_model_close(&test);
}

static void test_strict_generation_has_the_bits_of_packed_passes(void **state)
{
    (void)state;
    check_strict(WITH_RANK, RK_DTYPE_F32);
    check_strict(WITHOUT_RANK, RK_DTYPE_F32);
    check_strict(WITHOUT_RANK, RK_DTYPE_BF16);
}

/* Goal: the absorbed form is the same function as the expanded one. Method: fast generation in f64, in which
 * steps of few tokens a sequence take the first and long prompts the second, against packed passes; sampled
 * log-probs are fp32. */
static void test_fast_generation_equals_packed_passes(void **state)
{
    static const char *const configs[] = {WITH_RANK, WITHOUT_RANK};

    (void)state;
    for (size_t c = 0; c < RK_ARRAY_LEN(configs); c++) {
        struct rk_test_model test = open_model(configs[c], RK_DTYPE_F64, RK_NUMERICS_FAST);
        struct rk_test_answers all;

        rk_test_generate(&test, &all, 60, RK_TEST_NUM_REQUESTS, 512);
        for (int i = 0; i < RK_TEST_NUM_REQUESTS; i++) {
            double log_probs[MAX_LEN];

            rk_test_recompute(&test, &all, i, log_probs);
            for (int32_t t = 0; t < all.results[i].num_tokens; t++)
                assert_below("log-prob", fabs(all.log_probs[i][t] - log_probs[t]),
                             1e-6 * (1 + fabs(log_probs[t])));
        }
        rk_test_model_close(&test);
    }
}

/* Logits behind a prompt in a cache, by steps over it of `chunk` tokens. */
static void paged_logits(struct rk_test_model *test, int32_t length, int32_t chunk, double *out)
{
    enum { BLOCK = 16, BLOCKS = 8 };
    const struct rk_model_core *core = test->model->core;
    rk_tensor_t *caches = rk_calloc((size_t)core->num_caches, sizeof(*caches));
    int32_t tokens[MAX_LEN], positions[MAX_LEN], slots[MAX_LEN], table[BLOCKS] = {3, 1, 7, 5, 2, 6, 4, 0};
    int32_t num_logits = 1;

    for (int64_t i = 0; i < core->num_caches; i++)
        caches[i] = rk_tensor_4d(rk_calloc((size_t)BLOCKS * BLOCK * 20, sizeof(double)), RK_DTYPE_F64, BLOCKS,
                                 1, BLOCK, 20);
    for (int32_t begin = 0; begin < length; begin += chunk) {
        int32_t count = RK_MIN(chunk, length - begin), cu_q[2] = {0, count}, seq_len = begin + count;
        int32_t last = count - 1;
        struct rk_paged_step step = {.num_tokens = count, .num_seqs = 1, .num_logits = num_logits};
        rk_tensor_t logits;

        for (int32_t t = 0; t < count; t++) {
            int32_t p = begin + t;

            tokens[t] = (11 * p + 5) % VOCAB_SIZE;
            positions[t] = p;
            slots[t] = table[p / BLOCK] * BLOCK + p % BLOCK;
        }
        step.tokens = rk_tensor_1d(tokens, RK_DTYPE_I32, count);
        step.positions = rk_tensor_1d(positions, RK_DTYPE_I32, count);
        step.slot_mapping = rk_tensor_1d(slots, RK_DTYPE_I32, count);
        step.block_table = rk_tensor_2d(table, RK_DTYPE_I32, 1, BLOCKS);
        step.cu_q = rk_tensor_1d(cu_q, RK_DTYPE_I32, 2);
        step.seq_lens = rk_tensor_1d(&seq_len, RK_DTYPE_I32, 1);
        step.logits_index = rk_tensor_1d(&last, RK_DTYPE_I32, 1);
        step.caches = caches;
        assert_ok(rk_model_forward_paged(test->model, &step, NULL, &logits));
        memcpy(out, logits.data, VOCAB_SIZE * sizeof(double));
    }
    for (int64_t i = 0; i < core->num_caches; i++)
        rk_free(caches[i].data);
    rk_free(caches);
}

/* Goal: both forms, chosen by how many tokens a step has, in f64 to 1e-10. Method: one step of 60 tokens, of
 * 5 at a time, and one by one, against each other and a packed pass. */
static void test_forms_of_attention_agree_in_f64(void **state)
{
    enum { LENGTH = 60 };
    struct rk_test_model test = open_model(WITH_RANK, RK_DTYPE_F64, RK_NUMERICS_FAST);
    int32_t tokens[LENGTH], positions[LENGTH], labels[LENGTH];
    static const int32_t cu_seqlens[2] = {0, LENGTH}, chunks[] = {LENGTH, 5, 1};
    double *packed = rk_calloc((size_t)LENGTH * VOCAB_SIZE, sizeof(double)), logits[VOCAB_SIZE];

    (void)state;
    for (int32_t p = 0; p < LENGTH; p++) {
        tokens[p] = (11 * p + 5) % VOCAB_SIZE;
        positions[p] = p;
        labels[p] = RK_LABEL_NONE;
    }
    assert_ok(rk_model_logits(
        test.model, &(struct rk_packed){1, LENGTH, LENGTH, tokens, positions, cu_seqlens, labels, NULL},
        packed));
    for (size_t i = 0; i < RK_ARRAY_LEN(chunks); i++) {
        paged_logits(&test, LENGTH, chunks[i], logits);
        assert_below("logits", rk_test_error_by_max(logits, packed + (LENGTH - 1) * VOCAB_SIZE, VOCAB_SIZE),
                     1e-10);
    }
    rk_free(packed);
    rk_test_model_close(&test);
}

/* --- gradients --- */

static double run_backward(struct rk_model *model)
{
    int32_t ids[3 * NUM_TOKENS];
    struct rk_packed packed;
    double loss;

    rk_test_fill_packed(&packed, ids);
    assert_ok(rk_test_mean_pass(&loss, model, &packed));
    return loss;
}

/* The largest element of a gradient, and two anywhere, against central differences. */
static void check_gradient(struct rk_test_model *test, const char *name)
{
    int64_t param = rk_model_find_param(test->model, name), count, worst = 0;
    const double step = 1e-5;
    double *grad, *value;

    assert_true(param >= 0);
    count = rk_param_num_elements(rk_model_param_at(test->model, param));
    grad = rk_calloc((size_t)count, sizeof(*grad));
    value = (double *)test->model->core->values + rk_model_placement_at(test->model, param)->offset;
    run_backward(test->model);
    assert_ok(rk_trainer_gather_grad(rk_model_trainer(test->model), param, grad));
    for (int64_t i = 1; i < count; i++)
        worst = fabs(grad[i]) > fabs(grad[worst]) ? i : worst;
    for (int k = 0; k < 3; k++) {
        int64_t i = k == 0 ? worst : (worst + k * (count / 3 + 5)) % count;
        double kept = value[i], up, down;

        value[i] = kept + step;
        up = run_backward(test->model);
        value[i] = kept - step;
        down = run_backward(test->model);
        value[i] = kept;
        assert_below(name, fabs((up - down) / (2 * step) - grad[i]), 1e-6 * fabs(grad[worst]) + 1e-9);
    }
    assert_true(fabs(grad[worst]) > 1e-6);
    rk_free(grad);
}

static void test_gradients_match_differences(void **state)
{
    static const char *const names[] = {"model.layers.0.self_attn.q_a_proj.weight",
                                        "model.layers.1.self_attn.q_a_layernorm.weight",
                                        "model.layers.2.self_attn.q_b_proj.weight",
                                        "model.layers.1.self_attn.kv_a_layernorm.weight",
                                        "model.layers.1.self_attn.kv_a_proj_with_mqa.weight",
                                        "model.layers.0.self_attn.kv_b_proj.weight",
                                        "model.layers.2.self_attn.o_proj.weight"};
    struct rk_test_model test = open_model(DENSE, RK_DTYPE_F64, RK_NUMERICS_FAST);
    struct rk_optim_config optim = rk_test_adamw(1e-3, 0, 1);

    (void)state;
    assert_ok(rk_test_enable_training(test.model, &optim));
    for (size_t n = 0; n < RK_ARRAY_LEN(names); n++)
        check_gradient(&test, names[n]);
    rk_test_model_close(&test);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_correction_bias_begins_with_zeros),
        cmocka_unit_test(test_cache_is_one_tensor_of_the_latent),
        cmocka_unit_test(test_kept_activations_are_latents),
        cmocka_unit_test(test_strict_generation_has_the_bits_of_packed_passes),
        cmocka_unit_test(test_fast_generation_equals_packed_passes),
        cmocka_unit_test(test_forms_of_attention_agree_in_f64),
        cmocka_unit_test(test_gradients_match_differences),
    };

    return cmocka_run_group_tests_name("unit/engine/latent", tests, NULL, NULL);
}
