#include "tests/proc/cli_fixture.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_str.h"
#include "base/rk_time.h"

#define POLL_MS    10
#define TIMEOUT_MS 60000

#define EXIT_CONFIGURATION 2 /* of rankd: the device does not exist here, or has no plug-in */

char *write_tp1_job(const char *path, const char *name)
{
    char *copy = rk_test_temp_path(name), *text;
    struct rk_json *job;

    assert_ok(rk_json_parse_file(&job, path, 1 << 20, 0));
    rk_json_set_path(job, "actor_rollout_ref.actor.megatron.tensor_model_parallel_size", rk_json_new_int(1));
    text = rk_json_dump(job, 0, false);
    rk_test_write_file(copy, text, strlen(text));
    rk_free(text);
    rk_json_free(job);
    return copy;
}

struct rk_proc *start_rankctl(const char *const *args)
{
    RK_ARRAY(const char *) argv = {0};
    char *program = rk_proc_program("rankctl");
    struct rk_proc *proc;

    if (!rk_env("XDG_STATE_HOME")) /* nothing is written to the user's home directory */
        assert_int_equal(setenv("XDG_STATE_HOME", rk_test_temp_dir(), 1), 0);
    rk_array_append(&argv, program);
    for (; *args; args++)
        rk_array_append(&argv, *args);
    rk_array_append(&argv, NULL);
    proc = rk_proc_start(argv.items);
    rk_array_fini(&argv);
    rk_free(program);
    return proc;
}

struct outcome finish_rankctl(struct rk_proc *proc, int64_t timeout_ms)
{
    struct outcome outcome = {.code = rk_proc_wait(proc, timeout_ms)};

    outcome.out = rk_proc_stdout(proc);
    outcome.err = rk_proc_stderr(proc);
    rk_proc_destroy(proc);
    return outcome;
}

struct outcome run_rankctl(const char *const *args)
{
    return finish_rankctl(start_rankctl(args), TIMEOUT_MS);
}

static bool run_shell_case(const struct shell_case *c)
{
    const char *const argv[] = {"/bin/sh", "-c", c->script, NULL};
    char *program = rk_proc_program("rankctl"), *dir = new_run_dir();
    struct outcome outcome;
    bool is_right;

    if (!rk_env("XDG_STATE_HOME"))
        assert_int_equal(setenv("XDG_STATE_HOME", rk_test_temp_dir(), 1), 0);
    assert_int_equal(setenv("rankctl", program, 1), 0);
    assert_int_equal(setenv("dir", dir, 1), 0);
    outcome = finish_rankctl(rk_proc_start(argv), TIMEOUT_MS);
    is_right = outcome.code == c->code && (!c->out || strstr(outcome.out, c->out)) &&
               (!c->err || strstr(outcome.err, c->err));
    if (!is_right)
        print_message("%s\nexit code %d, expected %d\nstdout: %s\nstderr: %s\n", c->script, outcome.code,
                      c->code, outcome.out, outcome.err);
    outcome_fini(&outcome);
    rk_free(dir);
    rk_free(program);
    return is_right;
}

void run_shell_cases(const struct shell_case *cases, size_t count)
{
    bool is_fine = true;

    for (size_t i = 0; i < count; i++)
        is_fine &= run_shell_case(&cases[i]);
    assert_true(is_fine);
}

void outcome_fini(struct outcome *outcome)
{
    rk_free(outcome->out);
    rk_free(outcome->err);
}

void append_args(const char **args, size_t capacity, const char *const *more)
{
    size_t count = 0;

    while (args[count])
        count++;
    for (; more && *more; more++) {
        assert_true(count + 1 < capacity);
        args[count++] = *more;
    }
}

void assert_exit(const struct outcome *outcome, int code)
{
    if (outcome->code != code)
        fail_msg("exit code %d, expected %d\nstdout: %s\nstderr: %s", outcome->code, code, outcome->out,
                 outcome->err);
}

void assert_text(const char *where, const char *text, const char *part)
{
    if (!strstr(text, part))
        fail_msg("%s lacks '%s':\n%s", where, part, text);
}

