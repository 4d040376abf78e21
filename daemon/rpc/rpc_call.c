/* Calls on thread L: reading, sending, ending. rpc_arrival.c admits them. */
#include "daemon/rpc/call_internal.h"

#include <inttypes.h>
#include <string.h>

#include <grpc/byte_buffer.h>
#include <grpc/compression.h>
#include <grpc/slice.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"
#include "base/rk_time.h"
#include "daemon/daemon_internal.h"
#include "proto/limits.h"
#include "proto/rk_stream.h"

#define STATUS_DETAILS "grpc-status-details-bin"
/* Message and details are sent in one header list, the details in base64: stock clients accept 8 KiB in
 * total. */
#define MAX_MESSAGE_BYTES 2000
#define ARENA_BLOCK_BYTES 960 /* enough for a small call; blocks grow */

void rk_call_destroy(struct rk_call *call)
{
    RK_ASSERT(!call->is_reading);
    RK_ASSERT(!call->is_sending);
    grpc_byte_buffer_destroy(call->message);
    grpc_metadata_array_destroy(&call->metadata);
    grpc_call_details_destroy(&call->details);
    if (call->core)
        grpc_call_unref(call->core);
    rk_arena_destroy(call->arena);
    rk_free(call);
}

struct rk_daemon *rk_call_daemon(const struct rk_call *call)
{
    return call->server->config.daemon;
}

struct rk_arena *rk_call_arena(struct rk_call *call)
{
    if (!call->arena)
        call->arena = rk_arena_create(ARENA_BLOCK_BYTES, 0);
    return call->arena;
}

void rk_call_set_user(struct rk_call *call, void *user)
{
    call->user = user;
}

void *rk_call_user(const struct rk_call *call)
{
    return call->user;
}

bool rk_call_is_finished(const struct rk_call *call)
{
    return call->is_finished || call->is_closed;
}

bool rk_call_is_sending(const struct rk_call *call)
{
    return call->is_sending;
}

void rk_call_start(struct rk_call *call, rk_call_op_kind_t kind, const grpc_op *ops, size_t num_ops)
{
    grpc_call_error error = grpc_call_start_batch(call->core, ops, num_ops, &call->ops[kind].tag, NULL);

    RK_ASSERT(error == GRPC_CALL_OK);
    call->num_batches++;
}

static grpc_op close_op(struct rk_call *call)
{
    RK_ASSERT(!call->has_close);
    call->has_close = true;
    return (grpc_op){.op = GRPC_OP_RECV_CLOSE_ON_SERVER,
                     .data.recv_close_on_server.cancelled = &call->is_cancelled};
}

void rk_call_watch_close(struct rk_call *call)
{
    const grpc_op op = close_op(call);

    rk_call_start(call, RK_CALL_CLOSE, &op, 1);
}

int rk_call_metrics_row(const struct rk_call *call)
{
    return call->rpc ? (int)call->rpc->id : RK_RPC_COUNT;
}

struct rk_rpc_metrics *rk_call_metrics(const struct rk_call *call)
{
    return &call->server->config.daemon->metrics.rpcs[rk_call_metrics_row(call)];
}

/* Counts the call when it is finished, before the peer gets the status; else when the peer has disconnected.
 */
static void count(const struct rk_call *call)
{
    const struct rk_call_end end = {.rpc = rk_call_metrics_row(call),
                                    .code = call->is_finished ? call->code : RK_CANCELLED,
                                    .ns = rk_time_now_ns() - call->arrived_ns,
                                    .is_endless = call->handler && call->handler->is_endless};

    rk_metrics_count_call(&call->server->config.daemon->metrics, &end);
}

void rk_call_read(struct rk_call *call)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &call->message};

    if (rk_call_is_finished(call))
        return;
    RK_ASSERT(!call->is_reading);
    RK_ASSERT(!call->message);
    call->is_reading = true;
    rk_call_start(call, RK_CALL_READ, &op, 1);
}

/* Headers are sent with the first message. */
static size_t add_headers(struct rk_call *call, grpc_op *ops)
{
    if (call->has_headers)
        return 0;
    call->has_headers = true;
    ops[0] = (grpc_op){.op = GRPC_OP_SEND_INITIAL_METADATA};
    return 1;
}

void rk_call_send(struct rk_call *call, struct grpc_byte_buffer *message)
{
    grpc_op ops[2];
    size_t num_ops;

    RK_ASSERT(!call->is_sending);
    if (!rk_call_is_finished(call)) {
        num_ops = add_headers(call, ops);
        ops[num_ops++] = (grpc_op){.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = message};
        call->is_sending = true;
        rk_call_metrics(call)->sent_bytes += grpc_byte_buffer_length(message);
        rk_call_start(call, RK_CALL_SEND, ops, num_ops);
    }
    grpc_byte_buffer_destroy(message); /* the batch holds its own reference */
}

