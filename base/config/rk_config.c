/* The public face of configuration: one load from all sources, and typed reads of the result. */
#include "base/config/rk_config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_file_io.h"
#include "base/config/rk_config_internal.h"
#include "base/rk_json.h"

#define MAX_PROBLEMS      50
#define ARENA_BLOCK_BYTES 4096

struct rk_config {
    const struct rk_config_key *keys; /* the caller's table, static */
    int64_t num_keys;
    struct rk_json *tree;
    struct rk_map *rows; /* path -> row */
    char **origins;      /* [num_keys] */
};

/* --- places and problems --- */

void rk_config_problem(struct rk_config_loader *loader, const struct rk_config_place *place, const char *path,
                       const char *fmt, ...)
{
    char *where;
    va_list args;

    if (++loader->num_problems > MAX_PROBLEMS)
        return;
    if (loader->num_problems > 1)
        rk_str_append(&loader->problems, "\n");
    where = place ? rk_config_place_text(place) : NULL;
    if (!where && *path && loader->source->file)
        where = rk_strdup(loader->source->file);
    rk_str_appendf(&loader->problems, "%s%s%s%s", where ? where : "", where ? ": " : "", path,
                   *path ? ": " : "");
    va_start(args, fmt);
    rk_str_vappendf(&loader->problems, fmt, args);
    va_end(args);
    rk_free(where);
}

char *rk_config_place_text(const struct rk_config_place *place)
{
    char *path;
    int line = 0;

    if (!place)
        return rk_strdup("unknown");
    if (!place->doc)
        return rk_strdup(place->text);
    /* A part that a view selects has no line; the closest part above it has one. */
    path = rk_strdup(place->path);
    while (!(line = rk_json_find_line(place->doc->text, place->doc->bytes, path)) && strchr(path, '.'))
        *strrchr(path, '.') = '\0';
    rk_free(path);
    return line ? rk_format("%s:%d", place->doc->name, line) : rk_strdup(place->doc->name);
}

void rk_config_set_place(struct rk_config_loader *loader, const char *path,
                         const struct rk_config_place *place)
{
    struct rk_config_place *copy = rk_arena_alloc(loader->arena, sizeof(*copy));

    RK_ASSERT(copy != NULL);
    *copy = *place;
    copy->path = rk_arena_strdup(loader->arena, place->path ? place->path : "");
    copy->text = rk_arena_strdup(loader->arena, place->text ? place->text : "");
    RK_ASSERT(copy->path != NULL);
    RK_ASSERT(copy->text != NULL);
    rk_map_put(loader->places, path, copy);
}

const struct rk_config_place *rk_config_find_place(const struct rk_config_loader *loader, const char *path)
{
    char *prefix = rk_strdup(path);
    const struct rk_config_place *place;
    char *dot;

    while (!(place = rk_map_find(loader->places, prefix)) && (dot = strrchr(prefix, '.')) != NULL)
        *dot = '\0';
    rk_free(prefix);
    return place;
}

