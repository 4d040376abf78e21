/* Options and meta: flat entries on the wire, JSON objects in the product. */
#include "proto/record_internal.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_json.h"
#include "base/rk_map.h"

#include <math.h>
#include <string.h>

static struct rk_status *parse_json(struct rk_json **out, const char *text)
{
    return rk_json_parse(out, text, strlen(text), "meta value", RK_JSON_ALLOW_NUL);
}

struct rk_status *rk_scalar_check(const void *scalar)
{
    const struct rk_scalar *value = scalar;
    struct rk_json *json = NULL;
    struct rk_status *st;

    if (value->kind == RK_SCALAR_NONE)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                              "a meta value must be a number, a boolean, a string or JSON text");
    if (value->kind == RK_SCALAR_REAL && !isfinite(value->real))
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                              "a meta value is %g, expected a finite number", value->real);
    if (value->kind != RK_SCALAR_JSON)
        return NULL;
    st = parse_json(&json, value->json);
    rk_json_free(json);
    return st;
}

struct rk_status *rk_meta_check(const struct rk_meta *meta)
{
    struct rk_map *seen = rk_map_create();
    struct rk_status *st = NULL;

    for (int64_t i = 0; i < meta->count && !st; i++) {
        if (rk_map_put(seen, meta->entries[i].key, (void *)meta->entries[i].key))
            st = RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "meta key '%s' occurs twice",
                                meta->entries[i].key);
    }
    rk_map_destroy(seen);
    return st;
}

static struct rk_scalar scalar_from_json(struct rk_arena *arena, const struct rk_json *json)
{
    struct rk_scalar scalar = {.kind = RK_SCALAR_JSON};
    char *text;

    switch (rk_json_type(json)) {
    case RK_JSON_BOOL:
        return (struct rk_scalar){.kind = RK_SCALAR_BOOL, .boolean = rk_json_as_bool(json, false)};
    case RK_JSON_INT:
        return (struct rk_scalar){.kind = RK_SCALAR_INT, .integer = rk_json_as_int(json, 0)};
    case RK_JSON_REAL:
        return (struct rk_scalar){.kind = RK_SCALAR_REAL, .real = rk_json_as_real(json, 0.0)};
    case RK_JSON_STRING:
        scalar.text = rk_json_as_string(json, "");
        /* A NUL in a string can only be represented as an escape of JSON text. */
        if (strlen(scalar.text) == rk_json_string_bytes(json))
            return (struct rk_scalar){.kind = RK_SCALAR_STRING, .text = scalar.text};
        scalar.text = NULL;
        break;
    default:
        break;
    }
    text = rk_json_dump(json, 0, false);
    scalar.json = rk_arena_strdup(arena, text);
    RK_ASSERT(scalar.json != NULL);
    rk_free(text);
    return scalar;
}

struct rk_meta rk_meta_from_json(struct rk_arena *arena, const struct rk_json *object)
{
    struct rk_meta meta = {.count = rk_json_count(object)};
    int64_t i = 0;

    if (!meta.count)
        return meta;
    meta.entries = rk_arena_calloc(arena, (size_t)meta.count, sizeof(*meta.entries));
    RK_ASSERT(meta.entries != NULL);
    for (void *it = rk_json_iter(object); it; it = rk_json_iter_next(object, it)) {
        meta.entries[i].key = rk_json_iter_key(it);
        meta.entries[i].value = scalar_from_json(arena, rk_json_iter_value(it));
        i++;
    }
    RK_ASSERT(i == meta.count);
    return meta;
}

static struct rk_json *scalar_to_json(const struct rk_scalar *scalar)
{
    struct rk_json *json = NULL;

    switch (scalar->kind) {
    case RK_SCALAR_REAL:
        return rk_json_new_real(scalar->real);
    case RK_SCALAR_INT:
        return rk_json_new_int(scalar->integer);
    case RK_SCALAR_BOOL:
        return rk_json_new_bool(scalar->boolean);
    case RK_SCALAR_STRING:
        return rk_json_new_string(scalar->text);
    default:
        RK_ASSERT(scalar->kind == RK_SCALAR_JSON);
        RK_ASSERT(parse_json(&json, scalar->json) == NULL);
        return json;
    }
}

struct rk_json *rk_meta_to_json(const struct rk_meta *meta)
{
    struct rk_json *object = rk_json_new_object();

    for (int64_t i = 0; i < meta->count; i++)
        rk_json_set(object, meta->entries[i].key, scalar_to_json(&meta->entries[i].value));
    return object;
}
