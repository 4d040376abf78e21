/* Qwen3-MoE: Qwen3 with experts instead of one MLP in all layers except those that mlp_only_layers and
 * decoder_sparse_step leave dense. A sliding window applies to all layers. */
#include "engine/model/model.h"

const struct rk_moe_names rk_moe_names_qwen = {
    .gate = "gate_proj", .up = "up_proj", .down = "down_proj", .shared = "shared_expert"};

static struct rk_status *qwen3_moe_parse_config(struct rk_model_config *out, const struct rk_json *hf_config)
{
    static const struct rk_config_limit limits[] = {{"attention_bias", "false"}};

    out->hidden_size = 2048;
    out->intermediate_size = 6144;
    out->num_layers = 24;
    out->num_heads = 32;
    out->num_kv_heads = rk_config_has_null(hf_config, "num_key_value_heads") ? 0 : 4;
    out->vocab_size = 151936;
    out->max_position_embeddings = 32768;
    out->rms_norm_eps = 1e-6;
    out->rope_theta = 10000.0;
    out->initializer_range = 0.02;
    out->has_qk_norm = true;
    out->moe = (struct rk_moe_config){.num_experts = 128,
                                      .num_experts_per_tok = 8,
                                      .intermediate_size = 768,
                                      .num_groups = 1,
                                      .topk_groups = 1,
                                      .routed_scaling_factor = 1.0,
                                      .names = &rk_moe_names_qwen};
    RK_TRY(rk_config_check_limits(hf_config, limits, RK_ARRAY_LEN(limits)));
    RK_TRY(rk_config_read_common(out, hf_config));
    RK_TRY(rk_config_read_window(out, hf_config));
    out->max_window_layers = 0;
    RK_TRY(rk_config_read_moe(&out->moe, hf_config));
    RK_TRY(rk_config_read_sparse_layers(out, hf_config, RK_LAYER_DENSE, RK_LAYER_SPARSE));
    return rk_config_read_rope(out, hf_config);
}

const struct rk_model_family rk_family_qwen3_moe = {
    .name = "qwen3_moe",
    .parse_config = qwen3_moe_parse_config,
    .layer_kinds = rk_sparse_layers,
};
