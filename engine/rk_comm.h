/* Collectives: endpoints, worlds, groups and operations, the same over every backend.
 *
 * A world is made once per Configure from one endpoint a rank; groups are rank lists on it. All ranks of a
 * group call the same operations in the same order. Operations enqueue on `stream` where the backend is
 * asynchronous (NCCL) and are complete when the stream is synchronised; the CPU net completes them in the
 * call. A failure of an operation on the way comes out of rk_stream_sync.
 *
 * Reductions have the same bits on every rank, and in every run of the same ranks. The CPU net reduces in
 * ascending rank order, bf16 and f16 in f32 and rounded once, and a NaN wins. NCCL does so for
 * RK_REDUCE_ORDERED_SUM and for a sum over two ranks; its other sums over f32, f64, bf16 and f16 take the
 * order of an algorithm that it chooses by size, round bf16 and f16 after each addition, and a maximum or
 * minimum may drop a NaN.
 *
 * Any failure aborts the whole world: every later call on it returns the first error, which names the rank
 * where the failure began, the operation and the group: ABORTED, reason PEER_LOST (a process died),
 * COMM_ABORTED (requested by a caller) or COMM_DESYNC (ranks issued different operations); DEADLINE_EXCEEDED,
 * reason WATCHDOG (a peer did not arrive or went silent). On ranks that are informed of it the code is
 * ABORTED, with the same reason and the first rank's message. Engine thread only, except where said. */
#ifndef RK_COMM_H
#define RK_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rk_mesh.h"
#include "base/rk_status.h"
#include "kernels/rk_device.h"
#include "kernels/rk_tensor.h"

RK_BEGIN_DECLS

#define RK_COMM_ID_BYTES 128

struct rk_comm_endpoint;
struct rk_comm_world;
struct rk_comm_group;
struct rk_comm_ops;
struct rk_tls; /* base/rk_tls.h */

typedef enum rk_reduce_op {
    RK_REDUCE_SUM,
    RK_REDUCE_MAX,
    RK_REDUCE_MIN,
    RK_REDUCE_ORDERED_SUM, /* F32, F64, BF16: in ascending rank order over every backend */
    RK_REDUCE_OP_COUNT
} rk_reduce_op_t;

/* --- rendezvous, round 1: the rank opens its endpoint; one rank also makes the id --- */
struct rk_comm_endpoint_config {
    size_t struct_size;
    const char *backend; /* "cpu", "nccl" */
    /* Address to listen on ("127.0.0.1"), or "unix" for an abstract Unix socket. NCCL too: a net of ours
     * watches over its ranks. */
    const char *listen_host;
    bool make_id;
    /* Connections over TCP are TLS, and both sides must have a certificate that the other's authorities have
     * signed; that of who listens must be for `listen_host`, under which the others then connect. Must
     * outlive the endpoint and its world. NULL: plain. */
    struct rk_tls *tls;
};

struct rk_status *rk_comm_endpoint_open(struct rk_comm_endpoint **out,
                                        const struct rk_comm_endpoint_config *config) RK_NODISCARD;
void rk_comm_endpoint_close(struct rk_comm_endpoint *endpoint); /* NULL is a no-op */
const char *rk_comm_endpoint_address(
    const struct rk_comm_endpoint *endpoint); /* "" when the backend needs none */
/* The id this endpoint made (a secret: it travels in authenticated calls only); NULL when it made none. */
const uint8_t *rk_comm_endpoint_id(const struct rk_comm_endpoint *endpoint);

/* --- round 2: all ranks join --- */
struct rk_comm_world_config {
    size_t struct_size;
    int32_t rank, world_size;
    uint64_t generation;           /* the driver's mesh_generation: an endpoint of another one is refused */
    const char *const *addresses;  /* [world_size] */
    const uint8_t *id;             /* RK_COMM_ID_BYTES, the same on all ranks */
    int64_t connect_timeout_ms;    /* 0: 120 s */
    int64_t progress_timeout_ms;   /* silence inside a begun transfer (NCCL: of a rank); 0: 5 s */
    int64_t collective_timeout_ms; /* waiting for a peer to arrive; 0: 600 s */
    /* Where the tensors live; must outlive the world. Collectives 'nccl' need it: it is the current device of
     * this thread. */
    struct rk_device *device;
    /* NULL, or asked now and then while the ranks are not all there: true gives up, with COMM_ABORTED. */
    bool (*should_stop)(void *user);
    void *user;
};

/* Takes the endpoint, on failure too. */
struct rk_status *rk_comm_world_create(struct rk_comm_world **out, struct rk_comm_endpoint *endpoint,
                                       const struct rk_comm_world_config *config) RK_NODISCARD;
/* Rank `rank` of a world whose other ranks do not exist, for dry runs: operations send nothing and leave
 * their tensors as they are. Destroy as any other. */
