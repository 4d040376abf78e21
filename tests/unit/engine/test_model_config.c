/* Hugging Face's config.json: accepted and refused values, and the resulting rotary frequencies. */
#include "tests/support/test.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/format/rk_hf_config.h"
#include "base/rk_str.h"
#include "engine/model/model.h"
#include "engine/nn/nn.h"

static struct rk_status *parse(struct rk_model_config *out, const char *members)
{
    char *text = rk_format("{\"model_type\": \"llama\"%s%s}", *members ? ", " : "", members);
    struct rk_json *json;
    struct rk_status *st;

    assert_ok(rk_json_parse(&json, text, strlen(text), "config.json", 0));
    st = rk_model_config_parse(out, json);
    rk_json_free(json);
    rk_free(text);
    return st;
}

/* Goal: absent keys have the family's defaults. */
static void test_parse_of_bare_type_gives_defaults(void **state)
{
    struct rk_model_config config;

    (void)state;
    assert_ok(parse(&config, ""));
    assert_string_equal(config.family, "llama");
    assert_int_equal(config.hidden_size, 4096);
    assert_int_equal(config.intermediate_size, 11008);
    assert_int_equal(config.num_layers, 32);
    assert_int_equal(config.num_heads, 32);
    assert_int_equal(config.num_kv_heads, 32);
    assert_int_equal(config.head_dim, 128);
    assert_int_equal(config.vocab_size, 32000);
    assert_true(config.rms_norm_eps == 1e-6);
    assert_true(config.rope_theta == 10000.0);
    assert_int_equal(config.rope_scaling.type, RK_ROPE_DEFAULT);
    assert_false(config.tie_word_embeddings);
    assert_int_equal(config.num_eos_token_ids, 0);
}

#define LLAMA3                                                           \
    "\"factor\": 8, \"low_freq_factor\": 1.0, \"high_freq_factor\": 4, " \
    "\"original_max_position_embeddings\": 8192"

struct accepted_case {
    const char *label, *members;
    int64_t head_dim, num_kv_heads;
    double rope_theta, factor; /* factor 0: no scaling */
    int32_t num_eos;
};

static const struct accepted_case accepted_cases[] = {
    {"null is absent", "\"head_dim\": null, \"num_key_value_heads\": null, \"rope_scaling\": null", 128, 32,
     1e4, 0, 0},
    {"integers as reals", "\"hidden_size\": 2048.0, \"num_key_value_heads\": 8.0, \"rope_theta\": 500000", 64,
     8, 5e5, 0, 0},
    {"head_dim of its own", "\"head_dim\": 64", 64, 32, 1e4, 0, 0},
    {"one eos", "\"eos_token_id\": 2", 128, 32, 1e4, 0, 1},
    {"list of eos", "\"eos_token_id\": [1, 2, 3]", 128, 32, 1e4, 0, 3},
    {"old rope form", "\"rope_theta\": 5e5, \"rope_scaling\": {\"rope_type\": \"llama3\", " LLAMA3 "}", 128,
     32, 5e5, 8, 0},
    {"oldest rope form", "\"rope_scaling\": {\"type\": \"llama3\", " LLAMA3 "}", 128, 32, 1e4, 8, 0},
    {"new rope form", "\"rope_parameters\": {\"rope_theta\": 7e5, \"rope_type\": \"llama3\", " LLAMA3 "}",
     128, 32, 7e5, 8, 0},
    {"new rope form, default", "\"rope_parameters\": {\"rope_theta\": 7e5, \"rope_type\": \"default\"}", 128,
     32, 7e5, 0, 0},
    {"theta beside rope_parameters", "\"rope_theta\": 3e4, \"rope_parameters\": {\"rope_type\": \"default\"}",
     128, 32, 3e4, 0, 0},
    {"rope by kind of layer",
     "\"rope_parameters\": {\"sliding_attention\": {\"rope_type\": \"longrope\"}, \"full_attention\": "
     "{\"rope_theta\": 7e5, \"rope_type\": \"llama3\", " LLAMA3 "}}",
     128, 32, 7e5, 8, 0},
    {"theta beside rope by kind of layer",
     "\"rope_theta\": 3e4, \"rope_parameters\": {\"full_attention\": {\"rope_type\": \"default\"}}", 128, 32,
     3e4, 0, 0},
    {"values that change nothing",
     "\"attention_bias\": false, \"mlp_bias\": null, \"hidden_act\": \"silu\", \"partial_rotary_factor\": "
     "1.0,"
     " \"quantization_config\": null, \"architectures\": [\"LlamaForCausalLM\"], \"some_future_key\": {}",
     128, 32, 1e4, 0, 0},
};

