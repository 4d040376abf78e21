/* Operation counts of passes, against values computed by hand. */
#include "rl/rk_estimate.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_compiler.h"
#include "base/rk_str.h"
#include "tests/support/test.h"

/* 2 layers, 4 heads of 8 with 2 of keys and values: q, o 16 x 32, k, v 16 x 16, MLP 16 x 24; 100 ids. */
#define CONFIG                                                                                       \
    "{\"hidden_size\": 16, \"intermediate_size\": 24, \"num_attention_heads\": 4, \"head_dim\": 8, " \
    "\"num_key_value_heads\": 2, \"num_hidden_layers\": 2, \"vocab_size\": 100}"

static struct rk_json *parse(const char *text)
{
    struct rk_json *json;

    assert_ok(rk_json_parse(&json, text, strlen(text), "test", 0));
    return json;
}

static void test_estimate_of_a_small_model(void **state)
{
    struct rk_json *config = parse(CONFIG);
    struct rk_estimate estimate;
    /* weights: 2 * 16*32 + 2 * 16*16 + 3 * 16*24 = 2688; a token attends to 5 of 10 keys on average, width
     * 32 */
    double layer = 2 * 2688 + 2 * 2 * 32 * 5, head = 2 * 16 * 100;

    (void)state;
    assert_true(rk_estimate_of(&estimate, config, 10));
    assert_int_equal(estimate.num_layers, 2);
    assert_true(estimate.layer == layer);
    assert_true(estimate.head == head);
    assert_true(rk_estimate_forward(&estimate) == 2 * layer + head);
    assert_true(rk_estimate_train(&estimate, false) == 3 * (2 * layer + head));
    assert_true(rk_estimate_train(&estimate, true) == 4 * 2 * layer + 3 * head);
    rk_json_free(config);
}

/* Goal: every sequence costs attention by its own length. */
static void test_estimate_of_a_batch_counts_each_sequence(void **state)
{
    struct rk_json *config = parse(CONFIG);
    double weights = 2 * 2 * 2688 + 2 * 16 * 100; /* of a token: two layers and the head */
    double attended = 2 * 2 * 2 * 32 * (10 * 5 + 4 * 2 + 1 * 0.5);

    (void)state;
    assert_true(rk_estimate_batch_forward(config, (const int64_t[]){10, 4, 1}, 3) == 15 * weights + attended);
    assert_true(rk_estimate_batch_forward(config, NULL, 0) == 0);
    assert_true(rk_estimate_batch_forward(NULL, (const int64_t[]){10}, 1) == 0);
    rk_json_free(config);
}

static void test_peaks_are_found_by_part_of_the_model(void **state)
{
    (void)state;
    assert_true(rk_estimate_peak_flops("NVIDIA H200") == 989e12);
    assert_true(rk_estimate_peak_flops("NVIDIA H20") == 148e12);
    assert_true(rk_estimate_peak_flops("NVIDIA A100-SXM4-80GB") == 312e12);
    assert_true(rk_estimate_peak_flops("NVIDIA L40S") == 362e12);
    assert_true(rk_estimate_peak_flops("NVIDIA L40") == 181e12);
    assert_true(rk_estimate_peak_flops("NVIDIA GB200") == 2500e12);
    assert_true(rk_estimate_peak_flops("NVIDIA B200") == 2250e12);
    assert_true(rk_estimate_peak_flops("cpu") > 0);
    assert_true(rk_estimate_peak_flops("another accelerator") == 0);
    assert_true(rk_estimate_peak_flops("") == 0);
}

/* Goal: keys absent from config.json have Hugging Face's defaults. */
static void test_estimate_defaults_of_a_config(void **state)
{
    struct rk_json *config =
        parse("{\"hidden_size\": 32, \"intermediate_size\": 8, \"num_attention_heads\": 4, "
              "\"num_hidden_layers\": 1, \"vocab_size\": 10}");
    struct rk_estimate estimate;

    (void)state;
    assert_true(rk_estimate_of(&estimate, config, 0));
    assert_true(estimate.layer == 2 * (4 * 32 * 32 + 3 * 32 * 8));
    rk_json_free(config);
}