struct rk_comm_world *rk_comm_world_create_dry(int32_t rank, int32_t world_size);
/* Says goodbye to the peers unless aborted. Groups must have been destroyed. NULL is a no-op. */
void rk_comm_world_destroy(struct rk_comm_world *world);
int32_t rk_comm_world_rank(const struct rk_comm_world *world);
int32_t rk_comm_world_size(const struct rk_comm_world *world);
/* From any thread: ends what runs, here and (through the closing connections) on the peers. The first reason
 * wins. */
void rk_comm_world_abort(struct rk_comm_world *world, const char *reason);
/* The same because this rank failed: it is to blame (rk_status_blamed_rank), here and on the peers. */
void rk_comm_world_give_up(struct rk_comm_world *world, const char *reason);
/* From any thread: NULL while healthy, else a copy of the first error. */
struct rk_status *rk_comm_world_check(struct rk_comm_world *world) RK_NODISCARD;

/* What this rank is doing in collectives right now; from any thread. Over NCCL an operation lasts until its
 * stream has passed it, as far as was seen 20 ms ago, and a graph that was launched is one operation. */
#define RK_COMM_DOING_BYTES 96
struct rk_comm_activity {
    uint64_t seq;      /* operations begun on this world */
    bool in_operation; /* one has not ended; of several, the others wait behind it */
    /* rk_time_now_ns when it began, or came to be the first of those; else when the last one began */
    int64_t started_ns;
    /* The same in words, "" before the first: "all_reduce #2 of group dp", "graph of all_reduce #3 to
     * broadcast #9 of group tp" */
    char name[RK_COMM_DOING_BYTES];
};
void rk_comm_world_activity(const struct rk_comm_world *world, struct rk_comm_activity *out);

/* What this rank has done in collectives so far, one row an operation ("all_reduce"); from any thread. A row
 * of "graph" stands for launches of recorded operations. */
#define RK_COMM_STATS_ROWS 10
struct rk_comm_stats {
    bool has_times; /* false: calls return before the operation is done, so `ns` tells nothing */
    struct {
        const char *name; /* static */
        uint64_t count;
        int64_t ns; /* from the call to its end: waiting for peers, and the transfer */
    } rows[RK_COMM_STATS_ROWS];
};
void rk_comm_world_stats(const struct rk_comm_world *world, struct rk_comm_stats *out);

/* --- groups. Collective over the world: every rank calls, in the same order, with its own member list of the
 * same partition (num_ranks 0 when it is in no group). *out is NULL for num_ranks 0. `name` is for messages
 * ("tp"). --- */
struct rk_status *rk_comm_group_create(struct rk_comm_group **out, struct rk_comm_world *world,
                                       const char *name, const int32_t *world_ranks,
                                       int32_t num_ranks) RK_NODISCARD;
void rk_comm_group_destroy(struct rk_comm_group *group);       /* NULL is a no-op */
int32_t rk_comm_group_rank(const struct rk_comm_group *group); /* my index in the member list */
int32_t rk_comm_group_size(const struct rk_comm_group *group); /* 1 for NULL: "alone" */
bool rk_comm_group_is_dry(const struct rk_comm_group *group);  /* of rk_comm_world_create_dry */

/* --- operations. Tensors are contiguous; dtypes F32, F64, BF16, F16, I32, I64, U8. A NULL group is a group
 * of one. --- */
struct rk_status *rk_comm_all_reduce(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t inout,
                                     rk_reduce_op_t op) RK_NODISCARD;
/* out holds size * elements(in), in rank order; in may be its own part of out. */
struct rk_status *rk_comm_all_gather(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t out,
                                     rk_tensor_t in) RK_NODISCARD;
/* in holds size * elements(out); rank i receives the reduced part i; out may be that part of in. */
struct rk_status *rk_comm_reduce_scatter(struct rk_comm_group *group, struct rk_stream *stream,
                                         rk_tensor_t out, rk_tensor_t in, rk_reduce_op_t op) RK_NODISCARD;
struct rk_status *rk_comm_broadcast(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t inout,
                                    int32_t root) RK_NODISCARD;
/* Rows of dimension 0: send_rows[i] rows go to rank i, recv_rows[i] rows come from it, both in rank order. */
struct rk_status *rk_comm_all_to_all(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t out,
                                     const int64_t *recv_rows, rk_tensor_t in,
                                     const int64_t *send_rows) RK_NODISCARD;
/* Point to point. Between begin and end of a batch (rk_comm_batch_begin/end, group semantics of NCCL) sends
 * and receives are collected and progress together, so that no order of them can deadlock. */
struct rk_status *rk_comm_send(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t tensor,
                               int32_t peer) RK_NODISCARD;
struct rk_status *rk_comm_recv(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t tensor,
                               int32_t peer) RK_NODISCARD;