struct qwen2_case {
    const char *label, *members;
    int32_t sliding_window;
    int64_t max_window_layers, num_kv_heads;
};

static const struct qwen2_case qwen2_cases[] = {
    {"bare", "", 0, 28, 32},
    {"window unused", "\"use_sliding_window\": false, \"sliding_window\": 131072", 0, 28, 32},
    {"window of the default size", "\"use_sliding_window\": true", 4096, 28, 32},
    {"window of no size", "\"use_sliding_window\": true, \"sliding_window\": null", 0, 28, 32},
    {"window", "\"use_sliding_window\": true, \"sliding_window\": 64, \"max_window_layers\": 0", 64, 0, 32},
    {"kinds of layers that agree",
     "\"num_hidden_layers\": 3, \"use_sliding_window\": true, \"sliding_window\": 64, \"max_window_layers\": "
     "2,"
     " \"layer_types\": [\"full_attention\", \"full_attention\", \"sliding_attention\"]",
     64, 2, 32},
    {"no grouped queries", "\"num_attention_heads\": 16, \"num_key_value_heads\": null", 0, 28, 16},
};

static struct rk_status *parse_text(struct rk_model_config *out, const char *text)
{
    struct rk_json *json;
    struct rk_status *st;

    assert_ok(rk_json_parse(&json, text, strlen(text), "config.json", 0));
    st = rk_model_config_parse(out, json);
    rk_json_free(json);
    return st;
}

/* Goal: the features of Qwen2 that Llama lacks: biases, and a window in the upper layers. */
static void test_parse_of_qwen2_reads_biases_and_window(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(qwen2_cases); i++) {
        const struct qwen2_case *row = &qwen2_cases[i];
        char *text = rk_format("{\"model_type\": \"qwen2\"%s%s}", *row->members ? ", " : "", row->members);
        struct rk_model_config config;

        assert_ok(parse_text(&config, text));
        assert_string_equal(config.family, "qwen2");
        assert_true(config.has_qkv_bias);
        if (config.sliding_window != row->sliding_window ||
            config.max_window_layers != row->max_window_layers || config.num_kv_heads != row->num_kv_heads)
            fail_msg("%s: window %d from layer %lld on, kv heads %lld", row->label, config.sliding_window,
                     (long long)config.max_window_layers, (long long)config.num_kv_heads);
        rk_free(text);
    }
}

static void test_parse_of_qwen3_reads_norms_and_head_dim(void **state)
{
    struct rk_model_config config;

    (void)state;
    assert_ok(parse_text(&config,
                         "{\"model_type\": \"qwen3\", \"hidden_size\": 1024, \"num_attention_heads\": 16,"
                         " \"num_key_value_heads\": 8, \"use_sliding_window\": true, "
                         "\"sliding_window\": 64, \"max_window_layers\": 3}"));
    assert_string_equal(config.family, "qwen3");
    assert_true(config.has_qk_norm);
    assert_false(config.has_qkv_bias);
    assert_int_equal(config.head_dim, 128);
    assert_int_equal(config.sliding_window, 64);
    assert_int_equal(config.max_window_layers, 3);
    assert_ok(parse_text(&config,
                         "{\"model_type\": \"qwen3\", \"hidden_size\": 1024, \"num_attention_heads\": 32,"
                         " \"head_dim\": null}"));
    assert_int_equal(config.head_dim, 32);
    assert_int_equal(config.sliding_window, 0);
    assert_fails(parse_text(&config, "{\"model_type\": \"qwen3\", \"attention_bias\": true}"),
                 RK_UNIMPLEMENTED, "attention_bias=true");
    assert_fails(parse_text(&config, "{\"model_type\": \"qwen3\", \"head_dim\": 7}"), RK_INVALID_ARGUMENT,
                 "head_dim: expected an even number, got 7");
}

