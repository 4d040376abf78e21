#include "cmd/screen_internal.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "base/config/rk_config.h"
#include "base/rk_env.h"
#include "base/rk_str.h"
#include "base/rk_time.h"
#include "cmd/cmd_internal.h"

#define BEGIN_TEXT "\x1b[?1049h\x1b[?25l" /* alternate screen, without the cursor */
#define END_TEXT   "\x1b[?25h\x1b[?1049l"
#define HOME       "\x1b[H"
#define LINE_END   "\x1b[K\n" /* erases the rest of the line */
#define ERASE      "\x1b[J"   /* erases the lines below */
#define POLL_MS    500        /* a signal may arrive just before the wait begins */

static volatile sig_atomic_t has_resized;

static void on_resize(int signum)
{
    (void)signum;
    has_resized = 1;
}

bool rk_screen_is_possible(void)
{
    const char *term = rk_env("TERM");

    return isatty(STDOUT_FILENO) && term && *term && strcmp(term, "dumb") != 0;
}

void rk_screen_open(struct rk_screen *screen)
{
    struct sigaction action = {.sa_handler = on_resize};
    struct termios keys;

    *screen = (struct rk_screen){.has_keys = isatty(STDIN_FILENO) != 0};
    has_resized = 0;
    sigaction(SIGWINCH, &action, &screen->old_resize);
    if (screen->has_keys && tcgetattr(STDIN_FILENO, &screen->old_keys) == 0) {
        keys = screen->old_keys;
        keys.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
        keys.c_cc[VSUSP] = keys.c_cc[VQUIT] = _POSIX_VDISABLE; /* these keys would leave the terminal in this
                                                                * state */
        keys.c_cc[VMIN] = 0;
        keys.c_cc[VTIME] = 0;
        screen->is_changed = tcsetattr(STDIN_FILENO, TCSANOW, &keys) == 0;
    }
    fputs(BEGIN_TEXT, stdout);
    fflush(stdout);
}

void rk_screen_close(struct rk_screen *screen)
{
    fputs(END_TEXT, stdout);
    fflush(stdout);
    if (screen->is_changed)
        tcsetattr(STDIN_FILENO, TCSANOW, &screen->old_keys);
    sigaction(SIGWINCH, &screen->old_resize, NULL);
}

/* Appends at most `columns` characters; 0: all. Replaces characters that would move the cursor by "?". */
static void append_line(struct rk_str *out, const char *line, size_t bytes, int columns)
{
    int num_characters = 0;

    for (size_t i = 0; i < bytes; i++) {
        unsigned char c = (unsigned char)line[i];
        bool is_first = (c & 0xc0) != 0x80; /* of a character in UTF-8 */

        if (is_first && columns > 0 && num_characters == columns)
            return;
        num_characters += is_first;
        rk_str_append_bytes(out, c < 0x20 || c == 0x7f ? "?" : (const char *)&line[i], 1);
    }
}

void rk_screen_format(struct rk_str *out, const char *text, int rows, int columns)
{
    int num_lines = 0, row = 0;

    for (const char *c = text; *c; c++)
        num_lines += *c == '\n';
    rk_str_append(out, HOME);
    for (const char *line = text; *line; row++) {
        size_t bytes = strcspn(line, "\n");
        char rest[32];

        /* The last row stays empty, otherwise the screen would scroll. */
        if (rows > 1 && num_lines > rows - 1 && row == rows - 2) {
            snprintf(rest, sizeof(rest), "... %d more", num_lines - row);
            append_line(out, rest, strlen(rest), columns);
            rk_str_append(out, LINE_END);
            break;
        }
        append_line(out, line, bytes, columns);
        rk_str_append(out, LINE_END);
        line += bytes + (line[bytes] == '\n');
    }
    rk_str_append(out, ERASE);
}

void rk_screen_draw(struct rk_screen *screen, const char *text)
{
    struct winsize size = {.ws_row = 0};
    struct rk_str out = {0};

    (void)screen;
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0)
        size = (struct winsize){.ws_row = 0};
    rk_screen_format(&out, text, size.ws_row, size.ws_col);
    fwrite(rk_str_text(&out), 1, out.bytes, stdout);
    fflush(stdout);
    rk_str_fini(&out);
}

/* Reads the keys that were pressed. False: one of them ends the command, or the terminal is closed. */
static bool read_keys(struct rk_screen *screen)
{
    char keys[64];
    ssize_t got = read(STDIN_FILENO, keys, sizeof(keys));

    if (got == 0 || (got < 0 && errno != EAGAIN && errno != EINTR))
        screen->has_keys = false;
    for (ssize_t i = 0; i < got; i++) {
        if (keys[i] == 'q' || keys[i] == 'Q')
            return false;
    }
    return true;
}

rk_screen_event_t rk_screen_wait(struct rk_screen *screen, int64_t until_ns)
{
    struct pollfd poller = {.fd = STDIN_FILENO, .events = POLLIN};

    while (!rk_cli_signal() && !ferror(stdout)) {
        int64_t left_ms = (until_ns - rk_time_now_ns() + 999999) / 1000000;

        if (has_resized) {
            has_resized = 0;
            return RK_SCREEN_RESIZED;
        }
        if (left_ms <= 0)
            return RK_SCREEN_TIME;
        if (poll(&poller, screen->has_keys ? 1 : 0, (int)RK_MIN(left_ms, POLL_MS)) > 0 && !read_keys(screen))
            return RK_SCREEN_END;
    }
    return RK_SCREEN_END;
}
