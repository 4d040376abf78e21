/* Tokens and loss masks.
 *
 * The model's input for an answer is the text of the messages before it, with the generation
 * prompt. The answer with its end token is the additional text of the messages up to it. Both must be
 * prefixes of the whole conversation's text, and their tokens prefixes of its tokens: otherwise the
 * model would be trained on other tokens than in generation. */
#include "rl/data/conversation_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/rk_assert.h"

#define REACH_BYTES_MAX 64 /* maximum bytes of an answer in a token that begins before it */
#define EXCERPT_BYTES   24

struct conversation {
    struct rk_example_reader *reader;
    struct rk_chat_args args; /* tools and kwargs of the row */
    const struct rk_json *messages;
    int64_t first;
    struct rk_str text;         /* of all messages */
    struct rk_chat_spans spans; /* bytes of the text that the loss counts */
    struct rk_tokenizer_ids ids;
    bool has_blocks;  /* the spans are the template's generation blocks */
    bool is_mismatch; /* the failure is a mismatch */
};

void rk_marked_ids_fini(struct rk_marked_ids *sequence)
{
    rk_free(sequence->ids);
    rk_free(sequence->loss_mask);
    *sequence = (struct rk_marked_ids){0};
}

void rk_example_reader_fini(struct rk_example_reader *reader)
{
    rk_free(reader->system.items);
    rk_free(reader->generation.items);
    *reader = (struct rk_example_reader){0};
}

static void append(struct rk_marked_ids *out, const int32_t *ids, int64_t count, bool is_counted)
{
    if (count == 0)
        return;
    out->ids = rk_realloc(out->ids, (size_t)(out->count + count) * sizeof(*out->ids));
    out->loss_mask = rk_realloc(out->loss_mask, (size_t)(out->count + count) * sizeof(*out->loss_mask));
    memcpy(out->ids + out->count, ids, (size_t)count * sizeof(*ids));
    memset(out->loss_mask + out->count, is_counted, (size_t)count);
    out->count += count;
}

static bool is_answer(const struct rk_json *message)
{
    return strcmp(rk_json_as_string(rk_json_find(message, "role"), ""), "assistant") == 0;
}

/* --- the text of the answers --- */

static struct rk_status *render(const struct conversation *conv, const struct rk_json *messages,
                                bool add_generation_prompt, struct rk_str *out)
{
    struct rk_chat_args args = conv->args;

    args.messages = messages;
    args.add_generation_prompt = add_generation_prompt;
    return rk_messages_render(out, &conv->reader->from, &args);
}

/* A few characters as a JSON string; rk_free it. */
static char *excerpt(const char *text, size_t bytes)
{
    size_t count = RK_MIN(bytes, EXCERPT_BYTES);
    struct rk_json *json;
    char *out;

    while (count > 0 && !rk_utf8_is_valid(text, count))
        count--;
    json = rk_json_new_string_bytes(text, count);
    out = rk_json_dump(json, 0, false);
    rk_json_free(json);
    return out;
}

/* INVALID_ARGUMENT unless `head` is the beginning of `whole`. */
static struct rk_status *check_prefix(struct conversation *conv, const struct rk_str *head,
                                      const struct rk_str *whole, const char *what)
{
    size_t same = 0, limit = RK_MIN(head->bytes, whole->bytes);
    char *expected, *actual;
    struct rk_status *st;

    while (same < limit && head->text[same] == whole->text[same])
        same++;
    if (same == head->bytes)
        return NULL;
    conv->is_mismatch = true;
    while (same > 0 && ((unsigned char)head->text[same] & 0xc0) == 0x80)
        same--;
    expected = excerpt(head->text + same, head->bytes - same);
    actual = excerpt(rk_str_text(whole) + same, whole->bytes - RK_MIN(same, whole->bytes));
    st = RK_FAIL(RK_INVALID_ARGUMENT,
                 "%s: byte %zu is followed by %s, but by %s in the whole conversation; set "
                 "data.ignore_input_ids_mismatch=true to train on the messages rendered one by one, give "
                 "rows that end with this answer, or use a template with generation blocks",
                 what, same, expected, actual);
    rk_free(expected);
    rk_free(actual);
    return st;
}

