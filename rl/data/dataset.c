/* Prompt datasets. Everything is read, rendered and tokenized when the dataset is made, so that an invalid
 * row or an overlong prompt is found before anything runs. */
#include "rl/rk_dataset.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_assert.h"
#include "base/rk_hash.h"
#include "base/rk_log.h"
#include "base/rk_map.h"
#include "base/rk_random.h"
#include "base/rk_str.h"
#include "rl/data/messages.h"
#include "rl/data/order_internal.h"
#include "rl/data/prompt_internal.h"
#include "rl/data/rows_internal.h"

/* Equal prompts and equal further members are kept once: published sets repeat their rows (DAPO-Math-17k 100
 * times). */
struct question {
    struct rk_prompt prompt;
    struct rk_json *messages;
    bool is_overlong;
};

struct fields {
    char *data_source, *teacher, *truth_text; /* the text: of a ground truth that is another value */
    struct rk_json *truth, *columns, *extra_info;
};

struct rk_dataset {
    RK_ARRAY(struct rk_dataset_row) rows;
    RK_ARRAY(struct question *) questions;
    RK_ARRAY(struct fields *) fields;
    RK_ARRAY(char *) paths; /* of the rows' places */
    struct rk_epoch_order order;
    struct rk_row_counts counts;
    int64_t num_texts;
};

struct loader {
    struct rk_dataset *dataset;
    const struct rk_dataset_config *config;
    const struct rk_tokenizer *tokenizer;
    struct rk_map *questions, *fields; /* by the digest of their JSON */
};

static void question_free(struct question *question)
{
    rk_prompt_fini(&question->prompt);
    rk_json_free(question->messages);
    rk_free(question);
}

static void fields_free(struct fields *fields)
{
    rk_free(fields->data_source);
    rk_free(fields->teacher);
    rk_free(fields->truth_text);
    rk_json_free(fields->truth);
    rk_json_free(fields->columns);
    rk_json_free(fields->extra_info);
    rk_free(fields);
}

void rk_dataset_destroy(struct rk_dataset *dataset)
{
    if (!dataset)
        return;
    for (int64_t i = 0; i < dataset->questions.count; i++)
        question_free(dataset->questions.items[i]);
    for (int64_t i = 0; i < dataset->fields.count; i++)
        fields_free(dataset->fields.items[i]);
    for (int64_t i = 0; i < dataset->paths.count; i++)
        rk_free(dataset->paths.items[i]);
    rk_array_fini(&dataset->rows);
    rk_array_fini(&dataset->questions);
    rk_array_fini(&dataset->fields);
    rk_array_fini(&dataset->paths);
    rk_epoch_order_fini(&dataset->order);
    rk_free(dataset);
}

/* --- prompts --- */

/* Keeps max_prompt_length ids of `ids`, which has more, as `truncation` says. */
static struct rk_status *truncate_prompt(int32_t *ids, int64_t *count, const struct rk_dataset_config *config)
{
    int64_t limit = config->max_prompt_length;
    int64_t head = 0;

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

static struct rk_status *read_question(struct question *out, const struct rk_json *json,
                                       const struct loader *loader)
{
    const struct rk_dataset_config *config = loader->config;
    struct rk_tokenizer_ids *ids = &out->prompt.ids;

    RK_TRY(rk_prompt_read(&out->prompt, json, config, loader->tokenizer));
    out->is_overlong = ids->count > config->max_prompt_length;
    if (out->is_overlong && config->filter_overlong_prompts) {
        rk_prompt_fini(&out->prompt);
        return NULL;
    }
    if (out->is_overlong)
        RK_TRY(truncate_prompt(ids->items, &ids->count, config));
    if ((config->keep_messages || config->keep_columns) && out->prompt.is_chat)
        out->messages = rk_json_retain(rk_json_find(json, config->prompt_key));
    return NULL;
}

/* Digest of both values as JSON; `hex` receives its text. */
static void digest(const struct rk_json *a, const struct rk_json *b, char hex[2 * RK_SHA256_BYTES + 1])
{
    char *texts[2] = {rk_json_dump(a, 0, false), rk_json_dump(b, 0, false)};
    uint8_t bytes[RK_SHA256_BYTES];
    struct rk_sha256 sha;

    rk_sha256_init(&sha);
    for (int i = 0; i < 2; i++) {
        rk_sha256_update(&sha, texts[i], strlen(texts[i]) + 1);
        rk_free(texts[i]);
    }
    rk_sha256_final(&sha, bytes);
    rk_hex(bytes, sizeof(bytes), hex);
}

/* The prompt depends on the row's prompt and tools. */
static struct rk_status *find_question(const struct question **out, const struct rk_json *json,
                                       struct loader *loader)
{
    char key[2 * RK_SHA256_BYTES + 1];
    struct question *question;
    struct rk_status *st;

