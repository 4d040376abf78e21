#include "tests/support/client.h"

#include <string.h>

#include <grpc/byte_buffer.h>
#include <grpc/grpc.h>
#include <grpc/grpc_security.h>
#include <grpc/slice.h>
#include <grpc/support/alloc.h>
#include <grpc/support/time.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "proto/limits.h"
#include "tests/support/proc.h"
#include "tests/support/test.h"

#define CALL_MS 60000 /* timeout of any call; tests of deadlines wait for shorter ones of the daemon */

struct rk_client {
    grpc_channel *channel;
    grpc_completion_queue *queue;
    struct rk_arena *arena;
    char *authorization;
};

/* Receives the end of a call. */
struct ending {
    grpc_metadata_array headers, trailers;
    grpc_status_code code;
    grpc_slice message;
};

struct rk_client_stream {
    struct rk_client *client;
    grpc_call *call;
    struct ending ending;
    char tag_headers, tag_status, tag_send, tag_receive; /* only their addresses are used */
};

/* Takes ownership of the credentials. */
static struct rk_client *create(const char *address, const char *token, grpc_channel_credentials *credentials)
{
    grpc_arg args[] = {
        {.type = GRPC_ARG_INTEGER, .key = (char *)GRPC_ARG_ENABLE_HTTP_PROXY, .value.integer = 0},
        {.type = GRPC_ARG_INTEGER, .key = (char *)GRPC_ARG_ENABLE_RETRIES, .value.integer = 0},
        {.type = GRPC_ARG_INTEGER, .key = (char *)GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, .value.integer = 1},
        {.type = GRPC_ARG_INTEGER, .key = (char *)GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, .value.integer = -1},
    };
    grpc_channel_args list = {.num_args = RK_ARRAY_LEN(args), .args = args};
    struct rk_client *client = rk_calloc(1, sizeof(*client));

    client->channel = grpc_channel_create(address, credentials, &list);
    grpc_channel_credentials_release(credentials);
    client->queue = grpc_completion_queue_create_for_pluck(NULL);
    client->arena = rk_arena_create(64 << 10, 0);
    client->authorization = token ? rk_format("Bearer %s", token) : NULL;
    return client;
}

struct rk_client *rk_client_create(const char *address, const char *token)
{
    grpc_init();
    return create(address, token, grpc_insecure_credentials_create());
}

struct rk_client *rk_client_create_tls(const char *address, const char *token,
                                       const struct rk_tls_files *files)
{
    grpc_channel_credentials *credentials;
    grpc_ssl_pem_key_cert_pair pair;
    struct rk_tls_pem pem;

    assert_ok(rk_tls_pem_read(&pem, files));
    pair = (grpc_ssl_pem_key_cert_pair){.private_key = pem.key, .cert_chain = pem.cert};
    grpc_init();
    credentials = grpc_ssl_credentials_create(pem.ca, pem.key ? &pair : NULL, NULL, NULL);
    rk_tls_pem_fini(&pem);
    return create(address, token, credentials);
}

void rk_client_destroy(struct rk_client *client)
{
    if (!client)
        return;
    grpc_channel_destroy(client->channel);
    grpc_completion_queue_shutdown(client->queue);
    grpc_completion_queue_destroy(client->queue);
    rk_arena_destroy(client->arena);
    rk_free(client->authorization);
    rk_free(client);
    grpc_shutdown();
}

struct rk_arena *rk_client_arena(struct rk_client *client)
{
    return client->arena;
}

static gpr_timespec deadline_in(int64_t ms)
{
    return gpr_time_add(gpr_now(GPR_CLOCK_REALTIME), gpr_time_from_millis(ms, GPR_TIMESPAN));
}

static struct rk_client_stream *open_path(struct rk_client *client, const char *path)
{
    struct rk_client_stream *stream = rk_calloc(1, sizeof(*stream));
    grpc_slice method = grpc_slice_from_copied_string(path);
    grpc_metadata authorization = {.key = grpc_slice_from_static_string("authorization")};
    grpc_op ops[2];
    grpc_call_error error;