/* The bytes of messages[i], the last of `head`; `asked` is the preceding text with the generation prompt. */
static struct rk_status *add_answer(struct conversation *conv, const struct rk_json *head, int64_t i,
                                    const struct rk_str *asked)
{
    struct rk_str answered = {0};
    const struct rk_str *text = &conv->text;
    struct rk_status *st = NULL;

    if (i + 1 < rk_json_count(conv->messages)) {
        st = render(conv, head, false, &answered);
        text = &answered;
    }
    if (!st)
        st = check_prefix(conv, asked, text, "the text before the answer");
    if (!st)
        st = check_prefix(conv, text, &conv->text, "the text of the messages up to the answer");
    if (!st)
        rk_array_append(&conv->spans, (struct rk_chat_span){asked->bytes, text->bytes});
    rk_str_fini(&answered);
    return st;
}

static struct rk_status *find_answer(struct conversation *conv, struct rk_json *head, int64_t i)
{
    struct rk_json *message = rk_json_at(conv->messages, i);
    bool is_counted = i >= conv->first && is_answer(message);
    struct rk_str asked = {0};
    struct rk_status *st = NULL;

    if (is_counted && i == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "the first message is the assistant's; expected a message "
                                            "before it that it answers");
    if (is_counted)
        st = render(conv, head, true, &asked);
    rk_json_append(head, rk_json_retain(message));
    if (!st && is_counted)
        st = add_answer(conv, head, i, &asked);
    rk_str_fini(&asked);
    return st;
}

static struct rk_status *find_answers(struct conversation *conv)
{
    struct rk_json *head = rk_json_new_array(); /* messages[0..i) */
    struct rk_status *st = NULL;

    for (int64_t i = 0; !st && i < rk_json_count(conv->messages); i++) {
        st = find_answer(conv, head, i);
        if (st)
            st = RK_WRAP(st, "[%lld]", (long long)i);
    }
    rk_json_free(head);
    return st;
}

/* Removes the spans of generation blocks before messages[first]. */
static struct rk_status *drop_first_spans(struct conversation *conv)
{
    struct rk_json *head = rk_json_new_array();
    struct rk_str asked = {0};
    struct rk_status *st;
    int64_t kept = 0;

    for (int64_t i = 0; i < conv->first; i++)
        rk_json_append(head, rk_json_retain(rk_json_at(conv->messages, i)));
    st = render(conv, head, true, &asked);
    if (!st)
        st = check_prefix(conv, &asked, &conv->text, "the text of the prompt");
    for (int64_t i = 0; !st && i < conv->spans.count; i++) {
        if (conv->spans.items[i].begin >= asked.bytes)
            conv->spans.items[kept++] = conv->spans.items[i];
    }
    conv->spans.count = kept;
    rk_json_free(head);
    rk_str_fini(&asked);
    return st;
}

static struct rk_status *find_text(struct conversation *conv)
{
    conv->args.generations = &conv->spans;
    RK_TRY(render(conv, conv->messages, false, &conv->text));
    conv->args.generations = NULL;
    conv->has_blocks = conv->spans.count > 0 && !conv->spans.is_partial;
    if (conv->has_blocks)
        return conv->first > 0 ? drop_first_spans(conv) : NULL;
    conv->spans.count = 0;
    return find_answers(conv);
}

/* --- their tokens --- */

static struct rk_status *encode(const struct rk_example_reader *reader, const struct rk_str *text,
                                size_t bytes, struct rk_tokenizer_ids *out)
{
    return rk_tokenizer_encode(reader->tokenizer, rk_str_text(text), bytes, false, out);
}

/* The number of tokens of text[0..bytes), alone and in the whole conversation alike; -1 when they differ. */
static struct rk_status *count_tokens(const struct conversation *conv, size_t bytes, int64_t *out)
{
    struct rk_tokenizer_ids head;

    RK_TRY(encode(conv->reader, &conv->text, bytes, &head));
    *out = head.count;
    for (int64_t i = 0; i < head.count && *out >= 0; i++) {
        if (i >= conv->ids.count || head.items[i] != conv->ids.items[i])
            *out = -1;
    }
    rk_free(head.items);
    return NULL;
}

/* The position of the next or the previous character. */
static size_t step(const struct conversation *conv, size_t bytes)
{
    bool is_valid;

    if (!conv->has_blocks)
        return bytes + rk_utf8_part(conv->text.text + bytes, conv->text.bytes - bytes, &is_valid);
    do
        bytes--;
    while (((unsigned char)conv->text.text[bytes] & 0xc0) == 0x80);
    return bytes;
}

/* Finds the start of an answer. A token that begins before it, such as the line feeds that end the generation
 * prompt and begin the answer, is no part of it in verl, and is a part of a generation block in
 * transformers. */
