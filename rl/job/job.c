#include "rl/rk_job.h"

#include <limits.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_file.h"
#include "base/rk_str.h"
#include "base/rk_small_file.h"
#include "rl/rk_hub.h"
#include "rl/job/job_keys.def"

static const struct rk_config_key keys[] = {
#define X(path, type, def, min, max, choices, flags, help) \
    {path, RK_CONFIG_##type, def, (double)(min), (double)(max), choices, flags, help},
    RK_JOB_KEY_TABLE(X)
#undef X
};

/* The knobs of each group, where a job has them. */
struct knob {
    const char *option, *path;
};
#define KNOB(section, b, c, field, key, ...) {key, section key},
static const struct knob loss_knobs[] = {RK_POLICY_LOSS_KNOBS(KNOB, RK_JOB_ACTOR, , )};
static const struct knob dpo_knobs[] = {RK_DPO_KNOBS(KNOB, RK_JOB_DPO, , )};
static const struct knob distill_knobs[] = {RK_DISTILL_KNOBS(KNOB, "", , )};
static const struct knob optim_knobs[] = {RK_OPTIM_KNOBS(KNOB, RK_JOB_ACTOR, , )};
static const struct knob init_knobs[] = {RK_INIT_KNOBS(KNOB, RK_JOB_ACTOR, , )};
static const struct knob recompute_knobs[] = {RK_RECOMPUTE_KNOBS(KNOB, RK_JOB_ACTOR, , )};
static const struct knob moe_knobs[] = {RK_MOE_KNOBS(KNOB, RK_JOB_MODELS, , )};
static const struct knob critic_moe_knobs[] = {RK_MOE_KNOBS(KNOB, RK_JOB_CRITIC, , )};
static const struct knob router_knobs[] = {RK_ROUTER_KNOBS(KNOB, RK_JOB_ACTOR, , )};
static const struct knob critic_router_knobs[] = {RK_ROUTER_KNOBS(KNOB, RK_JOB_CRITIC, , )};
static const struct knob memory_knobs[] = {RK_TRAIN_MEMORY_KNOBS(KNOB, RK_JOB_ACTOR, , )};
static const struct knob critic_optim_knobs[] = {RK_CRITIC_OPTIM_KNOBS(KNOB, RK_JOB_CRITIC, , )};
static const struct knob critic_init_knobs[] = {RK_INIT_KNOBS(KNOB, RK_JOB_CRITIC, , )};
static const struct knob critic_recompute_knobs[] = {RK_RECOMPUTE_KNOBS(KNOB, RK_JOB_CRITIC, , )};
static const struct knob critic_memory_knobs[] = {RK_TRAIN_MEMORY_KNOBS(KNOB, RK_JOB_CRITIC, , )};
static const struct knob critic_loss_knobs[] = {RK_CRITIC_LOSS_KNOBS(KNOB, RK_JOB_CRITIC, , )};
static const struct knob rollout_knobs[] = {RK_ROLLOUT_KNOBS(KNOB, RK_JOB_MODELS, , )};
static const struct knob reshard_knobs[] = {RK_RESHARD_KNOBS(KNOB, RK_JOB_MODELS, , )};
static const struct knob sampling_knobs[] = {RK_SAMPLING_KNOBS(KNOB, RK_JOB_ROLLOUT, , )};
#undef KNOB

static const struct {
    const struct knob *rows;
    size_t count;
} knobs[] = {
    [RK_JOB_KNOBS_LOSS] = {loss_knobs, RK_ARRAY_LEN(loss_knobs)},
    [RK_JOB_KNOBS_DPO] = {dpo_knobs, RK_ARRAY_LEN(dpo_knobs)},
    [RK_JOB_KNOBS_DISTILL] = {distill_knobs, RK_ARRAY_LEN(distill_knobs)},
    [RK_JOB_KNOBS_OPTIM] = {optim_knobs, RK_ARRAY_LEN(optim_knobs)},
    [RK_JOB_KNOBS_INIT] = {init_knobs, RK_ARRAY_LEN(init_knobs)},
    [RK_JOB_KNOBS_MEMORY] = {memory_knobs, RK_ARRAY_LEN(memory_knobs)},
    [RK_JOB_KNOBS_RECOMPUTE] = {recompute_knobs, RK_ARRAY_LEN(recompute_knobs)},
    [RK_JOB_KNOBS_MOE] = {moe_knobs, RK_ARRAY_LEN(moe_knobs)},
    [RK_JOB_KNOBS_CRITIC_MOE] = {critic_moe_knobs, RK_ARRAY_LEN(critic_moe_knobs)},
    [RK_JOB_KNOBS_ROUTER] = {router_knobs, RK_ARRAY_LEN(router_knobs)},
    [RK_JOB_KNOBS_CRITIC_ROUTER] = {critic_router_knobs, RK_ARRAY_LEN(critic_router_knobs)},
    [RK_JOB_KNOBS_CRITIC_LOSS] = {critic_loss_knobs, RK_ARRAY_LEN(critic_loss_knobs)},
    [RK_JOB_KNOBS_CRITIC_OPTIM] = {critic_optim_knobs, RK_ARRAY_LEN(critic_optim_knobs)},
    [RK_JOB_KNOBS_CRITIC_INIT] = {critic_init_knobs, RK_ARRAY_LEN(critic_init_knobs)},
    [RK_JOB_KNOBS_CRITIC_MEMORY] = {critic_memory_knobs, RK_ARRAY_LEN(critic_memory_knobs)},
    [RK_JOB_KNOBS_CRITIC_RECOMPUTE] = {critic_recompute_knobs, RK_ARRAY_LEN(critic_recompute_knobs)},
    [RK_JOB_KNOBS_ROLLOUT] = {rollout_knobs, RK_ARRAY_LEN(rollout_knobs)},
    [RK_JOB_KNOBS_RESHARD] = {reshard_knobs, RK_ARRAY_LEN(reshard_knobs)},
    [RK_JOB_KNOBS_SAMPLING] = {sampling_knobs, RK_ARRAY_LEN(sampling_knobs)},
};

struct rk_status *rk_job_load_from(struct rk_config **out, const struct rk_job_source *from)
{
    struct rk_config_source source = {
        .keys = keys,
        .num_keys = RK_ARRAY_LEN(keys),
        .on_foreign = from->on_foreign,
        .user = from->user,
        .file = from->path,
        .text = from->text,
        .text_name = from->name,
        .env_prefix = "RANKCTL_JOB",
        .overrides = from->overrides,
        .num_overrides = from->num_overrides,
    };

    source.foreign = rk_job_verl_keys(&source.num_foreign);
    source.presets = rk_job_verl_presets(from->is_verl_sft, &source.num_presets);
    return rk_config_load(out, &source);
}

struct rk_status *rk_job_load(struct rk_config **out, const char *path, const char *const *overrides,
                              int64_t num_overrides)
{
    return rk_job_load_from(
        out, &(struct rk_job_source){.path = path, .overrides = overrides, .num_overrides = num_overrides});
}

static struct rk_json *resolved(const struct rk_json *path, const char *dir)
{
    char *full = rk_resolve_path(dir, rk_json_as_string(path, ""));
    struct rk_json *json = rk_json_new_string(full);

    rk_free(full);
    return json;
}

static struct rk_json *resolved_list(const struct rk_json *paths, const char *dir)
{
    struct rk_json *files = rk_json_new_array();

    for (int64_t i = 0; i < rk_json_count(paths); i++)
        rk_json_append(files, resolved(rk_json_at(paths, i), dir));
    return files;
}

/* Relative to the working directory of rankctl, as in verl. */
static const char *const outputs[] = {"trainer.default_local_dir", "trainer.resume_from_path",
                                      "trainer.rollout_data_dir", "trainer.validation_data_dir"};
/* Names of directories, in which rk_file_name_of replaces what terminals interpret. */
static const char *const names[] = {"trainer.project_name", "trainer.experiment_name"};

static void check_path(const char *key, const char *path, bool is_new, struct rk_str *problems)
{
    struct rk_status *st = rk_path_check(path, is_new);

    if (st)
        rk_str_appendf(problems, "%s: %s\n", key, rk_status_message(st));
    rk_status_free(st);
}

void rk_job_paths_check(const struct rk_config *job, int32_t world_size, struct rk_str *problems)
{
    (void)world_size;
    for (size_t i = 0; i < RK_ARRAY_LEN(outputs); i++) {
        if (!rk_config_is_null(job, outputs[i]))
            check_path(outputs[i], rk_config_string(job, outputs[i]), true, problems);
    }
    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++) {
        char *name = rk_file_name_of(rk_config_string(job, names[i]));

        check_path(names[i], name, false, problems);
        rk_free(name);
    }
}