void wait_stderr(struct rk_proc *proc, const char *text, int64_t timeout_ms)
{
    int64_t end_ns = rk_time_now_ns() + rk_proc_timeout_ms(timeout_ms) * 1000000;

    for (;;) {
        char *err = rk_proc_stderr(proc);
        bool is_there = strstr(err, text) != NULL;

        if (!is_there && (rk_time_now_ns() > end_ns || !rk_proc_is_running(proc)))
            fail_msg("stderr lacks '%s': %s", text, err);
        rk_free(err);
        if (is_there)
            return;
        rk_time_sleep_ms(POLL_MS);
    }
}

void find_daemons(struct rk_proc *proc, pid_t *pids, int count)
{
    char *path = rk_format("/proc/%d/task/%d/children", (int)rk_proc_pid(proc), (int)rk_proc_pid(proc));
    char *text = rk_test_read_file(path, NULL), *rest = text;

    for (int i = 0; i < count; i++) {
        pids[i] = (pid_t)strtol(rest, &rest, 10);
        if (pids[i] <= 0)
            fail_msg("rankctl has the children '%s', expected %d", text, count);
    }
    rk_free(text);
    rk_free(path);
}

void assert_gone(const pid_t *pids, int count, int64_t timeout_ms)
{
    int64_t end_ns = rk_time_now_ns() + rk_proc_timeout_ms(timeout_ms) * 1000000;

    for (int i = 0; i < count; i++) {
        while (kill(pids[i], 0) == 0 || errno != ESRCH) {
            if (rk_time_now_ns() > end_ns)
                fail_msg("daemon %d (pid %d) is still there", i, (int)pids[i]);
            rk_time_sleep_ms(POLL_MS);
        }
    }
}

char *write_secret(const char *name, const char *text, mode_t mode)
{
    char *path = rk_test_temp_path(name);

    rk_test_write_file(path, text, strlen(text));
    assert_int_equal(chmod(path, mode), 0);
    return path;
}

char *new_run_dir(void)
{
    static int count;
    char *name = rk_format("run-%d", ++count);
    char *path = rk_test_temp_path(name);

    rk_free(name);
    return path;
}

#define TINY_ARGS_MAX 48

struct outcome run_tiny_job(const char *dir, const char *num_daemons, const char *const *keys,
                            const char *const *more)
{
    const char *args[TINY_ARGS_MAX] = {"run", TINY_JOB, "--run-dir", dir, TINY, "--local", num_daemons};

    append_args(args, TINY_ARGS_MAX, keys);
    append_args(args, TINY_ARGS_MAX, more);
    return run_rankctl(args);
}

char *run_new_tiny_job(const char *num_daemons, const char *const *keys, const char *const *more)
{
    char *dir = new_run_dir();
    struct outcome outcome = run_tiny_job(dir, num_daemons, keys, more);

    assert_exit(&outcome, 0);
    outcome_fini(&outcome);
    return dir;
}

struct rk_json *parse_json(const char *text)
{
    struct rk_json *json;

    assert_ok(rk_json_parse(&json, text, strlen(text), "output", 0));
    return json;
}

struct rk_json *read_json(const char *dir, const char *name)
{
    char *path = rk_path_join(dir, name);
    char *text = rk_test_read_file(path, NULL);
    struct rk_json *json = parse_json(text);

    rk_free(text);
    rk_free(path);
    return json;
}

static char *read_lines(const char *dir)
{
    char *path = rk_path_join(dir, "metrics.jsonl");
    char *text = rk_test_read_file(path, NULL);

    rk_free(path);
    return text;
}

int64_t count_metrics(const char *dir)
{
    char *text = read_lines(dir);
    int64_t count = 0;

    for (const char *c = text; *c; c++)
        count += *c == '\n';
    rk_free(text);
    return count;
}

struct rk_json *read_metrics(const char *dir, int64_t step)
{
    char *text = read_lines(dir), *line = text;
    struct rk_json *metrics;

    for (int64_t i = 1; i < step; i++) {
        line = strchr(line, '\n');
        assert_non_null(line);
        line++;
    }
    line[strcspn(line, "\n")] = '\0';
    metrics = parse_json(line);
    rk_free(text);
    return metrics;
}

