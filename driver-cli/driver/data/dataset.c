/* Prompt datasets. Everything is read, rendered and tokenized when the dataset is made, so that an invalid
 * row or an overlong prompt is found before anything runs. */
#include "driver-cli/rk_dataset.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"
#include "driver-cli/driver/data/order_internal.h"
#include "driver-cli/driver/data/prompt_internal.h"
#include "driver-cli/driver/data/rows_internal.h"

struct row {
    struct rk_dataset_row view;
    struct rk_prompt prompt;
    char *data_source, *truth_text; /* the text: of a ground truth that is another value */
    struct rk_json *truth, *messages, *columns, *extra_info;
};

struct rk_dataset {
    RK_ARRAY(struct row) rows;
    RK_ARRAY(char *) paths; /* of the rows' places */
    struct rk_epoch_order order;
    int64_t num_filtered, num_texts;
};

struct loader {
    struct rk_dataset *dataset;
    const struct rk_dataset_config *config;
    const struct rk_tokenizer *tokenizer;
    int64_t index; /* of the next row */
};

static void row_fini(struct row *row)
{
    rk_prompt_fini(&row->prompt);
    rk_free(row->data_source);
    rk_free(row->truth_text);
    rk_json_free(row->truth);
    rk_json_free(row->messages);
    rk_json_free(row->columns);
    rk_json_free(row->extra_info);
}

void rk_dataset_destroy(struct rk_dataset *dataset)
{
    if (!dataset)
        return;
    for (int64_t i = 0; i < dataset->rows.count; i++)
        row_fini(&dataset->rows.items[i]);
    rk_array_fini(&dataset->rows);
    for (int64_t i = 0; i < dataset->paths.count; i++)
        rk_free(dataset->paths.items[i]);
    rk_array_fini(&dataset->paths);
    rk_epoch_order_fini(&dataset->order);
    rk_free(dataset);
}

/* Keeps max_prompt_length ids of `ids` as `truncation` says. */
static struct rk_status *truncate_prompt(int32_t *ids, int64_t *count, const struct rk_dataset_config *config)
{
    int64_t limit = config->max_prompt_length;
    int64_t head = 0;

    if (*count <= limit)
        return NULL;
    if (strcmp(config->truncation, "left") == 0)
        head = 0;
    else if (strcmp(config->truncation, "right") == 0)
        head = limit;
    else if (strcmp(config->truncation, "middle") == 0)
        head = limit / 2;
    else
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "%s: prompt has %lld tokens, data.max_prompt_length is %lld (set data.truncation or "
                       "data.filter_overlong_prompts)",
                       config->prompt_key, (long long)*count, (long long)limit);
    memmove(ids + head, ids + *count - (limit - head), (size_t)(limit - head) * sizeof(*ids));
    *count = limit;
    return NULL;
}

static struct rk_json *copy_without(const struct rk_json *object, const char *name)
{
    struct rk_json *copy = rk_json_new_object();

    for (void *it = rk_json_iter(object); it; it = rk_json_iter_next(object, it)) {
        if (strcmp(rk_json_iter_key(it), name) != 0)
            rk_json_set(copy, rk_json_iter_key(it), rk_json_retain(rk_json_iter_value(it)));
    }
    return copy;
}

static struct rk_status *read_prompt(struct row *row, const struct rk_json *json, const struct loader *loader,
                                     bool *is_overlong)
{
    const struct rk_dataset_config *config = loader->config;
    struct rk_tokenizer_ids *ids = &row->prompt.ids;

    RK_TRY(rk_prompt_read(&row->prompt, json, config, loader->tokenizer));
    *is_overlong = ids->count > config->max_prompt_length;
    if (!(*is_overlong && config->filter_overlong_prompts))
        RK_TRY(truncate_prompt(ids->items, &ids->count, config));
    row->view.prompt = row->prompt.text;
    row->view.prompt_bytes = row->prompt.bytes;
    row->view.prompt_ids = ids->items;
    row->view.prompt_len = ids->count;
    if ((config->keep_messages || config->keep_columns) && row->prompt.is_chat)
        row->messages = rk_json_retain(rk_json_find(json, config->prompt_key));
    row->view.messages = row->messages;
    if (config->keep_columns)
        row->columns = copy_without(json, config->prompt_key);
    row->view.columns = row->columns;
    return NULL;
}

