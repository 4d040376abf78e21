/* The Execute RPC: header, chunks, Commit in; Accepted, progress, result out. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_fault.h"
#include "base/rk_log.h"
#include "base/rk_time.h"
#include "daemon/rpc/execute.h"

/* A sender that is slower than this for a window is cut, since other calls wait for its memory. */
#define BODY_WINDOW_NS    (30 * 1000000000LL)
#define BODY_WINDOW_BYTES (30 * 64 * 1024)
/* Commit and Cancel. */
#define SMALL_MESSAGE_BYTES (16 << 10)

static struct rk_daemon *daemon_of(const struct rk_execute *execute)
{
    return rk_call_daemon(execute->call);
}

/* --- G --- */

static struct rk_status *take_chunk(struct rk_chunk_sink *upload, const struct rk_stream_frame *frame,
                                    struct grpc_byte_buffer *message)
{
    if (RK_FAULT("daemon.chunk"))
        return RK_FAIL(RK_INTERNAL, "fault point daemon.chunk");
    RK_TRY(rk_assembler_accept(upload->assembler, &frame->chunk, frame->data_bytes));
    rk_stream_copy_chunk(frame, message, (char *)upload->data[frame->chunk.tensor] + frame->chunk.offset);
    return NULL;
}

/* Copies chunks to their destination. Chunks of a known request have none: a client that repeats a request
 * cannot know that they are not needed. All other messages, and errors, are handled by thread L. */
static bool consume(struct rk_call *call, struct grpc_byte_buffer *message)
{
    struct rk_execute *execute = rk_call_user(call);
    struct rk_chunk_sink *upload = execute ? &execute->upload : NULL;
    struct rk_stream_frame frame;
    uint64_t received;

    if (!upload || (!upload->assembler && !execute->is_replayed))
        return false;
    RK_ASSERT(!upload->status);
    upload->status = rk_stream_read(&frame, message);
    if (upload->status || !frame.is_chunk)
        return false;
    if (execute->is_replayed)
        return true;
    upload->status = take_chunk(upload, &frame, message);
    if (upload->status)
        return false;
    received = atomic_fetch_add_explicit(&upload->received_bytes, frame.data_bytes, memory_order_relaxed) +
               frame.data_bytes;
    if (received == upload->total_bytes)
        rk_loop_run_here(rk_call_daemon(call)->loop, &upload->complete_event);
    return true;
}

/* --- L: streams and operations --- */

static void attach(struct rk_execute *execute, struct rk_operation *operation)
{
    execute->stage = RK_EXECUTE_STAGE_RUNNING;
    execute->operation = operation;
    execute->next = operation->streams;
    operation->streams = execute;
}

static void detach(struct rk_execute *execute)
{
    struct rk_execute **link = &execute->operation->streams;

    while (*link != execute)
        link = &(*link)->next;
    *link = execute->next;
    execute->operation = NULL;
}

static void begin_sending(struct rk_execute *execute, struct rk_result *result)
{
    execute->stage = RK_EXECUTE_STAGE_SENDING;
    execute->result = rk_result_retain(result);
}

void rk_execute_deliver(struct rk_operation *operation, struct rk_result *result)
{
    while (operation->streams) {
        struct rk_execute *execute = operation->streams;

        detach(execute);
        begin_sending(execute, result);
        rk_execute_pump(execute);
    }
}

void rk_execute_give_up(struct rk_operation *operation, const struct rk_status *why)
{
    for (struct rk_execute *execute = operation->streams; execute; execute = execute->next)
        rk_call_finish(execute->call, rk_status_clone(why)); /* detaches later, in on_end */
}

void rk_execute_drop(struct rk_execute *execute, struct rk_status *st)
{
    struct rk_daemon *daemon = daemon_of(execute);

    RK_ASSERT(execute->stage < RK_EXECUTE_STAGE_RUNNING);
    if (daemon->pending == execute)
        daemon->pending = NULL;
    rk_call_finish(execute->call, st); /* G may still copy: on_end frees the memory */
    rk_stop_advance(daemon);
}

static struct rk_status *check_commit(const struct rk_execute *execute)
{
    const struct rk_operation *operation = execute->operation;
    struct rk_daemon *daemon = daemon_of(execute);

