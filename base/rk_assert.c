#include "base/rk_assert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Writes directly to stderr: the log may be broken, and memory may be exhausted. */
void rk_assert_fail(const char *expr, const char *file, int line)
{
    char text[512];

    snprintf(text, sizeof(text), "rankd: assertion failed: %s (%s:%d)\n", expr, file, line);
    if (write(STDERR_FILENO, text, strlen(text)) < 0)
        abort(); /* stderr failed: nothing else to report to */
    abort();
}