static void test_parse_of_mistral_reads_window(void **state)
{
    static const struct {
        const char *members;
        int32_t sliding_window;
        int64_t num_kv_heads, head_dim;
    } cases[] = {
        {"", 4096, 8, 128},
        {", \"sliding_window\": null, \"head_dim\": null", 0, 8, 128},
        {", \"sliding_window\": 64, \"head_dim\": 32, \"num_key_value_heads\": null", 64, 32, 32},
        {", \"num_hidden_layers\": 1, \"layer_types\": [\"sliding_attention\"]", 4096, 8, 128},
    };
    struct rk_model_config config;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *text = rk_format("{\"model_type\": \"mistral\"%s}", cases[i].members);

        assert_ok(parse_text(&config, text));
        assert_int_equal(config.sliding_window, cases[i].sliding_window);
        assert_int_equal(config.max_window_layers, 0);
        assert_int_equal(config.num_kv_heads, cases[i].num_kv_heads);
        assert_int_equal(config.head_dim, cases[i].head_dim);
        rk_free(text);
    }
    assert_fails(parse_text(&config, "{\"model_type\": \"mistral\", \"sliding_window\": -1}"),
                 RK_INVALID_ARGUMENT, "config.json: sliding_window");
    assert_fails(parse_text(&config, "{\"model_type\": \"mistral\", \"layer_types\": [\"full_attention\"]}"),
                 RK_UNIMPLEMENTED, "layer_types[0]");
}

static void test_parse_of_qwen2_with_other_kinds_of_layers_is_unimplemented(void **state)
{
    struct rk_model_config config;

    (void)state;
    assert_fails(parse_text(&config, "{\"model_type\": \"qwen2\", \"layer_types\": [\"full_attention\","
                                     " \"sliding_attention\"]}"),
                 RK_UNIMPLEMENTED,
                 "layer_types[1]=\"sliding_attention\" is not implemented, expected full_attention");
    assert_fails(parse_text(&config, "{\"model_type\": \"qwen2\", \"sliding_window\": 0}"),
                 RK_INVALID_ARGUMENT, "config.json: sliding_window");
    assert_fails(parse_text(&config, "{\"model_type\": \"qwen2\", \"use_sliding_window\": 1}"),
                 RK_INVALID_ARGUMENT, "config.json: use_sliding_window");
}

/* Goal: RoPE settings per kind of layer: only kinds that occur are used, and they must be equal. */
static void test_parse_of_qwen2_reads_rope_of_its_layers(void **state)
{
    static const struct {
        const char *window, *full, *sliding;
        double rope_theta; /* 0: refused */
    } cases[] = {
        {"28", "1e6", "1e4", 1e6},
        {"0", "1e6", "1e4", 1e4},
        {"2", "1e6", "1e6", 1e6},
        {"2", "1e6", "1e4", 0},
    };

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++) {
        char *text = rk_format(
            "{\"model_type\": \"qwen2\", \"use_sliding_window\": true, \"max_window_layers\": %s,"
            " \"num_hidden_layers\": 4, \"rope_parameters\": {\"full_attention\": {\"rope_theta\": %s},"
            " \"sliding_attention\": {\"rope_theta\": %s}}}",
            cases[i].window, cases[i].full, cases[i].sliding);
        struct rk_model_config config;
        struct rk_status *st = parse_text(&config, text);

        if (cases[i].rope_theta == 0) {
            assert_fails(st, RK_UNIMPLEMENTED, "rope_parameters.sliding_attention");
        } else {
            assert_ok(st);
            assert_true(config.rope_theta == cases[i].rope_theta);
        }
        rk_free(text);
    }
}

/* Goal: the spellings that occur in files are read. */
static void test_parse_of_known_spellings_reads_them(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(accepted_cases); i++) {
        const struct accepted_case *row = &accepted_cases[i];
        struct rk_model_config config;

        assert_ok(parse(&config, row->members));
        if (config.head_dim != row->head_dim || config.num_kv_heads != row->num_kv_heads ||
            config.rope_theta != row->rope_theta ||
            (config.rope_scaling.type == RK_ROPE_LLAMA3) != (row->factor > 0) ||
            config.num_eos_token_ids != row->num_eos)
            fail_msg("%s: head_dim %lld, kv heads %lld, theta %g, llama3 %d, eos %d", row->label,
                     (long long)config.head_dim, (long long)config.num_kv_heads, config.rope_theta,
                     config.rope_scaling.type == RK_ROPE_LLAMA3, config.num_eos_token_ids);
        if (row->factor > 0)
            assert_true(config.rope_scaling.factor == row->factor);
    }
}

struct rejected_case {
    const char *members;
    rk_code_t code;
    const char *text;
};

