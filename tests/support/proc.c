#include "tests/support/proc.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_array.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
#include "tests/support/test.h"

#define LISTENING "rankd: listening on "
#define POLL_MS   5
#define START_MS  20000

struct rk_proc {
    pid_t pid;
    char *name;
    char *stdout_path, *stderr_path; /* files, so that a process never blocks on its reader */
    char *address;
    bool has_ended;
    int wait_status;
};

static int num_started;

int64_t rk_proc_timeout_ms(int64_t ms)
{
    const char *text = rk_env("RK_TEST_TIMEOUT_FACTOR");
    int64_t factor = 1;

    if (text && (!rk_parse_i64(text, &factor) || factor < 1))
        fail_msg("RK_TEST_TIMEOUT_FACTOR=%s, expected a number from 1", text);
    return ms * factor;
}

static char *output_path(const char *stream)
{
    char *name = rk_format("proc-%d-%d.%s", (int)getpid(), num_started, stream);
    char *path = rk_test_temp_path(name);

    rk_free(name);
    return path;
}

static int open_output(const char *path)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    return fd;
}

struct rk_proc *rk_proc_start(const char *const *argv)
{
    struct rk_proc *proc = rk_calloc(1, sizeof(*proc));
    int out, err;

    num_started++;
    proc->name = rk_strdup(argv[0]);
    proc->stdout_path = output_path("out");
    proc->stderr_path = output_path("err");
    out = open_output(proc->stdout_path);
    err = open_output(proc->stderr_path);
    proc->pid = fork();
    assert_true(proc->pid >= 0);
    if (proc->pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        dup2(out, STDOUT_FILENO);
        dup2(err, STDERR_FILENO);
        execv(argv[0], (char *const *)argv);
        fprintf(stderr, "%s: %s\n", argv[0], strerror(errno));
        _exit(127);
    }
    close(out);
    close(err);
    return proc;
}

char *rk_proc_program(const char *name)
{
    return rk_path_join(RK_TEST_BINARY_DIR "/bin", name);
}

struct rk_proc *rk_proc_start_rankd(const char *const *args)
{
    RK_ARRAY(const char *) argv = {0};
    char *program = rk_proc_program("rankd");
    struct rk_proc *proc;

    rk_array_append(&argv, program);
    for (; args && *args; args++)
        rk_array_append(&argv, *args);
    rk_array_append(&argv, NULL);
    proc = rk_proc_start(argv.items);
    rk_array_fini(&argv);
    rk_free(program);
    return proc;
}

void rk_proc_destroy(struct rk_proc *proc)
{
    if (!proc)
        return;
    if (rk_proc_is_running(proc)) {
        kill(proc->pid, SIGKILL);
        waitpid(proc->pid, NULL, 0);
    }
    unlink(proc->stdout_path);
    unlink(proc->stderr_path);
    rk_free(proc->stdout_path);
    rk_free(proc->stderr_path);
    rk_free(proc->address);
    rk_free(proc->name);
    rk_free(proc);
}

char *rk_proc_stdout(struct rk_proc *proc)
{
    return rk_test_read_file(proc->stdout_path, NULL);
}

char *rk_proc_stderr(struct rk_proc *proc)
{
    return rk_test_read_file(proc->stderr_path, NULL);
}

static void fail_with_output(struct rk_proc *proc, const char *what)
{
    char *out = rk_proc_stdout(proc), *err = rk_proc_stderr(proc);

    print_error("%s (pid %d): %s\n--- stdout\n%s\n--- stderr\n%s\n", proc->name, (int)proc->pid, what, out,
                err);
    rk_free(out);
    rk_free(err);
    fail();
}

bool rk_proc_is_running(struct rk_proc *proc)
{
    if (!proc->has_ended && waitpid(proc->pid, &proc->wait_status, WNOHANG) == proc->pid)
        proc->has_ended = true;
    return !proc->has_ended;
}

void rk_proc_wait_output(struct rk_proc *proc, const char *text, int64_t timeout_ms)
{
    int64_t deadline_ns = rk_time_now_ns() + rk_proc_timeout_ms(timeout_ms) * 1000000;
    bool is_found = false, is_running = true;

    while (!is_found) {
        char *out;

        if (!is_running || rk_time_now_ns() > deadline_ns)
            fail_with_output(proc,
                             is_running ? "output did not come in time" : "ended before its output came");
        is_running = rk_proc_is_running(proc); /* checked first, so that the last output of an exited process
                                                * is read */
        out = rk_proc_stdout(proc);
        is_found = strstr(out, text) != NULL;
        rk_free(out);
        if (!is_found)
            rk_time_sleep_ms(POLL_MS);
    }
}

const char *rk_proc_address(struct rk_proc *proc)
{
    char *out, *begin;

    if (proc->address)
        return proc->address;
    rk_proc_wait_output(proc, "\n", START_MS);
    out = rk_proc_stdout(proc);
    if (!rk_str_has_prefix(out, LISTENING))
        fail_with_output(proc, "the first line does not say where it listens");
    begin = out + strlen(LISTENING);
    proc->address = rk_strndup(begin, strcspn(begin, "\n"));
    rk_free(out);
    return proc->address;
}

pid_t rk_proc_pid(const struct rk_proc *proc)
{
    return proc->pid;
}

void rk_proc_signal(struct rk_proc *proc, int signum)
{
    siginfo_t info;

    if (!rk_proc_is_running(proc))
        return;
    assert_int_equal(kill(proc->pid, signum), 0);
    /* Each thread stops when it next runs, until then it may still answer. */
    if (signum == SIGSTOP)
        assert_int_equal(waitid(P_PID, (id_t)proc->pid, &info, WSTOPPED | WEXITED | WNOWAIT), 0);
}

int rk_proc_wait(struct rk_proc *proc, int64_t timeout_ms)
{
    int64_t deadline_ns = rk_time_now_ns() + rk_proc_timeout_ms(timeout_ms) * 1000000;

    while (rk_proc_is_running(proc)) {
        if (rk_time_now_ns() > deadline_ns)
            fail_with_output(proc, "did not end in time");
        rk_time_sleep_ms(POLL_MS);
    }
    return WIFEXITED(proc->wait_status) ? WEXITSTATUS(proc->wait_status) : -WTERMSIG(proc->wait_status);
}

/* A line of the process's status. */
static int64_t status_kib(const struct rk_proc *proc, const char *name)
{
    char *path = rk_format("/proc/%d/status", (int)proc->pid);
    char *text = rk_test_read_file(path, NULL);
    const char *line = strstr(text, name);
    int64_t kib = -1;

    assert_non_null(line);
    kib = strtoll(line + strlen(name), NULL, 10);
    rk_free(text);
    rk_free(path);
    return kib;
}

int64_t rk_proc_rss_kib(const struct rk_proc *proc)
{
    return status_kib(proc, "VmRSS:");
}

int64_t rk_proc_peak_rss_kib(const struct rk_proc *proc)
{
    return status_kib(proc, "VmHWM:");
}
