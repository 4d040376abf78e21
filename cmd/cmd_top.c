/* rankctl top: one line per daemon, refreshed on a terminal. */
#include "cmd/cmd_internal.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include "base/rk_alloc.h"
#include "base/rk_time.h"
#include "cmd/screen_internal.h"

#define INTERVAL_MS     2000
#define INTERVAL_MIN_MS 200
#define GIB             (1024.0 * 1024.0 * 1024.0)

/* NAN when the daemon does not report it. */
static double find_metric(const struct rk_worker_status *status, const char *name)
{
    for (int64_t i = 0; i < status->num_metrics; i++) {
        if (strcmp(status->metrics[i].name, name) == 0)
            return status->metrics[i].value;
    }
    return NAN;
}

/* Times `factor`, rounded, followed by the unit. */
static void add_number(struct rk_table *table, double value, double factor, const char *unit)
{
    if (isfinite(value))
        rk_table_addf(table, "%.0f%s", value * factor, unit);
    else
        rk_table_add(table, NULL);
}

/* "generate 12/64"; only the phase without a total; "begins" before the first phase. */
static void add_progress(struct rk_table *table, const struct rk_worker_status *status)
{
    const struct rk_progress *progress = &status->progress;

    if (!*status->method)
        rk_table_add(table, NULL);
    else if (*progress->phase && progress->total > 0)
        rk_table_addf(table, "%s %" PRIu64 "/%" PRIu64, progress->phase, progress->done, progress->total);
    else if (*progress->phase)
        rk_table_add(table, progress->phase);
    else
        rk_table_add(table, "begins");
}

static void add_memory(struct rk_table *table, const struct rk_worker_status *status)
{
    double held = find_metric(status, "device_allocated"), total = find_metric(status, "device_total");

    if (!isfinite(held))
        rk_table_add(table, NULL);
    else if (total > 0)
        rk_table_addf(table, "%.1f/%.1f", held / GIB, total / GIB);
    else
        rk_table_addf(table, "%.1f", held / GIB);
}

static void add_row(struct rk_table *table, int32_t index, const struct rk_driver_worker *worker)
{
    const struct rk_worker_status *status = &worker->status;

    rk_table_addf(table, "%d", index);
    if (worker->error) {
        rk_table_add(table, rk_code_name(rk_status_code(worker->error)));
        for (int i = 2; i < table->num_columns; i++)
            rk_table_add(table, NULL);
        return;
    }
    rk_table_add(table, status->state);
    rk_table_add(table, status->method);
    if (*status->method)
        rk_table_addf(table, "%.1fs", (double)status->running_ms / 1e3);
    else
        rk_table_add(table, NULL);
    add_progress(table, status);
    add_number(table, find_metric(status, "tokens_per_second"), 1, "");
    add_memory(table, status);
    add_number(table, find_metric(status, "gpu_utilization"), 100, "%");
    add_number(table, find_metric(status, "gpu_temperature"), 1, "C");
    rk_table_add(table, status->collective_name);
}

static void print_table(const struct rk_driver_worker *workers, int32_t count, struct rk_str *out)
{
    static const char *const titles[] = {"WORKER", "STATE",      "METHOD", "FOR",  "PROGRESS",
                                         "TOK/S",  "MEMORY GiB", "GPU",    "TEMP", "COLLECTIVE"};
    struct rk_table table;

    rk_table_init(&table, RK_ARRAY_LEN(titles), titles);
    for (int32_t i = 0; i < count; i++)
        add_row(&table, i, &workers[i]);
    rk_table_format(&table, out);
}

static struct rk_json *number_or_null(double value)
{
    return isfinite(value) ? rk_json_new_real(value) : rk_json_new_null();
}

