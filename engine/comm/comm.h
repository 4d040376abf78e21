/* Private to engine: the interface between the wrapper of the collectives (comm.c) and its backends.
 *
 * The wrapper implements what all backends share: argument checks, the first error of a world, the activity
 * record, group names and tags, collecting batches. A backend moves data. It reports a failure by returning
 * it or, from any thread, through rk_comm_world_fail(); both end the world. */
#ifndef RK_ENGINE_COMM_H
#define RK_ENGINE_COMM_H

#include <pthread.h>
#include <stdatomic.h>

#include "base/rk_array.h"
#include "engine/rk_comm.h"

#define RK_COMM_ABI 8

/* The backend supports tensors on other devices than the CPU. Without it the wrapper rejects such a world. */
#define RK_COMM_CAP_DEVICE_MEMORY (1u << 0)

#define RK_COMM_ADDRESS_BYTES 160 /* Fits "[ipv6 with scope]:port" and "unix:@name". */
#define RK_COMM_NAME_BYTES    32

/* Part of the frames of the CPU peer network. */
typedef enum rk_comm_op {
    RK_COMM_OP_ALL_REDUCE,
    RK_COMM_OP_ALL_GATHER,
    RK_COMM_OP_REDUCE_SCATTER,
    RK_COMM_OP_BROADCAST,
    RK_COMM_OP_ALL_TO_ALL,
    RK_COMM_OP_BARRIER,
    RK_COMM_OP_SEND,
    RK_COMM_OP_RECV,
    RK_COMM_OP_BATCH,
    RK_COMM_OP_GRAPH, /* launch of a graph: stands for the operations in it */
    RK_COMM_OP_COUNT
} rk_comm_op_t;

/* One send or receive of a batch. */
struct rk_comm_p2p {
    struct rk_stream *stream;
    rk_tensor_t tensor;
    int32_t peer; /* index in the group */
    bool is_send;
};

/* The operations in a graph. */
struct rk_comm_recorded {
    rk_comm_op_t first, last;
    uint64_t count;
};

/* An operation of a group. */
struct rk_comm_doing {
    rk_comm_op_t op;
    uint64_t seq; /* of the group; 0 for point to point; for a graph the first operation's */
    struct rk_comm_recorded recorded; /* of a graph */
};

struct rk_comm_graph {
    struct rk_comm_group *group; /* NULL: it has no operations, or the group is destroyed */
    struct rk_comm_graph *next;  /* of the group */
    struct rk_stream *stream;
    struct rk_graph *graph; /* NULL once the group is destroyed */
    struct rk_comm_recorded ops;
};

/* One world: a rank's membership in a set of connected ranks. */
struct rk_comm_world {
    /* fixed after create */
    const struct rk_comm_ops *ops;
    void *impl; /* the backend's */
    int32_t rank, size;

    /* engine thread only */
    bool is_lost; /* set by the backend: one of its threads does not end and may use the world at any time */
    uint32_t next_tag;
    struct rk_comm_group *groups;  /* newest first */
    struct rk_comm_shared *shared; /* comm_share.c */

    /* any thread */
    atomic_bool has_failed;
    pthread_mutex_t error_lock;    /* guards error until it is set; error never changes after */
    struct rk_status *error;       /* the first one */
    pthread_mutex_t activity_lock; /* guards the fields below; held for a few instructions only */
    uint64_t activity_seq;
    bool in_operation;
    int64_t started_ns;
    struct rk_comm_doing doing;
    char doing_group[RK_COMM_NAME_BYTES];
    uint64_t op_counts[RK_COMM_OP_COUNT], op_bytes[RK_COMM_OP_COUNT];
    size_t doing_bytes;
    int64_t op_ns[RK_COMM_OP_COUNT];

    /* engine thread only: flight record of the operation; its stream, if traced */
    uint64_t flight;
    struct rk_stream *traced;
};

/* One communicator. Engine thread only. */
struct rk_comm_group {
    struct rk_comm_world *world;
    struct rk_comm_group *next;
    void *impl; /* the backend's */
    char name[RK_COMM_NAME_BYTES];
    uint32_t tag;          /* equal on all ranks of the world: index of the group_create call */
    uint64_t flight_group; /* rk_flight_group */
    uint64_t seq;          /* collectives begun; equal on all members */
    int32_t rank, size;    /* this rank's index, number of members */
    int32_t *world_ranks;  /* [size] */
    bool in_batch;
    RK_ARRAY(struct rk_comm_p2p) batch;
    struct rk_stream *recording;      /* operations given now are recorded into its graph; NULL: they run */
    struct rk_comm_recorded recorded; /* so far */
    struct rk_comm_graph *graphs;     /* newest first */
};

