/* What a job names: model configuration, tokenizer, prompts, reward. All of it is read before a daemon is
 * started, so that a misspelled path costs nothing. */
#include "driver-cli/driver/flows/flows_internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/rk_alloc.h"
#include "base/rk_log.h"
#include "driver-cli/driver/files_internal.h"
#include "driver-cli/driver/hub_internal.h"
#include "driver-cli/driver/job_internal.h"
#include "proto/rk_methods.h"

/* DIR/NAME as JSON; *out stays NULL when there is no such file. */
static struct rk_status *read_optional_json(struct rk_json **out, const char *dir, const char *name)
{
    char *path = rk_path_join(dir, name);
    struct rk_status *st = rk_json_parse_file(out, path, RK_FLOW_CONFIG_BYTES_MAX, RK_JSON_BIG_INT_AS_REAL);

    rk_free(path);
    if (rk_status_code(st) != RK_NOT_FOUND)
        return st;
    rk_status_free(st);
    *out = NULL;
    return NULL;
}

/* Matmul parameters of a layer over the attention width: see rk_workload. */
static struct rk_workload workload_of(const struct rk_json *hf_config)
{
    int64_t hidden = rk_json_as_int(rk_json_find(hf_config, "hidden_size"), 0);
    int64_t ffn = rk_json_as_int(rk_json_find(hf_config, "intermediate_size"), 0);
    int64_t heads = rk_json_as_int(rk_json_find(hf_config, "num_attention_heads"), 0);
    int64_t kv_heads = rk_json_as_int(rk_json_find(hf_config, "num_key_value_heads"), heads);
    int64_t head_dim = rk_json_as_int(rk_json_find(hf_config, "head_dim"), heads > 0 ? hidden / heads : 0);
    const int64_t limit =
        1 << 20; /* sizes beyond it are no model's and would overflow; the daemons name them */

    if (hidden < 1 || ffn < 1 || heads < 1 || kv_heads < 1 || head_dim < 1 || hidden > limit || ffn > limit ||
        heads > limit / head_dim || kv_heads > heads)
        return (struct rk_workload){RK_FLOW_WORKLOAD_DEFAULT};
    return (struct rk_workload){
        (2 * hidden * heads * head_dim + 2 * hidden * kv_heads * head_dim + 3 * hidden * ffn) /
        (heads * head_dim)};
}

/* Some configurations say -1 for none. */
static void add_eos(struct rk_json *ids, const struct rk_json *id)
{
    if (!rk_json_is_null(id) && rk_json_as_int(id, 0) >= 0)
        rk_json_append(ids, rk_json_clone(id));
}

/* generation_config.json knows better than config.json; a list, a number and nothing are all legal. */
static void read_token_ids(struct rk_flow_inputs *inputs, const struct rk_json *generation)
{
    const struct rk_json *eos = rk_json_find(generation, "eos_token_id");
    const struct rk_json *pad = rk_json_find(inputs->hf_config, "pad_token_id");
    bool is_list;

    if (rk_json_is_null(eos))
        eos = rk_json_find(inputs->hf_config, "eos_token_id");
    is_list = !rk_json_is_null(eos) && rk_json_type(eos) == RK_JSON_ARRAY;
    inputs->eos_ids = rk_json_new_array();
    for (int64_t i = 0; i < (is_list ? rk_json_count(eos) : 1); i++)
        add_eos(inputs->eos_ids, is_list ? rk_json_at(eos, i) : eos);
    inputs->pad_id = rk_json_as_int(pad, -1);
    if (inputs->pad_id < 0)
        inputs->pad_id = rk_json_as_int(rk_json_at(inputs->eos_ids, 0), 0);
}

static struct rk_status *load_model(struct rk_flow_inputs *inputs, const struct rk_config *job,
                                    const char *job_dir)
{
    const char *path = rk_config_string(job, RK_JOB_MODEL "path");
    const char *config_path = rk_config_string(job, RK_JOB_MODEL "hf_config_path");
    struct rk_json *generation = NULL;
    struct rk_status *st = NULL;

    if (path) {
        inputs->model_path = rk_hub_resolve(job_dir, path);
        RK_TRY_GOTO(st, read_optional_json(&inputs->hf_config, inputs->model_path, "config.json"), out);
        RK_TRY_GOTO(st, read_optional_json(&generation, inputs->model_path, "generation_config.json"), out);
    } else {
        char *full = rk_resolve_path(job_dir, config_path);

        st = rk_json_parse_file(&inputs->hf_config, full, RK_FLOW_CONFIG_BYTES_MAX, RK_JSON_BIG_INT_AS_REAL);
        rk_free(full);
        if (st)
            st = RK_WRAP(st, RK_JOB_MODEL "hf_config_path");
        if (st)
            goto out;
    }
    inputs->workload = workload_of(inputs->hf_config);
    read_token_ids(inputs, generation);
    if (inputs->hf_config && rk_json_count(inputs->eos_ids) == 0 &&
        !rk_config_bool(job, RK_JOB_ROLLOUT "ignore_eos"))
        RK_WARN("neither config.json nor generation_config.json has an eos_token_id: every response will be "
                "as long as data.max_response_length");
out:
    rk_json_free(generation);
    return st;
}

