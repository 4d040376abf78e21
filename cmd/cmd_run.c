/* A training run from a job file. */
#include "cmd/run_command_internal.h"

#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/config/rk_config.h"
#include "base/rk_log.h"
#include "base/rk_time.h"
#include "cmd/model_dirs_internal.h"
#include "cmd/rescue_internal.h"
#include "base/rk_file.h"
#include "base/rk_small_file.h"
#include "rl/rk_job.h"

#define WARNING_SHARE 0.1 /* of rows that are skipped or cut */

/* --- before anything starts: failures here are usage errors (exit code 2) --- */

static struct rk_status *read_world(struct rk_run_command *run)
{
    const char *local = rk_cli_find(run->cli, "local");
    int64_t count = 0;

    if (local) {
        if (!rk_parse_i64(local, &count) || count < 1 || count > RK_MESH_MAX_RANKS)
            return RK_FAIL(RK_INVALID_ARGUMENT, "--local=%s: expected a number of daemons", local);
        if (rk_cli_has(run->cli, "hosts"))
            return RK_FAIL(RK_INVALID_ARGUMENT, "--local starts its own daemons; expected without --hosts");
        if (rk_cli_has(run->cli, "token-file"))
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "--local makes a token for its own daemons; expected without --token-file");
        run->world_size = (int32_t)count;
        return NULL;
    }
    if (rk_cli_has(run->cli, "record"))
        return RK_FAIL(
            RK_INVALID_ARGUMENT,
            "--record: expected together with --local; start other daemons with rankd --record DIR");
    RK_TRY(rk_cli_hosts(run->cli, &run->hosts));
    if (run->hosts.count == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT, "no daemons given; use --local N, --hosts or RANKCTL_HOSTS");
    run->world_size = run->hosts.count;
    return NULL;
}

/* An option, else a key of the job, whose path is relative to the job file. */
static void read_files(struct rk_run_command *run)
{
    static const struct {
        const char *option, *key;
    } rows[RK_RUN_FILE_COUNT] = {
        [RK_RUN_FILE_TOKEN] = {"token-file", "daemons.token_file"},
        [RK_RUN_FILE_TLS_CA] = {"tls-ca", "daemons.tls_ca"},
        [RK_RUN_FILE_TLS_CERT] = {"tls-cert", "daemons.tls_cert"},
        [RK_RUN_FILE_TLS_KEY] = {"tls-key", "daemons.tls_key"},
    };

    if (rk_cli_has(run->cli, "local"))
        return; /* its own daemons listen on Unix sockets and have a token of their own */
    for (int i = 0; i < RK_RUN_FILE_COUNT; i++) {
        const char *given = rk_cli_find(run->cli, rows[i].option);
        const char *of_job = rk_config_string(run->job, rows[i].key);

        if (given)
            run->files[i] = rk_strdup(given);
        else if (of_job)
            run->files[i] = rk_resolve_path(run->job_dir, of_job);
    }
}

static struct rk_status *read_inputs(struct rk_run_command *run)
{
    struct rk_cli_job_args args = rk_cli_job_args(run->cli, 0);
    struct rk_status *st;

    RK_TRY(read_world(run));
    RK_TRY(rk_cli_load_job(&run->job, run->cli, 0, NULL, 0));
    st = rk_job_check(run->job, run->world_size);
    if (st)
        return RK_WRAP(st, "%s", args.name);
    run->job_dir = rk_cli_directory_of(args.path);
    read_files(run);
    st = rk_flow_inputs_load(&run->inputs, run->job, run->job_dir);
    if (!st && rk_cli_has(run->cli, "local")) /* else they are on the daemons' hosts */
        st = rk_model_dirs_check(run->job, &run->inputs, true);
    if (!st)
        st = rk_flow_try_reward(&run->inputs);
    return st ? RK_WRAP(st, "%s", args.name) : NULL;
}

