/* Methods of strings, as Python has them. */
#include "driver-cli/driver/chat/filters_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

#define METHOD(name) \
    static struct rk_status *name(struct rk_render *r, rk_value_t *out, const struct rk_row_call *call)

/* --- changing --- */

static struct rk_status *need_text(rk_value_t arg, const char *name, struct rk_text **out)
{
    RK_TRY(rk_arg_text(arg, name, out));
    return *out ? NULL : RK_TEMPLATE_ERROR("%s: expected a string, got %s", name, rk_value_type_name(arg));
}

static struct rk_status *strip(struct rk_render *r, rk_value_t *out, const struct rk_row_call *call,
                               enum rk_strip_sides sides)
{
    struct rk_text *chars;
    int64_t offset, bytes;

    RK_TRY(rk_arg_text(call->args[0], "strip", &chars));
    RK_TRY(rk_render_step(r, call->self.string->bytes / 64));
    rk_text_strip(call->self.string, chars, sides, &offset, &bytes);
    return rk_value_new_substring(r, out, call->self.string, offset, bytes);
}

METHOD(run_strip)
{
    return strip(r, out, call, RK_STRIP_BOTH);
}

METHOD(run_lstrip)
{
    return strip(r, out, call, RK_STRIP_LEFT);
}

METHOD(run_rstrip)
{
    return strip(r, out, call, RK_STRIP_RIGHT);
}

typedef void (*map_fn_t)(const char *text, int64_t bytes, struct rk_str *out);

static struct rk_status *map_text(struct rk_render *r, rk_value_t *out, const struct rk_row_call *call,
                                  map_fn_t map)
{
    struct rk_str text = {0};

    RK_TRY(rk_render_step(r, call->self.string->bytes / 16));
    map(call->self.string->data, call->self.string->bytes, &text);
    return rk_value_take_string(r, out, &text);
}

METHOD(run_upper)
{
    return map_text(r, out, call, rk_text_upper);
}

METHOD(run_lower)
{
    return map_text(r, out, call, rk_text_lower);
}

METHOD(run_title)
{
    return map_text(r, out, call, rk_text_title);
}

METHOD(run_capitalize)
{
    return map_text(r, out, call, rk_text_capitalize);
}

METHOD(run_replace)
{
    struct rk_text *old, *new_text;
    int64_t count;

    RK_TRY(need_text(call->args[0], "replace", &old));
    RK_TRY(need_text(call->args[1], "replace", &new_text));
    RK_TRY(rk_arg_int(call->args[2], "replace", -1, &count));
    return rk_text_replace(r, call->self.string, old, new_text, count, out);
}

METHOD(run_join)
{
    static const rk_value_t none = {.kind = RK_VALUE_UNSET};

    return rk_text_join(r, call->self.string, call->args[0], true, none, out);
}

static bool has_prefix(const struct rk_text *text, const struct rk_text *prefix)
{
    return prefix->bytes <= text->bytes && memcmp(text->data, prefix->data, (size_t)prefix->bytes) == 0;
}

static bool has_suffix(const struct rk_text *text, const struct rk_text *suffix)
{
    return suffix->bytes <= text->bytes &&
           memcmp(text->data + text->bytes - suffix->bytes, suffix->data, (size_t)suffix->bytes) == 0;
}

METHOD(run_removeprefix)
{
    struct rk_text *prefix;
    int64_t bytes;

    RK_TRY(need_text(call->args[0], "removeprefix", &prefix));
    bytes = has_prefix(call->self.string, prefix) ? prefix->bytes : 0;
    return rk_value_new_substring(r, out, call->self.string, bytes, call->self.string->bytes - bytes);
}

METHOD(run_removesuffix)
{
    struct rk_text *suffix;
    int64_t bytes;

    RK_TRY(need_text(call->args[0], "removesuffix", &suffix));
    bytes = has_suffix(call->self.string, suffix) ? suffix->bytes : 0;
    return rk_value_new_substring(r, out, call->self.string, 0, call->self.string->bytes - bytes);
}

