/* One call on the group: scatter, two phases, watch, gather.
 *
 *   OFFER   every addressed rank gets header and chunks; all must accept the same plan
 *   RUN     commit went to all; results come back
 *
 * A refusal in OFFER takes the call back everywhere. A failure in RUN leaves the others in collectives that
 * will never be complete, so after a short grace (they may all be about to report the same error) their
 * communicators are aborted. */
#include "driver-cli/driver/driver_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_hash.h"
#include "base/rk_time.h"

#define REQUEST_ID_BYTES    16
#define ACCEPT_TIMEOUT_MS   60000 /* without any sign of progress, from a daemon that has to accept */
#define FAILURE_GRACE_MS    500   /* for the other ranks to name what they wait in, before they are aborted */
#define CANCEL_GRACE_MS     2000  /* the same after Ctrl-C: the ranks stop at the same micro-batch */
#define INTERRUPT_GRACE_MS  5000  /* for ranks to reach a place where they can stop */
#define GIVE_UP_MS          9000 /* after an abort; longer than the keepalive needs to find a silent daemon */
#define WITHDRAW_GIVE_UP_MS 3000
#define CANCEL_RPC_MS       5000
#define RPC_MARGIN_MS       30000 /* the daemon's watchdog ends a call in time; the RPC's deadline is later */

#define INTERRUPTED "interrupted by the user"

struct invocation {
    struct rk_driver *driver;
    const struct rk_driver_call_args *call;
    const struct rk_method *method;
    struct rk_dispatch *dispatch;
    struct rk_scatter *scatter;
    struct rk_upload **uploads; /* [num_chunks] */
    struct rk_arena *arena;
    uint8_t request_id[REQUEST_ID_BYTES];
    struct rk_execute_header header;

    grpc_completion_queue *queue;
    int32_t num_ranks;
    struct rk_call_stream **streams; /* [num_ranks]; NULL: not addressed */
    struct rk_rank_error *errors;    /* [num_ranks] */
    bool *has_ended;                 /* [num_ranks] and its end was looked at */
    struct rk_unary *aborts;         /* [num_ranks] */
    int32_t num_ends, num_failures;
    struct rk_status *verdict; /* of the driver's own, over what the ranks say; given to the caller */

    bool is_committed, is_abort_sent;
    int interrupts_seen;
    int64_t abort_at_ns, give_up_at_ns;
};

/* --- before anything is sent --- */

static struct rk_status *check_input(struct invocation *inv)
{
    const struct rk_driver_call_args *call = inv->call;
    const struct rk_method *method = inv->method;
    struct rk_batch_spec spec;
    struct rk_json *completed;

    RK_TRY(rk_method_complete_options(&completed, method, call->options));
    rk_json_free(completed);
    if (method->num_in == 0)
        return call->batch ? RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "takes no batch") : NULL;
    if (!call->batch)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "needs a batch");
    RK_TRY(rk_batch_describe(&spec, NULL, inv->arena, call->batch, NULL));
    return rk_batch_spec_check(&spec, method);
}

static const struct rk_mesh *find_mesh(const void *driver, const char *role)
{
    return rk_driver_find_mesh(driver, role);
}

/* Of a dry run: what the rank would get and give that the one daemon stands for. */
static struct rk_status *address_dry_rank(struct invocation *inv)
{
    struct rk_dispatch *dispatch = inv->dispatch;
    int32_t rank = inv->driver->dry_rank;

    if (dispatch->payload == RK_PAYLOAD_PROTO)
        return RK_FAIL(RK_FAILED_PRECONDITION, "a dry run makes memory plans only");
    dispatch->chunk_of_rank[0] = dispatch->chunk_of_rank[rank];
    dispatch->collects[0] = dispatch->collects[rank];
    dispatch->collected[0] = 0;
    dispatch->num_collected = dispatch->collects[0];
    return NULL;
}

static struct rk_status *make_dispatch(struct invocation *inv)
{
    RK_TRY(rk_dispatch_create_method(&inv->dispatch, inv->method, inv->call->role, find_mesh, inv->driver));
    return rk_driver_is_dry_run(inv->driver) ? address_dry_rank(inv) : NULL;
}

static struct rk_status *check_plan(const struct invocation *inv)
{
    const struct rk_plan *plan = inv->call->plan;

    if (!(inv->method->flags & RK_MF_PLAN))
        return plan ? RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "takes no plan") : NULL;
    if (!plan)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "needs a plan");
    return rk_plan_check(plan, rk_batch_num_rows(inv->scatter->chunks[0]), inv->dispatch->num_chunks);
}

