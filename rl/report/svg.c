/* Plots as SVG elements: axes with round tick values, lines, points, stacked areas. */
#include "rl/report/report_internal.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

#define WIDTH        480
#define HEIGHT       250
#define LEFT         50
#define RIGHT        20
#define TOP          10
#define BOTTOM       30
#define TICKS_ABOUT  5
#define POINT_RADIUS 2.5

struct scale {
    double min, max, step; /* tick values are multiples of step */
    double origin, length; /* in pixels; length may be negative (the y axis goes up) */
};

static double pixel(const struct scale *scale, double value)
{
    return scale->origin + scale->length * (value - scale->min) / (scale->max - scale->min);
}

/* A step of 1, 2 or 5 times a power of ten that cuts the range into about TICKS_ABOUT parts. */
static double round_step(double range)
{
    double power = pow(10.0, floor(log10(range / TICKS_ABOUT)));
    double part = range / TICKS_ABOUT / power;

    return power * (part <= 1.0 ? 1.0 : part <= 2.0 ? 2.0 : part <= 5.0 ? 5.0 : 10.0);
}

/* The y axis ends at ticks, the x axis at its first and last step. */
static struct scale make_scale(double min, double max, bool ends_at_ticks)
{
    struct scale scale = {.min = min, .max = max};

    if (max - min < 1e-9 * fmax(1e-3, fmax(fabs(min), fabs(max)))) { /* one value: room around it */
        double room = max == 0.0 || !ends_at_ticks ? 0.5 : 0.1 * fabs(max);

        scale.min -= room;
        scale.max += room;
    }
    scale.step = round_step(scale.max - scale.min);
    if (!ends_at_ticks) { /* steps are whole numbers */
        scale.step = fmax(scale.step, 1.0);
        return scale;
    }
    scale.min = floor(scale.min / scale.step) * scale.step;
    scale.max = ceil(scale.max / scale.step) * scale.step;
    return scale;
}

void rk_html_append_escaped(struct rk_str *out, const char *text, size_t bytes)
{
    static const struct {
        char c;
        const char *entity;
    } entities[] = {{'<', "&lt;"}, {'>', "&gt;"}, {'&', "&amp;"}, {'"', "&quot;"}};

    for (size_t i = 0; i < bytes; i++) {
        const char *entity = NULL;

        for (size_t j = 0; j < RK_ARRAY_LEN(entities); j++)
            entity = text[i] == entities[j].c ? entities[j].entity : entity;
        if (entity)
            rk_str_append(out, entity);
        else if (((unsigned char)text[i] >= 0x20 && text[i] != 0x7f) || text[i] == '\n' || text[i] == '\t')
            rk_str_append_bytes(out, text + i, 1);
    }
}

void rk_format_short(char *out, size_t bytes, double value)
{
    double size = fabs(value);

    if (size >= 999.5e9)
        snprintf(out, bytes, "%.3g", value);
    else if (size >= 999.5e6)
        snprintf(out, bytes, "%.4gG", value / 1e9);
    else if (size >= 999.5e3)
        snprintf(out, bytes, "%.4gM", value / 1e6);
    else if (size >= 9999.5)
        snprintf(out, bytes, "%.4gk", value / 1e3);
    else
        snprintf(out, bytes, "%.4g", value);
}

