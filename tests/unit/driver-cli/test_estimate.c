/* Operation counts of passes, against values computed by hand. */
#include "driver-cli/driver/estimate_internal.h"

#include <string.h>

#include "base/rk_compiler.h"
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

/* Goal: only the experts that a token is routed to count. */
static void test_mlp_width_counts_the_experts_of_a_token(void **state)
{
#define MOE(more) \
    "{\"num_hidden_layers\": 4, \"intermediate_size\": 100, \"num_experts_per_tok\": 2, " more "}"
    static const struct {
        const char *config;
        double width;
    } cases[] = {
        {MOE("\"hidden_size\": 16"), 100},
        {MOE("\"num_experts\": 8, \"moe_intermediate_size\": 12"), 24},
        {MOE("\"num_local_experts\": 8"), 200}, /* mixtral */
        {MOE("\"num_experts\": 8, \"moe_intermediate_size\": 12, \"shared_expert_intermediate_size\": 20"),
         44},
        {MOE("\"num_experts\": 8, \"moe_intermediate_size\": 12, \"decoder_sparse_step\": 2"), 62},
        {MOE("\"num_experts\": 8, \"moe_intermediate_size\": 12, \"mlp_only_layers\": [3]"), 43},
        {MOE("\"n_routed_experts\": 8, \"moe_intermediate_size\": 12, \"n_shared_experts\": 1, "
             "\"first_k_dense_replace\": 1"),
         52},
        {"{}", 0},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        struct rk_json *config = parse(cases[i].config);

        assert_true(rk_estimate_mlp_width(config) == cases[i].width);
        rk_json_free(config);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mlp_width_counts_the_experts_of_a_token),
        cmocka_unit_test(test_estimate_of_a_small_model),
        cmocka_unit_test(test_estimate_defaults_of_a_config),
        cmocka_unit_test(test_estimate_of_sparse_and_latent_models),
        cmocka_unit_test(test_estimate_of_layers_with_and_without_experts),
        cmocka_unit_test(test_estimate_of_an_unknown_model),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
