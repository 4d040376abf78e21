/* command: scores from a program of the user's. It is started once, without a shell, and answers one JSON
 * line with one JSON line:
 *
 *   in   {"data_source": ..., "prompt": ..., "solution_str": ..., "ground_truth": ..., "extra_info": ...}
 *   out  {"score": 0.5}
 *
 * Configuration: {"name": "command", "command": ["python3", "score.py"], "timeout": "30s", "dir": "scorers"}:
 * timeout of one line, and the directory in which the program runs, by default the job's. Its standard error
 * is the driver's. It sees end of file when the run ends. */
#include "driver-cli/rewards/rewards_internal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
#include "driver-cli/files_internal.h"

#define ANSWER_BYTES_MAX (1 << 20) /* a score with remarks; more is a program gone wrong */
#define EXIT_GRACE_MS    2000      /* between end of file on its input and SIGKILL */
#define STATUS_WAIT_MS   500
#define TIMEOUT_MS_MAX   (24 * 3600 * 1000)

extern char **environ;

struct command {
    char **argv; /* NULL-terminated, owned */
    pid_t pid;   /* -1: not running */
    int fd;      /* a socket: its standard input and output */
    int64_t timeout_ms;
    char *dir;             /* in which it runs */
    struct rk_str pending; /* bytes after the last complete line */
};

static struct rk_status *read_argv(struct command *command, const struct rk_json *config)
{
    const struct rk_json *list = rk_json_find(config, "command");
    int64_t count = rk_json_count(list);

    if (rk_json_type(list) != RK_JSON_ARRAY || count == 0)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "reward.command: expected a list of strings, the program and its arguments");
    command->argv = rk_calloc((size_t)count + 1, sizeof(*command->argv));
    for (int64_t i = 0; i < count; i++) {
        const char *word = rk_json_as_string(rk_json_at(list, i), NULL);

        if (!word)
            return RK_FAIL(RK_INVALID_ARGUMENT, "reward.command[%lld]: expected a string", (long long)i);
        command->argv[i] = rk_strdup(word);
    }
    return NULL;
}

static struct rk_status *read_timeout(struct command *command, const struct rk_json *config)
{
    const char *text = "30s";

    RK_TRY(rk_json_opt_string(config, "reward", "timeout", &text));
    if (!rk_parse_duration_ms(text, &command->timeout_ms) || command->timeout_ms <= 0 ||
        command->timeout_ms > TIMEOUT_MS_MAX)
        return RK_FAIL(RK_INVALID_ARGUMENT,
                       "reward.timeout: expected a duration such as \"30s\", at most 24h, got \"%s\"", text);
    return NULL;
}

/* The program shall not ignore what we ignore. It stays in our process group: Ctrl-C is for it too. */
static void init_attributes(posix_spawnattr_t *attributes)
{
    sigset_t defaults;

    sigemptyset(&defaults);
    sigaddset(&defaults, SIGPIPE);
    sigaddset(&defaults, SIGXFSZ);
    posix_spawnattr_init(attributes);
    posix_spawnattr_setsigdefault(attributes, &defaults);
    posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETSIGDEF);
}

static struct rk_status *start(struct command *command)
{
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    int pair[2];
    int rc;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "reward.command: socketpair: %s", strerror(errno));
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_addchdir_np(&actions, command->dir);
    posix_spawn_file_actions_adddup2(&actions, pair[1], STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, pair[1], STDOUT_FILENO);
    init_attributes(&attributes);
    rc = posix_spawnp(&command->pid, command->argv[0], &actions, &attributes, command->argv, environ);
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&actions);
    close(pair[1]);
    if (rc != 0) {
        command->pid = -1;
        close(pair[0]);
        return RK_FAIL(RK_NOT_FOUND, "reward.command: cannot start '%s' in '%s': %s", command->argv[0],
                       command->dir, strerror(rc));
    }
    command->fd = pair[0];
    return NULL;
}

