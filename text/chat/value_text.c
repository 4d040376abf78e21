/* str() and repr() of values. */
#include "text/chat/render_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"

/* --- floats: the fewest digits that round-trip, an exponent below 1e-4 and from 1e16 on --- */

static void format_digits(const char *digits, int exponent, struct rk_str *out)
{
    int count = (int)strlen(digits);

    if (exponent < -4 || exponent >= 16) {
        rk_str_append_bytes(out, digits, 1);
        if (count > 1)
            rk_str_appendf(out, ".%s", digits + 1);
        rk_str_appendf(out, "e%c%02d", exponent < 0 ? '-' : '+', abs(exponent));
    } else if (exponent < 0) {
        rk_str_append(out, "0.");
        for (int i = -1; i > exponent; i--)
            rk_str_append(out, "0");
        rk_str_append(out, digits);
    } else {
        for (int i = 0; i <= exponent || i < count; i++) {
            if (i == exponent + 1)
                rk_str_append(out, ".");
            rk_str_append_bytes(out, i < count ? digits + i : "0", 1);
        }
        if (count <= exponent + 1)
            rk_str_append(out, ".0");
    }
}

void rk_real_format(double value, struct rk_str *out)
{
    char text[40], digits[24];
    int exponent, count = 0;

    if (!isfinite(value)) {
        rk_str_append(out, isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
        return;
    }
    for (int precision = 0; precision <= 16; precision++) {
        snprintf(text, sizeof(text), "%.*e", precision, fabs(value));
        if (strtod(text, NULL) == fabs(value))
            break;
    }
    for (const char *p = text; *p && *p != 'e'; p++) {
        if (*p != '.')
            digits[count++] = *p;
    }
    digits[count] = '\0';
    exponent = (int)strtol(strchr(text, 'e') + 1, NULL, 10);
    if (signbit(value))
        rk_str_append(out, "-");
    format_digits(digits, exponent, out);
}

/* --- repr of strings --- */

static void repr_char(struct rk_str *out, uint32_t code, char quote)
{
    static const char plain[] = "\n\r\t", letters[] = "nrt";
    const char *known = code && code < 0x80 ? strchr(plain, (int)code) : NULL;

    if (code == (uint32_t)quote || code == '\\')
        rk_str_appendf(out, "\\%c", (char)code);
    else if (known)
        rk_str_appendf(out, "\\%c", letters[known - plain]);
    else if (rk_code_point_is_printable(code))
        rk_utf8_append(out, code);
    else if (code < 0x100)
        rk_str_appendf(out, "\\x%02x", code);
    else if (code < 0x10000)
        rk_str_appendf(out, "\\u%04x", code);
    else
        rk_str_appendf(out, "\\U%08x", code);
}

static void repr_text(struct rk_str *out, const struct rk_text *text)
{
    size_t bytes = (size_t)text->bytes;
    bool has_single = bytes > 0 && memchr(text->data, '\'', bytes);
    bool has_double = bytes > 0 && memchr(text->data, '"', bytes);
    char quote = has_single && !has_double ? '"' : '\'';

    if (text->is_markup)
        rk_str_append(out, "Markup(");
    rk_str_append_bytes(out, &quote, 1);
    for (int64_t i = 0; i < text->bytes;) {
        int size;

        repr_char(out, rk_utf8_read(text->data + i, &size), quote);
        i += size;
    }
    rk_str_append_bytes(out, &quote, 1);
    if (text->is_markup)
        rk_str_append(out, ")");
}

/* --- repr of containers --- */

static struct rk_status *repr_list(struct rk_render *r, const struct rk_list *list, struct rk_str *out)
{
    for (int64_t i = 0; i < list->count; i++) {
        if (i > 0)
            rk_str_append(out, ", ");
        RK_TRY(rk_value_repr(r, list->items[i], out));
    }
    return NULL;
}

static struct rk_status *repr_dict(struct rk_render *r, const struct rk_dict *dict, struct rk_str *out)
{
    rk_str_append(out, "{");
    for (int64_t i = 0; i < dict->count; i++) {
        if (i > 0)
            rk_str_append(out, ", ");
        RK_TRY(rk_value_repr(r, dict->keys[i], out));
        rk_str_append(out, ": ");
        RK_TRY(rk_value_repr(r, dict->values[i], out));
    }
    rk_str_append(out, "}");
    return NULL;
}

static struct rk_status *repr_view(struct rk_render *r, rk_value_t view, struct rk_str *out)
{
    static const char *const names[] = {"dict_keys", "dict_values", "dict_items"};
    rk_value_t items;

    RK_TRY(rk_value_to_list(r, view, &items));
    rk_str_appendf(out, "%s([", names[view.view->kind]);
    RK_TRY(repr_list(r, items.list, out));
    rk_str_append(out, "])");
    return NULL;
}

static void repr_range(const struct rk_range *range, struct rk_str *out)
{
    int64_t stop = range->start + range->count * range->step;

    rk_str_appendf(out, "range(%" PRId64 ", %" PRId64, range->start, stop);
    if (range->step != 1)
        rk_str_appendf(out, ", %" PRId64, range->step);
    rk_str_append(out, ")");
}

static struct rk_status *repr_macro(const struct rk_node *node, struct rk_str *out)
{
    if (node->value.kind == RK_VALUE_STRING)
        rk_str_appendf(out, "<Macro '%.*s'>", (int)node->value.string->bytes, node->value.string->data);
    else
        rk_str_append(out, "<Macro anonymous>");
    return NULL;
}

static struct rk_status *repr_container(struct rk_render *r, rk_value_t value, struct rk_str *out)
{
    switch (value.kind) {
    case RK_VALUE_LIST:
        rk_str_append(out, "[");
        RK_TRY(repr_list(r, value.list, out));
        rk_str_append(out, "]");
        return NULL;
    case RK_VALUE_TUPLE:
        rk_str_append(out, "(");
        RK_TRY(repr_list(r, value.list, out));
        rk_str_append(out, value.list->count == 1 ? ",)" : ")");
        return NULL;
    case RK_VALUE_DICT:
        return repr_dict(r, value.dict, out);
    case RK_VALUE_VIEW:
        return repr_view(r, value, out);
    case RK_VALUE_NAMESPACE:
        rk_str_append(out, "<Namespace ");
        RK_TRY(repr_dict(r, value.dict, out));
        rk_str_append(out, ">");
        return NULL;
    default:
        return RK_FAIL(RK_UNIMPLEMENTED, "writing a value of type %s is not supported",
                       rk_value_type_name(value));
    }
}

struct rk_status *rk_value_repr(struct rk_render *r, rk_value_t value, struct rk_str *out)
{
    struct rk_status *st;

    RK_TRY(rk_render_step(r, 1));
    if (out->bytes > RK_JINJA_OUTPUT_BYTES_MAX)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "a text of more than %d bytes", RK_JINJA_OUTPUT_BYTES_MAX);
    switch (value.kind) {
    case RK_VALUE_UNDEFINED:
        rk_str_append(out, "Undefined");
        return NULL;
    case RK_VALUE_NONE:
        rk_str_append(out, "None");
        return NULL;
    case RK_VALUE_BOOL:
        rk_str_append(out, value.boolean ? "True" : "False");
        return NULL;
    case RK_VALUE_INT:
        rk_str_appendf(out, "%" PRId64, value.integer);
        return NULL;
    case RK_VALUE_REAL:
        rk_real_format(value.real, out);
        return NULL;
    case RK_VALUE_STRING:
        repr_text(out, value.string);
        return NULL;
    case RK_VALUE_RANGE:
        repr_range(value.range, out);
        return NULL;
    case RK_VALUE_MACRO:
        return repr_macro(value.macro->node, out);
    default:
        break;
    }
    if (++r->depth > RK_JINJA_DEPTH_MAX)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "values are nested deeper than %d", RK_JINJA_DEPTH_MAX);
    st = repr_container(r, value, out);
    r->depth--;
    return st;
}

struct rk_status *rk_value_format(struct rk_render *r, rk_value_t value, struct rk_str *out)
{
    if (value.kind == RK_VALUE_UNDEFINED)
        return NULL;
    if (value.kind != RK_VALUE_STRING)
        return rk_value_repr(r, value, out);
    RK_TRY(rk_render_step(r, value.string->bytes / 64));
    if (out->bytes + (size_t)value.string->bytes > RK_JINJA_OUTPUT_BYTES_MAX)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "a text of more than %d bytes", RK_JINJA_OUTPUT_BYTES_MAX);
    rk_str_append_bytes(out, value.string->data, (size_t)value.string->bytes);
    return NULL;
}

struct rk_status *rk_value_to_string(struct rk_render *r, rk_value_t value, rk_value_t *out)
{
    struct rk_str text = {0};
    struct rk_status *st;

    *out = value;
    if (value.kind == RK_VALUE_STRING)
        return NULL;
    st = rk_value_format(r, value, &text);
    if (!st)
        return rk_value_take_string(r, out, &text);
    rk_str_fini(&text);
    return st;
}
