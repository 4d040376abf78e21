/* The server of the rows that measure gRPC alone: one thread, one method, which copies the received bytes
 * into memory and answers with as many bytes as GetStatus. */
#include "bench/raw_grpc.h"

#include <stdio.h>
#include <string.h>

#include <grpc/byte_buffer.h>
#include <grpc/byte_buffer_reader.h>
#include <grpc/slice.h>
#include <grpc/support/time.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_str.h"

#define MEMORY_BYTES ((size_t)256 << 20)
#define ANSWER_BYTES 256
#define NUM_ARMED    4 /* calls that may arrive at the same time */
#define PEM_BYTES    (64 << 10)

enum raw_stage { ARRIVES, READS, ENDS };

struct raw_call {
    enum raw_stage stage;
    grpc_call *core;
    gpr_timespec deadline;
    grpc_metadata_array metadata;
    grpc_byte_buffer *message;
    int is_cancelled;
};

struct raw_server {
    grpc_server *core;
    grpc_completion_queue *queue;
    void *method;
    char *memory;
    size_t filled;
    grpc_byte_buffer *answer;
};

/* This program has just written it. */
static char *read_pem(const char *path)
{
    char *text = rk_calloc(1, PEM_BYTES);
    FILE *file = fopen(path, "r");

    RK_ASSERT(file != NULL);
    RK_ASSERT(fread(text, 1, PEM_BYTES - 1, file) > 0);
    fclose(file);
    return text;
}

grpc_channel_credentials *bench_raw_client_credentials(const struct rk_tls_files *files)
{
    grpc_ssl_pem_key_cert_pair pair;
    grpc_channel_credentials *credentials;
    char *cert, *key, *ca;

    if (!files->cert)
        return grpc_insecure_credentials_create();
    cert = read_pem(files->cert);
    key = read_pem(files->key);
    ca = read_pem(files->ca);
    pair = (grpc_ssl_pem_key_cert_pair){.private_key = key, .cert_chain = cert};
    credentials = grpc_ssl_credentials_create(ca, &pair, NULL, NULL);
    rk_free(cert);
    rk_free(key);
    rk_free(ca);
    return credentials;
}

grpc_server_credentials *bench_raw_server_credentials(const struct rk_tls_files *files)
{
    grpc_ssl_pem_key_cert_pair pair;
    grpc_server_credentials *credentials;
    char *cert, *key, *ca;

    if (!files->cert)
        return grpc_insecure_server_credentials_create();
    cert = read_pem(files->cert);
    key = read_pem(files->key);
    ca = read_pem(files->ca);
    pair = (grpc_ssl_pem_key_cert_pair){.private_key = key, .cert_chain = cert};
    credentials = grpc_ssl_server_credentials_create_ex(
        ca, &pair, 1, GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY, NULL);
    rk_free(cert);
    rk_free(key);
    rk_free(ca);
    return credentials;
}

static void start(struct raw_call *call, const grpc_op *ops, size_t num_ops)
{
    grpc_call_error error = grpc_call_start_batch(call->core, ops, num_ops, call, NULL);

    RK_ASSERT(error == GRPC_CALL_OK);
}

static void arm(struct raw_server *server)
{
    struct raw_call *call = rk_calloc(1, sizeof(*call));
    grpc_call_error error;

    grpc_metadata_array_init(&call->metadata);
    error = grpc_server_request_registered_call(server->core, server->method, &call->core, &call->deadline,
                                                &call->metadata, NULL, server->queue, server->queue, call);
    RK_ASSERT(error == GRPC_CALL_OK);
}

static void read_next(struct raw_call *call)
{
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &call->message};

    call->stage = READS;
    call->message = NULL;
    start(call, &op, 1);
}

