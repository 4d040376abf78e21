/* json.dumps(), with the options of the filter tojson. */
#include "text/chat/render_internal.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"

struct writer {
    const struct rk_json_style *style;
    struct rk_str *out;
    int32_t level;
};

static struct rk_status *write_value(struct rk_render *r, struct writer *writer, rk_value_t value);

static void write_escaped(struct writer *writer, uint32_t code)
{
    static const char plain[] = "\"\\\n\r\t\f\b", letters[] = "\"\\nrtfb";
    const char *known = code && code < 0x80 ? strchr(plain, (int)code) : NULL;

    if (known)
        rk_str_appendf(writer->out, "\\%c", letters[known - plain]);
    else if (code >= 0x10000 && writer->style->ensure_ascii)
        rk_str_appendf(writer->out, "\\u%04x\\u%04x", 0xd800 + ((code - 0x10000) >> 10),
                       0xdc00 + ((code - 0x10000) & 0x3ff));
    else if (code < 0x20 || (code >= 0x7f && writer->style->ensure_ascii))
        rk_str_appendf(writer->out, "\\u%04x", code);
    else
        rk_utf8_append(writer->out, code);
}

static void write_text(struct writer *writer, const char *text, int64_t bytes)
{
    rk_str_append(writer->out, "\"");
    for (int64_t i = 0; i < bytes;) {
        int size;

        write_escaped(writer, rk_utf8_read(text + i, &size));
        i += size;
    }
    rk_str_append(writer->out, "\"");
}

static void write_real(struct writer *writer, double value)
{
    if (isnan(value))
        rk_str_append(writer->out, "NaN");
    else if (isinf(value))
        rk_str_append(writer->out, value < 0 ? "-Infinity" : "Infinity");
    else
        rk_real_format(value, writer->out);
}

/* Begins a new line if there is an indent. */
static void write_break(struct writer *writer)
{
    if (!writer->style->indent)
        return;
    rk_str_append(writer->out, "\n");
    for (int32_t i = 0; i < writer->level; i++)
        rk_str_append_bytes(writer->out, writer->style->indent->data, (size_t)writer->style->indent->bytes);
}

static void write_separator(struct writer *writer, const struct rk_text *separator)
{
    rk_str_append_bytes(writer->out, separator->data, (size_t)separator->bytes);
}

static struct rk_status *write_list(struct rk_render *r, struct writer *writer, const struct rk_list *list)
{
    rk_str_append(writer->out, "[");
    writer->level++;
    for (int64_t i = 0; i < list->count; i++) {
        if (i > 0)
            write_separator(writer, &writer->style->item_sep);
        write_break(writer);
        RK_TRY(write_value(r, writer, list->items[i]));
    }
    writer->level--;
    if (list->count > 0)
        write_break(writer);
    rk_str_append(writer->out, "]");
    return NULL;
}

static struct rk_status *write_key(struct rk_render *r, struct writer *writer, rk_value_t key)
{
    struct rk_str text = {0};
    struct writer plain = {.style = writer->style, .out = &text};
    struct rk_status *st;

    if (key.kind == RK_VALUE_STRING) {
        write_text(writer, key.string->data, key.string->bytes);
        return NULL;
    }
    if (!rk_value_is_number(key) && key.kind != RK_VALUE_NONE)
        return RK_TEMPLATE_ERROR("tojson: a %s cannot be the key of an object", rk_value_type_name(key));
    st = write_value(r, &plain, key);
    if (!st)
        write_text(writer, rk_str_text(&text), (int64_t)text.bytes);
    rk_str_fini(&text);
    return st;
}

/* Keys in the order of the output. */
static struct rk_status *sorted_keys(struct rk_render *r, const struct rk_dict *dict, bool is_sorted,
                                     int64_t **out)
{
    void *memory;
    int64_t *order;

    RK_TRY(rk_render_alloc(r, &memory, (size_t)RK_MAX(dict->count, 1) * sizeof(*order)));
    order = memory;
    for (int64_t i = 0; i < dict->count; i++) {
        int64_t at = i;
        bool is_less = is_sorted;

        for (; at > 0 && is_less; at -= is_less) {
            RK_TRY(rk_value_less(r, dict->keys[i], dict->keys[order[at - 1]], &is_less));
            if (is_less)
                order[at] = order[at - 1];
        }
        order[at] = i;
    }
    *out = order;
    return NULL;
}

static struct rk_status *write_dict(struct rk_render *r, struct writer *writer, const struct rk_dict *dict)
{
    int64_t *order;

    RK_TRY(sorted_keys(r, dict, writer->style->sort_keys, &order));
    rk_str_append(writer->out, "{");
    writer->level++;
    for (int64_t i = 0; i < dict->count; i++) {
        if (i > 0)
            write_separator(writer, &writer->style->item_sep);
        write_break(writer);
        RK_TRY(write_key(r, writer, dict->keys[order[i]]));
        write_separator(writer, &writer->style->key_sep);
        RK_TRY(write_value(r, writer, dict->values[order[i]]));
    }
    writer->level--;
    if (dict->count > 0)
        write_break(writer);
    rk_str_append(writer->out, "}");
    return NULL;
}

static struct rk_status *write_container(struct rk_render *r, struct writer *writer, rk_value_t value)
{
    if (value.kind == RK_VALUE_DICT)
        return write_dict(r, writer, value.dict);
    if (value.kind == RK_VALUE_LIST || value.kind == RK_VALUE_TUPLE)
        return write_list(r, writer, value.list);
    return RK_TEMPLATE_ERROR("tojson: a value of type %s has no JSON form", rk_value_type_name(value));
}

static struct rk_status *write_value(struct rk_render *r, struct writer *writer, rk_value_t value)
{
    struct rk_status *st;

    RK_TRY(rk_render_step(r, 1));
    if (writer->out->bytes > RK_JINJA_OUTPUT_BYTES_MAX)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "a text of more than %d bytes", RK_JINJA_OUTPUT_BYTES_MAX);
    switch (value.kind) {
    case RK_VALUE_NONE:
        rk_str_append(writer->out, "null");
        return NULL;
    case RK_VALUE_BOOL:
        rk_str_append(writer->out, value.boolean ? "true" : "false");
        return NULL;
    case RK_VALUE_INT:
        return rk_value_repr(r, value, writer->out);
    case RK_VALUE_REAL:
        write_real(writer, value.real);
        return NULL;
    case RK_VALUE_STRING:
        write_text(writer, value.string->data, value.string->bytes);
        return NULL;
    default:
        break;
    }
    if (++r->depth > RK_JINJA_DEPTH_MAX)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "values are nested deeper than %d", RK_JINJA_DEPTH_MAX);
    st = write_container(r, writer, value);
    r->depth--;
    return st;
}

struct rk_status *rk_value_to_json(struct rk_render *r, rk_value_t value, const struct rk_json_style *style,
                                   struct rk_str *out)
{
    struct writer writer = {.style = style, .out = out};

    return write_value(r, &writer, value);
}
