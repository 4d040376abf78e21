/* Methods of strings that return a new string, as in Python. */
#include "text/chat/filters_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

#define METHOD(name) \
    static struct rk_status *name(struct rk_render *r, rk_value_t *out, const struct rk_row_call *call)

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

    RK_TRY(rk_arg_need_text(call->args[0], "replace", &old));
    RK_TRY(rk_arg_need_text(call->args[1], "replace", &new_text));
    RK_TRY(rk_arg_int(call->args[2], "replace", -1, &count));
    return rk_text_replace(r, call->self.string, old, new_text, count, out);
}

METHOD(run_join)
{
    static const rk_value_t none = {.kind = RK_VALUE_UNSET};

    return rk_text_join(r, call->self.string, call->args[0], true, none, out);
}

METHOD(run_removeprefix)
{
    struct rk_text *prefix;
    int64_t bytes;

    RK_TRY(rk_arg_need_text(call->args[0], "removeprefix", &prefix));
    bytes = rk_text_has_prefix(call->self.string, prefix) ? prefix->bytes : 0;
    return rk_value_new_substring(r, out, call->self.string, bytes, call->self.string->bytes - bytes);
}

METHOD(run_removesuffix)
{
    struct rk_text *suffix;
    int64_t bytes;

    RK_TRY(rk_arg_need_text(call->args[0], "removesuffix", &suffix));
    bytes = rk_text_has_suffix(call->self.string, suffix) ? suffix->bytes : 0;
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

const struct rk_callable rk_jinja_change_methods[] = {
    {"capitalize", run_capitalize, "", 0},
    {"center", run_center, "width fillchar", 1},
    {"join", run_join, "iterable", 1},
    {"ljust", run_ljust, "width fillchar", 1},
    {"lower", run_lower, "", 0},
    {"lstrip", run_lstrip, "chars", 0},
    {"removeprefix", run_removeprefix, "prefix", 1},
    {"removesuffix", run_removesuffix, "suffix", 1},
    {"replace", run_replace, "old new count", 2},
    {"rjust", run_rjust, "width fillchar", 1},
    {"rstrip", run_rstrip, "chars", 0},
    {"strip", run_strip, "chars", 0},
    {"title", run_title, "", 0},
    {"upper", run_upper, "", 0},
    {NULL, NULL, NULL, 0},
};
