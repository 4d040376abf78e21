/* rankctl top on a terminal: a pseudo-terminal controlled by the test. */
#include <errno.h>
#include <poll.h>
#include <pty.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/wait.h>
#include <termios.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
#include "tests/proc/cli_fixture.h"

#define HOME    "\x1b[H"
#define ERASE   "\x1b[J"
#define BEGIN   "\x1b[?1049h"
#define END     "\x1b[?1049l"
#define CURSOR  "\x1b[?25h"
#define WAIT_MS 20000
#define ROWS    24
#define COLUMNS 160

struct terminal {
    int fd; /* the test's end */
    pid_t pid;
    struct rk_str out; /* all that was written */
    struct termios before;
};

static void set_size(struct terminal *terminal, int rows, int columns)
{
    struct winsize size = {.ws_row = (unsigned short)rows, .ws_col = (unsigned short)columns};

    assert_int_equal(ioctl(terminal->fd, TIOCSWINSZ, &size), 0);
}

static void start_top(struct terminal *terminal, const char *hosts)
{
    struct winsize size = {.ws_row = ROWS, .ws_col = COLUMNS};
    char *program = rk_proc_program("rankctl");
    const char *args[] = {program, "top", "--hosts", hosts, "--interval=200ms", NULL};

    *terminal = (struct terminal){.fd = -1};
    terminal->pid = forkpty(&terminal->fd, NULL, NULL, &size);
    assert_true(terminal->pid >= 0);
    if (terminal->pid == 0) {
        setenv("TERM", "xterm", 1);
        execv(program, (char *const *)args);
        _exit(127);
    }
    assert_int_equal(tcgetattr(terminal->fd, &terminal->before), 0); /* before top can change it */
    rk_free(program);
}

/* Reads available data; false at the end. */
static bool read_some(struct terminal *terminal, int timeout_ms)
{
    struct pollfd poller = {.fd = terminal->fd, .events = POLLIN};
    char buffer[4096];
    ssize_t got;

    if (poll(&poller, 1, timeout_ms) <= 0)
        return true;
    got = read(terminal->fd, buffer, sizeof(buffer));
    if (got <= 0)
        return false; /* EIO: the other end is closed */
    rk_str_append_bytes(&terminal->out, buffer, (size_t)got);
    return true;
}

/* The last complete screen from `from` on; NULL: none. rk_free it. */
static char *last_screen(const struct terminal *terminal, size_t from)
{
    const char *text = rk_str_text(&terminal->out) + from, *begin = NULL, *end = NULL;

    for (const char *at = strstr(text, HOME); at; at = strstr(at + 1, HOME)) {
        const char *erase = strstr(at, ERASE);

        if (!erase)
            break;
        begin = at + strlen(HOME);
        end = erase;
    }
    return begin ? rk_strndup(begin, (size_t)(end - begin)) : NULL;
}

/* Waits for a new screen for which fits() is true; rk_free it. */
static char *wait_screen(struct terminal *terminal, bool (*fits)(const char *screen))
{
    int64_t end_ns = rk_time_now_ns() + rk_proc_timeout_ms(WAIT_MS) * 1000000;
    size_t from = terminal->out.bytes;
    char *screen = NULL;

    while (!screen || !fits(screen)) {
        rk_free(screen);
        if (rk_time_now_ns() > end_ns || !read_some(terminal, 100))
            fail_msg("no such screen in: %s", rk_str_text(&terminal->out));
        screen = last_screen(terminal, from);
    }
    return screen;
}

static int count_text(const char *text, const char *part)
{
    int count = 0;

    for (const char *at = strstr(text, part); at; at = strstr(at + 1, part))
        count++;
    return count;
}

/* Characters of the longest line, and lines. */
static int widest(const char *screen, int *num_lines)
{
    int most = 0;

    *num_lines = 0;
    while (*screen) {
        int columns = (int)strcspn(screen, "\x1b\r\n");

        most = RK_MAX(most, columns);
        screen += strcspn(screen, "\n");
        *num_lines += *screen == '\n';
        screen += *screen == '\n';
    }
    return most;
}

static bool is_whole(const char *screen)
{
    int num_lines;

    return widest(screen, &num_lines) > 60 && strstr(screen, "COLLECTIVE");
}

static bool is_narrow(const char *screen)
{
    int num_lines;

    return widest(screen, &num_lines) <= 30;
}

static bool is_low(const char *screen)
{
    int num_lines;

    widest(screen, &num_lines);
    return num_lines == 2;
}

