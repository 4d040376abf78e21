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
        cmocka_unit_test(test_estimate_of_an_unknown_model),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
