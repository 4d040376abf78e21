/* How a run goes, for people: one line that is drawn over on a terminal, one line a step elsewhere. */
#include "driver-cli/cmd/cmd_internal.h"

#include <math.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/rk_config.h"
#include "base/rk_str.h"
#include "base/rk_time.h"

#define BAR_CELLS 24

static bool can_draw(void)
{
    const char *term = rk_env("TERM");

    return isatty(STDERR_FILENO) && !rk_env("NO_COLOR") && term && strcmp(term, "dumb") != 0;
}

void rk_meter_init(struct rk_meter *meter, bool is_quiet)
{
    *meter = (struct rk_meter){
        .is_quiet = is_quiet, .is_terminal = can_draw(), .started_ns = rk_time_now_ns(), .reward = NAN};
}

static double eta_s(const struct rk_meter *meter)
{
    double seconds = (double)(rk_time_now_ns() - meter->started_ns) / 1e9;

    return meter->step > 0 ? seconds / (double)meter->step * (double)(meter->total_steps - meter->step) : 0.0;
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

/* A line that wraps could not be drawn over. */
static int line_columns(void)
{
    struct winsize size;

    return ioctl(STDERR_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

static void draw(struct rk_meter *meter)
{
    int full = meter->total_steps > 0 ? (int)(BAR_CELLS * meter->step / meter->total_steps) : 0;
    char bar[BAR_CELLS + 1], eta[32];
    struct rk_str line = {0};

    memset(bar, '-', BAR_CELLS);
    memset(bar, '#', (size_t)full);
    bar[BAR_CELLS] = '\0';
    format_duration(eta_s(meter), eta, sizeof(eta));
    rk_str_appendf(&line, "[%s] %lld/%lld", bar, (long long)meter->step, (long long)meter->total_steps);
    if (isfinite(meter->reward))
        rk_str_appendf(&line, "  reward %.3f  %.0f tok/s  eta %s", meter->reward, meter->tokens_per_s, eta);
    rk_str_appendf(&line, "  %s", meter->phase);
    if (meter->total > 0)
        rk_str_appendf(&line, " %llu/%llu", (unsigned long long)meter->done,
                       (unsigned long long)meter->total);
    fprintf(stderr, "\r\033[K%.*s", line_columns() - 1, rk_str_text(&line));
    fflush(stderr);
    meter->has_line = true;
    rk_str_fini(&line);
}

void rk_meter_phase(struct rk_meter *meter, const char *phase)
{
    snprintf(meter->phase, sizeof(meter->phase), "%s", phase);
    meter->done = meter->total = 0;
    if (meter->is_terminal && !meter->is_quiet)
        draw(meter);
}

void rk_meter_progress(struct rk_meter *meter, uint64_t done, uint64_t total)
{
    meter->done = done;
    meter->total = total;
    if (meter->is_terminal && !meter->is_quiet)
        draw(meter);
}

void rk_meter_step(struct rk_meter *meter, int64_t step, int64_t total_steps, const struct rk_json *metrics,
                   int32_t world_size)
{
    char eta[32];

    meter->step = step;
    meter->total_steps = total_steps;
    meter->reward = rk_json_as_real(rk_json_find(metrics, "critic/score/mean"), NAN);
    meter->tokens_per_s = rk_json_as_real(rk_json_find(metrics, "perf/throughput"), 0.0) * world_size;
    if (meter->is_quiet)
        return;
    if (meter->is_terminal) {
        draw(meter);
        return;
    }
    format_duration(eta_s(meter), eta, sizeof(eta));
    fprintf(stderr, "step %lld/%lld  reward %.4f  %.0f tok/s  eta %s\n", (long long)step,
            (long long)total_steps, meter->reward, meter->tokens_per_s, eta);
}

void rk_meter_end(struct rk_meter *meter)
{
    if (meter->has_line)
        fputs("\n", stderr);
    meter->has_line = false;
}