/* Locked or damaged files are not usage errors. */
static struct rk_status *open_checkpoints(struct rk_run_command *run)
{
    struct rk_checkpoints_args args = {
        .job = run->job,
        .job_dir = run->job_dir,
        .run_dir = rk_cli_find(run->cli, "run-dir"),
        .inputs = &run->inputs,
    };
    struct rk_status *st = rk_checkpoints_open(&run->checkpoints, &args);
    rk_code_t code = rk_status_code(st);

    if (code == RK_INVALID_ARGUMENT || code == RK_NOT_FOUND || code == RK_PERMISSION_DENIED)
        return rk_cli_usage(RK_WRAP(st, "%s", rk_cli_job_args(run->cli, 0).name));
    return st;
}

/* --- daemons --- */

/* --record: the absolute folder, created if it is missing; NULL without it. rk_free it. */
static struct rk_status *make_record_dir(char **out, const struct rk_run_command *run)
{
    const char *dir = rk_cli_find(run->cli, "record");
    char absolute[PATH_MAX];

    *out = NULL;
    if (!dir)
        return NULL;
    RK_TRY(rk_make_dirs(dir));
    if (!realpath(dir, absolute))
        return rk_file_errno("cannot find", dir);
    *out = rk_strdup(absolute);
    return NULL;
}

/* A job may not know that there are GPUs, and verl's default is to use them. */
static void say_device(const struct rk_config *job)
{
    if (!rk_config_string(job, "device") && strcmp(rk_job_device(job), "cpu") == 0 &&
        access("/dev/nvidia0", F_OK) == 0)
        RK_WARN("device=cpu, the default, although this machine has GPUs; set device=cuda to use them");
}

static struct rk_status *start_local(struct rk_run_command *run)
{
    struct rk_status *st;
    char *record_dir;

    say_device(run->job);
    RK_TRY(make_record_dir(&record_dir, run));
    st = rk_model_dirs_start_local(&run->local, &run->inputs,
                                   (struct rk_local_config){
                                       .struct_size = sizeof(struct rk_local_config),
                                       .num_daemons = run->world_size,
                                       .device = rk_job_device(run->job),
                                       .log_dir = run->dir.path,
                                       .record_dir = record_dir,
                                   });
    rk_free(record_dir);
    return st;
}

static void set_file(const char **out, const char *path)
{
    if (path)
        *out = path;
}

static struct rk_status *open_driver(struct rk_run_command *run)
{
    struct rk_driver_config config = rk_cli_driver_config(run->cli);
    struct rk_status *st;

    set_file(&config.token_file, run->files[RK_RUN_FILE_TOKEN]);
    set_file(&config.tls_ca, run->files[RK_RUN_FILE_TLS_CA]);
    set_file(&config.tls_cert, run->files[RK_RUN_FILE_TLS_CERT]);
    set_file(&config.tls_key, run->files[RK_RUN_FILE_TLS_KEY]);
    config.addresses =
        run->local ? rk_local_addresses(run->local) : (const char *const *)run->hosts.addresses;
    config.num_addresses = run->world_size;
    if (run->local)
        config.identity_dir = NULL; /* these daemons end with this process */
    st = rk_driver_open(&run->driver, &config);
    if (st)
        return rk_cli_usage(st);
    rk_cli_watch_signals(run->driver);
    return rk_driver_claim(run->driver);
}

/* --- the run --- */

static struct rk_status *on_memory_sum(void *user, const struct rk_memory_sum *sum)
{
    struct rk_run_command *run = user;
    struct rk_json *plan = rk_memory_sum_json(sum);
    struct rk_status *st = rk_run_dir_write(&run->dir, "memory_plan.json", plan);
    struct rk_str table = {0};

    rk_json_free(plan);
    if (!rk_cli_has(run->cli, "quiet")) {
        rk_memory_sum_format(sum, &table);
        rk_loggers_end_line(run->loggers);
        fputs(rk_str_text(&table), stderr);
    }
    rk_str_fini(&table);
    return st;
}

static void on_begin(void *user, int64_t first_step, int64_t total_steps)
{
    struct rk_run_command *run = user;

    rk_loggers_begin(run->loggers, first_step, total_steps);
}

static void on_phase(void *user, const char *phase)
{
    rk_loggers_phase(((struct rk_run_command *)user)->loggers, phase);
}

