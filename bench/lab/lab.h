/* Common code of the programs in this folder. They exit at the first error. */
#ifndef RK_BENCH_LAB_H
#define RK_BENCH_LAB_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/rk_status.h"
#include "base/rk_str.h"

static inline void check(struct rk_status *st)
{
    if (!st)
        return;
    fprintf(stderr, "%s: %s\n", program_invocation_short_name, rk_status_message(st));
    exit(1);
}

/* An argument. */
static inline int64_t number(const char *text)
{
    int64_t value;

    if (!rk_parse_i64(text, &value) || value < 1) {
        fprintf(stderr, "%s: expected a number above 0, got %s\n", program_invocation_short_name, text);
        exit(2);
    }
    return value;
}

#endif