static void resolve_model(struct rk_json *tree, const struct rk_config *job, const char *key, const char *dir)
{
    char *full;

    if (rk_config_is_null(job, key))
        return;
    full = rk_hub_resolve(dir, rk_config_string(job, key));
    rk_json_set_path(tree, key, rk_json_new_string(full));
    rk_free(full);
}

struct rk_json *rk_job_make_absolute(const struct rk_config *job, const char *dir)
{
    static const char *const models[] = {RK_JOB_MODEL "path", RK_JOB_MODEL "hf_config_path",
                                         RK_JOB_MODEL "tokenizer_path", RK_JOB_REWARD_MODEL "tokenizer_path"};
    static const char *const lists[] = {"data.train_files", "data.val_files"};
    static const char *const files[] = {"daemons.token_file", "daemons.tls_ca", "daemons.tls_cert",
                                        "daemons.tls_key"};
    char cwd[PATH_MAX];
    bool has_cwd = getcwd(cwd, sizeof(cwd)) != NULL;
    int64_t num_roles;
    const struct rk_job_role *roles = rk_job_roles(&num_roles);
    struct rk_json *tree = rk_json_clone(rk_config_tree(job));

    for (size_t i = 0; i < RK_ARRAY_LEN(models); i++)
        resolve_model(tree, job, models[i], dir);
    for (int64_t i = 0; i < num_roles; i++) {
        if (roles[i].model)
            resolve_model(tree, job, roles[i].model, dir);
    }
    for (size_t i = 0; i < RK_ARRAY_LEN(lists); i++) {
        if (!rk_config_is_null(job, lists[i]))
            rk_json_set_path(tree, lists[i], resolved_list(rk_config_json(job, lists[i]), dir));
    }
    for (size_t i = 0; i < RK_ARRAY_LEN(files); i++) {
        if (!rk_config_is_null(job, files[i]))
            rk_json_set_path(tree, files[i], resolved(rk_json_find_path(tree, files[i]), dir));
    }
    for (size_t i = 0; i < RK_ARRAY_LEN(outputs) && has_cwd; i++) {
        if (!rk_config_is_null(job, outputs[i]))
            rk_json_set_path(tree, outputs[i], resolved(rk_json_find_path(tree, outputs[i]), cwd));
    }
    rk_job_reward_make_absolute(tree, dir);
    return tree;
}

