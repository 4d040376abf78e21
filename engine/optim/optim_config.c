/* The optim.* options of init_model. */
#include "engine/rk_train.h"

#include <math.h>
#include <string.h>

#include "engine/optim/trainer.h"

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

static const struct rk_knob knobs[] = {RK_OPTIM_KNOBS(RK_KNOB_ROW, struct rk_optim_config, , )};

static struct rk_status *check_betas(const struct rk_optim_config *config)
{
    for (int i = 0; i < 2; i++) {
        if (!(config->betas[i] >= 0.0 && config->betas[i] < 1.0))
            return RK_FAIL(RK_INVALID_ARGUMENT, "optim.betas: expected two numbers from 0 to below 1, got %g",
                           config->betas[i]);
    }
    return NULL;
}

/* Number of warm-up and decay steps: given, or derived from the length of the run. Only a constant rate
 * without a warm-up ratio does not need that length. */
static struct rk_status *complete_steps(struct rk_optim_config *config, const struct rk_json *options)
{
    double ratio = config->lr_warmup_steps_ratio;
    bool is_constant = config->lr_decay_style == RK_LR_CONSTANT;
    int64_t total, decay, warmup = config->lr_warmup_steps;

    RK_TRY(rk_json_get_i64(options, "", "optim.total_training_steps", -1, INT64_MAX, &total));
    decay = config->lr_decay_steps > 0 ? config->lr_decay_steps : total;
    if (ratio >= 1.0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "optim.lr_warmup_steps_ratio: expected a number below 1, got %g",
                       ratio);
    if (decay <= 0 && (!is_constant || (warmup <= 0 && ratio > 0.0)))
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "optim.total_training_steps: expected the number of updates (lr_decay_style or "
                       "lr_warmup_steps_ratio needs it), got %lld",
                       (long long)total);

    config->lr_decay_steps = RK_MAX(decay, 0);
    config->lr_warmup_steps = warmup > 0 ? warmup : (int64_t)(ratio * (double)config->lr_decay_steps);
    if (config->lr_decay_steps > 0 && config->lr_warmup_steps >= config->lr_decay_steps)
        return RK_FAIL(RK_INVALID_ARGUMENT, "optim.lr_warmup_steps=%lld must be below the decay steps %lld",
                       (long long)config->lr_warmup_steps, (long long)config->lr_decay_steps);
    return NULL;
}

static struct rk_status *find_style(struct rk_optim_config *config)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(styles); i++) {
        if (strcmp(styles[i].name, config->lr_decay_style_name) == 0) {
            config->lr_decay_style = styles[i].style;
            return NULL;
        }
    }
    return RK_FAIL(RK_INVALID_ARGUMENT, "optim.lr_decay_style: \"%s\" is not implemented",
                   config->lr_decay_style_name);
}

struct rk_status *rk_optim_config_read(struct rk_optim_config *out, const struct rk_json *options)
{
    *out = (struct rk_optim_config){0};
    RK_TRY(rk_knobs_read(out, knobs, RK_ARRAY_LEN(knobs), options));
    out->ops = rk_optim_find(out->optimizer);
    if (!out->ops)
        return RK_FAIL(RK_INVALID_ARGUMENT, "optim.optimizer: \"%s\" is not implemented", out->optimizer);
    if (out->min_lr > out->lr || out->lr_warmup_init > out->lr)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "optim.lr=%g must not be below optim.min_lr=%g or optim.lr_warmup_init=%g", out->lr,
                       out->min_lr, out->lr_warmup_init);
    RK_TRY(check_betas(out));
    RK_TRY(find_style(out));
    return complete_steps(out, options);
}

struct step_config {
    RK_STEP_KNOBS(RK_KNOB_FIELD, , , )
};

static const struct rk_knob step_knobs[] = {RK_STEP_KNOBS(RK_KNOB_ROW, struct step_config, , )};

static double given_or(double value, double fallback)
{
    return isnan(value) ? fallback : value;
}

struct rk_status *rk_optim_config_override(struct rk_optim_config *config, const struct rk_json *options)
{
    struct step_config step;

    RK_TRY(rk_knobs_read(&step, step_knobs, RK_ARRAY_LEN(step_knobs), options));
    config->lr = given_or(step.lr, config->lr);
    for (int i = 0; i < 2; i++)
        config->betas[i] = given_or(step.betas[i], config->betas[i]);
    config->eps = given_or(step.eps, config->eps);
    config->weight_decay = given_or(step.weight_decay, config->weight_decay);
    config->clip_grad = given_or(step.clip_grad, config->clip_grad);
    return check_betas(config);
}
