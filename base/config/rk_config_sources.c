/* Sources that override the file (environment, flags) and defaults below it, and the deep merge of all. */
#include "base/config/rk_config_internal.h"

#include <ctype.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_env.h"
#include "base/rk_json.h"

bool rk_config_is_ref(const struct rk_json *json)
{
    const char *text = rk_json_as_string(json, "");

    return rk_str_has_prefix(text, "${") && rk_str_has_suffix(text, "}");
}

/* --- merge --- */

typedef enum kind { KIND_ANY, KIND_OBJECT, KIND_ARRAY, KIND_STRING, KIND_BOOL, KIND_NUMBER } kind_t;

/* Whether a value may be replaced by another. A reference may have a value of any type. */
static kind_t kind_of(const struct rk_json *json)
{
    if (rk_config_is_ref(json))
        return KIND_ANY;
    switch (rk_json_type(json)) {
    case RK_JSON_OBJECT:
        return KIND_OBJECT;
    case RK_JSON_ARRAY:
        return KIND_ARRAY;
    case RK_JSON_STRING:
        return KIND_STRING;
    case RK_JSON_BOOL:
        return KIND_BOOL;
    case RK_JSON_INT:
    case RK_JSON_REAL:
        return KIND_NUMBER;
    default:
        return KIND_ANY;
    }
}

static void delete_members(struct rk_config_loader *loader, struct rk_json *dst, const char *path,
                           const struct rk_json *names, const struct rk_config_place *place)
{
    if (rk_json_type(names) != RK_JSON_ARRAY)
        rk_config_problem(loader, place, path, "__delete__: expected an array of names");
    for (int64_t i = 0; rk_json_type(names) == RK_JSON_ARRAY && i < rk_json_count(names); i++) {
        const char *name = rk_json_as_string(rk_json_at(names, i), "");

        if (!rk_json_find(dst, name))
            rk_config_problem(loader, place, path, "__delete__: there is no '%s'", name);
        rk_json_remove(dst, name);
    }
}

static void merge_member(struct rk_config_loader *loader, struct rk_json *dst, const char *path,
                         const char *key, const struct rk_json *value, const struct rk_config_place *place)
{
    struct rk_json *old = rk_json_find(dst, key);
    kind_t old_kind = kind_of(old), new_kind = kind_of(value);

    if (rk_str_has_prefix(key, "__")) {
        rk_config_problem(loader, place, path, "not allowed here");
        return;
    }
    if (old_kind != KIND_ANY && new_kind != KIND_ANY && old_kind != new_kind) {
        char *text = rk_json_describe(value);
        char *old_place = rk_config_place_text(rk_config_find_place(loader, path));

        rk_config_problem(loader, place, path, "expected %s as in %s, got %s",
                          rk_json_type_name(rk_json_type(old)), old_place, text);
        rk_free(old_place);
        rk_free(text);
        return;
    }
    if (new_kind != KIND_OBJECT || rk_json_count(value) == 0) {
        if (new_kind != KIND_OBJECT || old_kind != KIND_OBJECT) {
            rk_json_set(dst, key, rk_json_clone(value));
            rk_config_set_place(loader, path, place);
        }
        return;
    }
    if (old_kind != KIND_OBJECT) {
        old = rk_json_new_object();
        rk_json_set(dst, key, old);
    }
    rk_config_merge(loader, old, path, value, place);
}

void rk_config_merge(struct rk_config_loader *loader, struct rk_json *dst, const char *path,
                     const struct rk_json *src, const struct rk_config_place *place)
{
    const struct rk_json *deleted = rk_json_find(src, "__delete__");

    if (deleted)
        delete_members(loader, dst, path, deleted, place);
    for (void *it = rk_json_iter(src); it; it = rk_json_iter_next(src, it)) {
        const char *key = rk_json_iter_key(it);
        char *member_path = rk_json_join_path(path, key);
        char *written_at = rk_json_join_path(place->path ? place->path : "", key);
        struct rk_config_place member_place = {.doc = place->doc, .path = written_at, .text = place->text};

        if (strcmp(key, "__delete__") != 0)
            merge_member(loader, dst, member_path, key, rk_json_iter_value(it), &member_place);
        rk_free(written_at);
        rk_free(member_path);
    }
}

/* --- environment and flags --- */

