/* Channels, and calls of both sides. */
#include <string.h>

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/grpc.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <grpc/support/string_util.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_str.h"
#include "tests/unit/sim/core.h"

#define DETAILS_KEY "grpc-status-details-bin"
#define SLICES_MAX  3 /* slices of a received message */

/* A channel with its connection, once it is established. */
struct grpc_channel {
    struct sim_process *process;
    int32_t rank;
    struct sim_conn *conn;
};

grpc_channel *__wrap_grpc_channel_create(const char *target, grpc_channel_credentials *credentials,
                                         const grpc_channel_args *args);
void __wrap_grpc_channel_destroy(grpc_channel *channel);
grpc_call *__wrap_grpc_channel_create_call(grpc_channel *channel, grpc_call *parent, uint32_t mask,
                                           grpc_completion_queue *queue, grpc_slice method,
                                           const grpc_slice *host, gpr_timespec deadline, void *reserved);
grpc_call_error __wrap_grpc_call_start_batch(grpc_call *call, const grpc_op *ops, size_t num_ops, void *tag,
                                             void *reserved);
grpc_call_error __wrap_grpc_call_cancel(grpc_call *call, void *reserved);
grpc_call_error __wrap_grpc_call_cancel_with_status(grpc_call *call, grpc_status_code code, const char *text,
                                                    void *reserved);
void __wrap_grpc_call_unref(grpc_call *call);
char *__wrap_grpc_call_get_peer(grpc_call *call);

/* --- messages --- */

static struct rk_str read_buffer(grpc_byte_buffer *buffer)
{
    grpc_byte_buffer_reader reader;
    struct rk_str bytes = {0};
    grpc_slice slice;

    RK_ASSERT(grpc_byte_buffer_reader_init(&reader, buffer));
    while (grpc_byte_buffer_reader_next(&reader, &slice)) {
        rk_str_append_bytes(&bytes, (const char *)GRPC_SLICE_START_PTR(slice), GRPC_SLICE_LENGTH(slice));
        grpc_slice_unref(slice);
    }
    grpc_byte_buffer_reader_destroy(&reader);
    return bytes;
}

/* In several slices, as received in frames. */
static grpc_byte_buffer *make_buffer(const struct rk_str *bytes)
{
    size_t num_slices = 1 + sim_random(SLICES_MAX), begin = 0;
    grpc_slice slices[SLICES_MAX];
    grpc_byte_buffer *buffer;

    for (size_t i = 0; i < num_slices; i++) {
        size_t end = bytes->bytes * (i + 1) / num_slices;

        slices[i] = grpc_slice_from_copied_buffer(rk_str_text(bytes) + begin, end - begin);
        begin = end;
    }
    buffer = grpc_raw_byte_buffer_create(slices, num_slices);
    for (size_t i = 0; i < num_slices; i++)
        grpc_slice_unref(slices[i]);
    return buffer;
}

/* --- operations --- */

grpc_call *sim_call_create(sim_side_t side, struct sim_stream *stream, grpc_completion_queue *queue)
{
    grpc_call *call = rk_calloc(1, sizeof(*call));

    call->side = side;
    call->stream = stream;
    call->queue = queue;
    if (stream)
        stream->ends[side] = call;
    return call;
}

static void free_call(grpc_call *call)
{
    if (!call->is_unreffed || call->num_batches > 0)
        return;
    if (call->stream)
        call->stream->ends[call->side] = NULL;
    for (int64_t i = call->num_read; i < call->incoming.count; i++)
        rk_str_fini(&call->incoming.items[i]);
    rk_array_fini(&call->incoming);
    rk_str_fini(&call->details);
    rk_free(call->text);
    if (call->server)
        sim_server_drop_call(call->server);
    rk_free(call);
}

static void finish_op(grpc_call *call, struct sim_batch *batch, bool ok)
{
    batch->ok = batch->ok && ok;
    if (--batch->num_open > 0)
        return;
    sim_queue_complete(call->queue, batch->tag, batch->ok);
    rk_free(batch);
    call->num_batches--;
}

