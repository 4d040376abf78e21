/* Chat templates from text and from the files of a model's directory, and their rendering, including
 * transformers' preprocessing of messages. */
#include "text/rk_chat.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_small_file.h"
#include "text/chat/jinja_internal.h"
#include "text/rk_tokenizer.h"

#define ARENA_BLOCK_BYTES (64 << 10)
#define CONFIG_BYTES_MAX  (16u << 20) /* tokenizer_config.json lists every added token */

struct rk_chat {
    struct rk_jinja *plain;      /* the default */
    struct rk_jinja *with_tools; /* used when tools are given; NULL: the default */
    struct rk_json *variables;   /* special tokens */
};

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

int32_t rk_jinja_intern(struct rk_jinja *jinja, const char *name)
{
    intptr_t id = (intptr_t)rk_map_find(jinja->names, name);

    if (id == 0) {
        id = rk_map_count(jinja->names) + 1;
        (void)rk_map_put(jinja->names, name, (void *)id);
    }
    return (int32_t)(id - 1);
}

static struct rk_status *compile(struct rk_jinja **out, const char *text, size_t bytes, const char *source)
{
    struct rk_jinja *jinja;
    struct rk_parser parser = {.nesting = 0};
    struct rk_status *st;

    *out = NULL;
    if (bytes > RK_JINJA_TEMPLATE_BYTES_MAX)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%s: a template of %zu bytes, the limit is %d", source, bytes,
                       RK_JINJA_TEMPLATE_BYTES_MAX);
    if (!rk_utf8_is_valid(text, bytes))
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s: the template is not valid UTF-8", source);
    jinja = rk_calloc(1, sizeof(*jinja));
    jinja->source = rk_strdup(source);
    jinja->arena = rk_arena_create(ARENA_BLOCK_BYTES, RK_JINJA_MEMORY_BYTES_MAX);
    jinja->text = rk_calloc(bytes + 1, 1);
    jinja->text_bytes = bytes;
    memcpy(jinja->text, text, bytes);
    jinja->names = rk_map_create();
    jinja->id_loop = rk_jinja_intern(jinja, "loop");
    jinja->id_caller = rk_jinja_intern(jinja, "caller");
    parser.jinja = jinja;
    st = rk_jinja_lex(jinja, &parser.tokens);
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
    struct rk_status *st = compile(&chat->plain, text, bytes, source);

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

/* --- files of a directory --- */

static struct rk_status *read_json(struct rk_json **out, const char *dir, const char *name)
{
    return rk_load_json_if_there(out, dir, name, CONFIG_BYTES_MAX,
                                 RK_JSON_BIG_INT_AS_REAL | RK_JSON_ALLOW_NUL);
}

/* DIR/NAME as a template; *out is unchanged if there is no such file. */
static struct rk_status *compile_file(struct rk_jinja **out, const char *dir, const char *name)
{
    char *path = rk_path_join(dir, name), *text = NULL;
    size_t bytes = 0;
    struct rk_status *st = rk_load_file(&text, &bytes, path, RK_JINJA_TEMPLATE_BYTES_MAX);

    if (!st) {
        st = compile(out, text, bytes, path);
    } else if (rk_status_code(st) == RK_NOT_FOUND) {
        rk_status_free(st);
        st = NULL;
    }
    rk_free(text);
    rk_free(path);
    return st;
}

static struct rk_status *compile_json(struct rk_jinja **out, const struct rk_json *text, const char *source)
{
    return compile(out, rk_json_as_string(text, ""), rk_json_string_bytes(text), source);
}

/* [{"name": "default", "template": "..."}, ...] */
static struct rk_status *compile_list(struct rk_chat *chat, const struct rk_json *list, const char *source)
{
    for (int64_t i = 0; i < rk_json_count(list); i++) {
        const struct rk_json *text = rk_json_find(rk_json_at(list, i), "template");
        const char *name = rk_json_as_string(rk_json_find(rk_json_at(list, i), "name"), "");
        struct rk_jinja **place = strcmp(name, "default") == 0    ? &chat->plain
                                  : strcmp(name, "tool_use") == 0 ? &chat->with_tools
                                                                  : NULL;

        if (rk_json_type(text) != RK_JSON_STRING || !*name)
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "%s: item %lld: expected {\"name\": TEXT, \"template\": TEXT}", source,
                           (long long)i);
        if (place && *place)
            return RK_FAIL(RK_INVALID_ARGUMENT, "%s: item %lld: the name '%s' is repeated", source,
                           (long long)i, name);
        if (place)
            RK_TRY(compile_json(place, text, source));
    }
    return chat->plain ? NULL : RK_FAIL(RK_INVALID_ARGUMENT, "%s: no template is named 'default'", source);
}

/* The member chat_template of a JSON file, if it has one. */
static struct rk_status *compile_member(struct rk_chat *chat, const struct rk_json *config, const char *dir,
                                        const char *file)
{
    const struct rk_json *member = rk_json_find(config, "chat_template");
    char *source;
    struct rk_status *st;

    if (rk_json_is_null(member))
        return NULL;
    source = rk_format("%s/%s: chat_template", dir, file);
    if (rk_json_type(member) == RK_JSON_STRING)
        st = compile_json(&chat->plain, member, source);
    else if (rk_json_type(member) == RK_JSON_ARRAY)
        st = compile_list(chat, member, source);
    else
        st = RK_FAIL(RK_INVALID_ARGUMENT, "%s: expected text or a list of templates, got %s", source,
                     rk_json_type_name(rk_json_type(member)));
    rk_free(source);
    return st;
}

static struct rk_status *read_dir(struct rk_chat *chat, const char *dir, const char *custom)
{
    struct rk_json *config = NULL, *legacy = NULL;
    struct rk_status *st;

