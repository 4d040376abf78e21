/* rankd-bench: measures the speed of this build on this machine, compared with the limits of the machine. */
#include "bench/bench.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/rk_assert.h"
#include "base/rk_log.h"
#include "base/config/rk_options.h"
#include "base/rk_str.h"
#include "bench/options.h"
#include "bench/raw_grpc.h"
#include "generated/rk_version.h"

#define EXIT_USAGE 2

static void print_help(void)
{
    struct rk_str options = {0};

    rk_options_format(&options, bench_options_table, NULL);
    printf("usage: rankd-bench [options] %s\n"
           "\n"
           "Measures this build of rankd and prints each figure with the bound of the hardware.\n"
           "\n%s\n"
           "exit codes: 0 ok, 1 a benchmark failed or the device cannot be opened, 2 usage or files\n",
           bench_groups_text, rk_str_text(&options));
    rk_str_fini(&options);
}

static bool is_group(const char *name)
{
    bool is_known = strcmp(name, "all") == 0;

    for (int i = 0; i < bench_num_cases; i++)
        is_known = is_known || strcmp(name, bench_cases[i].group) == 0;
    return is_known;
}

/* Returns 0 or the exit code. */
static int check(const struct bench_options *options)
{
    int num_selected = 0;

    if (!is_group(options->group)) {
        fprintf(stderr, "rankd-bench: unknown subcommand '%s'; see rankd-bench --help\n", options->group);
        return EXIT_USAGE;
    }
    for (int i = 0; i < bench_num_cases; i++)
        num_selected += bench_is_selected(options, &bench_cases[i]);
    if (num_selected == 0) {
        fprintf(stderr, "rankd-bench: no benchmark's name contains '%s'; see rankd-bench --list\n",
                options->filter);
        return EXIT_USAGE;
    }
    return 0;
}

static struct bench_options options_of(const struct rk_command_line *line)
{
    const char *device = rk_command_line_find(line, "device");

    return (struct bench_options){
        .device = device ? device : "cuda:0",
        .filter = rk_command_line_find(line, "filter"),
        .compare = rk_command_line_find(line, "compare"),
        .json = rk_command_line_find(line, "json"),
        .profiles = rk_command_line_has(line, "profile"),
        .lists = rk_command_line_has(line, "list"),
        .is_tiny = rk_command_line_has(line, "tiny"),
        .plugin = rk_command_line_find(line, "plugin"),
        .group = line->args.count > 0 ? line->args.items[0] : "all",
    };
}

static void list_cases(const struct bench_options *options)
{
    for (int i = 0; i < bench_num_cases; i++) {
        if (bench_is_selected(options, &bench_cases[i]))
            printf("%-12s %-32s %s\n", bench_cases[i].group, bench_cases[i].name,
                   bench_units[bench_cases[i].unit].text);
    }
}

static bool is_wanted(const struct bench_options *options, int32_t num_ranks)
{
    for (int i = 0; i < bench_num_cases; i++) {
        if (bench_is_selected(options, &bench_cases[i]) && RK_MAX(bench_cases[i].num_ranks, 1) == num_ranks)
            return true;
    }
    return false;
}

/* Runs the groups of one, two, ... ranks in order. */
static bool run_groups(struct bench_shared *shared, const struct bench_options *options,
                       const struct rk_json *baseline)
{
    bench_outcome_t worst = BENCH_GOOD, outcome = BENCH_GOOD;

    for (int32_t num_ranks = 1; num_ranks <= BENCH_MAX_RANKS && worst != BENCH_STOP; num_ranks++) {
        if (is_wanted(options, num_ranks))
            outcome = bench_run_group(shared, options, num_ranks, baseline);
        worst = RK_MAX(worst, outcome);
    }
    for (int i = 0; i < bench_num_cases; i++) {
        if (shared->results[i].state == BENCH_FAILED)
            worst = BENCH_STOP;
    }
    return worst == BENCH_GOOD;
}

/* Returns the exit code. */
static int run(const struct bench_options *options)
{
    size_t bytes = sizeof(struct bench_shared) + (size_t)bench_num_cases * sizeof(struct bench_result);
    struct bench_shared *shared =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    struct rk_json *baseline = NULL;
    struct rk_status *st = NULL;
    int code = EXIT_USAGE;

    RK_ASSERT(shared != MAP_FAILED);
    if (options->json)
        st = bench_json_check(options->json);
    if (!st && options->compare)
        st = bench_baseline_read(&baseline, options->compare);
    if (st)
        fprintf(stderr, "rankd-bench: %s\n", rk_status_message(st));
    else
        code = run_groups(shared, options, baseline) ? 0 : 1;
    rk_status_free(st);
    rk_json_free(baseline);
    munmap(shared, bytes);
    return code;
}

/* Returns the exit code. */
static int list_or_run(const struct rk_command_line *line)
{
    struct bench_options options = options_of(line);
    int code;

    if (line->args.count == 0 && !options.lists) {
        fprintf(stderr, "rankd-bench: expected one subcommand; see rankd-bench --help\n");
        return EXIT_USAGE;
    }
    code = check(&options);
    if (code != 0)
        return code;
    if (!options.lists)
        return run(&options);
    list_cases(&options);
    return 0;
}

/* Returns the exit code. */
static int obey(struct rk_command_line *line, int argc, char **argv)
{
    static const struct rk_command_syntax syntax = {
        .program = "rankd-bench", .args = "GROUP", .max_args = 1, .options = bench_options_table};
    struct rk_status *st = rk_command_line_parse(line, &syntax, argc - 1, argv + 1);

    if (st) {
        fprintf(stderr, "rankd-bench: %s\n", rk_status_message(st));
        rk_status_free(st);
        return EXIT_USAGE;
    }
    if (rk_command_line_has(line, "help"))
        print_help();
    else if (rk_command_line_has(line, "version"))
        printf("rankd-bench %s (%s)\n", RK_VERSION, RK_GIT_COMMIT);
    else
        return list_or_run(line);
    return 0;
}

int main(int argc, char **argv)
{
    struct rk_command_line line;
    int code;

    if (argc > 1 && strcmp(argv[1], BENCH_RAW_COMMAND) == 0)
        return bench_raw_serve(argc - 2, argv + 2);
    signal(SIGXFSZ, SIG_IGN);       /* exceeding the file size limit becomes a write error */
    rk_log_set_format(RK_LOG_TEXT); /* for people */
    rk_log_set_level(RK_LOG_WARN);
    code = obey(&line, argc, argv);
    rk_command_line_fini(&line);
    return !bench_stdout_is_good() && code == 0 ? 1 : code;
}
