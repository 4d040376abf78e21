/* Messages: common checks of all readers of data rows, and the chat template. */
#include "rl/data/messages.h"

#include <stdarg.h>
#include <string.h>

#include "base/rk_alloc.h"

#define MEMBERS_BYTES_MAX 200 /* of the list of members in a message */

const char *rk_messages_type_of(const struct rk_json *json)
{
    return json ? rk_json_type_name(rk_json_type(json)) : "nothing";
}

char *rk_messages_members(const struct rk_json *object)
{
    struct rk_str text = {0};
    void *it = object && rk_json_type(object) == RK_JSON_OBJECT ? rk_json_iter(object) : NULL;

    for (; it && text.bytes < MEMBERS_BYTES_MAX; it = rk_json_iter_next(object, it))
        rk_str_appendf(&text, "%s%.64s", text.bytes > 0 ? ", " : "", rk_json_iter_key(it));
    if (text.bytes == 0 || it)
        rk_str_append(&text, it ? ", ..." : "no members");
    return rk_str_take(&text);
}

struct rk_status *rk_messages_wrong(const struct rk_json *owner, const char *key, const char *fmt, ...)
{
    const struct rk_json *value = rk_json_find(owner, key);
    char *members = value ? NULL : rk_messages_members(owner);
    struct rk_str text = {0};
    struct rk_status *st;
    va_list args;

    va_start(args, fmt);
    rk_str_vappendf(&text, fmt, args);
    va_end(args);
    st = RK_FAIL(RK_INVALID_ARGUMENT, "%s, got %s%s%s", rk_str_text(&text), rk_messages_type_of(value),
                 members ? "; there are: " : "", members ? members : "");
    rk_str_fini(&text);
    rk_free(members);
    return st;
}

/* {"type": "text", "text": ...} */
static struct rk_status *check_part(const struct rk_json *part)
{
    const char *type = rk_json_as_string(rk_json_find(part, "type"), NULL);

    if (!type)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "expected {\"type\": \"text\", \"text\": ...}, got %s without a type",
                       rk_messages_type_of(part));
    if (strcmp(type, "text") != 0)
        return RK_FAIL(RK_UNIMPLEMENTED, "parts of type '%s' are not supported: prompts are text", type);
    if (rk_json_type(rk_json_find(part, "text")) != RK_JSON_STRING)
        return rk_messages_wrong(part, "text", "text: expected a string");
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
        return rk_messages_wrong(message, "content", "content: expected text or a list of parts");
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
                       rk_messages_type_of(message));
    if (rk_json_type(role) != RK_JSON_STRING)
        return rk_messages_wrong(message, "role", "role: expected a string");
    return check_content(message);
}

struct rk_status *rk_messages_check(const struct rk_json *messages)
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

static struct rk_status *no_template(const struct rk_messages_template *from)
{
    return RK_FAIL(
        RK_INVALID_ARGUMENT,
        "a list of messages needs a chat template, and %s has none (chat_template.jinja, or "
        "chat_template in tokenizer_config.json); set actor_rollout_ref.model.custom_chat_template, use "
        "a tokenizer that has one, or use text prompts",
        from->dir ? from->dir : "the tokenizer");
}

#define TOOLS_FORM "tools: expected a list of JSON schemas, or the JSON text of one"

static struct rk_status *check_tools(const struct rk_json *tools)
{
    if (!rk_json_is_null(tools) && rk_json_type(tools) != RK_JSON_ARRAY)
        return RK_FAIL(RK_INVALID_ARGUMENT, TOOLS_FORM ", got %s", rk_messages_type_of(tools));
    for (int64_t i = 0; i < rk_json_count(tools); i++) {
        if (rk_json_type(rk_json_at(tools, i)) != RK_JSON_OBJECT)
            return RK_FAIL(RK_INVALID_ARGUMENT, "tools[%lld]: expected a JSON schema, got %s", (long long)i,
                           rk_messages_type_of(rk_json_at(tools, i)));
    }
    return NULL;
}

struct rk_status *rk_messages_tools(const struct rk_json *row, struct rk_json **out)
{
    const struct rk_json *value = rk_json_find(row, "tools");
    struct rk_json *tools = NULL;
    struct rk_status *st = NULL;

    *out = NULL;
    if (rk_json_type(value) != RK_JSON_STRING)
        tools = value ? rk_json_retain(value) : NULL;
    else if (rk_json_string_bytes(value) > 0)
        st = rk_json_parse(&tools, rk_json_as_string(value, ""), rk_json_string_bytes(value), NULL,
                           RK_JSON_ALLOW_NUL | RK_JSON_BIG_INT_AS_REAL | RK_JSON_NAN_AS_NULL);
    if (st)
        return RK_WRAP(st, TOOLS_FORM);
    st = check_tools(tools);
    if (!st && rk_json_count(tools) > 0)
        *out = rk_json_retain(tools);
    rk_json_free(tools);
    return st;
}

struct rk_status *rk_messages_refuse_media(const struct rk_json *row)
{
    static const char *const names[] = {"images", "videos", "audios"};

    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++) {
        if (rk_json_count(rk_json_find(row, names[i])) > 0)
            return RK_FAIL(RK_UNIMPLEMENTED, "%s: not supported: prompts are text", names[i]);
    }
    return NULL;
}

struct rk_status *rk_messages_render(struct rk_str *out, const struct rk_messages_template *from,
                                     const struct rk_chat_args *args)
{
    struct rk_chat_args all = *args;

    if (!from->chat)
        return no_template(from);
    all.kwargs = args->kwargs ? args->kwargs : from->chat_kwargs;
    all.now_s = from->now_s;
    return rk_chat_render(from->chat, &all, out);
}
