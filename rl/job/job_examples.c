/* Rules of a job with examples: checks of its loss, and keys that apply only to prompts. */
#include <string.h>

#include "rl/rk_job.h"

void rk_job_refuse_keys(const struct rk_config *job, const char *const *keys, const char *instead,
                        struct rk_str *problems)
{
    for (; *keys; keys++) {
        if (!rk_config_is_default(job, *keys))
            rk_str_appendf(problems, "%s has no effect with algorithm.type=%s%s\n", *keys,
                           rk_config_string(job, "algorithm.type"), instead);
    }
}

struct rk_status *rk_job_preference(struct rk_preference *out, const struct rk_config *job)
{
    return rk_preference_read(out, rk_config_string(job, RK_JOB_DPO "loss_type"),
                              rk_config_real(job, RK_JOB_DPO "beta"),
                              rk_config_real(job, RK_JOB_DPO "label_smoothing"));
}

/* Checks of the loss on combinations of keys. */
static void check_preference(const struct rk_config *job, struct rk_str *problems)
{
    struct rk_preference pair;
    struct rk_status *st = rk_job_preference(&pair, job);

    if (st)
        rk_str_appendf(problems, RK_JOB_DPO "%s\n", rk_status_message(st));
    rk_status_free(st);
}

static void check_examples(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    static const char *const of_lengths[] = {"data.max_prompt_length", "data.max_response_length",
                                             "data.filter_overlong_prompts", NULL};
    static const char *const of_batches[] = {RK_JOB_ACTOR "ppo_mini_batch_size", RK_JOB_ACTOR "ppo_epochs",
                                             NULL};
    static const char *const of_classes[] = {"data.custom_cls.path", NULL};
    static const char *const of_prompts[] = {RK_JOB_ROLLOUT "n",
                                             RK_JOB_ACTOR "use_kl_loss",
                                             "algorithm.use_kl_in_reward",
                                             "algorithm.adv_estimator",
                                             "reward.name",
                                             "trainer.rollout_data_dir",
                                             "trainer.validation_data_dir",
                                             "trainer.log_val_generations",
                                             NULL};

    (void)world_size;
    check_preference(job, problems);
    rk_job_refuse_keys(job, of_lengths, ": data.max_length bounds a sequence", problems);
    rk_job_refuse_keys(job, of_batches, ": a batch of data.train_batch_size rows is one optimizer step",
                       problems);
    rk_job_refuse_keys(job, of_classes, ": its rows are those of data.train_files", problems);
    rk_job_refuse_keys(job, of_prompts, ", which generates nothing", problems);
    if (rk_config_real(job, RK_JOB_ROLLOUT "temperature") != 1.0)
        rk_str_appendf(problems, RK_JOB_ROLLOUT "temperature=%g: algorithm.type=%s trains at 1\n",
                       rk_config_real(job, RK_JOB_ROLLOUT "temperature"),
                       rk_config_string(job, "algorithm.type"));
    if (strcmp(rk_config_string(job, "data.truncation"), "middle") == 0)
        rk_str_append(problems,
                      "data.truncation=middle applies only to prompts; expected error, left or right\n");
}

const struct rk_job_rule rk_job_example_rules[] = {
    {"examples", check_examples, false},
    {NULL, NULL, false},
};
