/* The roles of a job, and their keys. */
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "rl/rk_flow.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

static bool wants_ref(const struct rk_config *job)
{
    return rk_config_bool(job, RK_JOB_ACTOR "use_kl_loss") ||
           rk_config_bool(job, "algorithm.use_kl_in_reward");
}

#define TEACHER(bit, name, section)                                                           \
    {                                                                                         \
        bit, name, section, 0, section "model.path", false, "log_prob_max_token_len_per_gpu", \
            rk_job_wants_teacher                                                              \
    }
/* Daemons get their meshes in this order. */
static const struct rk_job_role roles[] = {
    {RK_ROLE_ACTOR, "actor", RK_JOB_ACTOR, 0, NULL, true, "ppo_max_token_len_per_gpu", NULL},
    {RK_ROLE_ROLLOUT, "rollout", RK_JOB_ROLLOUT, RK_ROLE_ACTOR, NULL, false, "max_num_batched_tokens", NULL},
    {RK_ROLE_REF, "ref", RK_JOB_REF, 0, NULL, false, "log_prob_max_token_len_per_gpu", wants_ref},
    {RK_ROLE_CRITIC, "critic", RK_JOB_CRITIC, 0, RK_JOB_CRITIC "model.path", true,
     "ppo_max_token_len_per_gpu", rk_job_wants_critic},
    {RK_ROLE_REWARD, "reward", RK_JOB_REWARD_MODEL, 0, RK_JOB_REWARD_MODEL "model_path", false,
     "forward_max_token_len_per_gpu", rk_job_wants_reward_model},
    TEACHER(RK_ROLE_TEACHER, "teacher", RK_JOB_TEACHER),
    TEACHER(RK_ROLE_TEACHER_2, "teacher_2", RK_JOB_TEACHER_2),
    TEACHER(RK_ROLE_TEACHER_3, "teacher_3", RK_JOB_TEACHER_3),
    TEACHER(RK_ROLE_TEACHER_4, "teacher_4", RK_JOB_TEACHER_4),
};
#undef TEACHER

const struct rk_job_role *rk_job_roles(int64_t *count)
{
    *count = RK_ARRAY_LEN(roles);
    return roles;
}

const struct rk_job_role *rk_job_role(uint32_t bit)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(roles); i++) {
        if (roles[i].bit == bit)
            return &roles[i];
    }
    RK_ASSERT(!"a role of the table");
    return NULL;
}

bool rk_job_role_enabled(const struct rk_config *job, uint32_t bit)
{
    const struct rk_flow *flow = rk_flow_of(job);

    return (flow->roles & bit) || ((flow->optional_roles & bit) && rk_job_role(bit)->is_wanted(job));
}

bool rk_job_role_needed(const struct rk_config *job, uint32_t bit)
{
    bool has_model = !(bit & RK_ROLE_TEACHERS) || !rk_config_is_null(job, rk_job_role(bit)->model);

    return has_model && rk_job_role_enabled(job, bit);
}

bool rk_job_role_has_model(const struct rk_config *job, uint32_t bit)
{
    bool only_trains = rk_flow_of(job)->training_roles & bit;

    return rk_job_role_needed(job, bit) && !(only_trains && rk_config_bool(job, "trainer.val_only"));
}

/* --- sizes --- */

int64_t rk_job_sequences(const struct rk_config *job)
{
    return rk_flow_of(job)->data->num_sequences(job);
}

int64_t rk_job_group_size(const struct rk_config *job)
{
    return rk_flow_of(job)->group_size;
}

int64_t rk_job_longest(const struct rk_config *job)
{
    return rk_flow_of(job)->data->max_tokens(job);
}