/* One collective backend. All ranks of a group call the same entry in the same order. Arguments have been
 * checked: groups have at least two members, tensors are contiguous, of equal dtype and of fitting, non-zero
 * size (all_to_all: possibly zero). Entries enqueue on `stream` and return before completion where the
 * backend is asynchronous. */
struct rk_comm_ops {
    const char *name; /* "cpu", "nccl" */
    uint32_t abi;     /* RK_COMM_ABI */
    uint32_t caps;    /* RK_COMM_CAP_* */

    /* required. Writes the address that peers need to reach this endpoint; leaves it unchanged when they need
     * none. */
    struct rk_status *(*endpoint_open)(void **out, const struct rk_comm_endpoint_config *config,
                                       char address[RK_COMM_ADDRESS_BYTES]);
    void (*endpoint_close)(void *endpoint);                     /* required */
    struct rk_status *(*make_id)(uint8_t id[RK_COMM_ID_BYTES]); /* required */

    /* required. Sets world->impl; takes the endpoint, on failure too. Timeouts in config are filled in. */
    struct rk_status *(*world_create)(struct rk_comm_world *world, void *endpoint,
                                      const struct rk_comm_world_config *config);
    void (*world_destroy)(struct rk_comm_world *world); /* required */
    /* required; any thread, at most once: aborts the operations here and tells the peers */
    void (*world_abort)(struct rk_comm_world *world, const struct rk_status *error);
    /* optional; any thread: looks for failures and reports them through rk_comm_world_fail(). NULL means that
     * only operations find them. */
    void (*world_poll)(struct rk_comm_world *world);

    /* optional; any thread: replaces the engine thread's activity in `inout` by the first operation that a
     * stream has not finished; leaves it unchanged when there is none. NULL means that calls return when they
     * are complete. */
    void (*world_activity)(const struct rk_comm_world *world, struct rk_comm_activity *inout);

    struct rk_status *(*group_create)(
        struct rk_comm_group *group); /* optional: NULL means nothing to set up */
    /* optional; called instead of group_create on ranks outside of all groups of the partition. NULL means
     * that group_create does not need them. */
    struct rk_status *(*group_skip)(struct rk_comm_world *world);
    void (*group_destroy)(struct rk_comm_group *group); /* optional: NULL means nothing to release */
    struct rk_status *(*reserve_ordered_sum)(
        struct rk_comm_group *group); /* optional: NULL means that ordered sums take no memory */
    /* Bytes that the entry above would allocate now. Optional together with it. */
    size_t (*ordered_sum_bytes)(const struct rk_comm_group *group);

    /* required */
    struct rk_status *(*all_reduce)(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t inout,
                                    rk_reduce_op_t op);
    struct rk_status *(*all_gather)(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t out,
                                    rk_tensor_t in);
    struct rk_status *(*reduce_scatter)(struct rk_comm_group *group, struct rk_stream *stream,
                                        rk_tensor_t out, rk_tensor_t in, rk_reduce_op_t op);
    struct rk_status *(*broadcast)(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t inout,
                                   int32_t root);
    struct rk_status *(*all_to_all)(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t out,
                                    const int64_t *recv_rows, rk_tensor_t in, const int64_t *send_rows);
    /* Runs all operations of the list together: no order of the list may deadlock. */
    struct rk_status *(*batch)(struct rk_comm_group *group, const struct rk_comm_p2p *list, int64_t count);
    struct rk_status *(*barrier)(struct rk_comm_group *group, struct rk_stream *stream);
    /* optional; NULL means that operations cannot be recorded. Launches the graph on its stream; its
     * operations are numbered from `first_seq` on. */
    struct rk_status *(*graph_launch)(const struct rk_comm_graph *graph, uint64_t first_seq);
};

extern const struct rk_comm_ops rk_comm_cpu_ops;

/* --- dry runs (comm_dry.c, comm_world.c) --- */
extern const struct rk_comm_ops rk_comm_dry_ops;

/* Functions that backends call, in plug-ins too. */
RK_BEGIN_DECLS

