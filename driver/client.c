/* Channels, small calls and their fan-out over the daemons. */
#include "driver/driver_internal.h"

#include <string.h>

#include <grpc/byte_buffer.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/net/rk_net.h"
#include "base/rk_time.h"

#define CONNECT_TIMEOUT_MS   2000
#define EXPLAIN_MS           3000 /* for all daemons, to find the reason of a failed connection */
#define FAILURE_GRACE_MS     1000 /* for the other ranks to report the reason of a failure */
#define KEEPALIVE_TIME_MS    5000 /* a stopped process or a lost host is detected after time + timeout */
#define KEEPALIVE_TIMEOUT_MS 3000

bool rk_pump(grpc_completion_queue *queue, int64_t timeout_ms)
{
    grpc_event event = grpc_completion_queue_next(queue, rk_deadline_in(timeout_ms), NULL);

    if (event.type != GRPC_OP_COMPLETE)
        return false;
    ((struct rk_tag *)event.tag)->on_event(event.tag, event.success != 0);
    return true;
}

void rk_pump_end(grpc_completion_queue *queue)
{
    grpc_event event;

    grpc_completion_queue_shutdown(queue);
    do {
        event = grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
        if (event.type == GRPC_OP_COMPLETE)
            ((struct rk_tag *)event.tag)->on_event(event.tag, event.success != 0);
    } while (event.type != GRPC_QUEUE_SHUTDOWN);
    grpc_completion_queue_destroy(queue);
}

gpr_timespec rk_deadline_in(int64_t timeout_ms)
{
    return gpr_time_add(gpr_now(GPR_CLOCK_REALTIME), gpr_time_from_millis(timeout_ms, GPR_TIMESPAN));
}

/* --- channels --- */

static grpc_arg int_arg(const char *key, int value)
{
    return (grpc_arg){.type = GRPC_ARG_INTEGER, .key = (char *)key, .value.integer = value};
}

/* Each channel has its own subchannel pool, so that each is a separate connection.
 */
static grpc_channel *open_channel(const char *address, const struct rk_driver_tls *tls)
{
    char *target = rk_net_address(address);
    grpc_arg args[] = {
        int_arg(GRPC_ARG_ENABLE_HTTP_PROXY, 0),
        int_arg(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1),
        int_arg(GRPC_ARG_ENABLE_RETRIES, 0),
        int_arg(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1),
        int_arg(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200),
        /* Despite its name: the time limit of one attempt to connect, sufficient for remote and busy hosts.
         */
        int_arg(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, CONNECT_TIMEOUT_MS),
        int_arg(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 2000),
        int_arg(GRPC_ARG_KEEPALIVE_TIME_MS, KEEPALIVE_TIME_MS),
        int_arg(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, KEEPALIVE_TIMEOUT_MS),
        int_arg(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1),
        /* With the default of 2 the pings stop after two, and a peer that dies in a long call is never
         * detected.
         */
        int_arg(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0),
        int_arg(GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, RK_LIMIT_MESSAGE_BYTES),
        int_arg(GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, RK_LIMIT_MESSAGE_BYTES),
        /* Size of frames as the daemon's, for results. */
        int_arg(GRPC_ARG_HTTP2_MAX_FRAME_SIZE, RK_LIMIT_MESSAGE_BYTES),
        /* The name that the daemon's certificate must have. */
        {.type = GRPC_ARG_STRING, .key = (char *)GRPC_ARG_DEFAULT_AUTHORITY, .value.string = (char *)address},
    };
    bool is_named = strcmp(target, address) != 0;
    grpc_channel_args all = {.num_args = RK_ARRAY_LEN(args) - !is_named, .args = args};
    grpc_channel_credentials *credentials = rk_driver_tls_credentials(tls, address);
    grpc_channel *channel = grpc_channel_create(target, credentials, &all);

    grpc_channel_credentials_release(credentials);
    rk_free(target);
    return channel;
}

void rk_client_init(struct rk_client *client, int32_t rank, const char *address, char *token,
                    const struct rk_driver_tls *tls)
{
    *client = (struct rk_client){.rank = rank, .address = rk_strdup(address), .token = token};
    client->data = open_channel(address, tls);
    client->control = open_channel(address, tls);
}

void rk_client_fini(struct rk_client *client)
{
    if (client->data)
        grpc_channel_destroy(client->data);
    if (client->control)
        grpc_channel_destroy(client->control);
    rk_free(client->address);
    rk_free(client->token);
    *client = (struct rk_client){0};
}