static struct rk_status *make_uploads(struct invocation *inv)
{
    if (!inv->call->batch)
        return check_plan(inv);
    RK_TRY(rk_scatter_batch(&inv->scatter, inv->dispatch, inv->call->batch));
    RK_TRY(check_plan(inv));
    inv->uploads = rk_calloc((size_t)inv->scatter->num_chunks, sizeof(*inv->uploads));
    for (int32_t i = 0; i < inv->scatter->num_chunks; i++)
        RK_TRY(rk_upload_create(&inv->uploads[i], inv->driver, inv->scatter->chunks[i]));
    return NULL;
}

static struct rk_status *prepare(struct invocation *inv)
{
    const struct rk_driver_call_args *call = inv->call;

    RK_TRY(rk_method_check_role(&inv->method, call->role, call->method));
    if (call->timeout_ms < 0 || call->timeout_ms > UINT32_MAX)
        return RK_FAIL(RK_INVALID_ARGUMENT, "timeout_ms=%lld, expected 0 to %u", (long long)call->timeout_ms,
                       UINT32_MAX);
    RK_TRY(rk_lease_check(inv->driver));
    RK_TRY(check_input(inv));
    RK_TRY(make_dispatch(inv));
    RK_TRY(make_uploads(inv));
    RK_TRY(rk_random_bytes(inv->request_id, sizeof(inv->request_id)));
    inv->header = (struct rk_execute_header){
        .request_id = {inv->request_id, sizeof(inv->request_id)},
        .mesh_generation = inv->driver->mesh_generation,
        .role = call->role,
        .method = inv->method->name,
        .options = rk_meta_from_json(inv->arena, call->options),
        .timeout_ms = (uint32_t)call->timeout_ms,
        .two_phase = true,
    };
    if (call->plan)
        inv->header.plan = *call->plan;
    return NULL;
}

static struct rk_status *open_streams(struct invocation *inv)
{
    for (int32_t rank = 0; rank < inv->num_ranks; rank++) {
        int32_t chunk = inv->dispatch->chunk_of_rank[rank];
        struct rk_call_stream_config config = {
            .driver = inv->driver,
            .client = &inv->driver->clients[rank],
            .upload = inv->uploads && chunk >= 0 ? inv->uploads[chunk] : NULL,
            .header = &inv->header,
            .collect = inv->dispatch->collects[rank],
            .timeout_ms = inv->call->timeout_ms > 0 ? inv->call->timeout_ms + RPC_MARGIN_MS : 0,
            .queue = inv->queue,
            .on_progress = inv->call->on_progress,
            .user = inv->call->user,
        };

        if (chunk >= 0)
            RK_TRY(rk_call_stream_open(&inv->streams[rank], &config));
    }
    return NULL;
}

/* --- stopping --- */

static bool is_running(const struct invocation *inv, int32_t rank)
{
    return inv->streams[rank] && !rk_call_stream_is_finished(inv->streams[rank]);
}

static bool any_running(const struct invocation *inv)
{
    for (int32_t rank = 0; rank < inv->num_ranks; rank++) {
        if (is_running(inv, rank))
            return true;
    }
    return false;
}

/* Takes the communicators of the call down, by Cancel on the control connections. */
static void send_aborts(struct invocation *inv, const char *reason)
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

static void cancel_all(struct invocation *inv, const char *reason)
{
    for (int32_t rank = 0; rank < inv->num_ranks; rank++) {
        if (is_running(inv, rank))
            rk_call_stream_cancel(inv->streams[rank], reason);
    }
}

/* Before the commit. */
static void withdraw_all(struct invocation *inv, const char *reason)
{
    RK_ASSERT(!inv->is_committed);
    cancel_all(inv, reason);
    inv->give_up_at_ns = RK_MIN(inv->give_up_at_ns, rk_time_now_ns() + WITHDRAW_GIVE_UP_MS * 1000000LL);
}

static void abandon_all(struct invocation *inv, rk_code_t code, const char *message)
{
    for (int32_t rank = 0; rank < inv->num_ranks; rank++) {
        if (is_running(inv, rank))
            rk_call_stream_abandon(inv->streams[rank], RK_FAIL(code, "%s", message));
    }
}

/* --- watching --- */

