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

/* A value or score head has a weight of its own: it is not tied. */
#define FAMILY(type)                                                               \
    {.name = type, .config = CONFIG(type, "false"), .head = "lm"},                 \
        {.name = type "_tied", .config = CONFIG(type, "true"), .head = "lm"},      \
        {.name = type "_value", .config = CONFIG(type, "false"), .head = "value"}, \
    {                                                                              \
        .name = type "_score", .config = CONFIG(type, "false"), .head = "score"    \
    }
#define EXPERTS(n) .head = "lm", .num_experts = (n)

/* Their gradients have the size of the main loss's. */
#define ROUTER_LOSSES(type)                                                   \
    {                                                                         \
        .balancing_type = (type), .aux_loss_coeff = 0.2, .z_loss_coeff = 0.02 \
    }

const struct rk_gate_model rk_gate_models[] = {
    FAMILY("llama"),
    FAMILY("mistral"),
    /* Biases of queries, keys and values. */
    FAMILY("qwen2"),
    /* Norms of queries and keys, whose gradients are partial on every tp rank. */
    FAMILY("qwen3"),
    {"qwen2_moe", SPARSE("qwen2_moe", "false", QWEN2_MOE), EXPERTS(7)},
    {"qwen3_moe_tied", SPARSE("qwen3_moe", "true", QWEN3_MOE), EXPERTS(8)},
    {"qwen2_moe_value", SPARSE("qwen2_moe", "false", QWEN2_MOE_8), .head = "value", .num_experts = 8},
    {"mixtral", SPARSE("mixtral", "false", MIXTRAL), EXPERTS(8)},
    {"qwen2_moe_replay", SPARSE("qwen2_moe", "false", QWEN2_MOE_8), EXPERTS(8), .num_routes = 3, .top_k = 2},
    {"latent", LATENT("false", "\"q_lora_rank\": 27, \"first_k_dense_replace\": 4,"), .head = "lm"},
    {"latent_tied", LATENT("true", "\"q_lora_rank\": null, \"first_k_dense_replace\": 4,"), .head = "lm"},
    {"latent_moe", LATENT("false", "\"q_lora_rank\": 27, \"first_k_dense_replace\": 1,"), EXPERTS(8)},
    {"latent_moe_replay", LATENT("false", "\"q_lora_rank\": null, \"first_k_dense_replace\": 1,"), EXPERTS(8),
     .num_routes = 3, .top_k = 2},
    {"qwen2_moe_seq_aux", SPARSE("qwen2_moe", "false", QWEN2_MOE_8), EXPERTS(8),
     .moe = ROUTER_LOSSES("seq_aux_loss")},
    {"mixtral_aux", SPARSE("mixtral", "false", MIXTRAL), EXPERTS(8), .moe = ROUTER_LOSSES("aux_loss")},
    {"latent_moe_seq_aux", LATENT("false", "\"q_lora_rank\": 27, \"first_k_dense_replace\": 1,"), EXPERTS(8),
     .moe = ROUTER_LOSSES("seq_aux_loss")},
    {"qwen2_moe_frozen", SPARSE("qwen2_moe", "false", QWEN2_MOE_8), EXPERTS(8),
     .moe = {.freezes_router = true}},
    {"latent_moe_bias", LATENT("false", "\"q_lora_rank\": null, \"first_k_dense_replace\": 1,"), EXPERTS(8),
     .moe = {.updates_bias = true, .bias_update_rate = 0.02}},
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
    {"m2", MICRO(2)},
    {"m12_one_sequence_each", MICRO(12)},
    {"padded", .is_padded = true},
    {"m3_reversed_strict", MICRO(3), .is_reversed = true, .is_strict = true},
    {"m2_recompute3", MICRO(2), .recompute_num_layers = 3},
    /* Tensor and sequence parallelism; with tp=4 key-value heads are replicated. */
    {"t2", .tp = 2},
    {"t4_m2", .tp = 4, MICRO(2)},
    {"t2s", .tp = 2, SP},
    {"t4s_m2", .tp = 4, SP, MICRO(2)},
    {"t4s_strict_padded", .tp = 4, SP, .is_strict = true, .is_padded = true},
    /* Context parallelism; windows span chunks, sequences need padding. */
    {"c2", .cp = 2},
    {"c3_m2", .cp = 3, MICRO(2)},
    {"c4", .cp = 4},
    {"t2c2_m2_recompute1", .tp = 2, .cp = 2, MICRO(2), .recompute_num_layers = 1},
    {"t2sc2_m2_strict", .tp = 2, SP, .cp = 2, MICRO(2), .is_strict = true},
    /* Pipelines. */
    {"p2", .pp = 2},
    {"p2_m4", .pp = 2, MICRO(4)},
    {"p4_m2", .pp = 4, MICRO(2)},
    {"p4_m12", .pp = 4, MICRO(12)},
    {"p3_uneven_m5", .pp = 3, ENDS(1, 1), MICRO(5)},
    {"p2v2_m6_recompute1", .pp = 2, .vpp = 2, MICRO(6), .recompute_num_layers = 1},
    {"t2sp2_m3_strict", .tp = 2, SP, .pp = 2, MICRO(3), .is_strict = true},
    {"t2sp3_uneven_m3", .tp = 2, SP, .pp = 3, ENDS(2, 1), MICRO(3)},
    {"t2sp2v2_m2", .tp = 2, SP, .pp = 2, .vpp = 2, MICRO(2)},
    {"c2p2v2_m4", .cp = 2, .pp = 2, .vpp = 2, MICRO(4)},
    {"t2sc2p2_m3", .tp = 2, SP, .cp = 2, .pp = 2, MICRO(3)},
    /* Data parallelism; dp rank 1 has empty micro-batches. */
    {"d2", .dp = 2},
    {"d3_m2", .dp = 3, MICRO(2)},
    {"d4_m2", .dp = 4, MICRO(2)},
    {"d8", .dp = 8},
    {"t2d2_m2_strict", .tp = 2, .dp = 2, MICRO(2), .is_strict = true},
    {"t4sd2_m2", .tp = 4, SP, .dp = 2, MICRO(2)},
    {"c2d2_m2_recompute3", .cp = 2, .dp = 2, MICRO(2), .recompute_num_layers = 3},
    {"t2sc2d2", .tp = 2, SP, .cp = 2, .dp = 2},
    {"p2v2d2_m4", .pp = 2, .vpp = 2, .dp = 2, MICRO(4)},
    {"p4d2_m3", .pp = 4, .dp = 2, MICRO(3)},
    {"c2p2d2_m3", .cp = 2, .pp = 2, .dp = 2, MICRO(3)},
    {"t2sp2d2_m3", .tp = 2, SP, .pp = 2, .dp = 2, MICRO(3)},
    /* Experts: parts of their width, tokens of other ranks, empty micro-batches. */
    {"t2_m2_recompute1", .tp = 2, MICRO(2), .recompute_num_layers = 1},
    {"t4s_m3_strict", .tp = 4, SP, MICRO(3), .is_strict = true},
    {"t2sc2d2_m2", .tp = 2, SP, .cp = 2, .dp = 2, MICRO(2)},
    {"t2sp2d2_m2", .tp = 2, SP, .pp = 2, .dp = 2, MICRO(2)},
    /* Experts on other ranks; buffers of few tokens take several rounds. */
    {"d2e2", .dp = 2, .ep = 2},
    {"d4e4_m2_rounds", .dp = 4, .ep = 4, .moe_dispatch_tokens = 5, MICRO(2)},
    {"d4e2_m2_recompute3", .dp = 4, .ep = 2, MICRO(2), .recompute_num_layers = 3},
    {"t2d2e2_m2_strict", .tp = 2, .dp = 2, .ep = 2, MICRO(2), .is_strict = true},
    {"t2sd2e2_rounds", .tp = 2, SP, .dp = 2, .ep = 2, .moe_dispatch_tokens = 16},
    {"t4s_etp2", .tp = 4, SP, .etp = 2},
    {"t4s_etp2_e2_m2", .tp = 4, SP, .etp = 2, .ep = 2, MICRO(2)},
    {"t4sd2_etp2_e4_rounds", .tp = 4, SP, .dp = 2, .etp = 2, .ep = 4, .moe_dispatch_tokens = 7},
    {"t4s_etp2_e2_strict_padded", .tp = 4, SP, .etp = 2, .ep = 2, .is_strict = true, .is_padded = true},
    {"t4sc2_etp2_e4_kept", .tp = 4, SP, .cp = 2, .etp = 2, .ep = 4, KEPT(400)},
    {"t4sp2_etp2_e2_m3_recompute1", .tp = 4, SP, .pp = 2, .etp = 2, .ep = 2, MICRO(3),
     .recompute_num_layers = 1},
    {"t2sd4e4_m2", .tp = 2, SP, .dp = 4, .ep = 4, MICRO(2)},
    {"c2e2", .cp = 2, .ep = 2},
    {"c2d2e4_m2", .cp = 2, .dp = 2, .ep = 4, MICRO(2)},
    {"p2d2e2_m3", .pp = 2, .dp = 2, .ep = 2, MICRO(3)},
    {"c2d2e2_m2_rounds_strict", .cp = 2, .dp = 2, .ep = 2, .moe_dispatch_tokens = 9, MICRO(2),
     .is_strict = true},
    {"t2s_etp1", .tp = 2, SP, .etp = 1},
    {"t2s_etp1_e2_strict", .tp = 2, SP, .etp = 1, .ep = 2, .is_strict = true},
    {"t2sd2_etp1_e4_rounds", .tp = 2, SP, .dp = 2, .etp = 1, .ep = 4, .moe_dispatch_tokens = 7},
    {"t2_etp1_e2_m2", .tp = 2, .etp = 1, .ep = 2, MICRO(2)},
    {"t4_etp1_e4_recompute3", .tp = 4, .etp = 1, .ep = 4, .recompute_num_layers = 3},
    {"t2c2d2_etp1_e2_strict", .tp = 2, .cp = 2, .dp = 2, .etp = 1, .ep = 2, .is_strict = true},
    {"t2sc2d2_etp1_e2_m2", .tp = 2, SP, .cp = 2, .dp = 2, .etp = 1, .ep = 2, MICRO(2)},
    {"t2sc2_etp1_e2_m2", .tp = 2, SP, .cp = 2, .etp = 1, .ep = 2, MICRO(2)},
    {"t4s_padded", .tp = 4, SP, .is_padded = true},
    {"p2v2_m4_recompute1", .pp = 2, .vpp = 2, MICRO(4), .recompute_num_layers = 1},
    {"t2sp2d2e2_m2", .tp = 2, SP, .pp = 2, .dp = 2, .ep = 2, MICRO(2)},
    {"t2sp2_etp1_e2_m2", .tp = 2, SP, .pp = 2, .etp = 1, .ep = 2, MICRO(2)},
    /* What latents have to do with: weights that every rank has whole, and keys that are made on all ranks.
     */
    {"t4_m2_recompute1", .tp = 4, MICRO(2), .recompute_num_layers = 1},
    {"t4s_m2_strict", .tp = 4, SP, MICRO(2), .is_strict = true},
    {"t2c2_m3", .tp = 2, .cp = 2, MICRO(3)},
    {"t2sc2p2_m2", .tp = 2, SP, .cp = 2, .pp = 2, MICRO(2)},
    {"t2c2d2_m2", .tp = 2, .cp = 2, .dp = 2, MICRO(2)},
    /* Rows of an exchange that are kept for the backward pass, with a shared expert beside it. */
    {"d4e2_m2_kept", .dp = 4, .ep = 2, KEPT(200), MICRO(2)},
    {"t2sd2_etp1_e4_kept_recompute3", .tp = 2, SP, .dp = 2, .etp = 1, .ep = 4, KEPT(400),
     .recompute_num_layers = 3},
    {"t2sp2d2e2_m2_kept_rounds", .tp = 2, SP, .pp = 2, .dp = 2, .ep = 2, KEPT(11), MICRO(2)},
    {"t2sd2e2_m2_strict", .tp = 2, SP, .dp = 2, .ep = 2, MICRO(2), .is_strict = true},
    /* Losses of routers: counts over the ranks of a micro-batch, shares of the step. */
    {"t2_recompute1", .tp = 2, .recompute_num_layers = 1},
    {"t2sc2_etp1_e4", .tp = 2, SP, .cp = 2, .etp = 1, .ep = 4},
    {"m3_recompute3", MICRO(3), .recompute_num_layers = 3},
    {"c2d2e2_m3", .cp = 2, .dp = 2, .ep = 2, MICRO(3)},
    {"t2sd2_etp1_e4_m2", .tp = 2, SP, .dp = 2, .etp = 1, .ep = 4, MICRO(2)},
    {"c2p2_m3_recompute1", .cp = 2, .pp = 2, MICRO(3), .recompute_num_layers = 1},
    {"t2d2p2_m2", .tp = 2, .dp = 2, .pp = 2, MICRO(2)},
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
