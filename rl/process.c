#include "rl/rk_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_time.h"
#include "base/rk_child.h"

#define EXIT_GRACE_MS    2000 /* between end of file on their inputs and SIGKILL */
#define STATUS_WAIT_MS   500  /* for the exit status of a process that has closed its output */
#define POLL_MS          5
#define READ_BYTES       65536
#define SENT_BYTES_KEPT  (1 << 20) /* sent bytes of the buffer before they are dropped, for a slow reader */
#define MESSAGE_LINE_MAX 4096      /* longer lines of standard error are cut into pieces */

extern char **environ;

/* --- start --- */

enum { END_IN, END_OUT, END_ERR, END_EXEC, END_LIFE, ENDS };

/* A process of the worker's group that kills it when the other end of the pipe `life` closes, which it does
 * when the driver ends, killed or not. It is not a child of the program, which need not collect it. */
static void start_watcher(int life)
{
    pid_t pid = _Fork();
    char byte;

    if (pid > 0)
        (void)waitpid(pid, NULL, 0);
    if (pid != 0)
        return;
    if (_Fork() != 0)
        _exit(0);
    /* Without the other descriptors of the driver: they would keep the pipes of other workers open. */
    if (dup2(life, STDIN_FILENO) != STDIN_FILENO || close_range(STDIN_FILENO + 1, ~0U, 0) != 0)
        _exit(0);
    while (read(STDIN_FILENO, &byte, 1) < 0 && errno == EINTR)
        continue;
    (void)kill(0, SIGKILL);
    _exit(0);
}

/* Between fork and exec only async-signal-safe calls. */
static void exec_child(const char *program, char *const *argv, const char *dir, const int *fds, pid_t parent)
{
    static const int reset[] = {SIGPIPE, SIGXFSZ, SIGINT, SIGTERM};
    ssize_t written;
    int error;

    rk_child_begin(parent, reset, RK_ARRAY_LEN(reset));
    start_watcher(fds[END_LIFE]);
    if (chdir(dir) == 0 && dup2(fds[END_IN], STDIN_FILENO) >= 0 && dup2(fds[END_OUT], STDOUT_FILENO) >= 0 &&
        dup2(fds[END_ERR], STDERR_FILENO) >= 0)
        execve(program, argv, environ);
    error = errno;
    written = write(fds[END_EXEC], &error, sizeof(error));
    _exit(written == sizeof(error) ? 126 : 127);
}

/* The file that a name without a slash is in PATH; the name itself when it is in none. rk_free it. */
static char *find_program(const char *name)
{
    const char *path = rk_env("PATH");
    char *candidate = NULL;

    for (const char *part = strchr(name, '/') ? NULL : path; part && *part;) {
        size_t bytes = strcspn(part, ":");
        char *dir = rk_strndup(part, bytes);

        candidate = rk_path_join(bytes ? dir : ".", name);
        rk_free(dir);
        if (access(candidate, X_OK) == 0)
            return candidate;
        rk_free(candidate);
        part += bytes + (part[bytes] == ':');
    }
    return rk_strdup(name);
}

static void close_all(int *fds, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (fds[i] >= 0)
            close(fds[i]);
        fds[i] = -1;
    }
}

