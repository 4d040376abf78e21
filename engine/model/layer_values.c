/* From the keys of a model to the values of a layer. */
#include "engine/model/model.h"

#include <math.h>

struct rk_rope_spec rk_rope_of_config(const struct rk_model_config *config)
{
    return (struct rk_rope_spec){
        .width = config->head_dim, .theta = config->rope_theta, .scaling = config->rope_scaling};
}

/* 1 / sqrt(columns of a key); with YaRN latent attention has a factor. */
static double softmax_scale(const struct rk_model_config *config)
{
    const struct rk_latent_config *latent = &config->latent;
    bool is_scaled = config->rope_scaling.type == RK_ROPE_YARN;

    if (latent->kv_lora_rank == 0)
        return 1.0 / sqrt((double)config->head_dim);
    return (is_scaled ? config->rope_scaling.softmax_factor : 1.0) /
           sqrt((double)(latent->qk_nope_head_dim + latent->qk_rope_head_dim));
}

struct rk_layer_values rk_config_layer_values(const struct rk_model_config *config, int64_t layer)
{
    struct rk_layer_values values = {
        .num_heads = config->num_heads,
        .num_kv_heads = config->num_kv_heads,
        .head_dim = config->head_dim,
        .has_qkv_bias = config->has_qkv_bias,
        .has_qk_norm = config->has_qk_norm,
        .window = layer >= config->max_window_layers ? config->sliding_window : 0,
        .softmax_scale = softmax_scale(config),
        .rope = rk_rope_of_config(config),
        .latent = config->latent,
        .intermediate_size = config->intermediate_size,
        .moe = config->moe,
    };

    if (config->latent.kv_lora_rank > 0)
        values.rope.width = config->latent.qk_rope_head_dim;
    return values;
}
