/* The exchange with the daemons: offer, commit, watch, stop.
 *
 *   OFFER   every addressed rank gets header and chunks; all must accept the same plan
 *   RUN     commit was sent to all; results arrive
 *
 * A brief call has no OFFER: the ranks do not wait for each other, so a failure on one does not affect the
 * others.
 *
 * A refusal in OFFER withdraws the call on all ranks. A failure in RUN leaves the others in collectives that
 * cannot complete, so after a short grace (they may all be about to report the same error) their
 * communicators are aborted. */
#include "driver/invocation_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_assert.h"
#include "base/rk_hash.h"
#include "base/rk_random.h"
#include "base/rk_time.h"

#define ACCEPT_TIMEOUT_MS   60000 /* without any sign of progress, from a daemon that has to accept */
#define FAILURE_GRACE_MS    500   /* for the other ranks to report their operation before they are aborted */
#define CANCEL_GRACE_MS     2000  /* the same after Ctrl-C: the ranks stop at the same micro-batch */
#define INTERRUPT_GRACE_MS  5000  /* for ranks to reach a point where they can stop */
#define GIVE_UP_MS          9000 /* after an abort; longer than the keepalive needs to find a silent daemon */
#define WITHDRAW_GIVE_UP_MS 3000
#define CANCEL_RPC_MS       5000
#define RPC_MARGIN_MS       30000 /* the daemon's watchdog ends a call in time; the RPC's deadline is later */
#define REOPENS_MAX         200   /* of streams that overtook the commit of the previous call */
#define REOPEN_DELAY_MS     5

#define INTERRUPTED "interrupted by the user"

static struct rk_status *open_stream(struct rk_invocation *inv, int32_t rank)
{
    int32_t chunk = inv->dispatch->chunk_of_rank[rank];
    struct rk_call_stream_config config = {
        .client = &inv->driver->clients[rank],
        .upload = inv->uploads ? inv->uploads[chunk] : NULL,
        .header = &inv->header,
        .collect = inv->dispatch->collects[rank],
        .is_brief = inv->is_brief,
        .timeout_ms = inv->timeout_ms > 0 ? inv->timeout_ms + RPC_MARGIN_MS : 0,
        .queue = inv->queue,
        .on_progress = inv->on_progress,
        .user = inv->user,
    };

    return rk_call_stream_open(&inv->streams[rank], &config);
}

static struct rk_status *open_streams(struct rk_invocation *inv)
{
    for (int32_t rank = 0; rank < inv->num_ranks; rank++) {
        if (inv->dispatch->chunk_of_rank[rank] >= 0)
            RK_TRY(open_stream(inv, rank));
    }
    return NULL;
}

/* --- stopping --- */

static bool is_running(const struct rk_invocation *inv, int32_t rank)
{
    return inv->streams[rank] && !rk_call_stream_is_finished(inv->streams[rank]);
}

static bool any_running(const struct rk_invocation *inv)
{
    for (int32_t rank = 0; rank < inv->num_ranks; rank++) {
        if (is_running(inv, rank))
            return true;
    }
    return false;
}

/* Requested by the user of the driver, by an interrupt or a cancelled future. */
static bool is_stopping(const struct rk_invocation *inv)
{
    return inv->interrupts_seen > 0 || inv->is_cancel_seen;
}

static const char *stop_reason(const struct rk_invocation *inv)
{
    return inv->interrupts_seen > 0 ? INTERRUPTED : inv->cancel_reason;
}

/* Aborts the communicators of the call, by Cancel on the control connections. */
static void send_aborts(struct rk_invocation *inv, const char *reason)
{
    for (int32_t rank = 0; rank < inv->num_ranks; rank++) {
        struct rk_client *client = &inv->driver->clients[rank];
        struct rk_cancel_request request = {.fence = client->fence,
                                            .request_id = inv->header.request_id,
                                            .abort_comm = true,
                                            .reason = reason};
        struct rk_str packed = {0};

        if (!is_running(inv, rank))
            continue;
        rk_pack_cancel_request(&packed, &request);
        rk_unary_start(&inv->aborts[rank], client, RK_RPC_ID_CANCEL, &packed, CANCEL_RPC_MS, inv->queue);
        rk_str_fini(&packed);
    }
}

static void cancel_all(struct rk_invocation *inv, const char *reason)
{
    for (int32_t rank = 0; rank < inv->num_ranks; rank++) {
        if (is_running(inv, rank))
            rk_call_stream_cancel(inv->streams[rank], reason);
    }
}

static void abandon_all(struct rk_invocation *inv, rk_code_t code, const char *message)
{
    for (int32_t rank = 0; rank < inv->num_ranks; rank++) {
        if (is_running(inv, rank))
            rk_call_stream_abandon(inv->streams[rank], RK_FAIL(code, "%s", message));
    }
}

/* Before the commit. */
static void withdraw_all(struct rk_invocation *inv, const char *reason)
{
    RK_ASSERT(!inv->is_committed);
    cancel_all(inv, reason);
    inv->give_up_at_ns = RK_MIN(inv->give_up_at_ns, rk_time_now_ns() + WITHDRAW_GIVE_UP_MS * 1000000LL);
}