    digest(rk_json_find(json, loader->config->prompt_key), rk_json_find(json, "tools"), key);
    *out = rk_map_find(loader->questions, key);
    if (*out)
        return NULL;
    question = rk_calloc(1, sizeof(*question));
    st = read_question(question, json, loader);
    if (st) {
        question_free(question);
        return st;
    }
    rk_array_append(&loader->dataset->questions, question);
    rk_map_put(loader->questions, key, question);
    *out = question;
    return NULL;
}

/* --- other members --- */

/* "" without such a member; rk_free it. */
static char *member_text(const struct rk_json *json, const char *name)
{
    const struct rk_json *value = name ? rk_json_find(json, name) : NULL;

    if (rk_json_is_null(value))
        return rk_strdup("");
    return rk_json_type(value) == RK_JSON_STRING ? rk_strdup(rk_json_as_string(value, ""))
                                                 : rk_json_dump(value, 0, false);
}

static struct rk_status *read_fields(struct fields *out, const struct rk_json *json,
                                     const struct loader *loader)
{
    const struct rk_json *model = rk_json_find(json, "reward_model");
    const struct rk_json *truth = rk_json_find(model, "ground_truth");
    const char *source = "";

    RK_TRY(rk_json_opt_string(json, "", "data_source", &source));
    if (!rk_json_is_null(model) && rk_json_type(model) != RK_JSON_OBJECT)
        return RK_FAIL(RK_INVALID_ARGUMENT, "reward_model: expected an object with ground_truth, got %s",
                       rk_json_type_name(rk_json_type(model)));
    out->data_source = rk_strdup(source);
    out->teacher = member_text(json, loader->config->teacher_column);
    if (!rk_json_is_null(truth)) {
        out->truth = rk_json_retain(truth);
        if (rk_json_type(truth) != RK_JSON_STRING)
            out->truth_text = rk_json_dump(truth, 0, false);
    }
    if (rk_json_find(json, "extra_info"))
        out->extra_info = rk_json_retain(rk_json_find(json, "extra_info"));
    if (loader->config->keep_columns)
        out->columns = rk_json_retain(json);
    return NULL;
}

/* `json` is the row without its prompt. */
static struct rk_status *find_fields(const struct fields **out, const struct rk_json *json,
                                     struct loader *loader)
{
    char key[2 * RK_SHA256_BYTES + 1];
    struct fields *fields;
    struct rk_status *st;

