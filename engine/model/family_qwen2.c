/* Qwen2, Qwen2.5: Llama with biases in the query, key and value projections. With use_sliding_window, layers
 * from max_window_layers on attend to the last sliding_window keys only. */
#include "engine/model/model.h"

static struct rk_status *qwen2_parse_config(struct rk_model_config *out, const struct rk_json *hf_config)
{
    out->hidden_size = 4096;
    out->intermediate_size = 22016;
    out->num_layers = 32;
    out->num_heads = 32;
    out->num_kv_heads = rk_config_has_null(hf_config, "num_key_value_heads") ? 0 : 32;
    out->vocab_size = 151936;
    out->max_position_embeddings = 32768;
    out->rms_norm_eps = 1e-6;
    out->rope_theta = 10000.0;
    out->initializer_range = 0.02;
    out->has_qkv_bias = true;
    RK_TRY(rk_config_read_common(out, hf_config));
    RK_TRY(rk_config_read_window(out, hf_config));
    return rk_config_read_rope(out, hf_config);
}

const struct rk_model_family rk_family_qwen2 = {
    .name = "qwen2",
    .parse_config = qwen2_parse_config,
    .layer_kinds = rk_dense_layers,
};
