/* The loss options of update_actor. */
#include "engine/loss/loss_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

static const char *const agg_names[RK_AGG_COUNT] = {
    [RK_AGG_TOKEN_MEAN] = "token-mean",
    [RK_AGG_TOKEN_SUM] = "token-sum",
    [RK_AGG_SEQ_MEAN_TOKEN_SUM] = "seq-mean-token-sum",
    [RK_AGG_SEQ_MEAN_TOKEN_MEAN] = "seq-mean-token-mean",
    [RK_AGG_SEQ_MEAN_TOKEN_SUM_NORM] = "seq-mean-token-sum-norm",
};

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
    for (int i = 0; i < RK_AGG_COUNT; i++) {
        if (strcmp(agg_names[i], config->loss_agg_mode) == 0) {
            config->agg_mode = (rk_loss_agg_mode_t)i;
            return NULL;
        }
    }
    return RK_FAIL(RK_INVALID_ARGUMENT, "loss_agg_mode: \"%s\" is not implemented", config->loss_agg_mode);
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
    return rk_kl_type_parse(out->kl_loss_type, &out->kl_type, &out->kl_straight_through);
}
