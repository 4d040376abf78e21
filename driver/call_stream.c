/* One Execute stream: the part of a call at one daemon.
 *
 *   to the daemon    header, chunk*, then (when the driver commits) commit, and cancel, and half-close
 *   from the daemon  accepted, progress*, result, chunk*, status
 *
 * A brief call has one message each way: header and half-close, result and status.
 *
 * At most one send and one receive are under way. The stream is finished when its status is known and no
 * operation is pending. Messages of the daemon are checked like all external input: a message
 * out of place, a chunk that does not fit or a missing end is this stream's error. */
#include "driver/driver_internal.h"

#include <string.h>

#include <grpc/byte_buffer.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_hash.h"
#include "base/rk_time.h"

#define ARENA_BLOCK_BYTES 960 /* enough for a small result; blocks grow */

enum next_send { SEND_CHUNKS, SEND_COMMIT, SEND_CANCEL, SEND_CLOSE, SEND_NOTHING };

struct rk_call_stream {
    struct rk_call_stream_config config;
    struct rk_tag on_send, on_recv, on_status, on_end;
    struct rk_client_stream wire;
    bool has_status;
    int64_t last_event_ns;
    struct rk_arena *arena;   /* the result */
    struct rk_arena *scratch; /* the current message */

    enum next_send next_send;
    int64_t next_message; /* of the upload */
    bool is_sending, may_commit;
    const char *cancel_reason; /* NULL: not cancelled */

    grpc_byte_buffer *received;
    bool is_accepted, has_result;
    uint8_t plan_hash[RK_SHA256_BYTES];
    struct rk_execute_result result;
    struct rk_batch *output;
    void **output_data; /* destination of the bytes of each tensor */
    struct rk_assembler *assembler;

    struct rk_status *error; /* of this side or the daemon; the first one is kept */
};

void rk_call_stream_abandon(struct rk_call_stream *stream, struct rk_status *st)
{
    stream->error = rk_status_first(stream->error, st);
    if (!stream->has_status)
        grpc_call_cancel(stream->wire.call, NULL);
}

static void settle(struct rk_call_stream *stream)
{
    stream->wire.num_pending--;
    stream->last_event_ns = rk_time_now_ns();
}

/* --- to the daemon --- */

/* Takes the message, whose bytes gRPC moves out. */
static void send_message(struct rk_call_stream *stream, grpc_byte_buffer *message)
{
    grpc_op op = {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = message};

    stream->is_sending = true;
    rk_client_stream_start(&stream->wire, &op, &stream->on_send);
    grpc_byte_buffer_destroy(message);
}

static void send_request(struct rk_call_stream *stream, const struct rk_execute_request *request)
{
    struct rk_str packed = {0};

    rk_pack_execute_request(&packed, request);
    send_message(stream, rk_stream_encode(&packed));
    rk_str_fini(&packed);
}

static void send_next(struct rk_call_stream *stream)
{
    const struct rk_upload *upload = stream->config.upload;
    grpc_op half_close = {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};

    if (stream->is_sending || stream->has_status || stream->error)
        return;
    if (stream->next_send == SEND_CHUNKS && (!upload || stream->next_message == upload->num_messages))
        stream->next_send = SEND_COMMIT;
    if (stream->cancel_reason && !stream->may_commit &&
        (stream->next_send == SEND_CHUNKS || stream->next_send == SEND_COMMIT))
        stream->next_send = SEND_CANCEL;
    switch (stream->next_send) {
    case SEND_CHUNKS:
        /* A copy refers to the same bytes: other ranks get this message too. */
        send_message(stream, grpc_byte_buffer_copy(upload->messages[stream->next_message++]));
        break;
    case SEND_COMMIT:
        if (!stream->may_commit)
            break;
        stream->next_send = SEND_CANCEL;
        send_request(stream, &(struct rk_execute_request){.kind = RK_EXECUTE_COMMIT});
        break;
    case SEND_CANCEL:
        if (!stream->cancel_reason)
            break;
        stream->next_send = SEND_CLOSE;
        send_request(stream, &(struct rk_execute_request){.kind = RK_EXECUTE_CANCEL,
                                                          .cancel = {stream->cancel_reason}});
        break;
    case SEND_CLOSE:
        stream->next_send = SEND_NOTHING;
        stream->is_sending = true;
        rk_client_stream_start(&stream->wire, &half_close, &stream->on_send);
        break;
    case SEND_NOTHING:
        break;
    }
}

static void on_send(struct rk_tag *tag, bool ok)
{
    struct rk_call_stream *stream = RK_OWNER_OF(tag, struct rk_call_stream, on_send);

    stream->is_sending = false;
    settle(stream);
    if (ok) /* else the call is ending: its status has the reason */
        send_next(stream);
}

void rk_call_stream_commit(struct rk_call_stream *stream)
{
    RK_ASSERT(!stream->cancel_reason);
    RK_ASSERT(!stream->config.is_brief);
    stream->may_commit = true;
    stream->config.client->next_seq++;
    send_next(stream);
}