static void draw_ticks(struct rk_str *out, const struct scale *x, const struct scale *y)
{
    /* plus zero, so that there is no -0 */
    double first_x = ceil(x->min / x->step - 1e-9) + 0.0, first_y = round(y->min / y->step) + 0.0;
    char label[32];

    rk_str_append(out, "<g class=\"grid\">");
    for (double i = first_y; i * y->step <= y->max + 1e-6 * y->step; i++)
        rk_str_appendf(out, "<path d=\"M%d %.1fH%d\"/>", LEFT, pixel(y, i * y->step), WIDTH - RIGHT);
    rk_str_append(out, "</g>\n<g class=\"labels\">");
    for (double i = first_y; i * y->step <= y->max + 1e-6 * y->step; i++) {
        rk_format_short(label, sizeof(label), i * y->step);
        rk_str_appendf(out, "<text x=\"%d\" y=\"%.1f\" text-anchor=\"end\">%s</text>", LEFT - 7,
                       pixel(y, i * y->step) + 4.0, label);
    }
    for (double i = first_x; i * x->step <= x->max + 1e-6 * x->step; i++) {
        rk_format_short(label, sizeof(label), i * x->step);
        rk_str_appendf(out, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%s</text>",
                       pixel(x, i * x->step), HEIGHT - BOTTOM + 18, label);
    }
    rk_str_appendf(out, "</g>\n<path class=\"axis\" d=\"M%d %dH%d\"/>\n", LEFT, HEIGHT - BOTTOM,
                   WIDTH - RIGHT);
}

/* The values, for the tooltips. */
static void append_values(struct rk_str *out, const char *attribute, const double *values, int64_t count)
{
    rk_str_appendf(out, " %s=\"", attribute);
    for (int64_t i = 0; i < count; i++)
        rk_str_appendf(out, "%s%.5g", i > 0 ? " " : "", values[i]);
    rk_str_append(out, "\"");
}

static void begin_path(struct rk_str *out, const struct rk_plot_series *series)
{
    static const char *const classes[] = {[RK_PLOT_LINE] = "line",
                                          [RK_PLOT_FAINT] = "faint",
                                          [RK_PLOT_POINTS] = "line",
                                          [RK_PLOT_AREA] = "area"};

    rk_str_appendf(out, "<path class=\"%s c%d%s\"", classes[series->kind], series->color,
                   series->is_second ? " second" : "");
    if (series->kind != RK_PLOT_FAINT) {
        rk_str_append(out, " data-label=\"");
        rk_html_append_escaped(out, series->label, strlen(series->label));
        rk_str_append(out, "\"");
        append_values(out, "data-x", series->x, series->count);
        append_values(out, "data-y", series->y, series->count);
    }
    rk_str_append(out, " d=\"");
}

static void append_points(struct rk_str *out, const struct rk_plot_series *series, const double *y,
                          const struct scale *x_scale, const struct scale *y_scale)
{
    for (int64_t i = 0; i < series->count; i++)
        rk_str_appendf(out, "%c%.1f %.1f", i == 0 ? 'M' : 'L', pixel(x_scale, series->x[i]),
                       pixel(y_scale, y[i]));
}

static void draw_line(struct rk_str *out, const struct rk_plot_series *series, const struct scale *x,
                      const struct scale *y)
{
    begin_path(out, series);
    append_points(out, series, series->y, x, y);
    rk_str_append(out, "\"/>\n");
    for (int64_t i = 0; i < series->count && (series->kind == RK_PLOT_POINTS || series->count == 1); i++)
        rk_str_appendf(out, "<circle class=\"dot c%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"%.1f\"/>\n", series->color,
                       pixel(x, series->x[i]), pixel(y, series->y[i]), POINT_RADIUS);
}

/* Between `below` and `below` + y, which becomes the new `below`. */
static void draw_area(struct rk_str *out, const struct rk_plot_series *series, double *below,
                      const struct scale *x, const struct scale *y)
{
    struct rk_str outline = {0}, back = {0};

    for (int64_t i = series->count - 1; i >= 0; i--)
        rk_str_appendf(&back, "L%.1f %.1f", pixel(x, series->x[i]), pixel(y, below[i]));
    for (int64_t i = 0; i < series->count; i++)
        below[i] += series->y[i];
    append_points(&outline, series, below, x, y);
    rk_str_appendf(&outline, "%sZ\"/>\n", rk_str_text(&back));
    begin_path(out, series);
    rk_str_append(out, rk_str_text(&outline));
    if (series->is_second)
        rk_str_appendf(out, "<path class=\"hatched\" d=\"%s", rk_str_text(&outline));
    rk_str_fini(&outline);
    rk_str_fini(&back);
}

