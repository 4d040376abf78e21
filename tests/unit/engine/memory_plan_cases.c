/* Layouts, models and options of test_memory_plan.c. */
#include "tests/unit/engine/memory_plan_cases.h"

#define CONFIG(type, tie)                                                                                 \
    "{\"model_type\": \"" type "\", \"hidden_size\": 64, \"intermediate_size\": 128,"                     \
    " \"num_hidden_layers\": 3, \"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"vocab_size\": " \
    "131, \"head_dim\": 8,"                                                                               \
    " \"max_position_embeddings\": 128, \"initializer_range\": 0.1, \"tie_word_embeddings\": " tie "}"

/* For stages of several chunks. */
#define DEEP(type)                                                                                         \
    "{\"model_type\": \"" type "\", \"hidden_size\": 32, \"intermediate_size\": 64,"                       \
    " \"num_hidden_layers\": 12, \"num_attention_heads\": 4, \"num_key_value_heads\": 2, \"vocab_size\": " \
    "131, \"head_dim\": 8,"                                                                                \
    " \"max_position_embeddings\": 128, \"initializer_range\": 0.1, \"tie_word_embeddings\": false}"

/* Two kinds of layers with different caches. */
#define MIXED                                                                                             \
    "{\"model_type\": \"mixed\", \"hidden_size\": 64, \"intermediate_size\": 128,"                        \
    " \"num_hidden_layers\": 4, \"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"vocab_size\": " \
    "131, \"head_dim\": 8, \"latent_layers\": [1, 3],"                                                    \
    " \"max_position_embeddings\": 128, \"initializer_range\": 0.1}"

/* Experts in two of three layers, with a shared one beside them. */
#define SPARSE(type) SPARSE_OF(type, "5")
#define SPARSE_OF(type, num)                                                                              \
    "{\"model_type\": \"" type "\", \"hidden_size\": 64, \"intermediate_size\": 64,"                      \
    " \"num_hidden_layers\": 3, \"num_attention_heads\": 8, \"num_key_value_heads\": 2, \"vocab_size\": " \
    "131, \"head_dim\": 8, \"num_experts\": " num ", \"num_experts_per_tok\": 2,"                         \
    " \"moe_intermediate_size\": 32, \"shared_expert_intermediate_size\": 48, \"mlp_only_layers\": [1],"  \
    " \"max_position_embeddings\": 128, \"initializer_range\": 0.1}"

/* Latent attention, with experts in two of three layers. */
#define LATENT(q_lora_rank)                                                                               \
    "{\"model_type\": \"deepseek_v3\", \"hidden_size\": 64, \"intermediate_size\": 128,"                  \
    " \"num_hidden_layers\": 3, \"num_attention_heads\": 8, \"vocab_size\": 131,"                         \
    " \"q_lora_rank\": " q_lora_rank ", \"kv_lora_rank\": 16, \"qk_nope_head_dim\": 8,"                   \
    " \"qk_rope_head_dim\": 4, \"v_head_dim\": 8, \"first_k_dense_replace\": 1, \"n_routed_experts\": 4," \
    " \"num_experts_per_tok\": 2, \"n_group\": 1, \"topk_group\": 1, \"moe_intermediate_size\": 32,"      \
    " \"max_position_embeddings\": 128, \"initializer_range\": 0.1}"

#define F32_3_STEPS  .num_steps = 3, .dtype = RK_DTYPE_F32
#define STRICT       .numerics = RK_NUMERICS_STRICT
#define BF16_3_STEPS .num_steps = 3, .dtype = RK_DTYPE_BF16
#define TP2_SP       .tp = 2, .sequence_parallel = true
#define EVEN         SPARSE_OF("qwen2_moe", "6")
#define WHOLE        .tp = 2, .ep = 2, .etp = 1
#define KEPT         .sequence_parallel = true, .moe_dispatch_tokens = 60, .moe_keep_dispatched = true

