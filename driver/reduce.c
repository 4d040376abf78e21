/* Metrics of the ranks of a call, as one number each. */
#include "driver/driver_internal.h"

#include <math.h>
#include <string.h>

#include "base/rk_assert.h"
#include "base/rk_log.h"
#include "base/rk_map.h"

struct reduction {
    const char *reduce;
    double sum, max, min, last;
    int64_t count;
    bool is_bad; /* some rank's value is not finite: no comparison may lose it */
};

static double reduction_value(const struct reduction *reduction)
{
    if (reduction->is_bad)
        return NAN;
    if (strcmp(reduction->reduce, "sum") == 0)
        return reduction->sum;
    if (strcmp(reduction->reduce, "max") == 0)
        return reduction->max;
    if (strcmp(reduction->reduce, "min") == 0)
        return reduction->min;
    if (strcmp(reduction->reduce, "last") == 0)
        return reduction->last;
    return reduction->sum / (double)reduction->count;
}

static void add(struct rk_map *reductions, struct rk_arena *arena, const struct rk_metric *metric)
{
    struct reduction *reduction = rk_map_find(reductions, metric->name);

    if (!reduction) {
        reduction = rk_arena_alloc(arena, sizeof(*reduction));
        RK_ASSERT(reduction);
        *reduction = (struct reduction){.reduce = metric->reduce, .max = metric->value, .min = metric->value};
        rk_map_put(reductions, metric->name, reduction);
    }
    reduction->is_bad |= !isfinite(metric->value);
    reduction->sum += metric->value;
    reduction->max = RK_MAX(reduction->max, metric->value);
    reduction->min = RK_MIN(reduction->min, metric->value);
    reduction->last = metric->value;
    reduction->count++;
}

struct rk_json *rk_reduce_metrics(const struct rk_execute_result *const *results, const bool *collects,
                                  int32_t num_ranks)
{
    struct rk_arena *arena = rk_arena_create(4096, 0);
    struct rk_map *reductions = rk_map_create();
    struct rk_json *metrics = rk_json_new_object();

    for (int32_t rank = 0; rank < num_ranks; rank++) {
        for (int64_t i = 0; results[rank] && i < results[rank]->num_metrics; i++) {
            const struct rk_metric *metric = &results[rank]->metrics[i];

            if (!collects[rank] && strcmp(metric->reduce, "max") != 0 && strcmp(metric->reduce, "min") != 0)
                continue;
            if (!isfinite(metric->value))
                RK_WARN("metric %s of worker %d is %g", metric->name, rank, metric->value);
            add(reductions, arena, metric);
        }
    }
    for (int64_t i = 0; i < rk_map_count(reductions); i++) {
        double value = reduction_value(rk_map_value_at(reductions, i));

        rk_json_set(metrics, rk_map_key_at(reductions, i),
                    isfinite(value) ? rk_json_new_real(value) : rk_json_new_null());
    }
    rk_map_destroy(reductions);
    rk_arena_destroy(arena);
    return metrics;
}