bool rk_config_holds_text(const struct rk_config_loader *loader, const char *path)
{
    const struct rk_config_key *row = rk_map_find(loader->rows, path);

    return row &&
           (row->type == RK_CONFIG_STRING || row->type == RK_CONFIG_BYTES || row->type == RK_CONFIG_DURATION);
}

struct rk_json *rk_config_parse_value(const struct rk_config_loader *loader, const char *path,
                                      const char *text)
{
    struct rk_json *value;
    struct rk_status *st = rk_json_parse(&value, text, strlen(text), "value", 0);
    bool is_json = !st;

    RK_IGNORE(st, "what is not JSON is a bare word");
    if (is_json && rk_config_holds_text(loader, path) && rk_json_type(value) != RK_JSON_STRING &&
        !rk_json_is_null(value)) {
        rk_json_free(value);
        is_json = false;
    }
    return is_json ? value : rk_json_new_string(text);
}

/* Takes `value`. */
static void put_at(struct rk_config_loader *loader, const char *path, struct rk_json *value,
                   const struct rk_config_place *place)
{
    struct rk_json *old;

    rk_config_expand_parents(loader, path);
    if (rk_config_put_in_section(loader, path, value, place))
        return;
    if (rk_json_type(value) != RK_JSON_OBJECT) {
        rk_json_set_path(loader->tree, path, value);
        rk_config_set_place(loader, path, place);
        return;
    }
    old = rk_json_find_path(loader->tree, path);
    if (rk_json_type(old) != RK_JSON_OBJECT) {
        old = rk_json_new_object();
        rk_json_set_path(loader->tree, path, old);
        rk_config_set_place(loader, path, place);
    }
    rk_config_merge(loader, old, path, value, place);
    rk_json_free(value);
}

/* "rpc.listen" -> "RANKD_RPC_LISTEN". */
static char *env_name(const char *prefix, const char *path)
{
    char *name = rk_format("%s_%s", prefix, path);

    for (char *p = name; *p; p++)
        *p = *p == '.' ? '_' : (char)toupper((unsigned char)*p);
    return name;
}

/* Variables that Kubernetes sets in every container for a Service whose name begins with the prefix:
 * A_SERVICE_HOST, A_SERVICE_PORT, A_SERVICE_PORT_GRPC, A_PORT, A_PORT_7000_TCP and so on. `words` is what
 * follows the prefix.
 */
static bool is_of_a_service(const char *words)
{
    for (const char *word = words; word; word = strchr(word, '_') ? strchr(word, '_') + 1 : NULL) {
        if (rk_str_has_prefix(word, "SERVICE_HOST") || rk_str_has_prefix(word, "SERVICE_PORT"))
            return true;
        if (strcmp(word, "PORT") == 0 ||
            (rk_str_has_prefix(word, "PORT_") && isdigit((unsigned char)word[strlen("PORT_")])))
            return true;
    }
    return false;
}

/* `names`: of the variables of the keys, in the table's order. */
static void check_variable(struct rk_config_loader *loader, char *const *names, const char *name)
{
    const struct rk_config_source *source = loader->source;
    const char *close;
    char *where;

    for (int64_t i = 0; i < source->num_keys; i++) {
        if (strcmp(names[i], name) == 0)
            return;
    }
    for (const char *const *known = source->env_known; known && *known; known++) {
        if (strcmp(*known, name) == 0)
            return;
    }
    if (is_of_a_service(name + strlen(source->env_prefix) + 1))
        return;
    close = rk_str_suggest(name, (const char *const *)names, source->num_keys);
    where = rk_format("env %s", name);
    rk_config_problem(loader, &(struct rk_config_place){.text = where}, "", "names no key%s%s%s",
                      close ? "; did you mean '" : "", close ? close : "", close ? "'?" : "");
    rk_free(where);
}

/* A variable with the prefix that names no key is an error, since the user expects it to have an effect. */
static void check_variables(struct rk_config_loader *loader)
{
    const struct rk_config_source *source = loader->source;
    char **names = rk_calloc((size_t)source->num_keys, sizeof(*names));
    char *prefix = rk_format("%s_", source->env_prefix);

    for (int64_t i = 0; i < source->num_keys; i++)
        names[i] = env_name(source->env_prefix, source->keys[i].path);
    for (char **variable = environ; *variable; variable++) {
        char *name = rk_strndup(*variable, strcspn(*variable, "="));

        if (rk_str_has_prefix(name, prefix))
            check_variable(loader, names, name);
        rk_free(name);
    }
    for (int64_t i = 0; i < source->num_keys; i++)
        rk_free(names[i]);
    rk_free(names);
    rk_free(prefix);
}

