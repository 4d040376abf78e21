/* Examples of flows that train on the data itself: from files, and into batches. */
#include <time.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "driver-cli/driver/flows/flows_internal.h"
#include "driver-cli/driver/job_internal.h"

/* --- files --- */

static struct rk_status *load(struct rk_examples **out, const struct rk_flow_inputs *inputs,
                              const struct rk_config *job, struct rk_examples_config *config)
{
    config->kind =
        rk_job_sequences(job) == RK_EXAMPLE_SEQUENCES_MAX ? RK_EXAMPLES_PREFERENCE : RK_EXAMPLES_SFT;
    config->messages_key = rk_config_string(job, "data.messages_key");
    config->prompt_key = rk_config_string(job, "data.prompt_key");
    config->response_key = rk_config_string(job, "data.response_key");
    config->max_length = rk_config_int(job, "data.max_length");
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
        st = load(out, inputs, job, config);
    rk_flow_files_free(files);
    return st ? RK_WRAP(st, "%s", key) : NULL;
}

struct rk_status *rk_flow_inputs_load_examples(struct rk_flow_inputs *inputs, const struct rk_config *job,
                                               const char *job_dir)
{
    struct rk_examples_config train = {.shuffle = rk_config_bool(job, "data.shuffle"),
                                       .max_samples = rk_config_int(job, "data.train_max_samples")};
    struct rk_examples_config val = {.max_samples = rk_config_int(job, "data.val_max_samples")};

    RK_TRY(load_files(&inputs->examples, inputs, job, "data.train_files", job_dir, &train));
    if (rk_config_is_null(job, "data.val_files"))
        return NULL;
    return load_files(&inputs->val_examples, inputs, job, "data.val_files", job_dir, &val);
}

int64_t rk_flow_inputs_num_rows(const struct rk_flow_inputs *inputs)
{
    return inputs->examples ? rk_examples_num_rows(inputs->examples) : rk_dataset_num_rows(inputs->dataset);
}

/* --- sizes --- */

struct rk_status *rk_flow_examples_init(struct rk_flow_context *ctx)
{
    int64_t num_data = rk_flow_inputs_num_rows(ctx->inputs);

    ctx->num_prompts = rk_config_int(ctx->job, "data.train_batch_size");
    ctx->num_samples = rk_job_sequences(ctx->job);
    ctx->num_rows = ctx->num_prompts * ctx->num_samples;
    ctx->mini_batch_rows = ctx->num_rows;
    ctx->steps_per_epoch = num_data / ctx->num_prompts; /* the last, smaller batch of an epoch is dropped */
    ctx->num_left_out = num_data % ctx->num_prompts;
    if (ctx->steps_per_epoch == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "data.train_files hold %lld rows, fewer than data.train_batch_size=%lld",
                       (long long)num_data, (long long)ctx->num_prompts);
    return NULL;
}

/* --- batches --- */

typedef enum column_id {
    IDS,
    ATTENTION,
    POSITIONS,
    LOSS_MASK,
    RESPONSES,
    RESPONSE_MASK,
    NUM_COLUMNS
} column_id_t;

static const char *const column_names[NUM_COLUMNS] = {"input_ids", "attention_mask", "position_ids",
                                                      "loss_mask", "responses",      "response_mask"};

/* R = S - 1 columns: all tokens but the first. */
static int64_t width_of(column_id_t id, int64_t width)
{
    return id >= RESPONSES ? width - 1 : width;
}

static void fill_row(int64_t *const *columns, int64_t row, int64_t width,
                     const struct rk_example_sequence *sequence, int64_t pad_id)
{
    int64_t *of[NUM_COLUMNS];

    RK_ASSERT(sequence->loss_mask[0] == 0);
    for (int id = 0; id < NUM_COLUMNS; id++)
        of[id] = columns[id] + row * width_of((column_id_t)id, width);
    for (int64_t i = 0; i < width; i++) {
        bool is_real = i < sequence->len;

        of[IDS][i] = is_real ? sequence->ids[i] : pad_id;
        of[ATTENTION][i] = is_real;
        of[POSITIONS][i] = RK_MIN(i, sequence->len - 1);
        of[LOSS_MASK][i] = is_real && sequence->loss_mask[i];
        if (i > 0) {
            of[RESPONSES][i - 1] = of[IDS][i];
            of[RESPONSE_MASK][i - 1] = of[LOSS_MASK][i];
        }
    }
}

struct rk_status *rk_flow_collate(struct rk_batch **out, const struct rk_example *const *examples,
                                  int64_t num_examples, int64_t pad_id)
{
    int64_t num_rows = 0, width = 2, row = 0;
    int64_t *columns[NUM_COLUMNS];

    for (int64_t i = 0; i < num_examples; i++) {
        num_rows += examples[i]->num_sequences;
        for (int64_t k = 0; k < examples[i]->num_sequences; k++)
            width = RK_MAX(width, examples[i]->sequences[k].len);
    }
    RK_TRY(rk_batch_create(out, num_rows));
    for (int id = 0; id < NUM_COLUMNS; id++) {
        int64_t shape[2] = {num_rows, width_of((column_id_t)id, width)};
        void *data;

        RK_TRY(rk_batch_add_dense(*out, column_names[id], RK_DTYPE_I64, 2, shape, &data));
        columns[id] = data;
    }
    for (int64_t i = 0; i < num_examples; i++) {
        for (int64_t k = 0; k < examples[i]->num_sequences; k++)
            fill_row(columns, row++, width, &examples[i]->sequences[k], pad_id);
    }
    return NULL;
}
