/* Attributes, items and slices. As in Jinja, a.b is the attribute before the item, a["b"] the item before the
 * attribute, and a missing member is undefined. */
#include "text/chat/render_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

static struct rk_status *missing(struct rk_render *r, rk_value_t name, rk_value_t *out)
{
    struct rk_str text = {0};
    struct rk_status *st = rk_value_format(r, name, &text);
    char *copy = NULL;

    if (!st) {
        copy = rk_arena_strndup(r->arena, rk_str_text(&text), RK_MIN(text.bytes, (size_t)64));
        if (!copy)
            st = RK_FAIL(RK_RESOURCE_EXHAUSTED, "out of memory");
    }
    rk_str_fini(&text);
    *out = rk_value_undefined(copy);
    return st;
}

/* Methods that Jinja's sandbox hides from templates because they change a value. */
static bool is_mutator(rk_value_kind_t kind, const char *name)
{
    static const char *const of_list[] = {"append", "clear", "pop",    "reverse",
                                          "insert", "sort",  "extend", "remove"};
    static const char *const of_dict[] = {"clear", "pop", "popitem", "setdefault", "update"};
    const char *const *names = kind == RK_VALUE_LIST ? of_list : of_dict;
    size_t count = kind == RK_VALUE_LIST ? RK_ARRAY_LEN(of_list) : RK_ARRAY_LEN(of_dict);

    for (size_t i = 0; (kind == RK_VALUE_LIST || kind == RK_VALUE_DICT) && i < count; i++) {
        if (strcmp(name, names[i]) == 0)
            return true;
    }
    return false;
}

/* A Python attribute of the object; UNSET if it has none of this name. */
static struct rk_status *find_attr(struct rk_render *r, rk_value_t object, const char *name, rk_value_t *out)
{
    const struct rk_callable *row = rk_jinja_method_find(object.kind, name);
    const rk_value_t *member;
    void *memory;

    *out = (rk_value_t){.kind = RK_VALUE_UNSET};
    if (object.kind == RK_VALUE_LOOP)
        return rk_for_loop_attr(r, object.loop, name, out);
    if (object.kind == RK_VALUE_NAMESPACE) {
        member = rk_dict_find_text(object.dict, name, strlen(name));
        if (member)
            *out = *member;
        return NULL;
    }
    if (object.kind == RK_VALUE_RANGE && (strcmp(name, "count") == 0 || strcmp(name, "index") == 0))
        return RK_FAIL(RK_UNIMPLEMENTED, "the method '%s' of a range is not supported", name);
    if (row) {
        RK_TRY(rk_render_alloc(r, &memory, sizeof(*out->method)));
        *out = (rk_value_t){.kind = RK_VALUE_METHOD, .method = memory};
        *out->method = (struct rk_bound_method){object, row};
    } else if (is_mutator(object.kind, name)) {
        *out = rk_value_undefined(row ? row->name : "a method that changes its object");
    }
    return NULL;
}

static struct rk_status *attr_of(struct rk_render *r, rk_value_t object, rk_value_t name, rk_value_t *out)
{
    char text[32] = {0};

    *out = (rk_value_t){.kind = RK_VALUE_UNSET};
    if (object.kind == RK_VALUE_NAMESPACE) { /* whose names may be of any length */
        const rk_value_t *member =
            rk_dict_find_text(object.dict, name.string->data, (size_t)name.string->bytes);

        if (member)
            *out = *member;
        return NULL;
    }
    if (name.string->bytes >= (int64_t)sizeof(text)) /* longer than any method */
        return NULL;
    memcpy(text, name.string->data, (size_t)name.string->bytes);
    return find_attr(r, object, text, out);
}

struct rk_status *rk_get_attr(struct rk_render *r, rk_value_t object, rk_value_t name, rk_value_t *out)
{
    const rk_value_t *member = NULL;

    if (object.kind == RK_VALUE_UNDEFINED)
        return rk_undefined_error(object);
    RK_TRY(attr_of(r, object, name, out));
    if (out->kind != RK_VALUE_UNSET)
        return NULL;
    if (object.kind == RK_VALUE_DICT)
        member = rk_dict_find_text(object.dict, name.string->data, (size_t)name.string->bytes);
    if (!member)
        return missing(r, name, out);
    *out = *member;
    return NULL;
}

/* --- items --- */

static struct rk_status *char_at(struct rk_render *r, struct rk_text *text, int64_t i, rk_value_t *out)
{
    int64_t offset = rk_text_offset(text, i);
    int bytes;

    (void)rk_utf8_read(text->data + offset, &bytes);
    RK_TRY(rk_render_step(r, offset / 64));
    return rk_value_new_substring(r, out, text, offset, bytes);
}

/* Item of a sequence by index; UNSET if there is no such item or the object is not a sequence. */
static struct rk_status *item_at(struct rk_render *r, rk_value_t object, int64_t i, rk_value_t *out)
{
    int64_t count = 0;

    *out = (rk_value_t){.kind = RK_VALUE_UNSET};
    if (object.kind == RK_VALUE_DICT || object.kind == RK_VALUE_VIEW || !rk_value_has_length(object))
        return NULL;
    RK_TRY(rk_value_length(r, object, &count));
    if (i < 0)
        i += count;
    if (i < 0 || i >= count)
        return NULL;
    if (object.kind == RK_VALUE_STRING)
        return char_at(r, object.string, i, out);
    *out = object.kind == RK_VALUE_RANGE ? rk_value_int(object.range->start + i * object.range->step)
                                         : object.list->items[i];
    return NULL;
}

