/* Prompt datasets from JSON Lines. Everything is read and tokenized when the dataset is made, so that a bad
 * line or an overlong prompt is found before anything runs. */
#include "driver-cli/rk_dataset.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"
#include "base/rk_rng.h"
#include "base/rk_str.h"
#include "driver-cli/files_internal.h"

#define LINE_BYTES_MAX (16 << 20)
#define SHUFFLE_STREAM "data.shuffle" /* names the random stream of the permutations */

struct row {
    struct rk_dataset_row view;
    struct rk_json *json; /* the line; strings of the view point into it */
    int32_t *prompt_ids;
    char *ground_truth; /* owned when it is JSON text */
};

struct rk_dataset {
    RK_ARRAY(struct row) rows;
    bool shuffle;
    uint64_t seed;
    int64_t epoch; /* of `order`; -1: none yet */
    int64_t *order;
    int64_t num_filtered;
};

static void row_fini(struct row *row)
{
    rk_json_free(row->json);
    rk_free(row->prompt_ids);
    rk_free(row->ground_truth);
}

void rk_dataset_destroy(struct rk_dataset *dataset)
{
    if (!dataset)
        return;
    for (int64_t i = 0; i < dataset->rows.count; i++)
        row_fini(&dataset->rows.items[i]);
    rk_array_fini(&dataset->rows);
    rk_free(dataset->order);
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

static struct rk_status *read_prompt(struct row *row, const struct rk_dataset_config *config,
                                     const struct rk_tokenizer *tokenizer, bool *is_overlong)
{
    struct rk_json *prompt = rk_json_find(row->json, config->prompt_key);
    const char *text = rk_json_as_string(prompt, NULL);
    struct rk_tokenizer_ids ids = {0};

    *is_overlong = false;
    if (!text)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s: expected text, got %s", config->prompt_key,
                       prompt ? rk_json_type_name(rk_json_type(prompt)) : "nothing");
    RK_TRY(rk_tokenizer_encode(tokenizer, text, rk_json_string_bytes(prompt), false, &ids));
    row->prompt_ids = ids.items;
    row->view.prompt = text;
    if (ids.count == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s: the prompt is empty", config->prompt_key);
    *is_overlong = ids.count > config->max_prompt_length;
    if (!(*is_overlong && config->filter_overlong_prompts))
        RK_TRY(truncate_prompt(row->prompt_ids, &ids.count, config));
    row->view.prompt_ids = row->prompt_ids;
    row->view.prompt_len = ids.count;
    return NULL;
}

static struct rk_status *read_fields(struct row *row)
{
    struct rk_json *truth = rk_json_find_path(row->json, "reward_model.ground_truth");

    row->view.data_source = "";
    RK_TRY(rk_json_opt_string(row->json, "", "data_source", &row->view.data_source));
    if (truth && rk_json_type(truth) != RK_JSON_STRING && !rk_json_is_null(truth))
        row->ground_truth = rk_json_dump(truth, 0, false);
    row->view.ground_truth = row->ground_truth ? row->ground_truth : rk_json_as_string(truth, "");
    row->view.extra_info = rk_json_find(row->json, "extra_info");
    return NULL;
}

static struct rk_status *add_line(struct rk_dataset *dataset, const char *line, size_t bytes, int64_t index,
                                  const struct rk_dataset_config *config,
                                  const struct rk_tokenizer *tokenizer)
{
    struct row row = {.view = {.index = index}};
    bool is_overlong = false;
    struct rk_status *st;

    RK_TRY_GOTO(st, rk_json_parse(&row.json, line, bytes, "line", 0), out);
    RK_TRY_GOTO(st, read_prompt(&row, config, tokenizer, &is_overlong), out);
    RK_TRY_GOTO(st, read_fields(&row), out);
    if (is_overlong && config->filter_overlong_prompts) {
        dataset->num_filtered++;
    } else {
        rk_array_append(&dataset->rows, row);
        return NULL;
    }
out:
    row_fini(&row);
    return st;
}

static bool is_blank(const char *line, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++) {
        if (!strchr(" \t\r\n", line[i]))
            return false;
    }
    return true;
}