grpc_call *rk_client_open_call(struct rk_client *client, grpc_channel *channel, rk_rpc_id_t rpc,
                               int64_t timeout_ms, grpc_completion_queue *queue)
{
    grpc_slice method = grpc_slice_from_static_string(rk_rpc_get(rpc)->path);
    gpr_timespec deadline = timeout_ms > 0 ? rk_deadline_in(timeout_ms) : gpr_inf_future(GPR_CLOCK_REALTIME);

    RK_ASSERT(channel == client->data || channel == client->control);
    return grpc_channel_create_call(channel, NULL, GRPC_PROPAGATE_DEFAULTS, queue, method, NULL, deadline,
                                    NULL);
}

/* Writes the initial metadata of a call (the token) into *out; returns their number, 0 or 1. */
static size_t initial_metadata(const struct rk_client *client, grpc_metadata *out)
{
    if (!client->token)
        return 0;
    *out = (grpc_metadata){.key = grpc_slice_from_static_string("authorization"),
                           .value = grpc_slice_from_static_string(client->token)};
    return 1;
}

struct rk_status *rk_client_status(grpc_status_code code, grpc_slice details,
                                   const grpc_metadata_array *trailing)
{
    const void *rich = NULL;
    size_t rich_bytes = 0;
    char *message;
    struct rk_status *st;

    if (code == GRPC_STATUS_OK)
        return NULL;
    for (size_t i = 0; i < trailing->count; i++) {
        if (grpc_slice_str_cmp(trailing->metadata[i].key, "grpc-status-details-bin") != 0)
            continue;
        rich = GRPC_SLICE_START_PTR(trailing->metadata[i].value);
        rich_bytes = GRPC_SLICE_LENGTH(trailing->metadata[i].value);
    }
    message = rk_strndup((const char *)GRPC_SLICE_START_PTR(details), GRPC_SLICE_LENGTH(details));
    st = rk_unpack_status_details((rk_code_t)code, message, rich, rich_bytes);
    rk_free(message);
    return st;
}

/* --- unary calls --- */

static void on_unary(struct rk_tag *tag, bool ok)
{
    (void)ok; /* the batch contains RECV_STATUS_ON_CLIENT, which always succeeds: check the status */
    ((struct rk_unary *)tag)->is_done = true;
}

/* All operations of a call with one message each way. The caller fills in where those of ops[3..5] receive
 * to. */
static void fill_unary(grpc_op ops[6], const struct rk_client *client, grpc_metadata *metadata,
                       grpc_byte_buffer *message)
{
    memset(ops, 0, 6 * sizeof(*ops));
    ops[0].op = GRPC_OP_SEND_INITIAL_METADATA;
    ops[0].data.send_initial_metadata.count = initial_metadata(client, metadata);
    ops[0].data.send_initial_metadata.metadata = metadata;
    ops[1].op = GRPC_OP_SEND_MESSAGE;
    ops[1].data.send_message.send_message = message;
    ops[2].op = GRPC_OP_SEND_CLOSE_FROM_CLIENT;
    ops[3].op = GRPC_OP_RECV_INITIAL_METADATA;
    ops[4].op = GRPC_OP_RECV_MESSAGE;
    ops[5].op = GRPC_OP_RECV_STATUS_ON_CLIENT;
}

static void start_batch(struct rk_client_stream *stream, const grpc_op *ops, size_t num_ops,
                        struct rk_tag *tag)
{
    grpc_call_error error = grpc_call_start_batch(stream->call, ops, num_ops, tag, NULL);

    RK_ASSERT(error == GRPC_CALL_OK);
    stream->num_pending++;
}

void rk_client_stream_start(struct rk_client_stream *stream, const grpc_op *op, struct rk_tag *tag)
{
    start_batch(stream, op, 1, tag);
}

/* As few batches as there can be: each is a round through gRPC, and often a system call. */
void rk_client_stream_open(struct rk_client_stream *stream, const struct rk_client *client, grpc_call *call,
                           grpc_byte_buffer *message, struct rk_tag *on_open, struct rk_tag *on_status)
{
    grpc_metadata metadata;
    grpc_op send[] = {{.op = GRPC_OP_SEND_INITIAL_METADATA}, {.op = GRPC_OP_SEND_MESSAGE}};
    grpc_op end[] = {{.op = GRPC_OP_RECV_INITIAL_METADATA}, {.op = GRPC_OP_RECV_STATUS_ON_CLIENT}};

    RK_ASSERT(!stream->call);
    stream->call = call;
    grpc_metadata_array_init(&stream->initial);
    grpc_metadata_array_init(&stream->trailing);
    stream->details = grpc_empty_slice();
    send[0].data.send_initial_metadata.count = initial_metadata(client, &metadata);
    send[0].data.send_initial_metadata.metadata = &metadata;
    send[1].data.send_message.send_message = message;
    end[0].data.recv_initial_metadata.recv_initial_metadata = &stream->initial;
    end[1].data.recv_status_on_client.trailing_metadata = &stream->trailing;
    end[1].data.recv_status_on_client.status = &stream->code;
    end[1].data.recv_status_on_client.status_details = &stream->details;
    start_batch(stream, send, message ? 2 : 1, on_open);
    start_batch(stream, end, RK_ARRAY_LEN(end), on_status);
}