    stream->client = client;
    stream->call = grpc_channel_create_call(client->channel, NULL, GRPC_PROPAGATE_DEFAULTS, client->queue,
                                            method, NULL, deadline_in(rk_proc_timeout_ms(CALL_MS)), NULL);
    grpc_slice_unref(method);
    grpc_metadata_array_init(&stream->ending.headers);
    grpc_metadata_array_init(&stream->ending.trailers);
    if (client->authorization)
        authorization.value = grpc_slice_from_static_string(client->authorization);
    ops[0] = (grpc_op){
        .op = GRPC_OP_SEND_INITIAL_METADATA,
        .data.send_initial_metadata = {.count = client->authorization ? 1 : 0, .metadata = &authorization}};
    ops[1] = (grpc_op){.op = GRPC_OP_RECV_INITIAL_METADATA,
                       .data.recv_initial_metadata.recv_initial_metadata = &stream->ending.headers};
    error = grpc_call_start_batch(stream->call, ops, 2, &stream->tag_headers, NULL);
    RK_ASSERT(error == GRPC_CALL_OK);
    ops[0] = (grpc_op){.op = GRPC_OP_RECV_STATUS_ON_CLIENT,
                       .data.recv_status_on_client = {.trailing_metadata = &stream->ending.trailers,
                                                      .status = &stream->ending.code,
                                                      .status_details = &stream->ending.message}};
    error = grpc_call_start_batch(stream->call, ops, 1, &stream->tag_status, NULL);
    RK_ASSERT(error == GRPC_CALL_OK);
    return stream;
}

struct rk_client_stream *rk_client_open(struct rk_client *client, rk_rpc_id_t rpc)
{
    return open_path(client, rk_rpc_get(rpc)->path);
}

/* Waits for a batch; the call's deadline bounds the wait. */
static bool wait_for(struct rk_client_stream *stream, void *tag)
{
    grpc_event event =
        grpc_completion_queue_pluck(stream->client->queue, tag, gpr_inf_future(GPR_CLOCK_REALTIME), NULL);

    RK_ASSERT(event.type == GRPC_OP_COMPLETE);
    return event.success != 0;
}

static bool send_buffer(struct rk_client_stream *stream, grpc_byte_buffer *buffer)
{
    grpc_op op = {.op = GRPC_OP_SEND_MESSAGE, .data.send_message.send_message = buffer};
    grpc_call_error error = grpc_call_start_batch(stream->call, &op, 1, &stream->tag_send, NULL);

    RK_ASSERT(error == GRPC_CALL_OK);
    grpc_byte_buffer_destroy(buffer);
    return wait_for(stream, &stream->tag_send);
}

bool rk_client_send(struct rk_client_stream *stream, const struct rk_str *message)
{
    return send_buffer(stream, rk_stream_encode(message));
}

bool rk_client_send_chunk(struct rk_client_stream *stream, uint32_t tensor, uint64_t offset, const void *data,
                          size_t bytes)
{
    struct rk_tensor_chunk chunk = {.tensor = tensor, .offset = offset};
    void *copy = rk_malloc(bytes);

    memcpy(copy, data, bytes);
    return send_buffer(stream, rk_stream_encode_chunk(&chunk, copy, bytes, rk_free, copy));
}

void rk_client_half_close(struct rk_client_stream *stream)
{
    grpc_op op = {.op = GRPC_OP_SEND_CLOSE_FROM_CLIENT};
    grpc_call_error error = grpc_call_start_batch(stream->call, &op, 1, &stream->tag_send, NULL);

    RK_ASSERT(error == GRPC_CALL_OK);
    wait_for(stream, &stream->tag_send);
}

/* NULL at the end of the call. */
static grpc_byte_buffer *receive(struct rk_client_stream *stream)
{
    grpc_byte_buffer *buffer = NULL;
    grpc_op op = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &buffer};
    grpc_call_error error = grpc_call_start_batch(stream->call, &op, 1, &stream->tag_receive, NULL);

    RK_ASSERT(error == GRPC_CALL_OK);
    wait_for(stream, &stream->tag_receive);
    return buffer;
}

bool rk_client_receive(struct rk_client_stream *stream, struct rk_bytes *message)
{
    grpc_byte_buffer *buffer = receive(stream);

    *message = (struct rk_bytes){0};
    if (!buffer)
        return false;
    assert_ok(rk_stream_flatten(message, stream->client->arena, buffer, RK_LIMIT_MESSAGE_BYTES));
    grpc_byte_buffer_destroy(buffer);
    return true;
}

bool rk_client_receive_frame(struct rk_client_stream *stream, struct rk_stream_frame *frame,
                             struct rk_bytes *bytes)
{
    grpc_byte_buffer *buffer = receive(stream);
    uint8_t *data;

    *bytes = (struct rk_bytes){0};
    if (!buffer)
        return false;
    assert_ok(rk_stream_read(frame, buffer));
    if (frame->is_chunk) {
        data = rk_arena_alloc(stream->client->arena, frame->data_bytes);
        rk_stream_copy_chunk(frame, buffer, data);
        *bytes = (struct rk_bytes){.data = data, .bytes = frame->data_bytes};
    } else {
        assert_ok(rk_stream_flatten(bytes, stream->client->arena, buffer, RK_LIMIT_MESSAGE_BYTES));
    }
    grpc_byte_buffer_destroy(buffer);
    return true;
}

