/* The reward model of a job: keys that its section does not set take the actor's value. */
#include <inttypes.h>

#include "base/rk_assert.h"
#include "base/rk_str.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

bool rk_job_wants_reward_model(const struct rk_config *job)
{
    return rk_config_bool(job, RK_JOB_REWARD_MODEL "enable");
}

struct rk_job_micro rk_job_reward_micro(const struct rk_config *job)
{
    struct rk_job_micro micro = rk_job_actor_micro(job);

    if (!rk_config_is_null(job, RK_JOB_REWARD_MODEL "use_dynamic_bsz"))
        micro.use_dynamic_bsz = rk_config_bool(job, RK_JOB_REWARD_MODEL "use_dynamic_bsz");
    micro.max_token_len =
        rk_job_int_or(job, RK_JOB_REWARD_MODEL "forward_max_token_len_per_gpu", micro.max_token_len);
    micro.micro_batch_rows =
        rk_job_int_or(job, RK_JOB_REWARD_MODEL "micro_batch_size_per_gpu", micro.micro_batch_rows);
    return micro;
}

int64_t rk_job_reward_max_length(const struct rk_config *job)
{
    return rk_job_int_or(job, RK_JOB_REWARD_MODEL "max_length", rk_job_longest(job));
}

/* The policy's own sequences, and texts that are encoded again. */
static int64_t longest(const struct rk_config *job)
{
    return RK_MAX(rk_job_longest(job), rk_job_reward_max_length(job));
}

int64_t rk_job_reward_tokens(const struct rk_config *job)
{
    struct rk_job_micro micro = rk_job_reward_micro(job);
    int32_t cp = rk_job_role_size(job, RK_ROLE_REWARD, RK_AXIS_CP);

    return micro.use_dynamic_bsz ? micro.max_token_len
                                 : (micro.micro_batch_rows * longest(job) + cp - 1) / cp;
}

static void check_micro(const struct rk_config *job, struct rk_str *problems)
{
    struct rk_job_micro micro = rk_job_reward_micro(job);

    if (micro.use_dynamic_bsz &&
        micro.max_token_len * rk_job_role_size(job, RK_ROLE_REWARD, RK_AXIS_CP) < longest(job))
        rk_str_appendf(problems,
                       RK_JOB_REWARD_MODEL "forward_max_token_len_per_gpu: %" PRId64
                                           " tokens per micro-batch, expected at least the %" PRId64
                                           " of the longest text (max_length, and data.max_prompt_length + "
                                           "data.max_response_length)\n",
                       micro.max_token_len, longest(job));
    if (!micro.use_dynamic_bsz && micro.micro_batch_rows == 0)
        rk_str_append(problems, "reward.reward_model: set micro_batch_size_per_gpu, or use_dynamic_bsz\n");
}

void rk_job_reward_model_check(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    (void)world_size;
    if (!rk_job_wants_reward_model(job))
        return;
    if (!rk_job_role_needed(job, RK_ROLE_REWARD)) {
        rk_str_appendf(problems, RK_JOB_REWARD_MODEL "enable: algorithm.type=%s has no reward model\n",
                       rk_config_string(job, "algorithm.type"));
        return;
    }
    if (rk_config_is_null(job, RK_JOB_REWARD_MODEL "model_path"))
        rk_str_append(problems,
                      "set " RK_JOB_REWARD_MODEL "model_path: " RK_JOB_REWARD_MODEL "enable needs a model\n");
    check_micro(job, problems);
}
