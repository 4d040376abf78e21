/* Server object and thread G. Recipe and arguments: docs/architecture.md.
 *
 * Every method is registered without a payload, unary ones too: gRPC would otherwise buffer the whole request
 * before the token could be checked. Message size limits apply too late to bound memory; the resource
 * quota does that. */
#include "daemon/rpc/rpc.h"

#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/prctl.h>

#include <grpc/byte_buffer.h>
#include <grpc/grpc_posix.h>
#include <grpc/grpc_security.h>
#include <grpc/support/cpu.h>
#include <grpc/support/log.h>
#include <grpc/support/time.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_fault.h"
#include "base/rk_log.h"
#include "base/rk_thread.h"
#include "base/rk_time.h"
#include "daemon/rpc/call_internal.h"
#include "daemon/daemon_internal.h"
#include "daemon/deadline_internal.h"
#include "daemon/rk_daemon.h"
#include "proto/limits.h"

#define LISTENER_SEEN_NS (10 * 1000000000LL) /* maximum silence of the thread that accepts */
#define REFUSED_NS       (5 * 1000000000LL)  /* how long a refused connection affects health */
#define WINDOW_BYTES     (8 << 20)           /* of a receiving stream: four chunks */
#define QUEUE_WAIT_MS    500                 /* period of G's sign of life */
/* More threads than gRPC starts in addition to one per core, of which it uses at most these. It aborts,
 * or hangs in its shutdown, when it cannot create a thread. */
#define CORE_THREADS 16

static const struct {
    const char *key;
    int value;
} server_args[] = {
    {GRPC_ARG_MAX_RECEIVE_MESSAGE_LENGTH, RK_LIMIT_MESSAGE_BYTES},
    {GRPC_ARG_MAX_SEND_MESSAGE_LENGTH, RK_LIMIT_MESSAGE_BYTES},
    {GRPC_ARG_MAX_CONCURRENT_STREAMS, 64},
    {GRPC_ARG_MAX_METADATA_SIZE, RK_LIMIT_METADATA_BYTES},
    /* A stopped process or a lost host is detected in 8 s. */
    {GRPC_ARG_KEEPALIVE_TIME_MS, 5000},
    {GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 3000},
    {GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1},
    /* The default cuts clients that ping more often than every 5 minutes. */
    {GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 2500},
    {GRPC_ARG_MAX_CONNECTION_IDLE_MS, 3600 * 1000},
    /* Tensors do not compress, and without decompression there are no decompression bombs. */
    /* A fixed window. One that gRPC fits to the speed of the connection grew until the resource quota was
     * used up, and the streams of a fast upload were reset (RST_STREAM, ENHANCE_YOUR_CALM). */
    {GRPC_ARG_HTTP2_BDP_PROBE, 0},
    {GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, WINDOW_BYTES},
    /* A chunk comes in one frame, which the guard relays without copying it (relay.c). */
    {GRPC_ARG_HTTP2_MAX_FRAME_SIZE, RK_LIMIT_MESSAGE_BYTES},
    {GRPC_ARG_ENABLE_PER_MESSAGE_COMPRESSION, 0},
    {GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0},
};

/* --- G: arrival and events --- */

static void arm(struct rk_server *server, const struct rk_rpc *rpc);

static void on_batch_queue(struct rk_server_tag *tag, bool ok)
{
    struct rk_call_op *op = RK_CONTAINER_OF(tag, struct rk_call_op, tag);
    struct rk_call *call = op->call;

    (void)ok; /* the content of the batch is checked instead: message or none, cancelled or not */
    if (op->kind == RK_CALL_READ && call->message)
        rk_call_metrics(call)->received_bytes += grpc_byte_buffer_length(call->message);
    if (op->kind == RK_CALL_READ && call->message && call->handler->consume &&
        !rk_message_is_compressed(call->message) && call->handler->consume(call, call->message)) {
        grpc_op read = {.op = GRPC_OP_RECV_MESSAGE, .data.recv_message.recv_message = &call->message};
        grpc_call_error error;

        grpc_byte_buffer_destroy(call->message);
        call->message = NULL;
        error = grpc_call_start_batch(call->core, &read, 1, tag, NULL);
        RK_ASSERT(error == GRPC_CALL_OK);
        return;
    }
    rk_loop_run_here(call->server->config.loop, &tag->event);
}

