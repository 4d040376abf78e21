#include "driver-cli/driver/estimate_internal.h"

#include "base/rk_array.h"

/* Larger sizes are invalid; the daemons report them. */
#define SIZE_MAX_KNOWN (1 << 24)

static int64_t size_at(const struct rk_json *config, const char *key, int64_t fallback)
{
    int64_t value = rk_json_as_int(rk_json_find(config, key), fallback);

    return value > 0 && value <= SIZE_MAX_KNOWN ? value : 0;
}

/* The first of `keys` that the configuration has. */
static int64_t first_of(const struct rk_json *config, const char *const *keys, int64_t num_keys)
{
    for (int64_t i = 0; i < num_keys; i++) {
        if (!rk_json_is_null(rk_json_find(config, keys[i])))
            return size_at(config, keys[i], 0);
    }
    return 0;
}

/* Layers with experts, of num_layers. */
static int64_t count_sparse(const struct rk_json *config, int64_t num_layers)
{
    const struct rk_json *dense = rk_json_find(config, "mlp_only_layers");
    int64_t step = RK_MAX(size_at(config, "decoder_sparse_step", 1), 1);
    int64_t first = rk_json_as_int(rk_json_find(config, "first_k_dense_replace"), 0), count = 0;

    for (int64_t layer = RK_MAX(first, 0); layer < num_layers; layer++) {
        bool is_sparse = (layer + 1) % step == 0;

        for (int64_t i = 0; i < rk_json_count(dense); i++)
            is_sparse &= rk_json_as_int(rk_json_at(dense, i), -1) != layer;
        count += is_sparse;
    }
    return count;
}

double rk_estimate_mlp_width(const struct rk_json *hf_config)
{
    static const char *const experts[] = {"num_experts", "num_local_experts", "n_routed_experts"};
    int64_t num_layers = size_at(hf_config, "num_hidden_layers", 0), num_sparse;
    int64_t width = size_at(hf_config, "intermediate_size", 0);
    int64_t expert_width = size_at(hf_config, "moe_intermediate_size", width);
    int64_t shared = size_at(hf_config, "shared_expert_intermediate_size", 0) +
                     size_at(hf_config, "n_shared_experts", 0) * expert_width;

    if (num_layers < 1 || first_of(hf_config, experts, RK_ARRAY_LEN(experts)) < 1)
        return (double)width;
    num_sparse = count_sparse(hf_config, num_layers);
    return ((double)num_sparse *
                (double)(size_at(hf_config, "num_experts_per_tok", 1) * expert_width + shared) +
            (double)(num_layers - num_sparse) * (double)width) /
           (double)num_layers;
}

bool rk_estimate_of(struct rk_estimate *out, const struct rk_json *hf_config, int64_t seqlen)
{
    double hidden = (double)size_at(hf_config, "hidden_size", 0);
    double ffn = rk_estimate_mlp_width(hf_config);
    double vocab = (double)size_at(hf_config, "vocab_size", 0);
    int64_t heads = size_at(hf_config, "num_attention_heads", 0);
    int64_t kv_heads = size_at(hf_config, "num_key_value_heads", heads);
    int64_t head_dim = size_at(hf_config, "head_dim", heads > 0 ? (int64_t)hidden / heads : 0);
    double width = (double)heads * (double)head_dim, kv_width = (double)kv_heads * (double)head_dim;

    *out = (struct rk_estimate){.num_layers = size_at(hf_config, "num_hidden_layers", 0)};
    if (hidden < 1 || ffn < 1 || vocab < 1 || width < 1 || kv_width < 1 || out->num_layers < 1)
        return false;
    /* q, k, v, o and the three of the MLP; scores and values over half of the sequence on average */
    out->layer = 2 * (2 * hidden * width + 2 * hidden * kv_width + 3 * hidden * ffn) +
                 4 * width * ((double)seqlen / 2);
    out->head = 2 * hidden * vocab;
    return true;
}

double rk_estimate_forward(const struct rk_estimate *estimate)
{
    return (double)estimate->num_layers * estimate->layer + estimate->head;
}

double rk_estimate_train(const struct rk_estimate *estimate, bool recomputes)
{
    return (double)estimate->num_layers * estimate->layer * (recomputes ? 4 : 3) + 3 * estimate->head;
}
