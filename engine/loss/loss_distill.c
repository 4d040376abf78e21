/* On-policy distillation on the sampled tokens, beside the policy loss or in its place. With x = log_prob -
 * teacher_log_probs, e(x) an estimator of base/rk_kl.h and v = clamp(e(x), -loss_max_clamp, loss_max_clamp):
 *
 *   use_policy_gradient false   l = v                  dl/dlog_prob = de/dlog_prob, 0 where v is cut
 *   use_policy_gradient true    l = PPO's clipped loss (loss_vanilla.c) with A = -v, a constant
 *
 * multiplied by distillation_loss_coef beside the policy loss (use_task_rewards), by 1 alone. k1 has a
 * constant gradient and is refused without use_policy_gradient.
 *
 * Metrics: distillation/loss, without the coefficient; loss_min and loss_max of e over the tokens that count;
 * abs_loss, the mean of |e|; pg_clipfrac, pg_clipfrac_lower and ppo_kl of PPO's loss, 0 without it.
 * Names as in verl; GKD, arXiv:2306.13649; https://thinkingmachines.ai/blog/on-policy-distillation. */
#include "engine/loss/policy.h"

#include "base/rk_kl.h"

#define DUAL_CLIP 3.0

struct config {
    RK_DISTILL_KNOBS(RK_KNOB_FIELD, , , )
    struct rk_clip_config clip;
    rk_kl_type_t kl_type;
};

static const struct rk_knob knobs[] = {RK_DISTILL_KNOBS(RK_KNOB_ROW, struct config, , )};

enum { LOSS, PPO_KL, CLIPFRAC, CLIPFRAC_LOWER, ABS_LOSS, LOSS_MIN, LOSS_MAX };

static const struct rk_loss_metric metrics[] = {
    [LOSS] = {"distillation/loss", RK_LOSS_SUM, 0},
    [PPO_KL] = {"distillation/ppo_kl", RK_LOSS_SUM, 0},
    [CLIPFRAC] = {"distillation/pg_clipfrac", RK_LOSS_SUM, 0},
    [CLIPFRAC_LOWER] = {"distillation/pg_clipfrac_lower", RK_LOSS_SUM, 0},
    [ABS_LOSS] = {"distillation/abs_loss", RK_LOSS_SUM, 0},
    [LOSS_MIN] = {"distillation/loss_min", RK_LOSS_MIN, 0},
    [LOSS_MAX] = {"distillation/loss_max", RK_LOSS_MAX, 0},
};

static struct rk_status *check(void *opaque)
{
    struct config *config = opaque;
    bool straight_through;

    if (!config->enabled)
        return NULL;
    config->clip = (struct rk_clip_config){
        .clip_ratio = config->clip_ratio,
        .clip_ratio_low = config->clip_ratio_low,
        .clip_ratio_high = config->clip_ratio_high,
        .clip_ratio_c = DUAL_CLIP,
    };
    RK_TRY(rk_clip_check(&config->clip));
    RK_TRY(rk_kl_type_parse(RK_KNOB_DISTILL "loss_mode", config->loss_mode, &config->kl_type,
                            &straight_through));
    if (config->kl_type == RK_KL_K1 && !config->use_policy_gradient)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       RK_KNOB_DISTILL
                       "loss_mode: \"%s\" has a gradient that does not depend on the teacher; "
                       "expected " RK_KNOB_DISTILL "use_policy_gradient true or another mode",
                       config->loss_mode);
    return NULL;
}

static bool is_enabled(const void *opaque)
{
    const struct config *config = opaque;

    return config->enabled;
}

static bool is_alone(const void *opaque)
{
    const struct config *config = opaque;

    return !config->use_task_rewards;
}

/* l and its derivative; `value` is the estimator's. */
static struct rk_pg_token token_loss(const struct config *config, double log_prob, double teacher, double old,
                                     double *value)
{
    struct rk_pg_token token = {0};
    double limit = isnan(config->loss_max_clamp) ? INFINITY : config->loss_max_clamp;

    rk_kl_estimate(config->kl_type, false, log_prob, teacher, value, &token.grad);
    token.loss = rk_loss_clamp(*value, -limit, limit);
    if (config->use_policy_gradient)
        return rk_pg_dual_clip(&config->clip, log_prob, old, -token.loss);
    if (fabs(*value) > limit)
        token.grad = 0.0;
    return token;
}

static void forward_backward(struct rk_loss_out *out, const struct rk_loss_in *in, const void *opaque)
{
    const struct config *config = opaque;
    double coef = config->use_task_rewards ? config->distillation_loss_coef : 1.0;

    for (int64_t t = 0; t < in->num_tokens; t++) {
        struct rk_pg_token token;
        double value, scale;

        if (!in->mask[t])
            continue;
        token =
            token_loss(config, in->outputs[RK_HEAD_LOG_PROBS][t], in->columns[RK_LOSS_TEACHER_LOG_PROBS][t],
                       in->columns[RK_LOSS_OLD_LOG_PROBS][t], &value);
        scale = in->weight[t] * (config->use_policy_gradient ? rk_loss_is_weight(in, t) : 1.0);
        out->grads[RK_HEAD_LOG_PROBS][t] += coef * scale * token.grad;
        out->metrics[LOSS] += scale * token.loss;
        out->metrics[PPO_KL] += in->token_weight[t] * token.kl;
        out->metrics[CLIPFRAC] += token.is_clipped ? in->token_weight[t] : 0.0;
        out->metrics[CLIPFRAC_LOWER] += token.is_clipped_lower ? in->token_weight[t] : 0.0;
        out->metrics[ABS_LOSS] += in->token_weight[t] * fabs(value);
        out->metrics[LOSS_MIN] = value < out->metrics[LOSS_MIN] ? value : out->metrics[LOSS_MIN];
        out->metrics[LOSS_MAX] = value > out->metrics[LOSS_MAX] ? value : out->metrics[LOSS_MAX];
    }
}

const struct rk_loss_ops rk_loss_distill = {
    .name = "distill",
    .abi = RK_LOSS_ABI,
    .kind = RK_OBJECTIVE_POLICY,
    .outputs = RK_HEAD_BIT(RK_HEAD_LOG_PROBS),
    .columns = RK_LOSS_BIT(RK_LOSS_TEACHER_LOG_PROBS) | RK_LOSS_BIT(RK_LOSS_OLD_LOG_PROBS),
    .optional_columns = RK_LOSS_BIT(RK_LOSS_ROLLOUT_IS_WEIGHTS),
    .metrics = metrics,
    .num_metrics = RK_ARRAY_LEN(metrics),
    .knobs = knobs,
    .num_knobs = RK_ARRAY_LEN(knobs),
    .config_bytes = sizeof(struct config),
    .check = check,
    .is_enabled = is_enabled,
    .is_alone = is_alone,
    .forward_backward = forward_backward,
};
