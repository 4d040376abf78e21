#include "daemon/lease_internal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_assert.h"
#include "base/rk_hash.h"

void rk_lease_init(struct rk_lease *lease, uint64_t incarnation, uint64_t epoch)
{
    *lease = (struct rk_lease){.incarnation = incarnation, .epoch = epoch};
}

bool rk_lease_is_live(const struct rk_lease *lease, int64_t now_ms)
{
    return lease->is_held && now_ms < lease->expires_ms;
}

static struct rk_status *check_incarnation(const struct rk_lease *lease, uint64_t incarnation)
{
    if (incarnation == lease->incarnation)
        return NULL;
    return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "WRONG_INCARNATION",
                          "incarnation %016" PRIx64 " is not this process (%016" PRIx64
                          "): the daemon was restarted",
                          incarnation, lease->incarnation);
}

/* The name is printed on terminals and in logs. It is valid UTF-8 already. */
static struct rk_status *check_driver_id(const char *driver_id)
{
    if (!driver_id[0])
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "driver_id is empty");
    for (const char *c = driver_id; *c; c++) {
        if (rk_utf8_control_bytes(c) > 0)
            return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                                  "driver_id: control character at byte %zu, expected printable text",
                                  (size_t)(c - driver_id));
    }
    return NULL;
}

/* Epochs never decrease, so an epoch near the maximum would lock out all drivers permanently. */
static struct rk_status *check_epoch(const struct rk_lease *lease, uint64_t epoch)
{
    uint64_t max = RK_MIN(lease->epoch + RK_LIMIT_EPOCH_LEAP, (uint64_t)INT64_MAX);

    if (epoch >= 1 && epoch <= max)
        return NULL;
    return RK_FAIL_REASON(
        RK_INVALID_ARGUMENT, "BAD_FIELD",
        "epoch=%" PRIu64 ", expected 1 to %" PRIu64 ": at most 2^48 above the highest so far", epoch, max);
}

static struct rk_status *check_driver_key(struct rk_bytes key)
{
    if (key.bytes == 0 || key.bytes == RK_LEASE_KEY_BYTES)
        return NULL;
    return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                          "driver_key has %zu bytes, expected %d, or none for a driver without one",
                          key.bytes, RK_LEASE_KEY_BYTES);
}

bool rk_lease_is_same_driver(const struct rk_lease *lease, const struct rk_acquire_lease_request *request)
{
    return lease->has_driver_key && request->driver_key.bytes == RK_LEASE_KEY_BYTES &&
           rk_equal_secret(request->driver_key.data, lease->driver_key, RK_LEASE_KEY_BYTES);
}

struct rk_status *rk_lease_check_acquire(const struct rk_lease *lease, int64_t now_ms,
                                         const struct rk_acquire_lease_request *request)
{
    /* 0: a driver that has not called this daemon yet. */
    if (request->incarnation)
        RK_TRY(check_incarnation(lease, request->incarnation));
    RK_TRY(rk_status_at_field(check_driver_id(request->driver_id), "driver_id"));
    RK_TRY(rk_status_at_field(check_driver_key(request->driver_key), "driver_key"));
    RK_TRY(rk_status_at_field(check_epoch(lease, request->epoch), "epoch"));
    if (rk_lease_is_live(lease, now_ms) && !request->takeover && !rk_lease_is_same_driver(lease, request))
        return rk_status_retry_after(
            RK_FAIL_REASON(RK_FAILED_PRECONDITION, "LEASE_HELD",
                           "driver \"%s\" holds the lease, epoch %" PRIu64 ", %" PRId64 " s left",
                           lease->driver_id, lease->epoch, (lease->expires_ms - now_ms + 999) / 1000),
            lease->expires_ms - now_ms);
    if (request->epoch <= lease->epoch)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "STALE_EPOCH",
                              "epoch %" PRIu64 " was asked for, expected one above %" PRIu64, request->epoch,
                              lease->epoch);
    return NULL;
}