    RK_TRY_GOTO(st, rk_special_tokens_read_dir(&chat->variables, dir), out);
    if (custom) {
        st = compile(&chat->plain, custom, strlen(custom), "template");
        goto out;
    }
    RK_TRY_GOTO(st, compile_file(&chat->plain, dir, "chat_template.jinja"), out);
    RK_TRY_GOTO(st, compile_file(&chat->with_tools, dir, "additional_chat_templates/tool_use.jinja"), out);
    RK_TRY_GOTO(st, read_json(&config, dir, "tokenizer_config.json"), out);
    if (!chat->plain)
        RK_TRY_GOTO(st, compile_member(chat, config, dir, "tokenizer_config.json"), out);
    if (!chat->plain) {
        RK_TRY_GOTO(st, read_json(&legacy, dir, "chat_template.json"), out);
        st = compile_member(chat, legacy, dir, "chat_template.json");
    }
out:
    rk_json_free(config);
    rk_json_free(legacy);
    return st;
}

struct rk_status *rk_chat_create_dir(struct rk_chat **out, const char *dir, const char *custom)
{
    struct rk_chat *chat = rk_calloc(1, sizeof(*chat));
    struct rk_status *st;

    *out = NULL;
    st = read_dir(chat, dir, custom);
    if (!st && chat->plain)
        *out = chat;
    else
        rk_chat_destroy(chat);
    return st;
}

/* --- messages --- */

/* A message: members that are null are left out, and its reasoning, which has one of three names, gets the
 * two that templates use. */
static rk_value_t read_message(struct rk_render *r, const struct rk_json *json)
{
    static const char *const names[] = {"reasoning_content", "thinking", "reasoning"};
    rk_value_t whole = rk_value_from_json(r, json), message = rk_value_new_dict(r, RK_VALUE_DICT);
    const rk_value_t *reasoning = NULL;

    if (whole.kind != RK_VALUE_DICT)
        return RK_RAISE(r, "a message: expected an object, got %s", rk_json_type_name(rk_json_type(json)));
    for (size_t i = 0; i < RK_ARRAY_LEN(names) && !reasoning; i++) {
        reasoning = rk_dict_find_text(whole.dict, names[i], strlen(names[i]));
        if (reasoning && reasoning->kind == RK_VALUE_NONE)
            reasoning = NULL;
    }
    if (reasoning)
        rk_dict_put(r, message.dict, rk_value_new_text(r, "thinking", 8), *reasoning);
    for (int64_t i = 0; i < whole.dict->count; i++) {
        if (whole.dict->values[i].kind != RK_VALUE_NONE)
            rk_dict_put(r, message.dict, whole.dict->keys[i], whole.dict->values[i]);
    }
    if (reasoning)
        rk_dict_put(r, message.dict, rk_value_new_text(r, "reasoning_content", 17), *reasoning);
    return message;
}

static rk_value_t read_messages(struct rk_render *r, const struct rk_json *json)
{
    rk_value_t messages = rk_value_new_list(r, RK_VALUE_LIST);

    if (rk_json_type(json) != RK_JSON_ARRAY || rk_json_count(json) == 0)
        return RK_RAISE(r, "messages: expected an array with at least one message");
    for (int64_t i = 0; i < rk_json_count(json) && !r->error; i++)
        rk_list_append(r, messages.list, read_message(r, rk_json_at(json, i)));
    return messages;
}

/* --- variables --- */

/* Does nothing for a name that the template does not contain. */
static void put_variable(struct rk_render *r, const char *name, rk_value_t value)
{
    intptr_t id = (intptr_t)rk_map_find(r->jinja->names, name);

    if (id)
        rk_scope_put(r, (int32_t)(id - 1), value);
}

static void put_all(struct rk_render *r, const struct rk_json *object)
{
    for (void *it = rk_json_iter(object); it && !r->error; it = rk_json_iter_next(object, it)) {
        if (rk_map_find(r->jinja->names, rk_json_iter_key(it)))
            put_variable(r, rk_json_iter_key(it), rk_value_from_json(r, rk_json_iter_value(it)));
    }
}

static void put_variables(struct rk_render *r, const struct rk_chat *chat, const struct rk_chat_args *args)
{
    put_all(r, chat->variables);
    put_variable(r, "documents", rk_value_none());
    put_all(r, args->kwargs);
    put_variable(r, "messages", read_messages(r, args->messages));
    put_variable(r, "tools", args->tools ? rk_value_from_json(r, args->tools) : rk_value_none());
    put_variable(r, "add_generation_prompt", rk_value_bool(args->add_generation_prompt));
}

/* --- rendering --- */

struct rk_status *rk_chat_render(const struct rk_chat *chat, const struct rk_chat_args *args,
                                 struct rk_str *out)
{
    struct rk_render r = {.jinja = args->tools && chat->with_tools ? chat->with_tools : chat->plain,
                          .out = out,
                          .whole = out,
                          .generations = args->generations,
                          .line = 1,
                          .now_s = args->now_s};

    RK_ASSERT(r.jinja != NULL);
    r.arena = rk_arena_create(ARENA_BLOCK_BYTES, RK_JINJA_MEMORY_BYTES_MAX);
    r.reserve = rk_arena_create(ARENA_BLOCK_BYTES, 0);
    rk_scope_push(&r, NULL);
    put_variables(&r, chat, args);
    rk_scope_push(&r, r.scope); /* scope of the template's variables */
    rk_render_block(&r, r.jinja->body);
    rk_arena_destroy(r.arena);
    rk_arena_destroy(r.reserve);
    return r.error;
}