const struct rk_config_key *rk_job_keys(int64_t *count)
{
    *count = RK_ARRAY_LEN(keys);
    return keys;
}

void rk_job_copy_value(struct rk_json *options, const char *option, const struct rk_config *job,
                       const char *path)
{
    if (!rk_config_is_null(job, path))
        rk_json_set(options, option, rk_json_clone(rk_json_find_path(rk_config_tree(job), path)));
}

void rk_job_copy_knobs(struct rk_json *options, const struct rk_config *job, rk_job_knobs_t group)
{
    RK_ASSERT(group < RK_ARRAY_LEN(knobs));
    for (size_t i = 0; i < knobs[group].count; i++)
        rk_job_copy_value(options, knobs[group].rows[i].option, job, knobs[group].rows[i].path);
}

int64_t rk_job_int_or(const struct rk_config *job, const char *path, int64_t fallback)
{
    return rk_config_is_null(job, path) ? fallback : rk_config_int(job, path);
}

bool rk_job_bool_or(const struct rk_config *job, const char *path, bool fallback)
{
    return rk_config_is_null(job, path) ? fallback : rk_config_bool(job, path);
}

const char *rk_job_device(const struct rk_config *job)
{
    const char *chosen = rk_config_string(job, "device");

    if (chosen)
        return chosen;
    return rk_config_is_null(job, "trainer.n_gpus_per_node") ? "cpu" : "cuda";
}

const char *rk_job_dtype(const struct rk_config *job, const char *device_kind)
{
    const char *chosen = rk_config_string(job, RK_JOB_ACTOR "megatron.dtype");

    if (chosen)
        return chosen;
    return strcmp(device_kind, "cpu") == 0 ? "float32" : "bfloat16";
}

/* Strict decoding over a cache of latents computes keys and values of all heads again in every step. */
static bool has_latent_attention(const struct rk_json *hf_config)
{
    return rk_json_as_int(rk_json_find(hf_config, "kv_lora_rank"), 0) > 0;
}

const char *rk_job_numerics(const struct rk_config *job, const char *device_kind,
                            const struct rk_json *hf_config)
{
    const char *chosen = rk_config_string(job, "numerics");

    if (chosen)
        return chosen;
    return strcmp(device_kind, "cpu") == 0 || has_latent_attention(hf_config) ? "fast" : "strict";
}

struct rk_job_micro rk_job_actor_micro(const struct rk_config *job)
{
    return (struct rk_job_micro){
        .use_dynamic_bsz = rk_config_bool(job, RK_JOB_ACTOR "use_dynamic_bsz"),
        .max_token_len = rk_config_int(job, RK_JOB_ACTOR "ppo_max_token_len_per_gpu"),
        .micro_batch_rows = rk_job_int_or(job, RK_JOB_ACTOR "ppo_micro_batch_size_per_gpu", 0),
    };
}

struct rk_job_micro rk_job_log_prob_micro(const struct rk_config *job, const char *section)
{
    struct rk_job_micro micro = rk_job_actor_micro(job);
    char *dynamic = rk_format("%slog_prob_use_dynamic_bsz", section);
    char *tokens = rk_format("%slog_prob_max_token_len_per_gpu", section);
    char *rows = rk_format("%slog_prob_micro_batch_size_per_gpu", section);

    if (!rk_config_is_null(job, dynamic))
        micro.use_dynamic_bsz = rk_config_bool(job, dynamic);
    micro.max_token_len = rk_job_int_or(job, tokens, micro.max_token_len);
    micro.micro_batch_rows = rk_job_int_or(job, rows, micro.micro_batch_rows);
    rk_free(dynamic);
    rk_free(tokens);
    rk_free(rows);
    return micro;
}

int64_t rk_job_micro_tokens(const struct rk_config *job, const struct rk_job_micro *micro, int32_t cp)
{
    int64_t longest = rk_job_longest(job);
    int64_t rows = rk_config_int(job, "data.train_batch_size") * rk_job_sequences(job);

    if (!micro->use_dynamic_bsz)
        return (RK_MIN(micro->micro_batch_rows, rows) * longest + cp - 1) / cp;
    return RK_MIN(micro->max_token_len, (rows * longest + cp - 1) / cp);
}
