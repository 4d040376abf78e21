/* Shapes of models, and the costs of their passes. */
#include "bench/models.h"

#include <math.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"

#define DENSE(a_name, hidden, intermediate, layers, heads, kv_heads, dim, vocab, tied)               \
    {                                                                                                \
        .name = (a_name), .hidden_size = (hidden), .intermediate_size = (intermediate),              \
        .num_layers = (layers), .num_heads = (heads), .num_kv_heads = (kv_heads), .head_dim = (dim), \
        .vocab_size = (vocab), .tie_word_embeddings = (tied)                                         \
    }
#define QWEN3_MOE(a_layers)                                                                                  \
    {                                                                                                        \
        .name = #a_layers " layers of 30B-A3B", .hidden_size = 2048, .intermediate_size = 6144,              \
        .num_layers = (a_layers), .num_heads = 32, .num_kv_heads = 4, .head_dim = 128, .vocab_size = 151936, \
        .experts = {.count = 128, .per_token = 8, .intermediate_size = 768}, .tiny = &bench_model_tiny_moe   \
    }
#define MOONLIGHT(a_layers)                                                                        \
    {                                                                                              \
        .name = #a_layers " layers of Moonlight", .hidden_size = 2048, .intermediate_size = 11264, \
        .num_layers = (a_layers), .num_heads = 16, .num_kv_heads = 16, .head_dim = 192,            \
        .vocab_size = 163840,                                                                      \
        .experts = {.count = 64,                                                                   \
                    .per_token = 6,                                                                \
                    .intermediate_size = 1408,                                                     \
                    .num_shared = 2,                                                               \
                    .num_dense = 1},                                                               \
        .latent = {.rank = 512, .nope_dim = 128, .rope_dim = 64, .v_dim = 128},                    \
        .tiny = &bench_model_tiny_latent                                                           \
    }

const struct bench_model bench_model_1_5b = DENSE("1.5B", 1536, 8960, 28, 12, 2, 128, 151936, true);
const struct bench_model bench_model_7b = DENSE("7B", 3584, 18944, 28, 28, 4, 128, 152064, false);
/* The shape of Llama 3 8B; biases and epsilon are Qwen2.5's. */
const struct bench_model bench_model_8b = DENSE("8B", 4096, 14336, 32, 32, 8, 128, 128256, false);
const struct bench_model bench_model_30b_a3b = QWEN3_MOE(48), bench_model_30b_a3b_12 = QWEN3_MOE(12);
const struct bench_model bench_model_moonlight = MOONLIGHT(27), bench_model_moonlight_12 = MOONLIGHT(12);
const struct bench_model bench_model_tiny = DENSE("tiny", 64, 96, 2, 4, 2, 16, 320, true);
const struct bench_model bench_model_tiny_deep = DENSE("tiny", 64, 96, 8, 4, 2, 16, 320, false);
const struct bench_model bench_model_tiny_moe = {
    .name = "tiny",
    .hidden_size = 64,
    .intermediate_size = 96,
    .num_layers = 2,
    .num_heads = 4,
    .num_kv_heads = 2,
    .head_dim = 16,
    .vocab_size = 320,
    .experts = {.count = 8, .per_token = 2, .intermediate_size = 32}};
const struct bench_model bench_model_tiny_latent = {
    .name = "tiny",
    .hidden_size = 64,
    .intermediate_size = 96,
    .num_layers = 2,
    .num_heads = 4,
    .num_kv_heads = 4,
    .head_dim = 24,
    .vocab_size = 320,
    .experts = {.count = 8, .per_token = 2, .intermediate_size = 32, .num_shared = 1, .num_dense = 1},
    .latent = {.rank = 32, .nope_dim = 16, .rope_dim = 8, .v_dim = 16}};

const struct bench_model *bench_shape(const struct bench_ctx *ctx, const struct bench_model *model)
{
    if (!ctx->options->is_tiny)
        return model;
    return model->tiny ? model->tiny : &bench_model_tiny;
}

/* --- parameters --- */

static double attention_params(const struct bench_model *model)
{
    double h = (double)model->hidden_size, heads = (double)model->num_heads;
    double q = heads * (double)model->head_dim, kv = (double)(model->num_kv_heads * model->head_dim);
    double rank = (double)model->latent.rank, rope = (double)model->latent.rope_dim;
    double up = (double)(model->latent.nope_dim + model->latent.v_dim);

    if (rank > 0)
        return h * (q + rank + rope) + rank * heads * up + heads * (double)model->latent.v_dim * h;
    return h * (q + 2 * kv) + q * h;
}

/* Parameters of all layers behind attention, where a layer of experts uses num_experts of them. */
static double mlp_params(const struct bench_model *model, double num_experts)
{
    double h = (double)model->hidden_size, dense = 3 * h * (double)model->intermediate_size;
    double layers = (double)model->num_layers, num_dense = (double)model->experts.num_dense;
    double expert = 3 * h * (double)model->experts.intermediate_size;

    if (model->experts.count == 0)
        return layers * dense;
    return num_dense * dense +
           (layers - num_dense) * (h * (double)model->experts.count +
                                   (num_experts + (double)model->experts.num_shared) * expert);
}

static double matmul_params(const struct bench_model *model, double num_experts)
{
    return (double)model->num_layers * attention_params(model) + mlp_params(model, num_experts) +
           (double)model->vocab_size * (double)model->hidden_size;
}

