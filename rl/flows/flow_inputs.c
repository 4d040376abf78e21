/* Inputs of every job: model configuration, tokenizer, chat template. They are read, with the inputs of the
 * kind of data, before a daemon is started, so that a misspelled path is found early. */
#include "rl/rk_flows.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/config/rk_knobs.h"
#include "base/rk_log.h"
#include "rl/rk_estimate.h"
#include "base/rk_small_file.h"
#include "rl/rk_hub.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

static struct rk_status *read_optional_json(struct rk_json **out, const char *dir, const char *name)
{
    return rk_load_json_if_there(out, dir, name, RK_FLOW_CONFIG_BYTES_MAX, RK_JSON_BIG_INT_AS_REAL);
}

static struct rk_workload workload_of(const struct rk_json *hf_config)
{
    double linear = rk_estimate_linear_cost(hf_config);

    /* Sizes outside of the range are invalid; the daemons report them. */
    return (struct rk_workload){linear >= 1 && linear <= RK_FLOW_WORKLOAD_MAX ? (int64_t)linear
                                                                              : RK_FLOW_WORKLOAD_DEFAULT};
}

static void add_eos(struct rk_json *ids, int64_t id)
{
    for (int64_t i = 0; i < rk_json_count(ids); i++) {
        if (rk_json_as_int(rk_json_at(ids, i), -1) == id)
            return;
    }
    rk_json_append(ids, rk_json_new_int(id));
}

/* A list, a number and no value are all legal; some configurations use -1 for none. */
static struct rk_status *add_eos_of(struct rk_json *ids, const struct rk_json *config, const char *file)
{
    const struct rk_json *eos = rk_json_find(config, "eos_token_id");
    bool is_list = rk_json_type(eos) == RK_JSON_ARRAY;

    for (int64_t i = 0; i < (is_list ? rk_json_count(eos) : 1); i++) {
        const struct rk_json *id = is_list ? rk_json_at(eos, i) : eos;

        if (rk_json_is_null(id))
            continue;
        if (rk_json_type(id) != RK_JSON_INT)
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "%s: eos_token_id: expected an integer or a list of integers, got %s", file,
                           rk_json_type_name(rk_json_type(id)));
        if (rk_json_as_int(id, -1) >= 0)
            add_eos(ids, rk_json_as_int(id, -1));
    }
    return NULL;
}

/* Adds the tokenizer's eos_token, if the model can write it. */
static struct rk_status *add_eos_token(struct rk_json *ids, const struct rk_flow_inputs *inputs)
{
    int64_t vocab_size = rk_json_as_int(rk_json_find(inputs->hf_config, "vocab_size"), INT64_MAX);
    struct rk_json *tokens = NULL;
    const char *text;
    int64_t id;

    RK_TRY(rk_special_tokens_read_dir(&tokens, inputs->tokenizer_dir));
    text = rk_json_as_string(rk_json_find(tokens, "eos_token"), NULL);
    id = text ? rk_tokenizer_find_token(inputs->tokenizer, text) : -1;
    if (text && id < 0)
        RK_WARN("%s: eos_token '%s' is not a token of tokenizer.json and ends no response",
                inputs->tokenizer_dir, text);
    else if (id >= vocab_size)
        RK_WARN("%s: eos_token '%s' has the id %lld, but the model's vocab_size is %lld: it ends no response",
                inputs->tokenizer_dir, text, (long long)id, (long long)vocab_size);
    else if (text)
        add_eos(ids, id);
    rk_json_free(tokens);
    return NULL;
}

/* All of these end a response, as with vLLM and SGLang. The tokenizer's is the first: verl and TRL append it
 * to a response that is text. */
static struct rk_status *load_token_ids(struct rk_flow_inputs *inputs, const struct rk_config *job)
{
    inputs->eos_ids = rk_json_new_array();
    RK_TRY(add_eos_token(inputs->eos_ids, inputs));
    RK_TRY(add_eos_of(inputs->eos_ids, inputs->generation_config, "generation_config.json"));
    RK_TRY(add_eos_of(inputs->eos_ids, inputs->hf_config, "config.json"));
    inputs->pad_id = rk_json_as_int(rk_json_find(inputs->hf_config, "pad_token_id"), -1);
    if (inputs->pad_id < 0)
        inputs->pad_id = rk_json_as_int(rk_json_at(inputs->eos_ids, 0), 0);
    if (inputs->hf_config && rk_json_count(inputs->eos_ids) == 0 &&
        !rk_config_bool(job, RK_JOB_ROLLOUT "ignore_eos"))
        RK_WARN(
            "neither config.json nor generation_config.json has an eos_token_id, and the tokenizer names no "
            "eos_token: every response will be data.max_response_length tokens long");
    return NULL;
}

