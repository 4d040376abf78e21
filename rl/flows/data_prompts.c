/* Prompts, which the rollout answers: the inputs of a job with such data besides its model (the prompts, the
 * reward, the estimator, models of roles), its sizes, and its part of the context. */
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_rng.h"
#include "rl/data/class_rows.h"
#include "base/rk_small_file.h"
#include "rl/flows/steps_internal.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

#define TRIED_PROMPTS 3 /* a reward may fail for some prompts */

const struct rk_prompt_inputs *rk_flow_prompt_inputs(const struct rk_flow_inputs *inputs)
{
    RK_ASSERT(inputs->data == &rk_flow_data_prompts);
    return &inputs->of.prompts;
}

const char *rk_flow_own_model(const struct rk_flow_inputs *inputs, uint32_t role)
{
    const struct rk_flow_teacher *teacher;

    if (inputs->data != &rk_flow_data_prompts)
        return NULL;
    switch (role) {
    case RK_ROLE_CRITIC:
        return inputs->of.prompts.critic_path;
    case RK_ROLE_REWARD:
        return inputs->of.prompts.reward_model.path;
    default:
        teacher = rk_flow_teacher_find(&inputs->of.prompts.teachers, role);
        return teacher ? teacher->path : NULL;
    }
}

struct rk_prompt_state *rk_flow_prompt_state(struct rk_flow_context *ctx)
{
    RK_ASSERT(ctx->flow->data == &rk_flow_data_prompts);
    return &ctx->of.prompts;
}

const struct rk_flow_scores *rk_flow_scores_of(const struct rk_flow_context *ctx)
{
    RK_ASSERT(ctx->flow->data == &rk_flow_data_prompts);
    return &ctx->of.prompts.scores;
}

/* --- the inputs --- */

/* The keys in which the two datasets of a job differ. */
struct dataset_keys {
    const char *files, *shuffle, *max_samples;
};

/* Replaces the files by one with the rows of data.custom_cls, which is removed after it was read. */
static struct rk_status *apply_class(char ***files, const struct rk_flow_inputs *inputs,
                                     const struct rk_config *job, const char *job_dir)
{
    const char *path = rk_config_string(job, "data.custom_cls.path");
    bool has_python = !rk_config_is_null(job, "reward.python");
    char *python =
        rk_resolve_program(job_dir, has_python ? rk_config_string(job, "reward.python") : "python3");
    struct rk_class_rows rows = {
        .python = python,
        .name = rk_config_string(job, "data.custom_cls.name"),
        .files = (const char *const *)*files,
        .config = rk_json_find(rk_config_tree(job), "data"),
        .tokenizer_dir = inputs->tokenizer_dir,
    };
    char *full = rk_job_resolve_python(path, job_dir), *made;
    struct rk_status *st;

    rows.path = full;
    st = rk_class_rows_write(&made, &rows);
    rk_free(full);
    rk_free(python);
    if (st)
        return RK_WRAP(st, "data.custom_cls");
    rk_flow_files_free(*files);
    *files = rk_calloc(2, sizeof(**files));
    (*files)[0] = made;
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
        .keep_columns = rk_job_reward_takes_columns(job),
        .teacher_column = inputs->of.prompts.teachers.column,
    };
    bool has_class = !rk_config_is_null(job, "data.custom_cls.path");
    char **files = NULL;
    struct rk_status *st;

    RK_TRY_GOTO(st, rk_flow_files(&files, job, keys->files, job_dir), out);
    if (has_class)
        RK_TRY_GOTO(st, apply_class(&files, inputs, job, job_dir), out);
    config.files = (const char *const *)files;
    st = rk_dataset_create(out, &config, inputs->tokenizer);
    if (has_class && !st) /* else a message names it */
        unlink(files[0]);
out:
    rk_flow_files_free(files);
    return st ? RK_WRAP(st, "%s", keys->files) : NULL;
}

static struct rk_status *load_datasets(struct rk_prompt_inputs *prompts, const struct rk_flow_inputs *inputs,
                                       const struct rk_config *job, const char *job_dir)
{
    static const struct dataset_keys train = {"data.train_files", "data.shuffle", "data.train_max_samples"};
    static const struct dataset_keys val = {"data.val_files", "data.validation_shuffle",
                                            "data.val_max_samples"};

    RK_TRY(load_dataset(&prompts->train, inputs, job, job_dir, &train));
    if (rk_config_is_null(job, val.files))
        return NULL;
    return load_dataset(&prompts->val, inputs, job, job_dir, &val);
}

/* Adds where the row is, and the members that it has: a missing member may have another name. */
static struct rk_status *at_row(struct rk_status *st, const struct rk_dataset_row *row, const char *key)
{
    bool lacks_one = !row->ground_truth_json || !*row->data_source;
    char *place = rk_row_place_text(&row->place);
    char *members = lacks_one ? rk_dataset_members_at(&row->place) : NULL;
    struct rk_status *all = RK_FAIL(rk_status_code(st), "%s: %s: %s%s%s", key, place, rk_status_message(st),
                                    members ? "; the row has " : "", members ? members : "");