static struct rk_status *justify(struct rk_render *r, rk_value_t *out, const struct rk_row_call *call,
                                 int side)
{
    struct rk_text *fill;
    int64_t width, pad;

    RK_TRY(rk_arg_int(call->args[0], "width", 0, &width));
    RK_TRY(rk_arg_text(call->args[1], "fillchar", &fill));
    if (fill && rk_text_chars(fill) != 1)
        return RK_TEMPLATE_ERROR("fillchar: expected one character");
    if (side == 0)
        return rk_text_center(r, call->self.string, width, fill, out);
    pad = RK_MAX(width - rk_text_chars(call->self.string), 0);
    return rk_text_pad(r, call->self.string, side < 0 ? 0 : pad, side < 0 ? pad : 0, fill, out);
}

METHOD(run_ljust)
{
    return justify(r, out, call, -1);
}

METHOD(run_rjust)
{
    return justify(r, out, call, 1);
}

METHOD(run_center)
{
    return justify(r, out, call, 0);
}

/* --- asking --- */

typedef bool (*side_fn_t)(const struct rk_text *text, const struct rk_text *part);

/* One string, or a tuple of which one is enough; between the characters args[1] and args[2]. */
static struct rk_status *has_side(struct rk_render *r, rk_value_t *out, const struct rk_row_call *call,
                                  side_fn_t has)
{
    rk_value_t bounds[3] = {call->args[1], call->args[2], {.kind = RK_VALUE_UNSET}}, text,
               parts = call->args[0];
    bool is_found = false;

    RK_TRY(rk_get_slice(r, call->self, bounds, &text));
    if (parts.kind != RK_VALUE_TUPLE) {
        RK_TRY(rk_value_new_list(r, &parts, RK_VALUE_TUPLE, 1));
        RK_TRY(rk_list_append(r, parts.list, call->args[0]));
    }
    for (int64_t i = 0; i < parts.list->count; i++) {
        struct rk_text *part;

        RK_TRY(need_text(parts.list->items[i], "startswith, endswith", &part));
        is_found = is_found || has(text.string, part);
    }
    *out = rk_value_bool(is_found);
    return NULL;
}

METHOD(run_startswith)
{
    return has_side(r, out, call, has_prefix);
}

METHOD(run_endswith)
{
    return has_side(r, out, call, has_suffix);
}

/* First or last place of args[0], in characters; -1 when it is not there. */
static struct rk_status *find(struct rk_render *r, const struct rk_row_call *call, bool is_last, int64_t *out)
{
    struct rk_text *part, head;
    int64_t found, next;

    RK_TRY(need_text(call->args[0], "find", &part));
    if (call->args[1].kind != RK_VALUE_UNSET || call->args[2].kind != RK_VALUE_UNSET)
        return RK_FAIL(RK_UNIMPLEMENTED, "find, index, count: bounds are not supported");
    RK_TRY(rk_render_step(r, call->self.string->bytes / 16));
    found = next = rk_text_find(call->self.string, part, 0);
    while (is_last && next >= 0) {
        found = next;
        next = rk_text_find(call->self.string, part, next + 1);
    }
    head = *call->self.string;
    head.bytes = found;
    head.chars = -1;
    *out = found < 0 ? -1 : rk_text_chars(&head);
    return NULL;
}

METHOD(run_find)
{
    int64_t at;

    RK_TRY(find(r, call, false, &at));
    *out = rk_value_int(at);
    return NULL;
}

METHOD(run_rfind)
{
    int64_t at;

    RK_TRY(find(r, call, true, &at));
    *out = rk_value_int(at);
    return NULL;
}

METHOD(run_index)
{
    RK_TRY(run_find(r, out, call));
    return out->integer < 0 ? RK_TEMPLATE_ERROR("index: the text is not there") : NULL;
}

METHOD(run_rindex)
{
    RK_TRY(run_rfind(r, out, call));
    return out->integer < 0 ? RK_TEMPLATE_ERROR("rindex: the text is not there") : NULL;
}

METHOD(run_count)
{
    struct rk_text *part;
    int64_t at = -1, unused;

    RK_TRY(find(r, call, false, &unused));
    RK_TRY(need_text(call->args[0], "count", &part));
    *out = rk_value_int(part->bytes == 0 ? rk_text_chars(call->self.string) + 1 : 0);
    for (int64_t from = 0; part->bytes > 0; from = at + part->bytes) {
        at = rk_text_find(call->self.string, part, from);
        if (at < 0)
            break;
        out->integer++;
    }
    return NULL;
}