const char *rk_comm_op_name(rk_comm_op_t op); /* "all_reduce" */
/* Whether it is point to point: such operations have no sequence number. */
bool rk_comm_op_is_p2p(rk_comm_op_t op);
/* Describes the operation as in struct rk_comm_activity. Writes to buf, returns it. */
const char *rk_comm_doing_text(const struct rk_comm_doing *doing, const char *group_name,
                               char buf[RK_COMM_DOING_BYTES]);
/* Ends the world with `error` (taken) unless it has failed before. Any thread. */
void rk_comm_world_fail(struct rk_comm_world *world, struct rk_status *error);
/* A copy of the first error; NULL while healthy. Any thread. */
struct rk_status *rk_comm_world_error(struct rk_comm_world *world) RK_NODISCARD;

/* --- a world of the CPU peer network that monitors the ranks of another backend (comm_cpu_control.c). Any
 * thread. --- */

/* Sends a heartbeat to all peers with the current operation ("" for none, cut to RK_COMM_DOING_BYTES). */
void rk_comm_control_heartbeat(struct rk_comm_world *control, const char *doing);
/* The operation in the last heartbeat of that rank. Writes to buf, returns it. */
const char *rk_comm_control_doing(struct rk_comm_world *control, int32_t rank, char buf[RK_COMM_DOING_BYTES]);
/* Time of that rank's last heartbeat; 0 before the first. */
int64_t rk_comm_control_seen_ns(const struct rk_comm_world *control, int32_t rank);
/* Sends the leave message to all peers. */
void rk_comm_control_leave(struct rk_comm_world *control);
/* Whether that rank has sent the leave message. */
bool rk_comm_control_has_left(const struct rk_comm_world *control, int32_t rank);

RK_END_DECLS

/* --- an operation of the wrapper (comm.c). After a successful begin, end must follow; it takes `st` and ends
 * the world if `st` is a failure. --- */
struct rk_status *rk_comm_op_begin(struct rk_comm_group *group, struct rk_stream *stream, rk_comm_op_t op,
                                   size_t bytes) RK_NODISCARD;
/* rk_comm_op_begin for the launch of a graph; it advances the number by all operations in the graph. */
struct rk_status *rk_comm_op_begin_graph(struct rk_comm_group *group,
                                         struct rk_comm_recorded recorded) RK_NODISCARD;
struct rk_status *rk_comm_op_end(struct rk_comm_group *group, struct rk_status *st) RK_NODISCARD;
/* Call between begin and end: the fault-injection point of the operation. */
struct rk_status *rk_comm_op_fault(const struct rk_comm_group *group, rk_comm_op_t op) RK_NODISCARD;
/* Destroys the graphs that a group has recorded (comm_graph.c). */
void rk_comm_graphs_drop(struct rk_comm_group *group);

/* The backend of that name; NOT_FOUND lists the known ones. */
struct rk_status *rk_comm_find_backend(const struct rk_comm_ops **out, const char *name) RK_NODISCARD;
/* This rank's name of the group with that tag, for messages, or "#TAG". Writes to buf, returns it. */
const char *rk_comm_world_group_name(const struct rk_comm_world *world, uint32_t tag,
                                     char buf[RK_COMM_NAME_BYTES]);

/* --- reference-counted communicators that several meshes share (comm_share.c) --- */

/* A partition of the world: colors[r] is the group of world rank r (-1: none), indices[r] its index there.
 */
struct rk_comm_partition {
    const int32_t *colors, *indices; /* [world size] */
};

/* Operations on streams that run at the same time must not be on one communicator: they would wait for each
 * other, or be mixed up. */
typedef enum rk_comm_use {
    RK_COMM_USE_APART,     /* while nothing else runs: any communicator will do */
    RK_COMM_USE_PASSES,    /* within passes */
    RK_COMM_USE_GRADIENTS, /* sums of gradients, beside the backward pass */
} rk_comm_use_t;

/* Collective like rk_comm_group_create, but returns an existing communicator of an equal partition unless the
 * uses of the two run at the same time. All ranks pass the whole partition, so all of them decide alike.
 * Release it after use; its group is NULL on ranks outside all groups. */
struct rk_status *rk_comm_shared_acquire(struct rk_comm_shared **out, struct rk_comm_world *world,
                                         const char *name, struct rk_comm_partition partition,
                                         rk_comm_use_t use) RK_NODISCARD;
void rk_comm_shared_release(struct rk_comm_shared *shared); /* NULL is a no-op */
struct rk_comm_group *rk_comm_shared_group(const struct rk_comm_shared *shared);

#endif
