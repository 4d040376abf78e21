/* Private to engine/comm: the NCCL backend, collectives between GPUs.
 *
 * A world is two things. A CPU net joins the ranks as in the other backend: it authenticates them, carries
 * NCCL's own id to all, and tells at once who died, left, aborted or went silent, which NCCL does not. And a
 * communicator of NCCL that carries no operations: groups are split off it. It is non-blocking, so that
 * connecting can be given up; groups are blocking, because a non-blocking communicator takes a thread for
 * every operation. What would block in their first operation, NCCL's connecting, is done when they are made.
 *
 * Threads. The engine thread calls; operations are on a stream when it returns. One thread a world, the
 * guard, looks at the net, at NCCL's asynchronous errors and at the operations that have not ended, and is
 * the only one to abort communicators: that ends their kernels, so a stream that waits for a lost peer comes
 * to its end, and rk_stream_sync then tells why (rk_device_set_watch). Aborting from other threads means
 * asking the guard, so no caller waits for it. The guard alone asks the device which operations have ended: a
 * thread that asks takes part in the device from then on. Locks: call_lock > pending_lock; guard_lock stands
 * alone. Under pending_lock nothing is called that may wait, of the device least of all: threads that answer
 * others take it, and a stream that is full makes who adds to it wait until it moves. */
#ifndef RK_COMM_NCCL_INTERNAL_H
#define RK_COMM_NCCL_INTERNAL_H

#include "engine/comm/comm_internal.h"
#include "engine/comm/rk_nccl.h"

/* Operations that are watched at a time; of more, the oldest and the newest. */
#define RK_NCCL_PENDING_MAX 64

/* An operation that has been given to NCCL. */
struct rk_nccl_op {
    const struct rk_comm_group *group;
    struct rk_comm_doing doing;
    int64_t begun_ns;
};

struct rk_nccl_pending {
    struct rk_nccl_op op;
    struct rk_event *event; /* recorded after it */
};

/* The communicator of a group. Lives as long as its world: peers may still read this rank's buffers when the
 * group is destroyed here. */
struct rk_nccl_group {
    struct rk_nccl_group *next;
    rk_nccl_comm_t comm; /* NULL when the world is down */
    void *scratch;       /* of ordered sums; NULL until the first one */
};

struct rk_nccl_world {
    /* Fixed while the guard runs. */
    struct rk_comm_world *world;   /* the one that this is the implementation of */
    struct rk_comm_world *control; /* the CPU net */
    struct rk_device *device;
    int64_t connect_ns, progress_ns, collective_ns;
    bool (*should_stop)(void *user);
    void *user;
    const struct rk_nccl_api *api; /* NULL: there are no communicators */
    int64_t started_ns;            /* the guard */

    /* Engine thread. */
    void *barrier; /* I32 [1] on the device */
    bool has_guard;

    atomic_bool is_down;       /* aborted, or about to be: no call of NCCL begins */
    atomic_bool is_guard_done; /* the thread has nothing more to do */
    pthread_mutex_t call_lock; /* guards the fields below; held during every call of NCCL */
    rk_nccl_comm_t comm;       /* the world's; NULL before and after */
    /* What a split makes, until it is a group's. NCCL may write it late, and also when the split fails: it is
     * read when the world's communicator is ready, or gone. */
    rk_nccl_comm_t child;
    /* Newest first. Aborting also reads it when a call holds the lock for long. */
    struct rk_nccl_group *_Atomic groups;

    pthread_mutex_t pending_lock; /* guards the fields below */
    struct rk_nccl_op current;    /* inside a call of NCCL; no group: none */
    struct rk_nccl_pending pending[RK_NCCL_PENDING_MAX];
    int first_pending, num_pending;
    int64_t ended_ns; /* when the last one was seen to have ended */

    pthread_mutex_t guard_lock; /* guards the fields below */
    pthread_cond_t wakes_guard;
    bool is_stopping, is_abort_wanted;

