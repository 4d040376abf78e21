/* Roles whose memory test_memory_plan.c compares with their plans. */
#ifndef RK_TEST_MEMORY_PLAN_CASES_H
#define RK_TEST_MEMORY_PLAN_CASES_H

#include "engine/rk_model.h"

RK_BEGIN_DECLS

/* config.json of a small dense model with a vocabulary of 131. */
#define RK_TEST_SMALL_CONFIG                                                                                \
    "{\"model_type\": \"llama\", \"hidden_size\": 16, \"intermediate_size\": 16, \"num_hidden_layers\": 1," \
    " \"num_attention_heads\": 2, \"num_key_value_heads\": 1, \"vocab_size\": 131,"                         \
    " \"max_position_embeddings\": 128, \"initializer_range\": 0.1, \"tie_word_embeddings\": true}"

struct rk_plan_case {
    const char *label, *config;
    int32_t tp, cp, dp; /* 0: 1 */
    rk_numerics_t numerics;
    rk_dtype_t dtype;
    int32_t num_steps;
    int32_t num_kv_blocks; /* of the KV cache; 0: the default */
    int64_t recompute_num_layers;
    int64_t num_ids; /* of training micro-batches */
    bool adds_in_shards;
    bool sequence_parallel;
    int32_t seq_len; /* length of the shortest sequences that the plan allows; 0: 1 */
    /* With a pipeline there is no rollout, which cannot share its weights. 0: 1. */
    int32_t pp, vpp;
    int32_t num_first, num_last; /* layers of the first and last stage; 0: as many as the others */
    /* With experts on other replicas there is no rollout either. 0: 1, tp, and the default. */
    int32_t ep, etp, moe_dispatch_tokens;
    bool moe_keep_dispatched, is_cpu_only;
    /* Steps of few sequences with long parts of prompts need more than the steps that are run for the peak.
     */
    bool plans_other_steps;
};

extern const struct rk_plan_case rk_plan_cases[];
extern const size_t rk_num_plan_cases;

RK_END_DECLS

#endif
