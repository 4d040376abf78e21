/* Global functions of the templates' environment. */
#include "text/chat/render_internal.h"

#include <string.h>
#include <time.h>

#include "base/rk_alloc.h"

static struct rk_status *run_range(struct rk_render *r, rk_value_t *out, const struct rk_row_call *call)
{
    int64_t bounds[3] = {0, 0, 1};
    bool has_start = call->args[1].kind != RK_VALUE_UNSET;
    struct rk_range *range;
    void *memory;

    if (call->actuals->num_named > 0)
        return RK_TEMPLATE_ERROR("range: takes no named arguments");
    RK_TRY(rk_arg_int(call->args[0], "range", 0, &bounds[has_start ? 0 : 1]));
    RK_TRY(rk_arg_int(call->args[1], "range", bounds[1], &bounds[1]));
    RK_TRY(rk_arg_int(call->args[2], "range", 1, &bounds[2]));
    if (bounds[2] == 0)
        return RK_TEMPLATE_ERROR("range: the step is 0");
    for (int i = 0; i < 3; i++)
        bounds[i] = RK_MIN(RK_MAX(bounds[i], -(INT64_C(1) << 60)), INT64_C(1) << 60);
    RK_TRY(rk_render_alloc(r, &memory, sizeof(*range)));
    range = memory;
    *range = (struct rk_range){.start = bounds[0], .step = bounds[2]};
    if (bounds[2] > 0 && bounds[1] > bounds[0])
        range->count = (bounds[1] - bounds[0] - 1) / bounds[2] + 1;
    if (bounds[2] < 0 && bounds[0] > bounds[1])
        range->count = (bounds[0] - bounds[1] - 1) / -bounds[2] + 1;
    if (range->count > RK_JINJA_RANGE_MAX)
        return RK_TEMPLATE_ERROR("range: more than %d items", RK_JINJA_RANGE_MAX);
    *out = (rk_value_t){.kind = RK_VALUE_RANGE, .range = range};
    return NULL;
}

/* Members of a dict, or pairs. */
static struct rk_status *put_pairs(struct rk_render *r, struct rk_dict *dict, rk_value_t from)
{
    struct rk_view items = {.kind = RK_VIEW_ITEMS};
    rk_value_t pairs;

    if (from.kind == RK_VALUE_DICT) {
        items.dict = from.dict;
        from = (rk_value_t){.kind = RK_VALUE_VIEW, .view = &items};
    }
    RK_TRY(rk_value_to_list(r, from, &pairs));
    for (int64_t i = 0; i < pairs.list->count; i++) {
        rk_value_t pair;

        RK_TRY(rk_value_to_list(r, pairs.list->items[i], &pair));
        if (pair.list->count != 2)
            return RK_TEMPLATE_ERROR("dict: item %lld is no pair", (long long)i);
        RK_TRY(rk_dict_put(r, dict, pair.list->items[0], pair.list->items[1]));
    }
    return NULL;
}

/* dict() and namespace(): a dict or pairs, then named members. */
static struct rk_status *make_dict(struct rk_render *r, rk_value_t *out, const struct rk_actuals *actuals,
                                   rk_value_kind_t kind)
{
    RK_TRY(rk_value_new_dict(r, out, kind, actuals->num_named));
    if (actuals->num_values > 1)
        return RK_TEMPLATE_ERROR("dict: expected at most 1 argument without a name");
    if (actuals->num_values == 1)
        RK_TRY(put_pairs(r, out->dict, actuals->values[0]));
    for (int64_t i = 0; i < actuals->num_named; i++)
        RK_TRY(rk_dict_put(r, out->dict, actuals->names[i], actuals->named[i]));
    return NULL;
}

static struct rk_status *run_dict(struct rk_render *r, rk_value_t *out, const struct rk_row_call *call)
{
    return make_dict(r, out, call->actuals, RK_VALUE_DICT);
}

static struct rk_status *run_namespace(struct rk_render *r, rk_value_t *out, const struct rk_row_call *call)
{
    RK_TRY(make_dict(r, out, call->actuals, RK_VALUE_NAMESPACE));
    for (int64_t i = 0; i < out->dict->count; i++) {
        rk_value_t key = out->dict->keys[i];

        if (key.kind == RK_VALUE_STRING && key.string->bytes > 0 && key.string->data[0] == '_')
            return RK_TEMPLATE_ERROR("namespace: the name '%.*s' begins with '_'",
                                     (int)RK_MIN(key.string->bytes, 64), key.string->data);
    }
    return NULL;
}

static struct rk_status *run_raise(struct rk_render *r, rk_value_t *out, const struct rk_row_call *call)
{
    struct rk_str text = {0};
    struct rk_status *st = rk_value_format(r, call->args[0], &text);

    (void)out;
    if (!st)
        st = RK_TEMPLATE_ERROR("the template raised: %s", rk_str_text(&text));
    rk_str_fini(&text);
    return st;
}

/* Local time, as datetime.now().strftime(). */
static struct rk_status *run_strftime(struct rk_render *r, rk_value_t *out, const struct rk_row_call *call)
{
    time_t now = (time_t)r->now_s;
    struct rk_text *format;
    char pattern[256], text[1024];
    struct tm local;
    size_t bytes;

    RK_TRY(rk_arg_text(call->args[0], "strftime_now", &format));
    if (!format || format->bytes >= (int64_t)sizeof(pattern) - 1)
        return RK_TEMPLATE_ERROR("strftime_now: expected a format of less than %zu bytes", sizeof(pattern));
    memcpy(pattern, format->data, (size_t)format->bytes);
    memcpy(pattern + format->bytes, "!", 2); /* so that an empty result is distinguishable from a failure */
    if (strstr(pattern, "%f"))
        return RK_FAIL(RK_UNIMPLEMENTED, "strftime_now: %%f is not supported");
    if (!localtime_r(&now, &local))
        return RK_TEMPLATE_ERROR("strftime_now: the time is out of range");
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
    bytes = strftime(text, sizeof(text), pattern, &local);
#pragma GCC diagnostic pop
    if (bytes == 0)
        return RK_TEMPLATE_ERROR("strftime_now: the result is longer than %zu bytes", sizeof(text));
    return rk_value_new_string(r, out, text, bytes - 1);
}

static const struct rk_callable functions[] = {
    {"range", run_range, "start stop step", 1},  {"dict", run_dict, "*", 0},
    {"namespace", run_namespace, "*", 0},        {"raise_exception", run_raise, "message", 1},
    {"strftime_now", run_strftime, "format", 1},
};

const struct rk_callable *rk_jinja_function_find(const char *name)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(functions); i++) {
        if (strcmp(functions[i].name, name) == 0)
            return &functions[i];
    }
    return NULL;
}
