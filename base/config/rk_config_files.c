/* From the view file to one object.
 *
 * A view without reserved members is the whole configuration. Otherwise it selects from a tree of directories
 * and files: a directory is an object with a member per child, or, when its __manifest__.json says "one", the
 * contents of the child that the view selects; a file may start from its siblings by __inherit__. */
#include "base/config/rk_config_internal.h"

#include <dirent.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_file_io.h"
#include "base/rk_json.h"

#define MAX_INHERIT_DEPTH 16

struct resolver {
    struct rk_config_loader *loader;
    char nest_root[PATH_MAX]; /* canonical; all files must be below it */
    int depth;                /* of directories, limited because links may form a cycle */
};

/* The user's text for one node, and its position. json is NULL if there is none. */
struct view {
    const struct rk_json *json;
    struct rk_config_place place;
};

/* A file that is being read, and the one that inherits from it. */
struct chain {
    const char *file;
    const struct chain *heir;
};

static void merge_file(struct resolver *resolver, struct rk_json *value, const char *path,
                       const struct chain *chain);

/* Whether the key is reserved ("__..."): a directive that is not part of the result. */
static bool is_reserved(const char *key)
{
    return rk_str_has_prefix(key, "__");
}

/* --- views --- */

/* The part of `view` under `key`; the key's text must live in the arena or in a document. */
static struct view view_member(const struct rk_config_loader *loader, const struct view *view,
                               const char *key)
{
    struct view part = {.json = rk_json_find(view->json, key), .place = view->place};
    char *joined = rk_json_join_path(view->place.path, key);

    part.place.path = rk_arena_strdup(loader->arena, joined);
    rk_free(joined);
    return part;
}

static void view_problem(struct rk_config_loader *loader, const struct view *view, const char *key,
                         const char *path, const char *message)
{
    struct view part = view_member(loader, view, key);
    char *where = rk_json_join_path(path, key);

    rk_config_problem(loader, &part.place, where, "%s", message);
    rk_free(where);
}

/* A copy of the view without reserved members other than __delete__. */
static struct rk_json *copy_plain_members(const struct view *view)
{
    struct rk_json *plain = rk_json_new_object();

    for (void *it = rk_json_iter(view->json); it; it = rk_json_iter_next(view->json, it)) {
        const char *key = rk_json_iter_key(it);

        if (!is_reserved(key) || strcmp(key, "__delete__") == 0)
            rk_json_set(plain, key, rk_json_retain(rk_json_iter_value(it)));
    }
    return plain;
}

/* Applies the view to the contents of a file; __override__ and plain members have the same effect. */
static void apply_view(struct rk_config_loader *loader, struct rk_json *value, const char *path,
                       const struct view *view)
{
    struct view override = view_member(loader, view, "__override__");
    struct rk_json *plain = copy_plain_members(view);

    for (void *it = rk_json_iter(view->json); it; it = rk_json_iter_next(view->json, it)) {
        const char *key = rk_json_iter_key(it);

        if (strcmp(key, "__select__") == 0)
            view_problem(loader, view, key, path, "there is nothing to select from: this part is a file");
        else if (is_reserved(key) && strcmp(key, "__override__") != 0 && strcmp(key, "__delete__") != 0)
            view_problem(loader, view, key, path, "not allowed here");
    }
    for (void *it = rk_json_iter(override.json); it; it = rk_json_iter_next(override.json, it)) {
        if (rk_json_find(plain, rk_json_iter_key(it)))
            view_problem(loader, &override, rk_json_iter_key(it), path,
                         "given twice, in __override__ and next to it");
    }
    if (override.json && rk_json_type(override.json) != RK_JSON_OBJECT)
        view_problem(loader, view, "__override__", path, "expected an object");
    rk_config_merge(loader, value, path, override.json, &override.place);
    rk_config_merge(loader, value, path, plain, &view->place);
    rk_json_free(plain);
}

/* --- files --- */