static void on_progress(void *user, const struct rk_progress *progress)
{
    rk_loggers_progress(((struct rk_run_command *)user)->loggers, progress->done, progress->total);
}

static void on_samples(void *user, int64_t step, const struct rk_samples *samples)
{
    rk_loggers_log_samples(((struct rk_run_command *)user)->loggers, step, samples);
}

static void remember_validation(struct rk_run_command *run, int64_t step, const struct rk_json *metrics)
{
    struct rk_json *found = rk_json_new_object();

    rk_json_set(found, "step", rk_json_new_int(step));
    for (void *it = rk_json_iter(metrics); it; it = rk_json_iter_next(metrics, it)) {
        if (rk_str_has_prefix(rk_json_iter_key(it), "val-core/") ||
            rk_run_is_validation(rk_json_iter_key(it)))
            rk_json_set(found, rk_json_iter_key(it), rk_json_retain(rk_json_iter_value(it)));
    }
    if (rk_json_count(found) > 1) {
        rk_json_free(run->validation);
        run->validation = rk_json_retain(found);
    }
    rk_json_free(found);
}

static struct rk_status *on_step(void *user, int64_t step, const struct rk_json *metrics)
{
    struct rk_run_command *run = user;

    RK_TRY(rk_run_dir_append(&run->dir, metrics));
    remember_validation(run, step, metrics);
    rk_loggers_log(run->loggers, step, metrics);
    return NULL;
}

static struct rk_status *on_saved(void *user)
{
    return rk_run_dir_sync(&((struct rk_run_command *)user)->dir);
}

static struct rk_status *train_and_export(struct rk_run_command *run)
{
    struct rk_status *st = rk_flow_run(&run->flow);
    bool is_tried = st == NULL; /* to export, and there */

    if (run->flow.validates_only)
        return st;
    if (!st)
        st = rk_flow_export(&run->flow);
    run->is_exported = st == NULL;
    is_tried = is_tried && rk_status_code(st) != RK_CANCELLED;
    if (!st)
        return NULL;
    rk_loggers_end_line(run->loggers);
    run->is_exported = rk_rescue_model(&(struct rk_rescue){
        .driver = run->driver,
        .local = run->local,
        .flow = &run->flow,
        .hosts = rk_cli_find(run->cli, "hosts"),
        .token_file = run->files[RK_RUN_FILE_TOKEN],
        .tls_ca = run->files[RK_RUN_FILE_TLS_CA],
        .tls_cert = run->files[RK_RUN_FILE_TLS_CERT],
        .tls_key = run->files[RK_RUN_FILE_TLS_KEY],
        .step = run->flow.trained_step,
        .is_tried = is_tried,
    });
    return st;
}

/* A note about a tenth of the rows or more is a warning, any other a plain line. */
static void tell_rows(const struct rk_run_command *run)
{
    const struct rk_json *notes = rk_json_find(run->rows, "notes");

    for (int64_t i = 0; i < rk_json_count(notes); i++) {
        const struct rk_json *note = rk_json_at(notes, i);
        const char *text = rk_json_as_string(rk_json_find(note, "text"), "");

        if (rk_json_as_real(rk_json_find(note, "share"), 0.0) > WARNING_SHARE)
            RK_WARN("%s", text);
        else if (!rk_cli_has(run->cli, "quiet"))
            fprintf(stderr, "%s\n", text);
    }
}

static struct rk_status *train(struct rk_run_command *run)
{
    struct rk_flow_sink sink = {.user = run,
                                .on_memory_sum = on_memory_sum,
                                .on_begin = on_begin,
                                .on_phase = on_phase,
                                .on_progress = on_progress,
                                .on_samples = on_samples,
                                .on_step = on_step,
                                .on_saved = on_saved};
    struct rk_status *st;
    char *path, *trace;

