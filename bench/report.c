/* Results as text and as JSON, with figures of another program for comparison. */
#include "bench/bench.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_file.h"
#include "base/format/rk_safetensors.h"
#include "base/rk_str.h"

#define BASELINE_BYTES_MAX ((size_t)1 << 20)

static bool is_known(const char *name)
{
    for (int i = 0; i < bench_num_cases; i++) {
        if (strcmp(bench_cases[i].name, name) == 0)
            return true;
    }
    return false;
}

struct rk_status *bench_baseline_read(struct rk_json **out, const char *path)
{
    struct rk_status *st;

    RK_TRY(rk_json_parse_file(out, path, BASELINE_BYTES_MAX, 0));
    if (rk_json_type(*out) != RK_JSON_ARRAY)
        st = RK_FAIL(RK_INVALID_ARGUMENT, "%s: expected an array of results, got %s", path,
                     rk_json_type_name(rk_json_type(*out)));
    else
        st = NULL;
    for (int64_t i = 0; i < rk_json_count(*out) && !st; i++) {
        const struct rk_json *row = rk_json_at(*out, i);
        const char *name;
        double measured;

        st = rk_json_get_string(row, "", "name", &name);
        if (!st)
            st = rk_json_get_f64(row, "", "measured", &measured);
        if (st)
            st = RK_WRAP(st, "%s, result %lld", path, (long long)i);
        else if (!is_known(name))
            fprintf(stderr, "rankd-bench: %s: unknown benchmark '%s'\n", path, name);
    }
    if (st) {
        rk_json_free(*out);
        *out = NULL;
    }
    return st;
}

/* The figure with the same name and unit; 0 when there is none. */
static double baseline_of(const struct rk_json *baseline, const struct bench_case *bench)
{
    for (int64_t i = 0; i < rk_json_count(baseline); i++) {
        const struct rk_json *row = rk_json_at(baseline, i);
        const char *unit = rk_json_as_string(rk_json_find(row, "unit"), bench_units[bench->unit].text);

        if (strcmp(rk_json_as_string(rk_json_find(row, "name"), ""), bench->name) == 0 &&
            strcmp(unit, bench_units[bench->unit].text) == 0)
            return rk_json_as_real(rk_json_find(row, "measured"), 0);
    }
    return 0;
}

static double percent_of_bound(const struct bench_case *bench, const struct bench_result *result)
{
    if (bench_units[bench->unit].less_is_better)
        return 100 * result->bound / result->measured;
    return 100 * result->measured / result->bound;
}

/* --- text --- */

static void print_ceilings(const struct bench_ceilings *ceilings)
{
    if (isinf(ceilings->flops))
        printf("ceilings: none on a CPU and for tiny shapes\n\n");
    else
        printf("ceilings (%s): %.1f TFLOP/s bf16, %.0f GB/s\n\n",
               ceilings->is_measured ? "measured now" : "stated", ceilings->flops * 1e-12,
               ceilings->bytes * 1e-9);
}

void bench_print_header(const struct bench_shared *shared)
{
    printf("%s\n%s\n%s\n", shared->machine.date, shared->machine.hardware, shared->machine.versions);
    print_ceilings(&shared->ceilings);
    printf("%-32s %-52s %10s %-8s %10s %6s %10s %6s %5s %5s\n", "name", "shape", "measured", "unit", "bound",
           "%", "baseline", "ratio", "MHz", "W");
    fflush(stdout);
}

static const char *format_number(char text[16], double value)
{
    int digits = fabs(value) >= 1000 ? 0 : fabs(value) >= 100 ? 1 : fabs(value) >= 1 ? 2 : 4;

    if (value == 0)
        return "-";
    snprintf(text, 16, "%.*f", digits, value);
    return text;
}

