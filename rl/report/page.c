/* The page: header, current figures, charts, samples, settings. All text of users and models is escaped;
 * the page loads no other resources. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_time.h"
#include "rl/rk_job.h"
#include "rl/report/report_internal.h"
#include "rl/rk_run.h"
#include "generated/rk_report_assets.h"

#define LAST_STEPS  10
#define FIRST_STEPS 3
#define TITLE_BYTES 160 /* of a sample's prompt in its head line */

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

static void append_text(struct rk_str *out, const char *text)
{
    rk_html_append_escaped(out, text, strlen(text));
}

static const char *setting(const struct rk_report *report, const char *path)
{
    return rk_json_as_string(rk_json_find_path(rk_config_tree(report->job), path), "");
}

static void append_head(struct rk_str *out, const struct rk_report *report)
{
    rk_str_append(out, "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
                       "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n"
                       "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; "
                       "style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n<title>");
    append_text(out, setting(report, "trainer.experiment_name"));
    rk_str_append(out, "</title>\n<style>\n");
    rk_str_append(out, rk_report_css);
    rk_str_append(out, "</style>\n</head>\n");
}

static void append_header(struct rk_str *out, const struct rk_report *report)
{
    char started[40], updated[40];

    rk_time_format_utc(report->started_unix_ns, started, sizeof(started));
    rk_time_format_utc(rk_time_unix_ns(), updated, sizeof(updated));
    rk_str_append(out, "<header>\n<h1>");
    append_text(out, setting(report, "trainer.project_name"));
    rk_str_append(out, " / ");
    append_text(out, setting(report, "trainer.experiment_name"));
    rk_str_appendf(out, "</h1>\n<span class=\"badge %s\">%s</span>\n", report->outcome, report->outcome);
    rk_str_appendf(out,
                   "<span class=\"sub\">%d %s, started %.10s %.5s UTC, updated %.10s %.8s UTC</span>\n"
                   "</header>\n",
                   report->world_size, report->world_size == 1 ? "daemon" : "daemons", started, started + 11,
                   updated, updated + 11);
}

/* --- what a reader of the curves should know first --- */

static bool is_always(const struct rk_report *report, const char *metric, double value)
{
    const struct rk_report_series *series = rk_report_find(report, metric);

    for (int64_t i = 0; series && i < series->count; i++) {
        if (series->y[i] != value)
            return false;
    }
    return series && series->count > 0;
}

static void append_notices(struct rk_str *out, const struct rk_report *report)
{
    static const struct {
        const char *metric;
        double value;
        const char *text;
    } rows[] = {
        {"response_length/clip_ratio", 1.0,
         "Every response was cut off at data.max_response_length tokens, so none could end by itself: "
         "the length may be too small, or the model does not end its responses."},
        {"actor/grad_norm", 0.0,
         "Every gradient is 0, so nothing is learned. With a group estimator this happens when all responses "
         "to a prompt have the same score: the task is too hard or too easy for the model, or the reward "
         "does not find the answer in the response."},
        {"train/grad_norm", 0.0, "Every gradient is 0, so nothing is learned."},
    };

    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        if (is_always(report, rows[i].metric, rows[i].value))
            rk_str_appendf(out, "<p class=\"notice\">%s</p>\n", rows[i].text);
    }
}

/* --- current figures --- */

static void begin_tile(struct rk_str *out, const char *title)
{
    rk_str_appendf(out, "<div><dt>%s</dt><dd>", title);
}

static void end_tile(struct rk_str *out, const char *note)
{
    rk_str_append(out, "<small>");
    append_text(out, note);
    rk_str_append(out, "</small></dd></div>\n");
}

static void format_duration(char *out, size_t bytes, double seconds)
{
    int64_t total = llround(seconds);

    if (total >= 86400)
        snprintf(out, bytes, "%" PRId64 "d %" PRId64 "h", total / 86400, total / 3600 % 24);
    else if (total >= 3600)
        snprintf(out, bytes, "%" PRId64 "h %02" PRId64 "min", total / 3600, total / 60 % 60);
    else if (total >= 60)
        snprintf(out, bytes, "%" PRId64 "min %02" PRId64 "s", total / 60, total % 60);
    else
        snprintf(out, bytes, "%.3gs", seconds);
}

static void append_progress_tile(struct rk_str *out, const struct rk_report *report)
{
    begin_tile(out, "Step");
    rk_str_appendf(out, "%" PRId64 " / %" PRId64, report->step, report->total_steps);
    rk_str_appendf(out, "<progress max=\"%" PRId64 "\" value=\"%" PRId64 "\"></progress></dd></div>\n",
                   RK_MAX(report->total_steps, 1), report->step);
}

