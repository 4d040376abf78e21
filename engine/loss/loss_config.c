/* The loss options of update_actor. */
#include "engine/loss/loss_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

static const char *const agg_names[RK_AGG_COUNT] = {
    [RK_AGG_TOKEN_MEAN] = "token-mean",
    [RK_AGG_SEQ_MEAN_TOKEN_SUM] = "seq-mean-token-sum",
    [RK_AGG_SEQ_MEAN_TOKEN_MEAN] = "seq-mean-token-mean",
    [RK_AGG_SEQ_MEAN_TOKEN_SUM_NORM] = "seq-mean-token-sum-norm",
};

static struct rk_status *read_modes(struct rk_loss_config *out, const struct rk_json *options)
{
    const char *text;

    RK_TRY(rk_json_get_string(options, "", "policy_loss.loss_mode", &text));
    out->ops = rk_loss_find(text);
    if (!out->ops) {
        char *names = rk_loss_names();
        struct rk_status *st = RK_FAIL(RK_INVALID_ARGUMENT,
                                       "policy_loss.loss_mode: expected one of %s, got \"%s\"", names, text);

        rk_free(names);
        return st;
    }

    RK_TRY(rk_json_get_string(options, "", "loss_agg_mode", &text));
    for (int i = 0; i < RK_AGG_COUNT; i++) {
        if (strcmp(agg_names[i], text) == 0) {
            out->agg_mode = (rk_loss_agg_mode_t)i;
            return NULL;
        }
    }
    return RK_FAIL(RK_INVALID_ARGUMENT,
                   "loss_agg_mode: expected token-mean, seq-mean-token-sum, seq-mean-token-mean or "
                   "seq-mean-token-sum-norm, got \"%s\"",
                   text);
}

static struct rk_status *check_range(const char *key, double value, double min, double max)
{
    if (value >= min && value <= max)
        return NULL;
    return RK_FAIL(RK_INVALID_ARGUMENT, "%s: expected a number from %g to %g, got %g", key, min, max, value);
}

static struct rk_status *read_clips(struct rk_loss_config *out, const struct rk_json *options)
{
    double clip_ratio;

    RK_TRY(rk_json_get_f64(options, "", "clip_ratio", &clip_ratio));
    out->clip_ratio_low = out->clip_ratio_high = clip_ratio;
    RK_TRY(rk_json_opt_f64(options, "", "clip_ratio_low", &out->clip_ratio_low));
    RK_TRY(rk_json_opt_f64(options, "", "clip_ratio_high", &out->clip_ratio_high));
    RK_TRY(rk_json_get_f64(options, "", "clip_ratio_c", &out->clip_ratio_c));
    RK_TRY(check_range("clip_ratio", clip_ratio, 0.0, 1e6));
    RK_TRY(check_range("clip_ratio_low", out->clip_ratio_low, 0.0, 1.0));
    RK_TRY(check_range("clip_ratio_high", out->clip_ratio_high, 0.0, 1e6));
    if (!(out->clip_ratio_c > 1.0))
        return RK_FAIL(RK_INVALID_ARGUMENT, "clip_ratio_c: expected a number above 1, got %g",
                       out->clip_ratio_c);
    return NULL;
}

struct rk_status *rk_loss_config_read(struct rk_loss_config *out, const struct rk_json *options)
{
    const char *kl_type;

    *out = (struct rk_loss_config){0};
    RK_TRY(read_modes(out, options));
    RK_TRY(read_clips(out, options));
    RK_TRY(rk_json_opt_f64(options, "", "loss_scale_factor", &out->loss_scale_factor));
    if (!rk_json_is_null(rk_json_find(options, "loss_scale_factor")) && !(out->loss_scale_factor > 0.0))
        return RK_FAIL(RK_INVALID_ARGUMENT, "loss_scale_factor: expected a number above 0, got %g",
                       out->loss_scale_factor);
    RK_TRY(rk_json_get_f64(options, "", "entropy_coeff", &out->entropy_coeff));
    RK_TRY(rk_json_get_bool(options, "", "use_kl_loss", &out->use_kl_loss));
    RK_TRY(rk_json_get_f64(options, "", "kl_loss_coef", &out->kl_loss_coef));
    RK_TRY(rk_json_get_string(options, "", "kl_loss_type", &kl_type));
    return rk_kl_type_parse(kl_type, &out->kl_type, &out->kl_straight_through);
}
