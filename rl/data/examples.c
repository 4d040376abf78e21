/* Training examples. Everything is read, rendered and tokenized when they are made, so that an invalid row is
 * found before anything runs. */
#include "rl/rk_examples.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"
#include "rl/data/conversation_internal.h"
#include "rl/data/order_internal.h"
#include "rl/data/rows_internal.h"

static const char *const side_names[RK_EXAMPLE_SEQUENCES_MAX] = {"chosen", "rejected"};

struct row {
    struct rk_example view;
    struct rk_marked_ids sequences[RK_EXAMPLE_SEQUENCES_MAX];
    bool is_truncated;
};

struct rk_examples {
    RK_ARRAY(struct row) rows;
    struct rk_epoch_order order;
    struct rk_row_counts counts;
    int64_t num_texts; /* rows whose prompt is text */
};

struct loader {
    struct rk_examples *examples;
    const struct rk_examples_config *config;
    struct rk_example_reader reader;
};

static void row_fini(struct row *row)
{
    for (int i = 0; i < RK_EXAMPLE_SEQUENCES_MAX; i++)
        rk_marked_ids_fini(&row->sequences[i]);
}

void rk_examples_destroy(struct rk_examples *examples)
{
    if (!examples)
        return;
    for (int64_t i = 0; i < examples->rows.count; i++)
        row_fini(&examples->rows.items[i]);
    rk_array_fini(&examples->rows);
    rk_epoch_order_fini(&examples->order);
    rk_free(examples);
}

/* --- prompt and completion --- */

static bool is_text(const struct rk_json *json)
{
    return !rk_json_is_null(json) && rk_json_type(json) == RK_JSON_STRING;
}

static bool is_list(const struct rk_json *json)
{
    return !rk_json_is_null(json) && rk_json_type(json) == RK_JSON_ARRAY;
}

/* A text completion of messages is the assistant's message. */
static struct rk_json *join_messages(const struct rk_json *prompt, const struct rk_json *completion)
{
    struct rk_json *messages = rk_json_new_array();

    for (int64_t i = 0; i < rk_json_count(prompt); i++)
        rk_json_append(messages, rk_json_retain(rk_json_at(prompt, i)));
    if (is_text(completion)) {
        struct rk_json *message = rk_json_new_object();

        rk_json_set(message, "role", rk_json_new_string("assistant"));
        rk_json_set(message, "content", rk_json_retain(completion));
        rk_json_append(messages, message);
        return messages;
    }
    for (int64_t i = 0; i < rk_json_count(completion); i++)
        rk_json_append(messages, rk_json_retain(rk_json_at(completion, i)));
    return messages;
}

/* Whether some message from `first` on has content. */
static bool has_content(const struct rk_json *messages, int64_t first)
{
    for (int64_t i = first; i < rk_json_count(messages); i++) {
        const struct rk_json *message = rk_json_at(messages, i);
        const struct rk_json *content = rk_json_find(message, "content");

        if (rk_json_string_bytes(content) > 0 || rk_json_count(content) > 0 ||
            rk_json_count(rk_json_find(message, "tool_calls")) > 0)
            return true;
    }
    return false;
}

static struct rk_status *read_messages(struct rk_marked_ids *out, struct loader *loader,
                                       const struct rk_json *row, const struct rk_json *messages,
                                       int64_t first)
{
    if (!has_content(messages, first))
        return RK_FAIL(RK_INVALID_ARGUMENT, "expected an answer, got none");
    return rk_conversation_read(out, &loader->reader, row, messages, first);
}

/* Messages with an answer in text or messages, or text with text. Names the member that is neither. */
static struct rk_status *read_completion(struct rk_marked_ids *out, struct loader *loader,
                                         const struct rk_json *row, const char *completion_key)
{
    const char *prompt_key = loader->config->prompt_key;
    const struct rk_json *prompt = rk_json_find(row, prompt_key);
    const struct rk_json *completion = rk_json_find(row, completion_key);
    struct rk_json *messages;
    struct rk_status *st;

    if (!is_text(prompt) && !is_list(prompt))
        return rk_messages_wrong(row, prompt_key, "%s: expected text or a list of messages", prompt_key);
    if (!is_text(completion) && !(is_list(prompt) && is_list(completion)))
        return rk_messages_wrong(row, completion_key, "%s: expected text%s", completion_key,
                                 is_list(prompt) ? " or a list of messages" : ", as the prompt is");
    if (is_text(prompt)) {
        loader->examples->num_texts++;
        st = rk_response_read(out, &loader->reader, prompt, completion);
        return st ? RK_WRAP(st, "%s, %s", prompt_key, completion_key) : NULL;
    }
    messages = join_messages(prompt, completion);
    st = read_messages(out, loader, row, messages, rk_json_count(prompt));
    rk_json_free(messages);
    return st ? RK_WRAP(st, "%s + %s", prompt_key, completion_key) : NULL;
}

