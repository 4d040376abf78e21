#include "tests/unit/rl/minimal_job.h"

#include <string.h>

#include "rl/rk_job.h"
#include "tests/support/test.h"

static const char *const minimal[] = {
    "data.train_files=[\"train.jsonl\"]",
    "data.train_batch_size=8",
    "data.max_prompt_length=8",
    "data.max_response_length=8",
    "actor_rollout_ref.model.hf_config_path=config.json",
    "actor_rollout_ref.model.tokenizer_path=tokenizer.json",
    "actor_rollout_ref.actor.ppo_mini_batch_size=4",
    "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu=2",
    "actor_rollout_ref.actor.megatron.tensor_model_parallel_size=2",
    "actor_rollout_ref.rollout.n=2",
    "algorithm.adv_estimator=grpo",
    "reward.name=digits",
    "reward.reward_kwargs.max_resp_len=8",
};

struct rk_config *test_job(const char *const *base, int64_t num_base, const char *const *more, int64_t most)
{
    const char *overrides[TEST_SETTINGS_MAX];
    int64_t count = num_base;
    struct rk_config *job;

    assert_true(num_base + most <= TEST_SETTINGS_MAX);
    memcpy(overrides, base, (size_t)num_base * sizeof(*base));
    for (int64_t i = 0; i < most && more[i]; i++)
        overrides[count++] = more[i];
    assert_ok(rk_job_load(&job, NULL, overrides, count));
    return job;
}

struct rk_config *test_minimal_job(const char *const *more, int64_t num_more)
{
    return test_job(minimal, RK_ARRAY_LEN(minimal), more, num_more);
}