static void stop(struct command *command)
{
    int64_t deadline = rk_time_now_ns() + EXIT_GRACE_MS * 1000000LL;

    if (command->fd >= 0)
        close(command->fd);
    if (command->pid <= 0)
        return;
    while (waitpid(command->pid, NULL, WNOHANG) == 0) {
        if (rk_time_now_ns() > deadline) {
            kill(command->pid, SIGKILL);
            (void)waitpid(command->pid, NULL, 0);
            return;
        }
        rk_time_sleep_ms(5);
    }
}

static void destroy(void *state)
{
    struct command *command = state;

    if (!command)
        return;
    stop(command);
    for (char **word = command->argv; word && *word; word++)
        rk_free(*word);
    rk_free(command->argv);
    rk_free(command->dir);
    rk_str_fini(&command->pending);
    rk_free(command);
}

static struct rk_status *create(void **state, const struct rk_json *config, const char *dir)
{
    static const char *const keys[] = {"name", "command", "timeout", "dir", NULL};
    const char *chosen = ".";
    struct command *command = rk_calloc(1, sizeof(*command));
    struct rk_status *st;

    command->pid = -1;
    command->fd = -1;
    RK_TRY_GOTO(st, rk_reward_check_keys(config, keys), out);
    RK_TRY_GOTO(st, read_argv(command, config), out);
    RK_TRY_GOTO(st, read_timeout(command, config), out);
    RK_TRY_GOTO(st, rk_json_opt_string(config, "reward", "dir", &chosen), out);
    command->dir = strcmp(chosen, ".") == 0 ? rk_strdup(dir) : rk_resolve_path(dir, chosen);
    RK_TRY_GOTO(st, start(command), out);
out:
    if (st) {
        destroy(command);
        command = NULL;
    }
    *state = command;
    return st;
}

static struct rk_status *wait_for(const struct command *command, short events, int64_t deadline_ns)
{
    struct pollfd poll_fd = {.fd = command->fd, .events = events};
    int64_t left_ms = (deadline_ns - rk_time_now_ns()) / 1000000;
    int rc = poll(&poll_fd, 1, (int)RK_MAX(left_ms, 0));

    if (rc < 0 && errno != EINTR)
        return RK_FAIL(RK_INTERNAL, "reward.command: poll: %s", strerror(errno));
    if (rk_time_now_ns() >= deadline_ns)
        return RK_FAIL(RK_DEADLINE_EXCEEDED, "reward.command: '%s' did not answer within %lld ms",
                       command->argv[0], (long long)command->timeout_ms);
    return NULL;
}

/* Its input or output is closed. Takes the status when it comes at once, as it does of a program that has
 * ended: the process is gone then. */
static struct rk_status *ended(struct command *command, const char *when)
{
    int64_t deadline_ns = rk_time_now_ns() + STATUS_WAIT_MS * 1000000LL;
    int status = 0;
    pid_t pid;

    if (command->pid < 0) /* asked again */
        return RK_FAIL(RK_ABORTED, "reward.command: '%s' ended earlier", command->argv[0]);
    while ((pid = waitpid(command->pid, &status, WNOHANG)) == 0 && rk_time_now_ns() < deadline_ns)
        rk_time_sleep_ms(5);
    if (pid != command->pid)
        return RK_FAIL(RK_ABORTED, "reward.command: '%s' closed its output%s", command->argv[0], when);
    command->pid = -1;
    if (WIFSIGNALED(status))
        return RK_FAIL(RK_ABORTED, "reward.command: '%s' was killed by signal %d%s", command->argv[0],
                       WTERMSIG(status), when);
    return RK_FAIL(RK_ABORTED, "reward.command: '%s' ended with exit code %d%s", command->argv[0],
                   WEXITSTATUS(status), when);
}

static struct rk_status *send_line(struct command *command, const char *line, size_t bytes,
                                   int64_t deadline_ns)
{
    while (bytes > 0) {
        ssize_t sent = send(command->fd, line, bytes, MSG_NOSIGNAL | MSG_DONTWAIT);

        if (sent > 0) {
            line += sent;
            bytes -= (size_t)sent;
        } else if (errno == EAGAIN || errno == EINTR) {
            RK_TRY(wait_for(command, POLLOUT, deadline_ns));
        } else {
            return ended(command, "");
        }
    }
    return NULL;
}

