/* Mixtral: Mistral with experts in all layers. The probabilities of a token's experts sum to 1. */
#include "engine/model/model.h"

static const struct rk_moe_names names = {.gate = "w1", .up = "w3", .down = "w2"};

static struct rk_status *mixtral_parse_config(struct rk_model_config *out, const struct rk_json *hf_config)
{
    static const struct rk_config_limit limits[] = {{"router_jitter_noise", "0"}};
    int64_t window = 0;

    out->hidden_size = 4096;
    out->intermediate_size = 14336;
    out->num_layers = 32;
    out->num_heads = 32;
    out->num_kv_heads = rk_config_has_null(hf_config, "num_key_value_heads") ? 0 : 8;
    out->vocab_size = 32000;
    out->max_position_embeddings = 131072;
    out->rms_norm_eps = 1e-5;
    out->rope_theta = 1e6;
    out->initializer_range = 0.02;
    RK_TRY(rk_config_check_limits(hf_config, limits, RK_ARRAY_LEN(limits)));
    RK_TRY(rk_config_read_common(out, hf_config));
    RK_TRY(rk_json_opt_i64(hf_config, "", "sliding_window", 1, INT32_MAX, &window));
    out->sliding_window = (int32_t)window;
    RK_TRY(rk_config_check_layer_types(out, hf_config));
    out->moe = (struct rk_moe_config){.num_experts = 8,
                                      .num_experts_per_tok = 2,
                                      .intermediate_size = out->intermediate_size,
                                      .norm_topk_prob = true,
                                      .num_groups = 1,
                                      .topk_groups = 1,
                                      .routed_scaling_factor = 1.0,
                                      .names = &names};
    RK_TRY(rk_config_read_moe(&out->moe, hf_config));
    out->moe.intermediate_size = out->intermediate_size; /* other families have separate keys for these */
    out->moe.norm_topk_prob = true;
    return rk_config_read_rope(out, hf_config);
}

static const struct rk_block_desc blocks[] = {
    {&rk_block_attention, "input_layernorm", "self_attn"},
    {&rk_block_moe, "post_attention_layernorm", "block_sparse_moe"},
    {0},
};

static const struct rk_layer_kind layers[] = {{"sparse", blocks}, {0}};

const struct rk_model_family rk_family_mixtral = {
    .name = "mixtral",
    .parse_config = mixtral_parse_config,
    .layer_kinds = layers,
};
