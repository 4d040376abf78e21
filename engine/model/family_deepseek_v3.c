/* DeepSeek-V3 and models of its architecture (Moonlight): latent attention (nn/latent.c), an MLP in the first
 * layers, and in the others experts chosen by groups with a correction bias, plus shared experts without a
 * gate. Hugging Face's head_dim is the number of rotated columns here, and num_key_value_heads has no
 * effect. */
#include "engine/model/model.h"

#include "kernels/rk_kernels.h"

static const struct rk_block_desc dense_blocks[] = {
    {&rk_block_latent, "input_layernorm", "self_attn"},
    {&rk_block_swiglu, "post_attention_layernorm", "mlp"},
    {0},
};

static const struct rk_block_desc sparse_blocks[] = {
    {&rk_block_latent, "input_layernorm", "self_attn"},
    {&rk_block_moe, "post_attention_layernorm", "mlp"},
    {0},
};

static const struct rk_layer_kind layer_kinds[] = {
    [RK_LAYER_DENSE] = {"dense", dense_blocks}, [RK_LAYER_SPARSE] = {"sparse", sparse_blocks}, {0}};

static const struct rk_moe_names moe_names = {
    .gate = "gate_proj", .up = "up_proj", .down = "down_proj", .shared = "shared_experts"};

/* Reads sizes, limited so that their products do not overflow. */
static struct rk_status *read_latent(struct rk_latent_config *out, const struct rk_json *hf_config)
{
    const struct {
        const char *key;
        int64_t *value;
    } sizes[] = {
        {"q_lora_rank", &out->q_lora_rank},
        {"kv_lora_rank", &out->kv_lora_rank},
        {"qk_nope_head_dim", &out->qk_nope_head_dim},
        {"qk_rope_head_dim", &out->qk_rope_head_dim},
        {"v_head_dim", &out->v_head_dim},
    };

    *out = (struct rk_latent_config){
        .q_lora_rank = rk_config_has_null(hf_config, "q_lora_rank") ? 0 : 1536,
        .kv_lora_rank = 512,
        .qk_nope_head_dim = 128,
        .qk_rope_head_dim = 64,
        .v_head_dim = 128,
        .rope_interleave = true,
    };
    for (size_t i = 0; i < RK_ARRAY_LEN(sizes); i++)
        RK_TRY(rk_json_opt_i64(hf_config, "", sizes[i].key, 1, 1 << 16, sizes[i].value));
    if (out->qk_rope_head_dim % 2 != 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "qk_rope_head_dim: expected an even number, got %lld",
                       (long long)out->qk_rope_head_dim);
    return rk_json_opt_bool(hf_config, "", "rope_interleave", &out->rope_interleave);
}

/* Layers from first_k_dense_replace on have experts. */
static struct rk_status *read_layers(struct rk_model_config *out, const struct rk_json *hf_config)
{
    int64_t num_dense = 3;

    RK_TRY(rk_json_opt_i64(hf_config, "", "first_k_dense_replace", 0, INT32_MAX, &num_dense));
    for (int64_t layer = 0; layer < out->num_layers; layer++)
        out->layer_kinds[layer] = layer < num_dense ? RK_LAYER_DENSE : RK_LAYER_SPARSE;
    out->num_nextn_predict_layers = 1;
    return rk_json_opt_i64(hf_config, "", "num_nextn_predict_layers", 0, RK_MODEL_MAX_LAYERS,
                           &out->num_nextn_predict_layers);
}

static struct rk_status *read_groups(struct rk_moe_config *out, const struct rk_json *hf_config)
{
    int64_t num_groups = 8, topk_groups = 4;

    RK_TRY(rk_json_opt_i64(hf_config, "", "n_group", 1, RK_MOE_EXPERTS_MAX, &num_groups));
    RK_TRY(rk_json_opt_i64(hf_config, "", "topk_group", 1, RK_MOE_EXPERTS_MAX, &topk_groups));
    out->num_groups = (int32_t)num_groups;
    out->topk_groups = (int32_t)topk_groups;
    return NULL;
}

static struct rk_status *read_experts(struct rk_moe_config *out, const struct rk_json *hf_config)
{
    int64_t num_shared = 1;

    *out = (struct rk_moe_config){.num_experts = 256,
                                  .num_experts_per_tok = 8,
                                  .intermediate_size = 2048,
                                  .is_sigmoid = true,
                                  .norm_topk_prob = true,
                                  .has_correction_bias = true,
                                  .routed_scaling_factor = 2.5,
                                  .names = &moe_names};
    RK_TRY(read_groups(out, hf_config));
    RK_TRY(rk_json_opt_f64(hf_config, "", "routed_scaling_factor", &out->routed_scaling_factor));
    RK_TRY(rk_config_read_moe(out, hf_config));
    RK_TRY(rk_json_opt_i64(hf_config, "", "n_shared_experts", 0, 1 << 10, &num_shared));
    out->shared_intermediate_size = num_shared * out->intermediate_size;
    return NULL;
}

static struct rk_status *deepseek_v3_parse_config(struct rk_model_config *out,
                                                  const struct rk_json *hf_config)
{
    static const struct rk_config_limit limits[] = {
        {"attention_bias", "false"},
        {"scoring_func", "\"sigmoid\""},
        {"topk_method", "\"noaux_tc\""},
        {"moe_layer_freq", "1"},
    };

    out->hidden_size = 7168;
    out->intermediate_size = 18432;
    out->num_layers = 61;
    out->num_heads = 128;
    out->vocab_size = 129280;
    out->max_position_embeddings = 4096;
    out->rms_norm_eps = 1e-6;
    out->rope_theta = 10000.0;
    out->initializer_range = 0.02;
    RK_TRY(rk_config_check_limits(hf_config, limits, RK_ARRAY_LEN(limits)));
    RK_TRY(read_latent(&out->latent, hf_config));
    out->head_dim = out->latent.qk_rope_head_dim;
    RK_TRY(rk_config_read_common(out, hf_config));
    out->head_dim = out->latent.qk_rope_head_dim; /* independent of the file, as in transformers */
    if (out->num_kv_heads != out->num_heads)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "num_key_value_heads=%lld: expected num_attention_heads=%lld with latent attention",
                       (long long)out->num_kv_heads, (long long)out->num_heads);
    RK_TRY(read_layers(out, hf_config));
    RK_TRY(read_experts(&out->moe, hf_config));
    return rk_config_read_rope(out, hf_config);
}

const struct rk_model_family rk_family_deepseek_v3 = {
    .name = "deepseek_v3",
    .parse_config = deepseek_v3_parse_config,
    .layer_kinds = layer_kinds,
};