    st = rk_flow_context_init(&run->flow, run->job, &run->inputs, run->driver, &sink);
    if (st)
        return rk_cli_usage(st);
    rk_flow_rows_add_left_out(run->rows, &run->flow);
    tell_rows(run);
    run->flow.checkpoints = run->checkpoints.dir || run->checkpoints.resume_path ? &run->checkpoints : NULL;
    path = rk_path_join(run->dir.path, "hf");
    trace = rk_path_join(run->dir.path, "trace.json");
    run->flow.export_path = path;
    run->flow.trace_path = trace;
    st = train_and_export(run);
    run->flow.export_path = run->flow.trace_path = NULL;
    rk_free(trace);
    rk_free(path);
    return st;
}

/* Adds how the run's own daemons ended, or how to continue after the loss of another daemon. */
static struct rk_status *add_advice(struct rk_run_command *run, struct rk_status *st)
{
    struct rk_str advice = {0};
    struct rk_str text = {0};
    struct rk_status *all = st;

    if (run->local && strcmp(rk_status_reason(st), "DETACHED") == 0) { /* they end with this process */
        rk_status_free(st);
        return RK_FAIL(RK_CANCELLED,
                       "interrupted twice: the daemons of --local are stopped without saving the model");
    }
    if (st && run->local)
        rk_local_describe_deaths(run->local, &advice);
    else if (strcmp(rk_status_reason(st), "PEER_LOST") == 0)
        rk_str_append(&advice,
                      "the other daemons keep their models and wait for the next run: start the lost "
                      "daemon again and repeat the command; if it was only suspended, continue it and add "
                      "--takeover to the command\n");
    if (advice.bytes > 0) {
        rk_str_appendf(&text, "%s\n%.*s", rk_status_message(st), (int)advice.bytes - 1, advice.text);
        all = rk_status_from_wire(rk_status_code(st), rk_status_reason(st), rk_str_text(&text));
        rk_status_free(st);
    }
    rk_str_fini(&advice);
    rk_str_fini(&text);
    return all;
}

static struct rk_status *open_loggers(struct rk_run_command *run)
{
    struct rk_logger_config config = {
        .job = run->job,
        .job_dir = run->job_dir,
        .run_dir = run->dir.path,
        .console = rk_cli_has(run->cli, "quiet") ? NULL : stderr,
        .world_size = run->world_size,
        .begins_again = run->begins_again,
    };

    run->rows = rk_flow_rows_json(&run->inputs, run->job);
    config.rows = run->rows;
    RK_TRY(rk_flow_dumps_check(run->job));
    return rk_loggers_create(&run->loggers, &config);
}

/* --run-dir, else the resumed run's directory if it still exists, else a new one. A validation of a
 * checkpoint is a separate run. */
static struct rk_status *open_run_dir(struct rk_run_command *run)
{
    const struct rk_checkpoints *checkpoints = &run->checkpoints;
    const char *dir = rk_cli_find(run->cli, "run-dir");
    int64_t last_step = checkpoints->resume_path ? checkpoints->resume_step : RK_RUN_DIR_NEW;
    struct rk_status *st;

    if (rk_config_bool(run->job, "trainer.val_only"))
        return rk_run_dir_create(&run->dir, run->job, run->job_dir, dir, RK_RUN_DIR_NEW);
    if (!dir && checkpoints->run_dir && access(checkpoints->run_dir, W_OK) == 0)
        dir = checkpoints->run_dir;
    if (!checkpoints->resume_path && checkpoints->save_freq > 0 && dir && rk_run_dir_can_begin_again(dir))
        last_step = 0;
    run->begins_again = last_step == 0;
    st = rk_run_dir_create(&run->dir, run->job, run->job_dir, dir, last_step);
    if (!st && checkpoints->identity)
        rk_json_set(checkpoints->identity, "run_dir", rk_json_new_string(run->dir.path));
    return st;
}

static void tell_resume(const struct rk_run_command *run)
{
    const struct rk_checkpoints *checkpoints = &run->checkpoints;

    if (!checkpoints->resume_path) {
        if (run->begins_again)
            fprintf(stderr, "rankctl: the run in %s ended before its first checkpoint; starting it again\n",
                    run->dir.path);
        return;
    }
    fprintf(stderr, "rankctl: resuming from %s, in the run directory %s\n", checkpoints->resume_path,
            run->dir.path);
    if (checkpoints->changes.bytes > 0)
        fprintf(stderr, "rankctl: the job has changed since then:\n%s", rk_str_text(&checkpoints->changes));
}

