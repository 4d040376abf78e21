/* Distillation of a job: keys that contradict each other (engine/loss/loss_distill.c has their meaning). */
#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/math/rk_kl.h"
#include "base/config/rk_knobs.h"
#include "base/rk_log.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

#define LOSS_MODE RK_KNOB_DISTILL "loss_mode"
#define OPD       "algorithm.use_opd"

bool rk_job_wants_teacher(const struct rk_config *job)
{
    return rk_config_bool(job, "distillation.enabled") || rk_config_bool(job, OPD);
}

struct rk_job_teachers rk_job_teachers(const struct rk_config *job)
{
    struct rk_job_teachers teachers = {0};
    int64_t num_roles;
    const struct rk_job_role *roles = rk_job_roles(&num_roles);

    for (int64_t i = 0; i < num_roles; i++) {
        if ((roles[i].bit & RK_ROLE_TEACHERS) && rk_job_role_needed(job, roles[i].bit)) {
            RK_ASSERT(teachers.count < RK_JOB_TEACHERS_MAX);
            teachers.items[teachers.count++] = &roles[i];
        }
    }
    return teachers;
}

const char *rk_job_teacher_key(const struct rk_config *job, const struct rk_job_role *teacher)
{
    char *path = rk_format("%skey", teacher->section);
    const char *key = rk_config_string(job, path);

    rk_free(path);
    return key;
}

bool rk_job_distills_topk(const struct rk_config *job)
{
    rk_topk_divergence_t divergence;

    return rk_config_bool(job, "distillation.enabled") &&
           rk_topk_divergence_parse(rk_config_string(job, LOSS_MODE), &divergence);
}

/* An estimator whose gradient does not depend on the teacher. */
static void check_estimator(const struct rk_config *job, struct rk_str *problems)
{
    static const char key[] = LOSS_MODE;
    const char *mode = rk_config_string(job, key);
    bool straight_through;
    rk_kl_type_t type;
    struct rk_status *st = rk_kl_type_parse(key, mode, &type, &straight_through);

    if (st)
        rk_str_appendf(problems, "%s\n", rk_status_message(st));
    else if (type == RK_KL_K1 && !rk_config_bool(job, RK_KNOB_DISTILL "use_policy_gradient"))
        rk_str_appendf(problems,
                       "%s=%s needs " RK_KNOB_DISTILL "use_policy_gradient=true: its own gradient does not "
                       "depend on the teacher\n",
                       key, mode);
    rk_status_free(st);
}

/* Keys that the other modes read. */
static void check_loss_mode(const struct rk_config *job, struct rk_str *problems)
{
    const char *mode = rk_config_string(job, LOSS_MODE);
    bool is_topk = rk_job_distills_topk(job);

    if (!is_topk)
        check_estimator(job, problems);
    if (!is_topk && !rk_config_is_null(job, RK_KNOB_DISTILL "log_prob_min_clamp"))
        RK_WARN(RK_KNOB_DISTILL "log_prob_min_clamp=%g has no effect with " LOSS_MODE
                                "=%s; loss_max_clamp bounds the loss",
                rk_config_real(job, RK_KNOB_DISTILL "log_prob_min_clamp"), mode);
    if (rk_config_bool(job, RK_KNOB_DISTILL "renormalize_topk") && strcmp(mode, "forward_kl_topk") != 0)
        rk_str_appendf(problems,
                       RK_KNOB_DISTILL "renormalize_topk=true: no meaning with " LOSS_MODE
                                       "=%s, expected forward_kl_topk\n",
                       mode);
}

/* Terms that the loss of distillation alone does not have. */
static void check_alone(const struct rk_config *job, struct rk_str *problems)
{
    static const char why[] =
        "no effect with " RK_KNOB_DISTILL "use_task_rewards=false: distillation alone is the loss\n";

    if (rk_config_bool(job, RK_KNOB_DISTILL "use_task_rewards"))
        return;
    if (rk_config_bool(job, RK_JOB_ACTOR "use_kl_loss"))
        rk_str_appendf(problems, RK_JOB_ACTOR "use_kl_loss=true: %s", why);
    if (rk_config_bool(job, "algorithm.use_kl_in_reward"))
        rk_str_appendf(problems, "algorithm.use_kl_in_reward=true: %s", why);
    if (fabs(rk_config_real(job, RK_JOB_ACTOR "entropy_coeff")) > 0.0)
        rk_str_appendf(problems, RK_JOB_ACTOR "entropy_coeff=%g: %s",
                       rk_config_real(job, RK_JOB_ACTOR "entropy_coeff"), why);
}

/* Checks the keys of several teachers, of which each row of the data chooses one. */
static void check_teacher_keys(const struct rk_config *job, struct rk_str *problems)
{
    struct rk_job_teachers teachers = rk_job_teachers(job);

    for (int32_t i = 0; i < teachers.count && teachers.count > 1; i++) {
        const char *section = teachers.items[i]->section, *key = rk_job_teacher_key(job, teachers.items[i]);

        if (!key)
            rk_str_appendf(problems,
                           "set %skey: of several teachers a row takes the one whose key is the value of its "
                           "column %s (" RK_JOB_TEACHER_COLUMN ")\n",
                           section, rk_config_string(job, RK_JOB_TEACHER_COLUMN));
        for (int32_t k = 0; k < i && key; k++) {
            const char *other = rk_job_teacher_key(job, teachers.items[k]);

            if (other && strcmp(key, other) == 0)
                rk_str_appendf(problems, "%skey=%s: %skey has the same value; expected a different one\n",
                               section, key, teachers.items[k]->section);
        }
    }
}

void rk_job_distill_check(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    bool is_enabled = rk_config_bool(job, "distillation.enabled");
    const char *key = is_enabled ? "distillation.enabled" : OPD;

    (void)world_size;
    if (!rk_job_wants_teacher(job))
        return;
    if (is_enabled && rk_config_bool(job, OPD))
        rk_str_append(
            problems,
            OPD "=true: distillation.enabled=true already trains on the teacher; set only one of them\n");
    if (!rk_job_role_enabled(job, RK_ROLE_TEACHER))
        rk_str_appendf(problems, "%s: algorithm.type=%s has no teacher\n", key,
                       rk_config_string(job, "algorithm.type"));
    else if (rk_job_teachers(job).count == 0)
        rk_str_appendf(problems, "set " RK_JOB_TEACHER "model.path: %s needs a teacher\n", key);
    check_teacher_keys(job, problems);
    if (!is_enabled)
        return;
    check_loss_mode(job, problems);
    check_alone(job, problems);
}
