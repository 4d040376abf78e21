/* Groups of a job's keys, for help and manual. */
#include "rl/rk_job.h"

#include <string.h>

#include "base/rk_str.h"

#define A "actor_rollout_ref.actor."
#define LIST(...)         \
    (const char *const[]) \
    {                     \
        __VA_ARGS__, NULL \
    }

static const struct rk_job_group groups[] = {
    {"keys that most jobs set",
     LIST("data.train_files", "actor_rollout_ref.model.path", "algorithm.adv_estimator", "reward.name",
          "data.train_batch_size", "data.max_prompt_length", "data.max_response_length",
          "actor_rollout_ref.rollout.n", A "optim.lr", "trainer.total_epochs")},
    {"data", LIST("data.")},
    {"kind of training, device", LIST("algorithm.type", "device", "numerics")},
    {"connections to the daemons", LIST("daemons.")},
    {"model and tokenizer", LIST("actor_rollout_ref.model.")},
    {"rollout", LIST("actor_rollout_ref.rollout.")},
    {"rewards", LIST("reward.", "custom_reward_function.")},
    {"reward model", LIST("reward.reward_model.")},
    {"advantages, filters, KL in the reward", LIST("algorithm.")},
    {"actor: batches", LIST(A)},
    {"actor: loss", LIST(A "policy_loss.", A "loss_", A "clip_ratio", A "tau_", A "entropy_",
                         A "calculate_entropy", A "use_kl_loss", A "kl_loss_")},
    {"actor: optimizer", LIST(A "optim.")},
    {"actor: layout and memory", LIST(A "megatron.")},
    {"reference policy", LIST("actor_rollout_ref.ref.")},
    {"critic", LIST("critic.")},
    {"rollout correction", LIST("algorithm.rollout_correction.")},
    {"preference optimization", LIST("algorithm.dpo.")},
    {"distillation", LIST("distillation.", "algorithm.use_opd", "algorithm.opd_")},
    {"distillation: further teachers",
     LIST("distillation.teacher_2.", "distillation.teacher_3.", "distillation.teacher_4.")},
    {"steps, validation, logs", LIST("trainer.")},
    {"checkpoints", LIST(A "checkpoint.", "trainer.save_freq", "trainer.default_local_dir", "trainer.resume_",
                         "trainer.max_actor_ckpt", "trainer.max_critic_ckpt", "trainer.del_local_ckpt")},
};

const struct rk_job_group *rk_job_groups(int64_t *count)
{
    *count = RK_ARRAY_LEN(groups);
    return groups;
}

/* Index of a key's group: 0 for keys that the first group lists, else the group with the longest prefix; -1:
 * none. */
static int64_t group_of(const char *path)
{
    int64_t found = -1;
    size_t longest = 0;

    for (int64_t i = 0; i < (int64_t)RK_ARRAY_LEN(groups); i++) {
        for (const char *const *prefix = groups[i].prefixes; *prefix; prefix++) {
            size_t bytes = strlen(*prefix);

            if (i == 0 ? strcmp(path, *prefix) != 0 : strncmp(path, *prefix, bytes) != 0)
                continue;
            if (i == 0)
                return 0;
            if (bytes > longest) {
                longest = bytes;
                found = i;
            }
        }
    }
    return found;
}

void rk_job_group_keys(int64_t group, void (*each)(void *user, const struct rk_config_key *key), void *user)
{
    int64_t count;
    const struct rk_config_key *keys = rk_job_keys(&count);

    for (const char *const *name = groups[group].prefixes; *name; name++) {
        for (int64_t i = 0; i < count; i++) {
            if (group == 0 ? strcmp(keys[i].path, *name) == 0
                           : name == groups[group].prefixes && group_of(keys[i].path) == group)
                each(user, &keys[i]);
        }
    }
}

static void format_key(void *user, const struct rk_config_key *key)
{
    rk_str_append(user, "  ");
    rk_config_format_key(key, user);
}

void rk_job_format_keys(struct rk_str *out)
{
    for (int64_t i = 0; i < (int64_t)RK_ARRAY_LEN(groups); i++) {
        rk_str_appendf(out, "\n%s:\n", groups[i].title);
        rk_job_group_keys(i, format_key, out);
    }
}