void rk_config_place_section(struct rk_config_loader *loader, const char *path)
{
    size_t bytes = strlen(path);

    if (rk_map_find(loader->places, path))
        return;
    for (int64_t i = 0; i < rk_map_count(loader->places); i++) {
        const char *leaf = rk_map_key_at(loader->places, i);
        const struct rk_config_place *below = rk_map_value_at(loader->places, i);
        size_t tail_bytes = strlen(leaf) - RK_MIN(bytes, strlen(leaf));
        struct rk_config_place place = *below;
        char *cut;

        if (strncmp(leaf, path, bytes) != 0 || leaf[bytes] != '.')
            continue;
        /* A document's path ends like the configuration's, so the same tail leads from leaf to section. */
        cut = rk_strndup(below->path, strlen(below->path) - RK_MIN(tail_bytes, strlen(below->path)));
        place.path = cut;
        rk_config_set_place(loader, path, &place);
        rk_free(cut);
        return;
    }
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

/* --- loading --- */

static void index_table(struct rk_config_loader *loader)
{
    for (int64_t i = 0; i < loader->source->num_keys; i++) {
        const struct rk_config_key *row = &loader->source->keys[i];
        void *duplicate = rk_map_put(loader->rows, row->path, (void *)(uintptr_t)row);

        RK_ASSERT(duplicate == NULL);
        RK_ASSERT((row->default_text == NULL) == ((row->flags & RK_CONFIG_REQUIRED) != 0));
        for (const char *dot = strchr(row->path, '.'); dot; dot = strchr(dot + 1, '.')) {
            char *section = rk_strndup(row->path, (size_t)(dot - row->path));

            rk_map_put(loader->sections, section, loader);
            rk_free(section);
        }
    }
}

static struct rk_status *report(const struct rk_config_loader *loader)
{
    int64_t hidden = loader->num_problems - MAX_PROBLEMS;

    if (loader->num_problems == 0)
        return NULL;
    if (hidden > 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s\n... and %lld more", rk_str_text(&loader->problems),
                       (long long)hidden);
    return RK_FAIL(RK_INVALID_ARGUMENT, "%s", rk_str_text(&loader->problems));
}

static struct rk_status *run_steps(struct rk_config_loader *loader)
{
    int64_t num_before;

    RK_TRY(rk_config_resolve(loader));
    loader->is_partial = loader->num_problems > 0;
    rk_config_apply_environment(loader);
    rk_config_apply_overrides(loader);
    rk_config_apply_presets(loader);
    rk_config_apply_foreign(loader);
    num_before = loader->num_problems;
    /* Twice, because a reference may stand for a whole section, which then lacks its own defaults. */
    for (int round = 0; round < 2 && !loader->is_partial && loader->num_problems == num_before; round++) {
        rk_config_apply_defaults(loader);
        rk_config_resolve_refs(loader);
    }
    rk_config_check(loader);
    return report(loader);
}

/* Moves the result out of the loader. */
static struct rk_config *take_result(struct rk_config_loader *loader)
{
    struct rk_config *config = rk_calloc(1, sizeof(*config));

    config->keys = loader->source->keys;
    config->num_keys = loader->source->num_keys;
    config->origins = rk_calloc((size_t)config->num_keys, sizeof(*config->origins));
    for (int64_t i = 0; i < config->num_keys; i++) {
        rk_config_place_section(loader, config->keys[i].path); /* an OPEN key is an object of placed leaves */
        config->origins[i] = rk_config_place_text(rk_config_find_place(loader, config->keys[i].path));
    }
    config->tree = loader->tree;
    config->rows = loader->rows;
    loader->tree = NULL;
    loader->rows = NULL;
    return config;
}

static void loader_fini(struct rk_config_loader *loader)
{
    for (int64_t i = 0; i < loader->docs.count; i++) {
        struct rk_config_doc *doc = loader->docs.items[i];

        rk_json_free(doc->json);
        rk_free(doc->name);
        rk_free(doc->text);
        rk_free(doc);
    }
    rk_array_fini(&loader->docs);
    rk_str_fini(&loader->problems);
    rk_map_destroy(loader->sections);
    rk_map_destroy(loader->rows);
    rk_map_destroy(loader->places);
    rk_map_destroy(loader->aliases);
    rk_map_destroy(loader->names);
    rk_json_free(loader->tree);
    rk_arena_destroy(loader->arena);
}

struct rk_status *rk_config_load(struct rk_config **out, const struct rk_config_source *source)
{
    struct rk_config_loader loader = {
        .source = source,
        .arena = rk_arena_create(ARENA_BLOCK_BYTES, 0),
        .tree = rk_json_new_object(),
        .places = rk_map_create(),
        .aliases = rk_map_create(),
        .names = rk_map_create(),
        .rows = rk_map_create(),
        .sections = rk_map_create(),
    };
    struct rk_status *st;

    index_table(&loader);
    st = run_steps(&loader);
    *out = st ? NULL : take_result(&loader);
    loader_fini(&loader);
    return st;
}

void rk_config_destroy(struct rk_config *config)
{
    if (!config)
        return;
    for (int64_t i = 0; i < config->num_keys; i++)
        rk_free(config->origins[i]);
    rk_free(config->origins);
    rk_map_destroy(config->rows);
    rk_json_free(config->tree);
    rk_free(config);
}

/* --- reads --- */

static const struct rk_config_key *get_row(const struct rk_config *config, const char *path)
{
    const struct rk_config_key *row = rk_map_find(config->rows, path);

    RK_ASSERT(row != NULL);
    return row;
}

static const struct rk_json *get_value(const struct rk_config *config, const char *path)
{
    const struct rk_json *value = rk_json_find_path(config->tree, path);

    RK_ASSERT(value != NULL);
    return value;
}

bool rk_config_bool(const struct rk_config *config, const char *path)
{
    RK_ASSERT(get_row(config, path)->type == RK_CONFIG_BOOL);
    return rk_json_as_bool(get_value(config, path), false);
}

int64_t rk_config_int(const struct rk_config *config, const char *path)
{
    const struct rk_config_key *row = get_row(config, path);
    const struct rk_json *value = get_value(config, path);
    int64_t number = 0;

    switch (row->type) {
    case RK_CONFIG_BYTES:
        RK_ASSERT(rk_json_is_null(value) || rk_parse_bytes(rk_json_as_string(value, ""), &number));
        return number;
    case RK_CONFIG_DURATION:
        RK_ASSERT(rk_json_is_null(value) || rk_parse_duration_ms(rk_json_as_string(value, ""), &number));
        return number;
    default:
        RK_ASSERT(row->type == RK_CONFIG_INT);
        return rk_json_as_int(value, 0);
    }
}

double rk_config_real(const struct rk_config *config, const char *path)
{
    RK_ASSERT(get_row(config, path)->type == RK_CONFIG_REAL);
    return rk_json_as_real(get_value(config, path), 0.0);
}

const char *rk_config_string(const struct rk_config *config, const char *path)
{
    RK_ASSERT(get_row(config, path)->type == RK_CONFIG_STRING);
    return rk_json_as_string(get_value(config, path), NULL);
}

const struct rk_json *rk_config_json(const struct rk_config *config, const char *path)
{
    rk_config_type_t type = get_row(config, path)->type;

    RK_ASSERT(type == RK_CONFIG_LIST || type == RK_CONFIG_OPEN);
    return get_value(config, path);
}

bool rk_config_is_null(const struct rk_config *config, const char *path)
{
    RK_ASSERT(get_row(config, path) != NULL);
    return rk_json_is_null(get_value(config, path));
}

bool rk_config_is_default(const struct rk_config *config, const char *path)
{
    const char *text = get_row(config, path)->default_text;
    const struct rk_json *own = get_value(config, path);
    struct rk_json *value = NULL;
    struct rk_status *st = text ? rk_json_parse(&value, text, strlen(text), path, 0) : NULL;
    bool is_equal;

    RK_ASSERT(st == NULL);                            /* the table is part of the program */
    is_equal = value && (rk_json_equal(value, own) || /* 1 is 1.0 */
                         rk_json_as_real(value, NAN) == rk_json_as_real(own, NAN));
    rk_json_free(value);
    return is_equal;
}

const char *rk_config_origin(const struct rk_config *config, const char *path)
{
    return config->origins[get_row(config, path) - config->keys];
}

const struct rk_json *rk_config_tree(const struct rk_config *config)
{
    return config->tree;
}

/* --- texts --- */

void rk_config_format(const struct rk_config *config, struct rk_str *out)
{
    for (int64_t i = 0; i < config->num_keys; i++) {
        char *value = rk_json_dump(get_value(config, config->keys[i].path), 0, false);

        rk_str_appendf(out, "%s = %s (%s)\n", config->keys[i].path, value, config->origins[i]);
        rk_free(value);
    }
}

const char *rk_config_type_name(rk_config_type_t type)
{
    static const char *const names[] = {
        [RK_CONFIG_BOOL] = "bool",     [RK_CONFIG_INT] = "int",     [RK_CONFIG_REAL] = "real",
        [RK_CONFIG_STRING] = "string", [RK_CONFIG_BYTES] = "bytes", [RK_CONFIG_DURATION] = "duration",
        [RK_CONFIG_LIST] = "list",     [RK_CONFIG_OPEN] = "open"};

    return names[type];
}

void rk_config_format_key(const struct rk_config_key *key, struct rk_str *out)
{
    rk_str_appendf(
        out, "%s (%s, %s%s): %s", key->path, key->choices ? key->choices : rk_config_type_name(key->type),
        key->default_text ? "default " : "required", key->default_text ? key->default_text : "", key->help);
    rk_str_append(out, key->flags & RK_CONFIG_RELOADABLE ? " [reloadable]\n" : "\n");
}

void rk_config_format_keys(const struct rk_config_key *keys, int64_t num_keys, struct rk_str *out)
{
    for (int64_t i = 0; i < num_keys; i++)
        rk_config_format_key(&keys[i], out);
}
