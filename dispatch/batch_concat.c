/* Concatenation with verl's rules for meta, and the reduction of the metrics that it gathers. */
#include "dispatch/batch_internal.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

#include <inttypes.h>
#include <string.h>

#define METRICS_KEY "metrics"

/* --- columns --- */

static struct rk_status *check_names(const struct rk_batch *const *parts, int64_t num_parts)
{
    for (int64_t i = 1; i < num_parts; i++) {
        for (int64_t k = 0; k < parts[0]->columns.count; k++) {
            if (!rk_batch_find(parts[i], parts[0]->columns.items[k].name))
                return RK_FAIL(RK_INVALID_ARGUMENT, "column '%s' of part 0 is missing in part %" PRId64,
                               parts[0]->columns.items[k].name, i);
        }
        for (int64_t k = 0; k < parts[i]->columns.count; k++) {
            if (!rk_batch_find(parts[0], parts[i]->columns.items[k].name))
                return RK_FAIL(RK_INVALID_ARGUMENT, "column '%s' of part %" PRId64 " is missing in part 0",
                               parts[i]->columns.items[k].name, i);
        }
    }
    return NULL;
}

static struct rk_status *concat_columns(struct rk_batch *out, const struct rk_batch *const *parts,
                                        int64_t num_parts)
{
    const struct rk_column **columns = rk_calloc((size_t)num_parts, sizeof(*columns));
    struct rk_status *st = NULL;

    for (int64_t k = 0; k < parts[0]->columns.count; k++) {
        const char *name = parts[0]->columns.items[k].name;
        struct rk_column *column;

        for (int64_t i = 0; i < num_parts; i++)
            columns[i] = rk_batch_find(parts[i], name);
        st = rk_column_concat(&column, columns, num_parts);
        if (st) {
            st = RK_WRAP(st, "column '%s'", name);
            goto out;
        }
        RK_TRY_GOTO(st, rk_batch_put_new(out, name, column), out);
    }
out:
    rk_free(columns);
    return st;
}

/* --- meta --- */

/* Appends the values of one set of metrics to the lists. The first set determines the keys. */
static struct rk_status *gather_metrics(struct rk_json *lists, const struct rk_json *metrics, bool is_first)
{
    for (void *it = rk_json_iter(metrics); it; it = rk_json_iter_next(metrics, it)) {
        struct rk_json *list = rk_json_find(lists, rk_json_iter_key(it));

        if (!list && !is_first)
            return RK_FAIL(RK_INVALID_ARGUMENT, "metric '%s' is missing in the first part",
                           rk_json_iter_key(it));
        if (!list) {
            rk_json_set(lists, rk_json_iter_key(it), rk_json_new_array());
            list = rk_json_find(lists, rk_json_iter_key(it));
        }
        rk_json_append(list, rk_json_clone(rk_json_iter_value(it)));
    }
    return NULL;
}

/* One part's value of "metrics": null, an object, or a list of objects. */
static struct rk_status *gather_part(struct rk_json *lists, const struct rk_json *value, int64_t part,
                                     bool *is_first)
{
    int64_t count = rk_json_type(value) == RK_JSON_ARRAY ? rk_json_count(value) : 1;

    for (int64_t i = 0; i < count; i++) {
        const struct rk_json *metrics = rk_json_type(value) == RK_JSON_ARRAY ? rk_json_at(value, i) : value;

        if (rk_json_is_null(metrics))
            continue;
        if (rk_json_type(metrics) != RK_JSON_OBJECT)
            return RK_FAIL(RK_INVALID_ARGUMENT, "meta '%s' of part %" PRId64 " is %s, expected objects",
                           METRICS_KEY, part, rk_json_type_name(rk_json_type(metrics)));
        RK_TRY(gather_metrics(lists, metrics, *is_first));
        *is_first = false;
    }
    return NULL;
}

static struct rk_status *concat_metrics(struct rk_json *meta, const struct rk_batch *const *parts,
                                        int64_t num_parts)
{
    struct rk_json *lists = rk_json_new_object();
    struct rk_status *st = NULL;
    bool is_first = true;

    for (int64_t i = 0; i < num_parts; i++) {
        const struct rk_json *value = rk_json_find(rk_batch_meta(parts[i]), METRICS_KEY);

        if (value)
            RK_TRY_GOTO(st, gather_part(lists, value, i, &is_first), out);
    }
    if (!is_first) {
        rk_json_set(meta, METRICS_KEY, lists);
        lists = NULL;
    }
out:
    rk_json_free(lists);
    return st;
}

static struct rk_status *merge_part(struct rk_json *meta, const struct rk_json *other)
{
    for (void *it = rk_json_iter(other); it; it = rk_json_iter_next(other, it)) {
        const char *key = rk_json_iter_key(it);
        const struct rk_json *known = rk_json_find(meta, key);

        if (strcmp(key, METRICS_KEY) == 0)
            continue;
        if (known && !rk_json_equal(known, rk_json_iter_value(it)))
            return RK_FAIL(RK_INVALID_ARGUMENT, "Conflicting values for meta_info key '%s'", key);
        if (!known)
            rk_json_set(meta, key, rk_json_clone(rk_json_iter_value(it)));
    }
    return NULL;
}

static struct rk_status *concat_meta(struct rk_batch *out, const struct rk_batch *const *parts,
                                     int64_t num_parts)
{
    struct rk_json *meta = rk_json_new_object();
    struct rk_status *st = NULL;

    for (int64_t i = 0; i < num_parts; i++)
        RK_TRY_GOTO(st, merge_part(meta, rk_batch_meta(parts[i])), out);
    RK_TRY_GOTO(st, concat_metrics(meta, parts, num_parts), out);
    rk_batch_take_meta(out, meta);
    meta = NULL;
out:
    rk_json_free(meta);
    return st;
}

struct rk_status *rk_batch_concat(struct rk_batch **out, const struct rk_batch *const *parts,
                                  int64_t num_parts)
{
    struct rk_batch *batch = NULL;
    struct rk_status *st = NULL;
    int64_t num_rows = 0;

    *out = NULL;
    if (num_parts < 1)
        return RK_FAIL(RK_INVALID_ARGUMENT, "concatenation of no batches");
    RK_TRY(check_names(parts, num_parts));
    for (int64_t i = 0; i < num_parts; i++)
        num_rows += parts[i]->num_rows;
    RK_TRY(rk_batch_create(&batch, num_rows));
    RK_TRY_GOTO(st, concat_columns(batch, parts, num_parts), out);
    RK_TRY_GOTO(st, concat_meta(batch, parts, num_parts), out);
    *out = batch;
    batch = NULL;
out:
    rk_batch_destroy(batch);
    return st;
}
