/* Qwen2-MoE (Qwen1.5-MoE-A2.7B, Qwen2-57B-A14B): Qwen2 with experts and a gated shared expert in all layers
 * except those that mlp_only_layers and decoder_sparse_step leave dense. */
#include "engine/model/model.h"

static struct rk_status *qwen2_moe_parse_config(struct rk_model_config *out, const struct rk_json *hf_config)
{
    /* Releases of transformers differ in which layers have a window. */
    static const struct rk_config_limit limits[] = {{"use_sliding_window", "false"}};

    out->hidden_size = 2048;
    out->intermediate_size = 5632;
    out->num_layers = 24;
    out->num_heads = 16;
    out->num_kv_heads = rk_config_has_null(hf_config, "num_key_value_heads") ? 0 : 16;
    out->vocab_size = 151936;
    out->max_position_embeddings = 32768;
    out->rms_norm_eps = 1e-6;
    out->rope_theta = 10000.0;
    out->initializer_range = 0.02;
    out->has_qkv_bias = true;
    out->moe = (struct rk_moe_config){.num_experts = 60,
                                      .num_experts_per_tok = 4,
                                      .intermediate_size = 1408,
                                      .shared_intermediate_size = 5632,
                                      .has_shared_gate = true,
                                      .num_groups = 1,
                                      .topk_groups = 1,
                                      .routed_scaling_factor = 1.0,
                                      .names = &rk_moe_names_qwen};
    RK_TRY(rk_config_check_limits(hf_config, limits, RK_ARRAY_LEN(limits)));
    RK_TRY(rk_config_read_common(out, hf_config));
    RK_TRY(rk_config_check_layer_types(out, hf_config));
    RK_TRY(rk_json_opt_bool(hf_config, "", "qkv_bias", &out->has_qkv_bias));
    RK_TRY(rk_json_opt_i64(hf_config, "", "shared_expert_intermediate_size", 1, INT32_MAX,
                           &out->moe.shared_intermediate_size));
    RK_TRY(rk_config_read_moe(&out->moe, hf_config));
    RK_TRY(rk_config_read_sparse_layers(out, hf_config, RK_LAYER_DENSE, RK_LAYER_SPARSE));
    return rk_config_read_rope(out, hf_config);
}

const struct rk_model_family rk_family_qwen2_moe = {
    .name = "qwen2_moe",
    .parse_config = qwen2_moe_parse_config,
    .layer_kinds = rk_sparse_layers,
};
