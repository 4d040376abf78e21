/* Losses on the scores of routers, by Megatron's keys (docs/models.md). */
#include "engine/model/model.h"

#include <string.h>

/* An unset coefficient is NAN. */
static double coefficient(double value)
{
    return value > 0.0 ? value : 0.0;
}

struct rk_router_losses rk_router_losses_of(const struct rk_moe_knobs *knobs)
{
    bool is_on = strcmp(knobs->balancing_type, "none") != 0;

    return (struct rk_router_losses){
        .balance_coeff = is_on ? coefficient(knobs->aux_loss_coeff) : 0.0,
        .z_coeff = coefficient(knobs->z_loss_coeff),
        .is_per_sequence = strcmp(knobs->balancing_type, "seq_aux_loss") == 0,
    };
}

static struct rk_status *check_coefficient(const char *key, double value, const struct rk_moe_knobs *knobs,
                                           const struct rk_model_config *config)
{
    if (value == 0.0)
        return NULL;
    if (config->moe.num_experts == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s=%g: expected 0 for a model without experts (%s)", key, value,
                       config->family);
    if (knobs->freezes_router)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s=%g: expected 0 with %s=true", key, value,
                       RK_KNOB_FREEZE_ROUTER);
    return NULL;
}

struct rk_status *rk_router_losses_check(const struct rk_moe_knobs *knobs,
                                         const struct rk_model_config *config)
{
    if (knobs->updates_bias && !config->moe.has_correction_bias)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "%s=true: expected false for a model without correction bias (%s)",
                       RK_KNOB_EXPERT_BIAS, config->family);
    RK_TRY(check_coefficient(RK_KNOB_AUX_LOSS, coefficient(knobs->aux_loss_coeff), knobs, config));
    return check_coefficient(RK_KNOB_Z_LOSS, coefficient(knobs->z_loss_coeff), knobs, config);
}