static struct rk_status *member_of(struct rk_render *r, const struct rk_dict *dict, rk_value_t key,
                                   rk_value_t *out)
{
    int64_t at = -1;

    if (key.kind == RK_VALUE_LIST || key.kind == RK_VALUE_DICT || key.kind == RK_VALUE_VIEW)
        return NULL; /* not hashable: a TypeError, which Jinja treats as a missing item */
    RK_TRY(rk_dict_find(r, dict, key, &at));
    if (at >= 0)
        *out = dict->values[at];
    return NULL;
}

struct rk_status *rk_get_item(struct rk_render *r, rk_value_t object, rk_value_t key, rk_value_t *out)
{
    int64_t i;

    *out = (rk_value_t){.kind = RK_VALUE_UNSET};
    if (object.kind == RK_VALUE_UNDEFINED)
        return rk_undefined_error(object);
    if (object.kind == RK_VALUE_DICT)
        RK_TRY(member_of(r, object.dict, key, out));
    else if (rk_value_as_int(key, &i))
        RK_TRY(item_at(r, object, i, out));
    if (out->kind == RK_VALUE_UNSET && key.kind == RK_VALUE_STRING)
        RK_TRY(attr_of(r, object, key, out));
    return out->kind == RK_VALUE_UNSET ? missing(r, key, out) : NULL;
}

/* --- slices --- */

struct slice {
    int64_t start, step, count;
};

static struct rk_status *read_bound(rk_value_t bound, int64_t *out, bool *is_given)
{
    *is_given = bound.kind != RK_VALUE_UNSET && bound.kind != RK_VALUE_NONE;
    if (*is_given && !rk_value_as_int(bound, out))
        return RK_TEMPLATE_ERROR("a slice needs integers, got %s", rk_value_type_name(bound));
    return NULL;
}

static int64_t clamp_bound(int64_t bound, int64_t length, int64_t low, int64_t high)
{
    if (bound < 0)
        bound += length;
    return RK_MIN(RK_MAX(bound, low), high);
}

/* Python's rules: bounds are clamped to the length. */
static struct rk_status *read_slice(const rk_value_t *bounds, int64_t length, struct slice *out)
{
    int64_t start = 0, stop = 0, step = 1, low, high;
    bool has_start, has_stop, has_step;

    RK_TRY(read_bound(bounds[2], &step, &has_step));
    if (step == 0)
        return RK_TEMPLATE_ERROR("the step of a slice is 0");
    step = RK_MIN(RK_MAX(step, -INT64_MAX / 4), INT64_MAX / 4);
    low = step < 0 ? -1 : 0;
    high = step < 0 ? length - 1 : length;
    RK_TRY(read_bound(bounds[0], &start, &has_start));
    RK_TRY(read_bound(bounds[1], &stop, &has_stop));
    start = has_start ? clamp_bound(start, length, low, high) : step < 0 ? high : low;
    stop = has_stop ? clamp_bound(stop, length, low, high) : step < 0 ? low : high;
    out->start = start;
    out->step = step;
    out->count = step > 0 ? (stop > start ? (stop - start - 1) / step + 1 : 0)
                          : (start > stop ? (start - stop - 1) / -step + 1 : 0);
    return NULL;
}

static struct rk_status *slice_text(struct rk_render *r, struct rk_text *text, const struct slice *slice,
                                    rk_value_t *out)
{
    struct rk_str result = {0};
    struct rk_status *st = NULL;

    if (slice->step == 1) {
        int64_t begin = slice->count ? rk_text_offset(text, slice->start) : 0;
        int64_t end = slice->count ? rk_text_offset(text, slice->start + slice->count) : 0;

        return rk_value_new_substring(r, out, text, begin, end - begin);
    }
    for (int64_t i = 0; !st && i < slice->count; i++) {
        int64_t offset = rk_text_offset(text, slice->start + i * slice->step);
        int bytes;

        (void)rk_utf8_read(text->data + offset, &bytes);
        rk_str_append_bytes(&result, text->data + offset, (size_t)bytes);
        st = rk_render_step(r, 1 + (text->chars == text->bytes ? 0 : offset / 64));
    }
    if (!st)
        return rk_value_take_string(r, out, &result);
    rk_str_fini(&result);
    return st;
}

struct rk_status *rk_get_slice(struct rk_render *r, rk_value_t object, const rk_value_t *bounds,
                               rk_value_t *out)
{
    struct slice slice;
    int64_t length;

    if (object.kind == RK_VALUE_UNDEFINED)
        return rk_undefined_error(object);
    if (object.kind != RK_VALUE_STRING && object.kind != RK_VALUE_LIST && object.kind != RK_VALUE_TUPLE)
        return object.kind == RK_VALUE_RANGE
                   ? RK_FAIL(RK_UNIMPLEMENTED, "slices of a range are not supported")
                   : RK_TEMPLATE_ERROR("a value of type %s has no slices", rk_value_type_name(object));
    RK_TRY(rk_value_length(r, object, &length));
    RK_TRY(read_slice(bounds, length, &slice));
    if (object.kind == RK_VALUE_STRING) {
        RK_TRY(slice_text(r, object.string, &slice, out));
        out->string->is_markup = object.string->is_markup;
        return NULL;
    }
    RK_TRY(rk_value_new_list(r, out, object.kind, slice.count));
    for (int64_t i = 0; i < slice.count; i++)
        RK_TRY(rk_list_append(r, out->list, object.list->items[slice.start + i * slice.step]));
    return NULL;
}
