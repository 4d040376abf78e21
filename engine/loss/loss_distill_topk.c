/* On-policy distillation over the teacher's K most likely ids, added to the policy loss or instead of it.
 * With p_k and q_k, the probabilities of these ids under teacher and student, each of its whole vocabulary,
 * s_k = log q_k and t_k = log p_k, the value of a token is
 *
 *   forward_kl_topk   max(sum_k p_k (t_k - s_k), 0)               dv/ds_k = -p_k, 0 where the maximum is 0
 *   reverse_kl_topk   sum_k q_k (s_k - t_k)                       dv/ds_k = q_k (s_k - t_k + 1)
 *   jsd_topk          beta KL(p || m) + (1 - beta) KL(q || m),    dv/ds_k = (1 - beta) q_k (s_k - log m_k)
 *                     m = (1 - beta) q + beta p; beta 0 is KL(p || q), beta 1 KL(q || p)
 *
 * and distill.h defines the loss from it. The first is verl's, which ignores the ids outside the K. In the
 * other two, these ids form one more outcome with the remaining probability of each distribution: without it
 * a student would minimize the loss by moving its probability out of the K ids. So both are divergences,
 * never larger than those over the whole vocabulary, and equal to them when K is the vocabulary size. The
 * remaining probability is clamped to at least REST_MIN, the rounding error of a sum of K probabilities in
 * f32.
 *
 * log_prob_min_clamp is the lower bound of s_k, which has no gradient there, and of t_k. renormalize_topk
 * scales the p_k to sum 1.
 *
 * Metrics: those of distill.h; student_mass and teacher_mass, sums of q_k and p_k, with their ranges;
 * overlap_ratio, the share of the K that are among the student's K most likely ids, and
 * overlap_token_advantage, the mean of -p_k (t_k - s_k) over those ids. For the latter, verl omits tokens
 * without such an id from the mean; here they count as 0, so that the result does not depend on the layout.
 * GKD, arXiv:2306.13649; arXiv:2604.13016; names as in verl. */
#include "engine/loss/distill.h"

#include <stdlib.h>

#include "base/rk_assert.h"

#define REST_MIN 1e-6

enum {
    STUDENT_MASS = RK_DISTILL_NUM_METRICS,
    STUDENT_MASS_MIN,
    STUDENT_MASS_MAX,
    TEACHER_MASS,
    TEACHER_MASS_MIN,
    TEACHER_MASS_MAX,
    OVERLAP_RATIO,
    OVERLAP_TOKEN_ADVANTAGE
};

static const struct rk_loss_metric metrics[] = {
    RK_DISTILL_METRICS,
    [STUDENT_MASS] = {"distillation/student_mass", RK_LOSS_SUM, 0},
    [STUDENT_MASS_MIN] = {"distillation/student_mass_min", RK_LOSS_MIN, 0},
    [STUDENT_MASS_MAX] = {"distillation/student_mass_max", RK_LOSS_MAX, 0},
    [TEACHER_MASS] = {"distillation/teacher_mass", RK_LOSS_SUM, 0},
    [TEACHER_MASS_MIN] = {"distillation/teacher_mass_min", RK_LOSS_MIN, 0},
    [TEACHER_MASS_MAX] = {"distillation/teacher_mass_max", RK_LOSS_MAX, 0},
    [OVERLAP_RATIO] = {"distillation/overlap_ratio", RK_LOSS_SUM, 0},
    [OVERLAP_TOKEN_ADVANTAGE] = {"distillation/overlap_token_advantage", RK_LOSS_SUM, 0},
};

/* The ids of one token. */
struct token {
    int64_t num_ids;
    int64_t at[RK_DISTILL_TOPK_MAX]; /* index in the arrays of the micro-batch */
    double q[RK_DISTILL_TOPK_MAX], s[RK_DISTILL_TOPK_MAX],
        t[RK_DISTILL_TOPK_MAX];       /* s and t after the lower bound */
    double grad[RK_DISTILL_TOPK_MAX]; /* dv/ds */
    bool is_floored[RK_DISTILL_TOPK_MAX];
    double student_mass, teacher_mass;
};

static bool is_enabled(const void *opaque)
{
    const struct rk_distill_config *config = opaque;

    return config->is_topk;
}

static int64_t num_ids(const void *opaque)
{
    const struct rk_distill_config *config = opaque;

    return config->topk;
}

static void load(struct token *token, const struct rk_distill_config *config, const struct rk_loss_ids *ids,
                 int64_t begin)
{
    double low = isnan(config->log_prob_min_clamp) ? -INFINITY : config->log_prob_min_clamp;

    token->num_ids = 0;
    token->student_mass = token->teacher_mass = 0.0;
    for (int64_t i = begin; i < begin + ids->num_ids; i++) {
        int64_t k = token->num_ids;

        if (ids->ids[i] < 0)
            continue;
        token->at[k] = i;
        token->s[k] = ids->log_probs[i];
        token->t[k] = ids->teacher_log_probs[i];
        token->q[k] = exp(token->s[k]);
        token->student_mass += token->q[k];
        token->teacher_mass += exp(token->t[k]);
        token->num_ids++;
    }
    for (int64_t k = 0; k < token->num_ids; k++) {
        double t = config->renormalize_topk ? token->t[k] - log(token->teacher_mass) : token->t[k];

        token->is_floored[k] = token->s[k] < low;
        token->s[k] = rk_loss_clamp(token->s[k], low, INFINITY);
        token->t[k] = rk_loss_clamp(t, low, INFINITY);
    }
}