void bench_print_row(const struct bench_case *bench, const struct bench_result *result,
                     const struct rk_json *baseline)
{
    double other = baseline_of(baseline, bench);
    char measured[16], bound[16], percent[16], base[16], ratio[16];

    if (result->state != BENCH_DONE) {
        printf("%-32s %-52s %s: %s\n", bench->name, result->shape,
               result->state == BENCH_SKIPPED ? "skipped" : "failed", result->note);
    } else {
        printf("%-32s %-52s %10s %-8s %10s %6s %10s %6s %5d %5.0f  %s\n", bench->name, result->shape,
               format_number(measured, result->measured), bench_units[bench->unit].text,
               format_number(bound, result->bound),
               format_number(percent, result->bound > 0 ? percent_of_bound(bench, result) : 0),
               format_number(base, other), format_number(ratio, other > 0 ? result->measured / other : 0),
               result->clock_mhz, result->power_w, result->note);
    }
    fflush(stdout);
}

bool bench_stdout_is_good(void)
{
    bool is_good = fflush(stdout) == 0 && !ferror(stdout);

    if (!is_good)
        fprintf(stderr, "rankd-bench: cannot write to standard output\n");
    return is_good;
}

/* --- JSON --- */

/* Six digits: the rest is noise. Null if unknown. */
static struct rk_json *number_or_null(double value, bool is_known)
{
    char text[32];
    double rounded;

    snprintf(text, sizeof(text), "%.6g", value);
    if (!is_known || !isfinite(value) || !rk_parse_f64(text, &rounded))
        return rk_json_new_null();
    return rk_json_new_real(rounded);
}

static struct rk_json *row_json(const struct bench_case *bench, const struct bench_result *result,
                                const struct bench_machine *machine, double baseline)
{
    struct rk_json *row = rk_json_new_object();
    bool has_bound = result->bound > 0;

    rk_json_set(row, "name", rk_json_new_string(bench->name));
    rk_json_set(row, "shape", rk_json_new_string(result->shape));
    rk_json_set(row, "measured", number_or_null(result->measured, true));
    rk_json_set(row, "unit", rk_json_new_string(bench_units[bench->unit].text));
    rk_json_set(row, "bound", number_or_null(result->bound, has_bound));
    rk_json_set(row, "percent_of_bound",
                number_or_null(has_bound ? percent_of_bound(bench, result) : 0, has_bound));
    rk_json_set(row, "baseline", number_or_null(baseline, baseline > 0));
    rk_json_set(row, "ratio", number_or_null(baseline > 0 ? result->measured / baseline : 0, baseline > 0));
    rk_json_set(row, "note", rk_json_new_string(result->note));
    rk_json_set(row, "clock_mhz", number_or_null(result->clock_mhz, result->clock_mhz > 0));
    rk_json_set(row, "power_w", number_or_null(result->power_w, result->power_w > 0));
    rk_json_set(row, "date", rk_json_new_string(machine->date));
    rk_json_set(row, "hardware", rk_json_new_string(machine->hardware));
    rk_json_set(row, "versions", rk_json_new_string(machine->versions));
    return row;
}

struct rk_status *bench_json_check(const char *path)
{
    const char *slash = strrchr(path, '/');
    char *folder = slash ? rk_strndup(path, (size_t)(slash - path + 1)) : rk_strdup(".");
    struct rk_status *st = NULL;
    struct stat info;

    if (lstat(path, &info) == 0 && !S_ISREG(info.st_mode)) /* it would be replaced */
        st = RK_FAIL(RK_INVALID_ARGUMENT, "--json %s: not a regular file", path);
    else if (access(folder, W_OK | X_OK) != 0)
        st = RK_FAIL(RK_INVALID_ARGUMENT, "--json %s: cannot create files in %s: %m", path, folder);
    rk_free(folder);
    return st;
}

struct rk_status *bench_json_write(const char *path, const struct bench_shared *shared,
                                   const struct rk_json *baseline)
{
    struct rk_json *rows = rk_json_new_array();
    struct rk_status *st = NULL;

    for (int i = 0; i < bench_num_cases; i++) {
        if (shared->results[i].state == BENCH_DONE)
            rk_json_append(rows, row_json(&bench_cases[i], &shared->results[i], &shared->machine,
                                          baseline_of(baseline, &bench_cases[i])));
    }
    if (rk_json_count(rows) > 0) {
        char *dump = rk_json_dump(rows, 1, false), *text = rk_format("%s\n", dump);

        st = rk_write_file_atomic(path, text, strlen(text));
        rk_free(text);
        rk_free(dump);
    }
    rk_json_free(rows);
    return st;
}
