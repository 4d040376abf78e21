/* Progress of a run for users: one line that is redrawn on a terminal, one line per step otherwise. */
#include "rl/rk_loggers.h"

#include <math.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_env.h"
#include "base/rk_time.h"
#include "rl/rk_run.h"

#define BAR_CELLS 24

struct console {
    FILE *out;
    bool is_terminal;
    bool has_line; /* drawn and not ended */
    int32_t world_size;
    int64_t started_ns; /* the first step */
    int64_t first_step, step, total_steps;
    uint64_t done, total; /* of the running call */
    char phase[32];
    const struct rk_run_curve *curve; /* NULL: no step so far */
    double value, tokens_per_s;       /* of the curve; of all daemons */
};

static bool can_draw(FILE *out)
{
    const char *term = rk_env("TERM");

    return isatty(fileno(out)) && !rk_env("NO_COLOR") && term && strcmp(term, "dumb") != 0;
}

static struct rk_status *open_console(void **state, const struct rk_logger_config *config)
{
    struct console *console = rk_calloc(1, sizeof(*console));

    console->out = config->console;
    console->is_terminal = can_draw(config->console);
    console->world_size = config->world_size;
    console->first_step = 1;
    *state = console;
    return NULL;
}

static double eta_s(const struct console *console)
{
    double seconds = (double)(rk_time_now_ns() - console->started_ns) / 1e9;
    int64_t num_done = console->step - console->first_step + 1;

    return num_done > 0 ? seconds / (double)num_done * (double)(console->total_steps - console->step) : 0.0;
}

static void format_duration(double seconds, char *out, size_t bytes)
{
    long long total = (long long)llround(seconds);

    if (total >= 3600)
        snprintf(out, bytes, "%lldh%02lldm", total / 3600, total / 60 % 60);
    else if (total >= 60)
        snprintf(out, bytes, "%lldm%02llds", total / 60, total % 60);
    else
        snprintf(out, bytes, "%llds", total);
}

/* A line that wraps could not be redrawn. */
static int line_columns(FILE *out)
{
    struct winsize size;

    return ioctl(fileno(out), TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

static void draw(struct console *console)
{
    int full = console->total_steps > 0 ? (int)(BAR_CELLS * console->step / console->total_steps) : 0;
    char bar[BAR_CELLS + 1], eta[32];
    struct rk_str line = {0};

    memset(bar, '-', BAR_CELLS);
    memset(bar, '#', (size_t)full);
    bar[BAR_CELLS] = '\0';
    format_duration(eta_s(console), eta, sizeof(eta));
    rk_str_appendf(&line, "[%s] %lld/%lld", bar, (long long)console->step, (long long)console->total_steps);
    if (console->curve && isfinite(console->value))
        rk_str_appendf(&line, "  %s %.3f  %.0f tok/s  eta %s", console->curve->name, console->value,
                       console->tokens_per_s, eta);
    rk_str_appendf(&line, "  %s", console->phase);
    if (console->total > 0)
        rk_str_appendf(&line, " %llu/%llu", (unsigned long long)console->done,
                       (unsigned long long)console->total);
    fprintf(console->out, "\r\033[K%.*s", line_columns(console->out) - 1, rk_str_text(&line));
    fflush(console->out);
    console->has_line = true;
    rk_str_fini(&line);
}

static struct rk_status *begin(void *state, int64_t first_step, int64_t total_steps)
{
    struct console *console = state;

    console->started_ns = rk_time_now_ns();
    console->first_step = first_step;
    console->step = first_step - 1;
    console->total_steps = total_steps;
    return NULL;
}

static void on_phase(void *state, const char *phase)
{
    struct console *console = state;

    snprintf(console->phase, sizeof(console->phase), "%s", phase);
    console->done = console->total = 0;
    if (console->is_terminal)
        draw(console);
}

static void on_progress(void *state, uint64_t done, uint64_t total)
{
    struct console *console = state;

    console->done = done;
    console->total = total;
    if (console->is_terminal)
        draw(console);
}

static void end_line(void *state)
{
    struct console *console = state;

    if (console->has_line)
        fputs("\n", console->out);
    console->has_line = false;
}

/* The means of a validation, on separate permanent lines. */
static void print_validation(struct console *console, int64_t step, const struct rk_json *metrics)
{
    for (void *it = rk_json_iter(metrics); it; it = rk_json_iter_next(metrics, it)) {
        const char *name = rk_json_iter_key(it);
        char *shown;

        if (!rk_run_is_validation(name))
            continue;
        end_line(console);
        shown = rk_str_printable(name, ""); /* it contains a data_source */
        fprintf(console->out, "step %lld  %s %.4f\n", (long long)step, shown,
                rk_json_as_real(rk_json_iter_value(it), NAN));
        rk_free(shown);
    }
}

static struct rk_status *log_step(void *state, int64_t step, const struct rk_json *metrics)
{
    struct console *console = state;
    const struct rk_run_curve *curve = rk_run_curve_of(metrics);
    char eta[32];

    print_validation(console, step, metrics);
    if (!curve) /* validation only */
        return NULL;
    console->step = step;
    console->curve = curve;
    console->value = rk_json_as_real(rk_json_find(metrics, curve->metric), NAN);
    console->tokens_per_s =
        rk_json_as_real(rk_json_find(metrics, "perf/throughput"), 0.0) * console->world_size;
    if (console->is_terminal) {
        draw(console);
        return NULL;
    }
    format_duration(eta_s(console), eta, sizeof(eta));
    fprintf(console->out, "step %lld/%lld  %s %.4f  %.0f tok/s  eta %s\n", (long long)step,
            (long long)console->total_steps, curve->name, console->value, console->tokens_per_s, eta);
    return NULL;
}

static void close_console(void *state)
{
    end_line(state);
    rk_free(state);
}

const struct rk_logger_ops rk_logger_console = {
    .name = "console",
    .open = open_console,
    .begin = begin,
    .log = log_step,
    .on_phase = on_phase,
    .on_progress = on_progress,
    .end_line = end_line,
    .close = close_console,
};