struct range {
    double min, max;
};

static void include(struct range *range, double value)
{
    range->min = fmin(range->min, value);
    range->max = fmax(range->max, value);
}

/* The sums of all areas at each of their points; NULL without areas. rk_free it. */
static double *sum_areas(const struct rk_plot *plot, int64_t *count)
{
    double *sums = NULL;

    *count = 0;
    for (int64_t i = 0; i < plot->num_series; i++) {
        const struct rk_plot_series *series = &plot->series[i];

        if (series->kind != RK_PLOT_AREA)
            continue;
        RK_ASSERT(!sums || *count == series->count);
        if (!sums)
            sums = rk_calloc((size_t)series->count + 1, sizeof(*sums));
        *count = series->count;
        for (int64_t j = 0; j < series->count; j++)
            sums[j] += series->y[j];
    }
    return sums;
}

static void measure(const struct rk_plot *plot, struct range *x, struct range *y)
{
    int64_t num_sums;
    double *sums = sum_areas(plot, &num_sums);

    *x = *y = (struct range){INFINITY, -INFINITY};
    if (plot->x_min < plot->x_max)
        *x = (struct range){plot->x_min, plot->x_max};
    for (int64_t i = 0; i < plot->num_series; i++) {
        const struct rk_plot_series *series = &plot->series[i];

        for (int64_t j = 0; j < series->count; j++) {
            include(x, series->x[j]);
            if (series->kind != RK_PLOT_AREA)
                include(y, series->y[j]);
        }
    }
    for (int64_t i = 0; i < num_sums; i++)
        include(y, sums[i]);
    if (x->min > x->max)
        *x = (struct range){0.0, 1.0};
    if (y->min > y->max)
        *y = (struct range){0.0, 1.0};
    if (y->min == 0.0 && y->max == 0.0)
        y->max = 1.0;
    if (sums || (plot->is_from_zero && y->min > 0.0))
        y->min = fmin(y->min, 0.0);
    rk_free(sums);
}

void rk_plot_svg(struct rk_str *out, const struct rk_plot *plot)
{
    struct range x_range, y_range;
    struct scale x, y;
    int64_t num_sums;
    double *below = sum_areas(plot, &num_sums);

    measure(plot, &x_range, &y_range);
    x = make_scale(x_range.min, x_range.max, false);
    y = make_scale(y_range.min, y_range.max, true);
    x.origin = LEFT;
    x.length = WIDTH - LEFT - RIGHT;
    y.origin = HEIGHT - BOTTOM;
    y.length = -(HEIGHT - TOP - BOTTOM);
    for (int64_t i = 0; i < num_sums; i++)
        below[i] = 0.0;
    rk_str_append(out, "<svg class=\"plot\" role=\"img\" aria-label=\"");
    rk_html_append_escaped(out, plot->title, strlen(plot->title));
    rk_str_appendf(out,
                   "\" viewBox=\"0 0 %d %d\" data-left=\"%d\" data-right=\"%d\" data-min=\"%.6g\" "
                   "data-max=\"%.6g\" data-top=\"%d\" data-bottom=\"%d\">\n",
                   WIDTH, HEIGHT, LEFT, WIDTH - RIGHT, x.min, x.max, TOP, HEIGHT - BOTTOM);
    draw_ticks(out, &x, &y);
    for (int64_t i = 0; i < plot->num_series; i++) {
        if (plot->series[i].kind == RK_PLOT_AREA)
            draw_area(out, &plot->series[i], below, &x, &y);
        else
            draw_line(out, &plot->series[i], &x, &y);
    }
    rk_str_append(out, "</svg>\n");
    rk_free(below);
}