static struct rk_status *load_model(struct rk_flow_inputs *inputs, const struct rk_config *job,
                                    const char *job_dir)
{
    const char *path = rk_config_string(job, RK_JOB_MODEL "path");
    const char *config_path = rk_config_string(job, RK_JOB_MODEL "hf_config_path");
    struct rk_status *st = NULL;

    if (path) {
        inputs->model_path = rk_hub_resolve(job_dir, path);
        st = rk_flow_check_model_dir(inputs->model_path);
        if (st)
            return RK_WRAP(st, RK_JOB_MODEL "path");
        RK_TRY(read_optional_json(&inputs->hf_config, inputs->model_path, "config.json"));
        RK_TRY(read_optional_json(&inputs->generation_config, inputs->model_path, "generation_config.json"));
    } else {
        char *full = rk_resolve_path(job_dir, config_path);

        st = rk_json_parse_file(&inputs->hf_config, full, RK_FLOW_CONFIG_BYTES_MAX, RK_JSON_BIG_INT_AS_REAL);
        rk_free(full);
        if (st)
            return RK_WRAP(st, RK_JOB_MODEL "hf_config_path");
    }
    if (inputs->hf_config && !rk_config_is_null(job, RK_JOB_MODELS RK_KNOB_MAX_POSITIONS))
        rk_json_set(inputs->hf_config, "max_position_embeddings",
                    rk_json_new_int(rk_config_int(job, RK_JOB_MODELS RK_KNOB_MAX_POSITIONS)));
    inputs->workload = workload_of(inputs->hf_config);
    return NULL;
}

static struct rk_status *load_tokenizer(struct rk_flow_inputs *inputs, const struct rk_config *job,
                                        const char *job_dir)
{
    const char *path = rk_config_string(job, RK_JOB_MODEL "tokenizer_path");
    const char *name = path ? path : rk_config_string(job, RK_JOB_MODEL "path");
    char *full = path ? rk_hub_resolve(job_dir, path) : rk_strdup(inputs->model_path);
    struct rk_status *st = rk_flow_open_tokenizer(&inputs->tokenizer, &inputs->tokenizer_dir, full, name);

    rk_free(full);
    if (!st)
        rk_tokenizer_limit_ids(inputs->tokenizer,
                               rk_json_as_int(rk_json_find(inputs->hf_config, "vocab_size"), INT64_MAX));
    return st ? RK_WRAP(st, "%s", path ? RK_JOB_MODEL "tokenizer_path" : RK_JOB_MODEL "path") : NULL;
}

/* As transformers, which passes them on to the template. */
static struct rk_status *check_documents(const struct rk_json *documents)
{
    static const char key[] = "data.apply_chat_template_kwargs.documents";

    if (!rk_json_is_null(documents) && rk_json_type(documents) != RK_JSON_ARRAY)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "%s: expected a list of objects with \"title\" and \"text\", got %s", key,
                       rk_json_type_name(rk_json_type(documents)));
    for (int64_t i = 0; i < rk_json_count(documents); i++) {
        if (rk_json_type(rk_json_at(documents, i)) != RK_JSON_OBJECT)
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "%s[%lld]: expected an object with \"title\" and \"text\", got %s", key,
                           (long long)i, rk_json_type_name(rk_json_type(rk_json_at(documents, i))));
    }
    return NULL;
}

/* Arguments of transformers' apply_chat_template that are not variables of the template. verl drops the first
 * three; the others would change the rendered text. */
static struct rk_status *check_chat_kwargs(const struct rk_json *kwargs)
{
    static const char *const refused[] = {
        "add_generation_prompt",        "chat_template", "continue_final_message", "conversation", "messages",
        "return_assistant_tokens_mask", "tools"};

    for (size_t i = 0; i < RK_ARRAY_LEN(refused); i++) {
        if (rk_json_find(kwargs, refused[i]))
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "data.apply_chat_template_kwargs.%s: not a variable of the template", refused[i]);
    }
    return check_documents(rk_json_find(kwargs, "documents"));
}

static struct rk_status *load_chat(struct rk_flow_inputs *inputs, const struct rk_config *job,
                                   const char *job_dir)
{
    const char *custom = rk_config_string(job, RK_JOB_MODEL "custom_chat_template");
    char *path = NULL;
    struct rk_status *st = NULL;

    RK_TRY(check_chat_kwargs(rk_config_json(job, "data.apply_chat_template_kwargs")));
    if (custom)
        st = rk_flow_read_template(&inputs->custom_template, &path, custom, job_dir);
    if (!st)
        st = rk_chat_create_dir(&inputs->chat, inputs->tokenizer_dir, inputs->custom_template);
    if (st && path)
        st = RK_WRAP(st, "%s", path);
    rk_free(path);
    return st && custom ? RK_WRAP(st, RK_JOB_MODEL "custom_chat_template") : st;
}