void rk_lease_grant(struct rk_lease *lease, int64_t now_ms, const struct rk_acquire_lease_request *request,
                    int64_t default_ttl_ms, const uint8_t id[RK_LEASE_ID_BYTES])
{
    int64_t ttl_ms = request->ttl_ms ? (int64_t)request->ttl_ms : default_ttl_ms;

    RK_ASSERT(request->epoch > lease->epoch);
    lease->epoch = request->epoch;
    lease->is_held = true;
    lease->is_in_grace = false;
    lease->ttl_ms = RK_MAX(RK_LEASE_TTL_MIN_MS, RK_MIN(ttl_ms, RK_LEASE_TTL_MAX_MS));
    lease->expires_ms = now_ms + lease->ttl_ms;
    lease->committed_seq = lease->finished_seq = 0;
    memcpy(lease->id, id, RK_LEASE_ID_BYTES);
    snprintf(lease->driver_id, sizeof(lease->driver_id), "%s", request->driver_id);
    lease->has_driver_key = request->driver_key.bytes > 0;
    if (lease->has_driver_key)
        memcpy(lease->driver_key, request->driver_key.data, RK_LEASE_KEY_BYTES);
}

struct rk_status *rk_lease_check(const struct rk_lease *lease, int64_t now_ms, const struct rk_fence *fence)
{
    if (fence->epoch == 0 && fence->incarnation == 0 && fence->lease_id.bytes == 0)
        return rk_status_at_field(
            RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                           "the call has no fence, expected the fence of AcquireLease's answer"),
            "fence");
    RK_TRY(check_incarnation(lease, fence->incarnation));
    if (fence->epoch != lease->epoch)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "STALE_EPOCH",
                              "the call has epoch %" PRIu64 ", this daemon is in epoch %" PRIu64,
                              fence->epoch, lease->epoch);
    if (fence->lease_id.bytes != RK_LEASE_ID_BYTES ||
        !rk_equal_secret(fence->lease_id.data, lease->id, RK_LEASE_ID_BYTES))
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "STALE_EPOCH",
                              "lease_id is not the one that epoch %" PRIu64 " was granted with",
                              lease->epoch);
    if (!rk_lease_is_live(lease, now_ms))
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "LEASE_EXPIRED",
                              "the lease of epoch %" PRIu64 " has lapsed or was released", lease->epoch);
    return NULL;
}

void rk_lease_renew(struct rk_lease *lease, int64_t now_ms)
{
    RK_ASSERT(rk_lease_is_live(lease, now_ms));
    lease->expires_ms = now_ms + lease->ttl_ms;
}

static void end(struct rk_lease *lease, int64_t ended_ms, int64_t grace_ms)
{
    RK_ASSERT(lease->is_held);
    lease->is_held = false;
    lease->is_in_grace = true;
    lease->grace_ends_ms = ended_ms + grace_ms;
}

void rk_lease_release(struct rk_lease *lease, int64_t now_ms, int64_t grace_ms)
{
    end(lease, now_ms, grace_ms);
}

rk_lease_event_t rk_lease_tick(struct rk_lease *lease, int64_t now_ms, int64_t grace_ms)
{
    if (lease->is_held && now_ms >= lease->expires_ms) {
        end(lease, lease->expires_ms, grace_ms);
        return RK_LEASE_LAPSED;
    }
    if (lease->is_in_grace && now_ms >= lease->grace_ends_ms) {
        lease->is_in_grace = false;
        return RK_LEASE_GRACE_OVER;
    }
    return RK_LEASE_NOTHING;
}

struct rk_status *rk_lease_check_seq(const struct rk_lease *lease, uint64_t seq)
{
    uint64_t next = lease->committed_seq + 1;

    if (seq == 0)
        return rk_status_at_field(
            RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "seq=0, expected a number from 1"),
            "header.seq");
    if (seq > next)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "SEQ_GAP",
                              "seq=%" PRIu64 ", expected %" PRIu64 " in epoch %" PRIu64, seq, next,
                              lease->epoch);
    if (seq < next)
        return RK_FAIL_REASON(RK_ABORTED, "RESULT_EXPIRED",
                              "seq=%" PRIu64 " was used in epoch %" PRIu64
                              " and its request is not kept; the next is %" PRIu64,
                              seq, lease->epoch, next);
    return NULL;
}

void rk_lease_commit_seq(struct rk_lease *lease, uint64_t seq)
{
    RK_ASSERT(seq == lease->committed_seq + 1);
    lease->committed_seq = seq;
}

void rk_lease_finish_seq(struct rk_lease *lease, uint64_t epoch, uint64_t seq)
{
    if (epoch != lease->epoch)
        return;
    RK_ASSERT(seq <= lease->committed_seq);
    lease->finished_seq = RK_MAX(lease->finished_seq, seq);
}