static struct rk_status *find_begin(const struct conversation *conv, size_t bytes, int64_t *out)
{
    size_t last = conv->has_blocks ? bytes - RK_MIN(bytes, REACH_BYTES_MAX)
                                   : RK_MIN(conv->text.bytes, bytes + REACH_BYTES_MAX);

    RK_TRY(count_tokens(conv, bytes, out));
    while (*out < 0 && (conv->has_blocks ? bytes > last : bytes < last)) {
        bytes = step(conv, bytes);
        RK_TRY(count_tokens(conv, bytes, out));
    }
    return NULL;
}

static struct rk_status *find_span(struct conversation *conv, const struct rk_chat_span *span, int64_t *begin,
                                   int64_t *end)
{
    RK_TRY(find_begin(conv, span->begin, begin));
    RK_TRY(count_tokens(conv, span->end, end));
    if (*begin >= 0 && *end >= 0)
        return NULL;
    conv->is_mismatch = true;
    return RK_FAIL(
        RK_INVALID_ARGUMENT,
        "the text up to byte %zu, where an answer %s, alone has different tokens than in the whole "
        "conversation; set data.ignore_input_ids_mismatch=true to train on the messages encoded "
        "one by one",
        *begin < 0 ? span->begin : span->end, *begin < 0 ? "begins" : "ends");
}

static struct rk_status *mark_tokens(struct conversation *conv, struct rk_marked_ids *out)
{
    RK_TRY(encode(conv->reader, &conv->text, conv->text.bytes, &conv->ids));
    append(out, conv->ids.items, conv->ids.count, false);
    for (int64_t i = 0; i < conv->spans.count; i++) {
        const struct rk_chat_span *span = &conv->spans.items[i];
        int64_t begin, end;

        if (span->begin == span->end)
            continue;
        RK_TRY(find_span(conv, span, &begin, &end));
        if (end > begin)
            memset(out->loss_mask + begin, 1, (size_t)(end - begin));
    }
    return NULL;
}

/* --- message by message --- */

static struct rk_status *encode_messages(const struct conversation *conv, const struct rk_json *messages,
                                         bool add_generation_prompt, struct rk_tokenizer_ids *out)
{
    struct rk_str text = {0};
    struct rk_status *st = render(conv, messages, add_generation_prompt, &text);

    *out = (struct rk_tokenizer_ids){0};
    if (!st)
        st = encode(conv->reader, &text, text.bytes, out);
    rk_str_fini(&text);
    return st;
}

/* The difference between the texts of two empty messages and of one is a message; the rest of the text of one
 * precedes it. */
static struct rk_status *learn_openings(struct rk_example_reader *reader)
{
    struct conversation conv = {.reader = reader}; /* without the tools and variables of a row */
    struct rk_tokenizer_ids one = {0}, two = {0}, asked = {0};
    struct rk_json *messages = rk_json_new_array(), *message = rk_json_new_object();
    struct rk_status *st;

    rk_json_set(message, "role", rk_json_new_string("user"));
    rk_json_set(message, "content", rk_json_new_string(""));
    rk_json_append(messages, rk_json_retain(message));
    RK_TRY_GOTO(st, encode_messages(&conv, messages, false, &one), out);
    RK_TRY_GOTO(st, encode_messages(&conv, messages, true, &asked), out);
    rk_json_append(messages, rk_json_retain(message));
    RK_TRY_GOTO(st, encode_messages(&conv, messages, false, &two), out);
    reader->generation = (struct rk_tokenizer_ids){asked.items, RK_MAX(asked.count - one.count, 0)};
    reader->system = (struct rk_tokenizer_ids){one.items, RK_MAX(2 * one.count - two.count, 0)};
    reader->has_openings = true;
    one.items = asked.items = NULL;
out:
    rk_free(one.items);
    rk_free(two.items);
    rk_free(asked.items);
    rk_json_free(messages);
    rk_json_free(message);
    return st;
}

static struct rk_status *append_message(struct conversation *conv, struct rk_marked_ids *out, int64_t i)
{
    const struct rk_json *message = rk_json_at(conv->messages, i);
    bool is_system = strcmp(rk_json_as_string(rk_json_find(message, "role"), ""), "system") == 0;
    struct rk_json *alone = rk_json_new_array();
    struct rk_tokenizer_ids ids = {0};
    struct rk_status *st;
    int64_t begin, counted;

    rk_json_append(alone, rk_json_retain(message));
    if (i > 0)
        conv->args.tools = NULL;
    st = encode_messages(conv, alone, false, &ids);
    begin = i > 0 && !is_system ? RK_MIN(conv->reader->system.count, ids.count) : 0;
    counted = i >= conv->first && is_answer(message)
                  ? RK_MIN(begin + conv->reader->generation.count, ids.count)
                  : ids.count;
    if (!st) {
        append(out, ids.items + begin, counted - begin, false);
        append(out, ids.items + counted, ids.count - counted, true);
    }
    rk_free(ids.items);
    rk_json_free(alone);
    return st;
}