static const struct rejected_case rejected_cases[] = {
    {"\"attention_bias\": true", RK_UNIMPLEMENTED, "config.json: attention_bias=true"},
    {"\"mlp_bias\": true", RK_UNIMPLEMENTED, "config.json: mlp_bias=true"},
    {"\"hidden_act\": \"gelu\"", RK_UNIMPLEMENTED, "config.json: hidden_act=\"gelu\""},
    {"\"partial_rotary_factor\": 0.5", RK_UNIMPLEMENTED, "partial_rotary_factor=0.5"},
    {"\"rope_parameters\": {\"partial_rotary_factor\": 0.25}", RK_UNIMPLEMENTED,
     "partial_rotary_factor=0.25"},
    {"\"quantization_config\": {\"quant_method\": \"fp8\"}", RK_UNIMPLEMENTED, "quantization_config"},
    {"\"text_config\": {}", RK_UNIMPLEMENTED, "text_config"},
    {"\"final_logit_softcapping\": 30.0", RK_UNIMPLEMENTED, "final_logit_softcapping=30.0"},
    {"\"id2label\": {}", RK_INVALID_ARGUMENT, "id2label"},
    {"\"num_labels\": 0", RK_INVALID_ARGUMENT, "num_labels"},
    {"\"rope_scaling\": {\"rope_type\": \"yarn\"}", RK_INVALID_ARGUMENT, "rope_scaling.factor"},
    {"\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 0.5}", RK_INVALID_ARGUMENT,
     "rope_scaling.factor"},
    {"\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, \"beta_fast\": 1, \"beta_slow\": 2}",
     RK_INVALID_ARGUMENT, "beta_slow <= beta_fast"},
    {"\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, \"attention_factor\": -1}",
     RK_INVALID_ARGUMENT, "rope_scaling: attention_factor"},
    {"\"rope_scaling\": {\"type\": \"linear\", \"factor\": 4}", RK_UNIMPLEMENTED,
     "rope_scaling.rope_type='linear'"},
    {"\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 4}", RK_INVALID_ARGUMENT,
     "rope_scaling.low_freq_factor"},
    {"\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 0.5, \"low_freq_factor\": 1, "
     "\"high_freq_factor\": 4,"
     " \"original_max_position_embeddings\": 8192}",
     RK_INVALID_ARGUMENT, "rope_scaling.factor"},
    {"\"rope_scaling\": {\"type\": \"llama3\", \"factor\": 8, \"low_freq_factor\": 4, \"high_freq_factor\": "
     "4,"
     " \"original_max_position_embeddings\": 8192}",
     RK_INVALID_ARGUMENT, "low_freq_factor < high_freq_factor"},
    {"\"rope_parameters\": {\"full_attention\": {\"rope_type\": \"longrope\"}}", RK_UNIMPLEMENTED,
     "rope_parameters.full_attention.rope_type='longrope'"},
    {"\"rope_parameters\": {\"full_attention\": {\"partial_rotary_factor\": 0.25}}", RK_UNIMPLEMENTED,
     "partial_rotary_factor=0.25"},
    {"\"rope_parameters\": {\"full_attention\": 3, \"sliding_attention\": {}}", RK_INVALID_ARGUMENT,
     "rope_parameters.full_attention: expected an object"},
    {"\"rope_parameters\": {\"rope_theta\": 7e5, \"sliding_attention\": {}}", RK_INVALID_ARGUMENT,
     "rope_parameters.full_attention is missing"},
    {"\"rope_scaling\": 3", RK_INVALID_ARGUMENT, "rope_scaling: expected an object"},
    {"\"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4}, \"rope_parameters\": {\"rope_theta\": 7e5}",
     RK_INVALID_ARGUMENT, "rope_scaling and rope_parameters are both given"},
    {"\"original_max_position_embeddings\": 0, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4}",
     RK_INVALID_ARGUMENT, "original_max_position_embeddings"},
    {"\"rope_theta\": 0", RK_INVALID_ARGUMENT, "rope_theta: expected a positive number"},
    {"\"hidden_size\": 0", RK_INVALID_ARGUMENT, "config.json: hidden_size"},
    {"\"hidden_size\": \"64\"", RK_INVALID_ARGUMENT, "config.json: hidden_size"},
    {"\"hidden_size\": 64.5", RK_INVALID_ARGUMENT, "config.json: hidden_size"},
    {"\"hidden_size\": 4294967296", RK_INVALID_ARGUMENT, "config.json: hidden_size"},
    {"\"vocab_size\": -1", RK_INVALID_ARGUMENT, "config.json: vocab_size"},
    {"\"num_hidden_layers\": 5000", RK_INVALID_ARGUMENT, "config.json: num_hidden_layers"},
    {"\"num_key_value_heads\": 5", RK_INVALID_ARGUMENT, "num_key_value_heads: expected a divisor"},
    {"\"head_dim\": 63", RK_INVALID_ARGUMENT, "head_dim: expected an even number"},
    {"\"num_attention_heads\": 2147483647, \"num_key_value_heads\": 1, \"head_dim\": 2", RK_INVALID_ARGUMENT,
     "num_attention_heads="},
    {"\"rms_norm_eps\": -1e-6", RK_INVALID_ARGUMENT, "rms_norm_eps"},
    {"\"tie_word_embeddings\": 1", RK_INVALID_ARGUMENT, "tie_word_embeddings"},
    {"\"eos_token_id\": 32000", RK_INVALID_ARGUMENT, "eos_token_id"},
    {"\"eos_token_id\": [1, \"2\"]", RK_INVALID_ARGUMENT, "eos_token_id"},
    {"\"eos_token_id\": [1, 2, 3, 4, 5, 6, 7, 8, 9]", RK_INVALID_ARGUMENT,
     "eos_token_id: expected at most 8"},
};

