/* The server: requests that wait for calls, and its end. */
#include <string.h>

#include <grpc/grpc.h>
#include <grpc/slice.h>
#include <grpc/support/time.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "tests/unit/sim/core.h"

grpc_server *__wrap_grpc_server_create(const grpc_channel_args *args, void *reserved);
void __wrap_grpc_server_register_completion_queue(grpc_server *server, grpc_completion_queue *queue,
                                                  void *reserved);
void *__wrap_grpc_server_register_method(grpc_server *server, const char *path, const char *host,
                                         grpc_server_register_method_payload_handling payload,
                                         uint32_t flags);
void __wrap_grpc_server_start(grpc_server *server);
grpc_call_error __wrap_grpc_server_request_registered_call(grpc_server *server, void *method,
                                                           grpc_call **call, gpr_timespec *deadline,
                                                           grpc_metadata_array *metadata,
                                                           grpc_byte_buffer **payload,
                                                           grpc_completion_queue *bound,
                                                           grpc_completion_queue *queue, void *tag);
grpc_call_error __wrap_grpc_server_request_call(grpc_server *server, grpc_call **call,
                                                grpc_call_details *details, grpc_metadata_array *metadata,
                                                grpc_completion_queue *bound, grpc_completion_queue *queue,
                                                void *tag);
void __wrap_grpc_server_shutdown_and_notify(grpc_server *server, grpc_completion_queue *queue, void *tag);
void __wrap_grpc_server_cancel_all_calls(grpc_server *server);
void __wrap_grpc_server_destroy(grpc_server *server);

grpc_server *__wrap_grpc_server_create(const grpc_channel_args *args, void *reserved)
{
    grpc_server *server = rk_calloc(1, sizeof(*server));

    (void)args;
    (void)reserved;
    server->process = sim_here();
    return server;
}

void __wrap_grpc_server_register_completion_queue(grpc_server *server, grpc_completion_queue *queue,
                                                  void *reserved)
{
    (void)reserved;
    server->queue = queue;
}

void *__wrap_grpc_server_register_method(grpc_server *server, const char *path, const char *host,
                                         grpc_server_register_method_payload_handling payload, uint32_t flags)
{
    (void)server;
    (void)host;
    (void)payload;
    (void)flags;
    return (void *)(uintptr_t)path; /* path is an entry of the RPC table and remains valid */
}

void __wrap_grpc_server_start(grpc_server *server)
{
    (void)server;
}

/* --- arrival --- */

static void hand_over(grpc_call *call, struct sim_armed *armed, grpc_server *server)
{
    *armed->call = call;
    if (armed->deadline)
        *armed->deadline = gpr_inf_future(GPR_CLOCK_REALTIME);
    if (armed->details)
        armed->details->method = grpc_slice_from_copied_string(call->stream->path);
    sim_queue_complete(server->queue, armed->tag, true);
}

/* The request that a path gets; -1: none waits. */
static int64_t find_armed(const grpc_server *server, const char *path)
{
    for (int64_t i = 0; i < server->armed.count; i++) {
        if (server->armed.items[i]->path && strcmp(server->armed.items[i]->path, path) == 0)
            return i;
    }
    return -1;
}

static void match(grpc_server *server)
{
    for (int64_t i = 0; i < server->arrived.count;) {
        grpc_call *call = server->arrived.items[i];
        int64_t found = find_armed(server, call->stream->path);
        struct sim_armed *armed;

        if (found < 0) {
            i++;
            continue;
        }
        armed = server->armed.items[found];
        server->armed.items[found] = server->armed.items[--server->armed.count];
        server->arrived.count--;
        memmove(&server->arrived.items[i], &server->arrived.items[i + 1],
                (size_t)(server->arrived.count - i) * sizeof(server->arrived.items[0]));
        hand_over(call, armed, server);
    }
}

void sim_server_take_call(struct sim_stream *stream)
{
    grpc_server *server = sim_host_server(stream->conn->ends[SIM_SERVER]->owner);
    grpc_call *call;

    if (!server || server->is_shutdown)
        return;
    call = sim_call_create(SIM_SERVER, stream, server->queue);
    call->server = server;
    server->num_calls++;
    rk_array_append(&server->arrived, call);
    match(server);
}

static void arm(grpc_server *server, const struct sim_armed *given)
{
    struct sim_armed *armed = sim_alloc(sizeof(*armed));

    *armed = *given;
    sim_queue_expect(server->queue);
    if (server->is_shutdown) {
        sim_queue_complete(server->queue, armed->tag, false);
        return;
    }
    rk_array_append(&server->armed, armed);
    match(server);
}

/* RK_LINT_FOREIGN: gRPC */
grpc_call_error __wrap_grpc_server_request_registered_call(grpc_server *server, void *method,
                                                           grpc_call **call, gpr_timespec *deadline,
                                                           grpc_metadata_array *metadata,
                                                           grpc_byte_buffer **payload,
                                                           grpc_completion_queue *bound,
                                                           grpc_completion_queue *queue, void *tag)
{
    (void)metadata;
    (void)payload;
    (void)bound;
    (void)queue;
    arm(server, &(struct sim_armed){.path = method, .call = call, .deadline = deadline, .tag = tag});
    return GRPC_CALL_OK;
}

grpc_call_error __wrap_grpc_server_request_call(grpc_server *server, grpc_call **call,
                                                grpc_call_details *details, grpc_metadata_array *metadata,
                                                grpc_completion_queue *bound, grpc_completion_queue *queue,
                                                void *tag)
{
    (void)metadata;
    (void)bound;
    (void)queue;
    arm(server, &(struct sim_armed){.call = call, .details = details, .tag = tag});
    return GRPC_CALL_OK;
}

/* --- end --- */

static void maybe_end(grpc_server *server)
{
    if (!server->is_shutdown || !server->shutdown_tag || server->num_calls > 0)
        return;
    sim_queue_complete(server->queue, server->shutdown_tag, true);
    server->shutdown_tag = NULL;
}

void sim_server_drop_call(grpc_server *server)
{
    server->num_calls--;
    maybe_end(server);
}

void __wrap_grpc_server_shutdown_and_notify(grpc_server *server, grpc_completion_queue *queue, void *tag)
{
    sim_queue_expect(queue);
    server->is_shutdown = true;
    server->shutdown_tag = tag;
    for (int64_t i = 0; i < server->armed.count; i++)
        sim_queue_complete(queue, server->armed.items[i]->tag, false);
    server->armed.count = 0;
    for (int64_t i = 0; i < server->arrived.count; i++)
        grpc_call_unref(server->arrived.items[i]);
    server->arrived.count = 0;
    maybe_end(server);
}

void __wrap_grpc_server_cancel_all_calls(grpc_server *server)
{
    (void)server; /* the simulated daemons do not stop in order: their connections have been cut */
}

void __wrap_grpc_server_destroy(grpc_server *server)
{
    RK_ASSERT(server->is_shutdown);
    RK_ASSERT(server->num_calls == 0);
    rk_array_fini(&server->armed);
    rk_array_fini(&server->arrived);
    rk_free(server);
}
