/* Keys of another product's configuration: keys that describe rankd's behaviour are accepted, others are
 * refused with an alternative. */
#include "base/config/rk_config_internal.h"

#include <fnmatch.h>
#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_json.h"
#include "base/rk_log.h"

/* --- rows --- */

static bool is_pattern(const struct rk_config_foreign *row)
{
    return strchr(row->path, '*') != NULL;
}

static bool matches(const struct rk_config_foreign *row, const char *path)
{
    return is_pattern(row) ? fnmatch(row->path, path, 0) == 0 : strcmp(row->path, path) == 0;
}

const struct rk_config_foreign *rk_config_find_foreign(const struct rk_config_source *source,
                                                       const char *path)
{
    for (int64_t i = 0; i < source->num_foreign; i++) {
        if (matches(&source->foreign[i], path))
            return &source->foreign[i];
    }
    return NULL;
}

bool rk_config_is_foreign_section(const struct rk_config_source *source, const char *path)
{
    bool is = false;

    for (int64_t i = 0; !is && i < source->num_foreign; i++) {
        const char *row = source->foreign[i].path, *name = row;

        for (const char *dot = strchr(row, '.'); !is && dot; name = dot + 1, dot = strchr(dot + 1, '.')) {
            char *pattern = rk_strndup(row, (size_t)(dot - row));

            is = !memchr(name, '*', (size_t)(dot - name)) && fnmatch(pattern, path, 0) == 0;
            rk_free(pattern);
        }
    }
    return is;
}

/* A value of a list like "false|null|1.0|[]". */
static bool is_value(const struct rk_json *value, const char *text, size_t bytes)
{
    char *wanted = rk_strndup(text, bytes), *dump;
    double real = rk_json_as_real(value, NAN);
    struct rk_json *json;
    struct rk_status *st;
    bool is_equal;

    if (rk_json_type(value) == RK_JSON_STRING) {
        is_equal = strcmp(rk_json_as_string(value, ""), wanted) == 0;
        rk_free(wanted);
        return is_equal;
    }
    dump = rk_json_dump(value, 0, false);
    is_equal = strcmp(dump, wanted) == 0;
    rk_free(dump);
    if (!is_equal && !isnan(real)) {
        st = rk_json_parse(&json, wanted, bytes, "value", 0);
        is_equal = !st && rk_json_as_real(json, NAN) == real;
        RK_IGNORE(st, "the other values of the list");
        rk_json_free(json);
    }
    rk_free(wanted);
    return is_equal;
}

static bool takes(const struct rk_config_foreign *row, const struct rk_json *value)
{
    if (strcmp(row->values, "*") == 0)
        return true;
    for (const char *p = row->values; p; p = strchr(p, '|') ? strchr(p, '|') + 1 : NULL) {
        if (is_value(value, p, strcspn(p, "|")))
            return true;
    }
    return false;
}

/* --- one key --- */

static void apply(struct rk_config_loader *loader, const char *path);

static void remove_path(struct rk_config_loader *loader, const char *path)
{
    const char *dot = strrchr(path, '.');
    char *parent = rk_strndup(path, dot ? (size_t)(dot - path) : 0);

    rk_json_remove(dot ? rk_json_find_path(loader->tree, parent) : loader->tree, dot ? dot + 1 : path);
    rk_free(parent);
}

static bool renames(const struct rk_config_foreign *row)
{
    return row->to && rk_str_has_suffix(row->to, ".*") && rk_str_has_suffix(row->path, ".*");
}

char *rk_config_find_renamed(const struct rk_config_source *source, const char *section)
{
    size_t bytes = strlen(section);

    for (int64_t i = 0; i < source->num_foreign; i++) {
        const struct rk_config_foreign *row = &source->foreign[i];

        if (renames(row) && strncmp(row->path, section, bytes) == 0 && strcmp(row->path + bytes, ".*") == 0)
            return rk_strndup(row->to, strlen(row->to) - 2);
    }
    return NULL;
}

