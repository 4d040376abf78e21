/* Rules between the keys of every job, and between keys and the number of daemons: including the checks of
 * verl. The rules of jobs with prompts or examples are in job_prompts.c and job_examples.c. */
#include "rl/rk_job.h"

#include <inttypes.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/format/rk_ckpt_dir.h"
#include "base/rk_log.h"
#include "rl/rk_flow.h"
#include "rl/rk_loggers.h"
#include "driver/rk_driver.h"
#include "proto/rk_methods.h"

#define RECOMPUTE "megatron.override_transformer_config.recompute_"

static void check_nodes(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    int64_t nodes = rk_job_int_or(job, "trainer.nnodes", 1);
    int64_t per_node = rk_job_int_or(job, "trainer.n_gpus_per_node", 0);

    if (per_node == 0 && world_size % nodes != 0)
        rk_str_appendf(problems,
                       "trainer.nnodes=%" PRId64 " does not divide the group's %d daemons, and "
                       "trainer.n_gpus_per_node is not given\n",
                       nodes, world_size);
    if (per_node > 0 && nodes * per_node != world_size)
        rk_str_appendf(problems,
                       "trainer.nnodes=%" PRId64 " x trainer.n_gpus_per_node=%" PRId64
                       " is not the group's %d daemons\n",
                       nodes, per_node, world_size);
}

static void check_train_batch(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    int64_t prompts = rk_config_int(job, "data.train_batch_size"), count;
    const struct rk_job_role *roles = rk_job_roles(&count);

    for (int64_t i = 0; i < count; i++) {
        int64_t replicas = rk_job_num_replicas(job, roles[i].bit, world_size);

        if (roles[i].shares || !rk_job_role_needed(job, roles[i].bit) ||
            prompts * rk_job_sequences(job) % (replicas * rk_job_group_size(job)) == 0)
            continue;
        rk_str_appendf(problems,
                       "data.train_batch_size=%" PRId64 " x %s=%" PRId64 " does not divide by the %" PRId64
                       " data-parallel replicas of the %s\n",
                       prompts, rk_flow_of(job)->data->sequences, rk_job_sequences(job), replicas,
                       roles[i].name);
    }
}

struct micro_keys {
    uint32_t role;
    const char *where, *size; /* section, and key of the number of rows */
};

/* One pass: either a token budget that holds the longest sequences, or a number of rows. */
static void check_micro(const struct rk_config *job, const struct micro_keys *keys, struct rk_job_micro micro,
                        struct rk_str *problems)
{
    int32_t cp = rk_job_role_size(job, keys->role, RK_AXIS_CP);
    int64_t group = rk_job_group_size(job), longest = rk_job_longest(job);
    const char *key = rk_flow_of(job)->data->longest;

    if (micro.use_dynamic_bsz && micro.max_token_len * cp < group * longest)
        rk_str_appendf(
            problems, "%s: %" PRId64 " tokens per micro-batch, expected at least %s%s = %" PRId64 "\n",
            keys->where, micro.max_token_len * cp, group > 1 ? "the pair's 2 x " : "", key, group * longest);
    if (!micro.use_dynamic_bsz && micro.micro_batch_rows == 0)
        rk_str_appendf(problems, "%s: set %s, or use_dynamic_bsz\n", keys->where, keys->size);
}

static void check_update_micro_of(const struct rk_config *job, const struct rk_job_role *role,
                                  int64_t replicas, struct rk_str *problems)
{
    int64_t rows = rk_flow_of(job)->data->step_rows(job, role->bit) * rk_job_sequences(job);
    struct rk_job_micro micro = rk_job_update_of(job, role->bit).micro;
    char *where = rk_strndup(role->section, strlen(role->section) - 1);

    check_micro(job, &(struct micro_keys){role->bit, where, "ppo_micro_batch_size_per_gpu"}, micro, problems);
    if (!micro.use_dynamic_bsz && micro.micro_batch_rows > 0 && rows % replicas == 0 &&
        rows / replicas % micro.micro_batch_rows != 0)
        rk_str_appendf(problems,
                       "%sppo_micro_batch_size_per_gpu=%" PRId64 " does not divide the %" PRId64
                       " rows of a mini-batch on one replica\n",
                       role->section, micro.micro_batch_rows, rows / replicas);
    if (!micro.use_dynamic_bsz && micro.micro_batch_rows % rk_job_group_size(job) != 0)
        rk_str_appendf(problems,
                       "%sppo_micro_batch_size_per_gpu=%" PRId64 " would split a pair, which is 2 rows\n",
                       role->section, micro.micro_batch_rows);
    rk_free(where);
}

