/* The simulated core of gRPC: declarations shared by core_*.c. */
#ifndef RK_TEST_UNIT_SIM_CORE_H
#define RK_TEST_UNIT_SIM_CORE_H

#include <grpc/grpc.h>

#include "base/rk_array.h"
#include "proto/rk_rpcs.h"
#include "tests/unit/sim/net.h"

#define SIM_OPS 6 /* maximum number of operations of a batch */

/* An event of a queue. */
struct sim_completion {
    struct sim_completion *next;
    void *tag;
    bool ok;
};

struct grpc_completion_queue {
    struct sim_process *process;
    struct sim_completion *first, **end;
    int num_pending; /* operations whose completion has not been read yet */
    bool is_shutdown;
    struct sim_fiber *waiter;
};

struct sim_batch {
    void *tag;
    int num_open; /* operations that are not done */
    bool ok;
};

struct grpc_call {
    sim_side_t side;
    struct sim_stream *stream; /* NULL: a client's call without a connection */
    grpc_completion_queue *queue;
    struct grpc_server *server;       /* of the server's side */
    RK_ARRAY(struct rk_str) incoming; /* messages that were not read yet */
    int64_t num_read;
    bool has_headers, is_half_closed;
    bool has_ended; /* nothing is received or sent any more */
    bool is_cancelled;
    int code;
    struct rk_str details;
    char *text;
    /* operations that wait */
    grpc_op initial, message, end;
    struct sim_batch *on_initial, *on_message, *on_end;
    int num_batches;
    bool is_unreffed;
};

struct grpc_server {
    struct sim_process *process;
    grpc_completion_queue *queue;
    RK_ARRAY(struct sim_armed *) armed;
    RK_ARRAY(grpc_call *) arrived; /* calls that no request has taken yet */
    int num_calls;
    bool is_shutdown;
    void *shutdown_tag; /* NULL: already returned */
};

/* A request for the next call of that path; NULL: of any that has no request of its own. */
struct sim_armed {
    const char *path;
    grpc_call **call;
    grpc_call_details *details;
    gpr_timespec *deadline;
    void *tag;
};

void sim_queue_expect(grpc_completion_queue *queue);
void sim_queue_complete(grpc_completion_queue *queue, void *tag, bool ok);

grpc_call *sim_call_create(sim_side_t side, struct sim_stream *stream, grpc_completion_queue *queue);
/* Ends the call on this side. A status already received is kept. */
void sim_call_end(grpc_call *call, int code, const char *text);
void sim_server_drop_call(struct grpc_server *server); /* one of its calls was freed */

#endif