/* Waits for the end; returns the status of waitpid. The terminal's settings must be restored. */
static int finish(struct terminal *terminal)
{
    int64_t end_ns = rk_time_now_ns() + rk_proc_timeout_ms(WAIT_MS) * 1000000;
    const char *text;
    struct termios after;
    int status = 0;

    while (waitpid(terminal->pid, &status, WNOHANG) == 0) {
        assert_true(rk_time_now_ns() < end_ns);
        read_some(terminal, 20);
    }
    assert_int_equal(tcgetattr(terminal->fd, &after), 0);
    while (read_some(terminal, 1000))
        ;
    text = rk_str_text(&terminal->out);
    assert_int_equal(after.c_lflag, terminal->before.c_lflag);
    assert_memory_equal(after.c_cc, terminal->before.c_cc, sizeof(after.c_cc));
    assert_int_equal(count_text(text, BEGIN), 1);
    assert_int_equal(count_text(text, END), 1);
    assert_non_null(strstr(strstr(text, BEGIN), CURSOR));
    assert_true(strstr(text, END) > strstr(text, BEGIN));
    assert_null(strstr(strstr(text, END), HOME)); /* nothing is drawn after it */
    close(terminal->fd);
    rk_str_fini(&terminal->out);
    return status;
}

static void press(struct terminal *terminal, char key)
{
    assert_int_equal(write(terminal->fd, &key, 1), 1);
}

/* Goal: top redraws one line for every daemon, follows the size of the terminal, ends with code 0 at "q", and
 * restores the terminal. */
static void test_top_redraws_and_ends_on_q(void **state)
{
    struct rk_proc *daemons[] = {start_daemon_on(0, NULL), start_daemon_on(1, NULL)};
    char *hosts = rk_format("%s,%s", rk_proc_address(daemons[0]), rk_proc_address(daemons[1])), *screen;
    struct terminal terminal;
    struct termios keys;
    int num_lines, status;

    (void)state;
    start_top(&terminal, hosts);
    screen = wait_screen(&terminal, is_whole);
    widest(screen, &num_lines);
    assert_int_equal(num_lines, 3); /* titles, and one line each */
    assert_true(rk_str_has_prefix(screen, "WORKER  STATE"));
    assert_int_equal(count_text(screen, "\n0 "), 1);
    assert_int_equal(count_text(screen, "\n1 "), 1);
    assert_int_equal(count_text(screen, "UNCONFIGURED"), 2);
    rk_free(screen);
    assert_int_equal(tcgetattr(terminal.fd, &keys), 0);
    assert_false(keys.c_lflag & (ICANON | ECHO));

    rk_proc_signal(daemons[1], SIGTERM); /* the next screens say so */
    assert_int_equal(rk_proc_wait(daemons[1], WAIT_MS), 0);
    for (screen = NULL; !screen || count_text(screen, "UNAVAILABLE") != 1;) {
        rk_free(screen);
        screen = wait_screen(&terminal, is_whole);
    }
    rk_free(screen);

    set_size(&terminal, ROWS, 30);
    screen = wait_screen(&terminal, is_narrow);
    assert_true(rk_str_has_prefix(screen, "WORKER  STATE"));
    rk_free(screen);
    set_size(&terminal, 3, COLUMNS);
    screen = wait_screen(&terminal, is_low);
    assert_non_null(strstr(screen, "... 2 more"));
    rk_free(screen);

    press(&terminal, 'x'); /* means nothing */
    press(&terminal, 'q');
    status = finish(&terminal);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    rk_proc_signal(daemons[0], SIGTERM);
    assert_int_equal(rk_proc_wait(daemons[0], WAIT_MS), 0);
    rk_proc_destroy(daemons[0]);
    rk_proc_destroy(daemons[1]);
    rk_free(hosts);
}

/* Goal: Ctrl-C and SIGTERM terminate it by the signal, and both restore the terminal. */
static void test_top_restores_the_terminal_on_signals(void **state)
{
    struct rk_proc *daemon = start_daemon_on(0, NULL);

    (void)state;
    for (int i = 0; i < 2; i++) {
        struct terminal terminal;
        int status;

        start_top(&terminal, rk_proc_address(daemon));
        rk_free(wait_screen(&terminal, is_whole));
        if (i == 0)
            press(&terminal, '\x03');
        else
            kill(terminal.pid, SIGTERM);
        status = finish(&terminal);
        assert_true(WIFSIGNALED(status));
        assert_int_equal(WTERMSIG(status), i == 0 ? SIGINT : SIGTERM);
    }
    rk_proc_signal(daemon, SIGTERM);
    assert_int_equal(rk_proc_wait(daemon, WAIT_MS), 0);
    rk_proc_destroy(daemon);
}

int main(void)
{
    static const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_top_redraws_and_ends_on_q),
        cmocka_unit_test(test_top_restores_the_terminal_on_signals),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