static void set_nonblocking(int fd)
{
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

/* ours: the driver's ends; theirs: the ends of the program and its watcher. The program's input is a socket,
 * so that writing to one that is closed is an error and no signal. */
static bool open_ends(int *ours, int *theirs)
{
    int pair[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return false;
    ours[END_IN] = pair[0];
    theirs[END_IN] = pair[1];
    for (int i = END_OUT; i < ENDS; i++) {
        if (pipe2(pair, O_CLOEXEC) != 0)
            return false;
        ours[i] = pair[i == END_LIFE ? 1 : 0];
        theirs[i] = pair[i == END_LIFE ? 0 : 1];
    }
    for (int i = END_IN; i <= END_ERR; i++)
        set_nonblocking(ours[i]);
    return true;
}

/* errno of a failed exec; 0 when the program runs. */
static int wait_for_exec(int fd)
{
    int error = 0;
    ssize_t got;

    do
        got = read(fd, &error, sizeof(error));
    while (got < 0 && errno == EINTR);
    return got == (ssize_t)sizeof(error) ? error : 0;
}

struct rk_status *rk_process_start(struct rk_process *process, char *const *argv, const char *dir)
{
    int ours[ENDS] = {-1, -1, -1, -1, -1}, theirs[ENDS] = {-1, -1, -1, -1, -1};
    char *program = find_program(argv[0]);
    struct rk_status *st = NULL;
    pid_t parent = getpid(), pid;
    int error;

    RK_ASSERT(process->pid == 0);
    process->in = process->out = process->err = process->life = -1;
    pid = open_ends(ours, theirs) ? fork() : -1;
    if (pid == 0)
        exec_child(program, argv, dir, theirs, parent);
    error = errno;
    close_all(theirs, RK_ARRAY_LEN(theirs));
    if (pid < 0) {
        st = RK_FAIL(RK_RESOURCE_EXHAUSTED, "cannot start '%s': %s", argv[0], strerror(error));
    } else {
        (void)setpgid(pid, pid); /* the child does the same; whichever comes first */
        error = wait_for_exec(ours[END_EXEC]);
        if (error) {
            (void)kill(-pid, SIGKILL); /* its watcher */
            (void)waitpid(pid, NULL, 0);
            st = RK_FAIL(RK_NOT_FOUND, "cannot start '%s' in '%s': %s", argv[0], dir, strerror(error));
        }
    }
    rk_free(program);
    close_all(&ours[END_EXEC], 1);
    if (st) {
        close_all(ours, ENDS);
        return st;
    }
    process->pid = pid;
    process->in = ours[END_IN];
    process->out = ours[END_OUT];
    process->err = ours[END_ERR];
    process->life = ours[END_LIFE];
    return NULL;
}

/* --- input and output --- */

/* Drops the first bytes of a builder. */
static void drop_front(struct rk_str *str, size_t bytes)
{
    memmove(str->text, str->text + bytes, str->bytes - bytes);
    str->bytes -= bytes;
    str->text[str->bytes] = '\0';
}

bool rk_process_send(struct rk_process *process)
{
    struct rk_str *text = &process->to_send;

    while (process->num_sent < text->bytes) {
        ssize_t sent = send(process->in, text->text + process->num_sent, text->bytes - process->num_sent,
                            MSG_NOSIGNAL | MSG_DONTWAIT);

        if (sent < 0 && errno != EINTR) {
            bool is_full = errno == EAGAIN;

            if (process->num_sent > SENT_BYTES_KEPT) {
                drop_front(text, process->num_sent);
                process->num_sent = 0;
            }
            return is_full;
        }
        process->num_sent += sent > 0 ? (size_t)sent : 0;
    }
    rk_str_clear(text);
    process->num_sent = 0;
    return true;
}

bool rk_process_receive(struct rk_process *process)
{
    char chunk[READ_BYTES];
    ssize_t got = read(process->out, chunk, sizeof(chunk));

    if (got > 0)
        rk_str_append_bytes(&process->received, chunk, (size_t)got);
    return got > 0 || (got < 0 && (errno == EAGAIN || errno == EINTR));
}

bool rk_process_next_line(struct rk_process *process, struct rk_str *line)
{
    struct rk_str *received = &process->received;
    char *end = received->bytes ? memchr(received->text, '\n', received->bytes) : NULL;

    if (!end)
        return false;
    rk_str_clear(line);
    rk_str_append_bytes(line, received->text, (size_t)(end - received->text));
    drop_front(received, (size_t)(end - received->text) + 1);
    return true;
}

void rk_process_messages_report(struct rk_process_messages *limit)
{
    if (limit->num_left_out > 0)
        fprintf(stderr, "%s: %lld lines of standard error left out; %d KiB a second are copied\n",
                limit->name, (long long)limit->num_left_out, RK_PROCESS_MESSAGES_RATE >> 10);
    limit->num_left_out = 0;
}

/* Takes the bytes of a line from what may be copied. After an empty bucket it waits until a second's worth is
 * there, so that the report does not alternate with single lines. */
static bool may_print(struct rk_process_messages *limit, int64_t bytes)
{
    int64_t now_ns = rk_time_now_ns();
    double seconds = (double)(now_ns - limit->filled_ns) / 1e9;

    if (limit->filled_ns == 0)
        limit->room_bytes = RK_PROCESS_MESSAGES_BURST;
    limit->room_bytes =
        RK_MIN(limit->room_bytes + seconds * RK_PROCESS_MESSAGES_RATE, RK_PROCESS_MESSAGES_BURST);
    limit->filled_ns = now_ns;
    if (limit->room_bytes < (limit->num_left_out > 0 ? RK_PROCESS_MESSAGES_RATE : (double)bytes)) {
        limit->num_left_out++;
        return false;
    }
    rk_process_messages_report(limit);
    limit->room_bytes -= (double)bytes;
    return true;
}

/* Terminals interpret control characters, and some the bytes of C1 outside of UTF-8. Tabs stay. */
static void print_line(const struct rk_process *process, const char *text, size_t bytes)
{
    bool is_utf8 = rk_utf8_is_valid(text, bytes);
    struct rk_str line = {0};

    rk_str_append(&line, process->prefix);
    for (size_t i = 0; i < bytes; i++) {
        int control_bytes = text[i] == '\t' ? 0 : rk_utf8_control_bytes(text + i);
        char byte = (unsigned char)text[i] >= 0x80 && !is_utf8 ? '?' : text[i];

        if (text[i] == '\0' || control_bytes == 1)
            rk_str_appendf(&line, "\\x%02x", (unsigned char)text[i]);
        else if (control_bytes == 2 && is_utf8)
            rk_str_appendf(&line, "\\x%02x", (unsigned char)text[++i]);
        else
            rk_str_append_bytes(&line, &byte, 1);
    }
    fprintf(stderr, "%s\n", rk_str_text(&line));
    rk_str_fini(&line);
}

/* Where text without a newline is cut: between characters, if it is UTF-8. */
static size_t cut_line(const char *text, size_t bytes)
{
    size_t cut = RK_MIN(bytes, MESSAGE_LINE_MAX);

    for (int i = 0; i < 3 && cut < bytes && ((unsigned char)text[cut] & 0xc0) == 0x80; i++)
        cut--;
    return cut;
}

/* Prints complete lines; at the end the rest, too. */
static void print_lines(struct rk_process *process, bool is_end)
{
    struct rk_str *messages = &process->messages;
    size_t at = 0;

    while (at < messages->bytes) {
        const char *text = messages->text + at;
        size_t left = messages->bytes - at, bytes;
        const char *end = memchr(text, '\n', RK_MIN(left, MESSAGE_LINE_MAX + 1));

        if (!end && !is_end && left <= MESSAGE_LINE_MAX)
            break;
        bytes = end ? (size_t)(end - text) : cut_line(text, left);
        if (may_print(process->limit, (int64_t)(strlen(process->prefix) + bytes + 1)))
            print_line(process, text, bytes);
        at += bytes + (end != NULL);
    }
    if (at > 0)
        drop_front(messages, at);
}

void rk_process_pass_messages(struct rk_process *process)
{
    char chunk[READ_BYTES];
    ssize_t got = read(process->err, chunk, sizeof(chunk));

    if (got > 0)
        rk_str_append_bytes(&process->messages, chunk, (size_t)got);
    print_lines(process, got == 0);
    if (got == 0) {
        close(process->err);
        process->err = -1;
    }
}

/* --- end --- */

/* Whether the leader has ended; it stays a zombie, so that its group keeps its number. */
static bool peek_end(pid_t pid, siginfo_t *info)
{
    info->si_pid = 0;
    return waitid(P_PID, (id_t)pid, info, WEXITED | WNOHANG | WNOWAIT) != 0 || info->si_pid == pid;
}

bool rk_process_has_ended(const struct rk_process *process)
{
    siginfo_t info;

    return process->pid > 0 && peek_end(process->pid, &info);
}

void rk_process_describe_end(struct rk_process *process, struct rk_str *out)
{
    int64_t deadline_ns = rk_time_now_ns() + STATUS_WAIT_MS * 1000000LL;
    siginfo_t info = {0};
    bool has_ended;

    while (!(has_ended = peek_end(process->pid, &info)) && rk_time_now_ns() < deadline_ns)
        rk_time_sleep_ms(POLL_MS);
    if (!has_ended || info.si_pid != process->pid)
        rk_str_append(out, "closed its output");
    else if (info.si_code == CLD_EXITED)
        rk_str_appendf(out, "exited with code %d", info.si_status);
    else
        rk_str_appendf(out, "was killed by signal %d", info.si_status);
}

void rk_process_signal(struct rk_process *process, int signal_number)
{
    if (process->pid > 0)
        (void)kill(-process->pid, signal_number);
}

void rk_process_kill(struct rk_process *process)
{
    int *fds[] = {&process->in, &process->out, &process->err, &process->life};

    if (process->pid == 0)
        return;
    (void)kill(-process->pid, SIGKILL);
    (void)waitpid(process->pid, NULL, 0);
    if (process->err >= 0)
        rk_process_pass_messages(process);
    print_lines(process, true);
    for (size_t i = 0; i < RK_ARRAY_LEN(fds); i++)
        close_all(fds[i], 1);
    rk_str_fini(&process->to_send);
    rk_str_fini(&process->received);
    rk_str_fini(&process->messages);
    process->num_sent = 0;
    process->pid = 0;
}

static bool have_all_ended(struct rk_process *const *processes, int64_t count)
{
    bool all = true;

    for (int64_t i = 0; i < count; i++)
        all = all && (processes[i]->pid == 0 || rk_process_has_ended(processes[i]));
    return all;
}

void rk_processes_stop(struct rk_process *const *processes, int64_t count)
{
    int64_t deadline_ns = rk_time_now_ns() + EXIT_GRACE_MS * 1000000LL;

    for (int64_t i = 0; i < count; i++) {
        if (processes[i]->pid > 0)
            close_all(&processes[i]->in, 1);
    }
    while (!have_all_ended(processes, count) && rk_time_now_ns() < deadline_ns)
        rk_time_sleep_ms(POLL_MS);
    for (int64_t i = 0; i < count; i++)
        rk_process_kill(processes[i]);
}