struct rk_status *rk_comm_batch_begin(struct rk_comm_group *group) RK_NODISCARD;
struct rk_status *rk_comm_batch_end(struct rk_comm_group *group) RK_NODISCARD;
struct rk_status *rk_comm_barrier(struct rk_comm_group *group, struct rk_stream *stream) RK_NODISCARD;

/* Takes now the device memory that ordered sums over the group need, which the first of them would take
 * otherwise: RESOURCE_EXHAUSTED. Not collective. */
struct rk_status *rk_comm_reserve_ordered_sum(struct rk_comm_group *group) RK_NODISCARD;
/* What that would take: 0 once it has, and where ordered sums need none. */
uint64_t rk_comm_ordered_sum_bytes(const struct rk_comm_group *group);

/* --- graphs (rk_device.h) that hold operations of a group. Between begin and end what the stream is given is
 * recorded, operations of this group too, but of no other and no sends and receives. A launch repeats them in
 * their order: to the peers it is the same as if they were called again, so ranks record and launch when they
 * like. (NCCL's multicast algorithms talk to the peers while they are recorded: then all ranks of the group
 * have to record the same together.) A failure names the first and the last of them. A graph ends with its
 * group, also if a caller still holds it; an ended graph is not current. A NULL group is a group of one: the
 * functions are those of rk_device.h. Engine thread only. --- */
struct rk_comm_graph;

/* False where the device has no graphs, or the backend's operations cannot be in one. */
bool rk_comm_has_graphs(const struct rk_comm_group *group, const struct rk_device *device);
struct rk_status *rk_comm_graph_begin(struct rk_comm_group *group, struct rk_stream *stream) RK_NODISCARD;
/* Also after a failure in between: then `out` is NULL and what was recorded is dropped. */
struct rk_status *rk_comm_graph_end(struct rk_comm_graph **out, struct rk_comm_group *group,
                                    struct rk_stream *stream) RK_NODISCARD;
struct rk_status *rk_comm_graph_launch(struct rk_comm_graph *graph) RK_NODISCARD;
/* False once it cannot be launched any more. */
bool rk_comm_graph_is_current(const struct rk_comm_graph *graph);
/* The stream must have passed the last launch. NULL is a no-op. */
void rk_comm_graph_destroy(struct rk_comm_graph *graph);

/* --- the communicators of a mesh --- */
typedef enum rk_mesh_group_kind {
    RK_GROUP_TP,
    RK_GROUP_CP,
    RK_GROUP_DP,
    RK_GROUP_DP_CP, /* gradients of dense parameters */
    RK_GROUP_PP,
    RK_GROUP_MP, /* tp, pp: one model replica */
    RK_GROUP_TP_CP,
    RK_GROUP_ALL, /* the whole mesh */
    RK_GROUP_EP,
    RK_GROUP_ETP,
    RK_GROUP_TP_EP, /* etp, ep */
    RK_GROUP_EDP,   /* gradients of expert parameters */
    RK_GROUP_KIND_COUNT
} rk_mesh_group_kind_t;

/* Immutable after creation; one per role. Kinds of group that cut the world into the same ordered groups
 * share one communicator (cached in the world, counted). */
struct rk_mesh_comms;

/* Collective over the world, also for ranks outside the mesh (they get an object without groups). Borrows
 * `mesh`. */
struct rk_status *rk_mesh_comms_create(struct rk_mesh_comms **out, const struct rk_mesh *mesh,
                                       struct rk_comm_world *world) RK_NODISCARD;
void rk_mesh_comms_destroy(struct rk_mesh_comms *comms); /* NULL is a no-op */
const struct rk_mesh *rk_mesh_comms_mesh(const struct rk_mesh_comms *comms);
/* This rank's coordinates; axis entries are -1 when it is not in the mesh. */
const struct rk_mesh_coords *rk_mesh_comms_coords(const struct rk_mesh_comms *comms);
bool rk_mesh_comms_is_member(const struct rk_mesh_comms *comms);
/* NULL for a group of one. */
struct rk_comm_group *rk_mesh_comms_group(const struct rk_mesh_comms *comms, rk_mesh_group_kind_t kind);
/* World ranks of this rank's group, in order, to out [ranks of the mesh]; returns their number, 0 outside the
 * mesh. */
int32_t rk_mesh_comms_group_ranks(const struct rk_mesh_comms *comms, rk_mesh_group_kind_t kind, int32_t *out);
const char *rk_mesh_group_kind_name(rk_mesh_group_kind_t kind);
/* A mesh of this one rank, without any communicator (tools, tests, one-rank runs). */
struct rk_status *rk_mesh_comms_create_single(struct rk_mesh_comms **out) RK_NODISCARD;

/* Adds a backend (plug-in). FAILED_PRECONDITION when the abi differs. */
struct rk_status *rk_comm_register(const struct rk_comm_ops *ops) RK_NODISCARD;

RK_END_DECLS

#endif
