/* The filter table, by file, and functions shared by filters. */
#include "text/chat/filters_internal.h"

#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"

static const struct rk_callable *const tables[] = {rk_filters_text, rk_filters_list, rk_filters_lazy,
                                                   rk_filters_number};

const struct rk_callable *rk_jinja_filter_find(const char *name)
{
    for (size_t i = 0; i < RK_ARRAY_LEN(tables); i++) {
        for (const struct rk_callable *row = tables[i]; row->name; row++) {
            if (strcmp(row->name, name) == 0)
                return row;
        }
    }
    return NULL;
}

bool rk_jinja_filter_is_known(const char *name)
{
    static const char *const names[] = {"attr",   "filesizeformat", "format",    "groupby",  "pprint",
                                        "random", "slice",          "striptags", "truncate", "urlencode",
                                        "urlize", "wordcount",      "wordwrap",  "xmlattr"};

    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++) {
        if (strcmp(names[i], name) == 0)
            return true;
    }
    return false;
}

/* One part of "a.b.0": a name, or a number. */
static struct rk_status *get_part(struct rk_render *r, const char *part, size_t bytes, rk_value_t *item)
{
    bool is_number = bytes > 0 && bytes < 18 && strspn(part, "0123456789") >= bytes;
    rk_value_t key;

    if (is_number)
        key = rk_value_int(strtoll(part, NULL, 10));
    else
        RK_TRY(rk_value_new_string(r, &key, part, bytes));
    return rk_get_item(r, *item, key, item);
}

struct rk_status *rk_filter_attribute(struct rk_render *r, rk_value_t attribute, rk_value_t item,
                                      rk_value_t *out)
{
    struct rk_status *st = NULL;
    char *path;

    *out = item;
    if (attribute.kind == RK_VALUE_UNSET || attribute.kind == RK_VALUE_NONE)
        return NULL;
    if (attribute.kind != RK_VALUE_STRING)
        return rk_get_item(r, item, attribute, out);
    path = rk_strndup(attribute.string->data, (size_t)attribute.string->bytes);
    for (const char *part = path; !st && part; part = strchr(part, '.') ? strchr(part, '.') + 1 : NULL)
        st = get_part(r, part, strcspn(part, "."), out);
    rk_free(path);
    return st;
}

struct rk_status *rk_filter_fold(struct rk_render *r, rk_value_t item, bool case_sensitive, rk_value_t *out)
{
    struct rk_str text = {0};

    *out = item;
    if (case_sensitive || item.kind != RK_VALUE_STRING)
        return NULL;
    rk_text_lower(item.string->data, item.string->bytes, &text);
    return rk_value_take_string(r, out, &text);
}
