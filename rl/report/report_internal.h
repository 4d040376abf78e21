/* report.html: summary of a run in one file without network, for any browser.
 *
 * report.c collects and writes, charts.c chooses what is plotted, svg.c draws, page.c puts the page together;
 * report.css and report.js are its style and its tooltips. */
#ifndef RK_REPORT_INTERNAL_H
#define RK_REPORT_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_array.h"
#include "base/config/rk_config.h"
#include "base/rk_str.h"

/* --- plots (svg.c) --- */
typedef enum rk_plot_kind {
    RK_PLOT_LINE,
    RK_PLOT_FAINT,  /* the values of an average: thin, and not in tooltips */
    RK_PLOT_POINTS, /* few values: a line with a dot at each */
    RK_PLOT_AREA    /* stacked on the areas before it, which have the same x */
} rk_plot_kind_t;

#define RK_PLOT_COLORS 8

struct rk_plot_series {
    const char *label;
    rk_plot_kind_t kind;
    int color; /* 0..RK_PLOT_COLORS - 1: class "c<color>" of the style sheet */
    int64_t count;
    const double *x, *y; /* finite; x ascending */
    bool is_second;      /* the colour is in use already: dashed, areas hatched */
};

struct rk_plot {
    const char *title;   /* for screen readers */
    double x_min, x_max; /* minimum range of the x axis; equal: the range of the values */
    bool is_from_zero;   /* the y axis begins at 0, if no value is below */
    int64_t num_series;
    const struct rk_plot_series *series;
};

/* An <svg> element for an HTML page, coloured by the page's style sheet. */
void rk_plot_svg(struct rk_str *out, const struct rk_plot *plot);
/* Text between tags or in a double-quoted attribute; control characters except newline and tab are
 * dropped. */
void rk_html_append_escaped(struct rk_str *out, const char *text, size_t bytes);
/* "0.25", "1.5k", "12M": five characters or so. */
void rk_format_short(char *out, size_t bytes, double value);

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

/* --- which metrics are plotted (charts.c) --- */
bool rk_report_is_plotted(const char *metric);
/* All charts that have values, in sections. */
void rk_report_append_charts(struct rk_str *out, const struct rk_report *report);
/* The series whose last value represents a validation: the first mean@; NULL without one. */
const struct rk_report_series *rk_report_validation(const struct rk_report *report);

/* --- the page (page.c) --- */
void rk_report_append_page(struct rk_str *out, const struct rk_report *report);

#endif