/* --- watching --- */

/* The header of a call may overtake the commit of the previous one, and is then refused. Offers it
 * again in this case; false for another failure of the rank. */
static bool reopen(struct rk_invocation *inv, int32_t rank)
{
    struct rk_rank_error *error = &inv->errors[rank];
    struct rk_status *st;

    if (!inv->had_to_wait || inv->is_committed || is_stopping(inv) || inv->num_failures > 0 ||
        inv->num_reopened == REOPENS_MAX || strcmp(rk_status_reason(error->status), "SEQ_GAP") != 0)
        return false;
    rk_time_sleep_ms(REOPEN_DELAY_MS);
    inv->num_reopened++;
    inv->num_ends--;
    rk_call_stream_destroy(inv->streams[rank]);
    inv->streams[rank] = NULL;
    st = open_stream(inv, rank);
    inv->has_ended[rank] = st != NULL;
    rk_status_free(error->status);
    error->status = st;
    return !st;
}

/* Processes the streams that ended since the last call. */
static void collect_ends(struct rk_invocation *inv)
{
    for (int32_t rank = 0; rank < inv->num_ranks; rank++) {
        struct rk_rank_error *error = &inv->errors[rank];
        int64_t grace_ms = is_stopping(inv) ? CANCEL_GRACE_MS : FAILURE_GRACE_MS;

        if (!inv->streams[rank] || inv->has_ended[rank] || is_running(inv, rank))
            continue;
        inv->has_ended[rank] = true;
        error->order = inv->num_ends++;
        error->status = rk_call_stream_take_error(inv->streams[rank], &error->is_lost);
        if (!error->status || reopen(inv, rank))
            continue;
        inv->num_failures++;
        if (error->is_lost)
            atomic_store(&inv->driver->is_lost, true);
        if (!inv->is_committed && inv->num_failures == 1)
            withdraw_all(inv, "another rank did not accept the call");
        if (inv->is_committed && !inv->is_brief)
            inv->abort_at_ns = RK_MIN(inv->abort_at_ns, rk_time_now_ns() + grace_ms * 1000000LL);
    }
}

/* NULL when all have accepted the same plan; *all_accepted: whether all have answered. */
static struct rk_status *compare_hashes(const struct rk_invocation *inv, bool *all_accepted)
{
    const uint8_t *first = NULL;
    int32_t first_rank = 0;

    *all_accepted = false;
    for (int32_t rank = 0; rank < inv->num_ranks; rank++) {
        const uint8_t *hash;

        if (!inv->streams[rank])
            continue;
        if (!rk_call_stream_is_accepted(inv->streams[rank]))
            return NULL;
        hash = rk_call_stream_plan_hash(inv->streams[rank]);
        if (first && memcmp(first, hash, RK_SHA256_BYTES) != 0)
            return RK_FAIL(RK_INTERNAL,
                           "ranks %d and %d accepted different plans; expected daemons of the same version",
                           first_rank, rank);
        if (!first)
            first_rank = rank;
        first = hash;
    }
    *all_accepted = true;
    return NULL;
}

static void commit_when_accepted(struct rk_invocation *inv)
{
    bool all_accepted;

    inv->verdict = compare_hashes(inv, &all_accepted);
    if (inv->verdict)
        withdraw_all(inv, "the ranks accepted different plans");
    if (!all_accepted)
        return;
    inv->is_committed = true;
    for (int32_t rank = 0; rank < inv->num_ranks; rank++) {
        if (inv->streams[rank])
            rk_call_stream_commit(inv->streams[rank]);
    }
    rk_turns_offered(&inv->driver->turns, inv);
}

static void check_accept_timeout(struct rk_invocation *inv)
{
    for (int32_t rank = 0; rank < inv->num_ranks; rank++) {
        struct rk_call_stream *stream = inv->streams[rank];

        if (!is_running(inv, rank) || rk_call_stream_is_accepted(stream))
            continue;
        if (rk_time_now_ns() - rk_call_stream_last_event_ns(stream) > ACCEPT_TIMEOUT_MS * 1000000LL)
            rk_call_stream_abandon(stream, RK_FAIL(RK_DEADLINE_EXCEEDED,
                                                   "neither accepted nor refused the call within %d s",
                                                   ACCEPT_TIMEOUT_MS / 1000));
    }
}

static void stop_all(struct rk_invocation *inv, const char *reason)
{
    if (inv->is_brief) {
        abandon_all(inv, RK_CANCELLED, reason);
        return;
    }
    if (!inv->is_committed) {
        withdraw_all(inv, reason);
        return;
    }
    cancel_all(inv, reason);
    inv->abort_at_ns = RK_MIN(inv->abort_at_ns, rk_time_now_ns() + INTERRUPT_GRACE_MS * 1000000LL);
}

