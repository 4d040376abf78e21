/* Defaults of another product, for files and command lines of its form. */
#include "base/config/rk_config_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_json.h"

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
