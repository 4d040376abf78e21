/* Supervised fine-tuning: the policy is trained on the answers of the data, one optimizer step per batch. */
#include "rl/flows/steps_internal.h"
#include "proto/rk_methods.h"

static const struct rk_flow_step *const steps[] = {
    &rk_step_examples,        &rk_step_layout,          &rk_step_update_sft,   &rk_step_verify_replicas,
    &rk_step_save_checkpoint, &rk_step_example_metrics, &rk_step_validate_sft, NULL,
};

static const struct rk_flow_step *const rows[] = {&rk_step_examples, &rk_step_layout, NULL};
static const struct rk_flow_step *const passes[] = {&rk_step_verify_log_prob, NULL};
static const struct rk_flow_step *const updates[] = {&rk_step_update_sft, NULL};

const struct rk_flow rk_flow_sft = {
    .name = "sft",
    .data = &rk_flow_data_examples,
    .group_size = 1,
    .roles = RK_ROLE_ACTOR,
    .steps = steps,
    .validate = &rk_step_validate_sft,
    .rows = rows,
    .passes = passes,
    .updates = updates,
};