static void on_arrive_queue(struct rk_server_tag *tag, bool ok)
{
    struct rk_call *call = RK_CONTAINER_OF(tag, struct rk_call_op, tag)->call;

    if (!ok) { /* the server shuts down */
        rk_call_destroy(call);
        return;
    }
    arm(call->server, call->rpc);
    if (call->rpc && call->rpc->kind != RK_RPC_UNARY)
        rk_call_watch_close(call);
    rk_loop_run_here(call->server->config.loop, &tag->event);
}

static struct rk_call *call_create(struct rk_server *server, const struct rk_rpc *rpc)
{
    struct rk_call *call = rk_calloc(1, sizeof(*call));

    call->server = server;
    call->rpc = rpc;
    call->handler = rpc ? rk_rpc_handler_get(rpc->id) : NULL;
    grpc_metadata_array_init(&call->metadata);
    grpc_call_details_init(&call->details);
    for (int kind = 0; kind < RK_CALL_OP_COUNT; kind++) {
        struct rk_call_op *op = &call->ops[kind];

        op->call = call;
        op->kind = (rk_call_op_kind_t)kind;
        op->tag.on_queue = kind == RK_CALL_ARRIVE ? on_arrive_queue : on_batch_queue;
        op->tag.event.run = kind == RK_CALL_ARRIVE ? rk_call_on_arrival : rk_call_on_batch;
    }
    return call;
}

/* Registers a call object for the next call of that RPC (NULL: of any other path). G, and L at the start. */
static void arm(struct rk_server *server, const struct rk_rpc *rpc)
{
    struct rk_call *call = call_create(server, rpc);
    struct rk_server_tag *tag = &call->ops[RK_CALL_ARRIVE].tag;
    grpc_call_error error;

    if (rpc)
        error = grpc_server_request_registered_call(server->core, server->registered[rpc->id], &call->core,
                                                    &call->deadline, &call->metadata, NULL, server->queue,
                                                    server->queue, tag);
    else
        error = grpc_server_request_call(server->core, &call->core, &call->details, &call->metadata,
                                         server->queue, server->queue, tag);
    RK_ASSERT(error == GRPC_CALL_OK);
}

static void *run_queue(void *arg)
{
    struct rk_server *server = arg;
    grpc_event event;

    prctl(PR_SET_NAME, "rankd-G");
    do {
        gpr_timespec wait = gpr_time_from_millis(QUEUE_WAIT_MS, GPR_TIMESPAN);

        atomic_store_explicit(&server->queue_seen_ns, rk_time_now_ns(), memory_order_relaxed);
        event =
            grpc_completion_queue_next(server->queue, gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), wait), NULL);
        if (event.type == GRPC_OP_COMPLETE) {
            struct rk_server_tag *tag = event.tag;

            tag->on_queue(tag, event.success);
        }
    } while (event.type != GRPC_QUEUE_SHUTDOWN);
    rk_loop_post(server->config.loop, &server->stopped_event);
    return NULL;
}

/* --- start --- */

static void on_core_log(gpr_log_func_args *args)
{
    if (args->severity == GPR_LOG_SEVERITY_ERROR)
        RK_WARN("grpc: %s", args->message);
    else
        RK_DEBUG_LOG("grpc: %s", args->message);
}

