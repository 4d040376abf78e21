#include "tests/support/answers.h"

#include <string.h>

#include "base/rk_rng.h"
#include "engine/rk_train.h"
#include "tests/support/test.h"

void rk_test_fill_packed(struct rk_packed *packed, int32_t ids[3 * RK_TEST_PACKED_TOKENS])
{
    enum { COUNT = RK_TEST_PACKED_TOKENS, FIRST = 24 };
    static const int32_t cu_seqlens[] = {0, FIRST, COUNT};
    int32_t *positions = ids + COUNT, *labels = positions + COUNT;

    for (int32_t t = 0; t < COUNT; t++) {
        ids[t] = (7 * t + 3) % RK_TEST_VOCAB_SIZE;
        positions[t] = t < FIRST ? t : t - FIRST;
        labels[t] = (5 * t + 1) % RK_TEST_VOCAB_SIZE;
    }
    *packed = (struct rk_packed){2, COUNT, COUNT - FIRST, ids, positions, cu_seqlens, labels, NULL};
}

void rk_test_generate(struct rk_test_model *test, struct rk_test_answers *answers, int32_t longest_prompt,
                      int32_t max_num_seqs, int64_t max_num_batched_tokens)
{
    const int32_t prompt_lens[RK_TEST_NUM_REQUESTS] = {1, 15, 16, 17, longest_prompt};
    const struct rk_rollout_config config = {.max_num_seqs = max_num_seqs,
                                             .max_num_batched_tokens = max_num_batched_tokens};
    struct rk_rollout *rollout;
    struct rk_rng rng;

    memset(answers, 0, sizeof(*answers));
    rk_rng_init(&rng, 3, 2);
    for (int i = 0; i < RK_TEST_NUM_REQUESTS; i++) {
        for (int32_t t = 0; t < prompt_lens[i]; t++)
            answers->prompts[i][t] = (int32_t)rk_rng_next_below(&rng, RK_TEST_VOCAB_SIZE);
        answers->requests[i] = (struct rk_rollout_request){.prompt = answers->prompts[i],
                                                           .prompt_len = prompt_lens[i],
                                                           .max_tokens = 4 + 3 * i,
                                                           .temperature = 1,
                                                           .top_p = 1,
                                                           .seed = 11,
                                                           .stream = (uint64_t)i};
        answers->results[i] =
            (struct rk_rollout_result){.tokens = answers->tokens[i], .log_probs = answers->log_probs[i]};
    }
    assert_ok(rk_rollout_create(&rollout, test->model, &config));
    assert_ok(rk_rollout_generate(rollout, answers->requests, RK_TEST_NUM_REQUESTS, answers->results, NULL));
    rk_rollout_destroy(rollout);
}

void rk_test_recompute(struct rk_test_model *test, const struct rk_test_answers *answers, int i, double *out)
{
    int32_t prompt_len = answers->requests[i].prompt_len;
    int32_t length = prompt_len + answers->results[i].num_tokens, cu_seqlens[2] = {0, length};
    int32_t tokens[2 * RK_TEST_MAX_LEN], positions[2 * RK_TEST_MAX_LEN], labels[2 * RK_TEST_MAX_LEN];
    double log_probs[2 * RK_TEST_MAX_LEN];

    for (int32_t p = 0; p < length; p++) {
        tokens[p] = p < prompt_len ? answers->prompts[i][p] : answers->tokens[i][p - prompt_len];
        positions[p] = p;
        labels[p] =
            p + 1 >= prompt_len && p + 1 < length ? answers->tokens[i][p + 1 - prompt_len] : RK_LABEL_NONE;
    }
    assert_ok(rk_model_forward(
        test->model, &(struct rk_packed){1, length, length, tokens, positions, cu_seqlens, labels, NULL}, 1,
        NULL, &(struct rk_head_arrays){.of = {log_probs}}));
    memcpy(out, log_probs + prompt_len - 1, (size_t)answers->results[i].num_tokens * sizeof(*out));
}

void rk_test_expect_packed_bits(struct rk_test_model *test, const struct rk_test_answers *answers,
                                const struct rk_test_answers *other)
{
    assert_memory_equal(answers->tokens, other->tokens, sizeof(answers->tokens));
    assert_memory_equal(answers->log_probs, other->log_probs, sizeof(answers->log_probs));
    for (int i = 0; i < RK_TEST_NUM_REQUESTS; i++) {
        double log_probs[RK_TEST_MAX_LEN];

        assert_int_equal(answers->results[i].num_tokens, answers->requests[i].max_tokens);
        rk_test_recompute(test, answers, i, log_probs);
        for (int32_t t = 0; t < answers->results[i].num_tokens; t++)
            assert_true(answers->log_probs[i][t] == (float)log_probs[t]);
    }
}
