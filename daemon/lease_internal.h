/* The right to drive this daemon, and the order of calls: epoch, lease, incarnation and seq. Pure: the clock
 * (milliseconds of CLOCK_BOOTTIME) and random ids are arguments.
 *
 *   epoch   only grows; a grant raises it, and calls of any other epoch are refused
 *   lease   time-limited right of the driver that was granted the epoch; renewed by every call with its fence
 *   grace   begins when a lease lapses or is released; at its end the models are freed
 *   seq     1, 2, 3, ... inside an epoch; consumed by Commit, reported once the call has finished */
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
    bool has_driver_key;                     /* the driver of the last grant sent one */
    uint8_t driver_key[RK_LEASE_KEY_BYTES];  /* identifies that driver */
    int64_t ttl_ms, expires_ms;
    bool is_in_grace;
    int64_t grace_ends_ms;
    uint64_t committed_seq, finished_seq; /* of this epoch */
};

void rk_lease_init(struct rk_lease *lease, uint64_t incarnation, uint64_t epoch);
bool rk_lease_is_live(const struct rk_lease *lease, int64_t now_ms);
/* Is this the driver of the last grant? */
bool rk_lease_is_same_driver(const struct rk_lease *lease, const struct rk_acquire_lease_request *request);
/* May this driver have the lease? WRONG_INCARNATION, LEASE_HELD or STALE_EPOCH. A driver may always get the
 * lease that it holds: it has lost the connection, or the answer to its last request. */
struct rk_status *rk_lease_check_acquire(const struct rk_lease *lease, int64_t now_ms,
                                         const struct rk_acquire_lease_request *request) RK_NODISCARD;
/* Grants what was checked. `ttl_ms` 0 takes the default; the limits above clamp it. */
void rk_lease_grant(struct rk_lease *lease, int64_t now_ms, const struct rk_acquire_lease_request *request,
                    int64_t default_ttl_ms, const uint8_t id[RK_LEASE_ID_BYTES]);
/* Does the fence match the lease? BAD_FIELD without one, WRONG_INCARNATION, STALE_EPOCH or LEASE_EXPIRED. */
struct rk_status *rk_lease_check(const struct rk_lease *lease, int64_t now_ms,
                                 const struct rk_fence *fence) RK_NODISCARD;
/* A call had a valid fence: the lease lasts for another TTL. */
void rk_lease_renew(struct rk_lease *lease, int64_t now_ms);
void rk_lease_release(struct rk_lease *lease, int64_t now_ms, int64_t grace_ms);

typedef enum rk_lease_event { RK_LEASE_NOTHING, RK_LEASE_LAPSED, RK_LEASE_GRACE_OVER } rk_lease_event_t;
/* Applies the passed time. Each event is returned once. */
rk_lease_event_t rk_lease_tick(struct rk_lease *lease, int64_t now_ms, int64_t grace_ms);

/* A call numbered `seq` wants to open: SEQ_GAP above the next number, RESULT_EXPIRED below it. */
struct rk_status *rk_lease_check_seq(const struct rk_lease *lease, uint64_t seq) RK_NODISCARD;
void rk_lease_commit_seq(struct rk_lease *lease, uint64_t seq);
/* A call ended; one of an earlier epoch is ignored. */
void rk_lease_finish_seq(struct rk_lease *lease, uint64_t epoch, uint64_t seq);

#endif
