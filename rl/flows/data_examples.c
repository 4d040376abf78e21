/* Examples, which are trained on as they are, conversations or preference pairs: their files, and their
 * sizes. */
#include <time.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "rl/flows/steps_internal.h"
#include "rl/rk_job.h"

const struct rk_example_inputs *rk_flow_example_inputs(const struct rk_flow_inputs *inputs)
{
    RK_ASSERT(inputs->data == &rk_flow_data_examples);
    return &inputs->of.examples;
}

/* --- files --- */

static struct rk_status *load_set(struct rk_examples **out, const struct rk_flow_inputs *inputs,
                                  const struct rk_config *job, struct rk_examples_config *config)
{
    config->kind =
        rk_job_sequences(job) == RK_EXAMPLE_SEQUENCES_MAX ? RK_EXAMPLES_PREFERENCE : RK_EXAMPLES_SFT;
    config->messages_key = rk_config_string(job, "data.messages_key");
    config->prompt_key = rk_config_string(job, "data.prompt_key");
    config->response_key = rk_config_string(job, "data.response_key");
    config->max_length = rk_config_int(job, "data.max_length");
    config->max_positions = rk_json_as_int(rk_json_find(inputs->hf_config, "max_position_embeddings"), 0);
    config->truncation = rk_config_string(job, "data.truncation");
    config->ignore_input_ids_mismatch = rk_config_bool(job, "data.ignore_input_ids_mismatch");
    config->seed = (uint64_t)rk_config_int(job, "data.seed");
    config->eos_id = (int32_t)rk_json_as_int(rk_json_at(inputs->eos_ids, 0), -1);
    config->chat = inputs->chat;
    config->chat_kwargs = rk_config_json(job, "data.apply_chat_template_kwargs");
    config->template_dir = inputs->tokenizer_dir;
    config->now_s = (int64_t)time(NULL);
    return rk_examples_create(out, config, inputs->tokenizer);
}

static struct rk_status *load_files(struct rk_examples **out, const struct rk_flow_inputs *inputs,
                                    const struct rk_config *job, const char *key, const char *job_dir,
                                    struct rk_examples_config *config)
{
    char **files;
    struct rk_status *st = rk_flow_files(&files, job, key, job_dir);

    config->files = (const char *const *)files;
    if (!st)
        st = load_set(out, inputs, job, config);
    rk_flow_files_free(files);
    return st ? RK_WRAP(st, "%s", key) : NULL;
}

static struct rk_status *load(struct rk_flow_inputs *inputs, const struct rk_config *job, const char *job_dir)
{
    struct rk_example_inputs *examples = &inputs->of.examples;
    struct rk_examples_config train = {.shuffle = rk_config_bool(job, "data.shuffle"),
                                       .max_samples = rk_config_int(job, "data.train_max_samples")};
    struct rk_examples_config val = {.max_samples = rk_config_int(job, "data.val_max_samples")};

    RK_TRY(load_files(&examples->train, inputs, job, "data.train_files", job_dir, &train));
    if (rk_config_is_null(job, "data.val_files"))
        return NULL;
    return load_files(&examples->val, inputs, job, "data.val_files", job_dir, &val);
}

static void fini(struct rk_flow_inputs *inputs)
{
    rk_examples_destroy(inputs->of.examples.train);
    rk_examples_destroy(inputs->of.examples.val);
}

static int64_t num_rows(const struct rk_flow_inputs *inputs)
{
    return rk_examples_num_rows(inputs->of.examples.train);
}

static const struct rk_row_counts *row_counts(const struct rk_flow_inputs *inputs, bool is_val)
{
    const struct rk_examples *set = is_val ? inputs->of.examples.val : inputs->of.examples.train;

    return set ? rk_examples_counts(set) : NULL;
}

/* --- sizes --- */

static int64_t num_sequences(const struct rk_config *job)
{
    return rk_flow_of(job)->group_size;
}

static int64_t max_tokens(const struct rk_config *job)
{
    return rk_config_int(job, "data.max_length");
}

/* A batch is one optimizer step. */
static int64_t step_rows(const struct rk_config *job, uint32_t role)
{
    (void)role;
    return rk_config_int(job, "data.train_batch_size");
}

/* All but the first token, which has no prediction. */
static int64_t max_loss_tokens(const struct rk_config *job)
{
    return max_tokens(job) - 1;
}

const struct rk_flow_data rk_flow_data_examples = {
    .rows = "rows",
    .sequences = "sequences of a row",
    .longest = "data.max_length",
    .step_rows_key = "data.train_batch_size",
    .rules = rk_job_example_rules,
    .num_sequences = num_sequences,
    .max_tokens = max_tokens,
    .max_loss_tokens = max_loss_tokens,
    .step_rows = step_rows,
    .load = load,
    .fini = fini,
    .num_rows = num_rows,
    .row_counts = row_counts,
    .update_plan = rk_flow_example_plan,
};
