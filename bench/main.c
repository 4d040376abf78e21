/* rankd-bench: how fast this build is on this machine, beside what the machine could do. */
#include "bench/bench.h"

#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#include "base/rk_assert.h"
#include "base/rk_log.h"
#include "base/rk_str.h"
#include "generated/rk_version.h"

#define EXIT_USAGE 2

static const char help[] =
    "usage: rankd-bench [options] all | gemm | attention | elementwise | train | logprob | decode | ckpt "
    "| reshard | comm | rpc\n"
    "\n"
    "Measures this build of rankd and prints each figure beside the bound of the hardware.\n"
    "\n"
    "  --device NAME    cpu or cuda:N (default cuda:0); benchmarks of several ranks take N, N+1, ...\n"
    "  --filter TEXT    only benchmarks whose name contains TEXT\n"
    "  --compare FILE   results of another program (bench/pytorch_baseline.py writes them)\n"
    "  --json FILE      write the results as a JSON array, after every benchmark\n"
    "  --profile        print what the operators of a training step, a log-prob pass and decoding take\n"
    "  --list           print the names and leave\n"
    "  --tiny           shapes of a test: seconds with --device cpu; the figures mean nothing\n"
    "  --plugin FILE    the plug-in of the device (default: ../lib of the program's folder)\n"
    "  --version, --help\n"
    "\n"
    "exit codes: 0 ok, 1 a benchmark failed or the device cannot be opened, 2 usage or files\n";

enum option_id { DEVICE, FILTER, COMPARE, JSON, PROFILE, LIST, TINY, PLUGIN, VERSION, HELP };

static const struct option long_options[] = {
    {"device", required_argument, NULL, DEVICE},
    {"filter", required_argument, NULL, FILTER},
    {"compare", required_argument, NULL, COMPARE},
    {"json", required_argument, NULL, JSON},
    {"profile", no_argument, NULL, PROFILE},
    {"list", no_argument, NULL, LIST},
    {"tiny", no_argument, NULL, TINY},
    {"plugin", required_argument, NULL, PLUGIN},
    {"version", no_argument, NULL, VERSION},
    {"help", no_argument, NULL, HELP},
    {NULL, 0, NULL, 0},
};

static void set_option(struct bench_options *options, enum option_id id)
{
    switch (id) {
    case DEVICE:
        options->device = optarg;
        break;
    case FILTER:
        options->filter = optarg;
        break;
    case COMPARE:
        options->compare = optarg;
        break;
    case JSON:
        options->json = optarg;
        break;
    case PROFILE:
        options->profiles = true;
        break;
    case LIST:
        options->lists = true;
        break;
    case TINY:
        options->is_tiny = true;
        break;
    case PLUGIN:
        options->plugin = optarg;
        break;
    case VERSION:
        printf("rankd-bench %s (%s)\n", RK_VERSION, RK_GIT_COMMIT);
        options->leaves = true;
        break;
    case HELP:
        printf("%s", help);
        options->leaves = true;
        break;
    }
}

static bool is_group(const char *name)
{
    bool is_known = strcmp(name, "all") == 0;

    for (int i = 0; i < bench_num_cases; i++)
        is_known = is_known || strcmp(name, bench_cases[i].group) == 0;
    return is_known;
}

/* 0, or the exit code. */
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

/* 0, or the exit code. */
static int parse(struct bench_options *options, int argc, char **argv)
{
    int id;

    *options = (struct bench_options){.device = "cuda:0", .group = "all"};
    while ((id = getopt_long(argc, argv, "h", long_options, NULL)) != -1) {
        if (id == '?') {
            fprintf(stderr, "rankd-bench: see rankd-bench --help\n");
            return EXIT_USAGE;
        }
        set_option(options, id == 'h' ? HELP : (enum option_id)id);
        if (options->leaves)
            return 0;
    }
    if (optind + 1 == argc)
        options->group = argv[optind];
    else if (!options->lists || optind < argc) {
        fprintf(stderr, "rankd-bench: one subcommand is expected; see rankd-bench --help\n");
        return EXIT_USAGE;
    }
    return check(options);
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

/* Groups of one, two, ... ranks, one after the other. */
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

/* The exit code. */
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

int main(int argc, char **argv)
{
    struct bench_options options;
    int code = parse(&options, argc, argv);

    signal(SIGXFSZ, SIG_IGN);       /* a limit of the file size is an error of the write */
    rk_log_set_format(RK_LOG_TEXT); /* for people */
    rk_log_set_level(RK_LOG_WARN);
    if (code == 0 && options.lists && !options.leaves)
        list_cases(&options);
    else if (code == 0 && !options.leaves)
        code = run(&options);
    return !bench_stdout_is_good() && code == 0 ? 1 : code;
}
