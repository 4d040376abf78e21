/* The logger of the report, which is always enabled: keeps the data of the page and writes it. */
#include <math.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_file.h"
#include "base/format/rk_safetensors.h"
#include "base/rk_time.h"
#include "base/rk_small_file.h"
#include "rl/rk_jsonl.h"
#include "rl/rk_loggers.h"
#include "rl/report/report_internal.h"

#define WRITE_INTERVAL_NS 3000000000
#define WRITE_SHARE       50 /* writing takes at most 1/50 of the time */
#define SERIES_MAX        128
#define SAMPLES_MAX       64
#define TEXT_BYTES_MAX    8192 /* maximum length of a sample's prompt, response or ground truth */
#define PLOTTED_VALUE_MAX 1e300

const struct rk_report_series *rk_report_find(const struct rk_report *report, const char *name)
{
    for (int64_t i = 0; i < report->series.count; i++) {
        if (strcmp(report->series.items[i].name, name) == 0)
            return &report->series.items[i];
    }
    return NULL;
}

static double mean_of(const struct rk_report_series *series, int64_t first, int64_t count)
{
    double sum = 0.0;

    for (int64_t i = first; i < first + count; i++)
        sum += series->y[i];
    return sum / (double)count; /* NAN without values */
}

double rk_report_mean_last(const struct rk_report *report, const char *name, int64_t count)
{
    const struct rk_report_series *series = rk_report_find(report, name);

    count = series ? RK_MIN(count, series->count) : 0;
    return count > 0 ? mean_of(series, series->count - count, count) : (double)NAN;
}

double rk_report_mean_first(const struct rk_report *report, const char *name, int64_t count)
{
    const struct rk_report_series *series = rk_report_find(report, name);

    count = series ? RK_MIN(count, series->count) : 0;
    return count > 0 ? mean_of(series, 0, count) : (double)NAN;
}

/* --- collecting --- */

static struct rk_report_series *get_series(struct rk_report *report, const char *name)
{
    struct rk_report_series *found = (struct rk_report_series *)rk_report_find(report, name);

    if (found || report->series.count == SERIES_MAX)
        return found;
    rk_array_append(&report->series, (struct rk_report_series){.name = rk_strdup(name)});
    return &report->series.items[report->series.count - 1];
}

static void remember(struct rk_report *report, const char *name, int64_t step, double value)
{
    struct rk_report_series *series = get_series(report, name);

    if (!series)
        return;
    if (series->count == series->capacity) {
        series->capacity = series->capacity ? 2 * series->capacity : 64;
        series->x = rk_realloc(series->x, (size_t)series->capacity * sizeof(*series->x));
        series->y = rk_realloc(series->y, (size_t)series->capacity * sizeof(*series->y));
    }
    series->x[series->count] = (double)step;
    series->y[series->count++] = value;
}

static void remember_all(struct rk_report *report, int64_t step, const struct rk_json *metrics)
{
    for (void *it = rk_json_iter(metrics); it; it = rk_json_iter_next(metrics, it)) {
        double value = rk_json_as_real(rk_json_iter_value(it), NAN);

        if (fabs(value) <= PLOTTED_VALUE_MAX && rk_report_is_plotted(report, rk_json_iter_key(it)))
            remember(report, rk_json_iter_key(it), step, value);
    }
    report->first_step = RK_MIN(report->first_step, step);
    report->step = step;
}

/* The text, or its beginning up to a character boundary with a note about the omitted rest. */
static char *shorten(const char *text)
{
    size_t bytes = strlen(text), kept = TEXT_BYTES_MAX;

    if (bytes <= TEXT_BYTES_MAX)
        return rk_strdup(text);
    while (kept > 0 && ((unsigned char)text[kept] & 0xc0) == 0x80)
        kept--;
    return rk_format("%.*s\n[%zu more bytes]", (int)kept, text, bytes - kept);
}