static struct rk_status *all_chars(struct rk_render *r, rk_value_t *out, const struct rk_row_call *call,
                                   bool (*is_one)(uint32_t code))
{
    const struct rk_text *text = call->self.string;
    bool are_all = text->bytes > 0;

    RK_TRY(rk_render_step(r, text->bytes / 16));
    for (int64_t i = 0; are_all && i < text->bytes;) {
        int bytes;

        are_all = is_one(rk_utf8_read(text->data + i, &bytes));
        i += bytes;
    }
    *out = rk_value_bool(are_all);
    return NULL;
}

METHOD(run_isspace)
{
    return all_chars(r, out, call, rk_code_point_is_space);
}

METHOD(run_isalpha)
{
    return all_chars(r, out, call, rk_code_point_is_alpha);
}

METHOD(run_isalnum)
{
    return all_chars(r, out, call, rk_code_point_is_alnum);
}

METHOD(run_isdigit)
{
    return all_chars(r, out, call, rk_code_point_is_digit);
}

static struct rk_status *has_case(struct rk_render *r, rk_value_t *out, const struct rk_row_call *call,
                                  const char *name)
{
    static const struct rk_actuals nothing = {.num_values = 0};

    return rk_call_row(r, rk_jinja_test_find(name), call->self, &nothing, out);
}

METHOD(run_isupper)
{
    return has_case(r, out, call, "upper");
}

METHOD(run_islower)
{
    return has_case(r, out, call, "lower");
}

/* --- splitting --- */

static struct rk_status *append_part(struct rk_render *r, rk_value_t *out, const struct rk_text *text,
                                     int64_t begin, int64_t end)
{
    rk_value_t part;

    RK_TRY(rk_value_new_substring(r, &part, text, begin, end - begin));
    return rk_list_append(r, out->list, part);
}

/* At runs of white space; what stands at the ends is no part. What is left after `max` splits is kept whole.
 */
static struct rk_status *split_space(struct rk_render *r, const struct rk_text *text, int64_t max,
                                     rk_value_t *out)
{
    int64_t at = 0;

    for (;;) {
        struct rk_text rest = {.data = text->data + at, .bytes = text->bytes - at};
        int64_t offset, bytes, end;
        int size;

        rk_text_strip(&rest, NULL, RK_STRIP_LEFT, &offset, &bytes);
        if (bytes == 0)
            return NULL;
        at += offset;
        end = at;
        while (max != 0 && end < text->bytes &&
               !rk_code_point_is_space(rk_utf8_read(text->data + end, &size)))
            end += size;
        if (max-- == 0)
            return append_part(r, out, text, at, text->bytes);
        RK_TRY(append_part(r, out, text, at, end));
        at = end;
    }
}

static struct rk_status *split_at(struct rk_render *r, const struct rk_text *text,
                                  const struct rk_text *separator, int64_t max, rk_value_t *out)
{
    int64_t from = 0, found;

    if (separator->bytes == 0)
        return RK_TEMPLATE_ERROR("split: the separator is empty");
    while (max-- != 0 && (found = rk_text_find(text, separator, from)) >= 0) {
        RK_TRY(append_part(r, out, text, from, found));
        from = found + separator->bytes;
    }
    return append_part(r, out, text, from, text->bytes);
}

METHOD(run_split)
{
    struct rk_text *separator;
    int64_t max;

    RK_TRY(rk_arg_text(call->args[0], "split", &separator));
    RK_TRY(rk_arg_int(call->args[1], "split", -1, &max));
    RK_TRY(rk_render_step(r, call->self.string->bytes / 16));
    RK_TRY(rk_value_new_list(r, out, RK_VALUE_LIST, 4));
    return separator ? split_at(r, call->self.string, separator, max, out)
                     : split_space(r, call->self.string, max, out);
}