static void give_message(grpc_call *call)
{
    struct sim_batch *batch = call->on_message;

    call->on_message = NULL;
    *call->message.data.recv_message.recv_message = NULL;
    if (call->num_read < call->incoming.count) {
        struct rk_str *bytes = &call->incoming.items[call->num_read++];

        *call->message.data.recv_message.recv_message = make_buffer(bytes);
        rk_str_fini(bytes);
    }
    finish_op(call, batch, true);
}

static void give_status(grpc_call *call)
{
    struct sim_batch *batch = call->on_end;
    grpc_metadata_array *trailing = call->end.data.recv_status_on_client.trailing_metadata;

    call->on_end = NULL;
    if (call->side == SIM_SERVER) {
        *call->end.data.recv_close_on_server.cancelled = call->is_cancelled;
        finish_op(call, batch, true);
        return;
    }
    *call->end.data.recv_status_on_client.status = (grpc_status_code)call->code;
    *call->end.data.recv_status_on_client.status_details =
        grpc_slice_from_copied_string(call->text ? call->text : "");
    if (call->details.bytes > 0) { /* which belong to the call */
        trailing->metadata = gpr_malloc(sizeof(*trailing->metadata));
        trailing->count = trailing->capacity = 1;
        trailing->metadata[0] =
            (grpc_metadata){.key = grpc_slice_from_static_string(DETAILS_KEY),
                            .value = grpc_slice_from_static_buffer(call->details.text, call->details.bytes)};
    }
    batch->ok = true; /* also if other operations failed */
    finish_op(call, batch, true);
}

/* Completes all operations that can be completed now. The status comes after all messages. */
static void advance(grpc_call *call)
{
    bool is_empty;

    if (call->on_initial && (call->has_headers || call->has_ended)) {
        struct sim_batch *batch = call->on_initial;

        call->on_initial = NULL;
        finish_op(call, batch, true);
    }
    is_empty = call->num_read == call->incoming.count;
    if (call->on_message && (!is_empty || call->is_half_closed || call->has_ended))
        give_message(call);
    is_empty = call->num_read == call->incoming.count;
    if (call->on_end && call->has_ended && is_empty)
        give_status(call);
    free_call(call);
}

static void drop_incoming(grpc_call *call)
{
    while (call->num_read < call->incoming.count)
        rk_str_fini(&call->incoming.items[call->num_read++]);
}

void sim_call_end(grpc_call *call, int code, const char *text)
{
    if (call->has_ended)
        return;
    call->has_ended = true;
    call->is_cancelled = true;
    call->code = code;
    call->text = rk_strdup(text);
    drop_incoming(call);
    advance(call);
}

void sim_call_lose(grpc_call *call)
{
    sim_call_end(call, GRPC_STATUS_UNAVAILABLE, "the connection has ended");
}

void sim_call_take(grpc_call *call, struct sim_packet *packet)
{
    if (call->has_ended)
        return;
    switch (packet->kind) {
    case SIM_PACKET_INITIAL:
        call->has_headers = true;
        break;
    case SIM_PACKET_MESSAGE:
        rk_array_append(&call->incoming, packet->bytes);
        packet->bytes = (struct rk_str){0};
        break;
    case SIM_PACKET_HALF_CLOSE:
        call->is_half_closed = true;
        break;
    case SIM_PACKET_RESET:
        sim_call_end(call, GRPC_STATUS_CANCELLED, "");
        return;
    default:
        RK_ASSERT(packet->kind == SIM_PACKET_STATUS);
        call->has_ended = true;
        call->code = packet->code;
        call->text = packet->text;
        call->details = packet->bytes;
        packet->text = NULL;
        packet->bytes = (struct rk_str){0};
        break;
    }
    advance(call);
}

/* --- sending --- */

static void post(grpc_call *call, const struct sim_packet *packet)
{
    sim_net_post(call->stream, call->side == SIM_CLIENT ? SIM_SERVER : SIM_CLIENT, packet);
}

static void close_server_call(void *user, uint64_t arg)
{
    grpc_call *call = user;

    (void)arg;
    call->num_batches--;
    call->has_ended = true;
    drop_incoming(call);
    advance(call);
}

