/* Server-streaming calls: one request to each daemon, messages until the status comes. */
#include "driver/driver_internal.h"

#include <grpc/byte_buffer.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"

struct reader {
    struct rk_tag on_send, on_recv, on_status;
    const struct rk_read_args *args;
    struct rk_fanout *item;
    struct rk_client_stream wire;
    struct rk_arena *arena; /* of the current message */
    grpc_byte_buffer *received;
    bool has_status;
};

static bool is_finished(const struct reader *reader)
{
    return !reader->item->client || (reader->has_status && reader->wire.num_pending == 0);
}

static void end_with(struct reader *reader, struct rk_status *st)
{
    reader->item->error = rk_status_first(reader->item->error, st);
    if (!reader->has_status)
        grpc_call_cancel(reader->wire.call, NULL);
}

static void receive_next(struct reader *reader)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &reader->received};

    reader->received = NULL;
    rk_client_stream_start(&reader->wire, &op, &reader->on_recv);
}

static struct rk_status *take_message(struct reader *reader)
{
    const struct rk_read_args *args = reader->args;
    struct rk_bytes message;

    rk_arena_reset(reader->arena);
    RK_TRY(rk_stream_flatten(&message, reader->arena, reader->received, RK_LIMIT_MESSAGE_BYTES));
    return args->on_message(args->user, reader->item->client->rank, message, reader->arena);
}

static void on_recv(struct rk_tag *tag, bool ok)
{
    struct reader *reader = RK_OWNER_OF(tag, struct reader, on_recv);
    struct rk_status *st;

    reader->wire.num_pending--;
    if (!ok || !reader->received)
        return; /* the status follows */
    st = reader->item->error ? NULL : take_message(reader);
    grpc_byte_buffer_destroy(reader->received);
    reader->received = NULL;
    if (st)
        end_with(reader, st);
    receive_next(reader); /* after a cancellation it ends at once */
}

static void on_other(struct reader *reader)
{
    reader->wire.num_pending--;
}

static void on_send(struct rk_tag *tag, bool ok)
{
    (void)ok; /* the status tells */
    on_other(RK_OWNER_OF(tag, struct reader, on_send));
}

static void on_status(struct rk_tag *tag, bool ok)
{
    struct reader *reader = RK_OWNER_OF(tag, struct reader, on_status);
    struct rk_client_stream *wire = &reader->wire;

    (void)ok;
    reader->has_status = true;
    reader->item->error =
        rk_status_first(reader->item->error, rk_client_status(wire->code, wire->details, &wire->trailing));
    on_other(reader);
    if (reader->args->on_end)
        reader->args->on_end(reader->args->user, reader->item->client->rank, reader->item->error);
}

static void start(struct reader *reader, const struct rk_read_args *args, grpc_completion_queue *queue)
{
    struct rk_client *client = reader->item->client;
    grpc_op half_close = {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    grpc_byte_buffer *message = rk_stream_encode(&reader->item->request);

    reader->on_send.on_event = on_send;
    reader->on_recv.on_event = on_recv;
    reader->on_status.on_event = on_status;
    reader->args = args;
    reader->arena = rk_arena_create(16 << 10, 0);
    rk_client_stream_open(&reader->wire, client,
                          rk_client_open_call(client, client->control, args->rpc, args->timeout_ms, queue),
                          message, &reader->on_send, &reader->on_status);
    rk_client_stream_start(&reader->wire, &half_close, &reader->on_send);
    receive_next(reader);
    grpc_byte_buffer_destroy(message);
}

static bool all_finished(const struct reader *readers, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        if (!is_finished(&readers[i]))
            return false;
    }
    return true;
}

void rk_read_streams(struct rk_driver *driver, struct rk_fanout *items, const struct rk_read_args *args)
{
    grpc_completion_queue *queue = grpc_completion_queue_create_for_next(NULL);
    struct reader *readers = rk_calloc((size_t)driver->num_clients, sizeof(*readers));
    bool is_cancelled = false;

    for (int32_t i = 0; i < driver->num_clients; i++) {
        readers[i].item = &items[i];
        if (items[i].client)
            start(&readers[i], args, queue);
    }
    while (!all_finished(readers, driver->num_clients)) {
        rk_pump(queue, RK_DRIVER_POLL_MS);
        if (is_cancelled || atomic_load(&driver->interrupts) == 0)
            continue;
        is_cancelled = true;
        for (int32_t i = 0; i < driver->num_clients; i++) {
            if (!is_finished(&readers[i]))
                end_with(&readers[i], RK_FAIL(RK_CANCELLED, "interrupted"));
        }
    }
    for (int32_t i = 0; i < driver->num_clients; i++) {
        rk_client_stream_close(&readers[i].wire);
        rk_arena_destroy(readers[i].arena);
    }
    rk_free(readers);
    rk_pump_end(queue);
}