/* The next complete line, without its newline; rk_free it. */
static struct rk_status *receive_line(struct command *command, char **line, int64_t deadline_ns)
{
    struct rk_str *pending = &command->pending;
    char *end = NULL;
    char chunk[4096];
    struct rk_str rest = {0};

    *line = NULL;
    while (!(end = pending->bytes ? memchr(pending->text, '\n', pending->bytes) : NULL)) {
        ssize_t got = recv(command->fd, chunk, sizeof(chunk), MSG_DONTWAIT);

        if (got == 0 || (got < 0 && errno == ECONNRESET))
            return ended(command, " without an answer");
        if (got < 0) {
            RK_TRY(wait_for(command, POLLIN, deadline_ns));
            continue;
        }
        if (pending->bytes + (size_t)got > ANSWER_BYTES_MAX)
            return RK_FAIL(RK_RESOURCE_EXHAUSTED, "reward.command: an answer of '%s' is longer than %d bytes",
                           command->argv[0], ANSWER_BYTES_MAX);
        rk_str_append_bytes(pending, chunk, (size_t)got);
    }
    rk_str_append_bytes(&rest, end + 1, pending->bytes - (size_t)(end + 1 - pending->text));
    *end = '\0';
    *line = rk_str_take(pending);
    *pending = rest;
    return NULL;
}

static char *question(const struct rk_reward_item *item)
{
    struct rk_json *json = rk_json_new_object();
    char *text;
    char *line;

    rk_json_set(json, "data_source", rk_json_new_string(item->data_source));
    rk_json_set(json, "prompt", rk_json_new_string(item->prompt));
    rk_json_set(json, "solution_str", rk_json_new_string_bytes(item->solution_str, item->solution_bytes));
    rk_json_set(json, "ground_truth", rk_json_new_string(item->ground_truth));
    rk_json_set(json, "extra_info", item->extra_info ? rk_json_retain(item->extra_info) : rk_json_new_null());
    text = rk_json_dump(json, 0, false);
    rk_json_free(json);
    line = rk_format("%s\n", text);
    rk_free(text);
    return line;
}

static struct rk_status *read_answer(const char *line, double *score)
{
    struct rk_json *json = NULL;
    struct rk_status *st = rk_json_parse(&json, line, strlen(line), "answer of reward.command", 0);

    if (st)
        return st;
    if (rk_json_type(json) == RK_JSON_OBJECT)
        st = rk_json_get_f64(json, "answer", "score", score);
    else
        st = RK_FAIL(RK_INVALID_ARGUMENT, "answer of reward.command: expected {\"score\": number}");
    rk_json_free(json);
    return st;
}

static struct rk_status *score_one(struct command *command, const struct rk_reward_item *item, double *score)
{
    int64_t deadline_ns = rk_time_now_ns() + command->timeout_ms * 1000000;
    char *line = question(item);
    char *answer = NULL;
    struct rk_status *st;

    RK_TRY_GOTO(st, send_line(command, line, strlen(line), deadline_ns), out);
    RK_TRY_GOTO(st, receive_line(command, &answer, deadline_ns), out);
    RK_TRY_GOTO(st, read_answer(answer, score), out);
out:
    rk_free(answer);
    rk_free(line);
    return st;
}

static struct rk_status *score(void *state, const struct rk_reward_item *items, int64_t num_items,
                               struct rk_reward_result *results, const struct rk_reward_watch *watch)
{
    (void)watch;
    for (int64_t i = 0; i < num_items; i++) {
        struct rk_status *st = score_one(state, &items[i], &results[i].score);

        if (st)
            return RK_WRAP(st, "item %lld", (long long)i);
    }
    return NULL;
}

const struct rk_reward_ops rk_reward_command = {
    .name = "command",
    .abi = RK_REWARD_ABI,
    .create = create,
    .destroy = destroy,
    .score = score,
};
