/* Rules about the advantage estimator of a job, by the needs of its row of the table (rk_algo.h), and about
 * the controller of the KL in its rewards. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "base/config/rk_knobs.h"
#include "base/rk_log.h"
#include "rl/rk_job.h"
#include "driver/rk_driver.h"
#include "proto/rk_methods.h"

#define ESTIMATOR "algorithm.adv_estimator"
#define KEYS      "algorithm.gdpo_reward_keys"
#define WEIGHTS   "algorithm.gdpo_reward_weights"
#define KL_CTRL   "algorithm.kl_ctrl."

/* Whether only distillation gives the loss, so that advantages have no effect. */
static bool distills_only(const struct rk_config *job)
{
    return rk_config_bool(job, "distillation.enabled") &&
           !rk_config_bool(job, RK_KNOB_DISTILL "use_task_rewards");
}

void rk_job_estimator_check(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    const char *name = rk_config_string(job, ESTIMATOR);
    const struct rk_adv_ops *ops = rk_adv_find(name);
    int64_t num_samples = rk_config_int(job, RK_JOB_ROLLOUT "n");

    (void)world_size;
    if (!ops) {
        rk_str_appendf(problems, ESTIMATOR "=%s is unknown; known: %s\n", name, rk_adv_names());
        return;
    }
    if (num_samples < ops->min_group)
        rk_str_appendf(problems,
                       ESTIMATOR "=%s compares the responses to a prompt: it needs " RK_JOB_ROLLOUT
                                 "n of %d or more, got %" PRId64 "\n",
                       name, ops->min_group, num_samples);
    else if (ops->min_group > 0 && num_samples == 1 && rk_job_role_needed(job, RK_ROLE_ROLLOUT) &&
             !distills_only(job))
        RK_WARN(ESTIMATOR "=%s compares the responses to a prompt, and " RK_JOB_ROLLOUT
                          "n=1 leaves none to compare with: set it above 1",
                name);
}

bool rk_job_needs_sum_pi_squared(const struct rk_config *job)
{
    const struct rk_adv_ops *ops = rk_adv_find(rk_config_string(job, ESTIMATOR));

    return rk_config_bool(job, RK_JOB_ACTOR "calculate_sum_pi_squared") ||
           (ops && (ops->needs & RK_ADV_NEEDS_SUM_PI_SQUARED));
}

static void check_keys(const struct rk_json *keys, struct rk_str *problems)
{
    for (int64_t i = 0; i < rk_json_count(keys); i++) {
        const char *key = rk_json_as_string(rk_json_at(keys, i), "");

        if (*key == '\0')
            rk_str_appendf(problems, KEYS ": item %" PRId64 ": expected a name\n", i);
        for (int64_t j = 0; j < i && *key; j++) {
            if (strcmp(rk_json_as_string(rk_json_at(keys, j), ""), key) == 0)
                rk_str_appendf(problems, KEYS ": '%s' is listed twice\n", key);
        }
    }
}

static void check_weights(const struct rk_json *weights, int64_t num_keys, struct rk_str *problems)
{
    if (rk_json_count(weights) != num_keys)
        rk_str_appendf(problems, WEIGHTS ": %" PRId64 " weights for the %" PRId64 " keys of " KEYS "\n",
                       rk_json_count(weights), num_keys);
    for (int64_t i = 0; i < rk_json_count(weights); i++) {
        if (!isfinite(rk_json_as_real(rk_json_at(weights, i), NAN)))
            rk_str_appendf(problems, WEIGHTS ": item %" PRId64 ": expected a number\n", i);
    }
}

void rk_job_gdpo_check(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    const struct rk_adv_ops *ops = rk_adv_find(rk_config_string(job, ESTIMATOR));
    bool reads_keys = ops && (ops->needs & RK_ADV_NEEDS_KEY_REWARDS);
    bool has_weights = !rk_config_is_null(job, WEIGHTS);
    int64_t num_keys = rk_config_is_null(job, KEYS) ? 0 : rk_json_count(rk_config_json(job, KEYS));

    (void)world_size;
    if (!reads_keys && (num_keys > 0 || has_weights))
        rk_str_appendf(problems, "%s has no effect without " ESTIMATOR "=gdpo\n",
                       num_keys > 0 ? KEYS : WEIGHTS);
    if (!reads_keys)
        return;
    if (num_keys == 0)
        rk_str_append(problems,
                      ESTIMATOR "=gdpo needs " KEYS ": expected names of numbers that the reward returns\n");
    else
        check_keys(rk_config_json(job, KEYS), problems);
    if (has_weights)
        check_weights(rk_config_json(job, WEIGHTS), num_keys, problems);
    if (rk_config_bool(job, "algorithm.use_kl_in_reward"))
        rk_str_append(problems, "algorithm.use_kl_in_reward has no effect with " ESTIMATOR
                                "=gdpo, whose rewards are those of " KEYS "\n");
}

struct rk_kl_ctrl rk_job_kl_ctrl(const struct rk_config *job)
{
    return (struct rk_kl_ctrl){
        .is_adaptive = strcmp(rk_config_string(job, KL_CTRL "type"), "adaptive") == 0,
        .kl_coef = rk_config_real(job, KL_CTRL "kl_coef"),
        .target_kl = rk_config_real(job, KL_CTRL "target_kl"),
        .horizon = rk_config_real(job, KL_CTRL "horizon"),
    };
}

void rk_job_kl_ctrl_check(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    struct rk_kl_ctrl ctrl = rk_job_kl_ctrl(job);
    int64_t num_rows = rk_config_int(job, "data.train_batch_size") * rk_config_int(job, RK_JOB_ROLLOUT "n");

    (void)world_size;
    if (!ctrl.is_adaptive)
        return;
    if (!rk_config_bool(job, "algorithm.use_kl_in_reward"))
        rk_str_append(problems,
                      KL_CTRL "type=adaptive has no effect without algorithm.use_kl_in_reward=true\n");
    if (!(ctrl.kl_coef > 0.0))
        rk_str_appendf(problems,
                       KL_CTRL "type=adaptive multiplies " KL_CTRL "kl_coef: expected above 0, got %g\n",
                       ctrl.kl_coef);
    if ((double)num_rows >= 5.0 * ctrl.horizon)
        rk_str_appendf(problems,
                       KL_CTRL "horizon=%g: expected more than a fifth of the %" PRId64
                               " responses of a step, or the coefficient changes its sign\n",
                       ctrl.horizon, num_rows);
}
