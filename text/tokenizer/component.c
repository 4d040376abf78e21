/* Functions shared by the readers of tokenizer.json's components. */
#include "text/tokenizer/tokenizer_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

const char *rk_component_type(const struct rk_json *json)
{
    return rk_json_as_string(rk_json_find(json, "type"), "");
}

struct rk_status *rk_component_each(const struct rk_json *json, const char *where, const char *list,
                                    rk_component_fn_t read, void *user)
{
    const struct rk_json *items = rk_json_find(json, list);
    struct rk_status *st = NULL;

    if (rk_json_is_null(json))
        return NULL;
    if (strcmp(rk_component_type(json), "Sequence") != 0)
        return read(user, json, where);
    if (rk_json_type(items) != RK_JSON_ARRAY)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s.%s: expected a list", where, list);
    for (int64_t i = 0; i < rk_json_count(items) && !st; i++) {
        char *item_where = rk_format("%s.%s[%lld]", where, list, (long long)i);

        st = rk_component_each(rk_json_at(items, i), item_where, list, read, user);
        rk_free(item_where);
    }
    return st;
}

struct rk_status *rk_component_string(struct rk_str *out, const struct rk_json *json, const char *where,
                                      const char *key)
{
    const char *text = NULL;

    RK_TRY(rk_json_get_string(json, where, key, &text));
    rk_str_append_bytes(out, text, rk_json_string_bytes(rk_json_find(json, key)));
    return NULL;
}

struct rk_status *rk_component_char(struct rk_str *out, const struct rk_json *json, const char *where,
                                    const char *key)
{
    bool is_valid;

    RK_TRY(rk_component_string(out, json, where, key));
    if (out->bytes == 0 || rk_utf8_part(out->text, out->bytes, &is_valid) != out->bytes)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s.%s: expected one character, got '%s'", where, key,
                       rk_str_text(out));
    return NULL;
}

static struct rk_status *read_prepend(enum rk_prepend *out, const struct rk_json *json, const char *where)
{
    static const char *const names[] = {
        [RK_PREPEND_NEVER] = "never", [RK_PREPEND_FIRST] = "first", [RK_PREPEND_ALWAYS] = "always"};
    bool add_prefix_space = true;
    const char *name = NULL;
    size_t i = 0;

    RK_TRY(rk_json_opt_string(json, where, "prepend_scheme", &name));
    RK_TRY(rk_json_opt_bool(json, where, "add_prefix_space", &add_prefix_space));
    if (!name) /* files older than prepend_scheme */
        name = names[add_prefix_space ? RK_PREPEND_ALWAYS : RK_PREPEND_NEVER];
    while (i < RK_ARRAY_LEN(names) && strcmp(name, names[i]) != 0)
        i++;
    if (i == RK_ARRAY_LEN(names))
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s.prepend_scheme: expected never, first or always, got '%s'",
                       where, name);
    *out = (enum rk_prepend)i;
    if (!add_prefix_space && *out != RK_PREPEND_NEVER)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s.add_prefix_space: false, but prepend_scheme is '%s'", where,
                       name);
    return NULL;
}

struct rk_status *rk_metaspace_read(struct rk_metaspace *out, const struct rk_json *json, const char *where)
{
    struct rk_status *st = NULL;

    out->split = true;
    RK_TRY_GOTO(st, rk_component_char(&out->marker, json, where, "replacement"), out);
    RK_TRY_GOTO(st, read_prepend(&out->prepend, json, where), out);
    RK_TRY_GOTO(st, rk_json_opt_bool(json, where, "split", &out->split), out);
    return NULL;
out:
    rk_str_fini(&out->marker);
    return st;
}
