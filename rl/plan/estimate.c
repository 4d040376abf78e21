#include "rl/rk_estimate.h"

#include <string.h>

#include "base/rk_compiler.h"

/* Larger sizes are invalid; the daemons report them. */
#define SIZE_MAX_KNOWN (1 << 24)

static int64_t size_at(const struct rk_json *config, const char *key, int64_t fallback)
{
    int64_t value = rk_json_as_int(rk_json_find(config, key), fallback);

    return value > 0 && value <= SIZE_MAX_KNOWN ? value : 0;
}

/* Costs of attention. */
struct attention {
    double weights; /* of its GEMMs */
    double width;   /* columns of scores and of values, on average of the two, over all heads */
};

static struct attention grouped_attention(const struct rk_json *config)
{
    double hidden = (double)size_at(config, "hidden_size", 0);
    int64_t heads = size_at(config, "num_attention_heads", 0);
    int64_t kv_heads = size_at(config, "num_key_value_heads", heads);
    int64_t head_dim = size_at(config, "head_dim", heads > 0 ? (int64_t)hidden / heads : 0);
    double width = (double)heads * (double)head_dim, kv_width = (double)kv_heads * (double)head_dim;

    return (struct attention){kv_width < 1 ? 0 : 2 * hidden * width + 2 * hidden * kv_width, width};
}

/* In the expanded form, as passes over packed sequences compute it. */
static struct attention latent_attention(const struct rk_json *config)
{
    double hidden = (double)size_at(config, "hidden_size", 0);
    double heads = (double)size_at(config, "num_attention_heads", 0);
    double q_rank = (double)size_at(config, "q_lora_rank", 0);
    double kv_rank = (double)size_at(config, "kv_lora_rank", 0);
    double nope = (double)size_at(config, "qk_nope_head_dim", 128);
    double rope = (double)size_at(config, "qk_rope_head_dim", 64);
    double v = (double)size_at(config, "v_head_dim", 128), q = heads * (nope + rope);

    return (struct attention){
        .weights = (q_rank > 0 ? hidden * q_rank + q_rank * q : hidden * q) + hidden * (kv_rank + rope) +
                   kv_rank * heads * (nope + v) + heads * v * hidden,
        .width = heads * (nope + rope + v) / 2,
    };
}

int64_t rk_estimate_num_experts(const struct rk_json *config)
{
    static const char *const keys[] = {"n_routed_experts", "num_experts", "num_local_experts"};
    int64_t count = 0;

    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]) && count == 0; i++)
        count = size_at(config, keys[i], 0);
    return count;
}

/* Columns that a token passes in a layer of experts: of its experts and of shared ones. */
static double sparse_width(const struct rk_json *config)
{
    int64_t width = size_at(config, "moe_intermediate_size", size_at(config, "intermediate_size", 0));
    int64_t shared = size_at(config, "shared_expert_intermediate_size", 0) +
                     size_at(config, "n_shared_experts", 0) * width;

    return (double)(size_at(config, "num_experts_per_tok", 1) * width + shared);
}

/* Weights that a token meets in a layer of experts: router, gate of a shared expert, experts. */
static double expert_weights(const struct rk_json *config)
{
    double hidden = (double)size_at(config, "hidden_size", 0);
    double gate = size_at(config, "shared_expert_intermediate_size", 0) > 0 ? hidden : 0;

    return hidden * (double)rk_estimate_num_experts(config) + gate + 3 * hidden * sparse_width(config);
}

static bool is_sparse_qwen_layer(const struct rk_json *config, int64_t layer)
{
    const struct rk_json *dense = rk_json_find(config, "mlp_only_layers");
    int64_t step = size_at(config, "decoder_sparse_step", 1);

    for (int64_t i = 0; i < rk_json_count(dense); i++) {
        if (rk_json_as_int(rk_json_at(dense, i), -1) == layer)
            return false;
    }
    return step > 0 && (layer + 1) % step == 0;
}

/* The key of the number of experts tells the family; each has other keys of dense layers, or none. */
static bool is_sparse_layer(const struct rk_json *config, int64_t layer)
{
    if (size_at(config, "n_routed_experts", 0) > 0)
        return layer >= rk_json_as_int(rk_json_find(config, "first_k_dense_replace"), 3);
    if (size_at(config, "num_experts", 0) > 0)
        return is_sparse_qwen_layer(config, layer);
    return size_at(config, "num_local_experts", 0) > 0;
}

bool rk_estimate_has_experts(const struct rk_json *config)
{
    int64_t num_layers = RK_MIN(size_at(config, "num_hidden_layers", 0), RK_ESTIMATE_LAYERS_MAX);

    for (int64_t i = 0; i < num_layers; i++) {
        if (is_sparse_layer(config, i))
            return true;
    }
    return false;
}

static struct attention attention_of(const struct rk_json *config)
{
    return size_at(config, "kv_lora_rank", 0) > 0 ? latent_attention(config) : grouped_attention(config);
}

