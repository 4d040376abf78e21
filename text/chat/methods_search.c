/* Methods of strings that search or test them, as in Python. */
#include "text/chat/filters_internal.h"

#include <string.h>

#include "base/rk_alloc.h"

#define METHOD(name) \
    static struct rk_status *name(struct rk_render *r, rk_value_t *out, const struct rk_row_call *call)

typedef bool (*side_fn_t)(const struct rk_text *text, const struct rk_text *part);

/* Matches one string or any of a tuple, between the characters args[1] and args[2]. */
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

        RK_TRY(rk_arg_need_text(parts.list->items[i], "startswith, endswith", &part));
        is_found = is_found || has(text.string, part);
    }
    *out = rk_value_bool(is_found);
    return NULL;
}

METHOD(run_startswith)
{
    return has_side(r, out, call, rk_text_has_prefix);
}

METHOD(run_endswith)
{
    return has_side(r, out, call, rk_text_has_suffix);
}

/* First or last position of args[0], in characters; -1 if not found. */
static struct rk_status *find(struct rk_render *r, const struct rk_row_call *call, bool is_last, int64_t *out)
{
    struct rk_text *part, head;
    int64_t found, next;

    RK_TRY(rk_arg_need_text(call->args[0], "find", &part));
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
    RK_TRY(rk_arg_need_text(call->args[0], "count", &part));
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

const struct rk_callable rk_jinja_search_methods[] = {
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
    {"rfind", run_rfind, "sub start end", 1},
    {"rindex", run_rindex, "sub start end", 1},
    {"startswith", run_startswith, "prefix start end", 1},
    {NULL, NULL, NULL, 0},
};