/* 2 * (weights met by a token) of a layer, and per token of context. */
struct layer_cost {
    double weights, attended;
};

static void check_layers(const char *text, int64_t num_dense, struct layer_cost dense,
                         struct layer_cost sparse)
{
    struct rk_json *config = parse(text);
    struct rk_estimate estimate;

    assert_true(rk_estimate_of(&estimate, config, 1000));
    assert_true(estimate.layer == 2 * dense.weights + 500 * dense.attended);
    assert_true(estimate.sparse_layer == 2 * sparse.weights + 500 * sparse.attended);
    assert_true(rk_estimate_layers(&estimate, 0, estimate.num_layers) ==
                (double)num_dense * estimate.layer +
                    (double)(estimate.num_layers - num_dense) * estimate.sparse_layer);
    rk_json_free(config);
}

/* Goal: experts and latents, of published shapes. Weights by hand. */
static void test_estimate_of_sparse_and_latent_models(void **state)
{
    (void)state;
    /* Qwen3-30B-A3B: q, o 2048 x 4096, k, v 2048 x 512; router 2048 x 128; 8 experts of 3 x 2048 x 768 */
    check_layers("{\"model_type\": \"qwen3_moe\", \"hidden_size\": 2048, \"intermediate_size\": 6144,"
                 " \"num_hidden_layers\": 48, \"num_attention_heads\": 32, \"num_key_value_heads\": 4,"
                 " \"head_dim\": 128, \"vocab_size\": 151936, \"num_experts\": 128,"
                 " \"num_experts_per_tok\": 8, \"moe_intermediate_size\": 768, \"decoder_sparse_step\": 1,"
                 " \"mlp_only_layers\": []}",
                 0, (struct layer_cost){18874368 + 37748736, 4 * 4096},
                 (struct layer_cost){18874368 + 262144 + 37748736, 4 * 4096});
    /* Moonlight: q 2048 x 3072, kv_a 2048 x 576, kv_b 512 x 4096, o 2048 x 2048; a dense MLP of 3 x 2048 x
     * 11264; router 2048 x 64, 6 experts and 2 shared ones of 3 x 2048 x 1408; 16 heads of (192 + 128) */
    check_layers("{\"model_type\": \"deepseek_v3\", \"hidden_size\": 2048, \"intermediate_size\": 11264,"
                 " \"num_hidden_layers\": 27, \"num_attention_heads\": 16, \"q_lora_rank\": null,"
                 " \"kv_lora_rank\": 512, \"qk_nope_head_dim\": 128, \"qk_rope_head_dim\": 64,"
                 " \"v_head_dim\": 128, \"vocab_size\": 163840, \"n_routed_experts\": 64,"
                 " \"num_experts_per_tok\": 6, \"n_shared_experts\": 2, \"moe_intermediate_size\": 1408,"
                 " \"first_k_dense_replace\": 1}",
                 1, (struct layer_cost){13762560 + 69206016, 2 * 16 * 320},
                 (struct layer_cost){13762560 + 131072 + 8 * 8650752, 2 * 16 * 320});
    /* DeepSeek-V3: q_a 7168 x 1536, q_b 1536 x 24576, kv_a 7168 x 576, kv_b 512 x 32768, o 7168 x 16384; a
     * dense MLP of 3 x 7168 x 18432; router 7168 x 256, 8 experts and a shared one of 3 x 7168 x 2048 */
    check_layers("{\"model_type\": \"deepseek_v3\", \"hidden_size\": 7168, \"intermediate_size\": 18432,"
                 " \"num_hidden_layers\": 61, \"num_attention_heads\": 128, \"q_lora_rank\": 1536,"
                 " \"kv_lora_rank\": 512, \"vocab_size\": 129280, \"n_routed_experts\": 256,"
                 " \"num_experts_per_tok\": 8, \"n_shared_experts\": 1, \"moe_intermediate_size\": 2048}",
                 3, (struct layer_cost){187105280 + 396361728, 2 * 128 * 320},
                 (struct layer_cost){187105280 + 1835008 + 9.0 * 44040192, 2 * 128 * 320});
}

