/* The loss options of update_actor. */
#include "engine/loss/loss_internal.h"

#include "base/rk_alloc.h"

static const struct rk_knob knobs[] = {RK_LOSS_KNOBS(RK_KNOB_ROW, struct rk_loss_config, , )};

static struct rk_status *find_modes(struct rk_loss_config *config)
{
    config->ops = rk_loss_find(config->loss_mode);
    if (!config->ops) {
        char *names = rk_loss_names();
        struct rk_status *st =
            RK_FAIL(RK_INVALID_ARGUMENT, "policy_loss.loss_mode: expected one of %s, got \"%s\"", names,
                    config->loss_mode);

        rk_free(names);
        return st;
    }
    return rk_loss_agg_mode_parse("loss_agg_mode", config->loss_agg_mode, &config->agg_mode);
}

struct rk_status *rk_loss_config_read(struct rk_loss_config *out, const struct rk_json *options)
{
    *out = (struct rk_loss_config){0};
    RK_TRY(rk_knobs_read(out, knobs, RK_ARRAY_LEN(knobs), options));
    RK_TRY(find_modes(out));
    if (isnan(out->loss_scale_factor))
        out->loss_scale_factor = 0.0;
    if (isnan(out->clip_ratio_low))
        out->clip_ratio_low = out->clip_ratio;
    if (isnan(out->clip_ratio_high))
        out->clip_ratio_high = out->clip_ratio;
    return rk_kl_type_parse("kl_loss_type", out->kl_loss_type, &out->kl_type, &out->kl_straight_through);
}
