/* Checks of a model's directory by the driver, if it is on this machine. */
#include <inttypes.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_file_kind.h"
#include "base/format/rk_hf_config.h"
#include "base/rk_str.h"
#include "rl/rk_estimate.h"
#include "rl/rk_flows.h"

struct rk_status *rk_flow_check_model_dir(const char *path)
{
    char *kind = rk_model_dir_kind(path);
    struct rk_status *st = kind ? RK_FAIL(RK_UNIMPLEMENTED, "'%s' %s", path, kind) : NULL;

    rk_free(kind);
    return st;
}

struct rk_status *rk_flow_model_dir_open(struct rk_flow_model_dir *out, const char *path)
{
    *out = (struct rk_flow_model_dir){.config_path = rk_path_join(path, "config.json")};
    RK_TRY(rk_flow_check_model_dir(path));
    if (access(out->config_path, F_OK) != 0)
        return NULL;
    return rk_json_parse_file(&out->config, out->config_path, RK_FLOW_CONFIG_BYTES_MAX,
                              RK_JSON_BIG_INT_AS_REAL);
}

void rk_flow_model_dir_fini(struct rk_flow_model_dir *dir)
{
    rk_tokenizer_destroy(dir->tokenizer);
    rk_json_free(dir->config);
    rk_free(dir->tokenizer_dir);
    rk_free(dir->config_path);
}

const char *rk_flow_architecture(const struct rk_flow_model_dir *dir)
{
    return rk_json_as_string(rk_json_at(rk_json_find(dir->config, "architectures"), 0), NULL);
}

/* The engine (engine/nn/head_value.c) accepts the same names. */
bool rk_flow_is_classifier(const struct rk_flow_model_dir *dir)
{
    const char *name = rk_flow_architecture(dir);

    return name && (rk_str_has_suffix(name, "ForSequenceClassification") ||
                    rk_str_has_suffix(name, "ForTokenClassification"));
}

int64_t rk_flow_num_labels(const struct rk_flow_model_dir *dir)
{
    const struct rk_json *names = rk_json_find(dir->config, "id2label");

    if (!rk_json_is_null(names))
        return rk_json_count(names);
    return rk_json_as_int(rk_json_find(dir->config, "num_labels"), 2); /* as transformers */
}

struct rk_status *rk_flow_check_same_tokens(const struct rk_flow_model_dir *dir,
                                            const struct rk_flow_inputs *inputs, const char *advice)
{
    int64_t size = rk_json_as_int(rk_json_find(dir->config, "vocab_size"), -1);
    int64_t expected = rk_json_as_int(rk_json_find(inputs->hf_config, "vocab_size"), -1);

    if (dir->tokenizer)
        RK_TRY(rk_flow_compare_tokens(dir->tokenizer, dir->tokenizer_dir, inputs->tokenizer, "policy"));
    /* A policy may sample any row of its vocabulary. Without a tokenizer only the sizes can be compared. */
    if (size >= 0 && expected >= 0 && (dir->tokenizer ? size < expected : size != expected))
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "%s: vocab_size: expected %" PRId64 ", that of the policy, got %" PRId64 "%s%s",
                       dir->config_path, expected, size,
                       dir->tokenizer ? "" : ", and the directory has no tokenizer.json: ",
                       dir->tokenizer ? "" : advice);
    return NULL;
}

/* A model of the job's family and length; a reward model has a length of its own. */
static struct rk_status *check_kind(const struct rk_json *config, const struct rk_config *job, uint32_t role)
{
    int64_t most = rk_json_as_int(rk_json_find(config, "max_position_embeddings"), -1);
    int64_t longest = rk_job_longest(job);
    struct rk_status *st = config ? rk_hf_config_check(config) : NULL;

    /* Examples are as long as they are, at most data.max_length. */
    if (!st && role != RK_ROLE_REWARD && rk_flow_of(job)->data == &rk_flow_data_prompts && most > 0 &&
        most < longest)
        st = RK_FAIL(RK_INVALID_ARGUMENT,
                     "max_position_embeddings: expected at least %" PRId64 ", which is %s, got %" PRId64,
                     longest, rk_flow_of(job)->data->longest, most);
    return st ? RK_WRAP(st, "config.json") : NULL;
}

struct rk_status *rk_flow_check_model(const struct rk_config *job, uint32_t role,
                                      const struct rk_json *config)
{
    int64_t num_layers = rk_json_as_int(rk_json_find(config, "num_hidden_layers"), 0);
    int64_t num_experts = rk_estimate_has_experts(config) ? rk_estimate_num_experts(config) : 0;

    if (!rk_job_role_needed(job, role))
        return NULL;
    RK_TRY(check_kind(config, job, role));
    if (num_layers < 1) /* of a model elsewhere the daemons check them */
        return NULL;
    RK_TRY(rk_job_check_layers(job, role, num_layers));
    if (role == RK_ROLE_ROLLOUT)
        RK_TRY(rk_job_check_rollout_experts(job, num_experts));
    return rk_job_check_expert_keys(job, role, num_experts > 0,
                                    rk_json_as_string(rk_json_find(config, "model_type"), "not given"));
}
