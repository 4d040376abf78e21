/* Methods of strings that split them, as in Python. */
#include "text/chat/filters_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

#define METHOD(name) \
    static struct rk_status *name(struct rk_render *r, rk_value_t *out, const struct rk_row_call *call)

static struct rk_status *append_part(struct rk_render *r, rk_value_t *out, const struct rk_text *text,
                                     int64_t begin, int64_t end)
{
    rk_value_t part;

    RK_TRY(rk_value_new_substring(r, &part, text, begin, end - begin));
    return rk_list_append(r, out->list, part);
}

/* Splits at runs of white space, ignoring it at the ends. The rest after `max` splits is one part.
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

/* Splits into all parts, then joins the surplus parts at the beginning. */
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

    RK_TRY(rk_arg_need_text(call->args[0], "partition", &separator));
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

const struct rk_callable rk_jinja_split_methods[] = {
    {"partition", run_partition, "sep", 1},        {"rpartition", run_rpartition, "sep", 1},
    {"rsplit", run_rsplit, "sep maxsplit", 0},     {"split", run_split, "sep maxsplit", 0},
    {"splitlines", run_splitlines, "keepends", 0}, {NULL, NULL, NULL, 0},
};
