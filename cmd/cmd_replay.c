/* Runs recorded calls on other daemons and reports the first one whose result differs, and by how much. */
#include "cmd/cmd_internal.h"

#include <dirent.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/format/rk_ckpt_dir.h"
#include "base/rk_file.h"
#include "cmd/replay/replay.h"

#define DIFFERENCES_SHOWN 8
#define NUM_THREADS_MAX   4096 /* of cpu.num_threads */

struct replay {
    struct rk_cli *cli;
    RK_ARRAY(char *) dirs;
    RK_ARRAY(struct rk_recording *) recordings;
    RK_ARRAY(const char *) options; /* ends with NULL */
    struct rk_replay_order order;
    struct rk_hosts hosts; /* count 0: replay starts its own daemons */
    struct rk_local *local;
    char *log_dir; /* of the started daemons */
    struct rk_driver *driver;
    struct rk_replay_tolerance tolerance;
    struct rk_replay_report report;
};

/* --- arguments --- */

static struct rk_status *read_tolerance(const struct rk_cli *cli, const char *name, double *out)
{
    const char *text = rk_cli_find(cli, name);

    *out = 0.0;
    if (!text || (rk_parse_f64(text, out) && *out >= 0.0 && isfinite(*out)))
        return NULL;
    return rk_cli_usage(RK_FAIL(RK_INVALID_ARGUMENT, "--%s=%s: expected a number of at least 0", name, text));
}

/* "ROLE.METHOD.KEY=VALUE" */
static bool is_option(const char *text)
{
    const char *method = strchr(text, '.'), *key = method ? strchr(method + 1, '.') : NULL;
    const char *equals = strchr(text, '=');

    return key && equals && method > text && key > method + 1 && equals > key + 1;
}

static struct rk_status *read_options(struct replay *replay)
{
    const struct rk_cli *cli = replay->cli;

    for (int64_t i = 0; i < cli->line.settings.count; i++) {
        const char *text = cli->line.settings.items[i].value;

        if (strcmp(cli->line.settings.items[i].name, "opt") != 0)
            continue;
        if (!is_option(text))
            return rk_cli_usage(
                RK_FAIL(RK_INVALID_ARGUMENT, "--opt=%s: expected ROLE.METHOD.KEY=VALUE", text));
        rk_array_append(&replay->options, text);
    }
    rk_array_append(&replay->options, NULL);
    RK_TRY(read_tolerance(cli, "atol", &replay->tolerance.abs));
    return read_tolerance(cli, "rtol", &replay->tolerance.rel);
}

/* --- folders --- */

