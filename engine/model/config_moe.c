/* Keys of config.json that families with layers of experts have in common. */
#include "engine/model/model.h"

#include <math.h>

#include "kernels/rk_kernels.h"

/* Families and releases have several names for the number of experts, and a file may have more than one. */
static struct rk_status *read_num_experts(struct rk_moe_config *out, const struct rk_json *hf_config)
{
    static const char *const keys[] = {"num_experts", "num_local_experts", "n_routed_experts"};
    const char *first = NULL;

    for (size_t i = 0; i < RK_ARRAY_LEN(keys); i++) {
        int64_t value = 0;

        if (rk_json_is_null(rk_json_find(hf_config, keys[i])))
            continue;
        RK_TRY(rk_json_opt_i64(hf_config, "", keys[i], 1, RK_MOE_EXPERTS_MAX, &value));
        if (first && value != out->num_experts)
            return RK_FAIL(RK_INVALID_ARGUMENT, "%s=%lld: expected what %s says, %lld", keys[i],
                           (long long)value, first, (long long)out->num_experts);
        out->num_experts = value;
        first = keys[i];
    }
    return NULL;
}

struct rk_status *rk_config_check_moe(const struct rk_moe_config *moe)
{
    int64_t group_size = moe->num_experts / RK_MAX(moe->num_groups, 1);

    if (moe->num_experts_per_tok > moe->num_experts)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "num_experts_per_tok=%lld: expected at most the %lld experts of a layer",
                       (long long)moe->num_experts_per_tok, (long long)moe->num_experts);
    if (moe->num_groups < 1 || moe->num_experts % moe->num_groups != 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "n_group=%d: expected a divisor of the %lld experts of a layer",
                       moe->num_groups, (long long)moe->num_experts);
    if (moe->topk_groups < 1 || moe->topk_groups > moe->num_groups)
        return RK_FAIL(RK_INVALID_ARGUMENT, "topk_group=%d: expected 1 to n_group=%d", moe->topk_groups,
                       moe->num_groups);
    if (moe->num_experts_per_tok > group_size * moe->topk_groups)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "num_experts_per_tok=%lld: expected at most the %lld experts of topk_group=%d groups",
                       (long long)moe->num_experts_per_tok, (long long)(group_size * moe->topk_groups),
                       moe->topk_groups);
    if (!(moe->routed_scaling_factor > 0) || !isfinite(moe->routed_scaling_factor))
        return RK_FAIL(RK_INVALID_ARGUMENT, "routed_scaling_factor: expected a number above 0, got %g",
                       moe->routed_scaling_factor);
    return NULL;
}

struct rk_status *rk_config_read_moe(struct rk_moe_config *out, const struct rk_json *hf_config)
{
    RK_TRY(read_num_experts(out, hf_config));
    RK_TRY(rk_json_opt_i64(hf_config, "", "num_experts_per_tok", 1, RK_MOE_TOP_K_MAX,
                           &out->num_experts_per_tok));
    RK_TRY(rk_json_opt_i64(hf_config, "", "moe_intermediate_size", 1, INT32_MAX, &out->intermediate_size));
    RK_TRY(rk_json_opt_bool(hf_config, "", "norm_topk_prob", &out->norm_topk_prob));
    return rk_config_check_moe(out);
}

/* Layers listed in mlp_only_layers are dense. */
static struct rk_status *read_dense_layers(struct rk_model_config *out, const struct rk_json *hf_config,
                                           uint8_t dense)
{
    const struct rk_json *layers = rk_json_find(hf_config, "mlp_only_layers");

    if (rk_json_is_null(layers))
        return NULL;
    if (rk_json_type(layers) != RK_JSON_ARRAY)
        return RK_FAIL(RK_INVALID_ARGUMENT, "mlp_only_layers: expected a list of numbers of layers, got %s",
                       rk_json_type_name(rk_json_type(layers)));
    for (int64_t i = 0; i < rk_json_count(layers); i++) {
        int64_t layer = rk_json_as_int(rk_json_at(layers, i), -1);

        if (layer < 0 || layer >= out->num_layers)
            return RK_FAIL(RK_INVALID_ARGUMENT, "mlp_only_layers[%lld]: expected a layer from 0 to %lld",
                           (long long)i, (long long)(out->num_layers - 1));
        out->layer_kinds[layer] = dense;
    }
    return NULL;
}

struct rk_status *rk_config_read_sparse_layers(struct rk_model_config *out, const struct rk_json *hf_config,
                                               uint8_t dense, uint8_t sparse)
{
    int64_t step = 1;

    RK_TRY(rk_json_opt_i64(hf_config, "", "decoder_sparse_step", 1, INT32_MAX, &step));
    for (int64_t layer = 0; layer < out->num_layers; layer++)
        out->layer_kinds[layer] = (layer + 1) % step == 0 ? sparse : dense;
    return read_dense_layers(out, hf_config, dense);
}
