/* "${a.b}", "${a.b:default}", "${env:NAME}" and "${env:NAME:default}" as whole values. */
#include "base/config/rk_config_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_env.h"
#include "base/rk_json.h"

#define MAX_DEPTH 32    /* of references to references */
#define MAX_REFS  10000 /* in one load: references that double at each step would fill the memory */

struct chain {
    const char *target;
    const struct chain *outer;
};

struct resolving {
    struct rk_config_loader *loader;
    int64_t num_refs;
};

static struct rk_json *resolve_value(struct resolving *run, const struct rk_json *json, const char *path,
                                     const struct chain *chain);

static void ref_problem(struct resolving *run, const char *path, const char *ref, const char *problem)
{
    rk_config_problem(run->loader, rk_config_find_place(run->loader, path), path, "%s: %s", ref, problem);
}

/* "NAME" or "NAME:default"; changes `name`. */
static struct rk_json *resolve_env(struct resolving *run, const char *path, const char *ref, char *name)
{
    char *colon = strchr(name, ':');
    const char *value;

    if (colon)
        *colon = '\0';
    value = rk_env(name);
    if (!value && !colon) {
        ref_problem(run, path, ref, "the environment variable is not set");
        return NULL;
    }
    return rk_config_parse_value(run->loader, path, value ? value : colon + 1);
}

/* Why `target` cannot be followed from here, or NULL. */
static const char *find_obstacle(struct resolving *run, const char *target, const struct chain *chain)
{
    int depth = 0;

    for (const struct chain *outer = chain; outer; outer = outer->outer, depth++) {
        if (strcmp(outer->target, target) == 0)
            return "circular reference";
    }
    if (depth == MAX_DEPTH)
        return "references too deep";
    return ++run->num_refs > MAX_REFS ? "too many references" : NULL;
}

/* "KEY" or "KEY:default"; changes `target`. */
static struct rk_json *resolve_key(struct resolving *run, const char *path, const char *ref, char *target,
                                   const struct chain *chain)
{
    struct chain link = {.target = target, .outer = chain};
    char *colon = strchr(target, ':');
    const struct rk_json *found;
    struct rk_json *value = NULL;
    const char *obstacle;

    if (colon)
        *colon = '\0';
    obstacle = find_obstacle(run, target, chain);
    if (obstacle) {
        ref_problem(run, path, ref, obstacle);
        return NULL;
    }
    found = rk_json_find_path(run->loader->tree, target);
    if (found)
        value = resolve_value(run, found, target, &link);
    else if (!colon)
        ref_problem(run, path, ref, "there is no such key");
    if (!colon || !rk_json_is_null(value))
        return value;
    rk_json_free(value);
    return rk_config_parse_value(run->loader, path, colon + 1);
}

static struct rk_json *resolve_ref(struct resolving *run, const char *ref, const char *path,
                                   const struct chain *chain)
{
    char *target = rk_strndup(ref + 2, strlen(ref) - 3);
    struct rk_json *value;

    if (rk_str_has_prefix(target, "env:"))
        value = resolve_env(run, path, ref, target + 4);
    else
        value = resolve_key(run, path, ref, target, chain);
    rk_free(target);
    return value;
}

/* A copy of `json` with every reference replaced; NULL, and a problem, for an invalid reference. */
static struct rk_json *resolve_value(struct resolving *run, const struct rk_json *json, const char *path,
                                     const struct chain *chain)
{
    struct rk_json *copy, *part;

    if (rk_config_is_ref(json))
        return resolve_ref(run, rk_json_as_string(json, ""), path, chain);
    if (rk_json_type(json) == RK_JSON_OBJECT) {
        copy = rk_json_new_object();
        for (void *it = rk_json_iter(json); it; it = rk_json_iter_next(json, it)) {
            char *member_path = rk_json_join_path(path, rk_json_iter_key(it));

            part = resolve_value(run, rk_json_iter_value(it), member_path, chain);
            if (part)
                rk_json_set(copy, rk_json_iter_key(it), part);
            rk_free(member_path);
        }
        return copy;
    }
    if (rk_json_type(json) == RK_JSON_ARRAY) {
        copy = rk_json_new_array();
        for (int64_t i = 0; i < rk_json_count(json); i++) {
            part = resolve_value(run, rk_json_at(json, i), path, chain);
            if (part)
                rk_json_append(copy, part);
        }
        return copy;
    }
    return rk_json_retain(json);
}

void rk_config_resolve_refs(struct rk_config_loader *loader)
{
    struct resolving run = {.loader = loader};
    struct rk_json *resolved = resolve_value(&run, loader->tree, "", NULL);

    rk_json_free(loader->tree);
    loader->tree = resolved;
}