static void check_update_micro(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    int64_t count;
    const struct rk_job_role *roles = rk_job_roles(&count);

    for (int64_t i = 0; i < count; i++) {
        if (roles[i].trains && rk_job_role_needed(job, roles[i].bit))
            check_update_micro_of(job, &roles[i], rk_job_num_replicas(job, roles[i].bit, world_size),
                                  problems);
    }
}

static void check_log_prob_micro(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
#define TEACHER(bit, section)                                            \
    {                                                                    \
        {bit, section, "log_prob_micro_batch_size_per_gpu"}, section "." \
    }
    static const struct {
        struct micro_keys keys;
        const char *section; /* NULL: the critic's, whose keys have other names */
    } passes[] = {
        {{RK_ROLE_ACTOR, "actor_rollout_ref.rollout", "log_prob_micro_batch_size_per_gpu"}, RK_JOB_ROLLOUT},
        {{RK_ROLE_REF, "actor_rollout_ref.ref", "log_prob_micro_batch_size_per_gpu"}, RK_JOB_REF},
        {{RK_ROLE_CRITIC, "critic: compute_values", "forward_micro_batch_size_per_gpu"}, NULL},
        TEACHER(RK_ROLE_TEACHER, "distillation.teacher"),
        TEACHER(RK_ROLE_TEACHER_2, "distillation.teacher_2"),
        TEACHER(RK_ROLE_TEACHER_3, "distillation.teacher_3"),
        TEACHER(RK_ROLE_TEACHER_4, "distillation.teacher_4"),
    };
#undef TEACHER

    (void)world_size;
    for (size_t i = 0; i < RK_ARRAY_LEN(passes); i++) {
        if (rk_job_role_needed(job, passes[i].keys.role))
            check_micro(job, &passes[i].keys,
                        passes[i].section ? rk_job_log_prob_micro(job, passes[i].section)
                                          : rk_job_values_micro(job),
                        problems);
    }
}

static void check_model(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    bool has_path = !rk_config_is_null(job, RK_JOB_MODEL "path");

    (void)world_size;
    if (!has_path && rk_config_is_null(job, RK_JOB_MODEL "hf_config_path"))
        rk_str_append(problems, "set " RK_JOB_MODEL "path (weights) or " RK_JOB_MODEL
                                "hf_config_path (random weights)\n");
    if (!has_path && rk_config_is_null(job, RK_JOB_MODEL "tokenizer_path"))
        rk_str_append(problems,
                      "set " RK_JOB_MODEL "tokenizer_path: expected a path, since there is no " RK_JOB_MODEL
                      "path to find a tokenizer in\n");
}

static void check_filter_groups(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    (void)world_size;
    if (!rk_config_bool(job, "algorithm.filter_groups.enable")) {
        if (!rk_config_is_null(job, "data.gen_batch_size") &&
            rk_config_int(job, "data.gen_batch_size") != rk_config_int(job, "data.train_batch_size"))
            RK_WARN("data.gen_batch_size=%lld has no effect without algorithm.filter_groups.enable: a step "
                    "generates responses to data.train_batch_size prompts",
                    (long long)rk_config_int(job, "data.gen_batch_size"));
        return;
    }
    if (rk_config_is_null(job, "algorithm.filter_groups.metric"))
        rk_str_append(problems, "algorithm.filter_groups.enable needs algorithm.filter_groups.metric\n");
    if (!rk_job_role_needed(job, RK_ROLE_ROLLOUT))
        rk_str_appendf(problems, "algorithm.filter_groups.enable: algorithm.type=%s does not generate\n",
                       rk_config_string(job, "algorithm.type"));
}