static grpc_server *create_core(const struct rk_server_config *config)
{
    grpc_resource_quota *quota = grpc_resource_quota_create("rankd");
    grpc_arg args[RK_ARRAY_LEN(server_args) + 1];
    grpc_channel_args list = {.num_args = RK_ARRAY_LEN(args), .args = args};
    grpc_server *core;

    grpc_resource_quota_resize(quota,
                               config->is_health_only ? RK_LIMIT_HEALTH_QUOTA_BYTES : RK_LIMIT_QUOTA_BYTES);
    for (size_t i = 0; i < RK_ARRAY_LEN(server_args); i++)
        args[i] = (grpc_arg){.type = GRPC_ARG_INTEGER,
                             .key = (char *)server_args[i].key,
                             .value.integer = server_args[i].value};
    args[RK_ARRAY_LEN(server_args)] =
        (grpc_arg){.type = GRPC_ARG_POINTER,
                   .key = (char *)GRPC_ARG_RESOURCE_QUOTA,
                   .value.pointer = {.p = quota, .vtable = grpc_resource_quota_arg_vtable()}};
    core = grpc_server_create(&list, NULL);
    grpc_resource_quota_unref(quota);
    return core;
}

/* The guard's thread. */
static void on_connection(void *user, int fd)
{
    struct rk_server *server = user;
    grpc_server_credentials *credentials = grpc_insecure_server_credentials_create();

    grpc_server_add_channel_from_fd(server->core, fd, credentials);
    grpc_server_credentials_release(credentials);
}

static struct rk_status *start_guard(struct rk_server *server)
{
    struct rk_guard_config config = {.listen = server->config.listen,
                                     .max_connections =
                                         server->config.is_health_only ? RK_LIMIT_HEALTH_CONNECTIONS : 0,
                                     .tls = server->config.tls,
                                     .tls_demand = server->config.tls_demand,
                                     .user = server,
                                     .on_connection = on_connection};

    return rk_guard_create(&server->guard, &config);
}

static void on_stopped(struct rk_loop_event *event)
{
    struct rk_server *server = RK_CONTAINER_OF(event, struct rk_server, stopped_event);

    pthread_join(server->thread, NULL);
    server->config.on_stopped(server->config.daemon);
}

/* L: the last call has ended. */
static void on_shutdown(struct rk_loop_event *event)
{
    struct rk_server *server = RK_CONTAINER_OF(event, struct rk_server, shutdown_tag.event);

    grpc_completion_queue_shutdown(server->queue);
}

static void on_shutdown_queue(struct rk_server_tag *tag, bool ok)
{
    struct rk_server *server = RK_CONTAINER_OF(tag, struct rk_server, shutdown_tag);

    RK_ASSERT(ok);
    rk_loop_run_here(server->config.loop, &tag->event);
}

/* gRPC requires the shutdown of a created server before its destruction, even if it never ran. */
static void abandon(struct rk_server *server)
{
    grpc_event event;

    if (RK_FAULT("server.abandon"))
        RK_WARN("server.abandon");
    grpc_server_shutdown_and_notify(server->core, server->queue, &server->shutdown_tag);
    do {
        event = grpc_completion_queue_next(server->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL);
    } while (event.tag != &server->shutdown_tag);
    grpc_completion_queue_shutdown(server->queue);
    while (grpc_completion_queue_next(server->queue, gpr_inf_future(GPR_CLOCK_MONOTONIC), NULL).type !=
           GRPC_QUEUE_SHUTDOWN)
        ;
    rk_server_destroy(server);
}

/* The others are unknown paths. */
static bool serves(const struct rk_server_config *config, rk_rpc_id_t id)
{
    const struct rk_rpc_handler *handler = rk_rpc_handler_get(id);

    if (config->is_health_only)
        return handler == &rk_rpc_health_check || handler == &rk_rpc_health_watch;
    return config->has_reflection || handler != &rk_rpc_reflect;
}

static void register_methods(struct rk_server *server)
{
    for (int id = 0; id < RK_RPC_COUNT; id++) {
        if (!serves(&server->config, (rk_rpc_id_t)id))
            continue;
        server->registered[id] = grpc_server_register_method(server->core, rk_rpc_get((rk_rpc_id_t)id)->path,
                                                             NULL, GRPC_SRM_PAYLOAD_NONE, 0);
        RK_ASSERT(server->registered[id]);
    }
}

struct rk_status *rk_server_create(struct rk_server **out, const struct rk_server_config *config)
{
    struct rk_server *server;
    struct rk_status *st;