/* The stream is closed on this side when the status is out. */
static void send_status(grpc_call *call, const grpc_op *op)
{
    struct sim_packet packet = {.kind = SIM_PACKET_STATUS,
                                .code = (int)op->data.send_status_from_server.status};
    const grpc_slice *text = op->data.send_status_from_server.status_details;

    packet.text = text ? rk_strndup((const char *)GRPC_SLICE_START_PTR(*text), GRPC_SLICE_LENGTH(*text))
                       : rk_strdup("");
    for (size_t i = 0; i < op->data.send_status_from_server.trailing_metadata_count; i++) {
        const grpc_slice *value = &op->data.send_status_from_server.trailing_metadata[i].value;

        rk_str_append_bytes(&packet.bytes, (const char *)GRPC_SLICE_START_PTR(*value),
                            GRPC_SLICE_LENGTH(*value));
    }
    post(call, &packet);
    call->num_batches++; /* keeps it until the event */
    sim_at(call->server->process, sim_random(500000), close_server_call, call, 0);
}

static void start_send(grpc_call *call, const grpc_op *op)
{
    switch (op->op) {
    case GRPC_OP_SEND_INITIAL_METADATA:
        post(call,
             &(struct sim_packet){.kind = call->side == SIM_CLIENT ? SIM_PACKET_OPEN : SIM_PACKET_INITIAL});
        break;
    case GRPC_OP_SEND_MESSAGE:
        post(call, &(struct sim_packet){.kind = SIM_PACKET_MESSAGE,
                                        .bytes = read_buffer(op->data.send_message.send_message)});
        break;
    case GRPC_OP_SEND_CLOSE_FROM_CLIENT:
        post(call, &(struct sim_packet){.kind = SIM_PACKET_HALF_CLOSE});
        break;
    default:
        RK_ASSERT(op->op == GRPC_OP_SEND_STATUS_FROM_SERVER);
        send_status(call, op);
        break;
    }
}

static bool is_send(grpc_op_type type)
{
    return type <= GRPC_OP_SEND_STATUS_FROM_SERVER;
}

struct sent {
    grpc_call *call;
    struct sim_batch *batch;
};

/* The sent data has left the process. */
static void on_sent(void *user, uint64_t ok)
{
    struct sent *sent = user;

    finish_op(sent->call, sent->batch, ok != 0 && !sent->call->has_ended);
    free_call(sent->call);
}

static void start_receive(grpc_call *call, const grpc_op *op, struct sim_batch *batch)
{
    switch (op->op) {
    case GRPC_OP_RECV_INITIAL_METADATA:
        RK_ASSERT(!call->on_initial);
        call->initial = *op;
        call->on_initial = batch;
        break;
    case GRPC_OP_RECV_MESSAGE:
        RK_ASSERT(!call->on_message);
        call->message = *op;
        call->on_message = batch;
        break;
    default:
        RK_ASSERT(op->op == GRPC_OP_RECV_STATUS_ON_CLIENT || op->op == GRPC_OP_RECV_CLOSE_ON_SERVER);
        RK_ASSERT(!call->on_end);
        call->end = *op;
        call->on_end = batch;
        break;
    }
}

grpc_call_error __wrap_grpc_call_start_batch(grpc_call *call, const grpc_op *ops, size_t num_ops, void *tag,
                                             void *reserved)
{
    struct sim_batch *batch = rk_calloc(1, sizeof(*batch));

    (void)reserved;
    RK_ASSERT(!call->is_unreffed);
    RK_ASSERT(num_ops > 0 && num_ops <= SIM_OPS);
    sim_queue_expect(call->queue);
    *batch = (struct sim_batch){.tag = tag, .num_open = (int)num_ops, .ok = true};
    call->num_batches++;
    for (size_t i = 0; i < num_ops; i++) {
        if (is_send(ops[i].op)) {
            struct sent *sent = sim_alloc(sizeof(*sent));

            *sent = (struct sent){call, batch};
            if (!call->has_ended)
                start_send(call, &ops[i]);
            sim_at(call->queue->process, sim_random(300000), on_sent, sent, !call->has_ended);
        } else {
            start_receive(call, &ops[i], batch);
        }
    }
    advance(call);
    return GRPC_CALL_OK;
}

/* --- channels --- */

