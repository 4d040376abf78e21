/* Values: creation, truth, length, dicts. */
#include "text/chat/render_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

const char *rk_value_type_name(rk_value_t value)
{
    static const char *const names[RK_VALUE_KIND_COUNT] = {
        [RK_VALUE_UNSET] = "nothing",
        [RK_VALUE_UNDEFINED] = "Undefined",
        [RK_VALUE_NONE] = "NoneType",
        [RK_VALUE_BOOL] = "bool",
        [RK_VALUE_INT] = "int",
        [RK_VALUE_REAL] = "float",
        [RK_VALUE_STRING] = "str",
        [RK_VALUE_LIST] = "list",
        [RK_VALUE_TUPLE] = "tuple",
        [RK_VALUE_DICT] = "dict",
        [RK_VALUE_VIEW] = "view of a dict",
        [RK_VALUE_NAMESPACE] = "Namespace",
        [RK_VALUE_RANGE] = "range",
        [RK_VALUE_ITERATOR] = "iterator",
        [RK_VALUE_LOOP] = "LoopContext",
        [RK_VALUE_MACRO] = "Macro",
        [RK_VALUE_METHOD] = "method",
        [RK_VALUE_FUNCTION] = "function",
    };

    return names[value.kind];
}

/* --- strings --- */

static struct rk_status *new_text(struct rk_render *r, rk_value_t *out, const char *data, int64_t bytes)
{
    void *text;

    *out = (rk_value_t){.kind = RK_VALUE_STRING};
    RK_TRY(rk_render_alloc(r, &text, sizeof(*out->string)));
    out->string = text;
    *out->string = (struct rk_text){.data = data, .bytes = bytes, .chars = -1};
    return NULL;
}

struct rk_status *rk_value_new_string(struct rk_render *r, rk_value_t *out, const char *text, size_t bytes)
{
    void *copy = NULL;

    RK_TRY(rk_render_step(r, (int64_t)(bytes / 64)));
    RK_TRY(rk_render_alloc(r, &copy, bytes + 1));
    if (bytes > 0)
        memcpy(copy, text, bytes);
    return new_text(r, out, copy, (int64_t)bytes);
}

struct rk_status *rk_value_take_string(struct rk_render *r, rk_value_t *out, struct rk_str *text)
{
    struct rk_status *st = rk_value_new_string(r, out, rk_str_text(text), text->bytes);

    rk_str_fini(text);
    return st;
}

struct rk_status *rk_value_new_substring(struct rk_render *r, rk_value_t *out, const struct rk_text *whole,
                                         int64_t offset, int64_t bytes)
{
    RK_ASSERT(offset >= 0);
    RK_ASSERT(offset + bytes <= whole->bytes);
    return new_text(r, out, whole->data + offset, bytes);
}

/* --- lists --- */

struct rk_status *rk_value_new_list(struct rk_render *r, rk_value_t *out, rk_value_kind_t kind,
                                    int64_t capacity)
{
    void *list, *items;

    *out = (rk_value_t){.kind = kind};
    RK_TRY(rk_render_alloc(r, &list, sizeof(*out->list)));
    RK_TRY(rk_render_alloc(r, &items, (size_t)RK_MAX(capacity, 1) * sizeof(rk_value_t)));
    out->list = list;
    *out->list = (struct rk_list){.items = items, .capacity = RK_MAX(capacity, 1)};
    return NULL;
}

struct rk_status *rk_list_append(struct rk_render *r, struct rk_list *list, rk_value_t item)
{
    void *grown;

    RK_TRY(rk_render_step(r, 1));
    if (list->count == list->capacity) {
        RK_TRY(rk_render_alloc(r, &grown, (size_t)list->capacity * 2 * sizeof(item)));
        memcpy(grown, list->items, (size_t)list->count * sizeof(item));
        list->items = grown;
        list->capacity *= 2;
    }
    list->items[list->count++] = item;
    return NULL;
}

struct rk_status *rk_value_new_pair(struct rk_render *r, rk_value_t *out, rk_value_t first, rk_value_t second)
{
    RK_TRY(rk_value_new_list(r, out, RK_VALUE_TUPLE, 2));
    out->list->items[0] = first;
    out->list->items[1] = second;
    out->list->count = 2;
    return NULL;
}

