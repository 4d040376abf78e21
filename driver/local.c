/* Daemons that the driver starts on this machine and stops at its end. */
#include "driver/rk_driver.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_thread.h"
#include "base/rk_time.h"
#include "base/rk_child.h"
#include "base/rk_file.h"
#include "base/rk_small_file.h"
#include "driver/local_internal.h"

/* The fields of the first version. */
#define CONFIG_BYTES_MIN  offsetof(struct rk_local_config, num_threads)
#define START_TIMEOUT_MS  30000
#define STOP_TIMEOUT_MS   5000
#define STOP_POLL_MS      10
#define DEATH_WAIT_MS     200
#define DETACH_TIMEOUT_MS 5000
#define LISTENING         "rankd: listening on "
#define DETACHED          "rankd: detached"
#define ARGS_MAX          14
#define LAST_WORDS_BYTES  1024
#define LINE_BYTES        512

struct child {
    pid_t pid;       /* 0: not started, or ended and collected */
    pid_t old_pid;   /* for messages */
    int out;         /* its standard output; -1: closed */
    int wait_status; /* once collected */
    bool has_ended;  /* and was collected */
    char *address, *log_path;
};

struct rk_local {
    struct rk_local_dir dir;
    int32_t num_children;
    struct child *children;
    const char **addresses;
    bool is_detached; /* the children outlive this object */
};

/* --- one child --- */

struct child_files {
    int null, out, log;
    int lock; /* of the private directory, which lives as long as one of its daemons */
};

/* Between fork and exec: nothing but async-signal-safe calls. A daemon that is detached outlives its parent.
 */
static void exec_child(char *const *args, char *const *environment, const struct child_files *files,
                       pid_t parent)
{
    rk_child_begin(parent, NULL, 0);
    if (dup2(files->null, STDIN_FILENO) < 0 || dup2(files->out, STDOUT_FILENO) < 0 ||
        dup2(files->log, STDERR_FILENO) < 0 || fcntl(files->lock, F_SETFD, 0) != 0)
        _exit(127);
    execve(args[0], args, environment);
    _exit(errno == ENOENT || errno == EACCES ? 126 : 127);
}

/* Configuration of other daemons, or variables of the driver's service manager. */
static bool is_not_for_children(const char *variable)
{
    static const char *const names[] = {"RUNTIME_DIRECTORY=", "STATE_DIRECTORY=", "NOTIFY_SOCKET=",
                                        "GRPC_VERBOSITY=NONE" /* rankctl's: daemons log gRPC's errors */};

    for (size_t i = 0; i < RK_ARRAY_LEN(names); i++) {
        if (rk_str_has_prefix(variable, names[i]))
            return true;
    }
    return rk_str_has_prefix(variable, "RANKD_") && !rk_str_has_prefix(variable, "RANKD_FAULTS=");
}

/* The driver's environment, borrowed, without the configuration of daemons, and with sleeping waits of
 * OpenMP's threads. The daemons use all cores together, and a thread that spins while it waits for another
 * one keeps it from running: a step of two daemons with 8 threads each on 16 cores took 20 times as long.
 * rk_free the array. */
static char **make_environment(void)
{
    static char passive[] = "OMP_WAIT_POLICY=passive";
    size_t count = 0, num_copied = 0;
    char **copy;

    while (environ[count])
        count++;
    copy = rk_calloc(count + 2, sizeof(*copy));
    for (size_t i = 0; i < count; i++) {
        if (!is_not_for_children(environ[i]))
            copy[num_copied++] = environ[i];
    }
    if (!rk_env("OMP_WAIT_POLICY"))
        copy[num_copied] = passive;
    return copy;
}

static struct rk_status *spawn(struct child *child, char *const *args, int lock)
{
    char **environment = make_environment();
    struct rk_status *st = NULL;
    int out[2] = {-1, -1};
    struct child_files files = {.null = open("/dev/null", O_RDONLY | O_CLOEXEC),
                                .log = open(child->log_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666),
                                .lock = lock};
    pid_t parent = getpid();

    if (files.log < 0)
        st = rk_file_errno("cannot create", child->log_path);
    else if (files.null < 0 || pipe2(out, O_CLOEXEC) != 0)
        st = RK_FAIL(RK_RESOURCE_EXHAUSTED, "cannot start a daemon: %s", strerror(errno));
    if (!st) {
        files.out = out[1];
        child->pid = fork();
        if (child->pid == 0)
            exec_child(args, environment, &files, parent);
        if (child->pid < 0)
            st = RK_FAIL(RK_RESOURCE_EXHAUSTED, "cannot start a daemon: %s", strerror(errno));
        child->old_pid = child->pid = RK_MAX(child->pid, 0);
    }
    rk_free(environment);
    if (!st) {
        child->out = out[0];
        out[0] = -1;
    }
    if (files.null >= 0)
        close(files.null);
    if (files.log >= 0)
        close(files.log);
    for (int i = 0; i < 2; i++) {
        if (out[i] >= 0)
            close(out[i]);
    }
    return st;
}