double metric(const struct rk_json *metrics, const char *name)
{
    const struct rk_json *value = rk_json_find(metrics, name);

    if (!value)
        fail_msg("metric '%s' is missing", name);
    return rk_json_as_real(value, NAN);
}

static bool is_time(const char *name)
{
    return rk_str_has_prefix(name, "timing") || rk_str_has_prefix(name, "perf/") ||
           strcmp(name, "train/mfu") == 0;
}

void assert_same_step(const struct rk_json *metrics, const struct rk_json *expected, int64_t step)
{
    for (void *it = rk_json_iter(expected); it; it = rk_json_iter_next(expected, it)) {
        const char *name = rk_json_iter_key(it);

        if (!is_time(name) && !rk_json_equal(rk_json_iter_value(it), rk_json_find(metrics, name)))
            fail_msg("step %lld: %s is %g, expected %g", (long long)step, name, metric(metrics, name),
                     metric(expected, name));
    }
}

void assert_same_file(const char *dir, const char *expected_dir, const char *name)
{
    char *path = rk_path_join(dir, name), *expected_path = rk_path_join(expected_dir, name), *text, *expected;
    size_t bytes, expected_bytes;

    text = rk_test_read_file(path, &bytes);
    expected = rk_test_read_file(expected_path, &expected_bytes);
    assert_int_equal(bytes, expected_bytes);
    assert_true(memcmp(text, expected, bytes) == 0);
    rk_free(expected);
    rk_free(text);
    rk_free(expected_path);
    rk_free(path);
}

bool is_on_gpus(void)
{
    const char *device = rk_env("RK_TEST_DEVICE");

    if (!device || strcmp(device, "cpu") == 0)
        return false;
    if (strcmp(device, "cuda") != 0)
        fail_msg("RK_TEST_DEVICE=%s, expected cpu or cuda", device);
    return true;
}

const char *cli_device(void)
{
    return is_on_gpus() ? "device=cuda" : "device=cpu";
}

static bool has_started(struct rk_proc *daemon)
{
    char *out = rk_proc_stdout(daemon);
    bool has = strchr(out, '\n') != NULL;

    rk_free(out);
    return has;
}

bool has_devices(int count)
{
    char *flag = rk_format("--device=cuda:%d", count - 1);
    struct rk_proc *daemon;
    bool has = true;

    if (is_on_gpus()) {
        daemon = rk_proc_start_rankd((const char *const[]){flag, NULL});
        while (!has_started(daemon) && rk_proc_is_running(daemon))
            rk_time_sleep_ms(POLL_MS);
        has = rk_proc_is_running(daemon) || rk_proc_wait(daemon, TIMEOUT_MS) != EXIT_CONFIGURATION;
        rk_proc_destroy(daemon);
    }
    rk_free(flag);
    return has;
}

int count_devices(int most)
{
    int count = most;

    while (count > 1 && !has_devices(count))
        count /= 2;
    return count;
}

void skip_without_devices(int count)
{
    if (!has_devices(count))
        rk_test_skip_program("this machine or build has no %d GPUs", count);
}

struct rk_proc *start_daemon_on(int index, const char *more_arg)
{
    char *flag = rk_format(is_on_gpus() ? "--device=cuda:%d" : "--slot=%d", index);
    struct rk_proc *daemon = start_daemon((const char *const[]){flag, more_arg, NULL});

    rk_free(flag);
    return daemon;
}

struct rk_proc *start_daemon(const char *const *more_args)
{
    static int count;
    RK_ARRAY(const char *) args = {0};
    char *listen = rk_format("--rpc.listen=unix:%s/d%d.sock", rk_test_temp_dir(), ++count);
    char *roots = rk_format("--ckpt.roots=[\"%s\"]", rk_test_temp_dir());
    struct rk_proc *daemon;

    rk_array_append(&args, listen);
    rk_array_append(&args, roots);
    rk_array_append(&args, "--cpu.num_threads=1");
    for (; more_args && *more_args; more_args++)
        rk_array_append(&args, *more_args);
    rk_array_append(&args, NULL);
    daemon = rk_proc_start_rankd(args.items);
    rk_proc_address(daemon);
    rk_array_fini(&args);
    rk_free(listen);
    rk_free(roots);
    return daemon;
}
