/* Prompts: text that is encoded as it is, or messages that the model's chat template renders. Special tokens
 * in the text are recognised, and none are added: the template has them. */
#include "driver-cli/data/prompt_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

void rk_prompt_fini(struct rk_prompt *prompt)
{
    rk_free(prompt->text);
    rk_free(prompt->ids.items);
    *prompt = (struct rk_prompt){0};
}

static const char *type_of(const struct rk_json *json)
{
    return json ? rk_json_type_name(rk_json_type(json)) : "nothing";
}

/* --- messages --- */

/* {"type": "text", "text": ...} */
static struct rk_status *check_part(const struct rk_json *part)
{
    const char *type = rk_json_as_string(rk_json_find(part, "type"), NULL);

    if (!type)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "expected {\"type\": \"text\", \"text\": ...}, got %s without a type", type_of(part));
    if (strcmp(type, "text") != 0)
        return RK_FAIL(RK_UNIMPLEMENTED, "parts of type '%s' are not supported: prompts are text", type);
    if (rk_json_type(rk_json_find(part, "text")) != RK_JSON_STRING)
        return RK_FAIL(RK_INVALID_ARGUMENT, "text: expected a string, got %s",
                       type_of(rk_json_find(part, "text")));
    return NULL;
}

static struct rk_status *check_content(const struct rk_json *message)
{
    const struct rk_json *content = rk_json_find(message, "content");

    if (rk_json_type(content) == RK_JSON_STRING)
        return NULL;
    if (rk_json_is_null(content) && rk_json_count(rk_json_find(message, "tool_calls")) > 0)
        return NULL;
    if (rk_json_type(content) != RK_JSON_ARRAY)
        return RK_FAIL(RK_INVALID_ARGUMENT, "content: expected text or a list of parts, got %s",
                       type_of(content));
    for (int64_t i = 0; i < rk_json_count(content); i++) {
        struct rk_status *st = check_part(rk_json_at(content, i));

        if (st)
            return RK_WRAP(st, "content[%lld]", (long long)i);
    }
    return NULL;
}

static struct rk_status *check_message(const struct rk_json *message)
{
    const struct rk_json *role = rk_json_find(message, "role");

    if (rk_json_type(message) != RK_JSON_OBJECT)
        return RK_FAIL(RK_INVALID_ARGUMENT, "expected {\"role\": ..., \"content\": ...}, got %s",
                       type_of(message));
    if (rk_json_type(role) != RK_JSON_STRING)
        return RK_FAIL(RK_INVALID_ARGUMENT, "role: expected a string, got %s", type_of(role));
    return check_content(message);
}

static struct rk_status *check_messages(const struct rk_json *messages)
{
    if (rk_json_count(messages) == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "the list of messages is empty");
    for (int64_t i = 0; i < rk_json_count(messages); i++) {
        struct rk_status *st = check_message(rk_json_at(messages, i));

        if (st)
            return RK_WRAP(st, "[%lld]", (long long)i);
    }
    return NULL;
}

static struct rk_status *no_template(const struct rk_dataset_config *config)
{
    return RK_FAIL(
        RK_INVALID_ARGUMENT,
        "a list of messages needs a chat template, and %s has none (chat_template.jinja, or "
        "chat_template in tokenizer_config.json); set actor_rollout_ref.model.custom_chat_template, name "
        "a tokenizer that has one, or give text",
        config->template_dir ? config->template_dir : "the tokenizer");
}

/* The row's tools, if any: JSON schemas for the template. */
static struct rk_status *find_tools(const struct rk_json *row, const struct rk_json **out)
{
    const struct rk_json *tools = rk_json_find(row, "tools");

    *out = rk_json_count(tools) > 0 ? tools : NULL;
    if (!rk_json_is_null(tools) && rk_json_type(tools) != RK_JSON_ARRAY)
        return RK_FAIL(RK_INVALID_ARGUMENT, "tools: expected a list of JSON schemas, got %s", type_of(tools));
    for (int64_t i = 0; i < rk_json_count(tools); i++) {
        if (rk_json_type(rk_json_at(tools, i)) != RK_JSON_OBJECT)
            return RK_FAIL(RK_INVALID_ARGUMENT, "tools[%lld]: expected a JSON schema, got %s", (long long)i,
                           type_of(rk_json_at(tools, i)));
    }
    return NULL;
}

static struct rk_status *render(struct rk_prompt *out, const struct rk_json *row,
                                const struct rk_json *messages, const struct rk_dataset_config *config,
                                size_t *bytes)
{
    struct rk_chat_args args = {.messages = messages,
                                .kwargs = config->chat_kwargs,
                                .add_generation_prompt = true,
                                .now_s = config->now_s};
    struct rk_str text = {0};
    struct rk_status *st = check_messages(messages);

    if (!st && !config->chat)
        st = no_template(config);
    if (!st)
        st = find_tools(row, &args.tools);
    if (!st)
        st = rk_chat_render(config->chat, &args, &text);
    if (!st) {
        *bytes = text.bytes;
        out->text = text.bytes > 0 ? rk_str_take(&text) : rk_strdup("");
    }
    rk_str_fini(&text);
    return st;
}

/* --- rows --- */

/* What a row for a model that sees has beside its prompt. */
static struct rk_status *refuse_media(const struct rk_json *row)
{
    static const char *const names[] = {"images", "videos", "audios"};

    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++) {
        if (rk_json_count(rk_json_find(row, names[i])) > 0)
            return RK_FAIL(RK_UNIMPLEMENTED, "%s: not supported: prompts are text", names[i]);
    }
    return NULL;
}

static struct rk_status *read_text(struct rk_prompt *out, const struct rk_json *row,
                                   const struct rk_dataset_config *config, size_t *bytes)
{
    const struct rk_json *prompt = rk_json_find(row, config->prompt_key);

    *bytes = rk_json_string_bytes(prompt);
    out->is_chat = rk_json_type(prompt) == RK_JSON_ARRAY;
    if (out->is_chat)
        return render(out, row, prompt, config, bytes);
    if (rk_json_type(prompt) != RK_JSON_STRING)
        return RK_FAIL(RK_INVALID_ARGUMENT, "expected text or a list of messages, got %s", type_of(prompt));
    out->text = rk_strdup(rk_json_as_string(prompt, ""));
    return NULL;
}

struct rk_status *rk_prompt_read(struct rk_prompt *out, const struct rk_json *row,
                                 const struct rk_dataset_config *config, const struct rk_tokenizer *tokenizer)
{
    struct rk_status *st;
    size_t bytes = 0;

    *out = (struct rk_prompt){0};
    RK_TRY(refuse_media(row));
    st = read_text(out, row, config, &bytes);
    if (!st)
        st = rk_tokenizer_encode(tokenizer, out->text, bytes, false, &out->ids);
    if (!st && out->ids.count == 0)
        st = RK_FAIL(RK_INVALID_ARGUMENT, "the prompt is empty");
    return st ? RK_WRAP(st, "%s", config->prompt_key) : NULL;
}