void rk_client_cancel(struct rk_client_stream *stream)
{
    grpc_call_cancel(stream->call, NULL);
}

struct rk_status *rk_client_finish(struct rk_client_stream *stream)
{
    struct ending *ending = &stream->ending;
    struct rk_status *st;
    char *message;
    const void *details = NULL;
    size_t bytes = 0;

    wait_for(stream, &stream->tag_headers);
    wait_for(stream, &stream->tag_status);
    for (size_t i = 0; i < ending->trailers.count; i++) {
        if (grpc_slice_str_cmp(ending->trailers.metadata[i].key, "grpc-status-details-bin") == 0) {
            details = GRPC_SLICE_START_PTR(ending->trailers.metadata[i].value);
            bytes = GRPC_SLICE_LENGTH(ending->trailers.metadata[i].value);
        }
    }
    message = grpc_slice_to_c_string(ending->message);
    st = rk_unpack_status_details((rk_code_t)ending->code, message, details, bytes);
    gpr_free(message);
    grpc_slice_unref(ending->message);
    grpc_metadata_array_destroy(&ending->headers);
    grpc_metadata_array_destroy(&ending->trailers);
    grpc_call_unref(stream->call);
    rk_free(stream);
    return st;
}

struct rk_status *rk_client_call_path(struct rk_client *client, const char *path,
                                      const struct rk_str *request, struct rk_bytes *reply)
{
    struct rk_client_stream *stream = open_path(client, path);
    struct rk_bytes ignored;

    rk_client_send(stream, request);
    rk_client_half_close(stream);
    rk_client_receive(stream, reply ? reply : &ignored);
    return rk_client_finish(stream);
}

struct rk_status *rk_client_call(struct rk_client *client, rk_rpc_id_t rpc, const struct rk_str *request,
                                 struct rk_bytes *reply)
{
    return rk_client_call_path(client, rk_rpc_get(rpc)->path, request, reply);
}

struct rk_status *rk_client_get_status(struct rk_client *client, struct rk_worker_status *out)
{
    struct rk_str empty = {0};
    struct rk_bytes reply;

    RK_TRY(rk_client_call(client, RK_RPC_ID_GET_STATUS, &empty, &reply));
    return rk_unpack_worker_status(out, client->arena, reply.data, reply.bytes);
}

struct rk_status *rk_client_acquire(struct rk_client *client, const struct rk_acquire_lease_request *request,
                                    struct rk_client_lease *out)
{
    struct rk_acquire_lease_response response;
    struct rk_str packed = {0};
    struct rk_bytes reply;
    struct rk_status *st;

    rk_pack_acquire_lease_request(&packed, request);
    st = rk_client_call(client, RK_RPC_ID_ACQUIRE_LEASE, &packed, &reply);
    rk_str_fini(&packed);
    if (st)
        return st;
    RK_TRY(rk_unpack_acquire_lease_response(&response, client->arena, reply.data, reply.bytes));
    assert_int_equal(response.fence.lease_id.bytes, sizeof(out->id));
    out->fence = response.fence;
    memcpy(out->id, response.fence.lease_id.data, sizeof(out->id));
    out->fence.lease_id.data = out->id;
    out->ttl_ms = response.ttl_ms;
    out->last_seq = response.last_seq;
    return NULL;
}

static struct rk_status *configure(struct rk_client *client, const struct rk_configure_request *request,
                                   struct rk_configure_response *response)
{
    struct rk_str packed = {0};
    struct rk_bytes reply;
    struct rk_status *st;

    rk_pack_configure_request(&packed, request);
    st = rk_client_call(client, RK_RPC_ID_CONFIGURE, &packed, &reply);
    rk_str_fini(&packed);
    if (st)
        return st;
    return rk_unpack_configure_response(response, client->arena, reply.data, reply.bytes);
}

struct rk_status *rk_client_configure_alone(struct rk_client *client, const struct rk_client_lease *lease,
                                            uint64_t mesh_generation, const char *const *roles)
{
    struct rk_configure_request request = {.fence = lease->fence, .world_size = 1, .make_comm_id = true};
    struct rk_role_mesh meshes[RK_LIMIT_ROLES] = {0};
    struct rk_configure_response response;
    struct rk_peer peer = {0};

    RK_TRY(configure(client, &request, &response));
    request.make_comm_id = false;
    request.comm_id = response.comm_id;
    request.mesh_generation = mesh_generation;
    peer.comm_address = response.comm_address;
    request.num_peers = 1;
    request.peers = &peer;
    request.meshes = meshes;
    for (; roles[request.num_meshes]; request.num_meshes++)
        meshes[request.num_meshes].role = roles[request.num_meshes];
    return configure(client, &request, &response);
}
