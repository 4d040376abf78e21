#include "daemon/deadline_internal.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Written while no alarm is set. */
static char message[512];
static int code;

/* Calls only async-signal-safe functions. */
static void on_alarm(int signum)
{
    ssize_t written = write(STDERR_FILENO, message, strlen(message));

    (void)signum;
    (void)written;
    _exit(code);
}

void rk_deadline_set(int seconds, int exit_code, const char *text)
{
    alarm(0);
    code = exit_code;
    snprintf(message, sizeof(message), "rankd: %s\n", text);
    signal(SIGALRM, on_alarm);
    alarm((unsigned)seconds);
}

void rk_deadline_clear(void)
{
    alarm(0);
    signal(SIGALRM, SIG_DFL);
}
