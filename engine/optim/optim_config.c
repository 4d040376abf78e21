/* The optim.* options of init_model. */
#include "engine/rk_train.h"

#include <string.h>

#include "engine/optim/optim_internal.h"

static const struct {
    const char *name;
    rk_lr_style_t style;
} styles[] = {
    {"constant", RK_LR_CONSTANT},
    {"linear", RK_LR_LINEAR},
    {"cosine", RK_LR_COSINE},
    {"inverse_square_root", RK_LR_INVERSE_SQRT}, /* verl's spelling */
    {"inverse-square-root", RK_LR_INVERSE_SQRT}, /* Megatron's */
};

static struct rk_status *read_real(const struct rk_json *options, const char *key, double min, double *out)
{
    RK_TRY(rk_json_get_f64(options, "", key, out));
    if (*out >= min)
        return NULL;
    return RK_FAIL(RK_INVALID_ARGUMENT, "%s: expected a number of at least %g, got %g", key, min, *out);
}

static struct rk_status *read_betas(struct rk_optim_config *out, const struct rk_json *options)
{
    const struct rk_json *betas = rk_json_find(options, "optim.betas");

    out->beta1 = rk_json_as_real(rk_json_at(betas, 0), -1.0);
    out->beta2 = rk_json_as_real(rk_json_at(betas, 1), -1.0);
    if (rk_json_type(betas) == RK_JSON_ARRAY && rk_json_count(betas) == 2 && out->beta1 >= 0.0 &&
        out->beta1 < 1.0 && out->beta2 >= 0.0 && out->beta2 < 1.0)
        return NULL;
    return RK_FAIL(RK_INVALID_ARGUMENT, "optim.betas: expected two numbers from 0 up to (not including) 1");
}

/* Steps of warm-up and decay: given, or derived from the length of the run. Only a constant rate without a
 * warm-up ratio does without that length. */
static struct rk_status *read_steps(struct rk_optim_config *out, const struct rk_json *options)
{
    int64_t total, warmup, decay;
    double ratio;
    bool is_constant = out->lr_decay_style == RK_LR_CONSTANT;

    RK_TRY(rk_json_get_i64(options, "", "optim.total_training_steps", -1, INT64_MAX, &total));
    decay = total;
    RK_TRY(rk_json_opt_i64(options, "", "optim.lr_decay_steps", 1, INT64_MAX, &decay));
    RK_TRY(rk_json_get_i64(options, "", "optim.lr_warmup_steps", -1, INT64_MAX, &warmup));
    RK_TRY(read_real(options, "optim.lr_warmup_steps_ratio", 0.0, &ratio));
    if (ratio >= 1.0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "optim.lr_warmup_steps_ratio: expected a number below 1, got %g",
                       ratio);
    if (decay <= 0 && (!is_constant || (warmup <= 0 && ratio > 0.0)))
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "optim.total_training_steps: expected the number of updates (lr_decay_style or "
                       "lr_warmup_steps_ratio needs it), got %lld",
                       (long long)total);

    out->lr_decay_steps = RK_MAX(decay, 0);
    out->lr_warmup_steps = warmup > 0 ? warmup : (int64_t)(ratio * (double)out->lr_decay_steps);
    if (out->lr_decay_steps > 0 && out->lr_warmup_steps >= out->lr_decay_steps)
        return RK_FAIL(RK_INVALID_ARGUMENT, "optim.lr_warmup_steps=%lld must be below the decay steps %lld",
                       (long long)out->lr_warmup_steps, (long long)out->lr_decay_steps);
    return NULL;
}

static struct rk_status *read_style(rk_lr_style_t *out, const struct rk_json *options)
{
    const char *text;

    RK_TRY(rk_json_get_string(options, "", "optim.lr_decay_style", &text));
    for (size_t i = 0; i < RK_ARRAY_LEN(styles); i++) {
        if (strcmp(styles[i].name, text) == 0) {
            *out = styles[i].style;
            return NULL;
        }
    }
    return RK_FAIL(
        RK_INVALID_ARGUMENT,
        "optim.lr_decay_style: expected constant, linear, cosine or inverse_square_root, got \"%s\"", text);
}

struct rk_status *rk_optim_config_read(struct rk_optim_config *out, const struct rk_json *options)
{
    const char *name;

    *out = (struct rk_optim_config){0};
    RK_TRY(rk_json_get_string(options, "", "optim.optimizer", &name));
    out->ops = rk_optim_find(name);
    if (!out->ops)
        return RK_FAIL(RK_INVALID_ARGUMENT, "optim.optimizer: expected adam, got \"%s\"", name);
    RK_TRY(read_real(options, "optim.lr", 0.0, &out->lr));
    RK_TRY(read_real(options, "optim.min_lr", 0.0, &out->min_lr));
    RK_TRY(read_real(options, "optim.lr_warmup_init", 0.0, &out->lr_warmup_init));
    RK_TRY(read_real(options, "optim.weight_decay", 0.0, &out->weight_decay));
    RK_TRY(read_real(options, "optim.clip_grad", 0.0, &out->clip_grad));
    RK_TRY(read_real(options, "optim.eps", 0.0, &out->eps));
    if (out->min_lr > out->lr || out->lr_warmup_init > out->lr)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "optim.lr=%g must not be below optim.min_lr=%g or optim.lr_warmup_init=%g", out->lr,
                       out->min_lr, out->lr_warmup_init);
    RK_TRY(read_betas(out, options));
    RK_TRY(read_style(&out->lr_decay_style, options));
    return read_steps(out, options);
}
