#include "daemon/guard/guard_log_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_assert.h"
#include "base/rk_log.h"

#define TICK_NS       1000000000LL
#define TICK_LINES    8 /* below the log's limit per source line and second */
#define OTHERS_HOST   "(others)"
#define OTHERS_REASON "further addresses and reasons, counted together"

/* "10.0.0.7:4242" and "[::1]:4242" without the port; an address without port is unchanged. */
static int host_bytes(const char *peer)
{
    const char *colon = strrchr(peer, ':');

    return (int)(colon ? colon - peer : (long)strlen(peer));
}

static bool is_same(const struct rk_guard_log_row *a, const struct rk_guard_log_row *b)
{
    return a->begin_ns != 0 && strcmp(a->verb, b->verb) == 0 && strcmp(a->host, b->host) == 0 &&
           strcmp(a->reason, b->reason) == 0;
}

/* The row of that address and reason, or a free one, or the last. */
static struct rk_guard_log_row *find_row(struct rk_guard_log *log, const struct rk_guard_log_row *wanted)
{
    struct rk_guard_log_row *free_row = NULL;

    for (int i = 0; i < RK_GUARD_LOG_ROWS; i++) {
        struct rk_guard_log_row *row = &log->rows[i];

        if (is_same(row, wanted))
            return row;
        if (row->begin_ns == 0 && !free_row)
            free_row = row;
    }
    return free_row ? free_row : &log->rows[RK_GUARD_LOG_ROWS];
}

/* Writes the count of a row, if there is one, and begins its next interval. */
static bool write_count(struct rk_guard_log_row *row, int64_t now_ns)
{
    int64_t seconds = (now_ns - row->begin_ns + 500000000) / 1000000000;

    if (row->num_suppressed == 0) {
        row->begin_ns = 0;
        return false;
    }
    RK_WARN("%s peer=%s: %lld more in %lld s: %s", row->verb, row->host, (long long)row->num_suppressed,
            (long long)seconds, row->reason);
    row->num_suppressed = 0;
    row->begin_ns = now_ns;
    return true;
}

void rk_guard_log_note(struct rk_guard_log *log, const char *verb, const char *peer, const char *reason,
                       int64_t now_ns)
{
    struct rk_guard_log_row wanted = {.begin_ns = now_ns}, *row;

    RK_ASSERT(now_ns > 0);
    snprintf(wanted.verb, sizeof(wanted.verb), "%s", verb);
    snprintf(wanted.host, sizeof(wanted.host), "%.*s", host_bytes(peer), peer);
    snprintf(wanted.reason, sizeof(wanted.reason), "%s", reason);
    row = find_row(log, &wanted);
    if (row->begin_ns != 0) {
        row->num_suppressed++;
        return;
    }
    *row = wanted;
    if (row == &log->rows[RK_GUARD_LOG_ROWS]) {
        snprintf(row->host, sizeof(row->host), "%s", OTHERS_HOST);
        snprintf(row->verb, sizeof(row->verb), "ended");
        snprintf(row->reason, sizeof(row->reason), "%s", OTHERS_REASON);
    }
    RK_WARN("%s peer=%s: %s", verb, peer, reason);
}

void rk_guard_log_tick(struct rk_guard_log *log, int64_t now_ns)
{
    int num_lines = 0;

    if (now_ns - log->ticked_ns < TICK_NS)
        return;
    log->ticked_ns = now_ns;
    for (int i = 0; i <= RK_GUARD_LOG_ROWS && num_lines < TICK_LINES; i++) {
        struct rk_guard_log_row *row = &log->rows[i];

        if (row->begin_ns != 0 && now_ns - row->begin_ns >= RK_GUARD_LOG_INTERVAL_NS)
            num_lines += write_count(row, now_ns);
    }
}

void rk_guard_log_flush(struct rk_guard_log *log, int64_t now_ns)
{
    int64_t num_rest = 0;
    int num_lines = 0;

    for (int i = 0; i <= RK_GUARD_LOG_ROWS; i++) {
        struct rk_guard_log_row *row = &log->rows[i];

        if (row->begin_ns != 0 && num_lines < TICK_LINES)
            num_lines += write_count(row, now_ns);
        else
            num_rest += row->num_suppressed;
        *row = (struct rk_guard_log_row){0};
    }
    if (num_rest > 0)
        RK_WARN("ended peer=" OTHERS_HOST ": %lld more", (long long)num_rest);
}