void rk_client_stream_call(struct rk_client_stream *stream, const struct rk_client *client, grpc_call *call,
                           grpc_byte_buffer *message, grpc_byte_buffer **reply, struct rk_tag *on_end)
{
    grpc_metadata metadata;
    grpc_op ops[6];

    RK_ASSERT(!stream->call);
    stream->call = call;
    grpc_metadata_array_init(&stream->initial);
    grpc_metadata_array_init(&stream->trailing);
    stream->details = grpc_empty_slice();
    fill_unary(ops, client, &metadata, message);
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &stream->initial;
    ops[4].data.recv_message.recv_message = reply;
    ops[5].data.recv_status_on_client.trailing_metadata = &stream->trailing;
    ops[5].data.recv_status_on_client.status = &stream->code;
    ops[5].data.recv_status_on_client.status_details = &stream->details;
    start_batch(stream, ops, RK_ARRAY_LEN(ops), on_end);
}

void rk_client_stream_close(struct rk_client_stream *stream)
{
    RK_ASSERT(stream->num_pending == 0);
    if (!stream->call)
        return;
    grpc_metadata_array_destroy(&stream->initial);
    grpc_metadata_array_destroy(&stream->trailing);
    grpc_slice_unref(stream->details);
    grpc_call_unref(stream->call);
    stream->call = NULL;
}

void rk_unary_start(struct rk_unary *unary, struct rk_client *client, rk_rpc_id_t rpc,
                    const struct rk_str *request, int64_t timeout_ms, grpc_completion_queue *queue)
{
    grpc_metadata metadata;
    grpc_byte_buffer *message = rk_stream_encode(request);
    grpc_op ops[6];
    grpc_call_error error;

    *unary = (struct rk_unary){.tag.on_event = on_unary, .details = grpc_empty_slice()};
    grpc_metadata_array_init(&unary->initial);
    grpc_metadata_array_init(&unary->trailing);
    unary->call = rk_client_open_call(client, client->control, rpc, timeout_ms, queue);

    fill_unary(ops, client, &metadata, message);
    ops[3].data.recv_initial_metadata.recv_initial_metadata = &unary->initial;
    ops[4].data.recv_message.recv_message = &unary->reply;
    ops[5].data.recv_status_on_client.trailing_metadata = &unary->trailing;
    ops[5].data.recv_status_on_client.status = &unary->code;
    ops[5].data.recv_status_on_client.status_details = &unary->details;
    error = grpc_call_start_batch(unary->call, ops, RK_ARRAY_LEN(ops), &unary->tag, NULL);
    RK_ASSERT(error == GRPC_CALL_OK);
    grpc_byte_buffer_destroy(message);
}

struct rk_status *rk_unary_take(struct rk_unary *unary, struct rk_arena *arena, struct rk_bytes *reply)
{
    RK_ASSERT(unary->is_done);
    *reply = (struct rk_bytes){0};
    if (unary->code != GRPC_STATUS_OK)
        return rk_client_status(unary->code, unary->details, &unary->trailing);
    if (!unary->reply)
        return RK_FAIL(RK_INTERNAL, "the daemon answered OK without a message");
    return rk_stream_flatten(reply, arena, unary->reply, RK_LIMIT_MESSAGE_BYTES);
}

void rk_unary_fini(struct rk_unary *unary)
{
    if (!unary->call)
        return;
    grpc_metadata_array_destroy(&unary->initial);
    grpc_metadata_array_destroy(&unary->trailing);
    grpc_slice_unref(unary->details);
    if (unary->reply)
        grpc_byte_buffer_destroy(unary->reply);
    grpc_call_unref(unary->call);
    *unary = (struct rk_unary){0};
}

/* --- fan-out --- */

struct rk_fanout *rk_fanout_create(struct rk_driver *driver)
{
    struct rk_fanout *items = rk_calloc((size_t)driver->num_clients, sizeof(*items));

    for (int32_t i = 0; i < driver->num_clients; i++)
        items[i].client = &driver->clients[i];
    return items;
}

void rk_fanout_destroy(struct rk_fanout *items, int32_t count)
{
    for (int32_t i = 0; items && i < count; i++) {
        rk_str_fini(&items[i].request);
        rk_status_free(items[i].error);
    }
    rk_free(items);
}