    if (execute->stage == RK_EXECUTE_STAGE_BODY)
        return rk_assembler_check_complete(execute->upload.assembler);
    if (operation->epoch != daemon->lease.epoch || !rk_lease_is_live(&daemon->lease, rk_time_boot_ms()))
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "LEASE_EXPIRED",
                              "the lease of epoch %" PRIu64 " ended before Commit", operation->epoch);
    return NULL;
}

static void commit(struct rk_execute *execute)
{
    struct rk_daemon *daemon = daemon_of(execute);
    struct rk_operation *operation = execute->operation;
    struct rk_status *st = check_commit(execute);

    if (!st && RK_FAULT("daemon.commit"))
        st = RK_FAIL(RK_INTERNAL, "fault point daemon.commit");
    if (st) {
        rk_execute_drop(execute, st);
        return;
    }
    RK_ASSERT(daemon->pending == execute || execute->is_brief);
    if (!execute->is_brief)
        daemon->pending = NULL;
    attach(execute, operation);
    rk_operation_commit(operation);
}

static void body_is_complete(struct rk_execute *execute)
{
    if (rk_call_is_finished(execute->call) || execute->stage != RK_EXECUTE_STAGE_BODY)
        return;
    execute->stage = RK_EXECUTE_STAGE_ACCEPTED;
    execute->owes_accepted = !execute->is_brief;
    if (!execute->two_phase)
        commit(execute);
    rk_execute_pump(execute);
}

static void on_complete(struct rk_loop_event *event)
{
    body_is_complete(RK_CONTAINER_OF(event, struct rk_execute, upload.complete_event));
}

/* --- L: the header --- */

/* A known request: attach to the running operation, or send the stored result. */
static struct rk_status *join(struct rk_execute *execute, struct rk_operation *operation)
{
    if (operation->request.state == RK_REQUEST_RUNNING)
        RK_TRY(rk_daemon_check_well(daemon_of(execute)));
    execute->owes_accepted = !execute->is_brief;
    execute->is_replayed = true;
    execute->accepted_seq = operation->seq;
    memcpy(execute->plan_hash, operation->plan_hash, sizeof(execute->plan_hash));
    if (operation->request.state == RK_REQUEST_RUNNING)
        attach(execute, operation);
    else
        begin_sending(execute, operation->result);
    return NULL;
}

/* One call at a time may be open: the driver opens the next once this one is committed or dropped. A
 * repetition comes from a driver whose connection broke before the daemon noticed. */
static struct rk_status *claim_pending(struct rk_execute *execute, const struct rk_execute_header *header)
{
    struct rk_daemon *daemon = daemon_of(execute);
    struct rk_execute *other = daemon->pending;

    if (!other)
        return NULL;
    if (memcmp(other->operation->request.id, header->request_id.data, RK_REQUEST_ID_BYTES) != 0)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "SEQ_GAP",
                              "seq=%" PRIu64 " is taken by %s, which is neither committed nor dropped",
                              other->operation->seq, other->operation->name);
    rk_execute_drop(other, RK_FAIL(RK_ABORTED, "the request was repeated on another stream"));
    return NULL;
}

static struct rk_status *open_new(struct rk_execute *execute, const struct rk_execute_header *header,
                                  const uint8_t digest[RK_SHA256_BYTES], struct rk_arena **arena)
{
    struct rk_daemon *daemon = daemon_of(execute);
    struct rk_operation *operation;
    struct rk_status *st;

    RK_TRY(rk_daemon_check_takes_work(daemon));
    if (!execute->is_brief) {
        RK_TRY(claim_pending(execute, header));
        RK_TRY(rk_lease_check_seq(&daemon->lease, header->seq));
    }
    operation = rk_operation_create(daemon);
    operation->epoch = daemon->lease.epoch;
    operation->seq = header->seq;
    memcpy(operation->request.id, header->request_id.data, RK_REQUEST_ID_BYTES);
    memcpy(operation->request.digest, digest, RK_SHA256_BYTES);
    snprintf(operation->name, sizeof(operation->name), "%.31s.%.47s", header->role, header->method);
    st = rk_execute_check(operation, &execute->upload, header, *arena);
    *arena = NULL;
    if (st) {
        st = RK_WRAP(st, "%s", operation->name);
        rk_operation_discard(operation);
        return st;
    }
    execute->stage = RK_EXECUTE_STAGE_BODY;
    execute->operation = operation;
    execute->accepted_seq = operation->seq;
    memcpy(execute->plan_hash, operation->plan_hash, sizeof(execute->plan_hash));
    execute->window_begin_ns = rk_time_now_ns();
    if (!execute->is_brief)
        daemon->pending = execute;
    return NULL;
}

