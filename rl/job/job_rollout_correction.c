/* Rollout correction of a job: verl's presets, and the source of old_log_probs. */
#include "rl/rk_job.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_str.h"
#include "rl/rk_algo.h"
#include "proto/rk_methods.h"

#define CORR          "algorithm.rollout_correction."
#define OLD_LOG_PROB  RK_JOB_ACTOR "old_log_prob"
#define LOSS_MODE     RK_JOB_ACTOR "policy_loss.loss_mode"
#define ESTIMATOR     "algorithm.adv_estimator"
#define SQUARES       RK_JOB_ACTOR "calculate_sum_pi_squared"
#define GEO_BOUNDS    "0.999_1.001"
#define ICEPOP_BOUNDS "0.5_5.0"

static const struct preset {
    const char *name, *rollout_is, *rollout_is_threshold, *rollout_rs, *rollout_rs_threshold;
    bool bypass_mode;
    const char *loss_type; /* NULL: the preset leaves it open */
} presets[] = {
    {"decoupled_token_is", "token", "2.0", NULL, NULL, false, NULL},
    {"decoupled_seq_is", "sequence", "2.0", NULL, NULL, false, NULL},
    {"decoupled_token_icepop", "token", ICEPOP_BOUNDS, NULL, NULL, false, NULL},
    {"decoupled_seq_is_rs", "sequence", "2.0", "seq_sum_k1", "0.5_2.0", false, NULL},
    {"decoupled_geo_rs", NULL, NULL, "seq_mean_k1", GEO_BOUNDS, false, NULL},
    {"decoupled_geo_rs_seq_tis", "sequence", "2.0", "seq_mean_k1", GEO_BOUNDS, false, NULL},
    {"decoupled_geo_rs_token_tis", "token", "2.0", "seq_mean_k1", GEO_BOUNDS, false, NULL},
    {"decoupled_k3_rs", NULL, NULL, "seq_mean_k3", "0.01", false, NULL},
    {"decoupled_k3_rs_seq_tis", "sequence", "2.0", "seq_mean_k3", "0.01", false, NULL},
    {"decoupled_k3_rs_token_tis", "token", "2.0", "seq_mean_k3", "0.01", false, NULL},
    {"bypass_ppo_clip", NULL, NULL, NULL, NULL, true, "ppo_clip"},
    {"bypass_ppo_clip_geo_rs", NULL, NULL, "seq_mean_k1", GEO_BOUNDS, true, "ppo_clip"},
    {"bypass_ppo_clip_k3_rs", NULL, NULL, "seq_mean_k3", "0.01", true, "ppo_clip"},
    {"bypass_pg_is", "sequence", "2.0", NULL, NULL, true, "reinforce"},
    {"bypass_pg_token_icepop", "token", ICEPOP_BOUNDS, NULL, NULL, true, "reinforce"},
    {"bypass_pg_geo_rs", NULL, NULL, "seq_mean_k1", GEO_BOUNDS, true, "reinforce"},
    {"bypass_pg_geo_rs_seq_tis", "sequence", "2.0", "seq_mean_k1", GEO_BOUNDS, true, "reinforce"},
    {"bypass_pg_geo_rs_token_tis", "token", "2.0", "seq_mean_k1", GEO_BOUNDS, true, "reinforce"},
    {"disabled", NULL, NULL, NULL, NULL, false, NULL},
};

/* NULL without one and for a name that is none. */
static const struct preset *preset_of(const struct rk_config *job)
{
    const char *name = rk_config_string(job, CORR "preset");

    for (size_t i = 0; name && i < RK_ARRAY_LEN(presets); i++) {
        if (strcmp(presets[i].name, name) == 0)
            return &presets[i];
    }
    return NULL;
}

static const char *text_or(const struct rk_config *job, const char *path, const char *fallback)
{
    const char *text = rk_config_string(job, path);

    return text ? text : fallback;
}

struct rk_rollout_correction_keys rk_job_rollout_correction_keys(const struct rk_config *job)
{
    static const struct preset none;
    const struct preset *found = preset_of(job), *preset = found ? found : &none;

    return (struct rk_rollout_correction_keys){
        .rollout_is = text_or(job, CORR "rollout_is", preset->rollout_is),
        .rollout_is_threshold = text_or(job, CORR "rollout_is_threshold", preset->rollout_is_threshold),
        .rollout_is_batch_normalize = rk_config_bool(job, CORR "rollout_is_batch_normalize"),
        .rollout_rs = text_or(job, CORR "rollout_rs", preset->rollout_rs),
        .rollout_rs_threshold = text_or(job, CORR "rollout_rs_threshold", preset->rollout_rs_threshold),
        .bypass_mode = rk_config_is_null(job, CORR "bypass_mode") ? preset->bypass_mode
                                                                  : rk_config_bool(job, CORR "bypass_mode"),
        .loss_type = text_or(job, CORR "loss_type", preset->loss_type),
    };
}

