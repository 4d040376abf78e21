/* Filters that return texts. Markup supports output, ~, +, trimming and conversions; methods refuse other
 * operations of Jinja's Markup. */
#include "text/chat/filters_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

typedef void (*map_fn_t)(const char *text, int64_t bytes, struct rk_str *out);

static struct rk_status *map_text(struct rk_render *r, rk_value_t value, map_fn_t map, rk_value_t *out)
{
    struct rk_str text = {0};
    rk_value_t source;

    RK_TRY(rk_value_to_string(r, value, &source));
    RK_TRY(rk_render_step(r, source.string->bytes / 16));
    map(source.string->data, source.string->bytes, &text);
    RK_TRY(rk_value_take_string(r, out, &text));
    out->string->is_markup = source.string->is_markup;
    return NULL;
}

RK_FILTER(run_upper)
{
    return map_text(r, call->self, rk_text_upper, out);
}

RK_FILTER(run_lower)
{
    return map_text(r, call->self, rk_text_lower, out);
}

RK_FILTER(run_capitalize)
{
    return map_text(r, call->self, rk_text_capitalize, out);
}

/* Jinja's title: words begin only after blanks and -({[<. */
static void title_words(const char *text, int64_t bytes, struct rk_str *out)
{
    for (int64_t i = 0; i < bytes;) {
        int64_t end = i;
        int size;

        while (end < bytes &&
               !(rk_code_point_is_space(rk_utf8_read(text + end, &size)) || memchr("-({[<", text[end], 5)))
            end += size;
        if (end > i) {
            (void)rk_utf8_read(text + i, &size);
            rk_text_upper(text + i, size, out);
            rk_text_lower(text + i + size, end - i - size, out);
        } else {
            (void)rk_utf8_read(text + i, &size);
            rk_str_append_bytes(out, text + i, (size_t)size);
            end += size;
        }
        i = end;
    }
}

RK_FILTER(run_title)
{
    return map_text(r, call->self, title_words, out);
}

RK_FILTER(run_string)
{
    return rk_value_to_string(r, call->self, out);
}

RK_FILTER(run_trim)
{
    struct rk_text *chars;
    int64_t offset, bytes;
    rk_value_t text;

    RK_TRY(rk_arg_text(call->args[0], "trim", &chars));
    RK_TRY(rk_value_to_string(r, call->self, &text));
    rk_text_strip(text.string, chars, RK_STRIP_BOTH, &offset, &bytes);
    RK_TRY(rk_value_new_substring(r, out, text.string, offset, bytes));
    out->string->is_markup = text.string->is_markup;
    return NULL;
}

RK_FILTER(run_replace)
{
    rk_value_t text, old, new_text;
    int64_t count = -1;

    if (call->args[2].kind != RK_VALUE_NONE)
        RK_TRY(rk_arg_int(call->args[2], "replace", -1, &count));
    RK_TRY(rk_value_to_string(r, call->self, &text));
    RK_TRY(rk_value_to_string(r, call->args[0], &old));
    RK_TRY(rk_value_to_string(r, call->args[1], &new_text));
    if (text.string->is_markup)
        return RK_FAIL(RK_UNIMPLEMENTED, "replace: the result of |safe or |escape is not supported");
    return rk_text_replace(r, text.string, old.string, new_text.string, count, out);
}

RK_FILTER(run_safe)
{
    rk_value_t text;

    RK_TRY(rk_value_to_string(r, call->self, &text));
    RK_TRY(rk_value_new_substring(r, out, text.string, 0, text.string->bytes));
    out->string->is_markup = true;
    return NULL;
}

RK_FILTER(run_forceescape)
{
    RK_TRY(map_text(r, call->self, rk_text_escape, out));
    out->string->is_markup = true;
    return NULL;
}

RK_FILTER(run_escape)
{
    if (call->self.kind == RK_VALUE_STRING && call->self.string->is_markup) {
        *out = call->self;
        return NULL;
    }
    return run_forceescape(r, out, call);
}

RK_FILTER(run_center)
{
    rk_value_t text;
    int64_t width;

    RK_TRY(rk_arg_int(call->args[0], "center", 80, &width));
    RK_TRY(rk_value_to_string(r, call->self, &text));
    return rk_text_center(r, text.string, width, NULL, out);
}

/* --- indent --- */

static struct rk_status *read_width(struct rk_render *r, rk_value_t width, rk_value_t *out)
{
    static const struct rk_text nothing = {.data = "", .bytes = 0};
    int64_t count;