/* Checks the disks of this machine, for --local. Daemons on other hosts check theirs before the first step.
 */
static struct rk_status *check_disk(const struct rk_run_command *run)
{
    const char *dir = rk_cli_find(run->cli, "run-dir");
    int64_t steps_per_epoch =
        rk_flow_inputs_num_rows(&run->inputs) / rk_config_int(run->job, "data.train_batch_size");

    if (!rk_cli_has(run->cli, "local"))
        return NULL;
    return rk_flow_check_disk(&(struct rk_flow_disk){
        .job = run->job,
        .inputs = &run->inputs,
        .checkpoints = &run->checkpoints,
        .run_dir = dir ? dir : ".",
        .total_steps = rk_job_int_or(run->job, "trainer.total_training_steps",
                                     steps_per_epoch * rk_config_int(run->job, "trainer.total_epochs")),
    });
}

static struct rk_status *execute(struct rk_run_command *run)
{
    struct rk_status *st;

    st = check_disk(run);
    if (!st)
        st = open_run_dir(run);
    if (!st)
        st = open_loggers(run);
    if (st) /* a full disk is not a usage error */
        return rk_status_code(st) == RK_RESOURCE_EXHAUSTED ? st : rk_cli_usage(st);
    tell_resume(run);
    rk_cli_watch_signals(NULL); /* from here on there is state to clean up */
    st = rk_cli_find(run->cli, "local") ? start_local(run) : NULL;
    if (!st)
        st = open_driver(run);
    if (!st)
        st = train(run);
    rk_loggers_end_line(run->loggers);
    st = add_advice(run, st);
    return rk_run_command_finish(run, st);
}

static struct rk_status *run_job(struct rk_cli *cli)
{
    struct rk_run_command run = {.cli = cli, .checkpoints = {.lock = -1}, .started_ns = rk_time_now_ns()};
    struct rk_status *st;

    st = read_inputs(&run);
    st = st ? rk_cli_usage(st) : open_checkpoints(&run);
    if (!st)
        st = execute(&run);
    rk_cli_watch_signals(NULL);
    rk_flow_context_fini(&run.flow);
    rk_driver_close(run.driver);
    rk_local_stop(run.local);
    rk_loggers_destroy(run.loggers);
    rk_json_free(run.validation);
    rk_json_free(run.rows);
    rk_run_dir_fini(&run.dir);
    rk_checkpoints_fini(&run.checkpoints);
    rk_flow_inputs_fini(&run.inputs);
    rk_hosts_fini(&run.hosts);
    rk_config_destroy(run.job);
    for (int i = 0; i < RK_RUN_FILE_COUNT; i++)
        rk_free(run.files[i]);
    rk_free(run.job_dir);
    return st;
}

static void help_keys(struct rk_str *out)
{
    rk_str_append(out, "\nKeys of a job, in its file or as KEY=VALUE:\n");
    rk_job_format_keys(out);
}

static const struct rk_option run_options[] = {
    {"local", "N", "start N daemons on this machine and stop them at the end"},
    {"run-dir", "DIR", "directory for metrics, report and model (default: runs/<experiment>/<UTC time>)"},
    {"record", "DIR", "record every call of the daemons of --local in DIR/rank-<i>, for rankctl replay"},
    {"quiet", NULL, "no progress"},
    {"takeover", NULL, "claim the daemons even if another driver holds them"},
    {NULL, NULL, NULL},
};

const struct rk_command rk_cmd_run = {
    .name = "run",
    .args = "[JOB.json|-] [KEY=VALUE...]",
    .min_args = 1,
    .max_args = INT_MAX,
    .summary = "run a training job",
    .details = "Ctrl-C cancels the running call and stops; a second one stops at once. With --local the "
               "trained model\n"
               "is saved first; other daemons keep it for lease.grace, and so do those of --local "
               "when it\n"
               "cannot be saved.",
    .options = run_options,
    .more_help = help_keys,
    .run = run_job,
};
