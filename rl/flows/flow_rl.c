/* Reinforcement learning: the policy answers prompts, the responses are scored, and it is trained on their
 * advantages, in verl's order of steps and with its metric names. The estimator, the KL to a reference and
 * the loss are independent choices of the job. */
#include "rl/flows/steps_internal.h"
#include "proto/rk_methods.h"

static const struct rk_flow_step *const steps[] = {
    &rk_step_prompts,
    &rk_step_generate,
    &rk_step_generate_filtered,
    &rk_step_layout,
    &rk_step_reward,
    &rk_step_baseline,
    &rk_step_samples,
    &rk_step_start_passes,
    &rk_step_old_log_prob,
    &rk_step_ref,
    &rk_step_teacher,
    &rk_step_values,
    &rk_step_token_rewards,
    &rk_step_rollout_correction,
    &rk_step_adv,
    &rk_step_opd,
    &rk_step_update_critic,
    &rk_step_update_actor,
    &rk_step_end_update_critic,
    &rk_step_verify_replicas,
    &rk_step_save_checkpoint,
    &rk_step_update_weights,
    &rk_step_metrics,
    &rk_step_validate,
    &rk_step_dump,
    NULL,
};

static const struct rk_flow_step *const rows[] = {&rk_step_prompts, &rk_step_generate, &rk_step_layout, NULL};
static const struct rk_flow_step *const passes[] = {&rk_step_verify_log_prob, &rk_step_ref,
                                                    &rk_step_teacher,         &rk_step_values,
                                                    &rk_step_verify_rm_score, NULL};
static const struct rk_flow_step *const updates[] = {&rk_step_update_critic, &rk_step_update_actor,
                                                     &rk_step_end_update_critic, NULL};

const struct rk_flow rk_flow_rl = {
    .name = "rl",
    .data = &rk_flow_data_prompts,
    .group_size = 1,
    .roles = RK_ROLE_ACTOR | RK_ROLE_ROLLOUT,
    .optional_roles = RK_ROLE_REF | RK_ROLE_CRITIC | RK_ROLE_REWARD | RK_ROLE_TEACHERS,
    .training_roles = RK_ROLE_REF | RK_ROLE_CRITIC | RK_ROLE_TEACHERS,
    .steps = steps,
    .validate = &rk_step_validate,
    .rows = rows,
    .passes = passes,
    .updates = updates,
};