static void append_curve_tile(struct rk_str *out, const struct rk_report *report,
                              const struct rk_run_curve *curve)
{
    double last = rk_report_mean_last(report, curve->metric, LAST_STEPS);
    char text[64];

    if (isnan(last))
        return;
    snprintf(text, sizeof(text), "%c%s, last %d steps", curve->name[0] - 'a' + 'A', curve->name + 1,
             LAST_STEPS);
    begin_tile(out, text);
    rk_str_appendf(out, "%.4g", last);
    snprintf(text, sizeof(text), "%.4g in the first %d",
             rk_report_mean_first(report, curve->metric, FIRST_STEPS), FIRST_STEPS);
    end_tile(out, text);
}

static void append_curve_tiles(struct rk_str *out, const struct rk_report *report)
{
    int64_t count;
    const struct rk_run_curve *curves = rk_run_curves(&count);

    for (int64_t i = 0; i < count; i++)
        append_curve_tile(out, report, &curves[i]);
}

static void append_validation_tile(struct rk_str *out, const struct rk_report *report)
{
    const struct rk_report_series *series = NULL;
    char *note;

    for (int64_t i = 0; i < report->series.count && !series; i++) {
        const char *name = report->series.items[i].name;

        if (rk_str_has_prefix(name, "val-core/") && strstr(name, "/mean@"))
            series = &report->series.items[i];
    }
    if (!series)
        return;
    begin_tile(out, "Validation");
    rk_str_appendf(out, "%.4g", series->y[series->count - 1]);
    note = rk_format("step %.0f, %s", series->x[series->count - 1], strchr(series->name, '/') + 1);
    end_tile(out, note);
    rk_free(note);
}

static void append_time_tile(struct rk_str *out, const struct rk_report *report)
{
    double last = rk_report_mean_last(report, "timing_s/step", LAST_STEPS);
    char text[32], note[64];

    if (isnan(last))
        return;
    begin_tile(out, "Time a step");
    format_duration(text, sizeof(text), last);
    rk_str_append(out, text);
    format_duration(text, sizeof(text), last * (double)(report->total_steps - report->step));
    snprintf(note, sizeof(note), "%s to go", text);
    end_tile(out, strcmp(report->outcome, "running") == 0 ? note : "mean of the last 10 steps");
}

static void append_speed_tile(struct rk_str *out, const struct rk_report *report)
{
    double last = rk_report_mean_last(report, "perf/throughput", LAST_STEPS);
    char text[32], note[64];

    if (isnan(last))
        return;
    begin_tile(out, "Tokens per second");
    rk_format_short(text, sizeof(text), last * report->world_size);
    rk_str_append(out, text);
    rk_format_short(text, sizeof(text), last);
    snprintf(note, sizeof(note), "%s a daemon", text);
    end_tile(out, note);
}

static void append_memory_tile(struct rk_str *out, const struct rk_report *report)
{
    double last = rk_report_mean_last(report, "perf/max_memory_allocated_gb", 1);

    if (isnan(last))
        return;
    begin_tile(out, "Memory");
    if (last < 1.0)
        rk_str_appendf(out, "%.0f MiB", 1024.0 * last);
    else
        rk_str_appendf(out, "%.1f GiB", last);
    end_tile(out, "largest of a device");
}

/* --- samples --- */

static void append_field(struct rk_str *out, const char *title, const char *text)
{
    rk_str_appendf(out, "<dt>%s</dt><dd><pre dir=\"auto\">", title);
    append_text(out, text);
    rk_str_append(out, "</pre></dd>\n");
}

static void append_sample(struct rk_str *out, const struct rk_report_sample *sample, bool is_open)
{
    size_t bytes = RK_MIN(strlen(sample->output), TITLE_BYTES);

    while (bytes > 0 && ((unsigned char)sample->output[bytes] & 0xc0) == 0x80)
        bytes--;
    rk_str_appendf(out, "<details class=\"sample\"%s><summary><span class=\"score\">%.4g</span><span>",
                   is_open ? " open" : "", sample->score);
    rk_html_append_escaped(out, sample->output, bytes);
    if (bytes == 0)
        rk_str_append(out, "<span class=\"empty\">empty</span>");
    rk_str_append(out, "</span></summary>\n<dl>\n");
    append_field(out, "Prompt", sample->input);
    append_field(out, "Response", sample->output);
    if (*sample->gts)
        append_field(out, "Ground truth", sample->gts);
    rk_str_append(out, "</dl>\n</details>\n");
}

static void append_samples(struct rk_str *out, const char *title, const struct rk_report_samples *samples,
                           bool is_open)
{
    if (samples->items.count == 0)
        return;
    rk_str_appendf(out, "<h3>%s, step %" PRId64 "</h3>\n", title, samples->step);
    for (int64_t i = 0; i < samples->items.count; i++)
        append_sample(out, &samples->items.items[i], is_open && i == 0);
}

