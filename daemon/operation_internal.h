/* One operation: a method call from its accepted header to its stored result. It is apart from the chunk
 * stream that carries it: after Commit the stream may break, and a repeated request attaches another one. */
#ifndef RK_OPERATION_INTERNAL_H
#define RK_OPERATION_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/rk_hash.h"
#include "daemon/loop_internal.h"
#include "daemon/requests_internal.h"
#include "worker/rk_worker.h"

struct rk_daemon;
struct rk_execute;

/* The result of an operation. Shared by the request table, the chunk streams that send it, and gRPC, whose
 * threads release chunks: the last user frees it, on any thread. */
struct rk_result {
    atomic_int num_refs;
    struct rk_job *job; /* status, output and metrics; not changed any more */
};

struct rk_result *rk_result_retain(struct rk_result *result);
void rk_result_release(void *result); /* destructor for gRPC's slices; NULL is a no-op */

struct rk_operation {
    struct rk_request request;       /* entry of the request table */
    struct rk_loop_event done_event; /* posted by E */
    struct rk_daemon *daemon;
    struct rk_job *job;         /* OPEN: owned. RUNNING: owned by the worker, used to cancel. Later NULL */
    struct rk_result *result;   /* DONE */
    struct rk_execute *streams; /* attached chunk streams */
    uint64_t epoch, seq;
    int64_t committed_ns;
    uint64_t input_bytes; /* counted in the daemon's inflight_bytes until the job ends */
    uint8_t plan_hash[RK_SHA256_BYTES];
    struct rk_execute_header header; /* lives in the job's plan_arena: gone with the job's request part */
    char name[80];                   /* "actor.update_actor" */
};

/* OPEN, with an empty METHOD job. */
struct rk_operation *rk_operation_create(struct rk_daemon *daemon);
/* An OPEN operation that will not be committed. NULL is a no-op. */
void rk_operation_discard(struct rk_operation *operation);
/* OPEN -> RUNNING: consumes its seq, enters the request table, goes to the worker. */
void rk_operation_commit(struct rk_operation *operation);
/* Outcome as in CancelResponse. */
const char *rk_operation_cancel(struct rk_operation *operation, bool abort_comm, const char *reason);

/* Cancels all running operations; also drops the call that is not committed. */
void rk_operations_cancel(struct rk_daemon *daemon, bool abort_comm, const char *reason);
/* Ends all streams that wait for operations; the operations stay with the worker. */
void rk_operations_answer(struct rk_daemon *daemon, const struct rk_status *why);
/* Number of running operations of the current epoch. */
int64_t rk_operations_num_current(const struct rk_daemon *daemon);
/* The running operation, or the next one: they run in the order of Commit. NULL: none. */
struct rk_operation *rk_operations_find_first(const struct rk_daemon *daemon);

/* Hooks of the request table. */
void rk_operation_drop_result(struct rk_request *request);
void rk_operation_destroy(struct rk_request *request);

#endif
