/* Chat templates from text, and rendering, including transformers' preprocessing of messages. */
#include "text/rk_chat.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "text/chat/chat_internal.h"

#define ARENA_BLOCK_BYTES (64 << 10)

/* --- compiling --- */

static void jinja_destroy(struct rk_jinja *jinja)
{
    if (!jinja)
        return;
    rk_map_destroy(jinja->names);
    rk_arena_destroy(jinja->arena);
    rk_free(jinja->source);
    rk_free(jinja->text);
    rk_free(jinja);
}

static int32_t intern(struct rk_jinja *jinja, const char *name)
{
    intptr_t id = rk_map_count(jinja->names) + 1;

    (void)rk_map_put(jinja->names, name, (void *)id);
    return (int32_t)(id - 1);
}

struct rk_status *rk_jinja_compile(struct rk_jinja **out, const char *text, size_t bytes, const char *source)
{
    struct rk_jinja *jinja;
    struct rk_parser parser = {.nesting = 0};
    struct rk_status *st;

    *out = NULL;
    if (bytes > RK_JINJA_TEMPLATE_BYTES_MAX)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%s: a template of %zu bytes, the limit is %d", source, bytes,
                       RK_JINJA_TEMPLATE_BYTES_MAX);
    if (!rk_utf8_is_valid(text, bytes))
        return RK_TEMPLATE_ERROR("%s: the template is not valid UTF-8", source);
    jinja = rk_calloc(1, sizeof(*jinja));
    jinja->source = rk_strdup(source);
    jinja->arena = rk_arena_create(ARENA_BLOCK_BYTES, RK_JINJA_MEMORY_BYTES_MAX);
    jinja->text = rk_calloc(bytes + 1, 1);
    jinja->text_bytes = bytes;
    memcpy(jinja->text, text, bytes);
    jinja->names = rk_map_create();
    jinja->id_loop = intern(jinja, "loop");
    jinja->id_caller = intern(jinja, "caller");
    jinja->id_varargs = intern(jinja, "varargs");
    jinja->id_kwargs = intern(jinja, "kwargs");
    parser.jinja = jinja;
    st = rk_jinja_lex(jinja, text, bytes, &parser.tokens);
    if (!st)
        st = rk_jinja_parse(&parser);
    rk_array_fini(&parser.tokens);
    if (st)
        jinja_destroy(jinja);
    else
        *out = jinja;
    return st;
}

struct rk_status *rk_chat_create_text(struct rk_chat **out, const char *text, size_t bytes,
                                      const char *source)
{
    struct rk_chat *chat = rk_calloc(1, sizeof(*chat));
    struct rk_status *st = rk_jinja_compile(&chat->plain, text, bytes, source);

    chat->variables = rk_json_new_object();
    *out = chat;
    if (st) {
        rk_chat_destroy(chat);
        *out = NULL;
    }
    return st;
}

void rk_chat_destroy(struct rk_chat *chat)
{
    if (!chat)
        return;
    jinja_destroy(chat->plain);
    jinja_destroy(chat->with_tools);
    rk_json_free(chat->variables);
    rk_free(chat);
}

void rk_chat_set_variables(struct rk_chat *chat, const struct rk_json *variables)
{
    for (void *it = rk_json_iter(variables); it; it = rk_json_iter_next(variables, it))
        rk_json_set(chat->variables, rk_json_iter_key(it), rk_json_clone(rk_json_iter_value(it)));
}

static bool has_same_text(const struct rk_jinja *a, const struct rk_jinja *b)
{
    if (!a || !b)
        return a == b;
    return a->text_bytes == b->text_bytes && memcmp(a->text, b->text, a->text_bytes) == 0;
}

/* Templates render only these two; other special tokens, such as that for padding, do not affect the text. */
bool rk_chat_is_same(const struct rk_chat *a, const struct rk_chat *b)
{
    static const char *const tokens[] = {"bos_token", "eos_token"};

    if (!a || !b)
        return a == b;
    for (size_t i = 0; i < RK_ARRAY_LEN(tokens); i++) {
        const char *text = rk_json_as_string(rk_json_find(a->variables, tokens[i]), "");

        if (strcmp(text, rk_json_as_string(rk_json_find(b->variables, tokens[i]), "")) != 0)
            return false;
    }
    return has_same_text(a->plain, b->plain) && has_same_text(a->with_tools, b->with_tools);
}

/* --- messages --- */

static struct rk_status *put_member(struct rk_render *r, struct rk_dict *dict, const char *key,
                                    rk_value_t value)
{
    rk_value_t name;

    RK_TRY(rk_value_new_string(r, &name, key, strlen(key)));
    return rk_dict_put(r, dict, name, value);
}

