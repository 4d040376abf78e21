/* Qwen2, Qwen2.5: a Llama whose query, key and value projections have biases. Where use_sliding_window is
 * set, layers from max_window_layers on see the last sliding_window keys only. */
#include "engine/model/model_internal.h"

#include <string.h>

static const char *const qwen2_model_types[] = {"qwen2", NULL};

static const struct rk_block_desc qwen2_layer[] = {
    {&rk_block_attention, "input_layernorm", "self_attn"},
    {&rk_block_swiglu, "post_attention_layernorm", "mlp"},
    {0},
};

/* Newer files also list the kind of each layer. It must be what the keys above make of it. */
static struct rk_status *check_layer_types(const struct rk_model_config *config, const struct rk_json *types)
{
    for (int64_t layer = 0; layer < rk_json_count(types); layer++) {
        bool slides = config->sliding_window > 0 && layer >= config->max_window_layers;
        const char *expected = slides ? "sliding_attention" : "full_attention";
        const char *type = rk_json_as_string(rk_json_at(types, layer), "");

        if (strcmp(type, expected) != 0)
            return RK_FAIL(RK_UNIMPLEMENTED,
                           "layer_types[%lld]=\"%.32s\" is not implemented, expected %s, which "
                           "use_sliding_window and max_window_layers give",
                           (long long)layer, type, expected);
    }
    return NULL;
}

/* A null that is written out means "none" for some keys, where a missing key means the default. */
static bool has_null(const struct rk_json *hf_config, const char *key)
{
    const struct rk_json *value = rk_json_find(hf_config, key);

    return value && rk_json_is_null(value);
}

static struct rk_status *read_window(struct rk_model_config *out, const struct rk_json *hf_config)
{
    const struct rk_json *types = rk_json_find(hf_config, "layer_types");
    int64_t window = has_null(hf_config, "sliding_window") ? 0 : 4096;
    bool is_used = false;

    out->max_window_layers = 28;
    RK_TRY(rk_json_opt_bool(hf_config, "", "use_sliding_window", &is_used));
    RK_TRY(rk_json_opt_i64(hf_config, "", "sliding_window", 1, INT32_MAX, &window));
    RK_TRY(rk_json_opt_i64(hf_config, "", "max_window_layers", 0, INT32_MAX, &out->max_window_layers));
    out->sliding_window = is_used ? (int32_t)window : 0;
    return rk_json_is_null(types) ? NULL : check_layer_types(out, types);
}

static struct rk_status *qwen2_parse_config(struct rk_model_config *out, const struct rk_json *hf_config)
{
    out->hidden_size = 4096;
    out->intermediate_size = 22016;
    out->num_layers = 32;
    out->num_heads = 32;
    out->num_kv_heads = has_null(hf_config, "num_key_value_heads") ? 0 : 32;
    out->vocab_size = 151936;
    out->max_position_embeddings = 32768;
    out->rms_norm_eps = 1e-6;
    out->rope_theta = 10000.0;
    out->initializer_range = 0.02;
    out->has_qkv_bias = true;
    RK_TRY(rk_config_read_common(out, hf_config));
    RK_TRY(read_window(out, hf_config));
    return rk_config_read_rope(out, hf_config);
}

static const struct rk_block_desc *qwen2_plan_layer(const struct rk_model_config *config, int64_t layer)
{
    (void)config;
    (void)layer;
    return qwen2_layer;
}

const struct rk_model_family rk_family_qwen2 = {
    .name = "qwen2",
    .abi = RK_FAMILY_ABI,
    .hf_model_types = qwen2_model_types,
    .parse_config = qwen2_parse_config,
    .plan_layer = qwen2_plan_layer,
};
