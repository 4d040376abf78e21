/* Rollout: generation with a paged KV cache, with the same layers and kernels as training.
 *
 * Up to max_num_seqs requests run together; when one finishes, the next is admitted. The result of a request
 * depends only on its prompt, parameters, seed and stream, not on other requests. Every tp rank runs the same
 * scheduler on the same requests and samples the same tokens. */
#ifndef RK_ROLLOUT_H
#define RK_ROLLOUT_H

#include <stdbool.h>

#include "base/config/rk_knobs.h"
#include "engine/rk_model.h"

RK_BEGIN_DECLS

struct rk_rollout;

/* From the options of init_model (base/config/knobs.def): max_num_batched_tokens is the limit of one engine
 * step, including prefill; max_model_len 0 is max_position_embeddings; the caller of rk_rollout_create has
 * converted gpu_memory_utilization to num_kv_blocks. */
struct rk_rollout_config {
    RK_ROLLOUT_KNOBS(RK_KNOB_FIELD, , , )
    int32_t num_kv_blocks; /* of the KV cache; 0: enough for max_num_seqs sequences of max_model_len */
};
/* Reads the fields above. INVALID_ARGUMENT names option, value and expectation. */
struct rk_status *rk_rollout_config_read(struct rk_rollout_config *out,
                                         const struct rk_json *options) RK_NODISCARD;

struct rk_rollout_request {
    const int32_t *prompt; /* [prompt_len], host */
    int32_t prompt_len;    /* at least 1 */
    int32_t max_tokens;    /* at least 1 */
    float temperature;     /* 0: greedy; otherwise from RK_TEMPERATURE_MIN to RK_TEMPERATURE_MAX */
    int32_t top_k;         /* <= 0: off */
    float top_p;           /* above 0; 1: off */
    uint64_t seed, stream;
    const int64_t *eos_token_ids; /* stop ids: the first one sampled ends the response and is kept in it */
    int32_t num_eos_token_ids;
};

typedef enum rk_finish_reason { RK_FINISH_STOP, RK_FINISH_LENGTH } rk_finish_reason_t;

struct rk_rollout_result {
    int32_t *tokens;  /* [max_tokens] of the request, caller's memory */
    float *log_probs; /* [max_tokens], under the distribution that was sampled */
    int32_t num_tokens;
    /* Time from the start of the call until the first and the last token were known. */
    int64_t first_token_ns, last_token_ns;
    rk_finish_reason_t finish_reason;
    /* [prompt_len + max_tokens of the request, num_layers, num_experts_per_tok] (rk_model_get_routes),
     * caller's memory, NULL: not wanted; only with captures_routes. The experts of prompt and sampled tokens,
     * except those of the last sampled token, which the model does not compute: other rows stay unchanged. */
    uint16_t *routed_experts;
};

/* Allocates all memory. INVALID_ARGUMENT names the field; FAILED_PRECONDITION with captures_routes for a
 * model without layers of experts; RESOURCE_EXHAUSTED when the cache does not fit one sequence of
 * max_model_len. `model` is borrowed. */
struct rk_status *rk_rollout_create(struct rk_rollout **out, struct rk_model *model,
                                    const struct rk_rollout_config *config) RK_NODISCARD;
void rk_rollout_destroy(struct rk_rollout *rollout); /* NULL is a no-op */
/* The configuration with every default filled in. */
struct rk_rollout_config rk_rollout_get_config(const struct rk_rollout *rollout);
/* Checks a request for rk_rollout_generate: INVALID_ARGUMENT names field, value and expectation. Not
 * collective: ranks that generate together check first, so that an invalid request starts on none of them. */
struct rk_status *rk_rollout_check(const struct rk_rollout *rollout,
                                   const struct rk_rollout_request *request) RK_NODISCARD;
/* Collective over tp. INVALID_ARGUMENT as rk_rollout_check, with the index of the request. `hooks` may be
 * NULL. */
struct rk_status *rk_rollout_generate(struct rk_rollout *rollout, const struct rk_rollout_request *requests,
                                      int64_t num_requests, struct rk_rollout_result *results,
                                      const struct rk_engine_hooks *hooks) RK_NODISCARD;

RK_END_DECLS

#endif
