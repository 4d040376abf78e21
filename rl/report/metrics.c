#include "rl/report/report_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "generated/rk_report_assets.h"

#define WHOLE_STEPS_MAX 240 /* about one step per pixel of a plot on a small screen */
#define PARTS           120

struct rk_status *rk_report_load_charts(struct rk_json **out)
{
    return rk_json_parse(out, rk_charts_json, strlen(rk_charts_json), "charts.json", 0);
}

bool rk_report_is_plotted(const struct rk_report *report, const char *metric)
{
    for (int64_t i = 0; i < rk_json_count(report->charts); i++) {
        const struct rk_json *chart = rk_json_at(report->charts, i);
        const char *prefix = rk_json_as_string(rk_json_find(chart, "prefix"), NULL);
        const char *suffix = rk_json_as_string(rk_json_find(chart, "suffix"), "");

        if (rk_json_find(rk_json_find(chart, "lines"), metric) ||
            (prefix && rk_str_has_prefix(metric, prefix) && rk_str_has_suffix(metric, suffix)))
            return true;
    }
    return false;
}

static void put(struct rk_json *row, const char *column, struct rk_json *value)
{
    if (!rk_json_find(row, column))
        rk_json_set(row, column, rk_json_new_array());
    rk_json_append(rk_json_find(row, column), value);
}

static void put_whole(struct rk_json *row, const struct rk_report_series *series)
{
    for (int64_t i = 0; i < series->count; i++) {
        put(row, "x", rk_json_new_int((int64_t)series->x[i]));
        put(row, "y", rk_json_new_real(series->y[i]));
    }
}

/* The value with six digits, more than a plot of 240 points shows. */
static struct rk_json *rounded(double value)
{
    char text[32];

    snprintf(text, sizeof(text), "%.6g", value);
    return rk_json_new_real(strtod(text, NULL));
}

/* The values begin..end of the series, which are those of one part. */
static void put_part(struct rk_json *row, const struct rk_report_series *series, int64_t begin, int64_t end)
{
    int64_t low = begin, high = begin;
    double mean = 0.0;

    for (int64_t i = begin; i < end; i++) {
        low = series->y[i] < series->y[low] ? i : low;
        high = series->y[i] > series->y[high] ? i : high;
        mean += series->y[i] / (double)(end - begin);
    }
    put(row, "x", rk_json_new_int((int64_t)series->x[end - 1]));
    put(row, "y", rounded(mean));
    put(row, "n", rk_json_new_int(end - begin));
    put(row, "low_x", rk_json_new_int((int64_t)series->x[low]));
    put(row, "low", rounded(series->y[low]));
    put(row, "high_x", rk_json_new_int((int64_t)series->x[high]));
    put(row, "high", rounded(series->y[high]));
}

static int64_t part_of(const struct rk_report *report, double step)
{
    return ((int64_t)step - report->first_step) * PARTS / (report->step - report->first_step + 1);
}

static void put_parts(struct rk_json *row, const struct rk_report *report,
                      const struct rk_report_series *series)
{
    int64_t begin = 0;

    for (int64_t i = 1; i <= series->count; i++) {
        if (i < series->count && part_of(report, series->x[i]) == part_of(report, series->x[begin]))
            continue;
        put_part(row, series, begin, i);
        begin = i;
    }
}

void rk_report_append_metrics(struct rk_str *out, const struct rk_report *report)
{
    bool is_long = report->step - report->first_step >= WHOLE_STEPS_MAX;
    struct rk_json *run = rk_json_new_object(), *list = rk_json_new_array();
    char *text;

    for (int64_t i = 0; i < report->series.count; i++) {
        const struct rk_report_series *series = &report->series.items[i];
        struct rk_json *row = rk_json_new_object();

        rk_json_set(row, "name", rk_json_new_string(series->name));
        if (is_long)
            put_parts(row, report, series);
        else
            put_whole(row, series);
        rk_json_append(list, row);
    }
    rk_json_set(run, "first_step", rk_json_new_int(report->first_step));
    rk_json_set(run, "last_step", rk_json_new_int(report->step));
    rk_json_set(run, "world_size", rk_json_new_int(report->world_size));
    if (is_long)
        rk_json_set(run, "parts", rk_json_new_int(PARTS));
    rk_json_set(run, "charts", rk_json_retain(report->charts));
    rk_json_set(run, "series", list);
    text = rk_json_dump(run, 0, false);
    for (const char *c = text; *c; c++) { /* names of users: no "</script>" or "<!--" */
        if (*c == '<')
            rk_str_append(out, "\\u003c");
        else
            rk_str_append_bytes(out, c, 1);
    }
    rk_free(text);
    rk_json_free(run);
}
