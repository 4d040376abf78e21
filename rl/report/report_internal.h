/* report.html: summary of a run in one file without network, for any browser.
 *
 * report.c collects and writes, page.c puts the page together, metrics.c embeds the values; charts.json says
 * which metrics are plotted and how, report.js draws them in the browser, report.css is the style. */
#ifndef RK_REPORT_INTERNAL_H
#define RK_REPORT_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_array.h"
#include "base/config/rk_config.h"
#include "base/rk_str.h"

/* --- data of the run (report.c) --- */
struct rk_report_series {
    char *name; /* of the metric */
    int64_t count, capacity;
    double *x, *y; /* step and value, finite */
};

struct rk_report_sample {
    char *input, *output, *gts;
    double score;
};

struct rk_report_samples {
    int64_t step;
    RK_ARRAY(struct rk_report_sample) items;
};

struct rk_report {
    const struct rk_config *job;
    const struct rk_json *rows; /* what became of the data's rows; or NULL */
    struct rk_json *charts;     /* charts.json */
    char *path, *history;       /* report.html and metrics.jsonl */
    const char *outcome;        /* "running", "succeeded", "failed", "interrupted" */
    int32_t world_size;
    int64_t started_unix_ns;
    int64_t first_step, step, total_steps;    /* first and last that was logged */
    RK_ARRAY(struct rk_report_series) series; /* in the order in which they came */
    struct rk_report_samples val, train;
    int64_t next_write_ns;
};

const struct rk_report_series *rk_report_find(const struct rk_report *report, const char *name); /* or NULL */
/* Mean of the last (first) `count` values; NAN without any. */
double rk_report_mean_last(const struct rk_report *report, const char *name, int64_t count);
double rk_report_mean_first(const struct rk_report *report, const char *name, int64_t count);

/* --- metrics.c --- */
struct rk_status *rk_report_load_charts(struct rk_json **out) RK_NODISCARD;
bool rk_report_is_plotted(const struct rk_report *report, const char *metric);
/* The values as JSON that may stand in a <script> element: all of a run of up to 240 steps, exact; else, for
 * each of 120 parts of the run, the last step, the mean, the number of values and the smallest and largest
 * with their steps, to six digits. */
void rk_report_append_metrics(struct rk_str *out, const struct rk_report *report);

/* --- page.c --- */
void rk_report_append_page(struct rk_str *out, const struct rk_report *report);
/* Text between tags or in a double-quoted attribute; control characters except newline and tab are
 * dropped. */
void rk_html_append_escaped(struct rk_str *out, const char *text, size_t bytes);
/* "0.25", "1.5k", "12M": five characters or so. */
void rk_format_short(char *out, size_t bytes, double value);

#endif