/* The names outlive the header, which is freed with the job. */
static void copy_want(struct rk_execute *execute, const struct rk_execute_header *header)
{
    struct rk_arena *arena = rk_call_arena(execute->call);

    if (header->num_want == 0)
        return;
    execute->want = rk_arena_calloc(arena, (size_t)header->num_want + 1, sizeof(*execute->want));
    for (int64_t i = 0; i < header->num_want; i++)
        execute->want[i] = rk_arena_strdup(arena, header->want[i]);
}

static struct rk_status *open_header(struct rk_execute *execute, struct grpc_byte_buffer *message)
{
    struct rk_daemon *daemon = daemon_of(execute);
    struct rk_arena *arena = rk_arena_create(64 << 10, 0);
    struct rk_execute_request request;
    struct rk_request *known = NULL;
    uint8_t digest[RK_SHA256_BYTES];
    struct rk_status *st;
    struct rk_bytes bytes;

    RK_TRY_GOTO(st, rk_stream_flatten(&bytes, arena, message, RK_LIMIT_HEADER_BYTES), out);
    RK_TRY_GOTO(st, rk_unpack_execute_request(&request, arena, bytes.data, bytes.bytes), out);
    if (request.kind != RK_EXECUTE_HEADER)
        RK_TRY_GOTO(
            st, RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "the stream must begin with a header"), out);
    RK_TRY_GOTO(st, rk_daemon_check_fence(daemon, &request.header.fence), out);
    if (request.header.request_id.bytes != RK_REQUEST_ID_BYTES)
        RK_TRY_GOTO(st,
                    rk_status_at_field(RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                                                      "request_id has %zu bytes, expected %d",
                                                      request.header.request_id.bytes, RK_REQUEST_ID_BYTES),
                                       "header.request_id"),
                    out);
    execute->two_phase = request.header.two_phase;
    execute->is_brief = request.header.brief;
    execute->collect = request.header.collect;
    copy_want(execute, &request.header);
    rk_execute_digest(&request.header, digest);
    RK_TRY_GOTO(st, rk_requests_lookup(&known, &daemon->requests, request.header.request_id.data, digest),
                out);
    if (known)
        st = join(execute, (struct rk_operation *)known);
    else
        st = open_new(execute, &request.header, digest, &arena);
out:
    rk_arena_destroy(arena);
    return st;
}

/* --- L: messages --- */

static void on_header(struct rk_call *call, struct grpc_byte_buffer *message)
{
    struct rk_execute *execute = rk_calloc(1, sizeof(*execute));
    struct rk_status *st;

    execute->call = call;
    execute->upload.complete_event.run = on_complete;
    atomic_init(&execute->upload.received_bytes, 0);
    rk_call_set_user(call, execute);
    st = message ? open_header(execute, message)
                 : RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "the stream ended without a header");
    if (st) {
        rk_call_finish(call, st);
        return;
    }
    if (execute->stage == RK_EXECUTE_STAGE_BODY && execute->upload.total_bytes == 0)
        body_is_complete(execute);
    rk_execute_pump(execute);
    if (!execute->is_brief)
        rk_call_read(call);
}

/* The client has closed its side, which is an error only if a required message is missing. */
static void on_half_close(struct rk_execute *execute)
{
    struct rk_status *st;

    if (execute->stage >= RK_EXECUTE_STAGE_RUNNING)
        return;
    st = rk_assembler_check_complete(execute->upload.assembler);
    if (!st)
        st = RK_FAIL(RK_CANCELLED, "the stream was closed without Commit");
    rk_execute_drop(execute, st);
}

/* The end of a stream that is attached to a committed operation does not affect the operation. */
static void fail(struct rk_execute *execute, struct rk_status *st)
{
    if (execute->stage < RK_EXECUTE_STAGE_RUNNING)
        rk_execute_drop(execute, st);
    else
        rk_call_finish(execute->call, st);
}

static void cancel(struct rk_execute *execute, const char *reason)
{
    if (execute->stage < RK_EXECUTE_STAGE_RUNNING)
        rk_execute_drop(execute, RK_FAIL(RK_CANCELLED, "cancelled by the client: %s", reason));
    else if (execute->operation)
        rk_operation_cancel(execute->operation, false, reason);
}