static struct rk_status *start_child(struct rk_local *local, const struct rk_local_config *config,
                                     int32_t rank, const char *roots)
{
    struct child *child = &local->children[rank];
    char *file = rk_local_dir_config(&local->dir), *token = rk_local_dir_token(&local->dir);
    struct rk_str device = {0};
    char *args[ARGS_MAX] = {0};
    int num_args = 0;
    struct rk_status *st;

    rk_str_append(&device, config->device);
    if (strcmp(config->device, "cuda") == 0)
        rk_str_appendf(&device, ":%d", rank);
    args[num_args++] = rk_strdup(config->program);
    args[num_args++] = rk_format("--config=%s", file);
    args[num_args++] = rk_format("--rpc.listen=%s", child->address);
    args[num_args++] = rk_format("--rpc.token_file=%s", token);
    args[num_args++] = rk_format("--device=%s", rk_str_text(&device));
    args[num_args++] = rk_format("--slot=%d", rank);
    args[num_args++] =
        rk_format("--cpu.num_threads=%" PRId64, config->num_threads > 0
                                                    ? config->num_threads
                                                    : RK_MAX(rk_thread_num_cpus() / config->num_daemons, 1));
    args[num_args++] = rk_strdup("--comm.listen=unix");
    args[num_args++] = rk_strdup("--lease.grace=" RK_LOCAL_GRACE);
    args[num_args++] = rk_format("--ckpt.roots=%s", roots);
    args[num_args++] = rk_format("--flight.dir=%s", config->log_dir);
    if (config->record_dir)
        args[num_args++] = rk_format("--record.dir=%s/rank-%d", config->record_dir, rank);
    if (config->is_dry_run)
        args[num_args++] = rk_strdup("--dry_run=true");
    RK_ASSERT(num_args < ARGS_MAX);
    st = spawn(child, args, local->dir.lock);
    for (int i = 0; i < num_args; i++)
        rk_free(args[i]);
    rk_str_fini(&device);
    rk_free(token);
    rk_free(file);
    return st;
}

/* Collects the child if it has ended. */
static bool reap(struct child *child)
{
    if (child->pid == 0)
        return true;
    if (waitpid(child->pid, &child->wait_status, WNOHANG) != child->pid)
        return false;
    child->pid = 0;
    child->has_ended = true;
    return true;
}

/* Waits until `wanted` of the children have ended, at most for that time; a negative one: without a limit. */
static bool wait_for_ends(struct child *children, int32_t count, int32_t wanted, int64_t timeout_ms)
{
    int64_t deadline_ns = rk_time_now_ns() + timeout_ms * 1000000LL;

    for (;;) {
        int32_t num_ended = 0;

        for (int32_t i = 0; i < count; i++)
            num_ended += reap(&children[i]);
        if (num_ended >= wanted)
            return true;
        if (timeout_ms >= 0 && rk_time_now_ns() >= deadline_ns)
            return false;
        rk_time_sleep_ms(STOP_POLL_MS);
    }
}

static void describe_end(const struct child *child, int32_t rank, struct rk_str *out)
{
    rk_str_appendf(out, "rankd of rank %d (pid %d) ", rank, (int)child->old_pid);
    if (WIFSIGNALED(child->wait_status))
        rk_str_appendf(out, "was killed by signal %d", WTERMSIG(child->wait_status));
    else
        rk_str_appendf(out, "exited with code %d", WEXITSTATUS(child->wait_status));
    rk_str_appendf(out, "; its log is %s\n", child->log_path);
}

/* The last line of the log: the daemon's error message. */
static void append_last_words(const char *log_path, struct rk_str *out)
{
    int fd = open(log_path, O_RDONLY | O_CLOEXEC);
    off_t size = fd >= 0 ? lseek(fd, 0, SEEK_END) : 0;
    char text[LAST_WORDS_BYTES + 1];
    ssize_t bytes = fd >= 0 ? pread(fd, text, LAST_WORDS_BYTES, RK_MAX(size - LAST_WORDS_BYTES, 0)) : 0;
    char *line;

    if (fd >= 0)
        close(fd);
    while (bytes > 0 && text[bytes - 1] == '\n')
        bytes--;
    if (bytes <= 0)
        return;
    text[bytes] = '\0';
    line = strrchr(text, '\n');
    rk_str_appendf(out, ": %s", line ? line + 1 : text);
}

