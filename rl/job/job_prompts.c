/* Rules of a job with prompts: sizes of its optimizer steps, and keys that apply only to examples. */
#include <inttypes.h>

#include "base/rk_str.h"
#include "rl/rk_job.h"

static void check_mini_batch_of(const struct rk_config *job, const struct rk_job_role *role, int64_t replicas,
                                struct rk_str *problems)
{
    int64_t prompts = rk_config_int(job, "data.train_batch_size");
    int64_t mini = rk_job_update_of(job, role->bit).mini_batch_size;

    if (mini > prompts || prompts % mini != 0)
        rk_str_appendf(
            problems, "%sppo_mini_batch_size=%" PRId64 " does not divide data.train_batch_size=%" PRId64 "\n",
            role->section, mini, prompts);
    if (mini * rk_job_sequences(job) % replicas != 0)
        rk_str_appendf(problems,
                       "%sppo_mini_batch_size=%" PRId64 " x rollout.n=%" PRId64
                       " does not divide by the %" PRId64 " data-parallel replicas\n",
                       role->section, mini, rk_job_sequences(job), replicas);
}

static void check_mini_batch(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    int64_t count;
    const struct rk_job_role *roles = rk_job_roles(&count);

    for (int64_t i = 0; i < count; i++) {
        if (roles[i].trains && rk_job_role_needed(job, roles[i].bit))
            check_mini_batch_of(job, &roles[i], rk_job_num_replicas(job, roles[i].bit, world_size), problems);
    }
}

static void check_model_len(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    int64_t longest = rk_job_longest(job);
    int64_t max_len = rk_job_int_or(job, RK_JOB_ROLLOUT "max_model_len", longest);

    (void)world_size;
    if (max_len < longest)
        rk_str_appendf(problems,
                       RK_JOB_ROLLOUT "max_model_len=%" PRId64 " is less than data.max_prompt_length + "
                                      "data.max_response_length = %" PRId64 "\n",
                       max_len, longest);
}

static void check_keys_of_examples(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    static const char *const keys[] = {"data.messages_key", "data.response_key", "data.max_length",
                                       "data.ignore_input_ids_mismatch", NULL};

    (void)world_size;
    rk_job_refuse_keys(job, keys, "", problems);
}

static void check_class(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    (void)world_size;
    if (!rk_config_is_null(job, "data.custom_cls.path") && rk_config_is_null(job, "data.custom_cls.name"))
        rk_str_append(problems, "data.custom_cls.path needs data.custom_cls.name, the class in the file\n");
}

const struct rk_job_rule rk_job_prompt_rules[] = {
    {"dataset class", check_class, false},
    {"mini-batch", check_mini_batch, true},
    {"model length", check_model_len, false},
    {"keys of examples", check_keys_of_examples, false},
    {NULL, NULL, false},
};
