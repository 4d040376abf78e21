/* str(), repr() and json.dumps() of values. */
#include "text/chat/jinja_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"

void rk_text_append(struct rk_render *r, struct rk_str *out, const char *data, int64_t bytes)
{
    if (out->bytes + (size_t)bytes > RK_JINJA_OUTPUT_BYTES_MAX)
        (void)rk_raise(
            r, RK_FAIL(RK_RESOURCE_EXHAUSTED, "a text of more than %d bytes", RK_JINJA_OUTPUT_BYTES_MAX));
    if (bytes > 0 && rk_render_step(r, bytes / 64))
        rk_str_append_bytes(out, data, (size_t)bytes);
}

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
        rk_str_appendf(out, "0.%.*s%s", -1 - exponent, "000", digits);
    } else {
        for (int i = 0; i <= exponent || i < count; i++)
            rk_str_appendf(out, "%s%c", i == exponent + 1 ? "." : "", i < count ? digits[i] : '0');
        if (count <= exponent + 1)
            rk_str_append(out, ".0");
    }
}

static void format_real(double value, struct rk_str *out)
{
    char text[40], digits[24];
    int count = 0;

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
    if (signbit(value))
        rk_str_append(out, "-");
    format_digits(digits, (int)strtol(strchr(text, 'e') + 1, NULL, 10), out);
}

/* --- one writer for repr() and json.dumps(), which differ in separators, names and texts --- */

struct writer {
    const struct rk_json_style *style; /* NULL: repr() */
    struct rk_str *out;
    int32_t level;
};

static void write_value(struct rk_render *r, struct writer *w, rk_value_t value);

/* The character after a backslash for one of `plain`, 0 for others. */
static char short_escape(uint32_t code, const char *plain, const char *letters)
{
    const char *known = code && code < 0x80 ? strchr(plain, (int)code) : NULL;

    return known ? letters[known - plain] : '\0';
}

static void write_json_char(struct writer *w, uint32_t code)
{
    char known = short_escape(code, "\"\\\n\r\t\f\b", "\"\\nrtfb");
    bool is_ascii = w->style->ensure_ascii;

    if (known)
        rk_str_appendf(w->out, "\\%c", known);
    else if (code >= 0x10000 && is_ascii)
        rk_str_appendf(w->out, "\\u%04x\\u%04x", 0xd800 + ((code - 0x10000) >> 10),
                       0xdc00 + ((code - 0x10000) & 0x3ff));
    else if (code < 0x20 || (code >= 0x7f && is_ascii))
        rk_str_appendf(w->out, "\\u%04x", code);
    else
        rk_utf8_append(w->out, (int32_t)code);
}

static void write_repr_char(struct writer *w, uint32_t code, char quote)
{
    char known = short_escape(code, "\\\n\r\t", "\\nrt");

    if (known || code == (uint32_t)quote)
        rk_str_appendf(w->out, "\\%c", known ? known : quote);
    else if (rk_code_point_is_printable((int32_t)code))
        rk_utf8_append(w->out, (int32_t)code);
    else if (code < 0x100)
        rk_str_appendf(w->out, "\\x%02x", code);
    else
        rk_str_appendf(w->out, code < 0x10000 ? "\\u%04x" : "\\U%08x", code);
}

static void write_text(struct rk_render *r, struct writer *w, const struct rk_text *text)
{
    bool has_single = text->bytes > 0 && memchr(text->data, '\'', (size_t)text->bytes);
    bool has_double = text->bytes > 0 && memchr(text->data, '"', (size_t)text->bytes);
    char quote = w->style || (has_single && !has_double) ? '"' : '\'';
    int size;

    if (!rk_render_step(r, text->bytes / 16))
        return;
    rk_str_appendf(w->out, "%s%c", text->is_markup && !w->style ? "Markup(" : "", quote);
    for (int64_t i = 0; i < text->bytes; i += size) {
        uint32_t code = (uint32_t)rk_utf8_read(text->data + i, &size);

        if (w->style)
            write_json_char(w, code);
        else
            write_repr_char(w, code, quote);
    }
    rk_str_appendf(w->out, "%c%s", quote, text->is_markup && !w->style ? ")" : "");
}

/* Begins a new line if there is an indent. */
static void write_break(struct writer *w)
{
    const struct rk_text *indent = w->style ? w->style->indent : NULL;

    if (indent)
        rk_str_append(w->out, "\n");
    for (int32_t i = 0; indent && i < w->level; i++)
        rk_str_append_bytes(w->out, indent->data, (size_t)indent->bytes);
}

/* Begins the i-th item of a container. */
static void write_before(struct writer *w, int64_t i)
{
    if (i > 0 && w->style)
        rk_str_append_bytes(w->out, w->style->item_sep.data, (size_t)w->style->item_sep.bytes);
    else if (i > 0)
        rk_str_append(w->out, ", ");
    write_break(w);
}