/* The text of a ground truth is borrowed from it; other values need a text of their own. */
static void take_truth(struct row *row, const struct rk_json *truth)
{
    if (rk_json_is_null(truth)) {
        row->view.ground_truth = "";
        return;
    }
    row->truth = rk_json_retain(truth);
    if (rk_json_type(truth) != RK_JSON_STRING)
        row->truth_text = rk_json_dump(truth, 0, false);
    row->view.ground_truth = rk_json_as_string(truth, row->truth_text);
    row->view.ground_truth_json = row->truth;
}

static struct rk_status *read_fields(struct row *row, const struct rk_json *json)
{
    const struct rk_json *model = rk_json_find(json, "reward_model");
    const char *source = "";

    RK_TRY(rk_json_opt_string(json, "", "data_source", &source));
    if (!rk_json_is_null(model) && rk_json_type(model) != RK_JSON_OBJECT)
        return RK_FAIL(RK_INVALID_ARGUMENT, "reward_model: expected an object with ground_truth, got %s",
                       rk_json_type_name(rk_json_type(model)));
    row->data_source = rk_strdup(source);
    take_truth(row, rk_json_find(model, "ground_truth"));
    if (rk_json_find(json, "extra_info"))
        row->extra_info = rk_json_retain(rk_json_find(json, "extra_info"));
    row->view.data_source = row->data_source;
    row->view.extra_info = row->extra_info;
    return NULL;
}

static bool is_full(const struct loader *loader)
{
    return loader->config->max_samples >= 0 && loader->dataset->rows.count >= loader->config->max_samples;
}

static struct rk_status *add_row(void *user, struct rk_json *json, const struct rk_row_place *place,
                                 bool *is_enough)
{
    struct loader *loader = user;
    struct row row = {.view = {.index = loader->index++, .place = *place}};
    bool is_overlong = false;
    struct rk_status *st = read_prompt(&row, json, loader, &is_overlong);

    if (!st)
        st = read_fields(&row, json);
    rk_json_free(json);
    if (st || (is_overlong && loader->config->filter_overlong_prompts)) {
        loader->dataset->num_filtered += is_overlong;
        row_fini(&row);
        return st;
    }
    loader->dataset->num_texts += !row.prompt.is_chat;
    rk_array_append(&loader->dataset->rows, row);
    *is_enough = is_full(loader);
    return NULL;
}

static struct rk_status *read_files(struct loader *loader)
{
    struct rk_dataset *dataset = loader->dataset;
    const struct rk_dataset_config *config = loader->config;

    for (const char *const *path = config->files; *path && !is_full(loader); path++) {
        rk_array_append(&dataset->paths, rk_strdup(*path));
        RK_TRY(rk_rows_read(dataset->paths.items[dataset->paths.count - 1], add_row, loader));
    }
    if (dataset->rows.count == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "data: no prompts in '%s' (%lld were longer than data.max_prompt_length)",
                       config->files[0] ? config->files[0] : "", (long long)dataset->num_filtered);
    if (dataset->num_filtered > 0)
        RK_INFO("skipped %lld prompts longer than data.max_prompt_length=%lld",
                (long long)dataset->num_filtered, (long long)config->max_prompt_length);
    if (dataset->num_texts > 0 && config->chat)
        RK_WARN(
            "%lld of %lld prompts of '%s' are text, and the model has a chat template: they are encoded as "
            "they "
            "are; give lists of messages, [{\"role\": \"user\", \"content\": ...}], to apply the template",
            (long long)dataset->num_texts, (long long)dataset->rows.count, config->files[0]);
    return NULL;
}

struct rk_status *rk_dataset_create(struct rk_dataset **out, const struct rk_dataset_config *config,
                                    const struct rk_tokenizer *tokenizer)
{
    struct rk_dataset *dataset = rk_calloc(1, sizeof(*dataset));
    struct loader loader = {.dataset = dataset, .config = config, .tokenizer = tokenizer};
    struct rk_status *st;

    RK_ASSERT(config->max_prompt_length > 0);
    *out = NULL;
    st = read_files(&loader);
    if (st) {
        rk_dataset_destroy(dataset);
        return st;
    }
    rk_epoch_order_init(&dataset->order, dataset->rows.count, config->shuffle, config->seed);
    *out = dataset;
    return NULL;
}

int64_t rk_dataset_num_rows(const struct rk_dataset *dataset)
{
    return dataset->rows.count;
}

const struct rk_dataset_row *rk_dataset_at(struct rk_dataset *dataset, int64_t epoch, int64_t i)
{
    return &dataset->rows.items[rk_epoch_order_at(&dataset->order, epoch, i)].view;
}
