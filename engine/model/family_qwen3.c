/* Qwen3, dense: Llama with an explicit head_dim and an RMSNorm over every head of queries and keys before
 * RoPE. The sliding window is that of Qwen2. */
#include "engine/model/model.h"

static struct rk_status *qwen3_parse_config(struct rk_model_config *out, const struct rk_json *hf_config)
{
    static const struct rk_config_limit limits[] = {{"attention_bias", "false"}};

    out->hidden_size = 4096;
    out->intermediate_size = 22016;
    out->num_layers = 32;
    out->num_heads = 32;
    out->num_kv_heads = rk_config_has_null(hf_config, "num_key_value_heads") ? 0 : 32;
    out->head_dim = rk_config_has_null(hf_config, "head_dim") ? 0 : 128;
    out->vocab_size = 151936;
    out->max_position_embeddings = 32768;
    out->rms_norm_eps = 1e-6;
    out->rope_theta = 10000.0;
    out->initializer_range = 0.02;
    out->has_qk_norm = true;
    RK_TRY(rk_config_check_limits(hf_config, limits, RK_ARRAY_LEN(limits)));
    RK_TRY(rk_config_read_common(out, hf_config));
    RK_TRY(rk_config_read_window(out, hf_config));
    return rk_config_read_rope(out, hf_config);
}

const struct rk_model_family rk_family_qwen3 = {
    .name = "qwen3",
    .parse_config = qwen3_parse_config,
    .layer_kinds = rk_dense_layers,
};