/* Goal: settings that change the computation and are not implemented, and invalid settings, are refused by
 * name. */
static void test_parse_of_bad_values_names_key_and_value(void **state)
{
    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(rejected_cases); i++) {
        struct rk_model_config config;

        assert_fails(parse(&config, rejected_cases[i].members), rejected_cases[i].code,
                     rejected_cases[i].text);
    }
}

static void test_parse_of_unknown_type_lists_the_known(void **state)
{
    struct rk_model_config config;

    (void)state;
    assert_fails(parse_text(&config, "{\"model_type\": \"gpt2\"}"), RK_UNIMPLEMENTED,
                 "model_type='gpt2' is not implemented");
    assert_fails(parse_text(&config, "{\"model_type\": \"gpt2\"}"), RK_UNIMPLEMENTED, "gpt2");
    assert_fails(parse_text(&config, "{}"), RK_INVALID_ARGUMENT, "config.json: model_type");
    assert_fails(parse_text(&config, "{\"model_type\": 3}"), RK_INVALID_ARGUMENT, "config.json: model_type");
}

#define DEEPSEEK(more) "{\"model_type\": \"deepseek_v3\"" more "}"

/* Goal: the defaults are DeepSeek-V3, null is Moonlight's way to say that queries have no latent. */
static void test_parse_of_deepseek_v3_reads_latents_and_layers(void **state)
{
    struct rk_model_config config;

    (void)state;
    assert_ok(parse_text(&config, DEEPSEEK("")));
    assert_int_equal(config.num_heads, 128);
    assert_int_equal(config.num_kv_heads, 128);
    assert_int_equal(config.latent.q_lora_rank, 1536);
    assert_int_equal(config.latent.kv_lora_rank + config.latent.qk_rope_head_dim, 576);
    assert_int_equal(config.latent.qk_nope_head_dim, 128);
    assert_int_equal(config.latent.v_head_dim, 128);
    assert_true(config.latent.rope_interleave);
    assert_int_equal(config.moe.num_experts, 256);
    assert_int_equal(config.moe.shared_intermediate_size, 2048);
    assert_true(config.moe.is_sigmoid);
    assert_int_equal(config.layer_kinds[2], 0);
    assert_int_equal(config.layer_kinds[3], 1);
    assert_ok(parse_text(&config,
                         DEEPSEEK(", \"num_attention_heads\": 16, \"q_lora_rank\": null, \"head_dim\": 192,"
                                  " \"rope_interleave\": false, \"num_hidden_layers\": 27,"
                                  " \"first_k_dense_replace\": 1, \"n_shared_experts\": 2, \"n_group\": 1,"
                                  " \"topk_group\": 1, \"n_routed_experts\": 64, \"num_experts_per_tok\": 6,"
                                  " \"moe_intermediate_size\": 1408, \"routed_scaling_factor\": 2.446")));
    assert_int_equal(config.latent.q_lora_rank, 0);
    assert_false(config.latent.rope_interleave);
    assert_int_equal(config.num_kv_heads, 16);
    assert_int_equal(config.head_dim, 64);
    assert_int_equal(config.moe.shared_intermediate_size, 2816);
    assert_int_equal(config.layer_kinds[0], 0);
    assert_int_equal(config.layer_kinds[1], 1);
    assert_true(config.moe.routed_scaling_factor == 2.446);
}