void rk_config_apply_environment(struct rk_config_loader *loader)
{
    const struct rk_config_source *source = loader->source;

    if (source->env_prefix)
        check_variables(loader);
    for (int64_t i = 0; source->env_prefix && i < source->num_keys; i++) {
        const char *path = source->keys[i].path;
        char *name = env_name(source->env_prefix, path);
        char *text = rk_format("env %s", name);
        struct rk_config_place place = {.text = text};
        const char *value = rk_env(name);

        if (value)
            put_at(loader, path, rk_config_parse_value(loader, path, value), &place);
        rk_free(text);
        rk_free(name);
    }
}

/* True when an OPEN row is above `path`. */
static bool is_under_open_key(const struct rk_config_loader *loader, const char *path)
{
    for (const char *dot = strchr(path, '.'); dot; dot = strchr(dot + 1, '.')) {
        char *prefix = rk_strndup(path, (size_t)(dot - path));
        const struct rk_config_key *row = rk_map_find(loader->rows, prefix);

        rk_free(prefix);
        if (row)
            return row->type == RK_CONFIG_OPEN;
    }
    return false;
}

/* Removes a leaf or a section. False when it is not there. */
static bool delete_path(struct rk_json *tree, const char *path)
{
    const char *dot = strrchr(path, '.');
    char *parent_path = rk_strndup(path, dot ? (size_t)(dot - path) : 0);
    struct rk_json *parent = dot ? rk_json_find_path(tree, parent_path) : tree;
    const char *key = dot ? dot + 1 : path;
    bool exists = rk_json_find(parent, key) != NULL;

    if (exists)
        rk_json_remove(parent, key);
    rk_free(parent_path);
    return exists;
}

/* Non-empty names joined by single dots, no deeper than a file may nest. */
static bool is_well_formed_path(const char *path)
{
    int depth = 1;

    for (const char *p = path; *p; p++)
        depth += *p == '.';
    return *path && *path != '.' && !strstr(path, "..") && !rk_str_has_suffix(path, ".") &&
           depth <= RK_JSON_MAX_DEPTH;
}

static void put_override(struct rk_config_loader *loader, const char *path, const char *text,
                         const struct rk_config_place *place)
{
    const char *problem;
    struct rk_json *value = rk_config_parse_override(loader, path, text, &problem);

    if (value)
        put_at(loader, path, value, place);
    else
        rk_config_problem(loader, place, path, "%s: %s", text, problem);
}

static void apply_override(struct rk_config_loader *loader, const char *text)
{
    static const struct rk_config_place place = {.text = "flag"};
    const char *equals = strchr(text, '=');
    size_t pluses = strspn(text, "+"); /* "++" adds or changes; so does "+" here */
    bool adds = pluses == 1 || pluses == 2;
    char *path;

    if (!rk_utf8_is_valid(text, strlen(text))) {
        rk_config_problem(loader, &place, "", "not valid UTF-8");
        return;
    }
    if (text[0] == '~') {
        if (equals || !delete_path(loader->tree, text + 1))
            rk_config_problem(loader, &place, text, equals ? "expected ~PATH" : "there is nothing to delete");
        return;
    }
    path = equals && pluses <= 2 ? rk_strndup(text + pluses, (size_t)(equals - text) - pluses) : NULL;
    if (!path || !is_well_formed_path(path))
        rk_config_problem(loader, &place, text, "expected PATH=VALUE");
    else if (!adds && is_under_open_key(loader, path) && !rk_json_find_path(loader->tree, path) &&
             !rk_config_find_foreign(loader->source, path))
        rk_config_problem(loader, &place, path, "is not set; write +%s to add it", text);
    else
        put_override(loader, path, equals + 1, &place);
    rk_free(path);
}

void rk_config_apply_overrides(struct rk_config_loader *loader)
{
    for (int64_t i = 0; i < loader->source->num_overrides; i++)
        apply_override(loader, loader->source->overrides[i]);
}

/* --- defaults --- */

/* Whether there is a reference, null or another wrong value where the path needs an object. */
static bool is_blocked(const struct rk_config_loader *loader, const char *path)
{
    for (const char *dot = strchr(path, '.'); dot; dot = strchr(dot + 1, '.')) {
        char *prefix = rk_strndup(path, (size_t)(dot - path));
        const struct rk_json *section = rk_json_find_path(loader->tree, prefix);

        rk_free(prefix);
        if (!section)
            return false;
        if (rk_json_type(section) != RK_JSON_OBJECT)
            return true;
    }
    return false;
}