static bool all_done(const struct rk_unary *calls, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        if (calls[i].call && !calls[i].is_done)
            return false;
    }
    return true;
}

static void cancel_all(struct rk_unary *calls, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        if (calls[i].call && !calls[i].is_done)
            grpc_call_cancel(calls[i].call, NULL);
    }
}

static bool any_failed(const struct rk_unary *calls, int32_t count)
{
    for (int32_t i = 0; i < count; i++) {
        if (calls[i].call && calls[i].is_done && calls[i].code != GRPC_STATUS_OK)
            return true;
    }
    return false;
}

/* For most TLS errors gRPC reports only that the socket was closed. */
static void explain_unreached(const struct rk_driver *driver, struct rk_fanout *items)
{
    int64_t deadline_ns = rk_time_now_ns() + EXPLAIN_MS * 1000000LL;

    for (int32_t i = 0; i < driver->num_clients && rk_time_now_ns() < deadline_ns; i++) {
        struct rk_status *cause;

        if (!items[i].client || items[i].client->is_reached ||
            rk_status_code(items[i].error) != RK_UNAVAILABLE || *rk_status_reason(items[i].error))
            continue;
        cause = rk_driver_tls_probe(&driver->tls, items[i].client->address);
        if (!cause)
            continue;
        rk_status_free(items[i].error);
        items[i].error = cause;
    }
}

grpc_completion_queue *rk_driver_take_queue(struct rk_driver *driver)
{
    grpc_completion_queue *queue = atomic_exchange(&driver->spare_queue, NULL);

    return queue ? queue : grpc_completion_queue_create_for_next(NULL);
}

void rk_driver_give_queue(struct rk_driver *driver, grpc_completion_queue *queue)
{
    grpc_completion_queue *none = NULL;

    if (!atomic_compare_exchange_strong(&driver->spare_queue, &none, queue))
        rk_pump_end(queue);
}

void rk_fanout_run(struct rk_driver *driver, rk_rpc_id_t rpc, struct rk_fanout *items, int64_t timeout_ms,
                   uint32_t flags, struct rk_arena *arena)
{
    grpc_completion_queue *queue = rk_driver_take_queue(driver);
    struct rk_unary *calls = rk_calloc((size_t)driver->num_clients, sizeof(*calls));
    int64_t cancel_at_ns = INT64_MAX;

    for (int32_t i = 0; i < driver->num_clients; i++) {
        if (items[i].client)
            rk_unary_start(&calls[i], items[i].client, rpc, &items[i].request, timeout_ms, queue);
    }
    rk_driver_begin_pumping(driver);
    while (!all_done(calls, driver->num_clients)) {
        rk_pump(queue, RK_DRIVER_POLL_MS);
        if (!(flags & RK_FANOUT_IGNORE_INTERRUPT) && rk_driver_is_interrupted(driver))
            cancel_all(calls, driver->num_clients);
        if (flags & RK_FANOUT_ALL_OR_NONE && any_failed(calls, driver->num_clients))
            cancel_at_ns = RK_MIN(cancel_at_ns, rk_time_now_ns() + FAILURE_GRACE_MS * 1000000LL);
        if (rk_time_now_ns() >= cancel_at_ns)
            cancel_all(calls, driver->num_clients);
    }
    rk_driver_end_pumping(driver);
    for (int32_t i = 0; i < driver->num_clients; i++) {
        if (items[i].client)
            items[i].error = rk_unary_take(&calls[i], arena, &items[i].reply);
        if (items[i].client && rk_status_code(items[i].error) != RK_UNAVAILABLE)
            items[i].client->is_reached = true;
        rk_unary_fini(&calls[i]);
    }
    rk_free(calls);
    rk_driver_give_queue(driver, queue);
    if (!rk_driver_is_interrupted(driver))
        explain_unreached(driver, items);
}

struct rk_status *rk_fanout_take_error(struct rk_driver *driver, struct rk_fanout *items)
{
    struct rk_rank_error *errors = rk_calloc((size_t)driver->num_clients, sizeof(*errors));
    struct rk_status *st;

    for (int32_t i = 0; i < driver->num_clients; i++) {
        errors[i] = (struct rk_rank_error){
            .rank = i, .address = driver->clients[i].address, .status = items[i].error, .order = i};
        items[i].error = NULL;
    }
    st = rk_error_of_call(errors, driver->num_clients, NULL, NULL);
    rk_free(errors);
    if (rk_status_code(st) != RK_CANCELLED || !rk_driver_is_interrupted(driver))
        return st;
    rk_status_free(st); /* this side cancelled the calls: not an error of a worker */
    return RK_FAIL(RK_CANCELLED, "interrupted");
}