static void log_end(const struct rk_call *call, const struct rk_status *st)
{
    int64_t ms = (rk_time_now_ns() - call->arrived_ns) / 1000000;
    const char *path = call->rpc ? call->rpc->path : "unknown";

    if (st && call->is_failure_logged)
        RK_DEBUG_LOG("rpc path=%s code=%s ms=%" PRId64, path, rk_code_name(rk_status_code(st)), ms);
    else if (call->rpc && call->rpc->rights <= RK_RIGHTS_VIEWER && !st)
        RK_DEBUG_LOG("rpc path=%s code=OK ms=%" PRId64, path, ms);
    else if (!st)
        RK_INFO("rpc path=%s code=OK ms=%" PRId64, path, ms);
    else
        RK_WARN("rpc path=%s code=%s reason=%s ms=%" PRId64 ": %s", path, rk_code_name(rk_status_code(st)),
                rk_status_reason(st), ms, rk_status_message(st));
}

/* The same failure with another reason and text; takes the status. */
static struct rk_status *restate(struct rk_status *st, const char *reason, const char *text)
{
    struct rk_status *again = rk_status_from_wire(rk_status_code(st), reason, text);

    if (rk_status_blamed_rank(st) >= 0)
        again = rk_status_blame(again, rk_status_blamed_rank(st));
    if (rk_status_field(st)[0])
        again = rk_status_at_field(again, rk_status_field(st));
    if (rk_status_retry_ms(st) >= 0)
        again = rk_status_retry_after(again, rk_status_retry_ms(st));
    rk_status_free(st);
    return again;
}

/* Cuts the message to what fits, so that grpc-message and the details say the same; takes and returns the
 * status. */
static struct rk_status *clip(struct rk_status *st)
{
    struct rk_status *short_st;
    size_t bytes = MAX_MESSAGE_BYTES;
    char *text;

    if (!st || strlen(rk_status_message(st)) <= MAX_MESSAGE_BYTES)
        return st;
    while (bytes > 0 && ((unsigned char)rk_status_message(st)[bytes] & 0xc0) == 0x80)
        bytes--;
    text = rk_strndup(rk_status_message(st), bytes);
    short_st = restate(st, rk_status_reason(st), text);
    rk_free(text);
    return short_st;
}

/* Errors of a call come from many places, down to the engine; here the path of the call is added. Takes and
 * returns the status. */
static struct rk_status *name_reason(struct rk_status *st)
{
    if (rk_status_code(st) != RK_INVALID_ARGUMENT || rk_status_reason(st)[0])
        return st;
    return restate(st, "BAD_FIELD", rk_status_message(st));
}

/* The last message (may be NULL) and status in one batch. Takes both. */
static void finish(struct rk_call *call, struct rk_status *st, grpc_byte_buffer *message)
{
    grpc_slice text = grpc_slice_from_copied_string(st ? rk_status_message(st = clip(name_reason(st))) : "");
    grpc_metadata trailers[] = {{.key = grpc_slice_from_static_string(STATUS_DETAILS)},
                                {.key = grpc_slice_from_static_string("grpc-accept-encoding"),
                                 .value = grpc_slice_from_static_string("identity")}};
    bool tells_encodings = rk_status_code(st) == RK_UNIMPLEMENTED; /* the message may be compressed */
    struct rk_str packed = {0};
    grpc_op ops[4];
    size_t num_ops;

    log_end(call, st);
    if (st)
        rk_pack_status_details(&packed, st);
    trailers[0].value = grpc_slice_from_copied_buffer(packed.bytes ? packed.text : "", packed.bytes);
    num_ops = add_headers(call, ops);
    if (message && !st) {
        rk_call_metrics(call)->sent_bytes += grpc_byte_buffer_length(message);
        ops[num_ops++] = (grpc_op){.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = message};
    }
    ops[num_ops++] = (grpc_op){
        .op = GRPC_OP_SEND_STATUS_FROM_SERVER,
        .data.send_status_from_server = {.trailing_metadata_count = st ? 1 + (size_t)tells_encodings : 0,
                                         .trailing_metadata = trailers,
                                         .status = (grpc_status_code)rk_status_code(st),
                                         .status_details = st ? &text : NULL}};
    call->closes_with_finish = !call->has_close;
    if (call->closes_with_finish)
        ops[num_ops++] = close_op(call);
    call->is_finished = true;
    call->code = rk_status_code(st);
    count(call);
    rk_call_start(call, RK_CALL_FINISH, ops, num_ops);
    grpc_byte_buffer_destroy(message);
    grpc_slice_unref(trailers[0].value);
    grpc_slice_unref(text);
    rk_str_fini(&packed);
    rk_status_free(st);
}

void rk_call_finish_logged(struct rk_call *call, struct rk_status *st)
{
    call->is_failure_logged = true;
    rk_call_finish(call, st);
}

void rk_call_finish(struct rk_call *call, struct rk_status *st)
{
    if (rk_call_is_finished(call))
        RK_IGNORE(st, "the call has ended already");
    else
        finish(call, st, NULL);
}

void rk_call_send_last(struct rk_call *call, struct grpc_byte_buffer *message)
{
    RK_ASSERT(!call->is_sending);
    if (rk_call_is_finished(call))
        grpc_byte_buffer_destroy(message);
    else
        finish(call, NULL, message);
}