struct rk_rollout_correction rk_job_rollout_correction(const struct rk_config *job)
{
    struct rk_rollout_correction_keys keys = rk_job_rollout_correction_keys(job);
    struct rk_rollout_correction config;
    struct rk_status *st = rk_rollout_correction_parse(&config, &keys);

    RK_ASSERT(!st); /* the rules have passed the job */
    return config;
}

void rk_job_set_bypass(struct rk_json *options, const struct rk_config *job)
{
    struct rk_rollout_correction_keys keys = rk_job_rollout_correction_keys(job);
    const struct {
        const char *option, *text;
    } texts[] = {{"rollout_correction.rollout_is", keys.rollout_is},
                 {"rollout_correction.rollout_is_threshold", keys.rollout_is_threshold},
                 {"rollout_correction.rollout_rs", keys.rollout_rs},
                 {"rollout_correction.rollout_rs_threshold", keys.rollout_rs_threshold},
                 {"rollout_correction.loss_type", keys.loss_type}};

    rk_json_set(options, "policy_loss.loss_mode", rk_json_new_string(RK_JOB_BYPASS_LOSS));
    rk_json_set(options, "rollout_correction.rollout_is_batch_normalize",
                rk_json_new_bool(keys.rollout_is_batch_normalize));
    for (size_t i = 0; i < RK_ARRAY_LEN(texts); i++) {
        if (texts[i].text)
            rk_json_set(options, texts[i].option, rk_json_new_string(texts[i].text));
    }
}

/* A preset selects the method; only thresholds and the normalisation may be set with it. */
static void check_preset(const struct rk_config *job, struct rk_str *problems)
{
    const struct preset *preset = preset_of(job);
    const char *name = rk_config_string(job, CORR "preset");
    struct {
        const char *key, *expected;
    } texts[] = {{"rollout_is", preset ? preset->rollout_is : NULL},
                 {"rollout_rs", preset ? preset->rollout_rs : NULL},
                 {"loss_type", preset ? preset->loss_type : NULL}};

    if (!name)
        return;
    if (!preset) {
        rk_str_appendf(problems, CORR "preset: expected one of");
        for (size_t i = 0; i < RK_ARRAY_LEN(presets); i++)
            rk_str_appendf(problems, "%s %s", i ? "," : "", presets[i].name);
        rk_str_appendf(problems, ", got \"%s\"\n", name);
        return;
    }
    for (size_t i = 0; i < RK_ARRAY_LEN(texts); i++) {
        char *path = rk_format(CORR "%s", texts[i].key);
        const char *given = rk_config_string(job, path);

        /* verl's configuration also has a loss_type without bypass_mode, which is not used. */
        bool is_read = texts[i].expected || strcmp(texts[i].key, "loss_type") != 0;

        if (given && is_read && strcmp(given, texts[i].expected ? texts[i].expected : "") != 0)
            rk_str_appendf(problems, "%s=%s contradicts " CORR "preset=%s, which has %s\n", path, given, name,
                           texts[i].expected ? texts[i].expected : "none");
        rk_free(path);
    }
    if (!rk_config_is_null(job, CORR "bypass_mode") &&
        rk_config_bool(job, CORR "bypass_mode") != preset->bypass_mode)
        rk_str_appendf(problems, CORR "bypass_mode=%s contradicts " CORR "preset=%s, which has %s\n",
                       preset->bypass_mode ? "false" : "true", name, preset->bypass_mode ? "true" : "false");
}

static void check_bypass(const struct rk_config *job, const struct rk_rollout_correction_keys *keys,
                         struct rk_str *problems)
{
    const char *loss_mode = rk_config_string(job, LOSS_MODE), *old = rk_config_string(job, OLD_LOG_PROB);
    bool is_bypass_loss = strcmp(loss_mode, RK_JOB_BYPASS_LOSS) == 0;

    if (is_bypass_loss && !keys->bypass_mode)
        rk_str_append(problems, LOSS_MODE "=" RK_JOB_BYPASS_LOSS " needs " CORR "bypass_mode=true\n");
    if (!keys->bypass_mode)
        return;
    if (!is_bypass_loss && strcmp(loss_mode, "vanilla") != 0)
        rk_str_appendf(problems,
                       LOSS_MODE "=%s contradicts " CORR "bypass_mode=true, whose loss is " RK_JOB_BYPASS_LOSS
                                 "\n",
                       loss_mode);
    if (strcmp(old, "recompute") == 0)
        rk_str_append(problems, OLD_LOG_PROB "=recompute contradicts " CORR
                                             "bypass_mode=true, which takes the rollout's log-probs\n");
}