static void test_parse_of_bad_deepseek_v3_names_the_key(void **state)
{
    static const struct {
        const char *text;
        rk_code_t code;
        const char *message;
    } cases[] = {
        {DEEPSEEK(", \"kv_lora_rank\": 0"), RK_INVALID_ARGUMENT, "kv_lora_rank"},
        {DEEPSEEK(", \"q_lora_rank\": \"1536\""), RK_INVALID_ARGUMENT, "q_lora_rank"},
        {DEEPSEEK(", \"qk_rope_head_dim\": 63"), RK_INVALID_ARGUMENT, "qk_rope_head_dim"},
        {DEEPSEEK(", \"v_head_dim\": -1"), RK_INVALID_ARGUMENT, "v_head_dim"},
        {DEEPSEEK(", \"num_key_value_heads\": 8"), RK_INVALID_ARGUMENT, "num_key_value_heads=8"},
        {DEEPSEEK(", \"attention_bias\": true"), RK_UNIMPLEMENTED, "attention_bias=true"},
        {DEEPSEEK(", \"scoring_func\": \"softmax\""), RK_UNIMPLEMENTED, "scoring_func"},
        {DEEPSEEK(", \"topk_method\": \"greedy\""), RK_UNIMPLEMENTED, "topk_method"},
        {DEEPSEEK(", \"moe_layer_freq\": 2"), RK_UNIMPLEMENTED, "moe_layer_freq=2"},
        {DEEPSEEK(", \"first_k_dense_replace\": -1"), RK_INVALID_ARGUMENT, "first_k_dense_replace"},
        {DEEPSEEK(", \"n_group\": 7"), RK_INVALID_ARGUMENT, "n_group=7"},
        {DEEPSEEK(", \"topk_group\": 9"), RK_INVALID_ARGUMENT, "topk_group=9"},
        {DEEPSEEK(", \"n_group\": 64, \"topk_group\": 1"), RK_INVALID_ARGUMENT, "num_experts_per_tok=8"},
        {DEEPSEEK(", \"n_shared_experts\": -1"), RK_INVALID_ARGUMENT, "n_shared_experts"},
        {DEEPSEEK(", \"routed_scaling_factor\": 0"), RK_INVALID_ARGUMENT, "routed_scaling_factor"},
    };
    struct rk_model_config config;

    (void)state;
    for (size_t i = 0; i < RK_ARRAY_LEN(cases); i++)
        assert_fails(parse_text(&config, cases[i].text), cases[i].code, cases[i].message);
}

struct frequency {
    int64_t k;
    double inv_freq;
};

/* Goal: the interpolation of Llama 3.1 and 3.2. Method: published values in f64; the engine rounds
 * intermediate values to fp32. */
static void test_rope_inv_freq_of_llama3_matches_published_values(void **state)
{
    static const struct frequency large[] = {
        {28, 3.211445995e-03}, {29, 2.166570764e-03}, {32, 5.248461610e-04}, {34, 1.785078128e-04},
        {35, 9.556212354e-05}, {36, 7.784655274e-05}, {63, 3.068925989e-07},
    };
    static const struct frequency small[] = {
        {14, 3.211445995e-03}, {15, 1.290547928e-03}, {16, 4.295567966e-04},
        {17, 9.708287803e-05}, {18, 1.946163818e-05},
    };
    struct rk_model_config config;
    struct rk_rope_spec rope;

    (void)state;
    assert_ok(
        parse(&config, "\"rope_theta\": 5e5, \"rope_scaling\": {\"rope_type\": \"llama3\", " LLAMA3 "}"));
    rope = rk_rope_of_config(&config);
    for (size_t i = 0; i < RK_ARRAY_LEN(large); i++)
        assert_below("d=128", fabs(rk_rope_inv_freq(&rope, large[i].k) / large[i].inv_freq - 1),
                     RK_TOL_F32_ELEMENT);
    rope.width = 64;
    rope.scaling.factor = 32;
    for (size_t i = 0; i < RK_ARRAY_LEN(small); i++)
        assert_below("d=64", fabs(rk_rope_inv_freq(&rope, small[i].k) / small[i].inv_freq - 1),
                     RK_TOL_F32_ELEMENT);
}

