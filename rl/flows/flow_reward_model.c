/* Checks of the reward model's directory, if it is on this machine: it must have a score head; and the choice
 * between the policy's tokens and texts that are encoded with its own tokenizer. */
#include <inttypes.h>
#include <time.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_log.h"
#include "base/rk_str.h"
#include "base/rk_small_file.h"
#include "rl/flows/steps_internal.h"
#include "rl/rk_hub.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

/* Properties of the model that are known before a daemon loads it. */
struct found {
    struct rk_flow_model_dir dir;
    struct rk_chat *chat;
};

static void found_fini(struct found *found)
{
    rk_chat_destroy(found->chat);
    rk_flow_model_dir_fini(&found->dir);
}

/* --- the model --- */

static struct rk_status *check_architecture(const struct rk_flow_model_dir *dir)
{
    const char *name = rk_flow_architecture(dir);

    if (!name || rk_flow_is_classifier(dir))
        return NULL;
    return RK_FAIL(RK_INVALID_ARGUMENT,
                   "%s: architectures=[\"%.64s\"]: a reward model needs a score head; expected "
                   "...ForSequenceClassification or ...ForTokenClassification",
                   dir->config_path, name);
}

static struct rk_status *check_config(const struct rk_flow_model_dir *dir, const struct rk_config *job)
{
    int64_t most, longest = RK_MAX(rk_job_longest(job), rk_job_reward_max_length(job));

    if (!dir->config)
        return NULL;
    RK_TRY(check_architecture(dir));
    most = rk_json_as_int(rk_json_find(dir->config, "max_position_embeddings"), -1);
    if (most >= 0 && most < longest)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "%s: max_position_embeddings: expected at least %" PRId64
                       " (data.max_prompt_length + data.max_response_length, and max_length), got %" PRId64,
                       dir->config_path, longest, most);
    if (rk_flow_num_labels(dir) != 1)
        RK_WARN("%s: %" PRId64 " labels: the score is the logit of the last one", dir->config_path,
                rk_flow_num_labels(dir));
    return NULL;
}

/* --- its tokens --- */

static struct rk_status *open_tokenizer(struct found *found, const struct rk_config *job, const char *path,
                                        const char *job_dir)
{
    const char *given = rk_config_string(job, RK_JOB_REWARD_MODEL "tokenizer_path");
    char *full = given ? rk_hub_resolve(job_dir, given) : rk_path_join(path, "tokenizer.json");
    struct rk_status *st = NULL;

    if (given || access(full, F_OK) == 0)
        st = rk_flow_open_tokenizer(&found->dir.tokenizer, &found->dir.tokenizer_dir, full,
                                    given ? given : full);
    if (!st && found->dir.tokenizer)
        st = rk_chat_create_dir(&found->chat, found->dir.tokenizer_dir, NULL);
    rk_free(full);
    return st && given ? RK_WRAP(st, RK_JOB_REWARD_MODEL "tokenizer_path") : st;
}

static bool has_messages(struct rk_dataset *dataset)
{
    for (int64_t i = 0; dataset && i < rk_dataset_num_rows(dataset); i++) {
        if (rk_dataset_at(dataset, 0, i)->messages)
            return true;
    }
    return false;
}

static bool prompts_have_messages(const struct rk_prompt_inputs *prompts)
{
    return has_messages(prompts->train) || has_messages(prompts->val);
}

static struct rk_status *check_own_tokens(const struct found *found, const struct rk_prompt_inputs *prompts)
{
    int64_t size = rk_json_as_int(rk_json_find(found->dir.config, "vocab_size"), -1);

    if (!found->dir.tokenizer)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       RK_JOB_REWARD_MODEL "apply_chat_template=true needs a tokenizer: %s has none on this "
                                           "machine; set " RK_JOB_REWARD_MODEL "tokenizer_path",
                       prompts->reward_model.path);
    if (size >= 0 && size < rk_tokenizer_vocab_size(found->dir.tokenizer))
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "%s: vocab_size: expected at least the %" PRId64 " tokens of %s, got %" PRId64,
                       found->dir.config_path, rk_tokenizer_vocab_size(found->dir.tokenizer),
                       found->dir.tokenizer_dir, size);
    if (!found->chat && prompts_have_messages(prompts))
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "prompts are messages, and %s has no chat template for them (chat_template.jinja, or "
                       "chat_template in tokenizer_config.json)",
                       found->dir.tokenizer_dir);
    return NULL;
}