static void check_betas_of(const struct rk_config *job, const char *key, struct rk_str *problems)
{
    const struct rk_json *betas = rk_config_json(job, key);
    bool is_ok = rk_json_count(betas) == 2;

    for (int64_t i = 0; i < rk_json_count(betas); i++) {
        double beta = rk_json_as_real(rk_json_at(betas, i), -1.0);

        is_ok &= beta >= 0.0 && beta < 1.0;
    }
    if (!is_ok)
        rk_str_appendf(problems, "%s: expected two numbers from 0 up to (not including) 1\n", key);
}

static void check_min_lr_of(const struct rk_config *job, const char *section, struct rk_str *problems)
{
    char *ratio = rk_format("%soptim.min_lr_ratio", section), *min_lr = rk_format("%soptim.min_lr", section);

    if (!rk_config_is_null(job, ratio) && rk_config_real(job, ratio) > 0 && rk_config_real(job, min_lr) > 0)
        rk_str_appendf(problems, "%s=%g and %s=%g: expected one of them\n", min_lr,
                       rk_config_real(job, min_lr), ratio, rk_config_real(job, ratio));
    rk_free(ratio);
    rk_free(min_lr);
}

static void check_min_lr(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    (void)world_size;
    check_min_lr_of(job, RK_JOB_ACTOR, problems);
    check_min_lr_of(job, RK_JOB_CRITIC, problems);
}

static void check_betas(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    (void)world_size;
    check_betas_of(job, RK_JOB_ACTOR "optim.betas", problems);
    check_betas_of(job, RK_JOB_CRITIC "optim.betas", problems);
}

/* Checks of the losses on combinations of keys (engine/loss). */
static void check_policy_loss(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    const char *mode = rk_config_string(job, RK_JOB_ACTOR "policy_loss.loss_mode");
    double low = rk_config_real(job, RK_JOB_ACTOR "policy_loss.clip_cov_lb");
    double high = rk_config_real(job, RK_JOB_ACTOR "policy_loss.clip_cov_ub");

    (void)world_size;
    if (strcmp(mode, "dro") == 0 && rk_config_is_null(job, RK_JOB_ACTOR "policy_loss.dro_beta"))
        rk_str_append(problems,
                      "set " RK_JOB_ACTOR "policy_loss.dro_beta, a number above 0: loss_mode=dro needs it\n");
    if (strcmp(mode, "clip_cov") == 0 && low >= high)
        rk_str_appendf(problems,
                       RK_JOB_ACTOR "policy_loss.clip_cov_lb=%g: expected less than clip_cov_ub=%g\n", low,
                       high);
}

/* The other keys have an effect only with this one. */
static void check_recompute(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    static const struct {
        const char *whether, *others[2];
    } sections[] = {
        {RK_JOB_ACTOR RECOMPUTE "granularity",
         {RK_JOB_ACTOR RECOMPUTE "method", RK_JOB_ACTOR RECOMPUTE "num_layers"}},
        {RK_JOB_CRITIC RECOMPUTE "granularity",
         {RK_JOB_CRITIC RECOMPUTE "method", RK_JOB_CRITIC RECOMPUTE "num_layers"}},
    };

    (void)world_size;
    for (size_t i = 0; i < RK_ARRAY_LEN(sections); i++) {
        for (size_t j = 0; j < RK_ARRAY_LEN(sections[i].others); j++) {
            if (rk_config_is_null(job, sections[i].whether) && !rk_config_is_null(job, sections[i].others[j]))
                rk_str_appendf(problems, "%s has no effect without recompute_granularity=full\n",
                               sections[i].others[j]);
        }
    }
}

