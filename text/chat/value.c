/* Values: creation, dicts, truth, length, items. */
#include "text/chat/jinja_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

const char *rk_value_type_name(rk_value_t value)
{
    static const char *const names[RK_VALUE_KIND_COUNT] = {
        "nothing", "Undefined", "NoneType", "bool", "int",       "float",       "str",   "list",   "tuple",
        "view",    "range",     "iterator", "dict", "Namespace", "LoopContext", "Macro", "method", "function",
    };

    return names[value.kind];
}

/* --- strings --- */

rk_value_t rk_value_new_text(struct rk_render *r, const char *data, int64_t bytes)
{
    rk_value_t value = {.kind = RK_VALUE_STRING, .string = rk_render_alloc(r, sizeof(*value.string))};

    *value.string = (struct rk_text){.data = data, .bytes = bytes, .chars = -1};
    return value;
}

rk_value_t rk_value_new_string(struct rk_render *r, const char *data, size_t bytes)
{
    char *copy;

    if (!rk_render_step(r, (int64_t)(bytes / 64)))
        return rk_value_undefined("");
    copy = rk_render_alloc(r, bytes);
    memcpy(copy, data, bytes);
    return rk_value_new_text(r, copy, (int64_t)bytes);
}

rk_value_t rk_value_take_string(struct rk_render *r, struct rk_str *text)
{
    rk_value_t value = rk_value_new_string(r, rk_str_text(text), text->bytes);

    rk_str_fini(text);
    return value;
}

/* --- lists --- */

rk_value_t rk_value_new_list(struct rk_render *r, rk_value_kind_t kind)
{
    return (rk_value_t){.kind = kind, .list = rk_render_alloc(r, sizeof(struct rk_list))};
}

void rk_list_append(struct rk_render *r, struct rk_list *list, rk_value_t item)
{
    if (!rk_render_step(r, 1))
        return;
    if (list->count == list->capacity) {
        rk_value_t *grown = rk_render_alloc(r, (size_t)(2 * list->count + 4) * sizeof(item));

        if (list->count > 0)
            memcpy(grown, list->items, (size_t)list->count * sizeof(item));
        list->items = grown;
        list->capacity = 2 * list->count + 4;
    }
    list->items[list->count++] = item;
}

static rk_value_t new_pair(struct rk_render *r, rk_value_t first, rk_value_t second)
{
    rk_value_t pair = rk_value_new_list(r, RK_VALUE_TUPLE);

    rk_list_append(r, pair.list, first);
    rk_list_append(r, pair.list, second);
    return pair;
}

/* --- dicts --- */

