/* Small inputs of models with RK_TEST_VOCAB_SIZE tokens: a packed batch, and answers that a rollout
 * generates. */
#ifndef RK_TEST_ANSWERS_H
#define RK_TEST_ANSWERS_H

#include "engine/rk_rollout.h"
#include "tests/support/models.h"

RK_BEGIN_DECLS

enum {
    RK_TEST_VOCAB_SIZE = 61,
    RK_TEST_PACKED_TOKENS = 64, /* every tensor of a pass is a multiple of the arena's alignment */
    RK_TEST_NUM_REQUESTS = 5,
    RK_TEST_MAX_LEN = 96, /* of a prompt with its answer */
};

/* Two sequences of 24 and 40 tokens; ids receives tokens, positions and labels. */
void rk_test_fill_packed(struct rk_packed *packed, int32_t ids[3 * RK_TEST_PACKED_TOKENS]);

struct rk_test_answers {
    struct rk_rollout_request requests[RK_TEST_NUM_REQUESTS]; /* with up to 4, 7, 10, .. new tokens */
    struct rk_rollout_result results[RK_TEST_NUM_REQUESTS];
    int32_t prompts[RK_TEST_NUM_REQUESTS][RK_TEST_MAX_LEN], tokens[RK_TEST_NUM_REQUESTS][RK_TEST_MAX_LEN];
    float log_probs[RK_TEST_NUM_REQUESTS][RK_TEST_MAX_LEN];
};

/* Prompts of 1, 15, 16, 17 and longest_prompt tokens: on both sides of the borders of blocks. */
void rk_test_generate(struct rk_test_model *test, struct rk_test_answers *answers, int32_t longest_prompt,
                      int32_t max_num_seqs, int64_t max_num_batched_tokens);

/* Log-probs of the tokens of answer i, by a packed pass over prompt and answer. */
void rk_test_recompute(struct rk_test_model *test, const struct rk_test_answers *answers, int i, double *out);

/* Expects the tokens and log-probs of `other`, and that the log-probs are those of packed passes, bit for
 * bit. */
void rk_test_expect_packed_bits(struct rk_test_model *test, const struct rk_test_answers *answers,
                                const struct rk_test_answers *other);

RK_END_DECLS

#endif
