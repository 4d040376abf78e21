/* Direct preference optimization (arXiv:2305.18290) and its variants: the policy learns to prefer the chosen
 * answer of each pair over the rejected one more than its reference, the first model, does. A pair is two
 * rows, which stay together. */
#include "rl/flows/steps_internal.h"
#include "proto/rk_methods.h"

static const struct rk_flow_step *const steps[] = {
    &rk_step_examples,        &rk_step_layout,          &rk_step_ref,
    &rk_step_update_dpo,      &rk_step_verify_replicas, &rk_step_save_checkpoint,
    &rk_step_example_metrics, &rk_step_validate_dpo,    NULL,
};

static const struct rk_flow_step *const rows[] = {&rk_step_examples, &rk_step_layout, NULL};
static const struct rk_flow_step *const passes[] = {&rk_step_verify_log_prob, &rk_step_ref, NULL};
static const struct rk_flow_step *const updates[] = {&rk_step_update_dpo, NULL};

const struct rk_flow rk_flow_dpo = {
    .name = "dpo",
    .data = &rk_flow_data_examples,
    .group_size = RK_EXAMPLE_SEQUENCES_MAX,
    .roles = RK_ROLE_ACTOR | RK_ROLE_REF,
    .steps = steps,
    .validate = &rk_step_validate_dpo,
    .rows = rows,
    .passes = passes,
    .updates = updates,
};
