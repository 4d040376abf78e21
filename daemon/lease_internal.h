/* Who may command this daemon, and in which order: epoch, lease, incarnation and seq. Pure: the clock
 * (milliseconds of CLOCK_BOOTTIME) and random ids are handed in.
 *
 *   epoch   only grows; a grant raises it, and calls of any other epoch are refused
 *   lease   time-limited right of the driver that was granted the epoch; renewed by every call that proves it
 *   grace   begins when a lease lapses or is released; at its end the models go
 *   seq     1, 2, 3, ... inside an epoch; used up by Commit, reported once the call has finished */
#ifndef RK_LEASE_INTERNAL_H
#define RK_LEASE_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_status.h"
#include "proto/limits.h"
#include "proto/rk_messages.h"

#define RK_LEASE_ID_BYTES   16
#define RK_LEASE_KEY_BYTES  16
#define RK_LEASE_TTL_MIN_MS 5000
#define RK_LEASE_TTL_MAX_MS 3600000

struct rk_lease {
    uint64_t incarnation; /* of this process; fixed */
    uint64_t epoch;       /* highest that was granted, also by earlier processes; 0: none */
    bool is_held;         /* false once released, or lapsed and noticed by rk_lease_tick */
    uint8_t id[RK_LEASE_ID_BYTES];
    char driver_id[RK_LIMIT_NAME_BYTES + 1]; /* of the last grant; "" before the first */
    bool has_driver_key;                     /* the last grant's driver gave one */
    uint8_t driver_key[RK_LEASE_KEY_BYTES];  /* who knows it is that driver */
    int64_t ttl_ms, expires_ms;
    bool is_in_grace;
    int64_t grace_ends_ms;
    uint64_t committed_seq, finished_seq; /* of this epoch */
};

void rk_lease_init(struct rk_lease *lease, uint64_t incarnation, uint64_t epoch);
bool rk_lease_is_live(const struct rk_lease *lease, int64_t now_ms);
/* Is this the driver of the last grant? */
bool rk_lease_is_same_driver(const struct rk_lease *lease, const struct rk_acquire_lease_request *request);
/* May this driver have the lease? WRONG_INCARNATION, LEASE_HELD or STALE_EPOCH. A driver may always have the
 * lease that it holds: it has lost the daemon, or the answer to its last request. */
struct rk_status *rk_lease_check_acquire(const struct rk_lease *lease, int64_t now_ms,
                                         const struct rk_acquire_lease_request *request) RK_NODISCARD;
/* Grants what was checked. `ttl_ms` 0 takes the default; the limits above clamp it. */
void rk_lease_grant(struct rk_lease *lease, int64_t now_ms, const struct rk_acquire_lease_request *request,
                    int64_t default_ttl_ms, const uint8_t id[RK_LEASE_ID_BYTES]);
/* Does the fence prove the lease? BAD_FIELD without one, WRONG_INCARNATION, STALE_EPOCH or LEASE_EXPIRED. */
struct rk_status *rk_lease_check(const struct rk_lease *lease, int64_t now_ms,
                                 const struct rk_fence *fence) RK_NODISCARD;
/* A call proved the lease: it lives for another TTL. */
void rk_lease_renew(struct rk_lease *lease, int64_t now_ms);
void rk_lease_release(struct rk_lease *lease, int64_t now_ms, int64_t grace_ms);

typedef enum rk_lease_event { RK_LEASE_NOTHING, RK_LEASE_LAPSED, RK_LEASE_GRACE_OVER } rk_lease_event_t;
/* Time has passed. Each event comes once. */
rk_lease_event_t rk_lease_tick(struct rk_lease *lease, int64_t now_ms, int64_t grace_ms);

/* A call numbered `seq` wants to open: SEQ_GAP above the next number, RESULT_EXPIRED below it. */
struct rk_status *rk_lease_check_seq(const struct rk_lease *lease, uint64_t seq) RK_NODISCARD;
void rk_lease_commit_seq(struct rk_lease *lease, uint64_t seq);
/* A call ended; one of an earlier epoch is ignored. */
void rk_lease_finish_seq(struct rk_lease *lease, uint64_t epoch, uint64_t seq);

#endif
