/* Mistral 7B: Llama in which the queries of every layer attend to the last sliding_window keys only; null
 * (v0.2 and later): to all. */
#include "engine/model/model.h"

static struct rk_status *mistral_parse_config(struct rk_model_config *out, const struct rk_json *hf_config)
{
    int64_t window = rk_config_has_null(hf_config, "sliding_window") ? 0 : 4096;

    out->hidden_size = 4096;
    out->intermediate_size = 14336;
    out->num_layers = 32;
    out->num_heads = 32;
    out->num_kv_heads = rk_config_has_null(hf_config, "num_key_value_heads") ? 0 : 8;
    out->vocab_size = 32000;
    out->max_position_embeddings = 131072;
    out->rms_norm_eps = 1e-6;
    out->rope_theta = 10000.0;
    out->initializer_range = 0.02;
    RK_TRY(rk_config_read_common(out, hf_config));
    RK_TRY(rk_json_opt_i64(hf_config, "", "sliding_window", 1, INT32_MAX, &window));
    out->sliding_window = (int32_t)window;
    RK_TRY(rk_config_check_layer_types(out, hf_config));
    return rk_config_read_rope(out, hf_config);
}

const struct rk_model_family rk_family_mistral = {
    .name = "mistral",
    .parse_config = mistral_parse_config,
    .layer_kinds = rk_dense_layers,
};