static struct rk_status *read_sft(struct row *row, struct loader *loader, const struct rk_json *json)
{
    const char *key = loader->config->messages_key;
    const struct rk_json *messages = rk_json_find(json, key);
    struct rk_status *st;

    row->view.num_sequences = 1;
    if (rk_json_is_null(messages) && rk_json_find(json, loader->config->response_key))
        return read_completion(&row->sequences[0], loader, json, loader->config->response_key);
    if (!is_list(messages))
        return rk_messages_wrong(json, key, "%s: expected a list of messages, or a prompt and a member %s",
                                 key, loader->config->response_key);
    st = rk_conversation_read(&row->sequences[0], &loader->reader, json, messages, 0);
    return st ? RK_WRAP(st, "%s", key) : NULL;
}

/* --- pairs --- */

/* The common first messages of both sides are the prompt. */
static int64_t count_shared(const struct rk_json *const sides[RK_EXAMPLE_SEQUENCES_MAX])
{
    int64_t count = 0;

    while (count < rk_json_count(sides[0]) && count < rk_json_count(sides[1]) &&
           rk_json_equal(rk_json_at(sides[0], count), rk_json_at(sides[1], count)))
        count++;
    return count;
}

static struct rk_status *read_sides_of_lists(struct row *row, struct loader *loader,
                                             const struct rk_json *json,
                                             const struct rk_json *const sides[RK_EXAMPLE_SEQUENCES_MAX])
{
    int64_t num_shared = count_shared(sides);

    for (int i = 0; i < RK_EXAMPLE_SEQUENCES_MAX; i++) {
        struct rk_status *st = read_messages(&row->sequences[i], loader, json, sides[i], num_shared);

        if (st)
            return RK_WRAP(st, "%s, after the %lld common messages of both sides", side_names[i],
                           (long long)num_shared);
    }
    return NULL;
}

static bool are_equal(const struct rk_marked_ids *a, const struct rk_marked_ids *b)
{
    return a->count == b->count && memcmp(a->ids, b->ids, (size_t)a->count * sizeof(*a->ids)) == 0;
}

static struct rk_status *read_pair(struct row *row, struct loader *loader, const struct rk_json *json)
{
    const struct rk_json *prompt = rk_json_find(json, loader->config->prompt_key);
    const struct rk_json *sides[RK_EXAMPLE_SEQUENCES_MAX];

    row->view.num_sequences = RK_EXAMPLE_SEQUENCES_MAX;
    for (int i = 0; i < RK_EXAMPLE_SEQUENCES_MAX; i++) {
        sides[i] = rk_json_find(json, side_names[i]);
        if (!is_text(sides[i]) && !is_list(sides[i]))
            return rk_messages_wrong(json, side_names[i], "%s: expected text or a list of messages",
                                     side_names[i]);
    }
    if (is_list(sides[0]) && is_list(sides[1]) && !is_list(prompt))
        RK_TRY(read_sides_of_lists(row, loader, json, sides));
    else
        for (int i = 0; i < RK_EXAMPLE_SEQUENCES_MAX; i++)
            RK_TRY(read_completion(&row->sequences[i], loader, json, side_names[i]));
    if (are_equal(&row->sequences[0], &row->sequences[1]))
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "chosen, rejected: both have the same %lld tokens; expected two different answers",
                       (long long)row->sequences[0].count);
    return NULL;
}

/* --- length --- */

/* Keeps max_length tokens; *is_empty when the loss counts none of the kept tokens. */
static struct rk_status *truncate_sequence(struct rk_marked_ids *sequence,
                                           const struct rk_examples_config *config, bool *is_empty)
{
    int64_t begin = 0;

    if (sequence->count > config->max_length && strcmp(config->truncation, "error") == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "the sequence has %lld tokens, data.max_length is %lld (set data.truncation to left "
                       "or right)",
                       (long long)sequence->count, (long long)config->max_length);
    if (sequence->count > config->max_length) {
        begin = strcmp(config->truncation, "left") == 0 ? sequence->count - config->max_length : 0;
        sequence->count = config->max_length;
        memmove(sequence->ids, sequence->ids + begin, (size_t)sequence->count * sizeof(*sequence->ids));
        memmove(sequence->loss_mask, sequence->loss_mask + begin, (size_t)sequence->count);
    }
    if (sequence->count > 0)
        sequence->loss_mask[0] = 0; /* the first token has no prediction */
    *is_empty = *is_empty || !memchr(sequence->loss_mask, 1, (size_t)sequence->count);
    return NULL;
}