static void on_small_message(struct rk_execute *execute, struct grpc_byte_buffer *message)
{
    struct rk_arena *arena = rk_arena_create(4096, 0);
    struct rk_execute_request request;
    struct rk_bytes bytes;
    struct rk_status *st;

    RK_TRY_GOTO(st, rk_stream_flatten(&bytes, arena, message, SMALL_MESSAGE_BYTES), out);
    RK_TRY_GOTO(st, rk_unpack_execute_request(&request, arena, bytes.data, bytes.bytes), out);
    if (request.kind == RK_EXECUTE_CANCEL)
        cancel(execute, request.cancel.reason);
    else if (request.kind == RK_EXECUTE_COMMIT && execute->stage < RK_EXECUTE_STAGE_RUNNING)
        commit(execute);
    else if (request.kind != RK_EXECUTE_COMMIT) /* on an attached stream it is a repetition */
        st = RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "expected a chunk, Commit or Cancel");
out:
    if (st)
        fail(execute, st);
    rk_arena_destroy(arena);
}

static void on_message(struct rk_call *call, struct grpc_byte_buffer *message)
{
    struct rk_execute *execute = rk_call_user(call);

    if (!execute) {
        on_header(call, message);
        return;
    }
    if (execute->upload.status) {
        struct rk_status *st = execute->upload.status;

        execute->upload.status = NULL;
        fail(execute, st);
        return;
    }
    if (!message) {
        on_half_close(execute);
        return;
    }
    on_small_message(execute, message);
    rk_call_read(call);
}

static void on_sent(struct rk_call *call)
{
    rk_execute_pump(rk_call_user(call));
}

static void on_end(struct rk_call *call)
{
    struct rk_execute *execute = rk_call_user(call);
    struct rk_daemon *daemon = rk_call_daemon(call);

    if (!execute)
        return;
    if (daemon->pending == execute)
        daemon->pending = NULL;
    if (execute->stage == RK_EXECUTE_STAGE_RUNNING)
        detach(execute);
    else
        rk_operation_discard(execute->operation);
    rk_result_release(execute->result);
    rk_assembler_destroy(execute->upload.assembler);
    RK_IGNORE(execute->upload.status, "the stream has ended");
    rk_free(execute);
    rk_stop_advance(daemon);
}

static void check_speed(struct rk_execute *execute)
{
    uint64_t received = atomic_load_explicit(&execute->upload.received_bytes, memory_order_relaxed);
    int64_t now_ns = rk_time_now_ns();

    if (now_ns - execute->window_begin_ns < BODY_WINDOW_NS)
        return;
    if (received - execute->window_bytes < BODY_WINDOW_BYTES)
        rk_execute_drop(execute, RK_FAIL(RK_DEADLINE_EXCEEDED,
                                         "%" PRIu64 " bytes of the body came in %lld s, expected at least %d",
                                         received - execute->window_bytes, BODY_WINDOW_NS / 1000000000,
                                         BODY_WINDOW_BYTES));
    execute->window_begin_ns = now_ns;
    execute->window_bytes = received;
}

static void note_progress(struct rk_execute *execute)
{
    struct rk_worker_snapshot snapshot;

    rk_worker_get_snapshot(daemon_of(execute)->worker, &snapshot);
    if (snapshot.running != execute->operation->job)
        return;
    if (snapshot.progress_done == execute->progress_done &&
        snapshot.progress_total == execute->progress_total &&
        strcmp(snapshot.phase, execute->progress_phase) == 0)
        return;
    execute->progress_done = snapshot.progress_done;
    execute->progress_total = snapshot.progress_total;
    snprintf(execute->progress_phase, sizeof(execute->progress_phase), "%s", snapshot.phase);
    execute->owes_progress = !execute->is_brief;
    rk_execute_pump(execute);
}

static void on_tick(struct rk_call *call)
{
    struct rk_execute *execute = rk_call_user(call);

    if (!execute)
        return;
    if (execute->stage == RK_EXECUTE_STAGE_BODY)
        check_speed(execute);
    else if (execute->stage == RK_EXECUTE_STAGE_RUNNING)
        note_progress(execute);
}

const struct rk_rpc_handler rk_rpc_execute = {
    .on_message = on_message, .consume = consume, .on_sent = on_sent, .on_end = on_end, .on_tick = on_tick};