/* Contribution of one outcome to the divergence, and its derivative with respect to s. */
static double outcome(rk_topk_divergence_t divergence, double beta, double s, double t, double *grad)
{
    double p = exp(t), q = exp(s), m;

    if (divergence == RK_TOPK_FORWARD_KL || (divergence == RK_TOPK_JSD && beta == 0.0)) {
        *grad = -p;
        return p * (t - s);
    }
    if (divergence == RK_TOPK_REVERSE_KL || beta == 1.0) {
        *grad = q * (s - t + 1.0);
        return q * (s - t);
    }
    m = log((1.0 - beta) * q + beta * p);
    *grad = (1.0 - beta) * q * (s - m);
    return beta * p * (t - m) + (1.0 - beta) * q * (s - m);
}

/* Adds the outcome "none of the K" with the remaining probability. */
static double add_rest(struct token *token, const struct rk_distill_config *config)
{
    double student = 1.0 - token->student_mass, teacher = 1.0 - token->teacher_mass, grad;
    double value = outcome(config->divergence, config->beta, log(fmax(student, REST_MIN)),
                           log(fmax(teacher, REST_MIN)), &grad);

    for (int64_t k = 0; student >= REST_MIN && k < token->num_ids; k++)
        token->grad[k] -= grad * token->q[k] / student;
    return value;
}

static double value_of(struct token *token, const struct rk_distill_config *config)
{
    double value = 0.0;

    for (int64_t k = 0; k < token->num_ids; k++) {
        value += outcome(config->divergence, config->beta, token->s[k], token->t[k], &token->grad[k]);
        if (token->is_floored[k])
            token->grad[k] = 0.0;
    }
    if (config->divergence != RK_TOPK_FORWARD_KL)
        return value + add_rest(token, config);
    for (int64_t k = 0; value < 0.0 && k < token->num_ids; k++)
        token->grad[k] = 0.0;
    return value < 0.0 ? 0.0 : value;
}

static int compare_ids(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;

    return (x > y) - (x < y);
}

static void add_overlap(double *metrics_out, double weight, const struct token *token,
                        const struct rk_loss_ids *ids, int64_t begin)
{
    int32_t sorted[RK_DISTILL_TOPK_MAX];
    double advantage = 0.0;
    int64_t count = 0;

    for (int64_t k = 0; k < ids->num_ids; k++)
        sorted[k] = ids->top_ids[begin + k];
    qsort(sorted, (size_t)ids->num_ids, sizeof(*sorted), compare_ids);
    for (int64_t k = 0; k < token->num_ids; k++) {
        if (!bsearch(&ids->ids[token->at[k]], sorted, (size_t)ids->num_ids, sizeof(*sorted), compare_ids))
            continue;
        advantage -= exp(token->t[k]) * (token->t[k] - token->s[k]);
        count++;
    }
    metrics_out[OVERLAP_RATIO] += weight * (double)count / (double)ids->num_ids;
    metrics_out[OVERLAP_TOKEN_ADVANTAGE] += count > 0 ? weight * advantage / (double)count : 0.0;
}

static void add_masses(double *metrics_out, double weight, const struct token *token)
{
    metrics_out[STUDENT_MASS] += weight * token->student_mass;
    rk_distill_note_range(&metrics_out[STUDENT_MASS_MIN], &metrics_out[STUDENT_MASS_MAX],
                          token->student_mass);
    metrics_out[TEACHER_MASS] += weight * token->teacher_mass;
    rk_distill_note_range(&metrics_out[TEACHER_MASS_MIN], &metrics_out[TEACHER_MASS_MAX],
                          token->teacher_mass);
}

static void forward_backward(struct rk_loss_out *out, const struct rk_loss_in *in, const void *opaque)
{
    const struct rk_distill_config *config = opaque;
    const struct rk_loss_ids *ids = &in->ids;

    RK_ASSERT(ids->num_ids <= RK_DISTILL_TOPK_MAX);
    for (int64_t t = 0; t < in->num_tokens; t++) {
        int64_t begin = t * ids->num_ids;
        struct token token;
        double factor;

        if (!in->mask[t])
            continue;
        load(&token, config, ids, begin);
        factor = rk_distill_add(out, in, config, t, value_of(&token, config));
        for (int64_t k = 0; k < token.num_ids; k++)
            out->id_grads[token.at[k]] += factor * token.grad[k];
        add_masses(out->metrics, in->token_weight[t], &token);
        add_overlap(out->metrics, in->token_weight[t], &token, ids, begin);
    }
}

const struct rk_loss_ops rk_loss_distill_topk = {
    RK_DISTILL_FIELDS,        .num_ids = num_ids,
    .metrics = metrics,       .num_metrics = RK_ARRAY_LEN(metrics),
    .is_enabled = is_enabled, .forward_backward = forward_backward,
};