/* Maps the exit codes of rankd (daemon/rk_daemon.h): change the job, wait for another process, or
 * investigate. */
static struct rk_status *start_error(const struct child *child, const char *text)
{
    int code = WIFEXITED(child->wait_status) ? WEXITSTATUS(child->wait_status) : 1;

    if (code == 2)
        return RK_FAIL(RK_INVALID_ARGUMENT, "did not start: %s", text);
    if (code == 4)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "HELD", "did not start: %s", text);
    return RK_FAIL(RK_INTERNAL, "did not start: %s", text);
}

/* Waits for a child that has closed its output: the kernel closes the files of a process before it can be
 * collected. */
static bool ends_soon(struct child *child)
{
    return wait_for_ends(child, 1, 1, STOP_TIMEOUT_MS);
}

static struct rk_status *died_at_start(struct child *child, int32_t rank)
{
    struct rk_str text = {0};
    struct rk_status *st;

    (void)ends_soon(child);
    describe_end(child, rank, &text);
    text.text[--text.bytes] = '\0'; /* its newline */
    append_last_words(child->log_path, &text);
    st = start_error(child, rk_str_text(&text));
    rk_str_fini(&text);
    return st;
}

/* Reads the next line of the child's output, with its newline. UNAVAILABLE when it closed its output,
 * DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED for a line that is too long. */
static struct rk_status *read_line(struct child *child, int64_t deadline_ns, char *line, size_t room)
{
    size_t bytes = 0;

    for (;;) {
        struct pollfd ready = {.fd = child->out, .events = POLLIN};
        int64_t left_ms = (deadline_ns - rk_time_now_ns()) / 1000000;
        ssize_t got;

        if (left_ms <= 0)
            return RK_FAIL(RK_DEADLINE_EXCEEDED, "no answer in time");
        if (poll(&ready, 1, (int)left_ms) <= 0)
            continue;
        got = read(child->out, line + bytes, 1);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return RK_FAIL(RK_UNAVAILABLE, "it closed its output");
        line[++bytes] = '\0';
        if (line[bytes - 1] == '\n')
            return NULL;
        if (bytes == room - 1)
            return RK_FAIL(RK_RESOURCE_EXHAUSTED, "a line of more than %zu bytes", bytes);
    }
}

/* The first line of the child's output. */
static struct rk_status *wait_until_listening(struct child *child, int32_t rank, int64_t deadline_ns)
{
    char line[LINE_BYTES];
    struct rk_status *st = read_line(child, deadline_ns, line, sizeof(line));
    rk_code_t code = rk_status_code(st);

    rk_status_free(st);
    if (code == RK_DEADLINE_EXCEEDED)
        return RK_FAIL(RK_DEADLINE_EXCEEDED,
                       "rankd of rank %d did not start listening in time; its log is %s", rank,
                       child->log_path);
    if (code == RK_UNAVAILABLE)
        return died_at_start(child, rank);
    if (!st && rk_str_has_prefix(line, LISTENING))
        return NULL;
    return RK_FAIL(RK_INTERNAL, "rankd of rank %d printed '%.*s', expected '" LISTENING "ADDRESS'", rank,
                   (int)strcspn(line, "\n"), line);
}

/* --- all daemons --- */

static char *roots_as_json(const char *const *roots)
{
    struct rk_json *array = rk_json_new_array();
    char *text;

    for (; roots && *roots; roots++)
        rk_json_append(array, rk_json_new_string(*roots));
    text = rk_json_dump(array, 0, false);
    rk_json_free(array);
    return text;
}

/* The program may have been compiled with fewer fields: the others have their default. */
static struct rk_status *read_config(struct rk_local_config *out, const struct rk_local_config *given)
{
    *out = (struct rk_local_config){0};
    if (given->struct_size < CONFIG_BYTES_MIN || given->struct_size > sizeof(*out))
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "rk_local_config.struct_size=%zu, expected %zu to %zu; the program was compiled with "
                       "the headers of another version of librankd_driver",
                       given->struct_size, CONFIG_BYTES_MIN, sizeof(*out));
    memcpy(out, given, given->struct_size);
    return NULL;
}

