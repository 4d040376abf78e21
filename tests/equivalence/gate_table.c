/* Layouts and models of the gate. */
#include "tests/equivalence/gate.h"

#include <string.h>

#include "base/rk_assert.h"

/* Fewer key-value heads than the largest tp, a vocabulary size that no tp divides, windows of 20 tokens in
 * all layers (mistral), in two of four (qwen2, qwen3) or in none (llama). */
#define CONFIG(type, tie)                                                              \
    "{\"model_type\": \"" type                                                         \
    "\", \"hidden_size\": 64, \"intermediate_size\": 128, \"num_hidden_layers\": 4,"   \
    " \"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"vocab_size\": 131,"    \
    " \"head_dim\": 8, \"num_labels\": 1,"                                             \
    " \"use_sliding_window\": true, \"sliding_window\": 20, \"max_window_layers\": 2," \
    " \"max_position_embeddings\": 128, \"initializer_range\": 0.1, \"tie_word_embeddings\": " tie "}"

/* Experts in three of four layers (qwen2_moe) or in all; an odd number of experts; a width that tp=4
 * divides. */
#define SPARSE(type, tie, more)                                                     \
    "{\"model_type\": \"" type                                                      \
    "\", \"hidden_size\": 64, \"intermediate_size\": 16, \"num_hidden_layers\": 4," \
    " \"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"vocab_size\": 131," \
    " \"head_dim\": 8, \"num_labels\": 1, \"moe_intermediate_size\": 16,"           \
    " \"num_experts_per_tok\": 2," more                                             \
    " \"max_position_embeddings\": 128, \"initializer_range\": 0.1, \"tie_word_embeddings\": " tie "}"
#define SHARED      "\"mlp_only_layers\": [1], \"shared_expert_intermediate_size\": 24,"
#define QWEN2_MOE   "\"num_experts\": 7, " SHARED
#define QWEN2_MOE_8 "\"num_experts\": 8, " SHARED
#define QWEN3_MOE   "\"num_experts\": 8, \"norm_topk_prob\": true,"
#define MIXTRAL     "\"num_local_experts\": 8, \"sliding_window\": 20,"

/* Latents that no tp divides; experts from the second layer on, in groups, with a shared one. */
#define LATENT(tie, more)                                                                         \
    "{\"model_type\": \"deepseek_v3\", \"hidden_size\": 64, \"intermediate_size\": 128,"          \
    " \"num_hidden_layers\": 4, \"num_attention_heads\": 8, \"vocab_size\": 131,"                 \
    " \"kv_lora_rank\": 21, \"qk_nope_head_dim\": 6, \"qk_rope_head_dim\": 4, \"v_head_dim\": 5," \
    " \"num_labels\": 1, \"n_routed_experts\": 8, \"num_experts_per_tok\": 2, \"n_group\": 4,"    \
    " \"topk_group\": 2, \"moe_intermediate_size\": 16, \"rope_scaling\": {\"type\": \"yarn\","   \
    " \"factor\": 4, \"mscale\": 1.0, \"mscale_all_dim\": 0.8, \"beta_fast\": 8,"                 \
    " \"original_max_position_embeddings\": 32}," more                                            \
    " \"max_position_embeddings\": 128, \"initializer_range\": 0.1, \"tie_word_embeddings\": " tie "}"

/* A value or score head has a weight of its own: it is not tied. The last four: the dtypes of the sample. */
#define FAMILY(type, lm, tied, value, score)                                  \
    {type, CONFIG(type, "false"), "lm", lm, 0, 0, 0, {0}},                    \
        {type "_tied", CONFIG(type, "true"), "lm", tied, 0, 0, 0, {0}},       \
        {type "_value", CONFIG(type, "false"), "value", value, 0, 0, 0, {0}}, \
    {                                                                         \
        type "_score", CONFIG(type, "false"), "score", score, 0, 0, 0,        \
        {                                                                     \
            0                                                                 \
        }                                                                     \
    }

