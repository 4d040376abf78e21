/* Files of a configuration: reading, the view's changes to them, and inheritance. */
#include "base/config/rk_config_files_internal.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_file_io.h"
#include "base/rk_json.h"

#define MAX_INHERIT_DEPTH 16

bool rk_config_is_reserved(const char *key)
{
    return rk_str_has_prefix(key, "__");
}

/* --- documents --- */

static void strip_comments(struct rk_json *json)
{
    if (rk_json_type(json) == RK_JSON_OBJECT && rk_json_type(rk_json_find(json, "//")) == RK_JSON_STRING)
        rk_json_remove(json, "//");
    for (void *it = rk_json_iter(json); it; it = rk_json_iter_next(json, it))
        strip_comments(rk_json_iter_value(it));
    for (int64_t i = 0; rk_json_type(json) == RK_JSON_ARRAY && i < rk_json_count(json); i++)
        strip_comments(rk_json_at(json, i));
}

const struct rk_config_doc *rk_config_add_doc(struct rk_config_loader *loader, const char *name, char *text,
                                              size_t bytes)
{
    struct rk_config_doc *doc = rk_calloc(1, sizeof(*doc));
    struct rk_status *st;

    doc->name = rk_strdup(name);
    doc->text = text;
    doc->bytes = bytes;
    rk_array_append(&loader->docs, doc);
    st = rk_json_parse(&doc->json, text, bytes, name, 0);
    if (!st && rk_json_type(doc->json) != RK_JSON_OBJECT)
        st = RK_FAIL(RK_INVALID_ARGUMENT, "%s:1: expected an object", name);
    if (st) {
        rk_config_problem(loader, NULL, "", "%s", rk_status_message(st));
        rk_status_free(st);
        return NULL;
    }
    strip_comments(doc->json);
    return doc;
}

const struct rk_config_doc *rk_config_load_doc(struct rk_config_loader *loader, const char *file)
{
    struct rk_status *st;
    size_t bytes;
    char *text;

    st = rk_file_read(&text, &bytes, file, RK_CONFIG_FILE_BYTES_MAX);
    if (!st)
        return rk_config_add_doc(loader, file, text, bytes);
    rk_config_problem(loader, NULL, "", "%s", rk_status_message(st));
    rk_status_free(st);
    return NULL;
}

/* --- views --- */

struct rk_config_view rk_config_view_member(const struct rk_config_loader *loader,
                                            const struct rk_config_view *view, const char *key)
{
    struct rk_config_view part = {.json = rk_json_find(view->json, key), .place = view->place};
    char *joined = rk_json_join_path(view->place.path, key);

    part.place.path = rk_arena_strdup(loader->arena, joined);
    rk_free(joined);
    return part;
}

void rk_config_view_problem(struct rk_config_loader *loader, const struct rk_config_view *view,
                            const char *key, const char *path, const char *message)
{
    struct rk_config_view part = rk_config_view_member(loader, view, key);
    char *where = rk_json_join_path(path, key);

    rk_config_problem(loader, &part.place, where, "%s", message);
    rk_free(where);
}

/* A copy of the view without reserved members other than __delete__. */
static struct rk_json *copy_plain_members(const struct rk_config_view *view)
{
    struct rk_json *plain = rk_json_new_object();

    for (void *it = rk_json_iter(view->json); it; it = rk_json_iter_next(view->json, it)) {
        const char *key = rk_json_iter_key(it);

        if (!rk_config_is_reserved(key) || strcmp(key, "__delete__") == 0)
            rk_json_set(plain, key, rk_json_retain(rk_json_iter_value(it)));
    }
    return plain;
}

