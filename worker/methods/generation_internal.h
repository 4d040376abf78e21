/* The inputs of generate_sequences: columns and options, and the requests built from them. */
#ifndef RK_GENERATION_INTERNAL_H
#define RK_GENERATION_INTERNAL_H

#include "base/config/rk_knobs.h"
#include "worker/worker_internal.h"

#define RK_GENERATION_EOS_MAX 64 /* models have one to three */

struct rk_sampling_knobs {
    RK_SAMPLING_KNOBS(RK_KNOB_FIELD, , , )
};

struct rk_generation {
    struct rk_method_call *call;
    /* Columns of the call. */
    int64_t num_rows, prompt_columns, response_columns;        /* B, P, R */
    const int64_t *prompts, *attention_mask, *streams, *seeds; /* seeds NULL: the option */
    struct rk_sampling_knobs sampling;
    double temperature;
    bool returns_routes; /* the column routed_experts */
    int64_t pad_token_id;
    int64_t eos[RK_GENERATION_EOS_MAX];
    int32_t num_eos;
    /* Arrays in the arena of the call. */
    struct rk_rollout_request *requests; /* [B] */
    struct rk_rollout_result *results;   /* [B] */
    int32_t *prompt_tokens;              /* [B, P] */
    int32_t *response_tokens;            /* [B, R] */
    float *log_probs;                    /* [B, R] */
};

/* Reads and checks everything; `call` is set. INVALID_ARGUMENT names option or column, row and value. */
struct rk_status *rk_generation_prepare(struct rk_generation *out) RK_NODISCARD;

#endif
