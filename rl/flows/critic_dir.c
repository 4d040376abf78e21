/* Checks of the critic's own directory, if it is on this machine: it must use the policy's tokens, and it
 * must contain a value head if its config.json declares one. A language model gets a new head. */
#include <inttypes.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/format/rk_safetensors.h"
#include "base/rk_str.h"
#include "rl/rk_flows.h"
#include "rl/rk_hub.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

#define INDEX_BYTES_MAX (64u << 20) /* of model.safetensors.index.json: a row for each tensor */

/* Names of the value head, as in the engine (engine/nn/head_value.c). */
static const char *const head_names[] = {"score.weight", "v_head.summary.weight"};

static struct rk_status *look_into_file(bool *has, const char *path)
{
    struct rk_st_file *file;

    RK_TRY(rk_st_open(&file, path));
    for (size_t i = 0; i < RK_ARRAY_LEN(head_names); i++)
        *has |= rk_st_find(file, head_names[i]) != NULL;
    rk_st_close(file);
    return NULL;
}

static struct rk_status *look_into_index(bool *has, const char *path)
{
    struct rk_json *index;

    RK_TRY(rk_json_parse_file(&index, path, INDEX_BYTES_MAX, RK_JSON_BIG_INT_AS_REAL));
    for (size_t i = 0; i < RK_ARRAY_LEN(head_names); i++)
        *has |= rk_json_find(rk_json_find(index, "weight_map"), head_names[i]) != NULL;
    rk_json_free(index);
    return NULL;
}

/* A daemon would give it a new one, as to a language model. */
static struct rk_status *check_weights(const char *path)
{
    char *file = rk_path_join(path, "model.safetensors"), *index = rk_format("%s.index.json", file);
    const char *found = access(index, F_OK) == 0 ? index : access(file, F_OK) == 0 ? file : NULL;
    struct rk_status *st = NULL;
    bool has = false;

    if (found)
        st = found == index ? look_into_index(&has, found) : look_into_file(&has, found);
    if (found && !st && !has)
        st = RK_FAIL(RK_INVALID_ARGUMENT,
                     "%s: no tensor '%s', but config.json declares a value head; with the "
                     "architecture of a language model the critic gets a new head",
                     found, head_names[0]);
    rk_free(index);
    rk_free(file);
    return st;
}

static struct rk_status *check_head(const struct rk_flow_model_dir *dir, const char *path)
{
    if (!rk_flow_is_classifier(dir))
        return NULL;
    if (rk_flow_num_labels(dir) != 1)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s: id2label: a value head has one label, got %" PRId64,
                       dir->config_path, rk_flow_num_labels(dir));
    return check_weights(path);
}

static struct rk_status *check_tokens(struct rk_flow_model_dir *dir, const struct rk_flow_inputs *inputs,
                                      const char *path)
{
    char *file = rk_path_join(path, "tokenizer.json");
    struct rk_status *st = NULL;

    if (access(file, F_OK) == 0)
        st = rk_flow_open_tokenizer(&dir->tokenizer, &dir->tokenizer_dir, file, file);
    rk_free(file);
    return st ? st : rk_flow_check_same_tokens(dir, inputs, "a critic must use the policy's tokens");
}

struct rk_status *rk_flow_load_critic(struct rk_prompt_inputs *out, const struct rk_flow_inputs *inputs,
                                      const struct rk_config *job, const char *job_dir)
{
    static const char key[] = RK_JOB_CRITIC "model.path";
    struct rk_flow_model_dir dir;
    struct rk_status *st;

    if (!rk_job_role_needed(job, RK_ROLE_CRITIC) || rk_config_is_null(job, key))
        return NULL;
    out->critic_path = rk_hub_resolve(job_dir, rk_config_string(job, key));
    st = rk_flow_model_dir_open(&dir, out->critic_path);
    if (!st)
        st = check_head(&dir, out->critic_path);
    if (!st)
        st = check_tokens(&dir, inputs, out->critic_path);
    if (!st)
        st = rk_flow_check_model(job, RK_ROLE_CRITIC, dir.config);
    if (!st)
        out->critic_config = rk_json_retain(dir.config);
    rk_flow_model_dir_fini(&dir);
    return st ? RK_WRAP(st, "%s", key) : NULL;
}