/* Goal: the last layer has experts although keys of other families say that it has none. */
static void test_keys_of_other_families_have_no_effect(void **state)
{
#define LAYERS "{\"num_hidden_layers\": 2, \"mlp_only_layers\": [1], \"decoder_sparse_step\": 3"
    static const char *const configs[] = {LAYERS ", \"num_local_experts\": 4}",
                                          LAYERS ", \"n_routed_experts\": 4, \"first_k_dense_replace\": 1}",
                                          "{\"num_hidden_layers\": 2, \"num_experts\": 4, "
                                          "\"first_k_dense_replace\": 2}"};

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(configs); i++) {
        struct rk_json *config = parse(configs[i]);

        assert_true(rk_estimate_has_experts(config));
        rk_json_free(config);
    }
}

/* Goal: which layers have experts. */
static void test_estimate_of_layers_with_and_without_experts(void **state)
{
    struct rk_json *config =
        parse("{\"hidden_size\": 8, \"intermediate_size\": 8, \"num_attention_heads\": 2, \"num_experts\": 4,"
              " \"num_experts_per_tok\": 1, \"moe_intermediate_size\": 4, \"num_hidden_layers\": 6,"
              " \"shared_expert_intermediate_size\": 5, \"vocab_size\": 10, \"decoder_sparse_step\": 2,"
              " \"mlp_only_layers\": [3]}");
    struct rk_estimate estimate;

    (void)state;
    assert_true(rk_estimate_of(&estimate, config, 0));
    for (int i = 0; i < 6; i++)
        assert_int_equal(estimate.is_sparse[i], i == 1 || i == 5);
    assert_true(estimate.sparse_layer == 2 * (4 * 64 + 8 * 4 + 8 + 3 * 8 * (4 + 5)));
    assert_true(rk_estimate_layers(&estimate, 1, 3) == estimate.sparse_layer + estimate.layer);
    rk_json_free(config);
}

static void test_estimate_of_an_unknown_model(void **state)
{
    static const char *const keys[] = {"hidden_size", "intermediate_size", "num_attention_heads",
                                       "num_hidden_layers", "vocab_size"};
    struct rk_estimate estimate;

    (void)state;
    assert_false(rk_estimate_of(&estimate, NULL, 10));
    for (size_t i = 0; i < RK_ARRAY_LEN(keys); i++) {
        struct rk_json *config = parse(CONFIG);

        rk_json_set(config, keys[i], rk_json_new_int(0));
        assert_false(rk_estimate_of(&estimate, config, 10));
        rk_json_free(config);
    }
}

/* Goal: the cost of a token beside attention, by hand: dense layers as heads x head_dim, latents in the
 * expanded form, and of experts only those that a token is routed to. */
/* Goal: the number of parameters, against sums by hand and the counts that transformers reports for models of
 * examples/plans, which have norms and biases besides. */
static void test_num_params(void **state)
{
    static const struct {
        const char *name;
        double count;
    } models[] = {
        {"qwen3-30b-a3b", 30532122624.0},
        {"moonlight", 15960111936.0},
        {"deepseek-v3", 671026419200.0},
    };
    struct rk_json *config = parse(CONFIG);

    (void)state;
    assert_true(rk_estimate_num_params(config) == 2 * 2688 + 2 * 16 * 100);
    rk_json_set(config, "tie_word_embeddings", rk_json_new_bool(true));
    assert_true(rk_estimate_num_params(config) == 2 * 2688 + 16 * 100);
    rk_json_free(config);
    assert_true(rk_estimate_num_params(NULL) == 0);
    for (size_t i = 0; i < RK_ARRAY_LEN(models); i++) {
        char *path = rk_format(RK_TEST_SOURCE_DIR "/examples/plans/%s.config.json", models[i].name);

        assert_ok(rk_json_parse_file(&config, path, 1 << 20, 0));
        print_message("  %s: %.0f\n", models[i].name, rk_estimate_num_params(config));
        assert_true(fabs(rk_estimate_num_params(config) / models[i].count - 1) < 1e-3);
        rk_json_free(config);
        rk_free(path);
    }
}

