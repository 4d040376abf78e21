/* The rows that measure gRPC alone, with the same transports as those of rankd: the limit of what they can
 * reach with this gRPC on this machine. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <grpc/byte_buffer.h>
#include <grpc/slice.h>
#include <grpc/support/time.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_time.h"
#include "bench/bench_rpc.h"
#include "bench/raw_grpc.h"
#include "proto/limits.h"

#define NUM_WARM    50
#define NUM_STREAMS 5

struct raw_client {
    struct bench_daemons *server;
    grpc_channel *channel;
    grpc_completion_queue *queue;
};

static struct rk_status *raw_open(struct raw_client *client, bench_transport_t transport)
{
    grpc_arg own = {
        .type = GRPC_ARG_INTEGER, .key = (char *)GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, .value.integer = 1};
    grpc_channel_args args = {.num_args = 1, .args = &own};
    grpc_channel_credentials *credentials;
    struct rk_tls_files files;

    *client = (struct raw_client){0};
    RK_TRY(bench_daemons_start_raw(&client->server, transport));
    grpc_init();
    files = bench_daemons_tls_files(client->server);
    credentials = bench_raw_client_credentials(&files);
    client->queue = grpc_completion_queue_create_for_next(NULL);
    client->channel = grpc_channel_create(bench_daemons_addresses(client->server)[0], credentials, &args);
    grpc_channel_credentials_release(credentials);
    return NULL;
}

static void raw_close(struct raw_client *client)
{
    if (client->channel) {
        grpc_channel_destroy(client->channel);
        grpc_completion_queue_shutdown(client->queue);
        while (grpc_completion_queue_next(client->queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL).type !=
               GRPC_QUEUE_SHUTDOWN)
            ;
        grpc_completion_queue_destroy(client->queue);
        grpc_shutdown();
    }
    bench_daemons_stop(client->server);
}

/* Starts a batch and waits for it: there is one at a time. */
static void run_batch(struct raw_client *client, grpc_call *call, const grpc_op *ops, size_t num_ops)
{
    grpc_call_error error = grpc_call_start_batch(call, ops, num_ops, client, NULL);
    grpc_event event;

    RK_ASSERT(error == GRPC_CALL_OK);
    event = grpc_completion_queue_next(client->queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
    RK_ASSERT(event.type == GRPC_OP_COMPLETE);
}

static grpc_call *open_call(struct raw_client *client)
{
    return grpc_channel_create_call(client->channel, NULL, GRPC_PROPAGATE_DEFAULTS, client->queue,
                                    grpc_slice_from_static_string(BENCH_RAW_METHOD), NULL,
                                    gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
}

/* Ends a call whose other operations `ops` (room for four more) have not been started, in the same batch. */
static struct rk_status *end_call(struct raw_client *client, grpc_call *call, grpc_op *ops, size_t num_ops)
{
    grpc_metadata_array initial, trailing;
    grpc_byte_buffer *answer = NULL;
    grpc_status_code code;
    grpc_slice details;

    grpc_metadata_array_init(&initial);
    grpc_metadata_array_init(&trailing);
    ops[num_ops++] = (grpc_op){.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    ops[num_ops++] = (grpc_op){.op = GRPC_OP_RECV_INITIAL_METADATA,
                               .data.recv_initial_metadata.recv_initial_metadata = &initial};
    ops[num_ops++] = (grpc_op){.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &answer};
    ops[num_ops++] =
        (grpc_op){.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
                  .data.recv_status_on_client = {
                      .trailing_metadata = &trailing, .status = &code, .status_details = &details}};
    run_batch(client, call, ops, num_ops);
    grpc_metadata_array_destroy(&initial);
    grpc_metadata_array_destroy(&trailing);
    grpc_slice_unref(details);
    if (answer)
        grpc_byte_buffer_destroy(answer);
    grpc_call_unref(call);
    return code == GRPC_STATUS_OK ? NULL : RK_FAIL(RK_INTERNAL, "a raw call ended with code %d", (int)code);
}

static void nothing(void *user)
{
    (void)user;
}

/* Refers to the data. */
static grpc_byte_buffer *make_message(const char *data, size_t bytes)
{
    grpc_slice slice = grpc_slice_new_with_user_data((void *)data, bytes, nothing, NULL);
    grpc_byte_buffer *message = grpc_raw_byte_buffer_create(&slice, 1);

    grpc_slice_unref(slice);
    return message;
}

static struct rk_status *call_small(struct raw_client *client)
{
    static const char data[16];
    grpc_byte_buffer *message = make_message(data, sizeof(data));
    grpc_op ops[6] = {{.op = GRPC_OP_SEND_INITIAL_METADATA},
                      {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = message}};
    struct rk_status *st = end_call(client, open_call(client), ops, 2);

    grpc_byte_buffer_destroy(message);
    return st;
}

/* In messages as large as chunks. */
static struct rk_status *call_stream(struct raw_client *client, const char *data, size_t bytes)
{
    grpc_call *call = open_call(client);
    grpc_op first = {.op = GRPC_OP_SEND_INITIAL_METADATA}, ops[4];

    run_batch(client, call, &first, 1);
    for (size_t at = 0; at < bytes; at += RK_LIMIT_CHUNK_BYTES_DEFAULT) {
        grpc_byte_buffer *message =
            make_message(data + at, RK_MIN((size_t)RK_LIMIT_CHUNK_BYTES_DEFAULT, bytes - at));
        grpc_op send = {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = message};

        run_batch(client, call, &send, 1);
        grpc_byte_buffer_destroy(message);
    }
    return end_call(client, call, ops, 0);
}

static int compare_doubles(const void *a, const void *b)
{
    double left = *(const double *)a, right = *(const double *)b;

    return (left > right) - (left < right);
}

static struct rk_status *time_small(struct bench_result *result, struct raw_client *client, int64_t count)
{
    double *seconds = rk_calloc((size_t)count, sizeof(*seconds));
    struct rk_status *st = NULL;

    for (int64_t i = -NUM_WARM; i < count && !st; i++) {
        int64_t begin_ns = rk_time_now_ns();

        st = call_small(client);
        if (i >= 0)
            seconds[i] = (double)(rk_time_now_ns() - begin_ns) * 1e-9;
    }
    qsort(seconds, (size_t)count, sizeof(*seconds), compare_doubles);
    result->measured = seconds[count / 2] * 1e6;
    snprintf(result->note, sizeof(result->note), "median; p99 %.0f us",
             seconds[(count - 1) * 99 / 100] * 1e6);
    rk_free(seconds);
    return st;
}

struct rk_status *bench_run_rpc_raw_call(struct bench_ctx *ctx, const struct bench_case *bench,
                                         struct bench_result *result)
{
    const int64_t *dims = bench_dims(ctx, bench);
    struct raw_client client;
    struct rk_status *st = raw_open(&client, (bench_transport_t)dims[0]);

    snprintf(result->shape, sizeof(result->shape), "gRPC alone: a small call over %s",
             bench_transport_name((bench_transport_t)dims[0]));
    if (!st)
        st = time_small(result, &client, dims[2]);
    raw_close(&client);
    return st;
}

struct rk_status *bench_run_rpc_raw_stream(struct bench_ctx *ctx, const struct bench_case *bench,
                                           struct bench_result *result)
{
    const int64_t *dims = bench_dims(ctx, bench);
    size_t bytes = (size_t)dims[3];
    double best = INFINITY, raw_seconds = 0;
    char *data = rk_malloc(bytes);
    struct raw_client client;
    struct rk_status *st = raw_open(&client, (bench_transport_t)dims[0]);

    snprintf(result->shape, sizeof(result->shape), "gRPC alone: %lld MiB over %s", (long long)dims[3] >> 20,
             bench_transport_name((bench_transport_t)dims[0]));
    memset(data, 1, bytes);
    for (int i = 0; i < NUM_STREAMS && !st; i++) {
        int64_t begin_ns = rk_time_now_ns();

        st = call_stream(&client, data, bytes);
        best = fmin(best, (double)(rk_time_now_ns() - begin_ns) * 1e-9);
    }
    if (!st)
        st = bench_raw_copy(&raw_seconds, dims[0] != BENCH_UNIX, bytes, NUM_STREAMS);
    raw_close(&client);
    rk_free(data);
    RK_TRY(st);
    result->measured = (double)bytes / best * 1e-9;
    result->bound = (double)bytes / raw_seconds * 1e-9;
    snprintf(result->note, sizeof(result->note), "from memory to memory; bound: a socket of the same kind");
    return NULL;
}