double rk_estimate_linear_cost(const struct rk_json *hf_config)
{
    struct attention attention = attention_of(hf_config);
    double dense =
        3 * (double)size_at(hf_config, "hidden_size", 0) * (double)size_at(hf_config, "intermediate_size", 0);
    int64_t num_layers = RK_MAX(size_at(hf_config, "num_hidden_layers", 1), 1);
    double weights = 0;

    if (dense < 1 || attention.weights < 1 || attention.width < 1 || num_layers > RK_ESTIMATE_LAYERS_MAX)
        return 0;
    for (int64_t i = 0; i < num_layers; i++)
        weights += attention.weights + (is_sparse_layer(hf_config, i) ? expert_weights(hf_config) : dense);
    return weights / (double)num_layers / attention.width;
}

bool rk_estimate_of(struct rk_estimate *out, const struct rk_json *hf_config, int64_t seqlen)
{
    double hidden = (double)size_at(hf_config, "hidden_size", 0);
    double ffn = (double)size_at(hf_config, "intermediate_size", 0);
    double vocab = (double)size_at(hf_config, "vocab_size", 0);
    struct attention attention = attention_of(hf_config);

    *out = (struct rk_estimate){.num_layers = size_at(hf_config, "num_hidden_layers", 0)};
    if (hidden < 1 || ffn < 1 || vocab < 1 || attention.weights < 1 || attention.width < 1 ||
        out->num_layers < 1 || out->num_layers > RK_ESTIMATE_LAYERS_MAX)
        return false;
    /* 4 for scores and values, over half of the sequence on average */
    out->attention = 4 * attention.width / 2;
    out->layer = 2 * (attention.weights + 3 * hidden * ffn) + out->attention * (double)seqlen;
    out->sparse_layer = 2 * (attention.weights + expert_weights(hf_config)) + out->attention * (double)seqlen;
    for (int64_t i = 0; i < out->num_layers; i++)
        out->is_sparse[i] = is_sparse_layer(hf_config, i);
    out->head = 2 * hidden * vocab;
    out->num_experts = rk_estimate_num_experts(hf_config);
    out->num_experts_per_tok = size_at(hf_config, "num_experts_per_tok", 1);
    return true;
}

double rk_estimate_num_params(const struct rk_json *config)
{
    double hidden = (double)size_at(config, "hidden_size", 0);
    double ffn = (double)size_at(config, "intermediate_size", 0);
    double vocab = (double)size_at(config, "vocab_size", 0);
    double width = (double)size_at(config, "moe_intermediate_size", size_at(config, "intermediate_size", 0));
    double shared =
        expert_weights(config) - 3 * hidden * width * (double)size_at(config, "num_experts_per_tok", 1);
    double sparse = shared + 3 * hidden * width * (double)rk_estimate_num_experts(config);
    int64_t num_layers = size_at(config, "num_hidden_layers", 0);
    bool is_tied = rk_json_as_bool(rk_json_find(config, "tie_word_embeddings"), false);
    double weights = (is_tied ? 1 : 2) * hidden * vocab;

    if (hidden < 1 || ffn < 1 || vocab < 1 || num_layers < 1 || num_layers > RK_ESTIMATE_LAYERS_MAX)
        return 0;
    for (int64_t i = 0; i < num_layers; i++)
        weights += attention_of(config).weights + (is_sparse_layer(config, i) ? sparse : 3 * hidden * ffn);
    return weights;
}

double rk_estimate_layers(const struct rk_estimate *estimate, int64_t begin, int64_t end)
{
    int64_t num_sparse = 0;

    for (int64_t i = begin; i < end; i++)
        num_sparse += estimate->is_sparse[i];
    return (double)(end - begin - num_sparse) * estimate->layer + (double)num_sparse * estimate->sparse_layer;
}

double rk_estimate_forward(const struct rk_estimate *estimate)
{
    return rk_estimate_layers(estimate, 0, estimate->num_layers) + estimate->head;
}

double rk_estimate_train(const struct rk_estimate *estimate, bool recomputes)
{
    return rk_estimate_layers(estimate, 0, estimate->num_layers) * (recomputes ? 4 : 3) + 3 * estimate->head;
}

double rk_estimate_batch_forward(const struct rk_json *hf_config, const int64_t *seqlens, int64_t num_rows)
{
    struct rk_estimate estimate;
    double weights, attention, flops = 0;

    if (!rk_estimate_of(&estimate, hf_config, 0))
        return 0;
    weights = rk_estimate_forward(&estimate);
    attention = (double)estimate.num_layers * estimate.attention;
    for (int64_t i = 0; i < num_rows; i++)
        flops += (double)seqlens[i] * (weights + attention * (double)seqlens[i]);
    return flops;
}

double rk_estimate_peak_flops(const char *device_model)
{
    /* The first name that is part of the model's: "H200" stands before "H20". */
    static const struct {
        const char *name;
        double flops;
    } rows[] = {
        {"GB200", 2500e12}, {"B200", 2250e12}, {"H100", 989e12},  {"H800", 989e12}, {"H200", 989e12},
        {"A100", 312e12},   {"A800", 312e12},  {"L40S", 362e12},  {"L40", 181e12},  {"A40", 149.7e12},
        {"L20", 119.5e12},  {"H20", 148e12},   {"cpu", 0.448e12},
    };

    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        if (strstr(device_model, rows[i].name))
            return rows[i].flops;
    }
    return 0;
}