void rk_config_apply_defaults(struct rk_config_loader *loader)
{
    static const struct rk_config_place place = {.text = "default"};

    for (int64_t i = 0; i < loader->source->num_keys; i++) {
        const struct rk_config_key *row = &loader->source->keys[i];
        struct rk_json *value;
        struct rk_status *st;

        if (!row->default_text || rk_json_find_path(loader->tree, row->path) || is_blocked(loader, row->path))
            continue;
        st = rk_json_parse(&value, row->default_text, strlen(row->default_text), row->path, 0);
        RK_ASSERT(st == NULL); /* the table is part of the program */
        rk_json_set_path(loader->tree, row->path, value);
        rk_config_set_place(loader, row->path, &place);
    }
}

/* --- defaults of another product, for files and command lines of its form --- */

static bool is_one_of(const char *values, const char *value)
{
    size_t bytes = strlen(value);

    for (const char *p = values; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL) {
        if (strcspn(p, "|") == bytes && strncmp(p, value, bytes) == 0)
            return true;
    }
    return false;
}

/* "a.b=x|y" */
static bool has_value(struct rk_config_loader *loader, const char *when)
{
    const char *equals = strchr(when, '=');
    char *path = rk_strndup(when, (size_t)(equals - when));
    const char *value;

    rk_config_expand_parents(loader, path);
    value = rk_json_as_string(rk_json_find_path(loader->tree, path), "");
    rk_free(path);
    return is_one_of(equals + 1, value);
}

static bool has_member(const struct rk_config_loader *loader, const char *names)
{
    for (void *it = rk_json_iter(loader->tree); it; it = rk_json_iter_next(loader->tree, it)) {
        if (is_one_of(names, rk_json_iter_key(it)))
            return true;
    }
    return false;
}

static bool applies(struct rk_config_loader *loader, const struct rk_config_preset *preset)
{
    if (preset->unless && has_member(loader, preset->unless))
        return false;
    if (!preset->when)
        return true;
    return strchr(preset->when, '=') ? has_value(loader, preset->when) : has_member(loader, preset->when);
}

/* Gives the preset's values to keys that have none yet. */
static void fill(struct rk_config_loader *loader, const struct rk_json *section, const char *path,
                 const struct rk_config_place *place)
{
    for (void *it = rk_json_iter(section); it; it = rk_json_iter_next(section, it)) {
        const struct rk_json *value = rk_json_iter_value(it), *given;
        char *member = rk_json_join_path(path, rk_json_iter_key(it));

        rk_config_expand_parents(loader, member);
        given = rk_json_find_path(loader->tree, member);
        if (rk_json_type(value) == RK_JSON_OBJECT) {
            if (rk_json_type(given) == RK_JSON_STRING) { /* "engine=megatron" is a section in the end */
                char *below = rk_json_join_path(member, "");

                rk_config_expand_parents(loader, below);
                given = rk_json_find_path(loader->tree, member);
                rk_free(below);
            }
            if (!given || rk_json_type(given) == RK_JSON_OBJECT)
                fill(loader, value, member, place); /* another value is reported later */
        } else if (!given) {
            rk_json_set_path(loader->tree, member, rk_json_clone(value));
            rk_config_set_place(loader, member, place);
        }
        rk_free(member);
    }
}

void rk_config_apply_presets(struct rk_config_loader *loader)
{
    const struct rk_config_source *source = loader->source;
    bool *does_apply = rk_calloc((size_t)source->num_presets + 1, sizeof(*does_apply));

    /* Decided for all before one changes the tree. */
    for (int64_t i = 0; i < source->num_presets; i++)
        does_apply[i] = applies(loader, &source->presets[i]);
    for (int64_t i = 0; i < source->num_presets; i++) {
        const struct rk_config_preset *preset = &source->presets[i];
        struct rk_config_place place = {.text = preset->name};
        struct rk_json *values;
        struct rk_status *st;

        if (!does_apply[i])
            continue;
        st = rk_json_parse(&values, preset->text, strlen(preset->text), preset->name, 0);
        RK_ASSERT(st == NULL); /* presets are part of the program */
        fill(loader, values, "", &place);
        rk_json_free(values);
    }
    rk_free(does_apply);
}