static bool is_numbered(const struct rk_config_foreign *row)
{
    return row->to && strchr(row->to, '#');
}

/* The number of the name that '*' stands for, among the names of its section so far. */
static int64_t number_of(struct rk_config_loader *loader, const struct rk_config_foreign *row,
                         const char *path)
{
    size_t section = strcspn(row->path, "*");
    char *name = rk_strndup(path, section + strcspn(path + section, "."));
    int64_t number = 0;

    if (!rk_map_find(loader->names, name))
        rk_map_put(loader->names, name, loader);
    for (int64_t i = 0; i < rk_map_count(loader->names); i++) {
        number += strncmp(rk_map_key_at(loader->names, i), name, section) == 0;
        if (strcmp(rk_map_key_at(loader->names, i), name) == 0)
            break;
    }
    rk_free(name);
    return number;
}

/* The key that gets the value of `path`; NULL: none. rk_free it. */
static char *target_of(struct rk_config_loader *loader, const struct rk_config_foreign *row, const char *path)
{
    size_t bytes = row->to ? strcspn(row->to, "#") : 0;
    int64_t number;

    if (!row->to)
        return NULL;
    if (renames(row))
        return rk_format("%.*s%s", (int)strlen(row->to) - 1, row->to, path + strlen(row->path) - 1);
    if (!is_numbered(row))
        return rk_strndup(row->to, strcspn(row->to, "="));
    number = number_of(loader, row, path);
    if (number == 1)
        return rk_format("%.*s%s", (int)bytes, row->to, row->to + bytes + 1);
    return rk_format("%.*s_%lld%s", (int)bytes, row->to, (long long)number, row->to + bytes + 1);
}

/* Removes objects that contain only empty objects. */
static void prune(struct rk_config_loader *loader, char *path)
{
    char *dot;

    while ((dot = strrchr(path, '.')) != NULL) {
        const struct rk_json *parent;

        *dot = '\0';
        parent = rk_json_find_path(loader->tree, path);
        if (!parent || rk_json_count(parent) > 0 || rk_map_find(loader->rows, path))
            return;
        remove_path(loader, path);
    }
}

/* Reports two foreign keys that a pattern renames to the same key, if their values differ. */
static void check_alias(struct rk_config_loader *loader, const struct rk_config_foreign *row, const char *to,
                        const struct rk_config_place *place, const char *path, const struct rk_json *value)
{
    const char *first = rk_map_find(loader->aliases, to);

    if (!first || !is_pattern(row) || !matches(row, first) ||
        rk_json_equal(rk_json_find_path(loader->tree, to), value))
        return;
    rk_config_problem(loader, place, path, "not supported beside %s with another value: %s", first,
                      row->text);
}

/* row->to is "KEY" for the value or "KEY=JSON" for another one; a key that is set keeps its value. */
static void put_instead(struct rk_config_loader *loader, const struct rk_config_foreign *row, const char *to,
                        const struct rk_config_place *place, const char *path, const struct rk_json *value)
{
    const char *equals = strchr(row->to, '=');
    struct rk_json *instead;

    if (rk_json_find_path(loader->tree, to)) {
        check_alias(loader, row, to, place, path, value);
        return;
    }
    if (equals) {
        struct rk_status *st = rk_json_parse(&instead, equals + 1, strlen(equals + 1), row->to, 0);

        RK_ASSERT(st == NULL); /* the table is part of the program */
    } else {
        instead = rk_json_clone(value);
    }
    rk_json_set_path(loader->tree, to, instead);
    rk_map_put(loader->aliases, to, rk_arena_strdup(loader->arena, path));
    if (place)
        rk_config_set_place(loader, to, place);
}

static bool is_of_a_preset(const struct rk_config_source *source, const struct rk_config_place *place)
{
    for (int64_t i = 0; place && !place->doc && i < source->num_presets; i++) {
        if (strcmp(place->text, source->presets[i].name) == 0)
            return true;
    }
    return false;
}

