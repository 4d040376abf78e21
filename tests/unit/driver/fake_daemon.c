#include "tests/unit/driver/fake_daemon.h"

#include <pthread.h>
#include <string.h>

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/support/time.h>

#include "base/rk_alloc.h"
#include "tests/support/test.h"

#define CALLS_MAX 64

struct fake_call {
    struct fake_daemon *daemon;
    grpc_call *call;
    grpc_call_details details;
    grpc_metadata_array metadata;
    grpc_completion_queue *queue; /* of this call alone */
    struct rk_arena *arena;
    pthread_t thread;
    int is_cancelled;
};

struct fake_daemon {
    grpc_server *server;
    grpc_completion_queue *queue; /* new calls */
    pthread_t acceptor;
    int32_t rank, world_size;
    pthread_mutex_t lock; /* guards what follows */
    fake_script_t script, configure;
    uint64_t seq, epoch;
    bool was_committed, was_cancelled;
    struct fake_call *calls[CALLS_MAX];
    int num_calls;
};

/* Starts the operations and waits for them; false when they failed. */
static bool do_ops(struct fake_call *call, const grpc_op *ops, size_t count)
{
    grpc_event event;

    assert_int_equal(grpc_call_start_batch(call->call, ops, count, call, NULL), GRPC_CALL_OK);
    do {
        event = grpc_completion_queue_next(call->queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);
    } while (event.tag != call); /* the other tag is that of RECV_CLOSE */
    return event.success != 0;
}

static grpc_byte_buffer *receive_buffer(struct fake_call *call)
{
    grpc_byte_buffer *buffer = NULL;
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &buffer};

    return do_ops(call, &op, 1) ? buffer : NULL;
}

static void send_buffer(struct fake_call *call, grpc_byte_buffer *buffer)
{
    grpc_op op = {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = buffer};

    do_ops(call, &op, 1);
    grpc_byte_buffer_destroy(buffer);
}

static void send_packed(struct fake_call *call, struct rk_str *packed)
{
    send_buffer(call, rk_stream_encode(packed));
    rk_str_fini(packed);
}

/* --- for scripts --- */

rk_execute_request_kind_t fake_receive(struct fake_call *call)
{
    struct fake_daemon *daemon = call->daemon;
    grpc_byte_buffer *buffer = receive_buffer(call);
    struct rk_execute_request request;
    struct rk_bytes bytes;

    if (!buffer)
        return RK_EXECUTE_NONE;
    assert_ok(rk_stream_flatten(&bytes, call->arena, buffer, RK_LIMIT_MESSAGE_BYTES));
    grpc_byte_buffer_destroy(buffer);
    assert_ok(rk_unpack_execute_request(&request, call->arena, bytes.data, bytes.bytes));
    pthread_mutex_lock(&daemon->lock);
    if (request.kind == RK_EXECUTE_HEADER)
        daemon->seq = request.header.seq;
    daemon->was_committed |= request.kind == RK_EXECUTE_COMMIT;
    daemon->was_cancelled |= request.kind == RK_EXECUTE_CANCEL;
    pthread_mutex_unlock(&daemon->lock);
    return request.kind;
}

void fake_send(struct fake_call *call, const struct rk_execute_response *response)
{
    struct rk_str packed = {0};

    rk_pack_execute_response(&packed, response);
    send_packed(call, &packed);
}

void fake_send_bytes(struct fake_call *call, const void *data, size_t bytes)
{
    struct rk_str packed = {0};

    rk_str_append_bytes(&packed, data, bytes);
    send_packed(call, &packed);
}

static void forget(void *user)
{
    (void)user;
}

void fake_send_chunk(struct fake_call *call, uint64_t offset, const void *data, size_t bytes)
{
    send_buffer(
        call, rk_stream_encode_chunk(&(struct rk_tensor_chunk){.offset = offset}, data, bytes, forget, NULL));
}

void fake_accept(struct fake_call *call, uint8_t fill)
{
    uint8_t hash[32];

    memset(hash, fill, sizeof(hash));
    fake_send(call, &(struct rk_execute_response){.kind = RK_RESPONSE_ACCEPTED,
                                                  .accepted = {.plan_hash = {hash, sizeof(hash)}}});
}

void fake_finish(struct fake_call *call, rk_code_t code, const char *message)
{
    grpc_slice details = grpc_slice_from_copied_string(message);
    grpc_op op = {.op = GRPC_OP_SEND_STATUS_FROM_SERVER};

    op.data.send_status_from_server.status = (grpc_status_code)code;
    op.data.send_status_from_server.status_details = &details;
    do_ops(call, &op, 1);
    grpc_slice_unref(details);
}