    /* Guard. */
    pthread_t guard;
    bool is_aborted;
    int64_t heartbeat_ns, async_error_ns;
    int64_t *left_ns; /* [world size]: when it was seen that a rank has left; 0: it has not */
};

/* --- worlds and groups (comm_nccl.c) --- */

/* What a call of NCCL that failed means: who is lost, if the net knows by then, or NCCL's own words. Never
 * NULL. Engine thread. */
struct rk_status *rk_nccl_failure(struct rk_nccl_world *nccl, rk_nccl_result_t result,
                                  const char *call) RK_NODISCARD;

/* --- operations (comm_nccl_ops.c) --- */

struct rk_status *rk_nccl_all_reduce(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t inout,
                                     rk_reduce_op_t op) RK_NODISCARD;
struct rk_status *rk_nccl_all_gather(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t out,
                                     rk_tensor_t in) RK_NODISCARD;
struct rk_status *rk_nccl_reduce_scatter(struct rk_comm_group *group, struct rk_stream *stream,
                                         rk_tensor_t out, rk_tensor_t in, rk_reduce_op_t op) RK_NODISCARD;
struct rk_status *rk_nccl_broadcast(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t inout,
                                    int32_t root) RK_NODISCARD;
struct rk_status *rk_nccl_all_to_all(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t out,
                                     const int64_t *recv_rows, rk_tensor_t in,
                                     const int64_t *send_rows) RK_NODISCARD;
struct rk_status *rk_nccl_batch(struct rk_comm_group *group, const struct rk_comm_p2p *list,
                                int64_t count) RK_NODISCARD;
struct rk_status *rk_nccl_barrier(struct rk_comm_group *group, struct rk_stream *stream) RK_NODISCARD;
struct rk_status *rk_nccl_reserve_ordered_sum(struct rk_comm_group *group) RK_NODISCARD;
size_t rk_nccl_ordered_sum_bytes(const struct rk_comm_group *group);
struct rk_status *rk_nccl_graph_launch(const struct rk_comm_graph *graph, uint64_t first_seq) RK_NODISCARD;

/* --- the guard (comm_nccl_guard.c) --- */

struct rk_status *rk_nccl_guard_start(struct rk_nccl_world *nccl) RK_NODISCARD;
/* Joins it; what it was asked to do is done. False when it does not end: then it goes on using the world for
 * ever. Engine thread. */
bool rk_nccl_guard_stop(struct rk_nccl_world *nccl) RK_NODISCARD;
/* Whether the net has bad news, which may be newer than the guard's last look; any thread. */
void rk_nccl_guard_poll(struct rk_nccl_world *nccl);
/* Asks for an abort. Any thread. */
void rk_nccl_guard_abort(struct rk_nccl_world *nccl);
/* Ends and releases all communicators. By the guard, and by the engine thread when there is none. NCCL does
 * not release one before the graphs with its operations are gone: the guard may have to wait for the engine
 * thread to destroy its groups, and holds no lock meanwhile. */
void rk_nccl_abort_comms(struct rk_nccl_world *nccl);

/* The engine thread gives an operation to NCCL (begun_ns is set here), and has given it: it is watched until
 * the stream has passed it. */
void rk_nccl_pending_begin(struct rk_nccl_world *nccl, struct rk_nccl_op op);
struct rk_status *rk_nccl_pending_end(struct rk_nccl_world *nccl, struct rk_stream *stream,
                                      bool has_begun) RK_NODISCARD;
/* Forgets the operations of a group. */
void rk_nccl_pending_drop(struct rk_nccl_world *nccl, const struct rk_comm_group *group);
/* The one that the others wait behind, as far as the guard's last look tells; leaves `inout` alone when there
 * is none. Any thread. */
void rk_nccl_activity(struct rk_nccl_world *nccl, struct rk_comm_activity *inout);
/* Whether none was left at the guard's last look. */
bool rk_nccl_pending_is_empty(struct rk_nccl_world *nccl);

#endif