static bool is_full(const struct rk_dataset *dataset, const struct rk_dataset_config *config)
{
    return config->max_samples >= 0 && dataset->rows.count >= config->max_samples;
}

static struct rk_status *read_lines(struct rk_dataset *dataset, FILE *file, const char *path, int64_t *index,
                                    const struct rk_dataset_config *config,
                                    const struct rk_tokenizer *tokenizer)
{
    struct rk_status *st = NULL;
    char *line = NULL;
    size_t capacity = 0;
    ssize_t bytes;

    for (int64_t number = 1; !st && !is_full(dataset, config); number++) {
        bytes = getline(&line, &capacity, file);
        if (bytes < 0) { /* the end, or something that cannot be read, such as a directory */
            st = ferror(file) ? rk_errno_status("cannot read the data file", path) : NULL;
            break;
        }
        if (is_blank(line, (size_t)bytes))
            continue;
        if (bytes > LINE_BYTES_MAX)
            st = RK_FAIL(RK_RESOURCE_EXHAUSTED, "the line has %zd bytes, the limit is %d", bytes,
                         LINE_BYTES_MAX);
        else
            st = add_line(dataset, line, (size_t)bytes, (*index)++, config, tokenizer);
        if (st)
            st = RK_WRAP(st, "%s:%lld", path, (long long)number);
    }
    rk_free(line);
    return st;
}

static struct rk_status *read_file(struct rk_dataset *dataset, const char *path, int64_t *index,
                                   const struct rk_dataset_config *config,
                                   const struct rk_tokenizer *tokenizer)
{
    FILE *file = fopen(path, "re");
    struct rk_status *st;

    if (!file)
        return rk_errno_status("cannot open the data file", path);
    st = read_lines(dataset, file, path, index, config, tokenizer);
    fclose(file);
    return st;
}

struct rk_status *rk_dataset_create(struct rk_dataset **out, const struct rk_dataset_config *config,
                                    const struct rk_tokenizer *tokenizer)
{
    struct rk_dataset *dataset = rk_calloc(1, sizeof(*dataset));
    struct rk_status *st = NULL;
    int64_t index = 0;

    RK_ASSERT(config->max_prompt_length > 0);
    *out = NULL;
    dataset->shuffle = config->shuffle;
    dataset->seed = config->seed;
    dataset->epoch = -1;
    for (const char *const *path = config->files; *path; path++)
        RK_TRY_GOTO(st, read_file(dataset, *path, &index, config, tokenizer), out);
    if (dataset->rows.count == 0) {
        st = RK_FAIL(RK_INVALID_ARGUMENT,
                     "data: no prompts in '%s' (%lld were longer than data.max_prompt_length)",
                     config->files[0] ? config->files[0] : "", (long long)dataset->num_filtered);
        goto out;
    }
    if (dataset->num_filtered > 0)
        RK_INFO("left out %lld prompts longer than data.max_prompt_length=%lld",
                (long long)dataset->num_filtered, (long long)config->max_prompt_length);
    dataset->order = rk_calloc((size_t)dataset->rows.count, sizeof(*dataset->order));
    *out = dataset;
    dataset = NULL;
out:
    rk_dataset_destroy(dataset);
    return st;
}

int64_t rk_dataset_num_rows(const struct rk_dataset *dataset)
{
    return dataset->rows.count;
}

const struct rk_dataset_row *rk_dataset_at(struct rk_dataset *dataset, int64_t epoch, int64_t i)
{
    RK_ASSERT(epoch >= 0);
    RK_ASSERT(i >= 0);
    RK_ASSERT(i < dataset->rows.count);
    if (!dataset->shuffle)
        return &dataset->rows.items[i].view;
    if (dataset->epoch != epoch) {
        rk_rng_permutation(dataset->seed, rk_rng_stream_of_name(SHUFFLE_STREAM) + (uint64_t)epoch,
                           dataset->rows.count, dataset->order);
        dataset->epoch = epoch;
    }
    return &dataset->rows.items[dataset->order[i]].view;
}
