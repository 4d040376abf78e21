/* Charts: the metrics that are plotted, and how. Long series are drawn with their extremes, at most
 * POINTS_MAX points each, so that the page size does not grow with the run. */
#include "rl/report/report_internal.h"

#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"

#define POINTS_MAX     240 /* about one point per pixel of a plot on a small screen */
#define AVERAGE_WINDOW 10
#define SERIES_MAX     16
#define LINES_MAX      3
#define PHASE_PREFIX   "timing_s/"
#define VAL_PREFIX     "val-core/"
#define EXTRA_PREFIX   "reward_extra/" /* numbers that a reward returns beside the score */
#define EXTRA_SUFFIX   "/mean"

struct line {
    const char *metric, *label;
};

struct chart {
    const char *section, *title, *note;
    struct line lines[LINES_MAX]; /* ends with a row without metric */
    bool is_from_zero;
    bool has_average;    /* the first line is drawn faint, with its moving average */
    bool has_validation; /* means of validations are added */
    bool is_validation;  /* every core value of validations */
    bool is_extras;      /* means of the reward's numbers, in place of lines */
    bool is_phases;      /* timing_s, stacked, in place of lines */
    bool is_of_all;      /* values of one daemon, shown for all */
};

static const struct chart charts[] = {
    {.section = "Learning",
     .title = "Reward",
     .note = "mean score of a step, with the average of 10 steps",
     .lines = {{"critic/score/mean", "training"}},
     .has_average = true,
     .has_validation = true},
    {.section = "Learning", .title = "Numbers of the reward", .note = "means of a step", .is_extras = true},
    {.section = "Learning",
     .title = "Loss",
     .note = "loss of the answers in the data",
     .lines = {{"train/loss", "training"}, {"val/loss", "held-out"}},
     .is_from_zero = true},
    {.section = "Learning",
     .title = "Reward margin",
     .note = "of chosen over rejected answers, against the reference",
     .lines = {{"rewards/margins", "training"}, {"val/rewards/margins", "held-out"}}},
    {.section = "Learning",
     .title = "Preferences",
     .note = "share of pairs whose chosen answer has the larger reward",
     .lines = {{"rewards/accuracies", "training"}, {"val/rewards/accuracies", "held-out"}},
     .is_from_zero = true},
    {.section = "Learning",
     .title = "Validation",
     .note = "scores on held-out prompts",
     .is_validation = true},
    {.section = "Learning",
     .title = "KL divergence",
     .note = "KL of the policy to the rollout's policy and to the reference",
     .lines = {{"actor/ppo_kl", "to the rollout's policy"},
               {"actor/kl_loss", "to the reference, in the loss"},
               {"actor/reward_kl_penalty", "to the reference, in the reward"}}},
    {.section = "Learning",
     .title = "Entropy",
     .note = "entropy of the next token, in nats",
     .lines = {{"actor/entropy", "entropy"}}},
    {.section = "Learning",
     .title = "Gradient norm",
     .note = "before clipping",
     .lines = {{"actor/grad_norm", "gradient norm"}, {"train/grad_norm", "gradient norm"}},
     .is_from_zero = true},
    {.section = "Learning",
     .title = "Clipped ratios",
     .note = "share of tokens whose probability ratio PPO clips",
     .lines = {{"actor/pg_clipfrac", "clipped"}},
     .is_from_zero = true},
    {.section = "Generation",
     .title = "Response length",
     .note = "tokens",
     .lines = {{"response_length/mean", "mean"},
               {"response_length/max", "longest"},
               {"response_length/min", "shortest"}},
     .is_from_zero = true},
    {.section = "Generation",
     .title = "Truncated responses",
     .note = "share of responses that reach max_response_length",
     .lines = {{"response_length/clip_ratio", "truncated"}},
     .is_from_zero = true},
    {.section = "Generation",
     .title = "Rollout against trainer",
     .note = "difference of the probabilities of sampled tokens",
     .lines = {{"training/rollout_probs_diff_mean", "mean"}, {"training/rollout_probs_diff_max", "largest"}},
     .is_from_zero = true},
    {.section = "Generation",
     .title = "Experts of rollout and trainer",
     .note = "shares whose experts differ between them",
     .lines = {{"training/rollout_routes_diff_tokens", "tokens"},
               {"training/rollout_routes_diff_layers", "tokens x layers"}},
     .is_from_zero = true},
    {.section = "System", .title = "Time by phase", .note = "seconds a step", .is_phases = true},
    {.section = "System",
     .title = "Throughput",
     .note = "tokens per second, all daemons",
     .lines = {{"perf/throughput", "tokens/s"}},
     .is_from_zero = true,
     .is_of_all = true},
    {.section = "System",
     .title = "Model FLOPs utilisation",
     .note = "share of the devices' peak",
     .lines = {{"perf/mfu/actor", "update"},
               {"perf/mfu/actor_infer", "log-probs"},
               {"train/mfu", "training"}},
     .is_from_zero = true},
    {.section = "System",
     .title = "Time of a sample",
     .note = "seconds until its last token",
     .lines = {{"timing_s/agent_loop/generate_sequences/max", "slowest"},
               {"timing_s/agent_loop/generate_sequences/mean", "mean"},
               {"timing_s/agent_loop/generate_sequences/min", "fastest"}},
     .is_from_zero = true},
    {.section = "System",
     .title = "Memory",
     .note = "GiB, the fullest device",
     .lines = {{"perf/max_memory_allocated_gb", "allocated"}, {"perf/max_memory_reserved_gb", "reserved"}},
     .is_from_zero = true},
};