    rk_status_free(st);
    rk_free(members);
    rk_free(place);
    return all;
}

/* Finds prompts that the reward cannot score before anything runs. */
static struct rk_status *check_rewards(const struct rk_reward *reward, struct rk_dataset *dataset,
                                       const char *key)
{
    for (int64_t i = 0; dataset && i < rk_dataset_num_rows(dataset); i++) {
        const struct rk_dataset_row *row = rk_dataset_at(dataset, 0, i);
        struct rk_reward_item item = rk_flow_reward_item(row);
        struct rk_status *st = rk_reward_check(reward, &item);

        if (st)
            return at_row(st, row, key);
    }
    return NULL;
}

/* Scores the prompt's ground truth as a response; with its tokens where the reward takes columns. */
static struct rk_status *try_prompt(const struct rk_flow_inputs *inputs, int64_t i,
                                    struct rk_reward_result *result)
{
    const struct rk_prompt_inputs *prompts = &inputs->of.prompts;
    struct rk_reward_item item = rk_flow_reward_item(rk_dataset_at(prompts->train, 0, i));
    struct rk_tokenizer_ids ids = {0};
    struct rk_status *st = NULL;

    item.solution_str = item.ground_truth;
    item.solution_bytes = strlen(item.ground_truth);
    if (item.columns)
        st = rk_tokenizer_encode(inputs->tokenizer, item.solution_str, item.solution_bytes, false, &ids);
    RK_IGNORE(st, "a ground truth need not be a text that the model could write");
    item.completion_ids = ids.items;
    item.num_completion_ids = ids.count;
    st = rk_reward_score(prompts->reward, &item, 1, result, NULL);
    rk_free(ids.items);
    return st;
}

struct rk_status *rk_flow_try_reward(const struct rk_flow_inputs *inputs)
{
    const struct rk_prompt_inputs *prompts = &inputs->of.prompts;
    struct rk_reward_result result = {0};
    struct rk_status *st = NULL;
    int64_t count;

    if (inputs->data != &rk_flow_data_prompts || !prompts->reward)
        return NULL;
    count = RK_MIN(rk_dataset_num_rows(prompts->train), TRIED_PROMPTS);
    for (int64_t i = 0; i < count && (i == 0 || st) && result.outcome != RK_REWARD_TIMEOUT; i++) {
        rk_reward_results_fini(&result, 1);
        rk_status_free(st);
        st = try_prompt(inputs, i, &result);
    }
    if (st && result.message) { /* without the counts of a batch */
        rk_status_free(st);
        st =
            RK_FAIL(RK_FAILED_PRECONDITION, "%s: %s", rk_reward_outcome_name(result.outcome), result.message);
    }
    rk_reward_results_fini(&result, 1);
    return st ? RK_WRAP(
                    st,
                    "no score for the first prompts with their ground truths as responses, before daemons "
                    "are started")
              : NULL;
}

static struct rk_status *load_reward(struct rk_prompt_inputs *prompts, const struct rk_config *job,
                                     const char *job_dir)
{
    struct rk_json *config = rk_job_reward(job);
    struct rk_status *st = rk_reward_create(&prompts->reward, config, job_dir);

    rk_json_free(config);
    if (!st &&
        !rk_job_has_reward_function(job)) { /* its keys are valid, and the reward model gives the reward */
        rk_reward_destroy(prompts->reward);
        prompts->reward = NULL;
        return NULL;
    }
    if (!st)
        st = check_rewards(prompts->reward, prompts->train, "data.train_files");
    if (!st)
        st = check_rewards(prompts->reward, prompts->val, "data.val_files");
    return st;
}

static struct rk_status *load(struct rk_flow_inputs *inputs, const struct rk_config *job, const char *job_dir)
{
    struct rk_prompt_inputs *prompts = &inputs->of.prompts;

    RK_TRY(rk_flow_load_critic(prompts, inputs, job, job_dir));
    RK_TRY(rk_flow_load_teachers(&prompts->teachers, inputs, job, job_dir));
    prompts->adv = rk_adv_find(rk_config_string(job, "algorithm.adv_estimator"));
    RK_TRY(load_datasets(prompts, inputs, job, job_dir));
    RK_TRY(rk_flow_check_teacher_rows(&prompts->teachers, prompts->train, "data.train_files"));
    RK_TRY(rk_flow_load_reward_model(prompts, inputs, job, job_dir));
    return load_reward(prompts, job, job_dir);
}

static void fini(struct rk_flow_inputs *inputs)
{
    struct rk_prompt_inputs *prompts = &inputs->of.prompts;

    rk_flow_reward_model_fini(&prompts->reward_model);
    rk_reward_destroy(prompts->reward);
    rk_dataset_destroy(prompts->train);
    rk_dataset_destroy(prompts->val);
    rk_flow_teachers_fini(&prompts->teachers);
    rk_free(prompts->critic_path);
    rk_json_free(prompts->critic_config);
}

static int64_t num_rows(const struct rk_flow_inputs *inputs)
{
    return rk_dataset_num_rows(inputs->of.prompts.train);
}

