/* Post-processors: the ids added around a text with add_special_tokens. */
#include "text/tokenizer/tokenizer_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

static struct rk_status *read_id(int32_t *out, const struct rk_json *json, const char *where, const char *key)
{
    int64_t id = rk_json_as_int(json, -1);

    if (id < 0 || id > RK_TOKEN_ID_MAX)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s.%s: expected an id from 0 to %d", where, key,
                       RK_TOKEN_ID_MAX);
    *out = (int32_t)id;
    return NULL;
}

/* The ids of a special token of a template. */
static struct rk_status *append_special(rk_ids_t *out, const struct rk_json *json, const char *name,
                                        const char *where)
{
    const struct rk_json *ids = rk_json_find(rk_json_find(rk_json_find(json, "special_tokens"), name), "ids");

    if (rk_json_count(ids) == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s.special_tokens: no ids of the template's '%s'", where, name);
    for (int64_t i = 0; i < rk_json_count(ids); i++) {
        int32_t id;

        RK_TRY(read_id(&id, rk_json_at(ids, i), where, "special_tokens"));
        rk_array_append(out, id);
    }
    return NULL;
}

static struct rk_status *read_template(struct rk_around *around, const struct rk_json *json,
                                       const char *where)
{
    const struct rk_json *single = rk_json_find(json, "single");
    int64_t num_texts = 0;

    for (int64_t i = 0; i < rk_json_count(single); i++) {
        const struct rk_json *item = rk_json_at(single, i);
        const char *special = rk_json_as_string(rk_json_find_path(item, "SpecialToken.id"), NULL);
        const char *sequence = rk_json_as_string(rk_json_find_path(item, "Sequence.id"), NULL);

        if (special)
            RK_TRY(append_special(num_texts > 0 ? &around->suffix : &around->prefix, json, special, where));
        else if (sequence && strcmp(sequence, "A") == 0)
            num_texts++;
        else
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "%s.single[%lld]: expected a SpecialToken or the Sequence A, each with its id",
                           where, (long long)i);
    }
    if (num_texts != 1)
        return RK_FAIL(RK_INVALID_ARGUMENT, "%s.single: expected the Sequence A once, got it %lld times",
                       where, (long long)num_texts);
    return NULL;
}

/* "cls" before, "sep" after; each is [text, id]. */
static struct rk_status *read_cls_sep(struct rk_around *around, const struct rk_json *json, const char *where)
{
    static const char *const keys[] = {"cls", "sep"};
    rk_ids_t *const sides[] = {&around->prefix, &around->suffix};

    for (size_t i = 0; i < RK_ARRAY_LEN(keys); i++) {
        const struct rk_json *pair = rk_json_find(json, keys[i]);
        int32_t id;

        if (rk_json_type(pair) != RK_JSON_ARRAY || rk_json_count(pair) != 2)
            return RK_FAIL(RK_INVALID_ARGUMENT, "%s.%s: expected [text, id]", where, keys[i]);
        RK_TRY(read_id(&id, rk_json_at(pair, 1), where, keys[i]));
        rk_array_append(sides[i], id);
    }
    return NULL;
}

static struct rk_status *read_nothing(struct rk_around *around, const struct rk_json *json, const char *where)
{
    (void)around;
    (void)json;
    (void)where;
    return NULL;
}

static const struct {
    const char *type;
    struct rk_status *(*read)(struct rk_around *around, const struct rk_json *json, const char *where);
} processors[] = {
    {"BertProcessing", read_cls_sep},
    {"ByteLevel", read_nothing}, /* about offsets */
    {"RobertaProcessing", read_cls_sep},
    {"TemplateProcessing", read_template},
};

/* Ids of a later post-processor are placed around the ids of earlier ones. */
static void put_around(struct rk_around *outer, struct rk_around *inner)
{
    for (int64_t i = 0; i < inner->prefix.count; i++)
        rk_array_append(&outer->prefix, inner->prefix.items[i]);
    for (int64_t i = 0; i < outer->suffix.count; i++)
        rk_array_append(&inner->suffix, outer->suffix.items[i]);
    rk_array_fini(&outer->suffix);
    outer->suffix = inner->suffix;
    rk_array_fini(&inner->prefix);
    *inner = *outer;
}

static struct rk_status *read_component(void *user, const struct rk_json *json, const char *where)
{
    const char *type = rk_component_type(json);
    struct rk_around outer = {0};
    struct rk_status *st = NULL;
    size_t i = 0;

    while (i < RK_ARRAY_LEN(processors) && strcmp(type, processors[i].type) != 0)
        i++;
    if (i == RK_ARRAY_LEN(processors))
        return RK_FAIL(RK_UNIMPLEMENTED, "%s.type '%s' is not supported", where, type);
    st = processors[i].read(&outer, json, where);
    put_around(&outer, user);
    return st;
}

struct rk_status *rk_post_processor_read(struct rk_around *around, const struct rk_json *json,
                                         const char *where)
{
    return rk_component_each(json, where, "processors", read_component, around);
}