/* Messages of a stream follow each other in the memory, as the chunks of a tensor do. */
static void copy_message(struct raw_server *server, grpc_byte_buffer *message)
{
    grpc_byte_buffer_reader reader;
    grpc_slice *slice;

    RK_ASSERT(grpc_byte_buffer_reader_init(&reader, message) != 0);
    while (grpc_byte_buffer_reader_peek(&reader, &slice)) {
        size_t bytes = GRPC_SLICE_LENGTH(*slice);

        if (server->filled + bytes > MEMORY_BYTES)
            server->filled = 0;
        memcpy(server->memory + server->filled, GRPC_SLICE_START_PTR(*slice), bytes);
        server->filled += bytes;
    }
    grpc_byte_buffer_reader_destroy(&reader);
}

static void finish(const struct raw_server *server, struct raw_call *call)
{
    const grpc_op ops[] = {
        {.op = GRPC_OP_SEND_INITIAL_METADATA},
        {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = server->answer},
        {.op = GRPC_OP_SEND_STATUS_FROM_SERVER},
        {.op = GRPC_OP_RECV_CLOSE_ON_SERVER, .data.recv_close_on_server.cancelled = &call->is_cancelled},
    };

    call->stage = ENDS;
    start(call, ops, RK_ARRAY_LEN(ops));
}

static void on_message(struct raw_server *server, struct raw_call *call)
{
    bool is_last = !call->message || grpc_byte_buffer_length(call->message) <= BENCH_RAW_SMALL_BYTES;

    if (call->message) {
        copy_message(server, call->message);
        grpc_byte_buffer_destroy(call->message);
    }
    if (is_last) {
        server->filled = 0;
        finish(server, call);
    } else {
        read_next(call);
    }
}

static void on_event(struct raw_server *server, struct raw_call *call)
{
    switch (call->stage) {
    case ARRIVES:
        arm(server);
        read_next(call);
        break;
    case READS:
        on_message(server, call);
        break;
    case ENDS:
        grpc_metadata_array_destroy(&call->metadata);
        grpc_call_unref(call->core);
        rk_free(call);
        break;
    }
}

static grpc_byte_buffer *make_answer(void)
{
    static char text[ANSWER_BYTES];
    grpc_slice slice = grpc_slice_from_static_buffer(text, sizeof(text));

    return grpc_raw_byte_buffer_create(&slice, 1);
}

static void open_server(struct raw_server *server, const char *address, const struct rk_tls_files *files)
{
    grpc_arg unlimited = {
        .type = GRPC_ARG_INTEGER, .key = (char *)GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, .value.integer = -1};
    grpc_channel_args args = {.num_args = 1, .args = &unlimited};
    grpc_server_credentials *credentials = bench_raw_server_credentials(files);
    int port;

    server->core = grpc_server_create(&args, NULL);
    server->queue = grpc_completion_queue_create_for_next(NULL);
    grpc_server_register_completion_queue(server->core, server->queue, NULL);
    server->method =
        grpc_server_register_method(server->core, BENCH_RAW_METHOD, NULL, GRPC_SRM_PAYLOAD_NONE, 0);
    port = grpc_server_add_http2_port(server->core, address, credentials);
    RK_ASSERT(port != 0);
    grpc_server_credentials_release(credentials);
    grpc_server_start(server->core);
    for (int i = 0; i < NUM_ARMED; i++)
        arm(server);
    if (rk_str_has_prefix(address, "unix:"))
        printf("rankd: listening on %s\n", address);
    else
        printf("rankd: listening on 127.0.0.1:%d\n", port);
    fflush(stdout);
}

int bench_raw_serve(int num_args, char *const *args)
{
    struct rk_tls_files files = {0};
    struct raw_server server = {0};
    grpc_event event;

    if (num_args != 1 && num_args != 4)
        return 2;
    if (num_args == 4)
        files = (struct rk_tls_files){.cert = args[1], .key = args[2], .ca = args[3]};
    server.memory = rk_malloc(MEMORY_BYTES);
    memset(server.memory, 0, MEMORY_BYTES);
    grpc_init();
    server.answer = make_answer();
    open_server(&server, args[0], &files);
    do {
        event = grpc_completion_queue_next(server.queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
        if (event.type == GRPC_OP_COMPLETE)
            on_event(&server, event.tag);
    } while (event.type != GRPC_QUEUE_SHUTDOWN);
    return 0;
}