/* Phases that run in some steps only are drawn above the others. */
static bool is_occasional(const char *metric)
{
    return strcmp(metric, PHASE_PREFIX "testing") == 0 || strcmp(metric, PHASE_PREFIX "save_checkpoint") == 0;
}

static bool is_phase(const char *metric)
{
    return rk_str_has_prefix(metric, PHASE_PREFIX) && strcmp(metric, PHASE_PREFIX "step") != 0 &&
           !strchr(metric + strlen(PHASE_PREFIX), '/'); /* timing_s/agent_loop/... are parts of gen */
}

static bool is_validation_mean(const char *metric)
{
    return rk_str_has_prefix(metric, VAL_PREFIX) && strstr(metric, "/mean@");
}

static bool is_extra(const char *metric)
{
    return rk_str_has_prefix(metric, EXTRA_PREFIX) && rk_str_has_suffix(metric, EXTRA_SUFFIX);
}

bool rk_report_is_plotted(const char *metric)
{
    if (rk_str_has_prefix(metric, PHASE_PREFIX) || rk_str_has_prefix(metric, VAL_PREFIX) || is_extra(metric))
        return true;
    for (size_t i = 0; i < RK_ARRAY_LEN(charts); i++) {
        for (int j = 0; j < LINES_MAX && charts[i].lines[j].metric; j++) {
            if (strcmp(charts[i].lines[j].metric, metric) == 0)
                return true;
        }
    }
    return false;
}

const struct rk_report_series *rk_report_validation(const struct rk_report *report)
{
    for (int64_t i = 0; i < report->series.count; i++) {
        if (is_validation_mean(report->series.items[i].name))
            return &report->series.items[i];
    }
    return NULL;
}

/* --- one chart --- */

struct drawing {
    struct rk_plot_series items[SERIES_MAX];
    int64_t count;
    double *owned[2 * SERIES_MAX];
    int64_t num_owned;
};

static double *own(struct drawing *drawing, int64_t count)
{
    double *values = rk_calloc((size_t)count + 1, sizeof(*values));

    drawing->owned[drawing->num_owned++] = values;
    return values;
}

/* The smallest and the largest value of each part of the series, in order of their steps. */
static void take_extremes(struct rk_plot_series *out, const double *x, const double *y, int64_t count,
                          double *points_x, double *points_y)
{
    int64_t num_parts = POINTS_MAX / 2;

    out->x = points_x;
    out->y = points_y;
    out->count = 0;
    for (int64_t part = 0; part < num_parts; part++) {
        int64_t begin = part * count / num_parts, end = (part + 1) * count / num_parts;
        int64_t low = begin, high = begin;

        for (int64_t i = begin; i < end; i++) {
            low = y[i] < y[low] ? i : low;
            high = y[i] > y[high] ? i : high;
        }
        points_x[out->count] = x[RK_MIN(low, high)];
        points_y[out->count++] = y[RK_MIN(low, high)];
        if (low == high)
            continue;
        points_x[out->count] = x[RK_MAX(low, high)];
        points_y[out->count++] = y[RK_MAX(low, high)];
    }
}

static struct rk_plot_series *add(struct drawing *drawing, const char *label, rk_plot_kind_t kind, int color)
{
    struct rk_plot_series *series = &drawing->items[drawing->count++];

    *series = (struct rk_plot_series){.label = label, .kind = kind, .color = color % RK_PLOT_COLORS};
    series->is_second = color >= RK_PLOT_COLORS;
    return series;
}

static bool has_room(const struct drawing *drawing)
{
    return drawing->count < SERIES_MAX;
}