/* All parts, then those in front that are too many are joined again. */
METHOD(run_rsplit)
{
    struct rk_text *separator;
    int64_t max, num_joined;
    struct rk_list *parts;
    const struct rk_text *last;

    RK_TRY(rk_arg_text(call->args[0], "rsplit", &separator));
    RK_TRY(rk_arg_int(call->args[1], "rsplit", -1, &max));
    if (!separator && max >= 0)
        return RK_FAIL(RK_UNIMPLEMENTED, "rsplit at white space with a limit is not supported");
    RK_TRY(rk_render_step(r, call->self.string->bytes / 16));
    RK_TRY(rk_value_new_list(r, out, RK_VALUE_LIST, 4));
    if (!separator)
        return split_space(r, call->self.string, -1, out);
    RK_TRY(split_at(r, call->self.string, separator, -1, out));
    parts = out->list;
    num_joined = max < 0 ? 1 : parts->count - max;
    if (num_joined <= 1)
        return NULL;
    last = parts->items[num_joined - 1].string;
    RK_TRY(rk_value_new_substring(r, &parts->items[num_joined - 1], call->self.string, 0,
                                  last->data + last->bytes - call->self.string->data));
    parts->items += num_joined - 1;
    parts->count -= num_joined - 1;
    parts->capacity -= num_joined - 1;
    return NULL;
}

METHOD(run_splitlines)
{
    bool keeps_ends;

    RK_TRY(rk_arg_bool(r, call->args[0], false, &keeps_ends));
    if (keeps_ends)
        return RK_FAIL(RK_UNIMPLEMENTED, "splitlines with line ends is not supported");
    return rk_text_lines(r, call->self.string, out);
}

static struct rk_status *partition(struct rk_render *r, rk_value_t *out, const struct rk_row_call *call,
                                   bool is_last)
{
    const struct rk_text *text = call->self.string;
    struct rk_text *separator;
    int64_t found, next;

    RK_TRY(need_text(call->args[0], "partition", &separator));
    if (separator->bytes == 0)
        return RK_TEMPLATE_ERROR("partition: the separator is empty");
    found = next = rk_text_find(text, separator, 0);
    while (is_last && next >= 0) {
        found = next;
        next = rk_text_find(text, separator, next + 1);
    }
    RK_TRY(rk_render_step(r, text->bytes / 16));
    RK_TRY(rk_value_new_list(r, out, RK_VALUE_TUPLE, 3));
    if (found < 0 && is_last)
        found = -separator->bytes; /* ("", "", text) */
    else if (found < 0)
        found = text->bytes; /* (text, "", "") */
    RK_TRY(append_part(r, out, text, 0, RK_MAX(found, 0)));
    RK_TRY(append_part(r, out, text, RK_MAX(found, 0),
                       found < 0 ? 0 : RK_MIN(found + separator->bytes, text->bytes)));
    return append_part(r, out, text, RK_MIN(found + separator->bytes, text->bytes), text->bytes);
}

METHOD(run_partition)
{
    return partition(r, out, call, false);
}

METHOD(run_rpartition)
{
    return partition(r, out, call, true);
}

/* --- the table --- */

const struct rk_callable rk_jinja_string_methods[] = {
    {"capitalize", run_capitalize, "", 0},
    {"center", run_center, "width fillchar", 1},
    {"count", run_count, "sub start end", 1},
    {"endswith", run_endswith, "suffix start end", 1},
    {"find", run_find, "sub start end", 1},
    {"index", run_index, "sub start end", 1},
    {"isalnum", run_isalnum, "", 0},
    {"isalpha", run_isalpha, "", 0},
    {"isdigit", run_isdigit, "", 0},
    {"islower", run_islower, "", 0},
    {"isspace", run_isspace, "", 0},
    {"isupper", run_isupper, "", 0},
    {"join", run_join, "iterable", 1},
    {"ljust", run_ljust, "width fillchar", 1},
    {"lower", run_lower, "", 0},
    {"lstrip", run_lstrip, "chars", 0},
    {"partition", run_partition, "sep", 1},
    {"removeprefix", run_removeprefix, "prefix", 1},
    {"removesuffix", run_removesuffix, "suffix", 1},
    {"replace", run_replace, "old new count", 2},
    {"rfind", run_rfind, "sub start end", 1},
    {"rindex", run_rindex, "sub start end", 1},
    {"rjust", run_rjust, "width fillchar", 1},
    {"rpartition", run_rpartition, "sep", 1},
    {"rsplit", run_rsplit, "sep maxsplit", 0},
    {"rstrip", run_rstrip, "chars", 0},
    {"split", run_split, "sep maxsplit", 0},
    {"splitlines", run_splitlines, "keepends", 0},
    {"startswith", run_startswith, "prefix start end", 1},
    {"strip", run_strip, "chars", 0},
    {"title", run_title, "", 0},
    {"upper", run_upper, "", 0},
    {NULL, NULL, NULL, 0},
};