/* Sets *encodes: whether texts are encoded again. */
static struct rk_status *choose(bool *encodes, const struct found *found,
                                const struct rk_prompt_inputs *prompts, const struct rk_flow_inputs *inputs,
                                const struct rk_config *job)
{
    static const char key[] = RK_JOB_REWARD_MODEL "apply_chat_template";
    bool is_open = rk_config_is_null(job, key);
    struct rk_status *st = rk_flow_check_same_tokens(
        &found->dir, inputs, "set reward.reward_model.tokenizer_path so that texts can be encoded again");
    bool writes_same =
        !found->chat || !prompts_have_messages(prompts) || rk_chat_is_same(found->chat, inputs->chat);

    *encodes = is_open ? found->dir.tokenizer && (st || !writes_same) : rk_config_bool(job, key);
    if (!*encodes)
        return st && !is_open ? RK_WRAP(st, "%s=false: expected a reward model with the policy's tokens", key)
                              : st;
    rk_status_free(st);
    return check_own_tokens(found, prompts);
}

static struct rk_status *load(struct rk_prompt_inputs *out, struct found *found,
                              const struct rk_flow_inputs *inputs, const struct rk_config *job,
                              const char *job_dir)
{
    struct rk_flow_reward_model *model = &out->reward_model;
    bool encodes;

    RK_TRY(rk_flow_model_dir_open(&found->dir, model->path));
    RK_TRY(check_config(&found->dir, job));
    RK_TRY(rk_flow_check_model(job, RK_ROLE_REWARD, found->dir.config));
    RK_TRY(open_tokenizer(found, job, model->path, job_dir));
    RK_TRY(choose(&encodes, found, out, inputs, job));
    if (!found->dir.config && !found->dir.tokenizer)
        RK_WARN("%s is not on this machine; its tokens are assumed to be the policy's, else "
                "set " RK_JOB_REWARD_MODEL "tokenizer_path",
                model->path);
    if (!encodes)
        return NULL;
    model->tokenizer = found->dir.tokenizer;
    model->chat = found->chat;
    model->now_s = (int64_t)time(NULL);
    found->dir.tokenizer = NULL;
    found->chat = NULL;
    RK_INFO("texts for the reward model are encoded again with the tokenizer of %s",
            found->dir.tokenizer_dir);
    return NULL;
}

/* Finds prompts that its chat template cannot render before anything runs. */
static struct rk_status *check_prompts(const struct rk_flow_reward_model *model, struct rk_dataset *dataset,
                                       const char *key)
{
    struct rk_status *st = NULL;

    for (int64_t i = 0; dataset && !st && i < rk_dataset_num_rows(dataset); i++) {
        const struct rk_dataset_row *row = rk_dataset_at(dataset, 0, i);
        struct rk_reward_item item = rk_flow_reward_item(row);
        struct rk_tokenizer_ids ids = {0};

        st = rk_flow_reward_text(&ids, model, row, &item);
        rk_free(ids.items);
        if (st) {
            char *place = rk_row_place_text(&row->place);

            st = RK_WRAP(st, "%s: %s", key, place);
            rk_free(place);
        }
    }
    return st;
}

struct rk_status *rk_flow_load_reward_model(struct rk_prompt_inputs *out, const struct rk_flow_inputs *inputs,
                                            const struct rk_config *job, const char *job_dir)
{
    struct found found = {0};
    struct rk_status *st;

    if (!rk_job_wants_reward_model(job))
        return NULL;
    out->reward_model.path = rk_hub_resolve(job_dir, rk_config_string(job, RK_JOB_REWARD_MODEL "model_path"));
    st = load(out, &found, inputs, job, job_dir);
    found_fini(&found);
    if (!st && out->reward_model.tokenizer) {
        st = check_prompts(&out->reward_model, out->train, "data.train_files");
        if (!st)
            st = check_prompts(&out->reward_model, out->val, "data.val_files");
    }
    return st ? RK_WRAP(st, RK_JOB_REWARD_MODEL "model_path") : NULL;
}

void rk_flow_reward_model_fini(struct rk_flow_reward_model *model)
{
    rk_chat_destroy(model->chat);
    rk_tokenizer_destroy(model->tokenizer);
    rk_free(model->path);
}