static struct rk_status *finish_row(struct row *row, const struct rk_examples_config *config, bool *is_empty)
{
    for (int64_t i = 0; i < row->view.num_sequences; i++) {
        struct rk_marked_ids *sequence = &row->sequences[i];

        row->is_truncated = row->is_truncated || sequence->count > config->max_length;
        RK_TRY(truncate_sequence(sequence, config, is_empty));
        if (config->max_positions > 0 && sequence->count > config->max_positions)
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "the sequence has %lld tokens, max_position_embeddings of the model is %lld (set "
                           "data.max_length to it, and data.truncation)",
                           (long long)sequence->count, (long long)config->max_positions);
        row->view.sequences[i] =
            (struct rk_example_sequence){sequence->ids, sequence->loss_mask, sequence->count};
    }
    return NULL;
}

/* --- files --- */

static bool is_full(const struct loader *loader)
{
    return loader->config->max_samples >= 0 && loader->examples->rows.count >= loader->config->max_samples;
}

static struct rk_status *read_row(struct row *row, struct loader *loader, const struct rk_json *json,
                                  bool *is_empty)
{
    RK_TRY(rk_messages_refuse_media(json));
    if (loader->config->kind == RK_EXAMPLES_PREFERENCE)
        RK_TRY(read_pair(row, loader, json));
    else
        RK_TRY(read_sft(row, loader, json));
    return finish_row(row, loader->config, is_empty);
}

static struct rk_status *add_row(void *user, struct rk_json *json, const struct rk_row_place *place,
                                 bool *is_enough)
{
    struct loader *loader = user;
    struct rk_row_counts *counts = &loader->examples->counts;
    struct row row = {.view = {.index = counts->read++}};
    bool is_empty = false;
    struct rk_status *st = read_row(&row, loader, json, &is_empty);

    (void)place;
    rk_json_free(json);
    if (st || is_empty) {
        counts->empty += is_empty;
        row_fini(&row);
        return st;
    }
    counts->truncated += row.is_truncated;
    rk_array_append(&loader->examples->rows, row);
    *is_enough = is_full(loader);
    return NULL;
}

static void warn(const struct loader *loader)
{
    const struct rk_examples *examples = loader->examples;
    const struct rk_examples_config *config = loader->config;

    if (examples->num_texts > 0 && config->chat)
        RK_WARN("%lld sequences of '%s' have text prompts, and the model has a chat template: they are "
                "encoded as they are; give lists of messages, [{\"role\": \"user\", \"content\": ...}], to "
                "apply the template",
                (long long)examples->num_texts, config->files[0]);
    if (loader->reader.num_mismatches > 0)
        RK_WARN("%lld conversations of '%s' are concatenations of their messages, each rendered alone "
                "(data.ignore_input_ids_mismatch), because their tokens differ when rendered as a whole",
                (long long)loader->reader.num_mismatches, config->files[0]);
}

static struct rk_status *read_files(struct loader *loader)
{
    const struct rk_examples_config *config = loader->config;

    for (const char *const *path = config->files; *path && !is_full(loader); path++)
        RK_TRY(rk_rows_read(*path, add_row, loader));
    if (loader->examples->rows.count == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "data: no rows in '%s' (data.truncation to data.max_length=%lld left nothing of %lld)",
                       config->files[0] ? config->files[0] : "", (long long)config->max_length,
                       (long long)loader->examples->counts.empty);
    warn(loader);
    return NULL;
}

struct rk_status *rk_examples_create(struct rk_examples **out, const struct rk_examples_config *config,
                                     const struct rk_tokenizer *tokenizer)
{
    struct rk_examples *examples = rk_calloc(1, sizeof(*examples));
    struct loader loader = {
        .examples = examples,
        .config = config,
        .reader = {.tokenizer = tokenizer,
                   .from = {config->chat, config->chat_kwargs, config->template_dir, config->now_s},
                   .eos_id = config->eos_id,
                   .ignore_mismatch = config->ignore_input_ids_mismatch},
    };
    struct rk_status *st;

    RK_ASSERT(config->max_length > 1);
    *out = NULL;
    st = read_files(&loader);
    rk_example_reader_fini(&loader.reader);
    if (st) {
        rk_examples_destroy(examples);
        return st;
    }
    rk_epoch_order_init(&examples->order, examples->rows.count, config->shuffle, config->seed);
    *out = examples;
    return NULL;
}

int64_t rk_examples_num_rows(const struct rk_examples *examples)
{
    return examples->rows.count;
}

const struct rk_row_counts *rk_examples_counts(const struct rk_examples *examples)
{
    return &examples->counts;
}

const struct rk_example *rk_examples_at(struct rk_examples *examples, int64_t epoch, int64_t i)
{
    return &examples->rows.items[rk_epoch_order_at(&examples->order, epoch, i)].view;
}
