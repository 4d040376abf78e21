/* The critic of a job: keys that its section does not set take the actor's value. */
#include <string.h>

#include "base/rk_alloc.h"
#include "rl/rk_job.h"
#include "driver/rk_driver.h"
#include "proto/rk_methods.h"

bool rk_job_wants_critic(const struct rk_config *job)
{
    const struct rk_adv_ops *adv = rk_adv_find(rk_config_string(job, "algorithm.adv_estimator"));

    if (!rk_config_is_null(job, RK_JOB_CRITIC "enable"))
        return rk_config_bool(job, RK_JOB_CRITIC "enable");
    return adv && (adv->needs & RK_ADV_NEEDS_VALUES);
}

struct rk_job_micro rk_job_critic_micro(const struct rk_config *job)
{
    struct rk_job_micro actor = rk_job_actor_micro(job);

    return (struct rk_job_micro){
        .use_dynamic_bsz = rk_job_bool_or(job, RK_JOB_CRITIC "use_dynamic_bsz", actor.use_dynamic_bsz),
        .max_token_len = rk_job_int_or(job, RK_JOB_CRITIC "ppo_max_token_len_per_gpu", actor.max_token_len),
        .micro_batch_rows =
            rk_job_int_or(job, RK_JOB_CRITIC "ppo_micro_batch_size_per_gpu", actor.micro_batch_rows),
    };
}

struct rk_job_micro rk_job_values_micro(const struct rk_config *job)
{
    struct rk_job_micro micro = rk_job_critic_micro(job);

    micro.max_token_len =
        rk_job_int_or(job, RK_JOB_CRITIC "forward_max_token_len_per_gpu", micro.max_token_len);
    micro.micro_batch_rows =
        rk_job_int_or(job, RK_JOB_CRITIC "forward_micro_batch_size_per_gpu", micro.micro_batch_rows);
    return micro;
}

struct rk_job_update rk_job_update_of(const struct rk_config *job, uint32_t role)
{
    struct rk_job_update actor = {
        .mini_batch_size = rk_config_int(job, RK_JOB_ACTOR "ppo_mini_batch_size"),
        .epochs = (int32_t)rk_config_int(job, RK_JOB_ACTOR "ppo_epochs"),
        .shuffle = rk_config_bool(job, RK_JOB_ACTOR "shuffle"),
        .seed = rk_config_int(job, RK_JOB_ACTOR "data_loader_seed"),
        .micro = rk_job_actor_micro(job),
    };

    if (role != RK_ROLE_CRITIC)
        return actor;
    return (struct rk_job_update){
        .mini_batch_size = rk_job_int_or(job, RK_JOB_CRITIC "ppo_mini_batch_size", actor.mini_batch_size),
        .epochs = (int32_t)rk_job_int_or(job, RK_JOB_CRITIC "ppo_epochs", actor.epochs),
        .shuffle = rk_job_bool_or(job, RK_JOB_CRITIC "shuffle", actor.shuffle),
        .seed = rk_job_int_or(job, RK_JOB_CRITIC "data_loader_seed", actor.seed),
        .micro = rk_job_critic_micro(job),
    };
}

int64_t rk_job_ckpt_to_keep(const struct rk_config *job)
{
    int64_t actor = rk_job_int_or(job, "trainer.max_actor_ckpt_to_keep", 0);
    int64_t critic = rk_job_int_or(job, "trainer.max_critic_ckpt_to_keep", actor);

    if (actor == 0 || !rk_job_role_needed(job, RK_ROLE_CRITIC))
        return actor;
    return RK_MAX(actor, critic);
}

/* Keys that require a critic. */
static void check_without_critic(const struct rk_config *job, struct rk_str *problems)
{
    const struct rk_adv_ops *adv = rk_adv_find(rk_config_string(job, "algorithm.adv_estimator"));

    if (rk_config_int(job, "trainer.critic_warmup") > 0)
        rk_str_append(problems, "trainer.critic_warmup needs a critic: critic.enable, or an estimator that "
                                "needs its values\n");
    if (adv && (adv->needs & RK_ADV_NEEDS_VALUES) && !rk_job_wants_critic(job))
        rk_str_appendf(problems,
                       "algorithm.adv_estimator=%s needs the values of a critic, and critic.enable "
                       "is false\n",
                       adv->name);
}

void rk_job_critic_check(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    (void)world_size;
    if (!rk_job_role_needed(job, RK_ROLE_CRITIC)) {
        check_without_critic(job, problems);
        if (rk_job_wants_critic(job) && !rk_config_is_null(job, RK_JOB_CRITIC "enable"))
            rk_str_appendf(problems, "critic.enable: algorithm.type=%s has no critic\n",
                           rk_config_string(job, "algorithm.type"));
    }
}
