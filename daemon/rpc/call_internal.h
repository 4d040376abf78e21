/* The call object, shared by rpc_server.c (G: arrival, events), rpc_arrival.c (L: admission) and
 * rpc_call.c (L: everything else). */
#ifndef RK_CALL_INTERNAL_H
#define RK_CALL_INTERNAL_H

#include <pthread.h>

#include "daemon/guard/guard.h"
#include "daemon/rpc/rpc.h"

/* Tag of the completion queue. */
struct rk_server_tag {
    struct rk_loop_event event;
    void (*on_queue)(struct rk_server_tag *tag, bool ok); /* G */
};

typedef enum rk_call_op_kind {
    RK_CALL_ARRIVE,
    RK_CALL_CLOSE,
    RK_CALL_READ,
    RK_CALL_SEND,
    RK_CALL_FINISH,
    RK_CALL_OP_COUNT
} rk_call_op_kind_t;

/* At most one batch of a kind is in progress, so its tag is part of the call. */
struct rk_call_op {
    struct rk_server_tag tag;
    struct rk_call *call;
    rk_call_op_kind_t kind;
};

struct rk_call {
    /* fixed once the call has arrived */
    struct rk_server *server;
    const struct rk_rpc *rpc;             /* NULL: an unknown path */
    const struct rk_rpc_handler *handler; /* NULL likewise */
    grpc_call *core;
    grpc_metadata_array metadata;
    grpc_call_details details; /* of an unknown path */
    gpr_timespec deadline;     /* gRPC ends the call by itself when it passes */

    struct rk_call_op ops[RK_CALL_OP_COUNT];
    int is_cancelled;          /* written by gRPC before the CLOSE event */
    grpc_byte_buffer *message; /* written by gRPC before the READ event; G's until it is posted */

    /* L */
    struct rk_call *next, **link; /* list of the server */
    struct rk_arena *arena;
    void *user;
    int64_t arrived_ns;
    int num_batches; /* in progress */
    bool is_held;    /* deferred: the handler answers later */
    bool has_first_message, has_headers, is_reading, is_sending, is_finished, is_closed;
    bool has_close;          /* RECV_CLOSE was started; the call is not freed before it has returned */
    bool closes_with_finish; /* it is part of the batch FINISH */
    bool is_failure_logged;  /* with more than its status: log_end adds nothing */
    rk_code_t code;          /* status with which it was finished */
};

struct rk_rpc_metrics;

struct rk_server {
    struct rk_server_config config;
    grpc_server *core;
    grpc_completion_queue *queue;
    void *registered[RK_RPC_COUNT];
    struct rk_guard *guard;
    pthread_t thread;
    struct rk_call *calls; /* L */
    bool is_shutting_down; /* L */
    struct rk_server_tag shutdown_tag;
    struct rk_loop_event stopped_event;
    _Atomic int64_t queue_seen_ns; /* G writes */
};

/* The status of calls that a shutdown refuses or ends; the service manager may restart the daemon. */
struct rk_status *rk_call_fail_shutdown(void) RK_NODISCARD;
/* L: the call has arrived / a batch has come back. */
void rk_call_on_arrival(struct rk_loop_event *event);
void rk_call_on_batch(struct rk_loop_event *event);
void rk_call_tick(struct rk_call *call, int64_t now_ns);
/* Shutdown: ends an endless stream after the message that it is sending. */
void rk_call_end_endless(struct rk_call *call);
/* G or L, when no batch is in progress. */
void rk_call_destroy(struct rk_call *call);
/* Index of the row of rk_metrics.rpcs that the call belongs to, and the row. */
int rk_call_metrics_row(const struct rk_call *call);
struct rk_rpc_metrics *rk_call_metrics(const struct rk_call *call);
/* Starts RECV_CLOSE in a batch of its own: the notice that the peer has disconnected. Streams on G when they
 * arrive, unary calls on L when the answer is deferred; the others get it with their answer, in one batch. */
void rk_call_watch_close(struct rk_call *call);
/* Messages arrive as they were sent: decompression is off. */
static inline bool rk_message_is_compressed(const grpc_byte_buffer *message)
{
    return message && message->data.raw.compression != GRPC_COMPRESS_NONE;
}

/* Starts a batch whose return is counted; L. */
void rk_call_start(struct rk_call *call, rk_call_op_kind_t kind, const grpc_op *ops, size_t num_ops);

#endif