void rk_call_stream_cancel(struct rk_call_stream *stream, const char *reason)
{
    RK_ASSERT(!stream->config.is_brief);
    stream->cancel_reason = reason;
    send_next(stream);
}

/* --- from the daemon --- */

static void receive_next(struct rk_call_stream *stream)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &stream->received};

    stream->received = NULL;
    rk_client_stream_start(&stream->wire, &op, &stream->on_recv);
}

/* The result stays in the arena it was unpacked into; the next message uses the other arena. */
static struct rk_status *take_result(struct rk_call_stream *stream, const struct rk_execute_result *result)
{
    struct rk_arena *other = stream->arena;

    if (!stream->is_accepted || stream->has_result)
        return RK_FAIL(RK_INTERNAL, "sent a result %s",
                       stream->has_result ? "twice" : "before it accepted the call");
    stream->arena = stream->scratch;
    stream->scratch = other;
    stream->result = *result;
    stream->has_result = true;
    RK_TRY(rk_assembler_create(&stream->assembler, &stream->result.output, RK_LIMIT_INFLIGHT_BYTES));
    return rk_batch_from_spec(&stream->output, &stream->output_data, stream->arena, &stream->result.output);
}

static struct rk_status *take_chunk(struct rk_call_stream *stream, const struct rk_stream_frame *frame)
{
    uint8_t *data;

    if (!stream->has_result)
        return RK_FAIL(RK_INTERNAL, "sent a chunk before the result that describes it");
    RK_TRY(rk_assembler_accept(stream->assembler, &frame->chunk, frame->data_bytes));
    data = stream->output_data[frame->chunk.tensor];
    rk_stream_copy_chunk(frame, stream->received, data + frame->chunk.offset);
    return NULL;
}

static struct rk_status *take_accepted(struct rk_call_stream *stream, const struct rk_accepted *accepted)
{
    if (stream->is_accepted)
        return RK_FAIL(RK_INTERNAL, "accepted the call twice");
    if (accepted->plan_hash.bytes != RK_SHA256_BYTES)
        return RK_FAIL(RK_INTERNAL, "accepted with a plan hash of %zu bytes, expected %d",
                       accepted->plan_hash.bytes, RK_SHA256_BYTES);
    memcpy(stream->plan_hash, accepted->plan_hash.data, RK_SHA256_BYTES);
    stream->is_accepted = true;
    return NULL;
}

static struct rk_status *take_message(struct rk_call_stream *stream)
{
    const struct rk_call_stream_config *config = &stream->config;
    struct rk_execute_response response;
    struct rk_stream_frame frame;
    struct rk_bytes packed;

    RK_TRY(rk_stream_read(&frame, stream->received));
    if (frame.is_chunk)
        return take_chunk(stream, &frame);
    rk_arena_reset(stream->scratch);
    RK_TRY(rk_stream_flatten(&packed, stream->scratch, stream->received, RK_LIMIT_MESSAGE_BYTES));
    RK_TRY(rk_unpack_execute_response(&response, stream->scratch, packed.data, packed.bytes));
    switch (response.kind) {
    case RK_RESPONSE_ACCEPTED:
        return take_accepted(stream, &response.accepted);
    case RK_RESPONSE_PROGRESS:
        if (config->on_progress)
            config->on_progress(config->user, config->client->rank, &response.progress);
        return NULL;
    case RK_RESPONSE_RESULT:
        return take_result(stream, &response.result);
    case RK_RESPONSE_NONE:
    case RK_RESPONSE_CHUNK:
        break;
    }
    return RK_FAIL(RK_INTERNAL, "sent a message of an unknown kind");
}

static void on_recv(struct rk_tag *tag, bool ok)
{
    struct rk_call_stream *stream = RK_OWNER_OF(tag, struct rk_call_stream, on_recv);
    struct rk_status *st;

    settle(stream);
    if (!ok || !stream->received)
        return; /* the end of the stream; the status follows */
    st = stream->error ? NULL : take_message(stream);
    grpc_byte_buffer_destroy(stream->received);
    stream->received = NULL;
    if (st)
        rk_call_stream_abandon(stream, st);
    receive_next(stream);
}

/* The daemon sent OK: then the result must be complete. */
static struct rk_status *check_complete(const struct rk_call_stream *stream)
{
    struct rk_status *missing, *st;

    if (!stream->has_result)
        return RK_FAIL(RK_INTERNAL, "ended the call without a result");
    missing = rk_assembler_check_complete(stream->assembler);
    if (!missing)
        return NULL;
    st = RK_FAIL(RK_DATA_LOSS, "ended the call before its result was complete: %s",
                 rk_status_message(missing));
    rk_status_free(missing);
    return st;
}

static void on_status(struct rk_tag *tag, bool ok)
{
    struct rk_call_stream *stream = RK_OWNER_OF(tag, struct rk_call_stream, on_status);

    (void)ok;
    settle(stream);
    stream->has_status = true;
}