/* Their gradients have the size of the main loss's. */
#define ROUTER_LOSSES(type)                                                   \
    {                                                                         \
        .balancing_type = (type), .aux_loss_coeff = 0.2, .z_loss_coeff = 0.02 \
    }

const struct rk_gate_model rk_gate_models[] = {
    FAMILY("llama", RK_DTYPE_F64, RK_DTYPE_BF16, RK_DTYPE_F32, RK_DTYPE_F64),
    FAMILY("mistral", RK_DTYPE_BF16, RK_DTYPE_F64, RK_DTYPE_F64, RK_DTYPE_F32),
    /* Biases of queries, keys and values. */
    FAMILY("qwen2", RK_DTYPE_BF16, RK_DTYPE_F64, RK_DTYPE_BF16, RK_DTYPE_F32),
    /* Norms of queries and keys, whose gradients are partial on every tp rank. */
    FAMILY("qwen3", RK_DTYPE_BF16, RK_DTYPE_F32, RK_DTYPE_F64, RK_DTYPE_BF16),
    {"qwen2_moe", SPARSE("qwen2_moe", "false", QWEN2_MOE), "lm", RK_DTYPE_F64, 7, 0, 0, {0}},
    {"qwen3_moe_tied", SPARSE("qwen3_moe", "true", QWEN3_MOE), "lm", RK_DTYPE_F32, 8, 0, 0, {0}},
    {"qwen2_moe_value", SPARSE("qwen2_moe", "false", QWEN2_MOE_8), "value", RK_DTYPE_F64, 8, 0, 0, {0}},
    {"mixtral", SPARSE("mixtral", "false", MIXTRAL), "lm", RK_DTYPE_F64, 8, 0, 0, {0}},
    {"qwen2_moe_replay", SPARSE("qwen2_moe", "false", QWEN2_MOE_8), "lm", RK_DTYPE_BF16, 8, 3, 2, {0}},
    {"latent",
     LATENT("false", "\"q_lora_rank\": 27, \"first_k_dense_replace\": 4,"),
     "lm",
     RK_DTYPE_BF16,
     0,
     0,
     0,
     {0}},
    {"latent_tied",
     LATENT("true", "\"q_lora_rank\": null, \"first_k_dense_replace\": 4,"),
     "lm",
     RK_DTYPE_F64,
     0,
     0,
     0,
     {0}},
    {"latent_moe",
     LATENT("false", "\"q_lora_rank\": 27, \"first_k_dense_replace\": 1,"),
     "lm",
     RK_DTYPE_F64,
     8,
     0,
     0,
     {0}},
    {"qwen2_moe_seq_aux", SPARSE("qwen2_moe", "false", QWEN2_MOE_8), "lm", RK_DTYPE_F64, 8, 0, 0,
     ROUTER_LOSSES("seq_aux_loss")},
    {"mixtral_aux", SPARSE("mixtral", "false", MIXTRAL), "lm", RK_DTYPE_F64, 8, 0, 0,
     ROUTER_LOSSES("aux_loss")},
    {"latent_moe_seq_aux", LATENT("false", "\"q_lora_rank\": 27, \"first_k_dense_replace\": 1,"), "lm",
     RK_DTYPE_F32, 8, 0, 0, ROUTER_LOSSES("seq_aux_loss")},
    {"latent_moe_bias",
     LATENT("false", "\"q_lora_rank\": null, \"first_k_dense_replace\": 1,"),
     "lm",
     RK_DTYPE_F64,
     8,
     0,
     0,
     {.updates_bias = true, .bias_update_rate = 0.02}},
};
const size_t rk_gate_num_models = RK_ARRAY_LEN(rk_gate_models);

const struct rk_gate_layout rk_gate_one_rank = {.name = "one_rank"};

