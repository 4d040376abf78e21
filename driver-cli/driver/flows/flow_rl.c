/* Reinforcement learning: the policy answers prompts, the answers are scored, and it learns from their
 * advantages, in verl's order of steps and with its metric names. The estimator, the KL to a reference and
 * the loss are choices of the job, each on its own. */
#include "driver-cli/driver/flows/flows_internal.h"
#include "driver-cli/driver/job_internal.h"
#include "proto/rk_methods.h"

static struct rk_status *init(struct rk_flow_context *ctx)
{
    const struct rk_config *job = ctx->job;
    int64_t num_data = rk_dataset_num_rows(ctx->inputs->dataset);

    ctx->prompt_length = rk_config_int(job, "data.max_prompt_length");
    ctx->response_length = rk_config_int(job, "data.max_response_length");
    ctx->num_prompts = rk_config_int(job, "data.train_batch_size");
    ctx->num_samples = rk_config_int(job, RK_JOB_ROLLOUT "n");
    ctx->num_rows = ctx->num_prompts * ctx->num_samples;
    ctx->mini_batch_rows = rk_config_int(job, RK_JOB_ACTOR "ppo_mini_batch_size") * ctx->num_samples;
    ctx->steps_per_epoch = num_data / ctx->num_prompts; /* the last, smaller batch of an epoch is dropped */
    ctx->num_left_out = rk_flow_filters_groups(ctx) ? 0 : num_data % ctx->num_prompts;
    ctx->kl_ctrl = rk_job_kl_ctrl(job);
    if (ctx->steps_per_epoch == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "data.train_files hold %lld prompts, fewer than data.train_batch_size=%lld",
                       (long long)num_data, (long long)ctx->num_prompts);
    return NULL;
}

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
static const struct rk_flow_step *const updates[] = {&rk_step_update_critic, &rk_step_update_actor, NULL};

const struct rk_flow rk_flow_rl = {
    .name = "rl",
    .roles = RK_ROLE_ACTOR | RK_ROLE_ROLLOUT,
    .optional_roles = RK_ROLE_REF | RK_ROLE_CRITIC | RK_ROLE_REWARD | RK_ROLE_TEACHER,
    .load = rk_flow_inputs_load_prompts,
    .init = init,
    .steps = steps,
    .validate = &rk_step_validate,
    .rows = rows,
    .passes = passes,
    .updates = updates,
};
