/* A family with the layers of Llama and sizes of its own.
 *
 * A template of CONTRIBUTING.md (tests/scripts/test_contributing.py). */
#include "engine/model/model.h"

static struct rk_status *example_parse_config(struct rk_model_config *out, const struct rk_json *hf_config)
{
    out->hidden_size = 64;
    out->intermediate_size = 128;
    out->num_layers = 2;
    out->num_heads = 4;
    out->vocab_size = 256;
    out->max_position_embeddings = 128;
    out->rms_norm_eps = 1e-6;
    out->rope_theta = 10000.0;
    out->initializer_range = 0.02;
    RK_TRY(rk_config_read_common(out, hf_config));
    return rk_config_read_rope(out, hf_config);
}

const struct rk_model_family rk_family_example = {
    .name = "example",
    .parse_config = example_parse_config,
    .layer_kinds = rk_dense_layers,
};