/* Goal: YaRN with the settings of DeepSeek-V3 and Qwen2.5. Method: published values in f64. */
/* Goal: every place and value of the RoPE keys gives the frequencies of transformers. */
static void test_rope_keys_mean_the_same_in_transformers(void **state)
{
    char *path = rk_test_fixture_path("golden/rope.json");
    struct rk_json *golden;
    const struct rk_json *rows;

    (void)state;
    assert_ok(rk_json_parse_file(&golden, path, 1 << 20, 0));
    rows = rk_json_find(golden, "rows");
    assert_true(rk_json_count(rows) >= 18);
    for (int64_t i = 0; i < rk_json_count(rows); i++) {
        const struct rk_json *row = rk_json_at(rows, i), *keys = rk_json_find(row, "keys"),
                             *inv_freq = rk_json_find(row, "inv_freq");
        struct rk_json *hf_config = rk_json_clone(rk_json_find(golden, "base"));
        char *text = rk_json_dump(keys, 0, false);
        struct rk_model_config config;
        struct rk_rope_spec rope;

        for (void *it = rk_json_iter(keys); it; it = rk_json_iter_next(keys, it))
            rk_json_set(hf_config, rk_json_iter_key(it), rk_json_clone(rk_json_iter_value(it)));
        print_message("  %s\n", text);
        assert_ok(rk_model_config_parse(&config, hf_config));
        rope = rk_rope_of_config(&config);
        for (int64_t k = 0; k < rk_json_count(inv_freq); k++)
            assert_below(text,
                         fabs(rk_rope_inv_freq(&rope, k) / rk_json_as_real(rk_json_at(inv_freq, k), 0) - 1),
                         3e-7);
        if (rope.scaling.type == RK_ROPE_YARN)
            assert_below(text,
                         fabs(rope.scaling.attention_factor -
                              rk_json_as_real(rk_json_find(row, "attention_factor"), 0)),
                         1e-12);
        rk_free(text);
        rk_json_free(hf_config);
    }
    rk_json_free(golden);
    rk_free(path);
}

static void test_rope_inv_freq_of_yarn_matches_published_values(void **state)
{
    static const struct frequency deepseek[] = {{10, 5.623413252e-02},
                                                {11, 3.900692657e-02},
                                                {16, 5.5e-03},
                                                {23, 3.333803580e-05},
                                                {31, 3.333803580e-06}};
    struct rk_model_config config;
    struct rk_rope_spec rope;
    float cos_table[2 * 64], sin_table[2 * 64];

    (void)state;
    assert_ok(parse(&config, "\"max_position_embeddings\": 163840, \"head_dim\": 64, \"rope_scaling\": "
                             "{\"type\": \"yarn\", \"factor\": 40, \"mscale\": 1.0, \"mscale_all_dim\": 1.0,"
                             " \"original_max_position_embeddings\": 4096}"));
    rope = rk_rope_of_config(&config);
    for (size_t i = 0; i < RK_ARRAY_LEN(deepseek); i++)
        assert_below("DeepSeek-V3", fabs(rk_rope_inv_freq(&rope, deepseek[i].k) / deepseek[i].inv_freq - 1),
                     RK_TOL_F32_ELEMENT);
    assert_true(config.rope_scaling.attention_factor == 1.0);
    assert_below("scale of scores",
                 fabs(config.rope_scaling.softmax_factor / sqrt(192.0) - 0.1352337788608801), 1e-15);

    assert_ok(parse(&config,
                    "\"rope_theta\": 1e6, \"rope_scaling\": {\"rope_type\": \"yarn\", \"factor\": 4, "
                    "\"original_max_position_embeddings\": 32768}"));
    rope = rk_rope_of_config(&config);
    assert_below("attention_factor", fabs(config.rope_scaling.attention_factor - 1.138629436), 1e-9);
    assert_true(config.rope_scaling.softmax_factor == 1.0);
    /* columns up to 23 are unscaled, those from 40 on are divided by four */
    for (int k = 0; k < 64; k++) {
        double ratio = rk_rope_inv_freq(&rope, k) * pow(1e6, 2.0 * k / 128);
        double expected = k <= 23 ? 1.0 : k >= 40 ? 0.25 : 1.0 - 0.75 * (k - 23) / 17.0;

        assert_below("Qwen2.5", fabs(ratio - expected), RK_TOL_F32_ELEMENT);
    }
    rk_rope_table(&rope, 2, cos_table, sin_table);
    assert_below("cos", fabs(cos_table[64] - 1.138629436 * cos(1.0)), RK_TOL_F32_ELEMENT);
    assert_below("sin", fabs(sin_table[64] - 1.138629436 * sin(1.0)), RK_TOL_F32_ELEMENT);

    assert_ok(parse(&config,
                    "\"max_position_embeddings\": 131072, \"rope_scaling\": {\"rope_type\": \"yarn\","
                    " \"factor\": null, \"original_max_position_embeddings\": 32768}"));
    assert_true(config.rope_scaling.factor == 4);
}