const struct rk_plan_case rk_plan_cases[] = {
    {.label = "mixed", .config = MIXED, F32_3_STEPS, .is_cpu_only = true},
    {.label = "mixed tp=2 strict sp, recompute",
     .config = MIXED,
     .tp = 2,
     STRICT,
     F32_3_STEPS,
     .recompute_num_layers = 2,
     .sequence_parallel = true,
     .is_cpu_only = true},
    {.label = "mixed bf16 pp=2, uneven",
     .config = MIXED,
     .dtype = RK_DTYPE_BF16,
     .pp = 2,
     .num_first = 3,
     .is_cpu_only = true},
    {.label = "qwen2_moe", .config = SPARSE("qwen2_moe"), F32_3_STEPS},
    {.label = "qwen3_moe bf16 strict, recompute",
     .config = SPARSE("qwen3_moe"),
     STRICT,
     BF16_3_STEPS,
     .recompute_num_layers = 2},
    {.label = "qwen2_moe tp=2 sp dp=2", .config = SPARSE("qwen2_moe"), TP2_SP, .dp = 2, BF16_3_STEPS},
    {.label = "whole experts bf16 dp=2", .config = EVEN, WHOLE, .dp = 2, BF16_3_STEPS},
    {.label = "whole experts strict", .config = EVEN, WHOLE, STRICT, F32_3_STEPS, .recompute_num_layers = 2},
    {.label = "whole experts bf16 sp, kept rows", .config = EVEN, WHOLE, KEPT, BF16_3_STEPS},
    {.label = "experts over 2 of 4 tp ranks", .config = EVEN, .tp = 4, .ep = 2, .etp = 2, KEPT, BF16_3_STEPS},
    {.label = "latent", .config = LATENT("24"), F32_3_STEPS, .plans_other_steps = true},
    {.label = "latent bf16 tp=2 strict sp, recompute",
     .config = LATENT("null"),
     .tp = 2,
     STRICT,
     BF16_3_STEPS,
     .recompute_num_layers = 1,
     .sequence_parallel = true,
     .plans_other_steps = true},
    {.label = "latent dp=2 ep=2", .config = LATENT("24"), .dp = 2, F32_3_STEPS, .ep = 2},
    {.label = "latent bf16 dp=2 ep=2, kept rows",
     .config = LATENT("24"),
     .dp = 2,
     BF16_3_STEPS,
     .ep = 2,
     .moe_dispatch_tokens = 50,
     .moe_keep_dispatched = true},
    {.label = "latent tp=2 sp dp=2 ep=2 strict, kept rows, recompute",
     .config = LATENT("24"),
     .tp = 2,
     .dp = 2,
     STRICT,
     F32_3_STEPS,
     .recompute_num_layers = 2,
     .sequence_parallel = true,
     .ep = 2,
     .moe_dispatch_tokens = 1000,
     .moe_keep_dispatched = true},
    {.label = "llama", .config = CONFIG("llama", "false"), F32_3_STEPS},
    {.label = "llama strict", .config = CONFIG("llama", "false"), STRICT, F32_3_STEPS},
    {.label = "llama, few blocks", .config = CONFIG("llama", "true"), F32_3_STEPS, .num_kv_blocks = 7},
    {.label = "200 steps", .config = RK_TEST_SMALL_CONFIG, .dtype = RK_DTYPE_F32, .num_steps = 200},
    {.label = "qwen2 bf16", .config = CONFIG("qwen2", "true"), BF16_3_STEPS},
    {.label = "qwen2 bf16 strict, recompute",
     .config = CONFIG("qwen2", "true"),
     STRICT,
     BF16_3_STEPS,
     .recompute_num_layers = 1},
    {.label = "qwen3 bf16", .config = CONFIG("qwen3", "true"), BF16_3_STEPS},
    {.label = "llama tp=2", .config = CONFIG("llama", "false"), .tp = 2, F32_3_STEPS},
    {.label = "llama tp=4, key-value heads replicated",
     .config = CONFIG("llama", "true"),
     .tp = 4,
     F32_3_STEPS},
    {.label = "llama dp=2", .config = CONFIG("llama", "false"), .dp = 2, F32_3_STEPS},
    {.label = "llama tp=2 dp=2 strict",
     .config = CONFIG("llama", "false"),
     .tp = 2,
     .dp = 2,
     STRICT,
     F32_3_STEPS},
    {.label = "qwen2 bf16 tp=2", .config = CONFIG("qwen2", "true"), .tp = 2, BF16_3_STEPS},
    {.label = "qwen3 bf16 tp=2", .config = CONFIG("qwen3", "true"), .tp = 2, BF16_3_STEPS},
    {.label = "qwen2 bf16 dp=2, recompute",
     .config = CONFIG("qwen2", "false"),
     .dp = 2,
     BF16_3_STEPS,
     .recompute_num_layers = 2},
    {.label = "llama ids", .config = CONFIG("llama", "false"), F32_3_STEPS, .num_ids = 17},
    {.label = "qwen2 bf16 tp=2 strict, ids",
     .config = CONFIG("qwen2", "true"),
     .tp = 2,
     STRICT,
     BF16_3_STEPS,
     .num_ids = 80},
    {.label = "qwen2 bf16 tp=2 dp=2, sums in shards",
     .config = CONFIG("qwen2", "false"),
     .tp = 2,
     .dp = 2,
     BF16_3_STEPS,
     .adds_in_shards = true},
    {.label = "llama tp=2 sp",
     .config = CONFIG("llama", "false"),
     .tp = 2,
     F32_3_STEPS,
     .sequence_parallel = true},
    {.label = "llama tp=4 strict sp",
     .config = CONFIG("llama", "true"),
     .tp = 4,
     STRICT,
     F32_3_STEPS,
     .sequence_parallel = true},
    {.label = "qwen3 bf16 tp=4 sp, recompute",
     .config = CONFIG("qwen3", "true"),
     .tp = 4,
     BF16_3_STEPS,
     .recompute_num_layers = 1,
     .sequence_parallel = true},
    {.label = "qwen3 bf16 cp=2",
     .config = CONFIG("qwen3", "true"),
     .dtype = RK_DTYPE_BF16,
     .cp = 2,
     .seq_len = 33},
    {.label = "qwen2 tp=2 cp=2, recompute, ids",
     .config = CONFIG("qwen2", "true"),
     .tp = 2,
     .dtype = RK_DTYPE_F32,
     .recompute_num_layers = 2,
     .num_ids = 17,
     .cp = 2,
     .seq_len = 65},
    {.label = "llama tp=2 cp=2 sp",
     .config = CONFIG("llama", "true"),
     .tp = 2,
     .dtype = RK_DTYPE_F32,
     .sequence_parallel = true,
     .cp = 2,
     .seq_len = 65},
    {.label = "llama pp=3", .config = CONFIG("llama", "false"), F32_3_STEPS, .pp = 3},
    {.label = "llama pp=2 uneven, tied",
     .config = CONFIG("llama", "true"),
     F32_3_STEPS,
     .pp = 2,
     .num_first = 2},
    {.label = "llama pp=2 vpp=2", .config = DEEP("llama"), F32_3_STEPS, .pp = 2, .vpp = 2},
    {.label = "qwen2 bf16 pp=2 vpp=3 uneven, recompute",
     .config = DEEP("qwen2"),
     BF16_3_STEPS,
     .recompute_num_layers = 1,
     .pp = 2,
     .vpp = 3,
     .num_first = 9},
    {.label = "qwen3 tp=2 sp pp=2 strict", .config = DEEP("qwen3"), TP2_SP, BF16_3_STEPS, STRICT, .pp = 2},
    {.label = "llama dp=2 pp=2, ids", .config = DEEP("llama"), .dp = 2, F32_3_STEPS, .num_ids = 17, .pp = 2},
    {.label = "qwen3 cp=2 pp=2",
     .config = DEEP("qwen3"),
     .dtype = RK_DTYPE_F32,
     .cp = 2,
     .seq_len = 33,
     .pp = 2},
};
const size_t rk_num_plan_cases = RK_ARRAY_LEN(rk_plan_cases);
