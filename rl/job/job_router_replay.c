/* Router replay of a job: whose experts the passes of training use (docs/models.md). */
#include "rl/rk_job.h"

#include <string.h>

#include "base/config/rk_knobs.h"
#include "proto/rk_methods.h"

#define MODE     RK_JOB_ACTOR RK_KNOB_REPLAY
#define REF_MODE RK_JOB_REF RK_KNOB_REPLAY
#define CAPTURE  RK_JOB_MODELS RK_KNOB_CAPTURES_ROUTES

static bool has_mode(const struct rk_config *job, const char *key, const char *mode)
{
    return strcmp(rk_config_string(job, key), mode) == 0;
}

bool rk_job_records_routes(const struct rk_config *job)
{
    return has_mode(job, MODE, "R2");
}

bool rk_job_captures_routes(const struct rk_config *job)
{
    return rk_config_bool(job, CAPTURE);
}

bool rk_job_replays_routes(const struct rk_config *job)
{
    return !has_mode(job, MODE, "disabled");
}

bool rk_job_pass_takes_routes(const struct rk_config *job, uint32_t role)
{
    if (role == RK_ROLE_ACTOR)
        return rk_job_captures_routes(job);
    return role == RK_ROLE_REF && has_mode(job, REF_MODE, "R3");
}

void rk_job_set_router_replay(struct rk_json *options, const struct rk_config *job, uint32_t role)
{
    bool compares = role == RK_ROLE_ACTOR && has_mode(job, MODE, "disabled") && rk_job_captures_routes(job);

    rk_job_copy_value(options, RK_KNOB_REPLAY, job, role == RK_ROLE_ACTOR ? MODE : REF_MODE);
    rk_json_set(options, RK_KNOB_REPLAY_COMPARES, rk_json_new_bool(compares));
}

static void check_source(const struct rk_config *job, const char *key, struct rk_str *problems)
{
    if (has_mode(job, key, "R3") && !rk_job_captures_routes(job))
        rk_str_appendf(problems, "%s=R3 uses the experts of the rollout: set " CAPTURE "=true\n", key);
}

void rk_job_router_replay_check(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    bool has_prompts = strcmp(rk_config_string(job, "algorithm.type"), "rl") == 0;

    (void)world_size;
    check_source(job, MODE, problems);
    check_source(job, REF_MODE, problems);
    if (rk_job_records_routes(job) && rk_job_captures_routes(job))
        rk_str_append(problems, MODE "=R2 uses the experts of compute_log_prob: set " CAPTURE "=false\n");
    if (rk_job_records_routes(job) && rk_job_takes_rollout_log_probs(job, rk_config_string(job, "numerics")))
        rk_str_append(problems,
                      MODE "=R2 uses the experts of compute_log_prob, which is not called with " RK_JOB_ACTOR
                           "old_log_prob=rollout or algorithm.rollout_correction.bypass_mode=true\n");
    if (!has_prompts && (rk_job_replays_routes(job) || rk_job_captures_routes(job)))
        rk_str_appendf(problems,
                       "algorithm.type=%s has no rollout: expected " MODE "=disabled and " CAPTURE "=false\n",
                       rk_config_string(job, "algorithm.type"));
}
