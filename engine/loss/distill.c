#include "engine/loss/distill.h"

#define DUAL_CLIP 3.0

const struct rk_knob rk_distill_knobs[] = {RK_DISTILL_KNOBS(RK_KNOB_ROW, struct rk_distill_config, , )};

static struct rk_status *check_mode(struct rk_distill_config *config)
{
    bool straight_through;

    config->is_topk = rk_topk_divergence_parse(config->loss_mode, &config->divergence);
    if (config->renormalize_topk && (!config->is_topk || config->divergence != RK_TOPK_FORWARD_KL))
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       RK_KNOB_DISTILL "renormalize_topk=true does not apply to " RK_KNOB_DISTILL
                                       "loss_mode=%s; expected false or forward_kl_topk",
                       config->loss_mode);
    if (config->is_topk)
        return NULL;
    RK_TRY(rk_kl_type_parse(RK_KNOB_DISTILL "loss_mode", config->loss_mode, &config->kl_type,
                            &straight_through));
    if (config->kl_type != RK_KL_K1 || config->use_policy_gradient)
        return NULL;
    return RK_FAIL(RK_INVALID_ARGUMENT,
                   RK_KNOB_DISTILL "loss_mode: \"%s\" has a gradient that does not depend on the teacher; "
                                   "expected " RK_KNOB_DISTILL "use_policy_gradient true or another mode",
                   config->loss_mode);
}

struct rk_status *rk_distill_check(void *opaque)
{
    struct rk_distill_config *config = opaque;

    if (!config->enabled)
        return NULL;
    config->clip = (struct rk_clip_config){
        .clip_ratio = config->clip_ratio,
        .clip_ratio_low = config->clip_ratio_low,
        .clip_ratio_high = config->clip_ratio_high,
        .clip_ratio_c = DUAL_CLIP,
    };
    RK_TRY(rk_clip_check(&config->clip));
    return check_mode(config);
}

bool rk_distill_is_alone(const void *opaque)
{
    const struct rk_distill_config *config = opaque;

    return !config->use_task_rewards;
}

double rk_distill_coefficient(const void *opaque)
{
    const struct rk_distill_config *config = opaque;

    return config->use_task_rewards ? config->distillation_loss_coef : 1.0;
}

double rk_distill_add(struct rk_loss_out *out, const struct rk_loss_in *in,
                      const struct rk_distill_config *config, int64_t t, double v)
{
    double limit = isnan(config->loss_max_clamp) ? INFINITY : config->loss_max_clamp;
    double scale = in->weight[t];
    double coef = rk_distill_coefficient(config);
    struct rk_pg_token token = {.loss = rk_loss_clamp(v, -limit, limit)};

    if (config->use_policy_gradient) {
        token = rk_pg_dual_clip(&config->clip, in->outputs[RK_HEAD_LOG_PROBS][t],
                                in->columns[RK_LOSS_OLD_LOG_PROBS][t], -token.loss);
        scale *= rk_loss_is_weight(in, t);
        out->grads[RK_HEAD_LOG_PROBS][t] += coef * scale * token.grad;
    }
    out->metrics[RK_DISTILL_LOSS] += scale * token.loss;
    rk_distill_note_range(&out->metrics[RK_DISTILL_LOSS_MIN], &out->metrics[RK_DISTILL_LOSS_MAX], v);
    out->metrics[RK_DISTILL_PPO_KL] += in->token_weight[t] * token.kl;
    out->metrics[RK_DISTILL_CLIPFRAC] += token.is_clipped ? in->token_weight[t] : 0.0;
    out->metrics[RK_DISTILL_CLIPFRAC_LOWER] += token.is_clipped_lower ? in->token_weight[t] : 0.0;
    return config->use_policy_gradient || fabs(v) > limit ? 0.0 : coef * scale;
}