/* The reasoning of a message has one of three names; templates use two of them. */
static struct rk_status *alias_reasoning(struct rk_render *r, const struct rk_dict *message, rk_value_t *out)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    const rk_value_t *reasoning = NULL;

    for (size_t i = 0; i < RK_ARRAY_LEN(names) && !reasoning; i++)
        reasoning = rk_dict_find_text(message, names[i], strlen(names[i]));
    if (!reasoning)
        return NULL;
    RK_TRY(rk_value_new_dict(r, out, RK_VALUE_DICT, message->count + 2));
    RK_TRY(put_member(r, out->dict, "thinking", *reasoning));
    for (int64_t i = 0; i < message->count; i++)
        RK_TRY(rk_dict_put(r, out->dict, message->keys[i], message->values[i]));
    return put_member(r, out->dict, "reasoning_content", *reasoning);
}

/* Members that are null are left out. */
static struct rk_status *read_message(struct rk_render *r, const struct rk_json *json, rk_value_t *out)
{
    rk_value_t whole;

    RK_TRY(rk_value_from_json(r, &whole, json));
    if (whole.kind != RK_VALUE_DICT)
        return RK_TEMPLATE_ERROR("a message: expected an object, got %s",
                                 rk_json_type_name(rk_json_type(json)));
    RK_TRY(rk_value_new_dict(r, out, RK_VALUE_DICT, whole.dict->count));
    for (int64_t i = 0; i < whole.dict->count; i++) {
        if (whole.dict->values[i].kind != RK_VALUE_NONE)
            RK_TRY(rk_dict_put(r, out->dict, whole.dict->keys[i], whole.dict->values[i]));
    }
    return alias_reasoning(r, out->dict, out);
}

static struct rk_status *read_messages(struct rk_render *r, const struct rk_json *json, rk_value_t *out)
{
    int64_t count = rk_json_count(json);

    if (rk_json_type(json) != RK_JSON_ARRAY || count == 0)
        return RK_TEMPLATE_ERROR("messages: expected an array with at least one message");
    RK_TRY(rk_value_new_list(r, out, RK_VALUE_LIST, count));
    for (int64_t i = 0; i < count; i++) {
        rk_value_t message;

        RK_TRY(read_message(r, rk_json_at(json, i), &message));
        RK_TRY(rk_list_append(r, out->list, message));
    }
    return NULL;
}

/* --- variables --- */

/* Does nothing for a name that the template does not contain. */
static struct rk_status *put_variable(struct rk_render *r, const char *name, rk_value_t value)
{
    intptr_t id = (intptr_t)rk_map_find(r->jinja->names, name);

    return id ? rk_scope_put(r, r->scope, (int32_t)(id - 1), value) : NULL;
}

static struct rk_status *put_all(struct rk_render *r, const struct rk_json *object)
{
    for (void *it = rk_json_iter(object); it; it = rk_json_iter_next(object, it)) {
        rk_value_t value;

        if (!rk_map_find(r->jinja->names, rk_json_iter_key(it)))
            continue;
        RK_TRY(rk_value_from_json(r, &value, rk_json_iter_value(it)));
        RK_TRY(put_variable(r, rk_json_iter_key(it), value));
    }
    return NULL;
}

static struct rk_status *put_variables(struct rk_render *r, const struct rk_chat *chat,
                                       const struct rk_chat_args *args)
{
    rk_value_t messages, tools = rk_value_none();

    RK_TRY(put_all(r, chat->variables));
    RK_TRY(put_all(r, args->kwargs));
    RK_TRY(read_messages(r, args->messages, &messages));
    if (args->tools)
        RK_TRY(rk_value_from_json(r, &tools, args->tools));
    RK_TRY(put_variable(r, "messages", messages));
    RK_TRY(put_variable(r, "tools", tools));
    if (!rk_json_find(args->kwargs, "documents"))
        RK_TRY(put_variable(r, "documents", rk_value_none()));
    return put_variable(r, "add_generation_prompt", rk_value_bool(args->add_generation_prompt));
}

/* --- rendering --- */

static struct rk_status *render(struct rk_render *r, const struct rk_chat *chat,
                                const struct rk_chat_args *args)
{
    RK_TRY(rk_scope_push(r, NULL));
    RK_TRY(put_variables(r, chat, args));
    RK_TRY(rk_scope_push(r, r->scope)); /* scope of the template's variables */
    return rk_render_block(r, r->jinja->body);
}

struct rk_status *rk_chat_render(const struct rk_chat *chat, const struct rk_chat_args *args,
                                 struct rk_str *out)
{
    struct rk_render r = {.jinja = args->tools && chat->with_tools ? chat->with_tools : chat->plain,
                          .out = out,
                          .whole = out,
                          .generations = args->generations,
                          .line = 1,
                          .now_s = args->now_s};
    struct rk_status *st;

    RK_ASSERT(r.jinja != NULL);
    r.arena = rk_arena_create(ARENA_BLOCK_BYTES, RK_JINJA_MEMORY_BYTES_MAX);
    st = render(&r, chat, args);
    rk_arena_destroy(r.arena);
    return st ? RK_WRAP(st, "%s:%d", r.jinja->source, r.line) : NULL;
}