static void test_rope_table_holds_cosines_of_fp32_angles(void **state)
{
    struct rk_model_config config;
    struct rk_rope_spec rope;
    float cos_table[20], sin_table[20];

    (void)state;
    assert_ok(parse(&config, "\"head_dim\": 8"));
    rope = rk_rope_of_config(&config);
    rk_rope_table(&rope, 5, cos_table, sin_table);
    for (int p = 0; p < 5; p++) {
        for (int k = 0; k < 4; k++) {
            double angle = p * pow(10000.0, -2.0 * k / 8);

            assert_below("cos", fabs(cos_table[p * 4 + k] - cos(angle)), RK_TOL_F32_ELEMENT);
            assert_below("sin", fabs(sin_table[p * 4 + k] - sin(angle)), RK_TOL_F32_ELEMENT);
        }
    }
}

static void test_numerics_parse_of_names(void **state)
{
    rk_numerics_t numerics;

    (void)state;
    assert_ok(rk_numerics_parse(&numerics, "strict"));
    assert_int_equal(numerics, RK_NUMERICS_STRICT);
    assert_ok(rk_numerics_parse(&numerics, "fast"));
    assert_int_equal(numerics, RK_NUMERICS_FAST);
    assert_fails(rk_numerics_parse(&numerics, "hf"), RK_UNIMPLEMENTED, "fast or strict");
    assert_fails(rk_numerics_parse(&numerics, "Fast"), RK_INVALID_ARGUMENT,
                 "numerics='Fast', expected fast or strict");
}

/* Goal: the driver knows no family that the engine does not have. */
static void test_families_are_those_that_the_driver_knows(void **state)
{
    struct rk_status *st = rk_hf_model_type_check("other");
    const char *at = strstr(rk_status_message(st), "one of: ");

    (void)state;
    assert_non_null(at);
    for (at += strlen("one of: "); *at; at += strspn(at, ", ")) {
        char *name = rk_strndup(at, strcspn(at, ","));

        assert_non_null(rk_family_find(name));
        at += strlen(name);
        rk_free(name);
    }
    rk_status_free(st);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parse_of_bare_type_gives_defaults),
        cmocka_unit_test(test_parse_of_qwen2_reads_rope_of_its_layers),
        cmocka_unit_test(test_parse_of_known_spellings_reads_them),
        cmocka_unit_test(test_parse_of_bad_values_names_key_and_value),
        cmocka_unit_test(test_parse_of_qwen2_reads_biases_and_window),
        cmocka_unit_test(test_parse_of_qwen3_reads_norms_and_head_dim),
        cmocka_unit_test(test_parse_of_mistral_reads_window),
        cmocka_unit_test(test_parse_of_qwen2_with_other_kinds_of_layers_is_unimplemented),
        cmocka_unit_test(test_parse_of_unknown_type_lists_the_known),
        cmocka_unit_test(test_parse_of_deepseek_v3_reads_latents_and_layers),
        cmocka_unit_test(test_parse_of_bad_deepseek_v3_names_the_key),
        cmocka_unit_test(test_rope_inv_freq_of_llama3_matches_published_values),
        cmocka_unit_test(test_rope_keys_mean_the_same_in_transformers),
        cmocka_unit_test(test_rope_inv_freq_of_yarn_matches_published_values),
        cmocka_unit_test(test_rope_table_holds_cosines_of_fp32_angles),
        cmocka_unit_test(test_families_are_those_that_the_driver_knows),
        cmocka_unit_test(test_numerics_parse_of_names),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