void rk_call_cut(struct rk_call *call, struct rk_status *st)
{
    if (!call->is_sending) {
        rk_call_finish(call, st);
        return;
    }
    if (rk_call_is_finished(call)) {
        RK_IGNORE(st, "the call has ended already");
        return;
    }
    log_end(call, st);
    call->is_finished = true;
    call->code = rk_status_code(st);
    count(call);
    grpc_call_cancel_with_status(call->core, (grpc_status_code)rk_status_code(st), rk_status_message(st),
                                 NULL);
    rk_status_free(st);
}

void rk_call_end_endless(struct rk_call *call)
{
    if (call->handler && call->handler->is_endless && !call->is_sending)
        rk_call_finish(call, rk_call_fail_shutdown());
}

/* Frees the call when no event is outstanding and no answer is due. */
static void settle(struct rk_call *call)
{
    if (!call->is_closed || call->num_batches > 0)
        return;
    if (call->link) {
        if (!call->is_finished)
            count(call);
        if (call->handler && call->handler->on_end)
            call->handler->on_end(call);
        *call->link = call->next;
        if (call->next)
            call->next->link = call->link;
        call->link = NULL;
    }
    if (!call->is_held)
        rk_call_destroy(call);
}

void rk_call_defer(struct rk_call *call)
{
    RK_ASSERT(!call->is_held);
    call->is_held = true;
    rk_call_watch_close(call);
}

void rk_call_answer(struct rk_call *call, struct rk_status *st, const struct rk_str *reply)
{
    RK_ASSERT(call->is_held);
    call->is_held = false;
    if (!rk_call_is_finished(call)) {
        finish(call, st, st ? NULL : rk_stream_encode(reply));
        return;
    }
    RK_IGNORE(st, "the client has disconnected");
    settle(call);
}

static struct rk_status *refuse_compression(const grpc_byte_buffer *message)
{
    const char *name = "unknown";

    if (!rk_message_is_compressed(message))
        return NULL;
    grpc_compression_algorithm_name(message->data.raw.compression, &name);
    return RK_FAIL(RK_UNIMPLEMENTED, "the message is compressed (grpc-encoding: %s), expected identity",
                   name);
}

static struct rk_status *handle_unary(struct rk_call *call, grpc_byte_buffer *message, struct rk_str *reply)
{
    struct rk_bytes request;

    if (!message)
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "the call has no request message");
    RK_TRY(rk_stream_flatten(&request, rk_call_arena(call), message, RK_LIMIT_MESSAGE_BYTES));
    return call->handler->unary(call, request, reply);
}

static void on_read(struct rk_call *call)
{
    grpc_byte_buffer *message = call->message;
    struct rk_str reply = {0};
    struct rk_status *st;

    call->is_reading = false;
    call->message = NULL;
    call->has_first_message = true;
    if (rk_call_is_finished(call)) {
        grpc_byte_buffer_destroy(message);
        return;
    }
    st = refuse_compression(message);
    if (st) {
        finish(call, st, NULL);
    } else if (call->rpc->kind != RK_RPC_UNARY) {
        call->handler->on_message(call, message);
    } else {
        st = handle_unary(call, message, &reply);
        if (!call->is_held)
            finish(call, st, st ? NULL : rk_stream_encode(&reply));
        else
            RK_ASSERT(!st);
        rk_str_fini(&reply);
    }
    grpc_byte_buffer_destroy(message);
}

void rk_call_on_batch(struct rk_loop_event *event)
{
    struct rk_call_op *op = RK_CONTAINER_OF(event, struct rk_call_op, tag.event);
    struct rk_call *call = op->call;

    RK_ASSERT(call->num_batches > 0);
    /* Counted down at the end: what the handlers do below must not free the call. */
    switch (op->kind) {
    case RK_CALL_READ:
        on_read(call);
        break;
    case RK_CALL_SEND:
        call->is_sending = false;
        if (!rk_call_is_finished(call) && call->handler->on_sent)
            call->handler->on_sent(call);
        if (call->server->is_shutting_down)
            rk_call_end_endless(call);
        break;
    case RK_CALL_CLOSE:
        if (!call->is_finished)
            RK_DEBUG_LOG("rpc path=%s: the peer disconnected", call->rpc ? call->rpc->path : "unknown");
        call->is_closed = true;
        break;
    default:
        RK_ASSERT(op->kind == RK_CALL_FINISH);
        call->is_closed |= call->closes_with_finish;
        break;
    }
    call->num_batches--;
    settle(call);
}

void rk_call_tick(struct rk_call *call, int64_t now_ns)
{
    if (rk_call_is_finished(call))
        return;
    if (!call->has_first_message && now_ns - call->arrived_ns > RK_RPC_FIRST_MESSAGE_MS * 1000000LL)
        rk_call_finish(call,
                       RK_FAIL(RK_DEADLINE_EXCEEDED, "no complete message within %d ms of the call's start",
                               RK_RPC_FIRST_MESSAGE_MS));
    else if (call->handler && call->handler->on_tick)
        call->handler->on_tick(call);
}