    *out = NULL;
    RK_TRY(rk_thread_check_room(CORE_THREADS + RK_MIN((int)gpr_cpu_num_cores(), CORE_THREADS), "gRPC core"));
    server = rk_calloc(1, sizeof(*server));
    server->config = *config;
    server->shutdown_tag.on_queue = on_shutdown_queue;
    server->shutdown_tag.event.run = on_shutdown;
    server->stopped_event.run = on_stopped;
    atomic_init(&server->queue_seen_ns, rk_time_now_ns());
    gpr_set_log_function(on_core_log);
    grpc_init();
    server->core = create_core(config);
    server->queue = grpc_completion_queue_create_for_next(NULL);
    grpc_server_register_completion_queue(server->core, server->queue, NULL);
    register_methods(server);
    st = start_guard(server);
    if (!st) /* before there are calls that would have to be cancelled */
        st = rk_thread_start(&server->thread, run_queue, server, "completion queue");
    if (st) {
        rk_deadline_set(RK_DEADLINE_END_S, rk_daemon_exit_code(st), rk_status_message(st));
        abandon(server);
        return st;
    }
    grpc_server_start(server->core);
    for (int id = 0; id < RK_RPC_COUNT; id++) {
        if (server->registered[id])
            arm(server, rk_rpc_get((rk_rpc_id_t)id));
    }
    arm(server, NULL);
    rk_guard_open(server->guard);
    *out = server;
    return NULL;
}

/* --- L --- */

void rk_server_destroy(struct rk_server *server)
{
    if (!server)
        return;
    RK_ASSERT(!server->calls);
    grpc_completion_queue_destroy(server->queue);
    grpc_server_destroy(server->core);
    rk_guard_destroy(server->guard);
    grpc_shutdown();
    rk_free(server);
}

const char *rk_server_address(const struct rk_server *server)
{
    return rk_guard_address(server->guard);
}

void rk_server_set_auth(struct rk_server *server, const struct rk_auth *auth)
{
    server->config.auth = auth;
}

void rk_server_tick(struct rk_server *server)
{
    int64_t now_ns = rk_time_now_ns();
    struct rk_call *next;

    for (struct rk_call *call = server->calls; call; call = next) {
        next = call->next; /* a tick may finish the call, but only an event frees it */
        rk_call_tick(call, now_ns);
    }
}

void rk_server_begin_shutdown(struct rk_server *server)
{
    RK_ASSERT(!server->is_shutting_down);
    server->is_shutting_down = true;
    rk_guard_close_listener(server->guard);
    for (struct rk_call *call = server->calls; call; call = call->next) {
        rk_call_end_endless(call);
    }
    grpc_server_shutdown_and_notify(server->core, server->queue, &server->shutdown_tag);
}

void rk_server_cancel_calls(struct rk_server *server)
{
    grpc_server_cancel_all_calls(server->core);
}

int64_t rk_server_queue_age_ns(const struct rk_server *server)
{
    return rk_time_now_ns() - atomic_load_explicit(&server->queue_seen_ns, memory_order_relaxed);
}

void rk_server_count_calls(const struct rk_server *server, int counts[RK_RPC_COUNT + 1])
{
    for (const struct rk_call *call = server->calls; call; call = call->next)
        counts[rk_call_metrics_row(call)]++;
}

void rk_server_get_guard_stats(const struct rk_server *server, struct rk_guard_stats *out)
{
    rk_guard_get_stats(server->guard, out);
}

bool rk_server_listens(const struct rk_server *server)
{
    struct rk_guard_stats stats;

    rk_guard_get_stats(server->guard, &stats);
    return stats.thread_age_ns < LISTENER_SEEN_NS;
}

bool rk_server_takes_connections(const struct rk_server *server)
{
    struct rk_guard_stats stats;

    rk_guard_get_stats(server->guard, &stats);
    return stats.refused_ns == 0 || rk_time_now_ns() - stats.refused_ns > REFUSED_NS;
}