/* The answer to a brief call and its status. */
static void on_end(struct rk_tag *tag, bool ok)
{
    struct rk_call_stream *stream = RK_OWNER_OF(tag, struct rk_call_stream, on_end);

    (void)ok;
    settle(stream);
    stream->has_status = true;
    if (!stream->received)
        return;
    if (!stream->error)
        stream->error = take_message(stream);
    grpc_byte_buffer_destroy(stream->received);
    stream->received = NULL;
}

/* --- life --- */

static struct rk_status *encode_header(grpc_byte_buffer **out, const struct rk_call_stream *stream)
{
    const struct rk_call_stream_config *config = &stream->config;
    struct rk_execute_request request = {.kind = RK_EXECUTE_HEADER, .header = *config->header};
    struct rk_str packed = {0};
    size_t bytes;

    request.header.fence = config->client->fence;
    request.header.seq = config->is_brief ? 0 : config->client->next_seq;
    request.header.collect = config->collect;
    if (config->upload)
        request.header.input = config->upload->spec;
    rk_pack_execute_request(&packed, &request);
    bytes = packed.bytes;
    *out = bytes <= RK_LIMIT_HEADER_BYTES ? rk_stream_encode(&packed) : NULL;
    rk_str_fini(&packed);
    if (*out)
        return NULL;
    return RK_FAIL(RK_RESOURCE_EXHAUSTED,
                   "the header of the call (columns, options, plan) has %zu bytes, the limit is %d", bytes,
                   RK_LIMIT_HEADER_BYTES);
}

/* Takes the header. */
static void start_call(struct rk_call_stream *stream, grpc_byte_buffer *header)
{
    const struct rk_call_stream_config *config = &stream->config;
    grpc_call *call = rk_client_open_call(config->client, config->client->data, RK_RPC_ID_EXECUTE,
                                          config->timeout_ms, config->queue);

    if (config->is_brief) {
        stream->is_accepted = true;
        rk_client_stream_call(&stream->wire, config->client, call, header, &stream->received,
                              &stream->on_end);
    } else {
        stream->is_sending = true;
        rk_client_stream_open(&stream->wire, config->client, call, header, &stream->on_send,
                              &stream->on_status);
        receive_next(stream);
    }
    grpc_byte_buffer_destroy(header);
}

struct rk_status *rk_call_stream_open(struct rk_call_stream **out, const struct rk_call_stream_config *config)
{
    struct rk_call_stream *stream = rk_calloc(1, sizeof(*stream));
    grpc_byte_buffer *header;
    struct rk_status *st;

    *out = NULL;
    stream->config = *config;
    stream->on_send.on_event = on_send;
    stream->on_recv.on_event = on_recv;
    stream->on_status.on_event = on_status;
    stream->on_end.on_event = on_end;
    stream->last_event_ns = rk_time_now_ns();
    st = encode_header(&header, stream);
    if (st) {
        rk_free(stream);
        return st;
    }
    stream->arena = rk_arena_create(ARENA_BLOCK_BYTES, 0);
    stream->scratch = rk_arena_create(ARENA_BLOCK_BYTES, 0);
    start_call(stream, header);
    *out = stream;
    return NULL;
}

void rk_call_stream_destroy(struct rk_call_stream *stream)
{
    if (!stream)
        return;
    RK_ASSERT(rk_call_stream_is_finished(stream));
    rk_client_stream_close(&stream->wire);
    rk_assembler_destroy(stream->assembler);
    rk_batch_destroy(stream->output);
    rk_arena_destroy(stream->scratch);
    rk_arena_destroy(stream->arena);
    rk_status_free(stream->error);
    rk_free(stream);
}

bool rk_call_stream_is_finished(const struct rk_call_stream *stream)
{
    return stream->has_status && stream->wire.num_pending == 0;
}

bool rk_call_stream_is_accepted(const struct rk_call_stream *stream)
{
    return stream->is_accepted;
}

const uint8_t *rk_call_stream_plan_hash(const struct rk_call_stream *stream)
{
    RK_ASSERT(stream->is_accepted);
    return stream->plan_hash;
}

int64_t rk_call_stream_last_event_ns(const struct rk_call_stream *stream)
{
    return stream->last_event_ns;
}

struct rk_status *rk_call_stream_take_error(struct rk_call_stream *stream, bool *is_lost)
{
    struct rk_status *st = stream->error;

    RK_ASSERT(rk_call_stream_is_finished(stream));
    *is_lost = false;
    stream->error = NULL;
    if (st)
        return st;
    if (stream->wire.code == GRPC_STATUS_OK)
        return check_complete(stream);
    st = rk_client_status(stream->wire.code, stream->wire.details, &stream->wire.trailing);
    /* gRPC returns UNAVAILABLE for a connection that ended or became silent; a daemon's own status has a
     * reason.
     */
    *is_lost = rk_status_code(st) == RK_UNAVAILABLE && !*rk_status_reason(st);
    return st;
}

struct rk_batch *rk_call_stream_take_output(struct rk_call_stream *stream)
{
    struct rk_batch *output = stream->output;

    stream->output = NULL;
    return output;
}

const struct rk_execute_result *rk_call_stream_result(const struct rk_call_stream *stream)
{
    return &stream->result;
}