static const struct rk_row_counts *row_counts(const struct rk_flow_inputs *inputs, bool is_val)
{
    const struct rk_dataset *set = is_val ? inputs->of.prompts.val : inputs->of.prompts.train;

    return set ? rk_dataset_counts(set) : NULL;
}

/* --- sizes --- */

static int64_t num_sequences(const struct rk_config *job)
{
    return rk_config_int(job, RK_JOB_ROLLOUT "n");
}

static int64_t max_tokens(const struct rk_config *job)
{
    return rk_config_int(job, "data.max_prompt_length") + rk_config_int(job, "data.max_response_length");
}

static int64_t max_loss_tokens(const struct rk_config *job)
{
    return rk_config_int(job, "data.max_response_length");
}

static int64_t step_rows(const struct rk_config *job, uint32_t role)
{
    return rk_job_update_of(job, role).mini_batch_size;
}

static void init(struct rk_flow_context *ctx)
{
    ctx->prompt_length = rk_config_int(ctx->job, "data.max_prompt_length");
    ctx->response_length = rk_config_int(ctx->job, "data.max_response_length");
    ctx->kl_ctrl = rk_job_kl_ctrl(ctx->job);
}

static struct rk_status *update_plan(struct rk_plan *plan, struct rk_flow_context *ctx,
                                     const int64_t *seqlens, const int64_t *loss_tokens)
{
    return rk_flow_update_plan(plan, ctx, RK_ROLE_ACTOR, seqlens, loss_tokens);
}

/* --- the context's part --- */

/* Reorders the scores that exist before the layout. */
static void reorder_scores(struct rk_flow_context *ctx, const int64_t *order)
{
    struct rk_flow_scores *scores = &rk_flow_prompt_state(ctx)->scores, old = *scores;

    if (old.num_rows == 0)
        return;
    scores->items = rk_flow_scratch(ctx, (size_t)old.num_rows, sizeof(*scores->items));
    scores->lengths = rk_flow_scratch(ctx, (size_t)old.num_rows, sizeof(*scores->lengths));
    scores->results = rk_flow_scratch(ctx, (size_t)old.num_rows, sizeof(*scores->results));
    for (int64_t row = 0; row < old.num_rows; row++) {
        scores->items[row] = old.items[order[row]];
        scores->lengths[row] = old.lengths[order[row]];
        scores->results[row] = old.results[order[row]];
    }
}

static void end_step(struct rk_flow_context *ctx)
{
    struct rk_prompt_state *state = rk_flow_prompt_state(ctx);

    rk_flow_scores_fini(&state->scores);
    state->rows = NULL;
}

static struct rk_status *put_advantages(struct rk_flow_context *ctx, uint64_t seed)
{
    const int64_t shape[2] = {ctx->num_rows, ctx->response_length};
    uint64_t stream = rk_rng_stream_of_name("advantages");
    void *data;

    RK_TRY(rk_batch_add_dense(ctx->batch, "advantages", RK_DTYPE_F32, 2, shape, &data));
    for (int64_t row = 0; row < shape[0]; row++) {
        /* All have the same sign, so that their sum, the loss, is not 0. */
        float advantage = (float)(1.0 + 0.25 * rk_rng_normal(seed, stream, (uint64_t)row));

        for (int64_t i = 0; i < shape[1]; i++)
            ((float *)data)[row * shape[1] + i] = advantage;
    }
    return NULL;
}

static struct rk_status *put_returns(struct rk_flow_context *ctx, uint64_t seed)
{
    const int64_t shape[2] = {ctx->num_rows, ctx->response_length};
    uint64_t stream = rk_rng_stream_of_name("returns");
    const void *values;
    void *data;

    RK_TRY(rk_flow_column(ctx, "values", RK_DTYPE_F32, ctx->response_length, &values));
    RK_TRY(rk_batch_add_dense(ctx->batch, "returns", RK_DTYPE_F32, 2, shape, &data));
    for (int64_t i = 0; i < shape[0] * shape[1]; i++)
        ((float *)data)[i] = ((const float *)values)[i] + (float)rk_rng_normal(seed, stream, (uint64_t)i);
    return NULL;
}

static struct rk_status *put_targets(struct rk_flow_context *ctx, uint64_t seed)
{
    RK_TRY(put_advantages(ctx, seed));
    return rk_job_role_needed(ctx->job, RK_ROLE_CRITIC) ? put_returns(ctx, seed) : NULL;
}

const struct rk_flow_data rk_flow_data_prompts = {
    .rows = "prompts",
    .sequences = "rollout.n",
    .longest = "data.max_prompt_length + data.max_response_length",
    .step_rows_key = RK_JOB_ACTOR "ppo_mini_batch_size",
    .rules = rk_job_prompt_rules,
    .num_sequences = num_sequences,
    .max_tokens = max_tokens,
    .max_loss_tokens = max_loss_tokens,
    .step_rows = step_rows,
    .load = load,
    .fini = fini,
    .num_rows = num_rows,
    .row_counts = row_counts,
    .init = init,
    .reorder = reorder_scores,
    .end_step = end_step,
    .update_plan = update_plan,
    .put_targets = put_targets,
};
