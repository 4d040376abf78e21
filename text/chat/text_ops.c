/* Operations on texts, shared by filters and methods. */
#include "text/chat/filters_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

static struct rk_status *check_size(const struct rk_str *text)
{
    return text->bytes <= RK_JINJA_OUTPUT_BYTES_MAX
               ? NULL
               : RK_FAIL(RK_RESOURCE_EXHAUSTED, "a text of more than %d bytes", RK_JINJA_OUTPUT_BYTES_MAX);
}

void rk_text_escape(const char *text, int64_t bytes, struct rk_str *out)
{
    static const struct {
        char character;
        const char *entity;
    } entities[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'\'', "&#39;"}, {'"', "&#34;"}};

    for (int64_t i = 0; i < bytes; i++) {
        const char *entity = NULL;

        for (size_t k = 0; k < RK_ARRAY_LEN(entities); k++) {
            if (text[i] == entities[k].character)
                entity = entities[k].entity;
        }
        if (entity)
            rk_str_append(out, entity);
        else
            rk_str_append_bytes(out, text + i, 1);
    }
}

/* An empty `old` matches before each character and at the end, as in Python. */
static struct rk_status *insert_between(const struct rk_text *text, const struct rk_text *new_text,
                                        int64_t count, struct rk_str *out)
{
    for (int64_t at = 0; at <= text->bytes; count--) {
        int bytes = 1;

        if (count != 0)
            rk_str_append_bytes(out, new_text->data, (size_t)new_text->bytes);
        RK_TRY(check_size(out));
        if (at == text->bytes)
            break;
        (void)rk_utf8_read(text->data + at, &bytes);
        rk_str_append_bytes(out, text->data + at, (size_t)bytes);
        at += bytes;
        count += count == 0;
    }
    return NULL;
}

static struct rk_status *replace_found(const struct rk_text *text, const struct rk_text *old,
                                       const struct rk_text *new_text, int64_t count, struct rk_str *out)
{
    int64_t from = 0, found;

    while (count-- != 0 && (found = rk_text_find(text, old, from)) >= 0) {
        rk_str_append_bytes(out, text->data + from, (size_t)(found - from));
        rk_str_append_bytes(out, new_text->data, (size_t)new_text->bytes);
        RK_TRY(check_size(out));
        from = found + old->bytes;
    }
    rk_str_append_bytes(out, text->data + from, (size_t)(text->bytes - from));
    return NULL;
}

struct rk_status *rk_text_replace(struct rk_render *r, const struct rk_text *text, const struct rk_text *old,
                                  const struct rk_text *new_text, int64_t count, rk_value_t *out)
{
    struct rk_str result = {0};
    struct rk_status *st = rk_render_step(r, text->bytes / 16);

    if (!st)
        st = old->bytes == 0 ? insert_between(text, new_text, count, &result)
                             : replace_found(text, old, new_text, count, &result);
    if (!st)
        return rk_value_take_string(r, out, &result);
    rk_str_fini(&result);
    return st;
}

static bool is_line_end(uint32_t code)
{
    return (code >= 0x0a && code <= 0x0d) || (code >= 0x1c && code <= 0x1e) || code == 0x85 ||
           code == 0x2028 || code == 0x2029;
}

struct rk_status *rk_text_lines(struct rk_render *r, const struct rk_text *text, rk_value_t *out)
{
    int64_t begin = 0;
    rk_value_t line;

    RK_TRY(rk_value_new_list(r, out, RK_VALUE_LIST, 8));
    for (int64_t at = 0; at < text->bytes;) {
        int bytes;
        uint32_t code = rk_utf8_read(text->data + at, &bytes);

        if (!is_line_end(code)) {
            at += bytes;
            continue;
        }
        RK_TRY(rk_value_new_substring(r, &line, text, begin, at - begin));
        RK_TRY(rk_list_append(r, out->list, line));
        at += bytes;
        at += code == '\r' && at < text->bytes && text->data[at] == '\n';
        begin = at;
    }
    if (begin == text->bytes)
        return NULL;
    RK_TRY(rk_value_new_substring(r, &line, text, begin, text->bytes - begin));
    return rk_list_append(r, out->list, line);
}

struct rk_status *rk_text_pad(struct rk_render *r, const struct rk_text *text, int64_t left, int64_t right,
                              const struct rk_text *fill, rk_value_t *out)
{
    const char *data = fill ? fill->data : " ";
    size_t bytes = fill ? (size_t)fill->bytes : 1;
    struct rk_str result = {0};

    if (left > RK_JINJA_OUTPUT_BYTES_MAX / 8 || right > RK_JINJA_OUTPUT_BYTES_MAX / 8)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "a text of more than %d bytes", RK_JINJA_OUTPUT_BYTES_MAX);
    for (int64_t i = 0; i < left; i++)
        rk_str_append_bytes(&result, data, bytes);
    rk_str_append_bytes(&result, text->data, (size_t)text->bytes);
    for (int64_t i = 0; i < right; i++)
        rk_str_append_bytes(&result, data, bytes);
    return rk_value_take_string(r, out, &result);
}

struct rk_status *rk_text_center(struct rk_render *r, struct rk_text *text, int64_t width,
                                 const struct rk_text *fill, rk_value_t *out)
{
    int64_t pad = RK_MAX(width - rk_text_chars(text), 0);
    int64_t left = pad / 2 + (pad & width & 1);

    return rk_text_pad(r, text, left, pad - left, fill, out);
}

static struct rk_status *append_joined(struct rk_render *r, rk_value_t item, bool strings_only,
                                       struct rk_str *out)
{
    if (strings_only && item.kind != RK_VALUE_STRING)
        return RK_TEMPLATE_ERROR("join: expected strings, got %s", rk_value_type_name(item));
    return rk_value_format(r, item, out);
}

struct rk_status *rk_text_join(struct rk_render *r, const struct rk_text *separator, rk_value_t items,
                               bool strings_only, rk_value_t attribute, rk_value_t *out)
{
    struct rk_str text = {0};
    struct rk_iter *iter;
    struct rk_status *st = rk_iter_open(r, &iter, items);
    bool has_item = !st;

    for (int64_t i = 0; !st && has_item; i++) {
        rk_value_t item;

        RK_TRY_GOTO(st, rk_iter_next(r, iter, &item, &has_item), out);
        if (!has_item)
            break;
        RK_TRY_GOTO(st, rk_filter_attribute(r, attribute, item, &item), out);
        if (i > 0)
            rk_str_append_bytes(&text, separator->data, (size_t)separator->bytes);
        st = append_joined(r, item, strings_only, &text);
    }
out:
    if (!st)
        return rk_value_take_string(r, out, &text);
    rk_str_fini(&text);
    return st;
}