void fake_refuse(struct fake_call *call, rk_code_t code, const char *reason, const char *message)
{
    struct rk_status *st = rk_status_from_wire(code, reason, message);
    grpc_slice details = grpc_slice_from_copied_string(message);
    grpc_op op = {.op = GRPC_OP_SEND_STATUS_FROM_SERVER};
    struct rk_str packed = {0};
    grpc_metadata rich;

    rk_pack_status_details(&packed, st);
    rich = (grpc_metadata){.key = grpc_slice_from_static_string("grpc-status-details-bin"),
                           .value = grpc_slice_from_copied_buffer(packed.text, packed.bytes)};
    op.data.send_status_from_server.status = (grpc_status_code)code;
    op.data.send_status_from_server.status_details = &details;
    op.data.send_status_from_server.trailing_metadata_count = 1;
    op.data.send_status_from_server.trailing_metadata = &rich;
    do_ops(call, &op, 1);
    grpc_slice_unref(details);
    grpc_slice_unref(rich.value);
    rk_str_fini(&packed);
    rk_status_free(st);
}

/* --- the answers of a correct daemon --- */

static void answer(struct fake_call *call, struct rk_str *packed)
{
    send_packed(call, packed);
    fake_finish(call, RK_OK, "");
}

static void answer_status(struct fake_call *call)
{
    struct fake_daemon *daemon = call->daemon;
    struct rk_role_rank role = {
        .role = "actor", .mesh = {.tp = 1, .dp = daemon->world_size}, .dp_rank = daemon->rank};
    struct rk_worker_status status = {
        .rank = {.rank = daemon->rank, .world_size = daemon->world_size, .num_roles = 1, .roles = &role},
        .state = "READY",
        .incarnation = 1 + (uint64_t)daemon->rank,
        .mesh_generation = 1,
    };
    struct rk_str packed = {0};

    pthread_mutex_lock(&daemon->lock);
    status.epoch = daemon->epoch;
    pthread_mutex_unlock(&daemon->lock);
    rk_pack_worker_status(&packed, &status);
    answer(call, &packed);
}

static void answer_lease(struct fake_call *call)
{
    static const uint8_t id[16] = {1};
    struct rk_acquire_lease_response grant = {
        .fence = {.lease_id = {id, sizeof(id)}, .incarnation = 1 + (uint64_t)call->daemon->rank},
        .ttl_ms = 30000};
    struct rk_str packed = {0};

    pthread_mutex_lock(&call->daemon->lock);
    grant.fence.epoch = ++call->daemon->epoch;
    pthread_mutex_unlock(&call->daemon->lock);
    rk_pack_acquire_lease_response(&packed, &grant);
    answer(call, &packed);
}

static void keep_alive(struct fake_call *call)
{
    grpc_byte_buffer *buffer;

    while ((buffer = receive_buffer(call)) != NULL) {
        struct rk_str packed = {0};

        grpc_byte_buffer_destroy(buffer);
        rk_pack_keep_alive_response(&packed,
                                    &(struct rk_keep_alive_response){.ttl_ms = 30000, .state = "READY"});
        send_packed(call, &packed);
    }
    fake_finish(call, RK_OK, "");
}

static bool is_path(const struct fake_call *call, rk_rpc_id_t rpc)
{
    return grpc_slice_str_cmp(call->details.method, rk_rpc_get(rpc)->path) == 0;
}

static void serve(struct fake_call *call)
{
    struct rk_str packed = {0};
    grpc_byte_buffer *request;
    fake_script_t script;

    if (is_path(call, RK_RPC_ID_KEEP_ALIVE)) {
        keep_alive(call);
        return;
    }
    if (is_path(call, RK_RPC_ID_EXECUTE)) {
        pthread_mutex_lock(&call->daemon->lock);
        script = call->daemon->script;
        call->daemon->was_committed = call->daemon->was_cancelled = false;
        pthread_mutex_unlock(&call->daemon->lock);
        script(call);
        return;
    }
    request = receive_buffer(call);
    if (request)
        grpc_byte_buffer_destroy(request);
    pthread_mutex_lock(&call->daemon->lock);
    script = call->daemon->configure;
    pthread_mutex_unlock(&call->daemon->lock);
    if (is_path(call, RK_RPC_ID_GET_STATUS)) {
        answer_status(call);
    } else if (is_path(call, RK_RPC_ID_CONFIGURE) && script) {
        script(call);
    } else if (is_path(call, RK_RPC_ID_ACQUIRE_LEASE)) {
        answer_lease(call);
    } else {
        rk_pack_cancel_response(&packed, &(struct rk_cancel_response){.outcome = ""});
        answer(call, &packed); /* Cancel; ReleaseLease reads it as an empty message with an unknown field */
    }
}

/* --- the server --- */

static void *run_call(void *user)
{
    struct fake_call *call = user;
    grpc_op open = {.op = GRPC_OP_SEND_INITIAL_METADATA};
    grpc_op close = {.op = GRPC_OP_RECV_CLOSE_ON_SERVER};

    close.data.recv_close_on_server.cancelled = &call->is_cancelled;
    assert_int_equal(grpc_call_start_batch(call->call, &close, 1, &call->is_cancelled, NULL), GRPC_CALL_OK);
    do_ops(call, &open, 1);
    serve(call);
    return NULL;
}