/* Looks at the streams that ended since the last time. */
static void collect_ends(struct invocation *inv)
{
    for (int32_t rank = 0; rank < inv->num_ranks; rank++) {
        struct rk_rank_error *error = &inv->errors[rank];
        int64_t grace_ms = inv->interrupts_seen > 0 ? CANCEL_GRACE_MS : FAILURE_GRACE_MS;

        if (!inv->streams[rank] || inv->has_ended[rank] || is_running(inv, rank))
            continue;
        inv->has_ended[rank] = true;
        error->order = inv->num_ends++;
        error->status = rk_call_stream_take_error(inv->streams[rank], &error->is_lost);
        if (!error->status)
            continue;
        inv->num_failures++;
        inv->driver->is_lost |= error->is_lost;
        if (!inv->is_committed && inv->num_failures == 1)
            withdraw_all(inv, "another rank did not accept the call");
        if (inv->is_committed)
            inv->abort_at_ns = RK_MIN(inv->abort_at_ns, rk_time_now_ns() + grace_ms * 1000000LL);
    }
}

/* NULL when all have accepted the same plan; *all_accepted tells whether all have answered. */
static struct rk_status *compare_hashes(const struct invocation *inv, bool *all_accepted)
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
                           "ranks %d and %d accepted different plans: their daemons differ in version",
                           first_rank, rank);
        if (!first)
            first_rank = rank;
        first = hash;
    }
    *all_accepted = true;
    return NULL;
}

static void commit_when_accepted(struct invocation *inv)
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
}

static void check_accept_timeout(struct invocation *inv)
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

static void follow_interrupts(struct invocation *inv)
{
    int interrupts = atomic_load(&inv->driver->interrupts);

    if (interrupts == inv->interrupts_seen)
        return;
    inv->interrupts_seen = interrupts;
    if (interrupts > 1) {
        abandon_all(inv, RK_CANCELLED, "detached");
    } else if (inv->is_committed) {
        cancel_all(inv, INTERRUPTED);
        inv->abort_at_ns = RK_MIN(inv->abort_at_ns, rk_time_now_ns() + INTERRUPT_GRACE_MS * 1000000LL);
    } else {
        withdraw_all(inv, INTERRUPTED);
    }
}