static void check_logger(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    const struct rk_json *names = rk_config_json(job, "trainer.logger");

    (void)world_size;
    for (int64_t i = 0; i < rk_json_count(names); i++) {
        const char *name = rk_json_as_string(rk_json_at(names, i), NULL);
        const char *advice = name ? rk_logger_advice(name) : NULL;

        if (!name)
            rk_str_appendf(problems, "trainer.logger: item %" PRId64 ": expected a string, got %s\n", i,
                           rk_json_type_name(rk_json_type(rk_json_at(names, i))));
        else if (advice)
            rk_str_appendf(problems, "trainer.logger: %s is not supported; %s\n", name, advice);
        else if (!rk_logger_find(name))
            rk_str_appendf(problems, "trainer.logger: %s is unknown; known: %s\n", name, rk_logger_names());
    }
}

static void check_contents(const struct rk_config *job, const char *key, bool is_load,
                           struct rk_str *problems)
{
    static const char *const known[] = {"model", "optimizer", "extra", "hf_model"};
    const struct rk_json *list = rk_config_json(job, key);
    bool has_model = false;

    for (int64_t i = 0; i < rk_json_count(list); i++) {
        const char *name = rk_json_as_string(rk_json_at(list, i), "");
        bool is_known = false;

        for (size_t j = 0; j < RK_ARRAY_LEN(known); j++)
            is_known = is_known || strcmp(name, known[j]) == 0;
        has_model = has_model || strcmp(name, "model") == 0;
        if (is_load && strcmp(name, "hf_model") == 0)
            rk_str_appendf(problems, "%s: hf_model cannot be loaded; use model, which has the weights\n",
                           key);
        else if (!is_known)
            rk_str_appendf(problems, "%s: item %" PRId64 ": expected model, optimizer, extra or hf_model\n",
                           key, i);
    }
    if (!has_model)
        rk_str_appendf(problems, "%s: expected a list with model in it\n", key);
}

static void check_checkpoints(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    const char *from = rk_config_string(job, "trainer.resume_from_path");
    bool is_path = strcmp(rk_config_string(job, "trainer.resume_mode"), "resume_path") == 0;
    int64_t step;

    (void)world_size;
    check_contents(job, RK_JOB_ACTOR "checkpoint.save_contents", false, problems);
    if (!rk_config_is_null(job, RK_JOB_ACTOR "checkpoint.load_contents"))
        check_contents(job, RK_JOB_ACTOR "checkpoint.load_contents", true, problems);
    if (is_path && (!from || !rk_ckpt_step_parse(from, &step)))
        rk_str_appendf(
            problems,
            "trainer.resume_mode=resume_path: expected trainer.resume_from_path=.../global_step_<N>, "
            "got %s\n",
            from ? from : "null");
    if (!is_path && from)
        RK_WARN("trainer.resume_from_path has no effect without trainer.resume_mode=resume_path");
    if (rk_config_bool(job, "trainer.del_local_ckpt_after_load"))
        rk_str_append(problems, "trainer.del_local_ckpt_after_load=true: expected false; checkpoints are "
                                "loaded in place, without "
                                "local copies; trainer.max_actor_ckpt_to_keep removes old ones\n");
}

/* Validation needs held-out prompts. */
static void check_validation(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    bool val_only = rk_config_bool(job, "trainer.val_only");

    (void)world_size;
    if (val_only && !rk_config_bool(job, "trainer.val_before_train"))
        rk_str_append(problems, "trainer.val_only=true needs trainer.val_before_train=true\n");
    if (!rk_config_is_null(job, "data.val_files"))
        return;
    if (val_only)
        rk_str_append(problems, "trainer.val_only=true needs data.val_files\n");
    if (rk_config_int(job, "trainer.test_freq") > 0 || rk_config_bool(job, "trainer.test_after_each_epoch"))
        rk_str_append(problems, "trainer.test_freq needs data.val_files\n");
    if (!rk_config_is_null(job, "trainer.validation_data_dir"))
        rk_str_append(problems, "trainer.validation_data_dir needs data.val_files\n");
}