/* Canonical path of a file that `file` inherits from; NULL, and a problem, when there is none. rk_free it. */
static char *find_parent(struct resolver *resolver, const char *file, const char *name,
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

static void merge_parent(struct resolver *resolver, struct rk_json *value, const char *path, const char *name,
                         const struct rk_config_place *place, const struct chain *chain)
{
    char *parent = find_parent(resolver, place->doc->name, name, place, path);
    struct chain link = {.file = parent, .heir = chain};
    int depth = 0;

    if (!parent)
        return;
    for (const struct chain *heir = chain; heir; heir = heir->heir, depth++) {
        if (strcmp(heir->file, parent) == 0 || depth == MAX_INHERIT_DEPTH) {
            rk_config_problem(resolver->loader, place, path, "__inherit__ of '%s' is %s", name,
                              depth == MAX_INHERIT_DEPTH ? "too deep" : "circular");
            rk_free(parent);
            return;
        }
    }
    merge_file(resolver, value, path, &link);
    rk_free(parent);
}

/* Merges the chain's file over `value`, after the files that it inherits from. */
static void merge_file(struct resolver *resolver, struct rk_json *value, const char *path,
                       const struct chain *chain)
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

struct manifest {
    bool is_one;
    const char *if_no_selection; /* "error", "default" or "skip" */
    const char *default_selection;
};

struct names {
    RK_ARRAY(char *) list;
};

static struct rk_json *resolve_node(struct resolver *resolver, const char *node, const char *path,
                                    const struct view *view);

/* --- folders --- */

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static void names_fini(struct names *names)
{
    for (int64_t i = 0; i < names->list.count; i++)
        rk_free(names->list.items[i]);
    rk_array_fini(&names->list);
}

/* The children of a folder, sorted; files lose their ".json". */
static void list_children(struct rk_config_loader *loader, const char *folder, struct names *out)
{
    DIR *dir = opendir(folder);
    struct dirent *entry;

    if (!dir) {
        rk_config_problem(loader, NULL, folder, "cannot be listed");
        return;
    }
    while ((entry = readdir(dir)) != NULL) {
        char *full = rk_path_join(folder, entry->d_name);
        bool is_json = rk_str_has_suffix(entry->d_name, ".json");
        struct stat info;
        bool is_child = entry->d_name[0] != '.' && !is_reserved(entry->d_name) && stat(full, &info) == 0 &&
                        (S_ISDIR(info.st_mode) || is_json);

        rk_free(full);
        if (is_child)
            rk_array_append(&out->list, rk_strndup(entry->d_name, strlen(entry->d_name) - (is_json ? 5 : 0)));
    }
    closedir(dir);
    if (out->list.count > 0)
        qsort(out->list.items, (size_t)out->list.count, sizeof(*out->list.items), compare_names);
}

static bool contains_name(const struct names *names, const char *name)
{
    for (int64_t i = 0; i < names->list.count; i++) {
        if (strcmp(names->list.items[i], name) == 0)
            return true;
    }
    return false;
}

static struct manifest load_manifest(struct rk_config_loader *loader, const char *folder)
{
    struct manifest manifest = {.if_no_selection = "error"};
    char *file = rk_path_join(folder, "__manifest__.json");
    const struct rk_config_doc *doc = NULL;
    const char *mode = "all";
    struct stat info;

    if (stat(file, &info) == 0)
        doc = rk_config_load_doc(loader, file);
    rk_free(file);
    for (void *it = doc ? rk_json_iter(doc->json) : NULL; it; it = rk_json_iter_next(doc->json, it)) {
        const char *key = rk_json_iter_key(it);
        struct rk_config_place place = {.doc = doc, .path = key};
        const char *text = rk_json_as_string(rk_json_iter_value(it), "");

        if (strcmp(key, "selection_mode") == 0 && (strcmp(text, "one") == 0 || strcmp(text, "all") == 0))
            mode = text;
        else if (strcmp(key, "if_no_selection") == 0 &&
                 (strcmp(text, "error") == 0 || strcmp(text, "default") == 0 || strcmp(text, "skip") == 0))
            manifest.if_no_selection = text;
        else if (strcmp(key, "default_selection") == 0 && *text)
            manifest.default_selection = text;
        else
            rk_config_problem(loader, &place, key,
                              "expected selection_mode (one|all), if_no_selection (error|default|skip), "
                              "default_selection (a name)");
    }
    manifest.is_one = strcmp(mode, "one") == 0;
    return manifest;
}

static void list_text(const struct names *names, struct rk_str *out)
{
    for (int64_t i = 0; i < names->list.count; i++)
        rk_str_appendf(out, "%s%s", i ? ", " : "", names->list.items[i]);
}

/* The child to take, or NULL (left out, or a problem). */
static const char *choose(struct resolver *resolver, const struct manifest *manifest,
                          const struct names *children, const char *path, const struct view *view)
{
    struct rk_config_loader *loader = resolver->loader;
    struct view select = view_member(loader, view, "__select__");
    const char *name = rk_json_as_string(select.json, NULL);
    struct rk_str known = {0};

    if (!select.json && strcmp(manifest->if_no_selection, "skip") == 0)
        return NULL;
    if (!select.json && strcmp(manifest->if_no_selection, "default") == 0)
        name = manifest->default_selection;
    if (name && contains_name(children, name))
        return name;
    list_text(children, &known);
    if (!select.json)
        rk_config_problem(loader, view->json ? &view->place : NULL, path, "needs a __select__, one of: %s",
                          rk_str_text(&known));
    else
        rk_config_problem(loader, &select.place, path, "__select__: expected one of: %s; got %s",
                          rk_str_text(&known), name ? name : rk_json_type_name(rk_json_type(select.json)));
    rk_str_fini(&known);
    return NULL;
}

static struct rk_json *resolve_one(struct resolver *resolver, const struct manifest *manifest,
                                   const char *folder, const char *path, const struct view *view)
{
    struct names children = {0};
    struct rk_json *value = NULL;
    const char *name;

    list_children(resolver->loader, folder, &children);
    name = choose(resolver, manifest, &children, path, view);
    if (name) {
        struct view rest = *view;
        struct rk_json *without_select = view->json ? rk_json_clone(view->json) : rk_json_new_object();
        char *node = rk_path_join(folder, name);

        rk_json_remove(without_select, "__select__");
        rest.json = without_select;
        value = resolve_node(resolver, node, path, &rest);
        rk_free(node);
        rk_json_free(without_select);
    }
    names_fini(&children);
    return value;
}

static struct rk_json *resolve_all(struct resolver *resolver, const char *folder, const char *path,
                                   const struct view *view)
{
    struct rk_config_loader *loader = resolver->loader;
    struct rk_json *value = rk_json_new_object();
    struct rk_json *others = rk_json_new_object();
    struct names children = {0};

    list_children(loader, folder, &children);
    for (int64_t i = 0; i < children.list.count; i++) {
        const char *name = children.list.items[i];
        struct view part = view_member(loader, view, name);
        char *node = rk_path_join(folder, name);
        char *child_path = rk_json_join_path(path, name);
        struct rk_json *child;

        if (i > 0 && strcmp(children.list.items[i - 1], name) == 0)
            rk_config_problem(loader, NULL, node, "there are a folder and a file of this name");
        child = resolve_node(resolver, node, child_path, &part);
        if (child)
            rk_json_set(value, name, child);
        rk_free(child_path);
        rk_free(node);
    }
    /* Keys that the tree does not have are checked against the key table later, as in a view without a tree.
     */
    for (void *it = rk_json_iter(view->json); it; it = rk_json_iter_next(view->json, it)) {
        const char *key = rk_json_iter_key(it);

        if (is_reserved(key))
            view_problem(loader, view, key, path, "this part is a folder of which all children are taken");
        else if (!is_reserved(key) && !contains_name(&children, key))
            rk_json_set(others, key, rk_json_retain(rk_json_iter_value(it)));
    }
    rk_config_merge(loader, value, path, others, &view->place);
    rk_json_free(others);
    names_fini(&children);
    return value;
}

/* The value of a folder or file (given without ".json"); NULL when it is left out. */
static struct rk_json *resolve_node(struct resolver *resolver, const char *node, const char *path,
                                    const struct view *view)
{
    struct rk_json *value;
    struct stat info;
    char *file;

    if (view->json && rk_json_type(view->json) != RK_JSON_OBJECT) {
        rk_config_problem(resolver->loader, &view->place, path, "expected an object, got %s",
                          rk_json_type_name(rk_json_type(view->json)));
        return NULL;
    }
    if (resolver->depth == RK_JSON_MAX_DEPTH) {
        rk_config_problem(resolver->loader, NULL, node, "folders nest deeper than %d", RK_JSON_MAX_DEPTH);
        return NULL;
    }
    if (stat(node, &info) == 0 && S_ISDIR(info.st_mode)) {
        struct manifest manifest = load_manifest(resolver->loader, node);

        resolver->depth++;
        value = manifest.is_one ? resolve_one(resolver, &manifest, node, path, view)
                                : resolve_all(resolver, node, path, view);
        resolver->depth--;
        return value;
    }
    value = rk_json_new_object();
    file = rk_format("%s.json", node);
    merge_file(resolver, value, path, &(const struct chain){.file = file});
    rk_free(file);
    apply_view(resolver->loader, value, path, view);
    return value;
}

/* --- the view as a whole --- */

static bool has_reserved_members(const struct rk_json *json)
{
    for (void *it = rk_json_iter(json); it; it = rk_json_iter_next(json, it)) {
        if (is_reserved(rk_json_iter_key(it)) || has_reserved_members(rk_json_iter_value(it)))
            return true;
    }
    return false;
}

static bool find_nest(struct resolver *resolver, const struct rk_config_doc *doc)
{
    const struct rk_json *json = rk_json_find(doc->json, "__nest__");
    struct rk_config_place place = {.doc = doc, .path = json ? "__nest__" : ""};
    const char *nest = json ? rk_json_as_string(json, NULL) : "nest";
    const char *slash = strrchr(doc->name, '/');
    struct stat info;
    char *joined;
    bool is_found;

    if (!nest) {
        rk_config_problem(resolver->loader, &place, "__nest__", "expected the path of a folder");
        return false;
    }
    if (nest[0] == '/' || !slash || !resolver->loader->source->file)
        joined = rk_strdup(nest);
    else
        joined = rk_format("%.*s%s", (int)(slash + 1 - doc->name), doc->name, nest);
    is_found = realpath(joined, resolver->nest_root) && stat(resolver->nest_root, &info) == 0 &&
               S_ISDIR(info.st_mode);
    if (!is_found)
        rk_config_problem(resolver->loader, &place, "__nest__",
                          "the view selects parts, but their folder '%s' does not exist", joined);
    rk_free(joined);
    return is_found;
}

static void resolve_view(struct rk_config_loader *loader, const struct rk_config_doc *doc)
{
    struct resolver resolver = {.loader = loader};
    struct view view = {.place = {.doc = doc, .path = ""}};
    struct rk_json *choices, *value;

    if (!has_reserved_members(doc->json)) {
        rk_config_merge(loader, loader->tree, "", doc->json, &view.place);
        return;
    }
    if (!find_nest(&resolver, doc))
        return;
    choices = rk_json_clone(doc->json);
    rk_json_remove(choices, "__nest__");
    view.json = choices;
    value = resolve_node(&resolver, resolver.nest_root, "", &view);
    rk_json_free(choices);
    if (!value)
        return;
    rk_json_free(loader->tree);
    loader->tree = value;
}

struct rk_status *rk_config_resolve(struct rk_config_loader *loader)
{
    const struct rk_config_source *source = loader->source;
    const struct rk_config_doc *doc = NULL;
    size_t bytes;
    char *text;

    RK_ASSERT(!source->file || !source->text);
    if (source->file) {
        RK_TRY(rk_file_read_stream(&text, &bytes, source->file, RK_CONFIG_FILE_BYTES_MAX));
        doc = rk_config_add_doc(loader, source->file, text, bytes);
    } else if (source->text) {
        doc = rk_config_add_doc(loader, source->text_name ? source->text_name : "text",
                                rk_strdup(source->text), strlen(source->text));
    }
    if (doc)
        resolve_view(loader, doc);
    return NULL;
}