/* The mean of each of `count` parts of the series, at the part's last step. */
static void add_means(struct drawing *drawing, const char *label, int color,
                      const struct rk_report_series *values, int64_t count)
{
    struct rk_plot_series *series = add(drawing, label, RK_PLOT_LINE, color);
    double *x = own(drawing, count), *y = own(drawing, count);

    series->count = count;
    series->x = x;
    series->y = y;
    for (int64_t part = 0; part < count; part++) {
        int64_t begin = part * values->count / count, end = (part + 1) * values->count / count;

        x[part] = values->x[end - 1];
        for (int64_t i = begin; i < end; i++)
            y[part] += values->y[i] / (double)(end - begin);
    }
}

static void add_points(struct drawing *drawing, const char *label, rk_plot_kind_t kind, int color,
                       const struct rk_report_series *values)
{
    struct rk_plot_series *series = add(drawing, label, kind, color);

    series->count = values->count;
    series->x = values->x;
    series->y = values->y;
    if (values->count > POINTS_MAX)
        take_extremes(series, values->x, values->y, values->count, own(drawing, POINTS_MAX),
                      own(drawing, POINTS_MAX));
}

/* All values, or, of a long series, the means of its parts drawn over their extremes. */
static void add_line(struct drawing *drawing, const char *label, int color,
                     const struct rk_report_series *values)
{
    if (values->count <= POINTS_MAX) {
        add_points(drawing, label, RK_PLOT_LINE, color, values);
        return;
    }
    add_points(drawing, label, RK_PLOT_FAINT, color, values);
    add_means(drawing, label, color, values, POINTS_MAX / 2);
}

/* The mean of the last AVERAGE_WINDOW values at each of at most POINTS_MAX steps, fewer at the beginning. */
static void add_average(struct drawing *drawing, const char *label, int color,
                        const struct rk_report_series *values)
{
    struct rk_plot_series *series = add(drawing, label, RK_PLOT_LINE, color);
    int64_t count = RK_MIN(values->count, POINTS_MAX);
    double *x = own(drawing, count), *y = own(drawing, count);

    series->count = count;
    series->x = x;
    series->y = y;
    for (int64_t i = 0; i < count; i++) {
        int64_t last = (i + 1) * values->count / count - 1, first = RK_MAX(last - AVERAGE_WINDOW + 1, 0);

        x[i] = values->x[last];
        for (int64_t j = first; j <= last; j++)
            y[i] += values->y[j] / (double)(last - first + 1);
    }
}

static void add_lines(struct drawing *drawing, const struct rk_report *report, const struct chart *chart)
{
    for (int i = 0; i < LINES_MAX && chart->lines[i].metric; i++) {
        const struct rk_report_series *values = rk_report_find(report, chart->lines[i].metric);

        if (values && chart->has_average) {
            add_points(drawing, chart->lines[i].label, RK_PLOT_FAINT, i, values);
            add_average(drawing, chart->lines[i].label, i, values);
        } else if (values) {
            add_line(drawing, chart->lines[i].label, i, values);
        }
    }
}

static void scale_up(struct drawing *drawing, double factor)
{
    for (int64_t i = 0; i < drawing->count; i++) {
        struct rk_plot_series *series = &drawing->items[i];
        double *y = own(drawing, series->count);

        for (int64_t j = 0; j < series->count; j++)
            y[j] = factor * series->y[j];
        series->y = y;
    }
}

static void add_validation(struct drawing *drawing, const struct rk_report *report, bool all)
{
    for (int64_t i = 0; i < report->series.count && has_room(drawing); i++) {
        const struct rk_report_series *values = &report->series.items[i];
        bool is_wanted = all ? rk_str_has_prefix(values->name, VAL_PREFIX) && !strstr(values->name, "/std")
                             : is_validation_mean(values->name);

        if (is_wanted)
            add_points(drawing, values->name + strlen(VAL_PREFIX), RK_PLOT_POINTS, (int)drawing->count,
                       values);
    }
}

static void add_extras(struct drawing *drawing, const struct rk_report *report)
{
    int color = 0;

    /* add_line adds up to two series */
    for (int64_t i = 0; i < report->series.count && drawing->count + 1 < SERIES_MAX; i++) {
        const struct rk_report_series *values = &report->series.items[i];

        if (is_extra(values->name))
            add_line(drawing, values->name + strlen(EXTRA_PREFIX), color++, values);
    }
}

/* The value at `step`; 0 when the phase did not run. Steps are asked for in ascending order. */
static double value_at(const struct rk_report_series *series, int64_t *cursor, double step)
{
    while (*cursor < series->count && series->x[*cursor] < step)
        (*cursor)++;
    return *cursor < series->count && series->x[*cursor] == step ? series->y[*cursor] : 0.0;
}

