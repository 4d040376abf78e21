/* The terminal of a command that redraws it: on the alternate screen, with unbuffered keys. The previous
 * content is restored at the end. */
#ifndef RK_CMD_SCREEN_INTERNAL_H
#define RK_CMD_SCREEN_INTERNAL_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <termios.h>

#include "base/rk_str.h"

struct rk_screen {
    bool has_keys;   /* standard input is a terminal */
    bool is_changed; /* old_keys are to be restored */
    struct termios old_keys;
    struct sigaction old_resize;
};

typedef enum rk_screen_event {
    RK_SCREEN_TIME,    /* the time has elapsed */
    RK_SCREEN_RESIZED, /* the terminal has another size */
    RK_SCREEN_END      /* the user pressed q, or a signal ends the command (rk_cli_watch_signals) */
} rk_screen_event_t;

/* Whether standard output is a suitable terminal. */
bool rk_screen_is_possible(void);
void rk_screen_open(struct rk_screen *screen);
/* Must be called before the command ends. */
void rk_screen_close(struct rk_screen *screen);
/* Shows lines of text, cut to the terminal's size. */
void rk_screen_draw(struct rk_screen *screen, const char *text);
rk_screen_event_t rk_screen_wait(struct rk_screen *screen, int64_t until_ns);

/* The output of rk_screen_draw for a terminal of that size; 0: unknown, nothing is cut. Control characters
 * in the text, which comes from daemons, do not reach the terminal. */
void rk_screen_format(struct rk_str *out, const char *text, int rows, int columns);

#endif