static struct rk_status *load_texts(struct rk_flow_inputs *inputs, const struct rk_config *job,
                                    const char *job_dir)
{
    RK_TRY(load_tokenizer(inputs, job, job_dir));
    RK_TRY(load_token_ids(inputs, job));
    return load_chat(inputs, job, job_dir);
}

/* Whether the directory of the tokenizer, or else of the model, is on this machine. */
static bool is_tokenizer_here(const struct rk_flow_inputs *inputs, const struct rk_config *job,
                              const char *job_dir)
{
    const char *path = rk_config_string(job, RK_JOB_MODEL "tokenizer_path");
    char *full = path ? rk_hub_resolve(job_dir, path) : rk_strdup(inputs->model_path);
    bool is_here = full && access(full, F_OK) == 0;

    rk_free(full);
    return is_here;
}

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

/* Checks the policy's model for the roles that have it; models of other roles are checked with their
 * directories. */
static struct rk_status *check_model(const struct rk_flow_inputs *inputs, const struct rk_config *job)
{
    static const uint32_t roles[] = {RK_ROLE_ACTOR, RK_ROLE_ROLLOUT, RK_ROLE_REF, RK_ROLE_CRITIC};
    bool has_path = !rk_config_is_null(job, RK_JOB_MODEL "path");
    struct rk_status *st = NULL;

    for (size_t i = 0; i < RK_ARRAY_LEN(roles) && !st; i++) {
        if (roles[i] != RK_ROLE_CRITIC || rk_config_is_null(job, RK_JOB_CRITIC "model.path"))
            st = rk_flow_check_model(job, roles[i], inputs->hf_config);
    }
    return st ? RK_WRAP(st, RK_JOB_MODEL "%s", has_path ? "path" : "hf_config_path") : NULL;
}

/* The model of a role that has one of its own. */
static struct rk_status *check_own_model(const struct rk_config *job, const char *job_dir,
                                         const struct rk_job_role *role)
{
    struct rk_flow_model_dir dir;
    struct rk_status *st;
    char *path;

    if (!rk_job_role_needed(job, role->bit) || rk_config_is_null(job, role->model))
        return NULL;
    path = rk_hub_resolve(job_dir, rk_config_string(job, role->model));
    st = rk_flow_model_dir_open(&dir, path);
    if (!st)
        st = rk_flow_check_model(job, role->bit, dir.config);
    rk_flow_model_dir_fini(&dir);
    rk_free(path);
    return st ? RK_WRAP(st, "%s", role->model) : NULL;
}

struct rk_status *rk_flow_check_models(const struct rk_config *job, const char *job_dir)
{
    struct rk_flow_inputs inputs = {0};
    int64_t num_roles;
    const struct rk_job_role *roles = rk_job_roles(&num_roles);
    struct rk_status *st = load_model(&inputs, job, job_dir);

    if (!st)
        st = check_model(&inputs, job);
    if (!st && is_tokenizer_here(&inputs, job, job_dir))
        st = load_texts(&inputs, job, job_dir);
    rk_flow_inputs_fini(&inputs);
    RK_TRY(st);
    for (int64_t i = 0; i < num_roles; i++) {
        if (roles[i].model)
            RK_TRY(check_own_model(job, job_dir, &roles[i]));
    }
    return NULL;
}

struct rk_status *rk_flow_inputs_load(struct rk_flow_inputs *out, const struct rk_config *job,
                                      const char *job_dir)
{
    struct rk_status *st;

    *out = (struct rk_flow_inputs){.data = rk_flow_of(job)->data};
    RK_TRY_GOTO(st, load_model(out, job, job_dir), fail);
    RK_TRY_GOTO(st, check_model(out, job), fail);
    RK_TRY_GOTO(st, load_texts(out, job, job_dir), fail);
    RK_TRY_GOTO(st, out->data->load(out, job, job_dir), fail);
    return NULL;
fail:
    rk_flow_inputs_fini(out);
    return st;
}

int64_t rk_flow_inputs_num_rows(const struct rk_flow_inputs *inputs)
{
    return inputs->data->num_rows(inputs);
}

void rk_flow_inputs_fini(struct rk_flow_inputs *inputs)
{
    if (inputs->data)
        inputs->data->fini(inputs);
    rk_chat_destroy(inputs->chat);
    rk_tokenizer_destroy(inputs->tokenizer);
    rk_json_free(inputs->eos_ids);
    rk_json_free(inputs->generation_config);
    rk_json_free(inputs->hf_config);
    rk_free(inputs->custom_template);
    rk_free(inputs->tokenizer_dir);
    rk_free(inputs->model_path);
    *inputs = (struct rk_flow_inputs){0};
}