/* --- settings --- */

static const char *const shown_settings[] = {
    RK_JOB_MODEL "path",
    RK_JOB_MODEL "hf_config_path",
    "data.train_files",
    "data.val_files",
    "data.train_batch_size",
    "data.max_prompt_length",
    "data.max_response_length",
    RK_JOB_ROLLOUT "n",
    RK_JOB_ROLLOUT "temperature",
    RK_JOB_ROLLOUT "val_kwargs",
    "algorithm.type",
    "algorithm.adv_estimator",
    "algorithm.use_kl_in_reward",
    RK_JOB_ACTOR "use_kl_loss",
    RK_JOB_ACTOR "kl_loss_coef",
    RK_JOB_ACTOR "policy_loss.loss_mode",
    RK_JOB_ACTOR "loss_agg_mode",
    RK_JOB_ACTOR "clip_ratio_low",
    RK_JOB_ACTOR "clip_ratio_high",
    RK_JOB_ACTOR "entropy_coeff",
    RK_JOB_ACTOR "ppo_mini_batch_size",
    RK_JOB_ACTOR "ppo_epochs",
    RK_JOB_ACTOR "optim.lr",
    RK_JOB_ACTOR "optim.weight_decay",
    RK_JOB_ACTOR "megatron.tensor_model_parallel_size",
    RK_JOB_ACTOR "megatron.dtype",
    "reward.name",
    "device",
    "numerics",
};

static void append_settings(struct rk_str *out, const struct rk_report *report)
{
    rk_str_append(out, "<section>\n<h2>Settings</h2>\n<div class=\"settings\"><table>\n");
    for (size_t i = 0; i < RK_ARRAY_LEN(shown_settings); i++) {
        const struct rk_json *value = rk_json_find_path(rk_config_tree(report->job), shown_settings[i]);
        char *text;

        if (rk_json_is_null(value))
            continue;
        text = rk_json_type(value) == RK_JSON_STRING ? rk_strdup(rk_json_as_string(value, ""))
                                                     : rk_json_dump(value, 0, false);
        rk_str_appendf(out, "<tr><td>%s</td><td>", shown_settings[i]);
        append_text(out, text);
        rk_str_append(out, "</td></tr>\n");
        rk_free(text);
    }
    rk_str_append(out, "</table></div>\n</section>\n");
}

static void append_row_notes(struct rk_str *out, const struct rk_report *report)
{
    const struct rk_json *notes = rk_json_find(report->rows, "notes");

    if (rk_json_count(notes) == 0)
        return;
    rk_str_append(out, "<section>\n<h2>Data</h2>\n<ul>\n");
    for (int64_t i = 0; i < rk_json_count(notes); i++) {
        rk_str_append(out, "<li>");
        append_text(out, rk_json_as_string(rk_json_find(rk_json_at(notes, i), "text"), ""));
        rk_str_append(out, "</li>\n");
    }
    rk_str_append(out, "</ul>\n</section>\n");
}

void rk_report_append_page(struct rk_str *out, const struct rk_report *report)
{
    append_head(out, report);
    rk_str_append(out, "<body>\n<main>\n");
    append_header(out, report);
    append_notices(out, report);
    rk_str_append(out, "<dl class=\"tiles\">\n");
    append_progress_tile(out, report);
    append_curve_tiles(out, report);
    append_validation_tile(out, report);
    append_time_tile(out, report);
    append_speed_tile(out, report);
    append_memory_tile(out, report);
    rk_str_append(out, "</dl>\n");
    rk_str_append(out, "<noscript><p class=\"notice\">The charts need JavaScript.</p></noscript>\n"
                       "<div id=\"charts\"></div>\n<script type=\"application/json\" id=\"metrics\">");
    rk_report_append_metrics(out, report);
    rk_str_append(out, "</script>\n");
    if (report->val.items.count + report->train.items.count > 0) {
        rk_str_append(out, "<section>\n<h2>Samples</h2>\n");
        append_samples(out, "Validation", &report->val, true);
        append_samples(out, "Training", &report->train, report->val.items.count == 0);
        rk_str_append(out, "</section>\n");
    }
    append_row_notes(out, report);
    append_settings(out, report);
    rk_str_append(out, "<footer>All numbers of every step are in metrics.jsonl, all settings in config.json, "
                       "in the directory of this file. Time is shown in seconds, memory in GiB.</footer>\n"
                       "</main>\n<script>\n");
    rk_str_append(out, rk_report_js);
    rk_str_append(out, "</script>\n</body>\n</html>\n");
}