static struct rk_status *load_tokenizer(struct rk_flow_inputs *inputs, const struct rk_config *job,
                                        const char *job_dir)
{
    const char *path = rk_config_string(job, RK_JOB_MODEL "tokenizer_path");
    const char *name = path ? path : rk_config_string(job, RK_JOB_MODEL "path");
    char *full = path ? rk_hub_resolve(job_dir, path) : rk_strdup(inputs->model_path);
    struct rk_status *st = rk_flow_open_tokenizer(&inputs->tokenizer, &inputs->tokenizer_dir, full, name);

    rk_free(full);
    return st ? RK_WRAP(st, "%s", path ? RK_JOB_MODEL "tokenizer_path" : RK_JOB_MODEL "path") : NULL;
}

/* Arguments of transformers' apply_chat_template that are no variables of the template. verl drops the first
 * three; the others would change what is rendered. */
static struct rk_status *check_chat_kwargs(const struct rk_json *kwargs)
{
    static const char *const refused[] = {"add_generation_prompt",
                                          "chat_template",
                                          "continue_final_message",
                                          "conversation",
                                          "documents",
                                          "messages",
                                          "return_assistant_tokens_mask",
                                          "tools"};

    for (size_t i = 0; i < RK_ARRAY_LEN(refused); i++) {
        if (rk_json_find(kwargs, refused[i]))
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "data.apply_chat_template_kwargs.%s: not a variable of the template", refused[i]);
    }
    return NULL;
}

static struct rk_status *load_chat(struct rk_flow_inputs *inputs, const struct rk_config *job)
{
    const char *custom = rk_config_string(job, RK_JOB_MODEL "custom_chat_template");
    struct rk_status *st;

    RK_TRY(check_chat_kwargs(rk_config_json(job, "data.apply_chat_template_kwargs")));
    st = rk_chat_create_dir(&inputs->chat, inputs->tokenizer_dir, custom);
    return st && custom ? RK_WRAP(st, RK_JOB_MODEL "custom_chat_template") : st;
}

/* The keys in which the two datasets of a job differ. */
struct dataset_keys {
    const char *files, *shuffle, *max_samples;
};

void rk_flow_files_free(char **files)
{
    for (char **file = files; file && *file; file++)
        rk_free(*file);
    rk_free(files);
}

struct rk_status *rk_flow_files(char ***out, const struct rk_config *job, const char *key,
                                const char *job_dir)
{
    const struct rk_json *list = rk_config_json(job, key);
    int64_t count = rk_json_count(list);
    char **files = rk_calloc((size_t)count + 1, sizeof(*files));

    *out = files;
    if (count == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "expected at least one file");
    for (int64_t i = 0; i < count; i++) {
        const char *name = rk_json_as_string(rk_json_at(list, i), NULL);

        if (!name)
            return RK_FAIL(RK_INVALID_ARGUMENT, "item %lld: expected a string, got %s", (long long)i,
                           rk_json_type_name(rk_json_type(rk_json_at(list, i))));
        files[i] = rk_resolve_path(job_dir, name);
    }
    return NULL;
}

static struct rk_status *load_dataset(struct rk_dataset **out, const struct rk_flow_inputs *inputs,
                                      const struct rk_config *job, const char *job_dir,
                                      const struct dataset_keys *keys)
{
    struct rk_dataset_config config = {
        .prompt_key = rk_config_string(job, "data.prompt_key"),
        .max_prompt_length = rk_config_int(job, "data.max_prompt_length"),
        .truncation = rk_config_string(job, "data.truncation"),
        .filter_overlong_prompts = rk_config_bool(job, "data.filter_overlong_prompts"),
        .shuffle = rk_config_bool(job, keys->shuffle),
        .seed = (uint64_t)rk_config_int(job, "data.seed"),
        .max_samples = rk_config_int(job, keys->max_samples),
        .chat = inputs->chat,
        .chat_kwargs = rk_config_json(job, "data.apply_chat_template_kwargs"),
        .template_dir = inputs->tokenizer_dir,
        .now_s = (int64_t)time(NULL),
        .keep_messages = rk_job_wants_reward_model(job),
    };
    char **files = NULL;
    struct rk_status *st;

    RK_TRY_GOTO(st, rk_flow_files(&files, job, keys->files, job_dir), out);
    config.files = (const char *const *)files;
    st = rk_dataset_create(out, &config, inputs->tokenizer);
out:
    rk_flow_files_free(files);
    return st ? RK_WRAP(st, "%s", keys->files) : NULL;
}