void rk_job_rollout_correction_check(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    struct rk_rollout_correction_keys keys = rk_job_rollout_correction_keys(job);
    struct rk_rollout_correction config;
    struct rk_status *st;

    (void)world_size;
    check_preset(job, problems);
    check_bypass(job, &keys, problems);
    st = rk_rollout_correction_parse(&config, &keys);
    if (st)
        rk_str_appendf(problems, "algorithm.%s\n", rk_status_message(st));
    rk_status_free(st);
}

/* --- old_log_probs --- */

/* The reason why log-probs of rollout and training differ, as "KEY=VALUE"; NULL when they are equal bit for
 * bit. numerics: NULL where the device is not known. rk_free it. */
static char *inexact_because(const struct rk_config *job, const char *numerics)
{
    int64_t top_k = rk_config_int(job, RK_JOB_ROLLOUT "top_k");
    double top_p = rk_config_real(job, RK_JOB_ROLLOUT "top_p");
    double temperature = rk_config_real(job, RK_JOB_ROLLOUT "temperature");
    int32_t actor_tp = rk_job_role_size(job, RK_ROLE_ACTOR, RK_AXIS_TP);
    int32_t tp = rk_job_role_size(job, RK_ROLE_ROLLOUT, RK_AXIS_TP);
    int32_t ep = rk_job_role_size(job, RK_ROLE_ROLLOUT, RK_AXIS_EP);

    if (!numerics || strcmp(numerics, "strict") != 0)
        return rk_format("numerics=%s", numerics ? numerics : "null");
    if (top_k > 0)
        return rk_format(RK_JOB_ROLLOUT "top_k=%lld", (long long)top_k);
    if (top_p < 1.0)
        return rk_format(RK_JOB_ROLLOUT "top_p=%g", top_p);
    if (tp != actor_tp)
        return rk_format(RK_JOB_ROLLOUT RK_JOB_ROLLOUT_TP "=%d", tp);
    /* Results of parts of experts are added in another order than results of whole experts. */
    if (rk_job_etp(job, RK_ROLE_ROLLOUT) != rk_job_etp(job, RK_ROLE_ACTOR))
        return rk_format(RK_JOB_ROLLOUT RK_JOB_ROLLOUT_EP "=%d with " RK_JOB_ACTOR RK_JOB_ETP "=%d%s", ep,
                         rk_job_etp(job, RK_ROLE_ACTOR),
                         ep == 1 ? " (expected null for a model without layers of experts)" : "");
    /* A greedy rollout returns log-probs of temperature 1. */
    if (!rk_config_bool(job, RK_JOB_ROLLOUT "do_sample") && temperature != 1.0)
        return rk_format(RK_JOB_ROLLOUT "do_sample=false with temperature=%g", temperature);
    return NULL;
}

bool rk_job_log_probs_are_equal(const struct rk_config *job, const char *numerics)
{
    char *reason = inexact_because(job, numerics);

    rk_free(reason);
    return !reason;
}

bool rk_job_takes_rollout_log_probs(const struct rk_config *job, const char *numerics)
{
    const char *mode = rk_config_string(job, OLD_LOG_PROB);

    if (rk_job_rollout_correction_keys(job).bypass_mode || strcmp(mode, "rollout") == 0)
        return true;
    return strcmp(mode, "auto") == 0 && rk_job_log_probs_are_equal(job, numerics) &&
           !rk_job_needs_sum_pi_squared(job) && !rk_job_records_routes(job);
}

void rk_job_old_log_prob_check(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    bool is_key = rk_config_bool(job, SQUARES);
    const char *numerics = rk_config_string(job, "numerics");
    char *reason = inexact_because(job, numerics);

    (void)world_size;
    if (reason && strcmp(rk_config_string(job, OLD_LOG_PROB), "rollout") == 0 && numerics &&
        strcmp(numerics, "strict") == 0)
        rk_str_appendf(problems,
                       OLD_LOG_PROB "=rollout contradicts %s: with numerics=strict both log-probs have to be "
                                    "equal; set " OLD_LOG_PROB "=auto\n",
                       reason);
    if (rk_job_needs_sum_pi_squared(job) && rk_job_takes_rollout_log_probs(job, numerics))
        rk_str_appendf(problems,
                       "%s%s needs sum_pi_squared of the pass that " OLD_LOG_PROB "=rollout and " CORR
                       "bypass_mode=true skip\n",
                       is_key ? SQUARES "=true" : ESTIMATOR "=",
                       is_key ? "" : rk_config_string(job, ESTIMATOR));
    rk_free(reason);
}