static void follow_interrupts(struct rk_invocation *inv)
{
    int interrupts = atomic_load(&inv->driver->interrupts);

    if (interrupts == inv->interrupts_seen)
        return;
    inv->interrupts_seen = interrupts;
    if (interrupts > 1)
        abandon_all(inv, RK_CANCELLED, "detached");
    else
        stop_all(inv, INTERRUPTED);
}

static void follow_cancel(struct rk_invocation *inv)
{
    if (inv->is_cancel_seen || !atomic_load(&inv->is_cancelled))
        return;
    inv->is_cancel_seen = true;
    stop_all(inv, inv->cancel_reason);
}

/* Ends the call on the remaining ranks, which log the reason. */
static void abort_others(struct rk_invocation *inv)
{
    const struct rk_rank_error *first = NULL;
    char reason[256];

    if (is_stopping(inv)) {
        send_aborts(inv, stop_reason(inv));
        return;
    }
    for (int32_t rank = 0; rank < inv->num_ranks; rank++) {
        const struct rk_rank_error *error = &inv->errors[rank];

        if (error->status && (!first || error->order < first->order))
            first = error;
    }
    RK_ASSERT(first); /* nothing else sets abort_at_ns */
    snprintf(reason, sizeof(reason), "rank %d of the call failed: %s: %s", (int)(first - inv->errors),
             rk_code_name(rk_status_code(first->status)), rk_status_message(first->status));
    send_aborts(inv, reason);
}

static void watch(struct rk_invocation *inv)
{
    collect_ends(inv);
    follow_interrupts(inv);
    follow_cancel(inv);
    if (!inv->is_committed && !inv->verdict && inv->num_failures == 0 && !is_stopping(inv)) {
        commit_when_accepted(inv);
        check_accept_timeout(inv);
    }
    if (rk_time_now_ns() >= inv->abort_at_ns && !inv->is_abort_sent) {
        inv->give_up_at_ns = RK_MIN(inv->give_up_at_ns, rk_time_now_ns() + GIVE_UP_MS * 1000000LL);
        abort_others(inv);
        inv->is_abort_sent = true;
    }
    if (rk_time_now_ns() >= inv->give_up_at_ns)
        abandon_all(inv, inv->is_committed ? RK_DEADLINE_EXCEEDED : RK_CANCELLED,
                    "did not stop in time after the call failed");
}

static bool has_open_aborts(const struct rk_invocation *inv)
{
    for (int32_t rank = 0; rank < inv->num_ranks; rank++) {
        if (inv->aborts[rank].call && !inv->aborts[rank].is_done)
            return true;
    }
    return false;
}

static void end_queue(struct rk_invocation *inv)
{
    for (int32_t rank = 0; rank < inv->num_ranks; rank++) {
        if (inv->aborts[rank].call && !inv->aborts[rank].is_done)
            grpc_call_cancel(inv->aborts[rank].call, NULL);
    }
    while (has_open_aborts(inv))
        rk_pump(inv->queue, RK_DRIVER_POLL_MS);
    rk_driver_give_queue(inv->driver, inv->queue);
}

/* The mesh of the role; the actor's for a rank outside it, since update_weights runs over both meshes. */
static struct rk_status *name_root(struct rk_invocation *inv)
{
    int32_t root = rk_error_find_root(inv->errors, inv->num_ranks);
    const char *role = inv->role;
    const struct rk_mesh *mesh = rk_driver_find_mesh(inv->driver, role);
    struct rk_mesh_coords coords;

    if (root >= 0 && (!mesh || !rk_mesh_find_coords(mesh, root, &coords))) {
        role = "actor";
        mesh = rk_driver_find_mesh(inv->driver, role);
    }
    return rk_error_of_call(inv->errors, inv->num_ranks, role, mesh);
}

struct rk_status *rk_invocation_exchange(struct rk_invocation *inv)
{
    char hex[2 * RK_REQUEST_ID_BYTES + 1];

    inv->queue = rk_driver_take_queue(inv->driver);
    inv->is_committed = inv->is_brief;
    if (inv->is_brief) {
        inv->header.two_phase = false;
        inv->header.brief = true;
    }
    inv->verdict = open_streams(inv);
    if (inv->verdict)
        stop_all(inv, "the call could not be sent to another rank");
    rk_driver_begin_pumping(inv->driver);
    while (any_running(inv)) {
        rk_pump(inv->queue, RK_DRIVER_POLL_MS);
        watch(inv);
    }
    rk_driver_end_pumping(inv->driver);
    collect_ends(inv);
    end_queue(inv);
    if (inv->verdict)
        return inv->verdict;
    if (inv->interrupts_seen > 1 && inv->is_committed && !inv->is_brief)
        return RK_FAIL_REASON(RK_CANCELLED, "DETACHED", "detached; request %s continues",
                              rk_hex(inv->request_id, sizeof(inv->request_id), hex));
    if (inv->interrupts_seen > 0 && inv->num_failures > 0)
        return RK_FAIL(RK_CANCELLED, "interrupted");
    if (inv->is_cancel_seen && inv->num_failures > 0)
        return RK_FAIL(RK_CANCELLED, "cancelled: %s", inv->cancel_reason);
    return name_root(inv);
}