rk_value_t rk_value_new_dict(struct rk_render *r, rk_value_kind_t kind)
{
    return (rk_value_t){.kind = kind, .dict = rk_render_alloc(r, sizeof(struct rk_dict))};
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

bool rk_value_is_hashable(rk_value_t value)
{
    return value.kind != RK_VALUE_LIST && value.kind != RK_VALUE_DICT && value.kind != RK_VALUE_VIEW;
}

int64_t rk_dict_find(struct rk_render *r, const struct rk_dict *dict, rk_value_t key)
{
    (void)rk_render_step(r, dict->count / 8);
    if (!rk_value_is_hashable(key))
        RK_RAISE(r, "a %s cannot be the key of a dict", rk_value_type_name(key));
    for (int64_t i = 0; i < dict->count && !r->error; i++) {
        if (key.kind == RK_VALUE_STRING
                ? is_text_key(dict->keys[i], key.string->data, (size_t)key.string->bytes)
                : rk_value_equal(r, dict->keys[i], key))
            return i;
    }
    return -1;
}

static void append_member(struct rk_render *r, struct rk_dict *dict, rk_value_t key, rk_value_t value)
{
    if (dict->count == dict->capacity) {
        int64_t capacity = 2 * dict->count + 4;
        rk_value_t *grown = rk_render_alloc(r, 2 * (size_t)capacity * sizeof(*grown));

        for (int64_t i = 0; i < dict->count; i++) {
            grown[i] = dict->keys[i];
            grown[capacity + i] = dict->values[i];
        }
        *dict = (struct rk_dict){grown, grown + capacity, dict->count, capacity};
    }
    dict->keys[dict->count] = key;
    dict->values[dict->count++] = value;
}

void rk_dict_put(struct rk_render *r, struct rk_dict *dict, rk_value_t key, rk_value_t value)
{
    int64_t at = rk_dict_find(r, dict, key);

    if (at >= 0)
        dict->values[at] = value;
    else if (!r->error)
        append_member(r, dict, key, value);
}

rk_value_t rk_dict_view(struct rk_render *r, const struct rk_dict *dict, char part)
{
    rk_value_t view = rk_value_new_list(r, RK_VALUE_VIEW);

    for (int64_t i = 0; i < dict->count && !r->error; i++)
        rk_list_append(r, view.list,
                       part == 'k'   ? dict->keys[i]
                       : part == 'v' ? dict->values[i]
                                     : new_pair(r, dict->keys[i], dict->values[i]));
    return view;
}

/* --- from JSON: keys are unique, and the parser has limited the nesting --- */

rk_value_t rk_value_from_json(struct rk_render *r, const struct rk_json *json)
{
    rk_value_t value;

    (void)rk_render_step(r, 1);
    switch (rk_json_type(json)) {
    case RK_JSON_BOOL:
        return rk_value_bool(rk_json_as_bool(json, false));
    case RK_JSON_INT:
        return rk_value_int(rk_json_as_int(json, 0));
    case RK_JSON_REAL:
        return rk_value_real(rk_json_as_real(json, 0));
    case RK_JSON_STRING:
        return rk_value_new_text(r, rk_json_as_string(json, ""), (int64_t)rk_json_string_bytes(json));
    case RK_JSON_ARRAY:
        value = rk_value_new_list(r, RK_VALUE_LIST);
        for (int64_t i = 0; i < rk_json_count(json) && !r->error; i++)
            rk_list_append(r, value.list, rk_value_from_json(r, rk_json_at(json, i)));
        return value;
    case RK_JSON_OBJECT:
        value = rk_value_new_dict(r, RK_VALUE_DICT);
        for (void *it = rk_json_iter(json); it && !r->error; it = rk_json_iter_next(json, it)) {
            const char *key = rk_json_iter_key(it);

            append_member(r, value.dict, rk_value_new_text(r, key, (int64_t)strlen(key)),
                          rk_value_from_json(r, rk_json_iter_value(it)));
        }
        return value;
    default:
        return rk_value_none();
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
    return value.kind == RK_VALUE_BOOL || value.kind == RK_VALUE_INT;
}

double rk_value_as_real(rk_value_t value)
{
    int64_t integer = 0;

    if (value.kind == RK_VALUE_REAL)
        return value.real;
    RK_ASSERT(rk_value_as_int(value, &integer));
    return (double)integer;
}

static bool is_sequence(rk_value_t value)
{
    return value.kind >= RK_VALUE_LIST && value.kind <= RK_VALUE_RANGE;
}

bool rk_value_has_length(rk_value_t value)
{
    return value.kind == RK_VALUE_UNDEFINED || value.kind == RK_VALUE_STRING || is_sequence(value) ||
           value.kind == RK_VALUE_DICT;
}

int64_t rk_value_length(struct rk_render *r, rk_value_t value)
{
    if (!rk_value_has_length(value))
        RK_RAISE(r, "a value of type %s has no length", rk_value_type_name(value));
    if (value.kind == RK_VALUE_STRING && rk_render_step(r, value.string->bytes / 64))
        return rk_text_chars(value.string);
    if (is_sequence(value))
        return value.list->count;
    return value.kind == RK_VALUE_DICT ? value.dict->count : 0;
}

bool rk_value_truth(rk_value_t value)
{
    RK_ASSERT(value.kind != RK_VALUE_UNSET);
    switch (value.kind) {
    case RK_VALUE_UNDEFINED:
    case RK_VALUE_NONE:
        return false;
    case RK_VALUE_BOOL:
        return value.boolean;
    case RK_VALUE_INT:
        return value.integer != 0;
    case RK_VALUE_REAL:
        return value.real != 0.0;
    case RK_VALUE_STRING:
        return value.string->bytes > 0;
    case RK_VALUE_DICT:
        return value.dict->count > 0;
    default:
        return !is_sequence(value) || value.list->count > 0;
    }
}

/* --- items --- */

bool rk_value_is_iterable(rk_value_t value)
{
    return rk_value_has_length(value) || value.kind == RK_VALUE_ITERATOR || value.kind == RK_VALUE_LOOP;
}

static struct rk_list *characters(struct rk_render *r, const struct rk_text *text)
{
    struct rk_list *list = rk_value_new_list(r, RK_VALUE_LIST).list;
    int size;

    for (int64_t at = 0; at < text->bytes && !r->error; at += size) {
        (void)rk_utf8_read(text->data + at, &size);
        rk_list_append(r, list, rk_value_new_text(r, text->data + at, size));
    }
    return list;
}

struct rk_list *rk_value_items(struct rk_render *r, rk_value_t value)
{
    struct rk_list *rest;

    if (is_sequence(value))
        return value.list;
    if (value.kind == RK_VALUE_STRING)
        return characters(r, value.string);
    if (value.kind == RK_VALUE_DICT)
        return rk_dict_view(r, value.dict, 'k').list;
    rest = rk_value_new_list(r, RK_VALUE_LIST).list;
    if (value.kind == RK_VALUE_ITERATOR) {
        rest->items = value.list->items + value.list->num_read;
        rest->count = rest->capacity = value.list->count - value.list->num_read;
        value.list->num_read = value.list->count;
    } else if (value.kind == RK_VALUE_LOOP) {
        RK_REFUSE(r, "iterating over the variable 'loop' is not supported");
    } else if (value.kind != RK_VALUE_UNDEFINED) {
        RK_RAISE(r, "a value of type %s cannot be iterated over", rk_value_type_name(value));
    }
    return rest;
}