static void write_key(struct rk_render *r, struct writer *w, rk_value_t key)
{
    struct rk_str text = {0};
    struct writer plain = {.style = w->style, .out = &text};

    if (!w->style) {
        write_value(r, w, key);
        rk_str_append(w->out, ": ");
        return;
    }
    if (key.kind != RK_VALUE_STRING) { /* a number or None, quoted */
        if (!rk_value_is_number(key) && key.kind != RK_VALUE_NONE)
            RK_RAISE(r, "tojson: a %s cannot be the key of an object", rk_value_type_name(key));
        write_value(r, &plain, key);
        key = rk_value_take_string(r, &text);
    }
    if (!r->error)
        write_text(r, w, key.string);
    rk_str_append_bytes(w->out, w->style->key_sep.data, (size_t)w->style->key_sep.bytes);
}

/* Positions of the members in the order of the output. */
static int64_t *order_of(struct rk_render *r, const struct rk_dict *dict, bool is_sorted)
{
    int64_t *order = rk_render_alloc(r, ((size_t)dict->count + 1) * sizeof(*order));

    for (int64_t i = 0; i < dict->count; i++) {
        int64_t at = i;

        for (; is_sorted && at > 0 && rk_value_less(r, dict->keys[i], dict->keys[order[at - 1]]); at--)
            order[at] = order[at - 1];
        order[at] = i;
    }
    return order;
}

static void write_items(struct rk_render *r, struct writer *w, rk_value_t value)
{
    bool is_dict = value.kind == RK_VALUE_DICT, is_tuple = value.kind == RK_VALUE_TUPLE && !w->style;
    int64_t count = is_dict ? value.dict->count : value.list->count;
    const int64_t *order = is_dict ? order_of(r, value.dict, w->style && w->style->sort_keys) : NULL;

    rk_str_append(w->out, is_dict ? "{" : is_tuple ? "(" : "[");
    w->level++;
    for (int64_t i = 0; i < count && !r->error; i++) {
        write_before(w, i);
        if (is_dict)
            write_key(r, w, value.dict->keys[order[i]]);
        write_value(r, w, is_dict ? value.dict->values[order[i]] : value.list->items[i]);
    }
    w->level--;
    if (count > 0)
        write_break(w);
    rk_str_append(w->out, is_dict ? "}" : is_tuple ? count == 1 ? ",)" : ")" : "]");
}

static void write_real(struct writer *w, double value)
{
    if (isfinite(value))
        format_real(value, w->out);
    else if (w->style)
        rk_str_append(w->out, isnan(value) ? "NaN" : value < 0 ? "-Infinity" : "Infinity");
    else
        rk_str_append(w->out, isnan(value) ? "nan" : value < 0 ? "-inf" : "inf");
}

static void write_other(struct rk_render *r, struct writer *w, rk_value_t value)
{
    if (value.kind == RK_VALUE_UNDEFINED && !w->style)
        rk_str_append(w->out, "Undefined");
    else if (w->style)
        RK_RAISE(r, "tojson: a value of type %s has no JSON form", rk_value_type_name(value));
    else
        RK_REFUSE(r, "writing a value of type %s is not supported", rk_value_type_name(value));
}

static void write_value(struct rk_render *r, struct writer *w, rk_value_t value)
{
    if (w->out->bytes > RK_JINJA_OUTPUT_BYTES_MAX)
        (void)rk_raise(
            r, RK_FAIL(RK_RESOURCE_EXHAUSTED, "a text of more than %d bytes", RK_JINJA_OUTPUT_BYTES_MAX));
    if (rk_render_enter(r)) {
        switch (value.kind) {
        case RK_VALUE_NONE:
            rk_str_append(w->out, w->style ? "null" : "None");
            break;
        case RK_VALUE_BOOL:
            rk_str_append(w->out,
                          w->style ? (value.boolean ? "true" : "false") : (value.boolean ? "True" : "False"));
            break;
        case RK_VALUE_INT:
            rk_str_appendf(w->out, "%" PRId64, value.integer);
            break;
        case RK_VALUE_REAL:
            write_real(w, value.real);
            break;
        case RK_VALUE_STRING:
            write_text(r, w, value.string);
            break;
        case RK_VALUE_LIST:
        case RK_VALUE_TUPLE:
        case RK_VALUE_DICT:
            write_items(r, w, value);
            break;
        default:
            write_other(r, w, value);
        }
    }
    r->depth--;
}

void rk_value_to_json(struct rk_render *r, rk_value_t value, const struct rk_json_style *style,
                      struct rk_str *out)
{
    write_value(r, &(struct writer){.style = style, .out = out}, value);
}

void rk_value_format(struct rk_render *r, rk_value_t value, struct rk_str *out)
{
    if (value.kind == RK_VALUE_STRING)
        rk_text_append(r, out, value.string->data, value.string->bytes);
    else if (value.kind != RK_VALUE_UNDEFINED)
        write_value(r, &(struct writer){.out = out}, value);
}

rk_value_t rk_value_to_string(struct rk_render *r, rk_value_t value)
{
    struct rk_str text = {0};

    if (value.kind == RK_VALUE_STRING)
        return value;
    rk_value_format(r, value, &text);
    return rk_value_take_string(r, &text);
}