grpc_channel *__wrap_grpc_channel_create(const char *target, grpc_channel_credentials *credentials,
                                         const grpc_channel_args *args)
{
    grpc_channel *channel = rk_calloc(1, sizeof(*channel));

    (void)credentials;
    (void)args;
    channel->process = sim_here();
    channel->rank = target[strlen(target) - 1] - '0'; /* unix:/sim/RANK */
    RK_ASSERT(channel->rank >= 0 && channel->rank < SIM_RANKS);
    return channel;
}

void __wrap_grpc_channel_destroy(grpc_channel *channel)
{
    if (channel->conn && !channel->conn->is_cut)
        sim_net_cut(channel->conn, 0, sim_between_ns(0, 2));
    rk_free(channel);
}

static void fail_call(void *user, uint64_t code)
{
    grpc_call *call = user;

    sim_call_end(call, (int)code, "no connection");
    call->num_batches--;
    free_call(call);
}

/* The call's data is not sent anywhere. */
static void leave_unconnected(grpc_call *call, int64_t fails_ns)
{
    call->stream = sim_alloc(sizeof(*call->stream));
    call->stream->conn = sim_alloc(sizeof(*call->stream->conn));
    call->stream->conn->is_cut = true;
    call->num_batches++; /* keeps it until the event */
    sim_at(call->queue->process, fails_ns, fail_call, call, GRPC_STATUS_UNAVAILABLE);
}

static void on_deadline(void *user, uint64_t arg)
{
    grpc_call *call = ((struct sim_stream *)user)->ends[SIM_CLIENT];

    (void)arg;
    if (!call || call->has_ended)
        return;
    post(call, &(struct sim_packet){.kind = SIM_PACKET_RESET});
    sim_call_end(call, GRPC_STATUS_DEADLINE_EXCEEDED, "its time is over");
}

/* RK_LINT_FOREIGN: gRPC */
grpc_call *__wrap_grpc_channel_create_call(grpc_channel *channel, grpc_call *parent, uint32_t mask,
                                           grpc_completion_queue *queue, grpc_slice method,
                                           const grpc_slice *host, gpr_timespec deadline, void *reserved)
{
    grpc_call *call = sim_call_create(SIM_CLIENT, NULL, queue);
    int64_t fails_ns = 0;
    char *path;

    (void)parent;
    (void)mask;
    (void)host;
    (void)reserved;
    if (!channel->conn || channel->conn->knows[SIM_CLIENT])
        channel->conn = sim_net_connect(channel->process, channel->rank, &fails_ns);
    if (!channel->conn) {
        leave_unconnected(call, fails_ns);
        return call;
    }
    path = grpc_slice_to_c_string(method);
    call->stream = sim_net_open(channel->conn, call, rk_arena_strdup(sim->arena, path));
    gpr_free(path);
    if (gpr_time_cmp(deadline, gpr_inf_future(deadline.clock_type)) != 0)
        sim_at(channel->process, (int64_t)deadline.tv_sec * 1000000000 + deadline.tv_nsec - sim->world.now_ns,
               on_deadline, call->stream, 0);
    return call;
}

/* --- calls --- */

/* A status that came already waits for unread messages no longer. */
grpc_call_error __wrap_grpc_call_cancel(grpc_call *call, void *reserved)
{
    (void)reserved;
    if (call->has_ended) {
        drop_incoming(call);
        advance(call);
        return GRPC_CALL_OK;
    }
    post(call, &(struct sim_packet){.kind = SIM_PACKET_RESET});
    sim_call_end(call, GRPC_STATUS_CANCELLED, "cancelled on this side");
    return GRPC_CALL_OK;
}

grpc_call_error __wrap_grpc_call_cancel_with_status(grpc_call *call, grpc_status_code code, const char *text,
                                                    void *reserved)
{
    (void)reserved;
    if (!call->has_ended)
        post(call,
             &(struct sim_packet){.kind = SIM_PACKET_STATUS, .code = (int)code, .text = rk_strdup(text)});
    sim_call_end(call, (int)code, text);
    return GRPC_CALL_OK;
}

void __wrap_grpc_call_unref(grpc_call *call)
{
    RK_ASSERT(!call->is_unreffed);
    if (call->side == SIM_CLIENT)
        __wrap_grpc_call_cancel(call, NULL);
    call->is_unreffed = true;
    free_call(call);
}

char *__wrap_grpc_call_get_peer(grpc_call *call)
{
    (void)call;
    return gpr_strdup("sim");
}