double bench_matmul_params(const struct bench_model *model)
{
    return matmul_params(model, (double)model->experts.per_token);
}

double bench_num_params(const struct bench_model *model)
{
    double h = (double)model->hidden_size;
    double qkv = (double)((model->num_heads + 2 * model->num_kv_heads) * model->head_dim);
    double vectors = (double)model->num_layers * (2 * h + qkv) + h;

    return matmul_params(model, (double)model->experts.count) + vectors +
           (model->tie_word_embeddings ? 0 : (double)model->vocab_size * h);
}

/* --- costs --- */

/* Products of a query and a key, and of a probability and a value, over all heads of all layers. */
static double attention_width(const struct bench_model *model)
{
    int64_t v_dim = model->latent.rank > 0 ? model->latent.v_dim : model->head_dim;

    return (double)(model->num_layers * model->num_heads * (model->head_dim + v_dim));
}

struct bench_cost bench_cost_forward(const struct bench_model *model, int64_t num_seqs, int64_t seq_len)
{
    double tokens = (double)(num_seqs * seq_len);

    return (struct bench_cost){
        .flops = tokens * (2 * bench_matmul_params(model) + attention_width(model) * (double)seq_len),
        .items = tokens,
    };
}

struct bench_cost bench_cost_train(const struct bench_model *model, int64_t num_seqs, int64_t seq_len)
{
    struct bench_cost cost = bench_cost_forward(model, num_seqs, seq_len);

    cost.flops *= 3;
    return cost;
}

/* Experts of a layer that at least one of num_tokens tokens goes to, when all are equally likely. */
static double experts_used(const struct bench_model *model, double num_tokens)
{
    double count = (double)model->experts.count;

    if (model->experts.count == 0)
        return 0;
    return count * (1 - pow(1 - (double)model->experts.per_token / count, num_tokens));
}

struct bench_cost bench_cost_decode(const struct bench_model *model, int64_t num_seqs, int64_t context)
{
    double keys = (double)(num_seqs * context), layers = (double)model->num_layers;
    double cached = model->latent.rank > 0 ? (double)(model->latent.rank + model->latent.rope_dim)
                                           : 2 * (double)(model->num_kv_heads * model->head_dim);
    double read = matmul_params(model, experts_used(model, (double)num_seqs));

    return (struct bench_cost){
        .flops = 2 * (double)num_seqs * bench_matmul_params(model) + 2 * attention_width(model) * keys,
        .bytes = 2 * read + 2 * keys * layers * cached,
        .items = (double)num_seqs,
    };
}

/* --- configurations --- */

/* The keys of a family. */
static char *family_keys(const struct bench_model *m)
{
    if (m->latent.rank > 0)
        return rk_format("\"model_type\": \"deepseek_v3\", \"q_lora_rank\": null, \"kv_lora_rank\": %lld,"
                         " \"qk_nope_head_dim\": %lld, \"qk_rope_head_dim\": %lld, \"v_head_dim\": %lld,"
                         " \"n_routed_experts\": %lld, \"num_experts_per_tok\": %lld,"
                         " \"moe_intermediate_size\": %lld, \"n_shared_experts\": %lld,"
                         " \"first_k_dense_replace\": %lld, \"n_group\": 1, \"topk_group\": 1,"
                         " \"norm_topk_prob\": true, \"routed_scaling_factor\": 2.446,",
                         (long long)m->latent.rank, (long long)m->latent.nope_dim,
                         (long long)m->latent.rope_dim, (long long)m->latent.v_dim,
                         (long long)m->experts.count, (long long)m->experts.per_token,
                         (long long)m->experts.intermediate_size, (long long)m->experts.num_shared,
                         (long long)m->experts.num_dense);
    if (m->experts.count > 0)
        return rk_format("\"model_type\": \"qwen3_moe\", \"head_dim\": %lld, \"num_experts\": %lld,"
                         " \"num_experts_per_tok\": %lld, \"moe_intermediate_size\": %lld,"
                         " \"norm_topk_prob\": true,",
                         (long long)m->head_dim, (long long)m->experts.count, (long long)m->experts.per_token,
                         (long long)m->experts.intermediate_size);
    return rk_format("\"model_type\": \"qwen2\",");
}

char *bench_model_config(const struct bench_model *m, int64_t max_positions)
{
    char *keys = family_keys(m);
    char *text =
        rk_format("{%s \"hidden_size\": %lld, \"intermediate_size\": %lld, \"num_hidden_layers\": %lld,"
                  " \"num_attention_heads\": %lld, \"num_key_value_heads\": %lld, \"vocab_size\": %lld,"
                  " \"max_position_embeddings\": %lld, \"rms_norm_eps\": 1e-6, \"rope_theta\": 1000000.0,"
                  " \"hidden_act\": \"silu\", \"initializer_range\": 0.02, \"tie_word_embeddings\": %s}",
                  keys, (long long)m->hidden_size, (long long)m->intermediate_size, (long long)m->num_layers,
                  (long long)m->num_heads, (long long)m->num_kv_heads, (long long)m->vocab_size,
                  (long long)max_positions, m->tie_word_embeddings ? "true" : "false");

    rk_free(keys);
    return text;
}