void rk_config_apply_view(struct rk_config_loader *loader, struct rk_json *value, const char *path,
                          const struct rk_config_view *view)
{
    struct rk_config_view override = rk_config_view_member(loader, view, "__override__");
    struct rk_json *plain = copy_plain_members(view);

    for (void *it = rk_json_iter(view->json); it; it = rk_json_iter_next(view->json, it)) {
        const char *key = rk_json_iter_key(it);

        if (strcmp(key, "__select__") == 0)
            rk_config_view_problem(loader, view, key, path,
                                   "there is nothing to select from: this part is a file");
        else if (rk_config_is_reserved(key) && strcmp(key, "__override__") != 0 &&
                 strcmp(key, "__delete__") != 0)
            rk_config_view_problem(loader, view, key, path, "not allowed here");
    }
    for (void *it = rk_json_iter(override.json); it; it = rk_json_iter_next(override.json, it)) {
        if (rk_json_find(plain, rk_json_iter_key(it)))
            rk_config_view_problem(loader, &override, rk_json_iter_key(it), path,
                                   "given twice, in __override__ and next to it");
    }
    if (override.json && rk_json_type(override.json) != RK_JSON_OBJECT)
        rk_config_view_problem(loader, view, "__override__", path, "expected an object");
    rk_config_merge(loader, value, path, override.json, &override.place);
    rk_config_merge(loader, value, path, plain, &view->place);
    rk_json_free(plain);
}

/* --- files --- */

/* Canonical path of a file that `file` inherits from; NULL, and a problem, when there is none. rk_free it. */
static char *find_parent(struct rk_config_resolver *resolver, const char *file, const char *name,
                         const struct rk_config_place *place, const char *path)
{
    const char *slash = strrchr(file, '/');
    const char *suffix = rk_str_has_suffix(name, ".json") ? "" : ".json";
    char *joined = rk_format("%.*s/%s%s", (int)(slash - file), file, name, suffix);
    size_t root_bytes = strlen(resolver->nest_root);
    char real[PATH_MAX];
    bool exists = realpath(joined, real) != NULL;
    bool is_inside = exists && strncmp(real, resolver->nest_root, root_bytes) == 0 && real[root_bytes] == '/';

    if (!exists)
        rk_config_problem(resolver->loader, place, path, "'%s' to inherit from does not exist", joined);
    else if (!is_inside)
        rk_config_problem(resolver->loader, place, path, "'%s' is outside of '%s'", name,
                          resolver->nest_root);
    rk_free(joined);
    return is_inside ? rk_strdup(real) : NULL;
}

static void merge_parent(struct rk_config_resolver *resolver, struct rk_json *value, const char *path,
                         const char *name, const struct rk_config_place *place,
                         const struct rk_config_chain *chain)
{
    char *parent = find_parent(resolver, place->doc->name, name, place, path);
    struct rk_config_chain link = {.file = parent, .heir = chain};
    int depth = 0;

    if (!parent)
        return;
    for (const struct rk_config_chain *heir = chain; heir; heir = heir->heir, depth++) {
        if (strcmp(heir->file, parent) == 0 || depth == MAX_INHERIT_DEPTH) {
            rk_config_problem(resolver->loader, place, path, "__inherit__ of '%s' is %s", name,
                              depth == MAX_INHERIT_DEPTH ? "too deep" : "circular");
            rk_free(parent);
            return;
        }
    }
    rk_config_merge_file(resolver, value, path, &link);
    rk_free(parent);
}

void rk_config_merge_file(struct rk_config_resolver *resolver, struct rk_json *value, const char *path,
                          const struct rk_config_chain *chain)
{
    const struct rk_config_doc *doc = rk_config_load_doc(resolver->loader, chain->file);
    struct rk_config_place place = {.doc = doc, .path = ""};
    struct rk_config_place inherit_place = {.doc = doc, .path = "__inherit__"};
    const struct rk_json *inherit = doc ? rk_json_find(doc->json, "__inherit__") : NULL;
    bool is_list = rk_json_type(inherit) == RK_JSON_ARRAY;
    int64_t num_parents = is_list ? rk_json_count(inherit) : inherit != NULL;
    struct rk_json *own;

    if (!doc)
        return;
    for (int64_t i = 0; i < num_parents; i++) {
        const char *name = rk_json_as_string(is_list ? rk_json_at(inherit, i) : inherit, NULL);

        if (name)
            merge_parent(resolver, value, path, name, &inherit_place, chain);
        else
            rk_config_problem(resolver->loader, &inherit_place, path,
                              "__inherit__: expected a file name or a list of them");
    }
    own = rk_json_clone(doc->json);
    rk_json_remove(own, "__inherit__");
    rk_config_merge(resolver->loader, value, path, own, &place);
    rk_json_free(own);
}