static void tell(const struct rk_config_loader *loader, const struct rk_config_foreign *row, const char *path,
                 const struct rk_json *value, const char *to)
{
    const struct rk_config_place *place = rk_config_find_place(loader, path);
    char *text = rk_json_describe(value), *where = place ? rk_config_place_text(place) : rk_strdup("job");

    if (is_of_a_preset(loader->source, place))
        RK_DEBUG_LOG("%s: %s=%s: %s", where, path, text, row->text);
    else if (loader->source->on_foreign)
        loader->source->on_foreign(loader->source->user, row, path, value, to);
    else if (row->kind == RK_CONFIG_FOREIGN_IGNORED)
        RK_WARN("%s: %s=%s has no effect: %s", where, path, text, row->text);
    else if (to)
        RK_INFO("%s: %s=%s: %s", where, path, text, row->text);
    rk_free(where);
    rk_free(text);
}

/* Whether rows apply to `to` as well, which may be a key of the other product, too. Not for a value in place
 * of a section ("algorithm=sft"), whose members are not known yet. */
static bool continues_at(const struct rk_config_foreign *row, const char *to)
{
    size_t bytes = strlen(row->path);

    return !strchr(row->to, '=') && !(strncmp(to, row->path, bytes) == 0 && to[bytes] == '.');
}

static void apply_row(struct rk_config_loader *loader, const struct rk_config_foreign *row, const char *path,
                      const struct rk_json *value)
{
    const struct rk_config_place *place = rk_config_find_place(loader, path);
    struct rk_json *copy = rk_json_clone(value);
    char *to = row->kind == RK_CONFIG_FOREIGN_SAME ? target_of(loader, row, path) : NULL;

    tell(loader, row, path, value, to);
    remove_path(loader, path);
    if (to)
        put_instead(loader, row, to, place, path, copy);
    if (to && continues_at(row, to)) {
        apply(loader, to);
        if (!rk_json_find_path(loader->tree, to))
            prune(loader, to);
    }
    rk_json_free(copy);
    rk_free(to);
}

/* A renamed or numbered key that has neither a row nor a place in the table stays as it is, and is unknown.
 */
static bool leads_nowhere(struct rk_config_loader *loader, const struct rk_config_foreign *row,
                          const char *path)
{
    char *to = renames(row) || is_numbered(row) ? target_of(loader, row, path) : NULL;
    bool is_known = !to || rk_map_find(loader->rows, to) || rk_map_find(loader->sections, to) ||
                    rk_config_find_foreign(loader->source, to);

    rk_free(to);
    return !is_known;
}

/* No row matches the value, or the matching row refuses it. */
static void refuse(struct rk_config_loader *loader, const char *path, const struct rk_json *value)
{
    const struct rk_config_source *source = loader->source;
    const struct rk_config_place *place = rk_config_find_place(loader, path);
    char *text = rk_json_describe(value);
    struct rk_str values = {0};
    const char *advice = "";
    bool has_number = true;

    for (int64_t i = 0; i < source->num_foreign; i++) {
        if (!matches(&source->foreign[i], path))
            continue;
        if (is_numbered(&source->foreign[i]) && leads_nowhere(loader, &source->foreign[i], path))
            has_number = false;
        advice = source->foreign[i].text;
        if (source->foreign[i].kind == RK_CONFIG_FOREIGN_REFUSED)
            break;
        rk_str_appendf(&values, "%s%s", values.bytes ? "|" : "", source->foreign[i].values);
    }
    if (values.bytes > 0 && has_number)
        rk_config_problem(loader, place, path, "expected %s, got %s: %s", rk_str_text(&values), text, advice);
    else
        rk_config_problem(loader, place, path, "%s is not supported: %s", text, advice);
    rk_str_fini(&values);
    rk_free(text);
    remove_path(loader, path);
}