static void test_linear_cost_by_hand(void **state)
{
/* q, o 16 x 32, k, v 16 x 16: 1,536 weights; attention has 32 columns; an MLP of 3 x 16 x 100 has 4,800. */
#define GROUPED(more)                                                                               \
    "{\"num_hidden_layers\": 4, \"hidden_size\": 16, \"intermediate_size\": 100, \"head_dim\": 8, " \
    "\"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"num_experts_per_tok\": 2" more "}"
/* q 16 x 20 (or 16 x 6 and 6 x 20), kv_a 16 x 9, kv_b 5 x 22, o 10 x 16: 734 weights (630); scores have 20
 * columns and values 10, so 15. An MLP of 3 x 16 x 100, or router 16 x 8 and 3 experts of 3 x 16 x 12. */
#define LATENT(q_rank, num_dense)                                                                          \
    "{\"num_hidden_layers\": 4, \"hidden_size\": 16, \"intermediate_size\": 100, \"q_lora_rank\": " q_rank \
    ", \"num_attention_heads\": 2, \"kv_lora_rank\": 5, \"qk_nope_head_dim\": 6, "                         \
    "\"qk_rope_head_dim\": 4, \"v_head_dim\": 5, \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, "    \
    "\"n_shared_experts\": 1, \"moe_intermediate_size\": 12, \"first_k_dense_replace\": " num_dense "}"
#define EXPERTS ", \"num_experts\": 8, \"moe_intermediate_size\": 12"
    static const struct {
        const char *config;
        double cost;
    } cases[] = {
        {GROUPED(""), (1536 + 4800) / 32.0},
        {GROUPED(EXPERTS), (1536 + 128 + 2 * 576) / 32.0},
        {GROUPED(", \"num_local_experts\": 8"), (1536 + 128 + 2 * 4800) / 32.0}, /* mixtral */
        {GROUPED(EXPERTS ", \"shared_expert_intermediate_size\": 20"),
         (1536 + 128 + 16 + 2 * 576 + 960) / 32.0},
        {GROUPED(EXPERTS ", \"decoder_sparse_step\": 2"), (1536 + (4800 + 128 + 2 * 576) / 2.0) / 32.0},
        {GROUPED(EXPERTS ", \"mlp_only_layers\": [3]"), (1536 + (4800 + 3 * (128 + 2 * 576)) / 4.0) / 32.0},
        {LATENT("null", "4"), (734 + 4800) / 15.0},
        {LATENT("6", "4"), (630 + 4800) / 15.0},
        {LATENT("null", "1"), (734 + (4800 + 3 * (128 + 3 * 576)) / 4.0) / 15.0},
        {"{}", 0},
        {"{\"kv_lora_rank\": 5, \"hidden_size\": 16, \"intermediate_size\": 100}", 0},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_json *config = parse(cases[i].config);

        assert_true(rk_estimate_linear_cost(config) == cases[i].cost);
        rk_json_free(config);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_num_params),
        cmocka_unit_test(test_linear_cost_by_hand),
        cmocka_unit_test(test_estimate_of_a_small_model),
        cmocka_unit_test(test_estimate_of_a_batch_counts_each_sequence),
        cmocka_unit_test(test_peaks_are_found_by_part_of_the_model),
        cmocka_unit_test(test_estimate_defaults_of_a_config),
        cmocka_unit_test(test_estimate_of_sparse_and_latent_models),
        cmocka_unit_test(test_keys_of_other_families_have_no_effect),
        cmocka_unit_test(test_estimate_of_layers_with_and_without_experts),
        cmocka_unit_test(test_estimate_of_an_unknown_model),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