#define SP                .sequence_parallel = true
#define MICRO(n)          .num_micro_batches = (n)
#define ENDS(first, last) .num_first = (first), .num_last = (last)
#define KEPT(tokens)      .moe_dispatch_tokens = (tokens), .moe_keep_dispatched = true

const struct rk_gate_layout rk_gate_layouts[] = {
    /* Micro-batches and packing. Neither 469 tokens nor the sizes of micro-batches are multiples of 2 or
     * 4. */
    {"m2", "mistral_value", MICRO(2)},
    {"m12_one_sequence_each", "qwen2_score", MICRO(12)},
    {"padded", "llama", .is_padded = true},
    {"m3_reversed_strict", "qwen3_tied", MICRO(3), .is_reversed = true, .is_strict = true},
    {"m2_recompute3", "qwen3", MICRO(2), .recompute_num_layers = 3},
    /* Tensor and sequence parallelism; with tp=4 key-value heads are replicated. */
    {"t2", "llama_value", .tp = 2},
    {"t4_m2", "qwen3", .tp = 4, MICRO(2)},
    {"t2s", "qwen2_value", .tp = 2, SP},
    {"t4s_m2", "qwen2", .tp = 4, SP, MICRO(2)},
    {"t4s_strict_padded", "llama_value", .tp = 4, SP, .is_strict = true, .is_padded = true},
    /* Context parallelism; windows span chunks, sequences need padding. */
    {"c2", "qwen2", .cp = 2},
    {"c3_m2", "llama_score", .cp = 3, MICRO(2)},
    {"c4", "mistral", .cp = 4},
    {"t2c2_m2_recompute1", "qwen2_tied", .tp = 2, .cp = 2, MICRO(2), .recompute_num_layers = 1},
    {"t2sc2_m2_strict", "qwen3_score", .tp = 2, SP, .cp = 2, MICRO(2), .is_strict = true},
    /* Pipelines. */
    {"p2", "llama_tied", .pp = 2},
    {"p2_m4", "qwen2_value", .pp = 2, MICRO(4)},
    {"p4_m2", "mistral_score", .pp = 4, MICRO(2)},
    {"p4_m12", "qwen3_tied", .pp = 4, MICRO(12)},
    {"p3_uneven_m5", "mistral_tied", .pp = 3, ENDS(1, 1), MICRO(5)},
    {"p2v2_m6_recompute1", "llama_tied", .pp = 2, .vpp = 2, MICRO(6), .recompute_num_layers = 1},
    {"t2sp2_m3_strict", "mistral", .tp = 2, SP, .pp = 2, MICRO(3), .is_strict = true},
    {"t2sp3_uneven_m3", "qwen2_tied", .tp = 2, SP, .pp = 3, ENDS(2, 1), MICRO(3)},
    {"t2sp2v2_m2", "llama", .tp = 2, SP, .pp = 2, .vpp = 2, MICRO(2)},
    {"c2p2v2_m4", "qwen3_value", .cp = 2, .pp = 2, .vpp = 2, MICRO(4)},
    {"t2sc2p2_m3", "qwen3_value", .tp = 2, SP, .cp = 2, .pp = 2, MICRO(3)},
    /* Data parallelism; dp rank 1 has empty micro-batches. */
    {"d2", "mistral", .dp = 2},
    {"d3_m2", "mistral_value", .dp = 3, MICRO(2)},
    {"d4_m2", "llama", .dp = 4, MICRO(2)},
    {"d8", "qwen2_score", .dp = 8},
    {"t2d2_m2_strict", "qwen3", .tp = 2, .dp = 2, MICRO(2), .is_strict = true},
    {"t4sd2_m2", "qwen3_value", .tp = 4, SP, .dp = 2, MICRO(2)},
    {"c2d2_m2_recompute3", "qwen3", .cp = 2, .dp = 2, MICRO(2), .recompute_num_layers = 3},
    {"t2sc2d2", "llama_score", .tp = 2, SP, .cp = 2, .dp = 2},
    {"p2v2d2_m4", "qwen2_tied", .pp = 2, .vpp = 2, .dp = 2, MICRO(4)},
    {"p4d2_m3", "mistral_score", .pp = 4, .dp = 2, MICRO(3)},
    {"c2p2d2_m3", "qwen2_value", .cp = 2, .pp = 2, .dp = 2, MICRO(3)},
    {"t2sp2d2_m3", "llama_tied", .tp = 2, SP, .pp = 2, .dp = 2, MICRO(3)},
    /* Experts: parts of their width, tokens of other ranks, empty micro-batches. */
    {"t2_m2_recompute1", "qwen2_moe", .tp = 2, MICRO(2), .recompute_num_layers = 1},
    {"t4s_m3_strict", "qwen3_moe_tied", .tp = 4, SP, MICRO(3), .is_strict = true},
    {"t2sc2d2_m2", "qwen2_moe_value", .tp = 2, SP, .cp = 2, .dp = 2, MICRO(2)},
    {"t2sp2d2_m2", "mixtral", .tp = 2, SP, .pp = 2, .dp = 2, MICRO(2)},
    /* Experts on other ranks; buffers of few tokens take several rounds. */
    {"d2e2", "mixtral", .dp = 2, .ep = 2},
    {"d4e4_m2_rounds", "qwen2_moe_value", .dp = 4, .ep = 4, .moe_dispatch_tokens = 5, MICRO(2)},
    {"d4e2_m2_recompute3", "qwen3_moe_tied", .dp = 4, .ep = 2, MICRO(2), .recompute_num_layers = 3},
    {"t2d2e2_m2_strict", "mixtral", .tp = 2, .dp = 2, .ep = 2, MICRO(2), .is_strict = true},
    {"t2sd2e2_rounds", "mixtral", .tp = 2, SP, .dp = 2, .ep = 2, .moe_dispatch_tokens = 16},
    {"c2e2", "mixtral", .cp = 2, .ep = 2},
    {"c2d2e4_m2", "qwen2_moe_value", .cp = 2, .dp = 2, .ep = 4, MICRO(2)},
    {"p2d2e2_m3", "qwen2_moe_value", .pp = 2, .dp = 2, .ep = 2, MICRO(3)},
    {"t2s_etp1", "qwen3_moe_tied", .tp = 2, SP, .etp = 1},
    {"t2s_etp1_e2_strict", "qwen2_moe_value", .tp = 2, SP, .etp = 1, .ep = 2, .is_strict = true},
    {"t2sd2_etp1_e4_rounds", "mixtral", .tp = 2, SP, .dp = 2, .etp = 1, .ep = 4, .moe_dispatch_tokens = 7},
    {"t2_etp1_e2_m2", "mixtral", .tp = 2, .etp = 1, .ep = 2, MICRO(2)},
    {"t4_etp1_e4_recompute3", "qwen2_moe_replay", .tp = 4, .etp = 1, .ep = 4, .recompute_num_layers = 3},
    {"t2c2d2_etp1_e2_strict", "qwen2_moe_value", .tp = 2, .cp = 2, .dp = 2, .etp = 1, .ep = 2,
     .is_strict = true},
    {"t2sc2d2_etp1_e2_m2", "qwen2_moe_value", .tp = 2, SP, .cp = 2, .dp = 2, .etp = 1, .ep = 2, MICRO(2)},
    {"t2sc2_etp1_e2_m2", "qwen2_moe_replay", .tp = 2, SP, .cp = 2, .etp = 1, .ep = 2, MICRO(2)},
    {"t4s_padded", "qwen2_moe_replay", .tp = 4, SP, .is_padded = true},
    {"p2v2_m4_recompute1", "qwen2_moe_replay", .pp = 2, .vpp = 2, MICRO(4), .recompute_num_layers = 1},
    {"t2sp2d2e2_m2", "mixtral", .tp = 2, SP, .pp = 2, .dp = 2, .ep = 2, MICRO(2)},
    /* What latents have to do with: weights that every rank has whole, and keys that are made on all ranks.
     */
    {"t4_m2_recompute1", "latent_tied", .tp = 4, MICRO(2), .recompute_num_layers = 1},
    {"t4s_m2_strict", "latent_moe", .tp = 4, SP, MICRO(2), .is_strict = true},
    {"t2c2_m3", "latent_tied", .tp = 2, .cp = 2, MICRO(3)},
    {"t2sc2p2_m2", "latent", .tp = 2, SP, .cp = 2, .pp = 2, MICRO(2)},
    {"t2c2d2_m2", "latent_moe", .tp = 2, .cp = 2, .dp = 2, MICRO(2)},
    /* Rows of an exchange that are kept for the backward pass, with a shared expert beside it. */
    {"d4e2_m2_kept", "latent_moe", .dp = 4, .ep = 2, KEPT(200), MICRO(2)},
    {"t2sd2_etp1_e4_kept_recompute3", "qwen2_moe_value", .tp = 2, SP, .dp = 2, .etp = 1, .ep = 4, KEPT(400),
     .recompute_num_layers = 3},
    {"t2sp2d2e2_m2_kept_rounds", "mixtral", .tp = 2, SP, .pp = 2, .dp = 2, .ep = 2, KEPT(11), MICRO(2)},
    {"t2sd2e2_m2_strict", "latent_moe", .tp = 2, SP, .dp = 2, .ep = 2, MICRO(2), .is_strict = true},
    /* Losses of routers: counts over the ranks of a micro-batch, shares of the step. */
    {"t2_recompute1_aux", "mixtral_aux", .tp = 2, .recompute_num_layers = 1},
    {"t2sc2_etp1_e4_aux", "mixtral_aux", .tp = 2, SP, .cp = 2, .etp = 1, .ep = 4},
    {"p2_aux", "mixtral_aux", .pp = 2},
    {"m3_recompute3_aux", "qwen2_moe_seq_aux", MICRO(3), .recompute_num_layers = 3},
    {"c2d2e2_m3_aux", "qwen2_moe_seq_aux", .cp = 2, .dp = 2, .ep = 2, MICRO(3)},
    {"t2sd2_etp1_e4_m2_aux", "qwen2_moe_seq_aux", .tp = 2, SP, .dp = 2, .etp = 1, .ep = 4, MICRO(2)},
    {"c2p2_m3_recompute1_bias", "latent_moe_bias", .cp = 2, .pp = 2, MICRO(3), .recompute_num_layers = 1},
    {"t2sd2_etp1_e4_m2_bias", "latent_moe_bias", .tp = 2, SP, .dp = 2, .etp = 1, .ep = 4, MICRO(2)},
    {"t2d2p2_m2_aux", "latent_moe_seq_aux", .tp = 2, .dp = 2, .pp = 2, MICRO(2)},
};
const size_t rk_gate_num_layouts = RK_ARRAY_LEN(rk_gate_layouts);

const struct rk_gate_model *rk_gate_find_model(const char *name)
{
    for (size_t i = 0; i < rk_gate_num_models; i++) {
        if (strcmp(rk_gate_models[i].name, name) == 0)
            return &rk_gate_models[i];
    }
    return NULL;
}

const struct rk_gate_layout *rk_gate_find_layout(const char *name)
{
    for (size_t i = 0; i < rk_gate_num_layouts; i++) {
        if (strcmp(rk_gate_layouts[i].name, name) == 0)
            return &rk_gate_layouts[i];
    }
    return NULL;
}

int32_t rk_gate_num_ranks(const struct rk_gate_layout *layout)
{
    return RK_MAX(layout->tp, 1) * RK_MAX(layout->cp, 1) * RK_MAX(layout->dp, 1) * RK_MAX(layout->pp, 1);
}
