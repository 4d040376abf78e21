/* Llama 2, 3, 3.1, 3.2: grouped-query attention with RoPE and a SwiGLU MLP, each preceded by RMSNorm. */
#include "engine/model/model.h"

static struct rk_status *llama_parse_config(struct rk_model_config *out, const struct rk_json *hf_config)
{
    static const struct rk_config_limit limits[] = {
        {"attention_bias", "false"},
        {"mlp_bias", "false"},
    };

    out->hidden_size = 4096;
    out->intermediate_size = 11008;
    out->num_layers = 32;
    out->num_heads = 32;
    out->vocab_size = 32000;
    out->max_position_embeddings = 2048;
    out->rms_norm_eps = 1e-6;
    out->rope_theta = 10000.0;
    out->initializer_range = 0.02;
    RK_TRY(rk_config_check_limits(hf_config, limits, RK_ARRAY_LEN(limits)));
    RK_TRY(rk_config_read_common(out, hf_config));
    return rk_config_read_rope(out, hf_config);
}

const struct rk_model_family rk_family_llama = {
    .name = "llama",
    .parse_config = llama_parse_config,
    .layer_kinds = rk_dense_layers,
};
