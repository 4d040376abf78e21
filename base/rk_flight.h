/* The flight recorder: the last operations of this process, readable when it is stuck and when it dies.
 *
 * Two rings of the process, one for calls, states, leases and errors, one for phases and collectives, which
 * are so many that they would overwrite the others. Any thread records: a few atomic stores, no lock,
 * no allocation. An entry is reserved when an operation begins and completed when it ends, so
 * unfinished operations are visible.
 *
 * Writing the file is async-signal-safe. A process that called rk_flight_install writes its file on
 * SIGABRT (RK_ASSERT, a service manager's watchdog), SIGSEGV, SIGBUS, SIGFPE and SIGILL, and then dies as
 * without it. */
#ifndef RK_FLIGHT_H
#define RK_FLIGHT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rk_compiler.h"

RK_BEGIN_DECLS

#define RK_FLIGHT_CALLS 1024 /* entries of each ring */
#define RK_FLIGHT_WORK  4096

#define RK_FLIGHT_WHAT_BYTES  48 /* with the terminator; longer text is cut */
#define RK_FLIGHT_WHERE_BYTES 48

typedef enum rk_flight_kind {
    RK_FLIGHT_CALL,       /* a method: what "actor.update_actor", seq of the epoch */
    RK_FLIGHT_STATE,      /* of the daemon: what "BUSY", where the previous state */
    RK_FLIGHT_LEASE,      /* what: "granted"; where: driver id; seq: lease epoch */
    RK_FLIGHT_ERROR,      /* the cause why an operation was ended, or the process failed */
    RK_FLIGHT_PHASE,      /* of a call: what the phase, where the call, seq of total */
    RK_FLIGHT_COLLECTIVE, /* what "all_reduce", where its group, seq in the group, bytes of this rank's input
                           */
    RK_FLIGHT_KIND_COUNT
} rk_flight_kind_t;

struct rk_flight_entry {
    rk_flight_kind_t kind;
    const char *what, *where; /* copied */
    uint64_t seq, bytes;
    uint64_t group; /* COLLECTIVE: of rk_flight_group; 0: not said */
};

/* Identifies a group of ranks, so that entries of several ranks can be matched: groups of the same name
 * differ in their members, or by the tag, which counts groups that were created one after the other. The
 * world ranks are first, first + stride, ...; stride 0: they are not evenly spaced. At most 4,096 ranks.
 * Never 0. */
uint64_t rk_flight_group(uint32_t tag, int32_t first, int32_t stride, int32_t size);

/* Records the start of an operation; pass the token to its end. Any thread. */
uint64_t rk_flight_begin(const struct rk_flight_entry *entry);
/* `code` as in rk_status.h. No-op when the ring has overwritten the entry. Any thread. */
void rk_flight_end(uint64_t token, int code);
/* Records an event without duration. Any thread. */
void rk_flight_note(const struct rk_flight_entry *entry, int code);
/* Number of entries recorded so far, of both rings. */
uint64_t rk_flight_count(void);

/* --- output. Async-signal-safe. --- */
typedef void (*rk_flight_sink_t)(void *user, const char *data, size_t bytes);

/* One JSON object: {"reason", "pid", "monotonic_ns", "unix_ns", "operations": [{"kind", "what", "where",
 * "seq", "bytes", "group" ({"tag", "first", "stride", "size"}; collectives only), "begin_ns", "end_ns" (null:
 * has not ended), "code"}, ...]}, by the time of begin. Times are of the monotonic clock; the two clocks of
 * the header were read together. An entry that is being written is omitted. */
void rk_flight_write(rk_flight_sink_t sink, void *user, const char *reason);
/* Writes the file of rk_flight_install; no-op without one. False when that failed or another thread is
 * writing it. */
bool rk_flight_write_file(const char *reason);

/* Sets the path of the file, which is created by the first write, and installs the signal handlers. `path`
 * may be NULL: no file; it is truncated to 1,000 bytes. Once per process, before threads are started. */
void rk_flight_install(const char *path);

/* --- tests --- */
void rk_flight_clear(void); /* only while no thread records */

RK_END_DECLS

#endif