static bool is_recording(const char *dir)
{
    char *path = rk_path_join(dir, RK_RECORDING_INFO_FILE);
    bool is_there = access(path, F_OK) == 0;

    rk_free(path);
    return is_there;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* The folder itself, or its subfolders, as `run --record` creates them. */
static struct rk_status *add_dir(struct replay *replay, const char *dir)
{
    int64_t before = replay->dirs.count;
    struct dirent *entry;
    DIR *opened;

    if (is_recording(dir)) {
        rk_array_append(&replay->dirs, rk_strdup(dir));
        return NULL;
    }
    opened = opendir(dir);
    if (!opened)
        return rk_cli_usage(rk_file_errno("cannot open the recording", dir));
    while ((entry = readdir(opened)) != NULL) {
        char *path = rk_path_join(dir, entry->d_name);

        if (entry->d_name[0] != '.' && is_recording(path))
            rk_array_append(&replay->dirs, path);
        else
            rk_free(path);
    }
    closedir(opened);
    if (replay->dirs.count == before)
        return rk_cli_usage(RK_FAIL(RK_NOT_FOUND,
                                    "'%s' is not a recording: neither it nor a folder in it has a %s", dir,
                                    RK_RECORDING_INFO_FILE));
    qsort(replay->dirs.items + before, (size_t)(replay->dirs.count - before), sizeof(char *), compare_names);
    return NULL;
}

static struct rk_status *check_num_threads(const struct rk_recording *recording)
{
    const struct rk_json *value = rk_json_find(rk_recording_info(recording), "cpu_num_threads");
    int64_t count = rk_json_as_int(value, value ? -1 : 0);

    if (count >= 0 && count <= NUM_THREADS_MAX)
        return NULL;
    return RK_FAIL_REASON(RK_DATA_LOSS, "RECORD_DAMAGED",
                          "'%s/" RK_RECORDING_INFO_FILE "': cpu_num_threads: expected a number from 0 to %d",
                          rk_recording_dir(recording), NUM_THREADS_MAX);
}

static struct rk_status *open_recordings(struct replay *replay)
{
    uint32_t flags = rk_cli_has(replay->cli, "partial") ? RK_RECORDING_PARTIAL : 0;

    for (int64_t i = 0; i < replay->cli->line.args.count; i++)
        RK_TRY(add_dir(replay, replay->cli->line.args.items[i]));
    for (int64_t i = 0; i < replay->dirs.count; i++) {
        struct rk_recording *recording;
        struct rk_status *st = rk_recording_open(&recording, replay->dirs.items[i], flags);

        if (st && strcmp(rk_status_reason(st), "RECORD_CUT") == 0)
            st = RK_WRAP(st, "--partial replays the complete entries before it");
        RK_TRY(st);
        rk_array_append(&replay->recordings, recording);
        RK_TRY(check_num_threads(recording));
        if (!rk_recording_end_reason(recording))
            fprintf(stderr, "rankctl: '%s' has no end: the daemon was killed, or is still recording\n",
                    rk_recording_dir(recording));
        else if (strcmp(rk_recording_end_reason(recording), RK_RECORDING_WHOLE) != 0)
            fprintf(stderr, "rankctl: '%s' ends early: %s\n", rk_recording_dir(recording),
                    rk_recording_end_reason(recording));
    }
    return rk_replay_order_make(&replay->order, replay->recordings.items, (int32_t)replay->recordings.count);
}

/* --- daemons --- */

/* The recorded device, unless --device is given. */
static char *find_device(const struct replay *replay)
{
    const char *given = rk_cli_find(replay->cli, "device");
    const struct rk_json *info = rk_recording_info(replay->order.recordings[0]);
    const char *recorded = rk_json_as_string(rk_json_find(info, "device"), "cpu");

    return given ? rk_strdup(given) : rk_strndup(recorded, strcspn(recorded, ":"));
}

/* The order of sums, and with it their last bits, depends on it. 0: not recorded. */
static int64_t num_threads_of(const struct rk_recording *recording)
{
    return rk_json_as_int(rk_json_find(rk_recording_info(recording), "cpu_num_threads"), 0);
}

static struct rk_status *start_local(struct replay *replay)
{
    const char *const roots[] = {"/", NULL};
    struct rk_local_config config = {
        .struct_size = sizeof(config), .num_daemons = replay->order.num_ranks, .ckpt_roots = roots};
    char *program, *device, *log_dir;
    struct rk_status *st;

    RK_TRY(rk_cli_find_rankd(&program));
    log_dir = rk_strdup("/tmp/rankctl-replay-XXXXXX");
    if (!mkdtemp(log_dir)) {
        st = rk_file_errno("cannot create a directory like", log_dir);
        rk_free(log_dir);
        rk_free(program);
        return st;
    }
    config.log_dir = replay->log_dir = log_dir;
    device = find_device(replay);
    config.program = program;
    config.device = device;
    config.num_threads = num_threads_of(replay->order.recordings[0]);
    st = rk_local_start(&replay->local, &config);
    rk_free(device);
    rk_free(program);
    return st;
}

static struct rk_status *open_driver(struct replay *replay)
{
    struct rk_driver_config config = rk_cli_driver_config(replay->cli);
    struct rk_status *st;

    if (rk_cli_find(replay->cli, "hosts"))
        RK_TRY(rk_cli_hosts(replay->cli, &replay->hosts));
    if (replay->hosts.count > 0 && replay->hosts.count != replay->order.num_ranks)
        return rk_cli_usage(RK_FAIL(RK_INVALID_ARGUMENT,
                                    "--hosts names %d daemons, expected the %d ranks of the recording",
                                    replay->hosts.count, replay->order.num_ranks));
    if (replay->hosts.count == 0)
        RK_TRY(start_local(replay));
    config.addresses =
        replay->local ? rk_local_addresses(replay->local) : (const char *const *)replay->hosts.addresses;
    config.num_addresses = replay->order.num_ranks;
    if (replay->local)
        config.identity_dir = NULL; /* these daemons end with this process */
    st = rk_driver_open(&replay->driver, &config);
    if (st)
        return rk_cli_usage(st);
    rk_cli_watch_signals(replay->driver);
    return NULL;
}

/* --- output --- */

static void on_call(void *user, int64_t number, const char *name)
{
    (void)user;
    fprintf(stderr, "rankctl: call %" PRId64 " %s\n", number, name);
}

static void print_difference(const struct rk_replay_difference *d)
{
    char *name = rk_cli_printable(d->name);

    printf("  rank %d %s %s: ", d->rank, rk_difference_kind_name(d->kind), name);
    rk_free(name);
    if (d->kind == RK_DIFFERENCE_SHAPE)
        printf("missing, or another dtype or shape\n");
    else if (d->kind == RK_DIFFERENCE_STATUS)
        printf("recorded %s, replayed %s\n", rk_code_name((rk_code_t)d->recorded),
               rk_code_name((rk_code_t)d->replayed));
    else if (d->kind == RK_DIFFERENCE_TEXT)
        printf("%" PRId64 " of %" PRId64 " strings differ\n", d->num_different, d->num_values);
    else
        printf("%" PRId64 " of %" PRId64 " values differ, max abs %.9g, max rel %.9g (recorded %.17g, "
               "replayed %.17g)\n",
               d->num_different, d->num_values, d->max_abs, d->max_rel, d->recorded, d->replayed);
}

static void print_text(const struct rk_replay_report *report)
{
    int64_t count = report->differences.items.count;

    if (report->end == RK_REPLAY_DIFFERENCE) {
        printf("call %" PRId64 " %s differs:\n", report->number, report->name);
        for (int64_t i = 0; i < RK_MIN(count, DIFFERENCES_SHOWN); i++)
            print_difference(&report->differences.items.items[i]);
        if (count > DIFFERENCES_SHOWN)
            printf("  and %" PRId64 " more\n", count - DIFFERENCES_SHOWN);
        return;
    }
    printf("%" PRId64 " calls replayed, no difference\n", report->num_calls);
    if (report->num_skipped > 0)
        printf("%" PRId64 " calls that write files were skipped; --with-files runs them\n",
               report->num_skipped);
    if (report->end == RK_REPLAY_STOPPED)
        printf("not replayed from call %" PRId64 " %s on: the recorded call ended with %s\n", report->number,
               report->name, report->recorded_end);
    else if (report->is_unanswered)
        printf("call %" PRId64 " %s has no recorded result: the recording ends in it\n", report->number,
               report->name);
}

/* A number, or a word for infinity and NaN. */
static struct rk_json *number_json(double value)
{
    return isfinite(value) ? rk_json_new_real(value) : rk_json_new_string(isnan(value) ? "nan" : "inf");
}

static struct rk_json *difference_json(const struct rk_replay_difference *d)
{
    struct rk_json *json = rk_json_new_object();

    rk_json_set(json, "kind", rk_json_new_string(rk_difference_kind_name(d->kind)));
    rk_json_set(json, "rank", rk_json_new_int(d->rank));
    rk_json_set(json, "name", rk_json_new_string(d->name));
    rk_json_set(json, "num_different", rk_json_new_int(d->num_different));
    rk_json_set(json, "num_values", rk_json_new_int(d->num_values));
    rk_json_set(json, "max_abs", number_json(d->max_abs));
    rk_json_set(json, "max_rel", number_json(d->max_rel));
    rk_json_set(json, "recorded", number_json(d->recorded));
    rk_json_set(json, "replayed", number_json(d->replayed));
    return json;
}

static void print_json(const struct rk_replay_report *report)
{
    static const char *const ends[] = {"all", "difference", "stopped"};
    struct rk_json *body = rk_json_new_object(), *list = rk_json_new_array();

    for (int64_t i = 0; i < report->differences.items.count; i++)
        rk_json_append(list, difference_json(&report->differences.items.items[i]));
    rk_json_set(body, "end", rk_json_new_string(ends[report->end]));
    rk_json_set(body, "num_calls", rk_json_new_int(report->num_calls));
    rk_json_set(body, "num_skipped", rk_json_new_int(report->num_skipped));
    rk_json_set(body, "number", rk_json_new_int(report->number));
    rk_json_set(body, "call", rk_json_new_string(report->name));
    rk_json_set(body, "recorded_end", rk_json_new_string(report->recorded_end));
    rk_json_set(body, "is_unanswered", rk_json_new_bool(report->is_unanswered));
    rk_json_set(body, "differences", list);
    rk_cli_print_json("Replay", body);
}

static struct rk_status *report_end(const struct replay *replay)
{
    const struct rk_replay_report *report = &replay->report;

    replay->cli->has_told = true;
    if (rk_cli_is_json(replay->cli))
        print_json(report);
    else
        print_text(report);
    if (report->end != RK_REPLAY_DIFFERENCE)
        return NULL;
    return RK_FAIL_REASON(RK_ABORTED, "RESULT_DIFFERS", "call %" PRId64 " %s differs from the recording",
                          report->number, report->name);
}

/* --- the command --- */

static struct rk_status *run_replay(struct replay *replay)
{
    struct rk_replay_args args = {.order = &replay->order,
                                  .writes_files = rk_cli_has(replay->cli, "with-files")};

    RK_TRY(read_options(replay));
    RK_TRY(open_recordings(replay));
    RK_TRY(open_driver(replay));
    args.driver = replay->driver;
    args.tolerance = replay->tolerance;
    args.options = replay->options.items;
    args.on_call = isatty(STDERR_FILENO) ? on_call : NULL;
    RK_TRY(rk_replay_run(&replay->report, &args));
    return report_end(replay);
}

static void fini(struct replay *replay, const struct rk_status *st)
{
    rk_cli_watch_signals(NULL);
    rk_driver_close(replay->driver);
    rk_local_stop(replay->local);
    if (replay->log_dir && (!st || strcmp(rk_status_reason(st), "RESULT_DIFFERS") == 0))
        RK_IGNORE(rk_ckpt_remove(replay->log_dir), "logs of a successful command");
    else if (replay->log_dir)
        fprintf(stderr, "rankctl: the logs of the daemons are in %s\n", replay->log_dir);
    rk_free(replay->log_dir);
    rk_hosts_fini(&replay->hosts);
    rk_replay_report_fini(&replay->report);
    rk_replay_order_fini(&replay->order);
    for (int64_t i = 0; i < replay->recordings.count; i++)
        rk_recording_close(replay->recordings.items[i]);
    for (int64_t i = 0; i < replay->dirs.count; i++)
        rk_free(replay->dirs.items[i]);
    rk_array_fini(&replay->recordings);
    rk_array_fini(&replay->dirs);
    rk_array_fini(&replay->options);
}

static struct rk_status *run(struct rk_cli *cli)
{
    struct replay replay = {.cli = cli};
    struct rk_status *st = run_replay(&replay);

    fini(&replay, st);
    return st;
}

static const struct rk_option replay_options[] = {
    {"device", "cpu|cuda", "device of the daemons that replay starts (default: the recorded one)"},
    {"atol", "X", "absolute difference that counts as equal (default: 0)"},
    {"rtol", "X", "difference relative to the recorded value that counts as equal (default: 0)"},
    {"opt", "ROLE.METHOD.KEY=VALUE", "run the calls of that method with a changed option (may be repeated)"},
    {"partial", NULL, "replay the complete entries of a truncated recording"},
    {"with-files", NULL, "also run export_hf, save_checkpoint and wait_checkpoint, to the recorded paths"},
    {"takeover", NULL, "claim the daemons of --hosts even if another driver holds them"},
    {NULL, NULL, NULL},
};

const struct rk_command rk_cmd_replay = {
    .name = "replay",
    .args = "DIR [DIR...]",
    .min_args = 1,
    .max_args = INT_MAX,
    .summary = "run recorded calls again and report the first one whose result differs",
    .details =
        "DIR was written by rankd --record: the folder of one rank, or a folder that contains those of all "
        "ranks.\nWithout --hosts one daemon for each recorded rank is started on this machine, and "
        "stopped at the\nend. Exit code 0: no difference; 1: a difference, or a damaged recording.",
    .options = replay_options,
    .repeatable = "opt",
    .run = run,
};