/* --- dicts --- */

struct rk_status *rk_value_new_dict(struct rk_render *r, rk_value_t *out, rk_value_kind_t kind,
                                    int64_t capacity)
{
    size_t count = (size_t)RK_MAX(capacity, 4);
    void *dict, *items;

    *out = (rk_value_t){.kind = kind};
    RK_TRY(rk_render_alloc(r, &dict, sizeof(*out->dict)));
    RK_TRY(rk_render_alloc(r, &items, 2 * count * sizeof(rk_value_t)));
    out->dict = dict;
    out->dict->keys = items;
    out->dict->values = out->dict->keys + count;
    out->dict->capacity = (int64_t)count;
    return NULL;
}

static bool is_text_key(rk_value_t key, const char *text, size_t bytes)
{
    return key.kind == RK_VALUE_STRING && key.string->bytes == (int64_t)bytes &&
           memcmp(key.string->data, text, bytes) == 0;
}

const rk_value_t *rk_dict_find_text(const struct rk_dict *dict, const char *key, size_t bytes)
{
    for (int64_t i = 0; i < dict->count; i++) {
        if (is_text_key(dict->keys[i], key, bytes))
            return &dict->values[i];
    }
    return NULL;
}

struct rk_status *rk_dict_find(struct rk_render *r, const struct rk_dict *dict, rk_value_t key, int64_t *at)
{
    bool is_equal = false;

    *at = -1;
    if (key.kind == RK_VALUE_LIST || key.kind == RK_VALUE_DICT || key.kind == RK_VALUE_VIEW)
        return RK_TEMPLATE_ERROR("a %s cannot be the key of a dict", rk_value_type_name(key));
    RK_TRY(rk_render_step(r, dict->count / 8));
    for (int64_t i = 0; i < dict->count; i++) {
        if (key.kind == RK_VALUE_STRING)
            is_equal = is_text_key(dict->keys[i], key.string->data, (size_t)key.string->bytes);
        else
            RK_TRY(rk_value_equal(r, dict->keys[i], key, &is_equal));
        if (is_equal) {
            *at = i;
            return NULL;
        }
    }
    return NULL;
}

static struct rk_status *grow_dict(struct rk_render *r, struct rk_dict *dict)
{
    rk_value_t larger;

    RK_TRY(rk_value_new_dict(r, &larger, RK_VALUE_DICT, dict->capacity * 2));
    memcpy(larger.dict->keys, dict->keys, (size_t)dict->count * sizeof(*dict->keys));
    memcpy(larger.dict->values, dict->values, (size_t)dict->count * sizeof(*dict->values));
    larger.dict->count = dict->count;
    *dict = *larger.dict;
    return NULL;
}

struct rk_status *rk_dict_put(struct rk_render *r, struct rk_dict *dict, rk_value_t key, rk_value_t value)
{
    int64_t at;

    RK_TRY(rk_dict_find(r, dict, key, &at));
    if (at >= 0) {
        dict->values[at] = value;
        return NULL;
    }
    if (dict->count == dict->capacity)
        RK_TRY(grow_dict(r, dict));
    dict->keys[dict->count] = key;
    dict->values[dict->count++] = value;
    return NULL;
}

/* --- from JSON: keys are unique, and the parser has limited the nesting --- */

static struct rk_status *from_array(struct rk_render *r, rk_value_t *out, const struct rk_json *json)
{
    int64_t count = rk_json_count(json);

    RK_TRY(rk_value_new_list(r, out, RK_VALUE_LIST, count));
    for (int64_t i = 0; i < count; i++) {
        rk_value_t item;

        RK_TRY(rk_value_from_json(r, &item, rk_json_at(json, i)));
        RK_TRY(rk_list_append(r, out->list, item));
    }
    return NULL;
}

static struct rk_status *from_object(struct rk_render *r, rk_value_t *out, const struct rk_json *json)
{
    RK_TRY(rk_value_new_dict(r, out, RK_VALUE_DICT, rk_json_count(json)));
    for (void *it = rk_json_iter(json); it; it = rk_json_iter_next(json, it)) {
        const char *key = rk_json_iter_key(it);
        struct rk_dict *dict = out->dict;

        RK_TRY(new_text(r, &dict->keys[dict->count], key, (int64_t)strlen(key)));
        RK_TRY(rk_value_from_json(r, &dict->values[dict->count], rk_json_iter_value(it)));
        dict->count++;
    }
    return NULL;
}