static void apply(struct rk_config_loader *loader, const char *path)
{
    const struct rk_config_source *source = loader->source;
    const struct rk_json *value = rk_json_find_path(loader->tree, path);
    bool is_own = rk_map_find(loader->rows, path) != NULL, is_known = false;

    for (int64_t i = 0; value && i < source->num_foreign; i++) {
        const struct rk_config_foreign *row = &source->foreign[i];

        if (!matches(row, path) || (is_own && (is_pattern(row) || !row->to)))
            continue;
        if (leads_nowhere(loader, row, path))
            continue;
        is_known = true;
        if (!takes(row, value))
            continue;
        if (row->kind == RK_CONFIG_FOREIGN_REFUSED)
            refuse(loader, path, value);
        else
            apply_row(loader, row, path, value);
        return;
    }
    if (value && is_known && !is_own)
        refuse(loader, path, value);
}

/* --- a value in place of a section: "algorithm=sft" says algorithm.type=sft --- */

static bool is_section(const struct rk_json *json)
{
    return json && rk_json_type(json) == RK_JSON_OBJECT;
}

void rk_config_expand_parents(struct rk_config_loader *loader, const char *path)
{
    for (const char *dot = strchr(path, '.'); dot; dot = strchr(dot + 1, '.')) {
        char *parent = rk_strndup(path, (size_t)(dot - path));
        const struct rk_json *value = rk_json_find_path(loader->tree, parent);

        if (value && !is_section(value) && rk_config_find_foreign(loader->source, parent))
            apply(loader, parent);
        rk_free(parent);
    }
}

bool rk_config_put_in_section(struct rk_config_loader *loader, const char *path, struct rk_json *value,
                              const struct rk_config_place *place)
{
    struct rk_json *members = rk_json_find_path(loader->tree, path), *section;

    if (!is_section(members) || is_section(value) || !rk_config_find_foreign(loader->source, path))
        return false;
    members = rk_json_retain(members);
    rk_json_set_path(loader->tree, path, value);
    rk_config_set_place(loader, path, place);
    apply(loader, path);
    section = rk_json_find_path(loader->tree, path);
    for (void *it = is_section(section) ? rk_json_iter(members) : NULL; it;
         it = rk_json_iter_next(members, it)) {
        if (!rk_json_find(section, rk_json_iter_key(it)))
            rk_json_set(section, rk_json_iter_key(it), rk_json_retain(rk_json_iter_value(it)));
    }
    rk_json_free(members);
    return true;
}

/* --- the tree --- */

struct paths {
    RK_ARRAY(char *) items;
};

/* Whether a member's name has a dot, so that no path can name it. */
static bool has_dotted_member(const struct rk_json *section)
{
    for (void *it = rk_json_iter(section); it; it = rk_json_iter_next(section, it)) {
        if (strchr(rk_json_iter_key(it), '.'))
            return true;
    }
    return false;
}

/* Counts values, and objects that are empty or have members whose names have dots. */
static void list_paths(const struct rk_config_loader *loader, const struct rk_json *section, const char *path,
                       struct paths *out)
{
    for (void *it = rk_json_iter(section); it; it = rk_json_iter_next(section, it)) {
        const struct rk_json *value = rk_json_iter_value(it);
        char *member = rk_json_join_path(path, rk_json_iter_key(it));
        bool has_members = is_section(value) && rk_json_count(value) > 0 && !has_dotted_member(value);

        if (strchr(rk_json_iter_key(it), '.')) {
            rk_free(member);
            continue;
        }
        if (has_members) {
            list_paths(loader, value, member, out);
            rk_free(member);
        } else {
            rk_array_append(&out->items, member);
        }
    }
}

void rk_config_apply_foreign(struct rk_config_loader *loader)
{
    struct paths paths = {0};

    if (loader->source->num_foreign == 0)
        return;
    list_paths(loader, loader->tree, "", &paths);
    for (int64_t i = 0; i < paths.items.count; i++) {
        apply(loader, paths.items.items[i]);
        if (!rk_json_find_path(loader->tree, paths.items.items[i]))
            prune(loader, paths.items.items[i]);
        rk_free(paths.items.items[i]);
    }
    rk_array_fini(&paths.items);
}
