/* Private to engine/comm: the NCCL backend, collectives between GPUs.
 *
 * A world has two parts. The first is a CPU peer network, as in the CPU backend: it authenticates the ranks,
 * sends NCCL's own id to all, and reports at once which ranks died, left, aborted or went silent, which NCCL
 * does not. The second is an NCCL communicator that carries no operations: groups are split off it. It is
 * non-blocking, so that connecting can be aborted; groups are blocking, because a non-blocking communicator
 * needs a thread for every operation. NCCL connects a communicator in its first operation, which would block;
 * a warm-up does so when the group is created.
 *
 * Threads. The engine thread makes the calls; they return with the operation enqueued on a stream. One guard
 * thread per world checks the peer network, NCCL's asynchronous errors and the unfinished operations. Only
 * the guard aborts communicators: that ends their kernels, so a stream that waits for a lost peer completes,
 * and rk_stream_sync returns the reason (rk_device_set_watch). Other threads abort by a request to the guard
 * and do not wait. Only the guard queries the events of operations: a thread that queries one uses the device
 * context from then on. Locks: call_lock > pending_lock; guard_lock is never held with another lock. Under
 * pending_lock no call may block, above all no call of the device: RPC threads take this lock, and adding to
 * a full stream blocks until the stream advances. */
#ifndef RK_COMM_NCCL_INTERNAL_H
#define RK_COMM_NCCL_INTERNAL_H

#include "engine/comm/comm.h"
#include "engine/comm/rk_nccl.h"

/* Maximum number of monitored operations; beyond it, the oldest and the newest are kept. */
#define RK_NCCL_PENDING_MAX 64

/* An operation that has been passed to NCCL. */
struct rk_nccl_op {
    const struct rk_comm_group *group;
    struct rk_comm_doing doing;
    int64_t begun_ns;
};

struct rk_nccl_pending {
    struct rk_nccl_op op;
    struct rk_event *event; /* recorded after the operation */
};

/* The communicator of a group. Lives as long as its world: peers may still read this rank's buffers when the
 * group is destroyed here. */
struct rk_nccl_group {
    struct rk_nccl_group *next;
    rk_nccl_comm_t comm; /* NULL when the world has been aborted */
    void *scratch;       /* of ordered sums; NULL until the first one */
};

struct rk_nccl_world {
    /* Fixed while the guard runs. */
    struct rk_comm_world *world;   /* the world that this implements */
    struct rk_comm_world *control; /* the CPU peer network */
    struct rk_device *device;
    int64_t connect_ns, progress_ns, collective_ns;
    bool (*should_stop)(void *user);
    void *user;
    const struct rk_nccl_api *api; /* NULL: there are no communicators */
    int64_t started_ns;            /* the guard */

    /* Engine thread. */
    void *barrier; /* I32 [1] on the device */
    bool has_guard;

    atomic_bool is_down;       /* aborted or about to be: no NCCL call begins */
    atomic_bool is_guard_done; /* the guard thread has finished */
    pthread_mutex_t call_lock; /* guards the fields below; held during every call of NCCL */
    rk_nccl_comm_t comm;       /* the world's; NULL before and after */
    /* Result of a split until a group takes it. NCCL may write it late, and also when the split fails: read
     * it only when the world's communicator is ready or released. */
    rk_nccl_comm_t child;
    /* Newest first. Atomic, because aborting reads it without the lock when a call holds the lock for too
     * long. */
    struct rk_nccl_group *_Atomic groups;

    pthread_mutex_t pending_lock; /* guards the fields below */
    struct rk_nccl_op current;    /* operation whose NCCL call is in progress; group NULL: none */
    struct rk_nccl_pending pending[RK_NCCL_PENDING_MAX];
    int first_pending, num_pending;
    int64_t ended_ns; /* time at which the last one was seen to have ended */

    pthread_mutex_t guard_lock; /* guards the fields below */
    pthread_cond_t wakes_guard;
    bool is_stopping, is_abort_wanted;

    /* Guard. */
    pthread_t guard;
    bool is_aborted;
    int64_t heartbeat_ns, async_error_ns;
    int64_t *left_ns; /* [world size]: time at which the rank was seen to have left; 0: it has not */
};

/* --- worlds and groups (comm_nccl.c) --- */

/* The error of a failed NCCL call: the lost rank if the peer network knows it by then, or else NCCL's own
 * message. Never NULL. Engine thread. */
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
/* Joins the guard after it has done all requests. False when it does not end: then it uses the world
 * indefinitely. Engine thread. */
bool rk_nccl_guard_stop(struct rk_nccl_world *nccl) RK_NODISCARD;
/* Checks the peer network for failures newer than the guard's last check; any thread. */
void rk_nccl_guard_poll(struct rk_nccl_world *nccl);
/* Requests an abort. Any thread. */
void rk_nccl_guard_abort(struct rk_nccl_world *nccl);
/* Aborts and releases all communicators. Called by the guard, and by the engine thread when there is no
 * guard. NCCL does not release a communicator before the graphs with its operations are destroyed: the guard
 * may have to wait for the engine thread to destroy its groups, and holds no lock meanwhile. */
void rk_nccl_abort_comms(struct rk_nccl_world *nccl);

/* Called by the engine thread before (sets begun_ns) and after it passes an operation to NCCL. The guard
 * monitors the operation until the stream has completed it. */
void rk_nccl_pending_begin(struct rk_nccl_world *nccl, struct rk_nccl_op op);
struct rk_status *rk_nccl_pending_end(struct rk_nccl_world *nccl, struct rk_stream *stream,
                                      bool has_begun) RK_NODISCARD;
/* Forgets the operations of a group. */
void rk_nccl_pending_drop(struct rk_nccl_world *nccl, const struct rk_comm_group *group);
/* The first unfinished operation at the guard's last check; leaves `inout` unchanged when there is none. Any
 * thread. */
void rk_nccl_activity(struct rk_nccl_world *nccl, struct rk_comm_activity *inout);
/* Whether no operation was unfinished at the guard's last check. */
bool rk_nccl_pending_is_empty(struct rk_nccl_world *nccl);

#endif