static void check_val_kwargs(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    double temperature = rk_config_real(job, RK_JOB_ROLLOUT "val_kwargs.temperature");

    (void)world_size;
    if (temperature > 0.0 && temperature < 1e-5)
        rk_str_appendf(problems,
                       RK_JOB_ROLLOUT "val_kwargs.temperature=%g: expected 0 (greedy) or at least 1e-05\n",
                       temperature);
    if (rk_config_bool(job, RK_JOB_ROLLOUT "val_kwargs.do_sample") && temperature == 0.0)
        rk_str_append(problems,
                      RK_JOB_ROLLOUT "val_kwargs.do_sample=true needs val_kwargs.temperature above 0\n");
}

static void check_integers(const struct rk_config *job, const char *key, int64_t min, int64_t max,
                           struct rk_str *problems)
{
    const struct rk_json *list = rk_config_json(job, key);

    for (int64_t i = 0; !rk_config_is_null(job, key) && i < rk_json_count(list); i++) {
        int64_t value = rk_json_as_int(rk_json_at(list, i), min - 1);

        if (value < min || value > max)
            rk_str_appendf(problems,
                           "%s: item %" PRId64 ": expected an integer from %" PRId64 " to %" PRId64 "\n", key,
                           i, min, max);
    }
}

/* world_size 0: not known yet. */
static void check_profile(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    check_integers(job, "trainer.profile_steps", 1, (int64_t)1 << 40, problems);
    check_integers(job, "trainer.profile_ranks", 0, (world_size > 0 ? world_size : RK_MESH_MAX_RANKS) - 1,
                   problems);
}

static const struct rk_job_rule rules[] = {
    {"world", rk_job_world_check, true},
    {"nodes", check_nodes, true},
    {"pipeline", rk_job_pipeline_check, false},
    {"train batch", check_train_batch, true},
    {"update micro-batch", check_update_micro, true},
    {"log-prob micro-batch", check_log_prob_micro, false},
    {"model", check_model, false},
    {"keys of roles", rk_job_role_keys_check, false},
    {"estimator", rk_job_estimator_check, false},
    {"gdpo", rk_job_gdpo_check, false},
    {"policy loss", check_policy_loss, false},
    {"kl controller", rk_job_kl_ctrl_check, false},
    {"filter_groups", check_filter_groups, false},
    {"critic", rk_job_critic_check, false},
    {"reward model", rk_job_reward_model_check, false},
    {"distillation", rk_job_distill_check, false},
    {"betas", check_betas, false},
    {"min_lr", check_min_lr, false},
    {"recompute", check_recompute, false},
    {"rollout correction", rk_job_rollout_correction_check, false},
    {"old log-prob", rk_job_old_log_prob_check, false},
    {"router replay", rk_job_router_replay_check, false},
    {"reward", rk_job_reward_check, false},
    {"logger", check_logger, false},
    {"validation", check_validation, false},
    {"val_kwargs", check_val_kwargs, false},
    {"checkpoints", check_checkpoints, false},
    {"profile", check_profile, false},
    {"paths", rk_job_paths_check, false},
    {NULL, NULL, false},
};

const struct rk_job_rule *rk_job_rules(void)
{
    return rules;
}

static void check_all(const struct rk_job_rule *rule, const struct rk_config *job, int32_t world_size,
                      struct rk_str *problems)
{
    for (; rule->name; rule++) {
        if (world_size > 0 || !rule->needs_world)
            rule->check(job, world_size, problems);
    }
}

struct rk_status *rk_job_check(const struct rk_config *job, int32_t world_size)
{
    struct rk_str problems = {0};
    struct rk_status *st = NULL;

    check_all(rules, job, world_size, &problems);
    check_all(rk_flow_of(job)->data->rules, job, world_size, &problems);
    if (problems.bytes > 0) {
        problems.text[problems.bytes - 1] = '\0'; /* the last newline */
        st = RK_FAIL(RK_INVALID_ARGUMENT, "%s", problems.text);
    }
    rk_str_fini(&problems);
    return st;
}