static struct rk_status *load_datasets(struct rk_flow_inputs *inputs, const struct rk_config *job,
                                       const char *job_dir)
{
    static const struct dataset_keys train = {"data.train_files", "data.shuffle", "data.train_max_samples"};
    static const struct dataset_keys val = {"data.val_files", "data.validation_shuffle",
                                            "data.val_max_samples"};

    RK_TRY(load_dataset(&inputs->dataset, inputs, job, job_dir, &train));
    if (rk_config_is_null(job, val.files))
        return NULL;
    return load_dataset(&inputs->val_dataset, inputs, job, job_dir, &val);
}

/* A prompt that the reward can never score is found before anything runs. */
static struct rk_status *check_rewards(const struct rk_reward *reward, struct rk_dataset *dataset,
                                       const char *key)
{
    for (int64_t i = 0; dataset && i < rk_dataset_num_rows(dataset); i++) {
        const struct rk_dataset_row *row = rk_dataset_at(dataset, 0, i);
        struct rk_reward_item item = rk_flow_reward_item(row);
        struct rk_status *st = rk_reward_check(reward, &item);

        if (st)
            return RK_WRAP(st, "%s: prompt %lld, from 0 over all files", key, (long long)row->index);
    }
    return NULL;
}

static struct rk_status *load_reward(struct rk_flow_inputs *inputs, const struct rk_config *job,
                                     const char *job_dir)
{
    struct rk_json *config = rk_job_reward(job);
    struct rk_status *st = rk_reward_create(&inputs->reward, config, job_dir);

    rk_json_free(config);
    if (!st &&
        !rk_job_has_reward_function(job)) { /* its keys are right, and the reward model is the reward */
        rk_reward_destroy(inputs->reward);
        inputs->reward = NULL;
        return NULL;
    }
    if (!st)
        st = check_rewards(inputs->reward, inputs->dataset, "data.train_files");
    if (!st)
        st = check_rewards(inputs->reward, inputs->val_dataset, "data.val_files");
    return st;
}

struct rk_status *rk_flow_inputs_load_prompts(struct rk_flow_inputs *inputs, const struct rk_config *job,
                                              const char *job_dir)
{
    inputs->adv = rk_adv_find(rk_config_string(job, "algorithm.adv_estimator"));
    RK_TRY(load_datasets(inputs, job, job_dir));
    RK_TRY(rk_flow_inputs_load_reward_model(inputs, job, job_dir));
    return load_reward(inputs, job, job_dir);
}

/* The layers of the roles that have the policy's model; the others' are looked at with their directories. */
static struct rk_status *check_layers(const struct rk_flow_inputs *inputs, const struct rk_config *job)
{
    RK_TRY(rk_flow_check_layers(job, RK_ROLE_ACTOR, inputs->hf_config));
    RK_TRY(rk_flow_check_layers(job, RK_ROLE_REF, inputs->hf_config));
    if (!rk_config_is_null(job, RK_JOB_CRITIC "model.path"))
        return NULL;
    return rk_flow_check_layers(job, RK_ROLE_CRITIC, inputs->hf_config);
}

struct rk_status *rk_flow_inputs_load(struct rk_flow_inputs *out, const struct rk_config *job,
                                      const char *job_dir)
{
    struct rk_status *st;

    *out = (struct rk_flow_inputs){0};
    RK_TRY_GOTO(st, load_model(out, job, job_dir), fail);
    RK_TRY_GOTO(st, check_layers(out, job), fail);
    RK_TRY_GOTO(st, load_tokenizer(out, job, job_dir), fail);
    RK_TRY_GOTO(st, rk_flow_inputs_load_critic(out, job, job_dir), fail);
    RK_TRY_GOTO(st, rk_flow_inputs_load_teacher(out, job, job_dir), fail);
    RK_TRY_GOTO(st, load_chat(out, job), fail);
    RK_TRY_GOTO(st, rk_flow_of(job)->load(out, job, job_dir), fail);
    return NULL;
fail:
    rk_flow_inputs_fini(out);
    return st;
}

void rk_flow_inputs_fini(struct rk_flow_inputs *inputs)
{
    rk_flow_reward_model_fini(&inputs->reward_model);
    rk_reward_destroy(inputs->reward);
    rk_dataset_destroy(inputs->dataset);
    rk_dataset_destroy(inputs->val_dataset);
    rk_examples_destroy(inputs->examples);
    rk_examples_destroy(inputs->val_examples);
    rk_chat_destroy(inputs->chat);
    rk_tokenizer_destroy(inputs->tokenizer);
    rk_json_free(inputs->eos_ids);
    rk_json_free(inputs->hf_config);
    rk_free(inputs->tokenizer_dir);
    rk_free(inputs->teacher_path);
    rk_free(inputs->critic_path);
    rk_free(inputs->model_path);
    *inputs = (struct rk_flow_inputs){0};
}