static struct fake_call *await_call(struct fake_daemon *daemon)
{
    struct fake_call *call = rk_calloc(1, sizeof(*call));

    call->daemon = daemon;
    call->queue = grpc_completion_queue_create_for_next(NULL);
    call->arena = rk_arena_create(4096, 0);
    grpc_call_details_init(&call->details);
    grpc_metadata_array_init(&call->metadata);
    assert_int_equal(grpc_server_request_call(daemon->server, &call->call, &call->details, &call->metadata,
                                              call->queue, daemon->queue, call),
                     GRPC_CALL_OK);
    return call;
}

static void drain(grpc_completion_queue *queue)
{
    grpc_completion_queue_shutdown(queue);
    while (grpc_completion_queue_next(queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL).type !=
           GRPC_QUEUE_SHUTDOWN)
        ;
    grpc_completion_queue_destroy(queue);
}

static void free_call(struct fake_call *call)
{
    if (call->call) {
        pthread_join(call->thread, NULL);
        grpc_call_unref(call->call);
    }
    drain(call->queue);
    grpc_call_details_destroy(&call->details);
    grpc_metadata_array_destroy(&call->metadata);
    rk_arena_destroy(call->arena);
    rk_free(call);
}

static void *accept_calls(void *user)
{
    struct fake_daemon *daemon = user;

    for (;;) {
        struct fake_call *call = await_call(daemon);
        grpc_event event =
            grpc_completion_queue_next(daemon->queue, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);

        if (!event.success || event.tag != call) { /* shut down */
            free_call(call);
            return NULL;
        }
        assert_true(daemon->num_calls < CALLS_MAX);
        daemon->calls[daemon->num_calls++] = call;
        assert_int_equal(pthread_create(&call->thread, NULL, run_call, call), 0);
    }
}

struct fake_daemon *fake_daemon_create(const char *address, int32_t rank, int32_t world_size)
{
    struct fake_daemon *daemon = rk_calloc(1, sizeof(*daemon));
    grpc_server_credentials *credentials;

    grpc_init();
    daemon->rank = rank;
    daemon->world_size = world_size;
    pthread_mutex_init(&daemon->lock, NULL);
    daemon->queue = grpc_completion_queue_create_for_next(NULL);
    daemon->server = grpc_server_create(NULL, NULL);
    grpc_server_register_completion_queue(daemon->server, daemon->queue, NULL);
    credentials = grpc_insecure_server_credentials_create();
    assert_true(grpc_server_add_http2_port(daemon->server, address, credentials) != 0);
    grpc_server_credentials_release(credentials);
    grpc_server_start(daemon->server);
    assert_int_equal(pthread_create(&daemon->acceptor, NULL, accept_calls, daemon), 0);
    return daemon;
}

void fake_daemon_destroy(struct fake_daemon *daemon)
{
    grpc_server_shutdown_and_notify(daemon->server, daemon->queue, NULL);
    grpc_server_cancel_all_calls(daemon->server);
    pthread_join(daemon->acceptor, NULL);
    for (int i = 0; i < daemon->num_calls; i++)
        free_call(daemon->calls[i]);
    drain(daemon->queue);
    grpc_server_destroy(daemon->server);
    pthread_mutex_destroy(&daemon->lock);
    rk_free(daemon);
    grpc_shutdown_blocking();
}

void fake_daemon_set_script(struct fake_daemon *daemon, fake_script_t script)
{
    pthread_mutex_lock(&daemon->lock);
    daemon->script = script;
    pthread_mutex_unlock(&daemon->lock);
}

void fake_daemon_set_configure(struct fake_daemon *daemon, fake_script_t script)
{
    pthread_mutex_lock(&daemon->lock);
    daemon->configure = script;
    pthread_mutex_unlock(&daemon->lock);
}

uint64_t fake_daemon_seq(struct fake_daemon *daemon)
{
    uint64_t seq;

    pthread_mutex_lock(&daemon->lock);
    seq = daemon->seq;
    pthread_mutex_unlock(&daemon->lock);
    return seq;
}

bool fake_daemon_was_committed(struct fake_daemon *daemon)
{
    bool was_committed;

    pthread_mutex_lock(&daemon->lock);
    was_committed = daemon->was_committed;
    pthread_mutex_unlock(&daemon->lock);
    return was_committed;
}

bool fake_daemon_was_cancelled(struct fake_daemon *daemon)
{
    bool was_cancelled;

    pthread_mutex_lock(&daemon->lock);
    was_cancelled = daemon->was_cancelled;
    pthread_mutex_unlock(&daemon->lock);
    return was_cancelled;
}
