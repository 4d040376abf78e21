/* Chat templates and special tokens from the files of a model's directory. */
#include <string.h>

#include "base/rk_alloc.h"
#include "text/chat/chat_internal.h"
#include "base/rk_small_file.h"
#include "text/rk_tokenizer.h"

#define CONFIG_BYTES_MAX (16u << 20) /* tokenizer_config.json lists every added token */

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
        st = rk_jinja_compile(out, text, bytes, path);
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
    return rk_jinja_compile(out, rk_json_as_string(text, ""), rk_json_string_bytes(text), source);
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
        st = rk_jinja_compile(&chat->plain, custom, strlen(custom), "template");
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