static struct rk_status *start_children(struct rk_local **out, const struct rk_local_config *config)
{
    int64_t timeout_ms = config->start_timeout_ms > 0 ? config->start_timeout_ms : START_TIMEOUT_MS;
    int64_t deadline_ns = rk_time_now_ns() + timeout_ms * 1000000LL;
    struct rk_local *local;
    struct rk_status *st;
    char *roots;

    if (access(config->program, X_OK) != 0)
        return RK_WRAP(rk_file_errno("cannot run", config->program), "starting daemons");
    RK_TRY(rk_make_dirs(config->log_dir));
    local = rk_calloc(1, sizeof(*local));
    st = rk_local_dir_open(&local->dir);
    local->children = rk_calloc((size_t)config->num_daemons, sizeof(*local->children));
    local->addresses = rk_calloc((size_t)config->num_daemons, sizeof(*local->addresses));
    roots = roots_as_json(config->ckpt_roots);
    for (int32_t i = 0; i < config->num_daemons && !st; i++) {
        struct child *child = &local->children[i];

        child->out = -1;
        child->address = rk_format("unix:%s/%d.sock", local->dir.path, i);
        child->log_path = rk_format("%s/rankd-%d.log", config->log_dir, i);
        local->addresses[i] = child->address;
        local->num_children = i + 1;
        st = start_child(local, config, i, roots);
    }
    for (int32_t i = 0; i < config->num_daemons && !st; i++)
        st = wait_until_listening(&local->children[i], i, deadline_ns);
    rk_free(roots);
    if (st) {
        rk_local_stop(local);
        return st;
    }
    *out = local;
    return NULL;
}

struct rk_status *rk_local_start(struct rk_local **out, const struct rk_local_config *given)
{
    struct rk_local_config config;

    *out = NULL;
    RK_TRY(read_config(&config, given));
    return start_children(out, &config);
}

static void signal_all(struct rk_local *local, int signal_number)
{
    for (int32_t i = 0; i < local->num_children; i++) {
        if (local->children[i].pid > 0)
            kill(local->children[i].pid, signal_number);
    }
}

struct rk_status *rk_local_detach(struct rk_local *local)
{
    int64_t deadline_ns = rk_time_now_ns() + DETACH_TIMEOUT_MS * 1000000LL;
    char line[LINE_BYTES];

    signal_all(local, SIGUSR1);
    for (int32_t i = 0; i < local->num_children; i++) {
        struct child *child = &local->children[i];
        struct rk_status *st = NULL;

        if (reap(child)) /* a daemon that has ended holds no model */
            continue;
        st = read_line(child, deadline_ns, line, sizeof(line));
        if (rk_status_code(st) == RK_UNAVAILABLE && ends_soon(child)) {
            rk_status_free(st);
            continue;
        }
        if (!st && !rk_str_has_prefix(line, DETACHED))
            st = RK_FAIL(RK_INTERNAL, "it printed '%.*s', expected '" DETACHED "'", (int)strcspn(line, "\n"),
                         line);
        if (st)
            return RK_WRAP(st, "detaching rankd of rank %d (pid %d)", i, (int)child->old_pid);
    }
    local->is_detached = true;
    return NULL;
}

static void stop_all(struct rk_local *local)
{
    signal_all(local, SIGTERM);
    signal_all(local, SIGCONT); /* a suspended process would not react */
    if (wait_for_ends(local->children, local->num_children, local->num_children, STOP_TIMEOUT_MS))
        return;
    signal_all(local, SIGKILL); /* which cannot be refused */
    (void)wait_for_ends(local->children, local->num_children, local->num_children, -1);
}

void rk_local_stop(struct rk_local *local)
{
    if (!local)
        return;
    if (!local->is_detached)
        stop_all(local);
    for (int32_t i = 0; i < local->num_children; i++) {
        struct child *child = &local->children[i];

        if (child->out >= 0)
            close(child->out);
        rk_free(child->address);
        rk_free(child->log_path);
    }
    rk_local_dir_close(&local->dir, local->is_detached);
    rk_free(local->children);
    rk_free(local->addresses);
    rk_free(local);
}

const char *const *rk_local_addresses(const struct rk_local *local)
{
    return local->addresses;
}

void rk_local_describe_deaths(struct rk_local *local, struct rk_str *out)
{
    /* The connections of a dying process close a moment before it can be waited for. */
    (void)wait_for_ends(local->children, local->num_children, 1, DEATH_WAIT_MS);
    for (int32_t i = 0; i < local->num_children; i++) {
        if (local->children[i].has_ended)
            describe_end(&local->children[i], i, out);
    }
}
