/* AcquireLease, KeepAlive, ReleaseLease. The rules are in lease.c. */
#include "base/rk_flight.h"
#include "base/rk_log.h"
#include "base/rk_random.h"
#include "base/rk_time.h"
#include "daemon/daemon_internal.h"
#include "daemon/rpc/execute.h"
#include "daemon/feed_internal.h"
#include "daemon/operation_internal.h"

void rk_lease_tell(struct rk_daemon *daemon, const char *what)
{
    const struct rk_lease *lease = &daemon->lease;
    struct rk_meta_entry fields[] = {RK_FEED_TEXT("what", what), RK_FEED_TEXT("driver", lease->driver_id),
                                     RK_FEED_INT("epoch", lease->epoch),
                                     RK_FEED_INT("ttl_ms", lease->ttl_ms)};

    rk_flight_note(
        &(struct rk_flight_entry){
            .kind = RK_FLIGHT_LEASE, .what = what, .where = lease->driver_id, .seq = lease->epoch},
        RK_OK);
    rk_feed_add(daemon->feed, RK_FEED_LEASE, RK_FEED_FIELDS(fields), "%s: driver \"%s\" epoch %llu", what,
                lease->driver_id, (unsigned long long)lease->epoch);
}

static struct rk_fence make_fence(const struct rk_lease *lease)
{
    return (struct rk_fence){.epoch = lease->epoch,
                             .lease_id = {.data = lease->id, .bytes = sizeof(lease->id)},
                             .incarnation = lease->incarnation};
}

static struct rk_status *acquire_lease(struct rk_call *call, struct rk_bytes request, struct rk_str *reply)
{
    struct rk_daemon *daemon = rk_call_daemon(call);
    struct rk_lease *lease = &daemon->lease;
    struct rk_acquire_lease_response response = {0};
    struct rk_acquire_lease_request message;
    uint8_t id[RK_LEASE_ID_BYTES];

    RK_TRY(rk_unpack_acquire_lease_request(&message, rk_call_arena(call), request.data, request.bytes));
    RK_TRY(rk_daemon_check_takes_work(daemon));
    RK_TRY(rk_lease_check_acquire(lease, rk_time_boot_ms(), &message));
    RK_TRY(rk_random_bytes(id, sizeof(id)));
    /* On disk before it is used: a restarted daemon must not grant an epoch twice. */
    if (daemon->settings.state_dir)
        RK_TRY(rk_epoch_store(daemon->settings.state_dir, message.epoch));
    response.previous_driver = rk_arena_strdup(rk_call_arena(call), lease->driver_id);
    /* Its driver is gone, and the other ranks of the call are taken over as well. */
    rk_operations_cancel(daemon, true,
                         rk_lease_is_same_driver(lease, &message) ? "the driver claimed the daemon again"
                                                                  : "another driver took the lease");
    rk_lease_grant(lease, rk_time_boot_ms(), &message, daemon->settings.lease_ttl_ms, id);
    RK_INFO("lease granted driver=\"%s\" epoch=%llu ttl_ms=%lld", lease->driver_id,
            (unsigned long long)lease->epoch, (long long)lease->ttl_ms);
    rk_lease_tell(daemon, "granted");
    rk_record_lease(daemon);
    response.fence = make_fence(lease);
    response.ttl_ms = (uint32_t)lease->ttl_ms;
    response.last_seq = lease->finished_seq;
    rk_pack_acquire_lease_response(reply, &response);
    return NULL;
}

static struct rk_status *release_lease(struct rk_call *call, struct rk_bytes request, struct rk_str *reply)
{
    struct rk_daemon *daemon = rk_call_daemon(call);
    struct rk_release_lease_request message;

    (void)reply; /* the response has no fields */
    RK_TRY(rk_unpack_release_lease_request(&message, rk_call_arena(call), request.data, request.bytes));
    RK_TRY(rk_daemon_check_fence(daemon, &message.fence));
    /* Committed calls continue: a driver may detach from a running call. */
    if (daemon->pending)
        rk_execute_drop(daemon->pending,
                        RK_FAIL_REASON(RK_FAILED_PRECONDITION, "LEASE_EXPIRED", "the lease was released"));
    rk_lease_release(&daemon->lease, rk_time_boot_ms(), daemon->settings.lease_grace_ms);
    RK_INFO("lease released driver=\"%s\" epoch=%llu", daemon->lease.driver_id,
            (unsigned long long)daemon->lease.epoch);
    rk_lease_tell(daemon, "released");
    return NULL;
}

static struct rk_status *keep_alive(struct rk_call *call, struct rk_bytes request, struct rk_str *reply)
{
    struct rk_daemon *daemon = rk_call_daemon(call);
    struct rk_keep_alive_response response;
    struct rk_keep_alive_request message;

    RK_TRY(rk_unpack_keep_alive_request(&message, rk_call_arena(call), request.data, request.bytes));
    RK_TRY(rk_daemon_check_fence(daemon, &message.fence));
    response = (struct rk_keep_alive_response){.ttl_ms = (uint32_t)daemon->lease.ttl_ms,
                                               .state = rk_daemon_state_name(daemon->state),
                                               .last_seq = daemon->lease.finished_seq};
    rk_pack_keep_alive_response(reply, &response);
    return NULL;
}

static void on_message(struct rk_call *call, struct grpc_byte_buffer *message)
{
    rk_call_answer_each(call, message, RK_LIMIT_MESSAGE_BYTES, keep_alive);
}

const struct rk_rpc_handler rk_rpc_acquire_lease = {.unary = acquire_lease};
const struct rk_rpc_handler rk_rpc_release_lease = {.unary = release_lease};
const struct rk_rpc_handler rk_rpc_keep_alive = {
    .on_message = on_message, .on_sent = rk_call_read, .is_endless = true};