    *out = width;
    if (width.kind == RK_VALUE_STRING)
        return NULL;
    RK_TRY(rk_arg_int(width, "indent", 4, &count));
    return rk_text_pad(r, &nothing, count, 0, NULL, out);
}

static void append_text(struct rk_str *out, const struct rk_text *text)
{
    rk_str_append_bytes(out, text->data, (size_t)text->bytes);
}

RK_FILTER(run_indent)
{
    static const struct rk_text newline = {.data = "\n", .bytes = 1};
    rk_value_t width, text, lines;
    struct rk_str result = {0};
    bool first, blank;

    if (call->self.kind == RK_VALUE_UNDEFINED)
        return rk_undefined_error(call->self);
    if (call->self.kind != RK_VALUE_STRING)
        return RK_TEMPLATE_ERROR("indent: expected a string, got %s", rk_value_type_name(call->self));
    RK_TRY(read_width(r, call->args[0], &width));
    RK_TRY(rk_arg_bool(r, call->args[1], false, &first));
    RK_TRY(rk_arg_bool(r, call->args[2], false, &blank));
    /* one more newline, which keeps a last empty line */
    RK_TRY(rk_text_pad(r, call->self.string, 0, 1, &newline, &text));
    RK_TRY(rk_text_lines(r, text.string, &lines));
    if (width.string->bytes * lines.list->count > RK_JINJA_OUTPUT_BYTES_MAX)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "a text of more than %d bytes", RK_JINJA_OUTPUT_BYTES_MAX);
    for (int64_t i = 0; i < lines.list->count; i++) {
        const struct rk_text *line = lines.list->items[i].string;

        if (i > 0)
            rk_str_append(&result, "\n");
        if (i == 0 ? first : blank || line->bytes > 0)
            append_text(&result, width.string);
        append_text(&result, line);
    }
    return rk_value_take_string(r, out, &result);
}

/* --- JSON --- */

static struct rk_status *read_separators(struct rk_render *r, rk_value_t pair, struct rk_json_style *style)
{
    rk_value_t items;

    if (pair.kind == RK_VALUE_UNSET || pair.kind == RK_VALUE_NONE)
        return NULL;
    RK_TRY(rk_value_to_list(r, pair, &items));
    if (items.list->count != 2 || items.list->items[0].kind != RK_VALUE_STRING ||
        items.list->items[1].kind != RK_VALUE_STRING)
        return RK_TEMPLATE_ERROR("tojson: separators: expected two strings");
    style->item_sep = *items.list->items[0].string;
    style->key_sep = *items.list->items[1].string;
    return NULL;
}

static struct rk_status *read_indent(struct rk_render *r, rk_value_t indent, struct rk_json_style *style)
{
    rk_value_t text;

    if (indent.kind == RK_VALUE_UNSET || indent.kind == RK_VALUE_NONE)
        return NULL;
    RK_TRY(read_width(r, indent, &text));
    style->indent = text.string;
    style->item_sep = (struct rk_text){.data = ",", .bytes = 1};
    return NULL;
}

RK_FILTER(run_tojson)
{
    struct rk_json_style style = {.item_sep = {.data = ", ", .bytes = 2},
                                  .key_sep = {.data = ": ", .bytes = 2}};
    struct rk_str text = {0};
    struct rk_status *st;

    RK_TRY(rk_arg_bool(r, call->args[0], false, &style.ensure_ascii));
    RK_TRY(read_indent(r, call->args[1], &style));
    RK_TRY(read_separators(r, call->args[2], &style));
    RK_TRY(rk_arg_bool(r, call->args[3], false, &style.sort_keys));
    st = rk_value_to_json(r, call->self, &style, &text);
    if (!st)
        return rk_value_take_string(r, out, &text);
    rk_str_fini(&text);
    return st;
}

const struct rk_callable rk_filters_text[] = {
    {"capitalize", run_capitalize, "", 0},
    {"center", run_center, "width", 0},
    {"e", run_escape, "", 0},
    {"escape", run_escape, "", 0},
    {"forceescape", run_forceescape, "", 0},
    {"indent", run_indent, "width first blank", 0},
    {"lower", run_lower, "", 0},
    {"replace", run_replace, "old new count", 2},
    {"safe", run_safe, "", 0},
    {"string", run_string, "", 0},
    {"title", run_title, "", 0},
    {"tojson", run_tojson, "ensure_ascii indent separators sort_keys", 0},
    {"trim", run_trim, "chars", 0},
    {"upper", run_upper, "", 0},
    {NULL, NULL, NULL, 0},
};
