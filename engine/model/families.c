/* The table of model families, and the choice of a row by config.json's model_type. */
#include "engine/model/model.h"

#include <string.h>

#include "base/rk_assert.h"
#include "base/format/rk_hf_config.h"

static const struct rk_model_family *const families[] = {
#define X(name) &rk_family_##name,
#include "base/format/families.def"
#undef X
};

static const struct rk_model_family *extra_family;

static const struct rk_block_desc dense_blocks[] = {
    {&rk_block_attention, "input_layernorm", "self_attn"},
    {&rk_block_swiglu, "post_attention_layernorm", "mlp"},
    {0},
};

static const struct rk_block_desc sparse_blocks[] = {
    {&rk_block_attention, "input_layernorm", "self_attn"},
    {&rk_block_moe, "post_attention_layernorm", "mlp"},
    {0},
};

const struct rk_layer_kind rk_dense_layers[] = {{"dense", dense_blocks}, {0}};

const struct rk_layer_kind rk_sparse_layers[] = {
    [RK_LAYER_DENSE] = {"dense", dense_blocks}, [RK_LAYER_SPARSE] = {"sparse", sparse_blocks}, {0}};

void rk_family_set_extra(const struct rk_model_family *family)
{
    extra_family = family;
}

const struct rk_model_family *rk_family_find(const char *name)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(families); i++) {
        if (strcmp(families[i]->name, name) == 0)
            return families[i];
    }
    return extra_family && strcmp(extra_family->name, name) == 0 ? extra_family : NULL;
}

struct rk_status *rk_model_config_parse(struct rk_model_config *out, const struct rk_json *hf_config)
{
    const struct rk_model_family *family;
    const char *model_type;
    struct rk_status *st;

    *out = (struct rk_model_config){0};
    st = rk_json_get_string(hf_config, "", "model_type", &model_type);
    if (st)
        return RK_WRAP(st, "config.json");
    family = rk_family_find(model_type);
    if (!family)
        return RK_WRAP(rk_hf_model_type_check(model_type), "config.json");
    out->family = family->name;
    st = family->parse_config(out, hf_config);
    return st ? RK_WRAP(st, "config.json") : NULL;
}