/* Concatenates messages as verl's MultiTurnSFTDataset. */
static struct rk_status *concatenate(struct conversation *conv, struct rk_marked_ids *out)
{
    conv->reader->num_mismatches++;
    if (!conv->reader->has_openings)
        RK_TRY(learn_openings(conv->reader));
    for (int64_t i = 0; i < rk_json_count(conv->messages); i++) {
        struct rk_status *st = append_message(conv, out, i);

        if (st)
            return RK_WRAP(st, "[%lld], rendered alone", (long long)i);
    }
    return NULL;
}

/* --- rows --- */

/* The row's member enable_thinking is a variable of its template; *out is NULL without it. */
static struct rk_status *read_kwargs(const struct conversation *conv, const struct rk_json *row,
                                     struct rk_json **out)
{
    const struct rk_json *value = rk_json_find(row, "enable_thinking");
    const struct rk_json *all = conv->reader->from.chat_kwargs;

    *out = NULL;
    if (rk_json_is_null(value))
        return NULL;
    if (rk_json_type(value) != RK_JSON_BOOL)
        return RK_FAIL(RK_INVALID_ARGUMENT, "enable_thinking: expected true or false, got %s",
                       rk_messages_type_of(value));
    *out = all ? rk_json_clone(all) : rk_json_new_object();
    rk_json_set(*out, "enable_thinking", rk_json_clone(value));
    return NULL;
}

static struct rk_status *check_answers(const struct conversation *conv)
{
    RK_TRY(rk_messages_check(conv->messages));
    for (int64_t i = conv->first; i < rk_json_count(conv->messages); i++) {
        if (is_answer(rk_json_at(conv->messages, i)))
            return NULL;
    }
    return RK_FAIL(RK_INVALID_ARGUMENT, "expected a message with the role assistant to train on, got none");
}

struct rk_status *rk_conversation_read(struct rk_marked_ids *out, struct rk_example_reader *reader,
                                       const struct rk_json *row, const struct rk_json *messages,
                                       int64_t first)
{
    struct conversation conv = {.reader = reader, .messages = messages, .first = first};
    struct rk_json *kwargs = NULL, *tools = NULL;
    struct rk_status *st;

    RK_ASSERT(out->count == 0);
    RK_TRY_GOTO(st, check_answers(&conv), out);
    RK_TRY_GOTO(st, rk_messages_tools(row, &tools), out);
    conv.args.tools = tools;
    RK_TRY_GOTO(st, read_kwargs(&conv, row, &kwargs), out);
    conv.args.kwargs = kwargs;
    st = find_text(&conv);
    if (!st)
        st = mark_tokens(&conv, out);
    if (st && conv.is_mismatch && reader->ignore_mismatch) {
        RK_IGNORE(st, "data.ignore_input_ids_mismatch");
        rk_marked_ids_fini(out);
        st = concatenate(&conv, out);
    }
out:
    rk_json_free(kwargs);
    rk_json_free(tools);
    rk_free(conv.spans.items);
    rk_free(conv.ids.items);
    rk_str_fini(&conv.text);
    return st;
}

static struct rk_status *append_text(struct rk_marked_ids *out, const struct rk_example_reader *reader,
                                     const struct rk_json *text, bool is_counted)
{
    struct rk_tokenizer_ids ids;

    RK_TRY(rk_tokenizer_encode(reader->tokenizer, rk_json_as_string(text, ""), rk_json_string_bytes(text),
                               false, &ids));
    append(out, ids.items, ids.count, is_counted);
    rk_free(ids.items);
    return NULL;
}

struct rk_status *rk_response_read(struct rk_marked_ids *out, const struct rk_example_reader *reader,
                                   const struct rk_json *prompt, const struct rk_json *response)
{
    int64_t prompt_len;

    RK_TRY(append_text(out, reader, prompt, false));
    prompt_len = out->count;
    if (prompt_len == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "the prompt is empty");
    RK_TRY(append_text(out, reader, response, true));
    if (out->count == prompt_len)
        return RK_FAIL(RK_INVALID_ARGUMENT, "the response is empty");
    if (reader->eos_id >= 0 && out->ids[out->count - 1] != reader->eos_id)
        append(out, &reader->eos_id, 1, true);
    return NULL;
}