    digest(json, NULL, key);
    *out = rk_map_find(loader->fields, key);
    if (*out)
        return NULL;
    fields = rk_calloc(1, sizeof(*fields));
    st = read_fields(fields, json, loader);
    if (st) {
        fields_free(fields);
        return st;
    }
    rk_array_append(&loader->dataset->fields, fields);
    rk_map_put(loader->fields, key, fields);
    *out = fields;
    return NULL;
}

/* --- rows --- */

static bool is_full(const struct loader *loader)
{
    return loader->config->max_samples >= 0 && loader->dataset->rows.count >= loader->config->max_samples;
}

static void set_views(struct rk_dataset_row *row, const struct question *question,
                      const struct fields *fields)
{
    row->prompt_ids = question->prompt.ids.items;
    row->prompt_len = question->prompt.ids.count;
    row->prompt = question->prompt.text;
    row->prompt_bytes = question->prompt.bytes;
    row->messages = question->messages;
    row->columns = fields->columns;
    row->data_source = fields->data_source;
    row->teacher = fields->teacher;
    row->ground_truth = fields->truth ? rk_json_as_string(fields->truth, fields->truth_text) : "";
    row->ground_truth_json = fields->truth;
    row->extra_info = fields->extra_info;
}

static struct rk_status *read_row(struct loader *loader, struct rk_json *json,
                                  const struct rk_row_place *place)
{
    struct rk_dataset *dataset = loader->dataset;
    struct rk_dataset_row row = {.index = dataset->counts.read++, .place = *place};
    const struct question *question;
    const struct fields *fields;

    RK_TRY(rk_messages_refuse_media(json));
    RK_TRY(find_question(&question, json, loader));
    rk_json_remove(json, loader->config->prompt_key);
    RK_TRY(find_fields(&fields, json, loader));
    if (question->is_overlong && loader->config->filter_overlong_prompts) {
        dataset->counts.overlong++;
        return NULL;
    }
    dataset->counts.truncated += question->is_overlong;
    dataset->num_texts += !question->prompt.is_chat;
    set_views(&row, question, fields);
    rk_array_append(&dataset->rows, row);
    return NULL;
}

static struct rk_status *add_row(void *user, struct rk_json *json, const struct rk_row_place *place,
                                 bool *is_enough)
{
    struct loader *loader = user;
    struct rk_status *st = read_row(loader, json, place);

    rk_json_free(json);
    *is_enough = is_full(loader);
    return st;
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
                       config->files[0] ? config->files[0] : "", (long long)dataset->counts.overlong);
    if (dataset->num_texts > 0 && config->chat)
        RK_WARN(
            "%lld of %lld prompts of '%s' are text, and the model has a chat template: they are encoded as "
            "they "
            "are; give lists of messages, [{\"role\": \"user\", \"content\": ...}], to apply the template",
            (long long)dataset->num_texts, (long long)dataset->rows.count, config->files[0]);
    return NULL;
}

/* --- the members of a row --- */

struct lookup {
    int64_t number;
    char *members;
};

static struct rk_status *look_up(void *user, struct rk_json *json, const struct rk_row_place *place,
                                 bool *is_enough)
{
    struct lookup *lookup = user;
    const struct rk_json *model = rk_json_find(json, "reward_model");

    *is_enough = place->number == lookup->number;
    if (*is_enough) {
        char *all = rk_messages_members(json), *inner = model ? rk_messages_members(model) : NULL;

        lookup->members = inner ? rk_format("%s; reward_model has %s", all, inner) : rk_format("%s", all);
        rk_free(inner);
        rk_free(all);
    }
    rk_json_free(json);
    return NULL;
}

char *rk_dataset_members_at(const struct rk_row_place *place)
{
    struct lookup lookup = {.number = place->number};
    struct rk_status *st = rk_rows_read(place->path, look_up, &lookup);

    RK_IGNORE(st, "only a message lacks something");
    return lookup.members ? lookup.members : rk_strdup("unknown members");
}

struct rk_status *rk_dataset_create(struct rk_dataset **out, const struct rk_dataset_config *config,
                                    const struct rk_tokenizer *tokenizer)
{
    struct rk_dataset *dataset = rk_calloc(1, sizeof(*dataset));
    struct loader loader = {.dataset = dataset,
                            .config = config,
                            .tokenizer = tokenizer,
                            .questions = rk_map_create(),
                            .fields = rk_map_create()};
    struct rk_status *st;

    RK_ASSERT(config->max_prompt_length > 0);
    *out = NULL;
    st = read_files(&loader);
    rk_map_destroy(loader.questions);
    rk_map_destroy(loader.fields);
    if (st) {
        rk_dataset_destroy(dataset);
        return st;
    }
    rk_epoch_order_init(&dataset->order, dataset->rows.count, config->shuffle, config->seed);
    *out = dataset;
    return NULL;
}

const struct rk_row_counts *rk_dataset_counts(const struct rk_dataset *dataset)
{
    return &dataset->counts;
}

int64_t rk_dataset_num_rows(const struct rk_dataset *dataset)
{
    return dataset->rows.count;
}

const struct rk_dataset_row *rk_dataset_at(struct rk_dataset *dataset, int64_t epoch, int64_t i)
{
    return &dataset->rows.items[rk_epoch_order_at(&dataset->order, epoch, i)];
}