static void print_json(const struct rk_driver_worker *workers, int32_t count)
{
    static const char *const names[] = {"tokens_per_second", "device_allocated", "device_total",
                                        "gpu_utilization", "gpu_temperature"};
    struct rk_json *body = rk_json_new_object(), *list = rk_json_new_array();

    for (int32_t i = 0; i < count; i++) {
        struct rk_json *item = rk_cli_worker_json(i, &workers[i]);
        const struct rk_progress *progress = &workers[i].status.progress;

        if (!workers[i].error) {
            for (size_t j = 0; j < RK_ARRAY_LEN(names); j++)
                rk_json_set(item, names[j], number_or_null(find_metric(&workers[i].status, names[j])));
            rk_json_set(item, "phase", rk_json_new_string(progress->phase ? progress->phase : ""));
            rk_json_set(item, "done", rk_json_new_int((int64_t)progress->done));
            rk_json_set(item, "total", rk_json_new_int((int64_t)progress->total));
        }
        rk_json_append(list, item);
    }
    rk_json_set(body, "workers", list);
    rk_cli_print_json("Top", body);
}

/* Queries all workers: JSON, or a table appended to `out`. Returns the first error, by their order. */
static struct rk_status *look(const struct rk_cli *cli, struct rk_driver *driver, struct rk_str *out)
{
    int32_t count = rk_driver_num_workers(driver);
    struct rk_driver_worker *workers = rk_calloc((size_t)count, sizeof(*workers));
    struct rk_arena *arena = rk_arena_create(16384, 0);
    struct rk_status *st = NULL;

    rk_driver_get_status(driver, arena, workers);
    if (rk_cli_is_json(cli))
        print_json(workers, count);
    else
        print_table(workers, count, out);
    for (int32_t i = 0; i < count; i++)
        st = rk_status_first(st, workers[i].error);
    rk_arena_destroy(arena);
    rk_free(workers);
    return st;
}

/* Until q or a signal; a worker that cannot be reached now may answer at the next refresh. */
static void repeat(const struct rk_cli *cli, struct rk_driver *driver, int64_t interval_ms)
{
    rk_screen_event_t event = RK_SCREEN_TIME;
    struct rk_screen screen;
    int64_t next_ns = 0;
    struct rk_str text = {0};

    rk_cli_watch_signals(NULL);
    rk_screen_open(&screen);
    while (event != RK_SCREEN_END) {
        if (event == RK_SCREEN_TIME) {
            next_ns = rk_time_now_ns() + interval_ms * 1000000;
            rk_str_clear(&text);
            RK_IGNORE(look(cli, driver, &text), "the line of the worker shows the error");
        }
        rk_screen_draw(&screen, rk_str_text(&text));
        event = rk_screen_wait(&screen, next_ns);
    }
    rk_screen_close(&screen);
    rk_str_fini(&text);
}

static struct rk_status *run(struct rk_cli *cli)
{
    bool is_once = rk_cli_has(cli, "once") || rk_cli_is_json(cli) || !rk_screen_is_possible();
    struct rk_driver *driver = NULL;
    struct rk_hosts hosts = {0};
    struct rk_str text = {0};
    int64_t interval_ms;
    struct rk_status *st;

    RK_TRY(rk_cli_duration(cli, "interval", INTERVAL_MS, &interval_ms));
    if (interval_ms < INTERVAL_MIN_MS)
        return rk_cli_usage(RK_FAIL(RK_INVALID_ARGUMENT, "--interval=%s: expected %d ms or more",
                                    rk_cli_find(cli, "interval"), INTERVAL_MIN_MS));
    RK_TRY_GOTO(st, rk_cli_hosts(cli, &hosts), out);
    RK_TRY_GOTO(st, rk_cli_open(cli, &hosts, &driver), out);
    cli->has_told = is_once;
    if (is_once) {
        st = look(cli, driver, &text);
        fputs(rk_str_text(&text), stdout);
        fflush(stdout);
    } else {
        repeat(cli, driver, interval_ms);
    }
out:
    rk_str_fini(&text);
    rk_driver_close(driver);
    rk_hosts_fini(&hosts);
    return st;
}

static const struct rk_option options[] = {
    {"once", NULL, "print the table once, as without a terminal"},
    {"interval", "TIME", "refresh interval (default: 2s)"},
    {NULL, NULL, NULL},
};

const struct rk_command rk_cmd_top = {
    .name = "top",
    .args = "",
    .summary = "show the activity of the daemons, one line each, until q or Ctrl-C",
    .details =
        "TOK/S: tokens per second of the daemon's last call that handled tokens, in its share of the batch.\n"
        "MEMORY: device memory of the daemon, and the device's total. GPU and TEMP: utilisation and "
        "temperature.",
    .options = options,
    .run = run,
};