struct rk_status *rk_value_from_json(struct rk_render *r, rk_value_t *out, const struct rk_json *json)
{
    RK_TRY(rk_render_step(r, 1));
    switch (rk_json_type(json)) {
    case RK_JSON_BOOL:
        *out = rk_value_bool(rk_json_as_bool(json, false));
        return NULL;
    case RK_JSON_INT:
        *out = rk_value_int(rk_json_as_int(json, 0));
        return NULL;
    case RK_JSON_REAL:
        *out = rk_value_real(rk_json_as_real(json, 0));
        return NULL;
    case RK_JSON_STRING:
        return new_text(r, out, rk_json_as_string(json, ""), (int64_t)rk_json_string_bytes(json));
    case RK_JSON_ARRAY:
        return from_array(r, out, json);
    case RK_JSON_OBJECT:
        return from_object(r, out, json);
    default:
        *out = rk_value_none();
        return NULL;
    }
}

/* --- numbers, truth, length --- */

bool rk_value_is_number(rk_value_t value)
{
    return value.kind == RK_VALUE_BOOL || value.kind == RK_VALUE_INT || value.kind == RK_VALUE_REAL;
}

bool rk_value_as_int(rk_value_t value, int64_t *out)
{
    if (value.kind == RK_VALUE_BOOL)
        *out = value.boolean;
    else if (value.kind == RK_VALUE_INT)
        *out = value.integer;
    else
        return false;
    return true;
}

double rk_value_as_real(rk_value_t value)
{
    int64_t integer = 0;

    if (value.kind == RK_VALUE_REAL)
        return value.real;
    RK_ASSERT(rk_value_as_int(value, &integer));
    return (double)integer;
}

bool rk_value_has_length(rk_value_t value)
{
    switch (value.kind) {
    case RK_VALUE_UNDEFINED:
    case RK_VALUE_STRING:
    case RK_VALUE_LIST:
    case RK_VALUE_TUPLE:
    case RK_VALUE_DICT:
    case RK_VALUE_VIEW:
    case RK_VALUE_RANGE:
        return true;
    default:
        return false;
    }
}

struct rk_status *rk_value_length(struct rk_render *r, rk_value_t value, int64_t *out)
{
    *out = 0;
    switch (value.kind) {
    case RK_VALUE_UNDEFINED:
        return NULL;
    case RK_VALUE_STRING:
        *out = rk_text_chars(value.string);
        return rk_render_step(r, value.string->bytes / 64);
    case RK_VALUE_LIST:
    case RK_VALUE_TUPLE:
        *out = value.list->count;
        return NULL;
    case RK_VALUE_DICT:
        *out = value.dict->count;
        return NULL;
    case RK_VALUE_VIEW:
        *out = value.view->dict->count;
        return NULL;
    case RK_VALUE_RANGE:
        *out = value.range->count;
        return NULL;
    default:
        return RK_TEMPLATE_ERROR("a value of type %s has no length", rk_value_type_name(value));
    }
}

struct rk_status *rk_value_truth(struct rk_render *r, rk_value_t value, bool *out)
{
    int64_t length = 0;

    RK_ASSERT(value.kind != RK_VALUE_UNSET);
    switch (value.kind) {
    case RK_VALUE_NONE:
        *out = false;
        return NULL;
    case RK_VALUE_BOOL:
        *out = value.boolean;
        return NULL;
    case RK_VALUE_INT:
        *out = value.integer != 0;
        return NULL;
    case RK_VALUE_REAL:
        *out = value.real != 0.0;
        return NULL;
    case RK_VALUE_STRING:
        *out = value.string->bytes > 0;
        return NULL;
    default:
        break;
    }
    if (rk_value_has_length(value)) {
        RK_TRY(rk_value_length(r, value, &length));
        *out = length > 0;
    } else {
        *out = true;
    }
    return NULL;
}