/* Means of the phase over each of `count` parts of the steps. */
static void add_phase(struct drawing *drawing, const struct rk_report_series *steps,
                      const struct rk_report_series *phase, int64_t count)
{
    struct rk_plot_series *series =
        add(drawing, phase->name + strlen(PHASE_PREFIX), RK_PLOT_AREA, (int)drawing->count);
    double *x = own(drawing, count), *y = own(drawing, count);
    int64_t cursor = 0;

    series->count = count;
    series->x = x;
    series->y = y;
    for (int64_t part = 0; part < count; part++) {
        int64_t begin = part * steps->count / count, end = (part + 1) * steps->count / count;

        x[part] = steps->x[end - 1];
        for (int64_t i = begin; i < end; i++)
            y[part] += value_at(phase, &cursor, steps->x[i]) / (double)(end - begin);
    }
}

static void add_phases(struct drawing *drawing, const struct rk_report *report)
{
    const struct rk_report_series *steps = rk_report_find(report, PHASE_PREFIX "step");

    for (int64_t i = 0; steps && i < 2 * report->series.count && has_room(drawing); i++) {
        const struct rk_report_series *phase = &report->series.items[i % report->series.count];

        if (is_phase(phase->name) && is_occasional(phase->name) == (i >= report->series.count))
            add_phase(drawing, steps, phase, RK_MIN(steps->count, POINTS_MAX / 2));
    }
}

/* --- the page's part --- */

static void append_legend(struct rk_str *out, const struct drawing *drawing)
{
    rk_str_append(out, "<ul class=\"legend\">");
    for (int64_t i = 0; i < drawing->count; i++) {
        const struct rk_plot_series *series = &drawing->items[i];

        if (series->kind == RK_PLOT_FAINT)
            continue;
        rk_str_appendf(out, "<li><span class=\"swatch c%d%s\"></span>", series->color,
                       series->is_second ? " second" : "");
        rk_html_append_escaped(out, series->label, strlen(series->label));
        rk_str_append(out, "</li>");
    }
    rk_str_append(out, "</ul>\n");
}

static void append_chart(struct rk_str *out, const struct rk_report *report, const struct chart *chart,
                         const struct drawing *drawing)
{
    struct rk_plot plot = {.title = chart->title,
                           .x_min = (double)report->first_step,
                           .x_max = (double)report->step,
                           .is_from_zero = chart->is_from_zero,
                           .num_series = drawing->count,
                           .series = drawing->items};

    rk_str_appendf(out, "<figure>\n<figcaption><b>%s</b> <span>%s</span></figcaption>\n", chart->title,
                   chart->note);
    rk_plot_svg(out, &plot);
    append_legend(out, drawing);
    rk_str_append(out, "</figure>\n");
}

static void collect(struct drawing *drawing, const struct rk_report *report, const struct chart *chart)
{
    add_lines(drawing, report, chart);
    if (chart->is_of_all)
        scale_up(drawing, report->world_size);
    if (chart->has_validation && rk_report_find(report, chart->lines[0].metric))
        add_validation(drawing, report, false);
    if (chart->is_validation)
        add_validation(drawing, report, true);
    if (chart->is_extras)
        add_extras(drawing, report);
    if (chart->is_phases)
        add_phases(drawing, report);
}

/* The hatching of areas whose colour is in use already. */
static const char hatch[] =
    "<svg width=\"0\" height=\"0\" aria-hidden=\"true\"><defs><pattern id=\"hatch\" "
    "width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
    "patternTransform=\"rotate(45)\"><path class=\"hatching\" d=\"M0 0V6\"/></pattern></defs></svg>\n";

void rk_report_append_charts(struct rk_str *out, const struct rk_report *report)
{
    const char *section = NULL;

    rk_str_append(out, hatch);

    for (size_t i = 0; i < RK_ARRAY_LEN(charts); i++) {
        struct drawing drawing = {0};

        collect(&drawing, report, &charts[i]);
        if (drawing.count > 0) {
            if (!section || strcmp(section, charts[i].section) != 0)
                rk_str_appendf(out, "%s<section>\n<h2>%s</h2>\n<div class=\"charts\">\n",
                               section ? "</div>\n</section>\n" : "", charts[i].section);
            section = charts[i].section;
            append_chart(out, report, &charts[i], &drawing);
        }
        for (int64_t j = 0; j < drawing.num_owned; j++)
            rk_free(drawing.owned[j]);
    }
    if (section)
        rk_str_append(out, "</div>\n</section>\n");
}