static void clear_samples(struct rk_report_samples *samples)
{
    for (int64_t i = 0; i < samples->items.count; i++) {
        rk_free(samples->items.items[i].input);
        rk_free(samples->items.items[i].output);
        rk_free(samples->items.items[i].gts);
    }
    rk_array_fini(&samples->items);
}

/* --- the logger --- */

static struct rk_status *write_page(struct rk_report *report)
{
    int64_t began_ns = rk_time_now_ns(), spent_ns;
    struct rk_str page = {0};
    struct rk_status *st;

    rk_report_append_page(&page, report);
    st = rk_write_file_atomic(report->path, page.text, page.bytes);
    rk_str_fini(&page);
    spent_ns = rk_time_now_ns() - began_ns;
    report->next_write_ns = rk_time_now_ns() + RK_MAX(WRITE_INTERVAL_NS, WRITE_SHARE * spent_ns);
    return st;
}

static struct rk_status *open_report(void **state, const struct rk_logger_config *config)
{
    struct rk_report *report = rk_calloc(1, sizeof(*report));
    struct rk_status *st = rk_report_load_charts(&report->charts);

    if (st) {
        rk_free(report);
        return st;
    }
    report->job = config->job;
    report->rows = config->rows;
    report->path = rk_path_join(config->run_dir, "report.html");
    report->history = rk_path_join(config->run_dir, "metrics.jsonl");
    report->outcome = "running";
    report->world_size = config->world_size;
    report->started_unix_ns = rk_time_unix_ns();
    report->first_step = INT64_MAX;
    *state = report;
    return NULL;
}

struct history {
    struct rk_report *report;
    int64_t first_step;
};

static bool on_line(void *user, const struct rk_jsonl_line *line)
{
    struct history *history = user;
    int64_t step = rk_json_as_int(rk_json_find(line->json, "training/global_step"), INT64_MAX);

    if (step < history->first_step)
        remember_all(history->report, step, line->json);
    return step < history->first_step;
}

static struct rk_status *begin(void *state, int64_t first_step, int64_t total_steps)
{
    struct history history = {state, first_step};

    history.report->total_steps = total_steps;
    return first_step > 1 ? rk_jsonl_read(history.report->history, on_line, &history) : NULL;
}

static struct rk_status *log_step(void *state, int64_t step, const struct rk_json *metrics)
{
    struct rk_report *report = state;

    remember_all(report, step, metrics);
    return rk_time_now_ns() >= report->next_write_ns ? write_page(report) : NULL;
}

static struct rk_status *log_samples(void *state, int64_t step, const struct rk_samples *samples)
{
    struct rk_report *report = state;
    struct rk_report_samples *kept =
        strcmp(samples->tag, RK_SAMPLES_VAL) == 0 ? &report->val : &report->train;

    clear_samples(kept);
    kept->step = step;
    for (int64_t i = 0; i < RK_MIN(samples->count, SAMPLES_MAX); i++) {
        const struct rk_sample *sample = &samples->items[i];
        struct rk_report_sample copy = {shorten(sample->input), shorten(sample->output), shorten(sample->gts),
                                        sample->score};

        rk_array_append(&kept->items, copy);
    }
    return NULL;
}

static struct rk_status *finish(void *state, const char *outcome)
{
    struct rk_report *report = state;

    report->outcome = outcome;
    return report->series.count > 0 ? write_page(report) : NULL; /* else the run had no step */
}

static void close_report(void *state)
{
    struct rk_report *report = state;

    for (int64_t i = 0; i < report->series.count; i++) {
        rk_free(report->series.items[i].name);
        rk_free(report->series.items[i].x);
        rk_free(report->series.items[i].y);
    }
    rk_array_fini(&report->series);
    clear_samples(&report->val);
    clear_samples(&report->train);
    rk_json_free(report->charts);
    rk_free(report->history);
    rk_free(report->path);
    rk_free(report);
}

const struct rk_logger_ops rk_logger_report = {
    .name = "report.html",
    .open = open_report,
    .begin = begin,
    .log = log_step,
    .log_samples = log_samples,
    .finish = finish,
    .close = close_report,
};
