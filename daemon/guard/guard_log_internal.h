/* Log lines about connections that the guard ends. Peers that reconnect repeatedly must not fill the
 * log: an address has one line for each reason, and after RK_GUARD_LOG_INTERVAL_NS one more with the number
 * of suppressed lines. No locking: it belongs to the guard's thread. */
#ifndef RK_GUARD_LOG_INTERNAL_H
#define RK_GUARD_LOG_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#define RK_GUARD_LOG_INTERVAL_NS (10 * 1000000000LL)
#define RK_GUARD_LOG_ROWS        64 /* addresses and reasons in an interval; more share one row */

struct rk_guard_log_row {
    int64_t begin_ns;       /* of the interval; 0: the row is free */
    int64_t num_suppressed; /* since then */
    char verb[32], host[64], reason[96];
};

/* Zero-initialised. */
struct rk_guard_log {
    struct rk_guard_log_row rows[RK_GUARD_LOG_ROWS + 1]; /* the last: all without a separate row */
    int64_t ticked_ns;
};

/* Writes "VERB peer=PEER: REASON" or counts it. `verb` is the event ("cut"); peers that differ only in the
 * port are the same. */
void rk_guard_log_note(struct rk_guard_log *log, const char *verb, const char *peer, const char *reason,
                       int64_t now_ns);
/* Ends intervals that are over and writes their counts; at most a few lines per second, so call it
 * often. */
void rk_guard_log_tick(struct rk_guard_log *log, int64_t now_ns);
/* Writes all counts, the most recent rows as one sum; at the end. */
void rk_guard_log_flush(struct rk_guard_log *log, int64_t now_ns);

#endif