/* Ends the call on the ranks that are left; they say in their logs why. */
static void abort_others(struct invocation *inv)
{
    const struct rk_rank_error *first = NULL;
    char reason[256];

    if (inv->interrupts_seen > 0) {
        send_aborts(inv, INTERRUPTED);
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

static void watch(struct invocation *inv)
{
    collect_ends(inv);
    follow_interrupts(inv);
    if (!inv->is_committed && !inv->verdict && inv->num_failures == 0 && inv->interrupts_seen == 0) {
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

static void end_queue(struct invocation *inv)
{
    for (int32_t rank = 0; rank < inv->num_ranks; rank++) {
        if (inv->aborts[rank].call && !inv->aborts[rank].is_done)
            grpc_call_cancel(inv->aborts[rank].call, NULL);
    }
    rk_pump_end(inv->queue);
}

/* The mesh of the role; that of the actor for a rank that is not in it, as update_weights goes over both. */
static struct rk_status *name_root(struct invocation *inv)
{
    int32_t root = rk_error_find_root(inv->errors, inv->num_ranks);
    const char *role = inv->call->role;
    const struct rk_mesh *mesh = rk_driver_find_mesh(inv->driver, role);
    struct rk_mesh_coords coords;

    if (root >= 0 && (!mesh || !rk_mesh_find_coords(mesh, root, &coords))) {
        role = "actor";
        mesh = rk_driver_find_mesh(inv->driver, role);
    }
    return rk_error_of_call(inv->errors, inv->num_ranks, role, mesh);
}

static struct rk_status *run(struct invocation *inv)
{
    char hex[2 * REQUEST_ID_BYTES + 1];

    inv->verdict = open_streams(inv);
    if (inv->verdict)
        withdraw_all(inv, "the call could not be sent to another rank");
    while (any_running(inv)) {
        rk_pump(inv->queue, RK_DRIVER_POLL_MS);
        watch(inv);
    }
    collect_ends(inv);
    end_queue(inv);
    if (inv->verdict)
        return inv->verdict;
    if (inv->interrupts_seen > 1 && inv->is_committed)
        return RK_FAIL_REASON(RK_CANCELLED, "DETACHED", "detached; request %s goes on",
                              rk_hex(inv->request_id, sizeof(inv->request_id), hex));
    if (inv->interrupts_seen > 0 && inv->num_failures > 0)
        return RK_FAIL(RK_CANCELLED, "interrupted");
    return name_root(inv);
}

/* --- after --- */

static struct rk_json *reduce_metrics(const struct invocation *inv)
{
    const struct rk_execute_result **results = rk_calloc((size_t)inv->num_ranks, sizeof(*results));
    struct rk_json *metrics;

    for (int32_t rank = 0; rank < inv->num_ranks; rank++)
        results[rank] = inv->streams[rank] ? rk_call_stream_result(inv->streams[rank]) : NULL;
    metrics = rk_reduce_metrics(results, inv->dispatch->collects, inv->num_ranks);
    rk_free(results);
    return metrics;
}

static struct rk_status *gather(struct invocation *inv, struct rk_driver_result *result)
{
    struct rk_batch **by_rank = rk_calloc((size_t)inv->num_ranks, sizeof(*by_rank));
    struct rk_status *st = NULL;

    result->metrics = reduce_metrics(inv);
    result->num_outputs = inv->dispatch->num_collected;
    result->outputs = rk_calloc((size_t)inv->dispatch->num_collected, sizeof(*result->outputs));
    for (int32_t i = 0; i < inv->dispatch->num_collected; i++) {
        int32_t rank = inv->dispatch->collected[i];

        result->outputs[i] = by_rank[rank] = rk_call_stream_take_output(inv->streams[rank]);
    }
    if (inv->method->num_out > 0 && inv->dispatch->payload == RK_PAYLOAD_PROTO)
        st = rk_gather_batch(&result->batch, inv->dispatch, by_rank,
                             inv->scatter ? inv->scatter->num_padded : 0);
    rk_free(by_rank);
    return st;
}

static void fini(struct invocation *inv)
{
    for (int32_t rank = 0; rank < inv->num_ranks; rank++) {
        rk_call_stream_destroy(inv->streams[rank]);
        rk_unary_fini(&inv->aborts[rank]);
        rk_status_free(inv->errors[rank].status);
    }
    for (int32_t i = 0; inv->uploads && i < inv->scatter->num_chunks; i++) {
        if (inv->uploads[i])
            rk_upload_end(inv->uploads[i]);
    }
    rk_free(inv->uploads);
    rk_free(inv->streams);
    rk_free(inv->aborts);
    rk_free(inv->errors);
    rk_free(inv->has_ended);
    rk_scatter_destroy(inv->scatter);
    rk_dispatch_destroy(inv->dispatch);
    rk_arena_destroy(inv->arena);
}

struct rk_status *rk_driver_call(struct rk_driver *driver, const struct rk_driver_call_args *call,
                                 struct rk_driver_result *result)
{
    struct invocation inv = {.driver = driver,
                             .call = call,
                             .num_ranks = driver->num_clients,
                             .abort_at_ns = INT64_MAX,
                             .give_up_at_ns = INT64_MAX};
    struct rk_status *st;

    *result = (struct rk_driver_result){0};
    if (atomic_load(&driver->interrupts) > 0)
        return RK_FAIL(RK_CANCELLED, "interrupted");
    rk_upload_reap(driver, false);
    inv.arena = rk_arena_create(16384, 0);
    inv.streams = rk_calloc((size_t)inv.num_ranks, sizeof(*inv.streams));
    inv.aborts = rk_calloc((size_t)inv.num_ranks, sizeof(*inv.aborts));
    inv.errors = rk_calloc((size_t)inv.num_ranks, sizeof(*inv.errors));
    inv.has_ended = rk_calloc((size_t)inv.num_ranks, sizeof(*inv.has_ended));
    for (int32_t rank = 0; rank < inv.num_ranks; rank++)
        inv.errors[rank] = (struct rk_rank_error){.rank = rank, .address = driver->clients[rank].address};
    st = prepare(&inv);
    if (!st) {
        inv.queue = grpc_completion_queue_create_for_next(NULL);
        st = run(&inv);
    }
    if (!st)
        st = gather(&inv, result);
    fini(&inv);
    if (!st)
        return NULL;
    rk_driver_result_fini(result);
    return RK_WRAP(st, "%s.%s", call->role, call->method);
}

void rk_driver_result_fini(struct rk_driver_result *result)
{
    for (int32_t i = 0; i < result->num_outputs && result->outputs; i++)
        rk_batch_destroy(result->outputs[i]);
    rk_free(result->outputs);
    rk_batch_destroy(result->batch);
    rk_json_free(result->metrics);
    *result = (struct rk_driver_result){0};
}
