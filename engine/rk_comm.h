/* Collectives: endpoints, worlds, groups and operations, the same over every backend.
 *
 * A world is created once per Configure from one endpoint per rank; groups are rank lists in it. All ranks of
 * a group call the same operations in the same order. An asynchronous backend (NCCL) enqueues operations on
 * `stream`; they are complete when the stream is synchronised. The CPU backend completes them in the call.
 * rk_stream_sync returns the failure of an enqueued operation.
 *
 * Reductions are bit-identical on every rank, and in every run of the same ranks. The CPU backend reduces in
 * ascending rank order, bf16 and f16 in f32 and rounded once, and NaN propagates. NCCL does so for
 * RK_REDUCE_ORDERED_SUM and for a sum over two ranks; its other sums over f32, f64, bf16 and f16 have the
 * order of an algorithm chosen by size, bf16 and f16 are rounded after each addition, and a maximum or
 * minimum may drop a NaN.
 *
 * Any failure aborts the whole world: every later call on it returns the first error, which names the rank
 * where the failure began, the operation and the group: ABORTED, reason PEER_LOST (a process died),
 * COMM_ABORTED (requested by a caller) or COMM_DESYNC (ranks issued different operations); DEADLINE_EXCEEDED,
 * reason WATCHDOG (a peer did not arrive or went silent). On the other ranks the code is ABORTED, with the
 * same reason and the first rank's message. Engine thread only, except where said. */
#ifndef RK_COMM_H
#define RK_COMM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/layout/rk_mesh.h"
#include "base/rk_status.h"
#include "kernels/rk_device.h"
#include "kernels/rk_tensor.h"

RK_BEGIN_DECLS

#define RK_COMM_ID_BYTES 128

struct rk_comm_endpoint;
struct rk_comm_world;
struct rk_comm_group;
struct rk_comm_ops;
struct rk_tls; /* base/net/rk_tls.h */

typedef enum rk_reduce_op {
    RK_REDUCE_SUM,
    RK_REDUCE_MAX,
    RK_REDUCE_MIN,
    RK_REDUCE_ORDERED_SUM, /* F32, F64, BF16: added in ascending rank order by every backend */
    RK_REDUCE_OP_COUNT
} rk_reduce_op_t;

/* --- rendezvous, round 1: every rank opens its endpoint; one rank also creates the id --- */
struct rk_comm_endpoint_config {
    size_t struct_size;
    const char *backend; /* "cpu", "nccl" */
    /* Address to listen on ("127.0.0.1"), or "unix" for an abstract Unix socket. Also used with NCCL, whose
     * ranks are monitored over a CPU peer network. */
    const char *listen_host;
    bool make_id;
    /* TCP connections use TLS. Both sides need a certificate signed by an authority that the other trusts;
     * the listener's certificate must be for `listen_host`, the host that peers connect to. Must outlive the
     * endpoint and its world. NULL: no TLS. */
    struct rk_tls *tls;
};

struct rk_status *rk_comm_endpoint_open(struct rk_comm_endpoint **out,
                                        const struct rk_comm_endpoint_config *config) RK_NODISCARD;
void rk_comm_endpoint_close(struct rk_comm_endpoint *endpoint); /* NULL is a no-op */
const char *rk_comm_endpoint_address(
    const struct rk_comm_endpoint *endpoint); /* "" when the backend needs none */
/* The id that this endpoint created (a secret: send it in authenticated calls only); NULL when it created
 * none. */
const uint8_t *rk_comm_endpoint_id(const struct rk_comm_endpoint *endpoint);

/* --- round 2: all ranks join --- */
struct rk_comm_world_config {
    size_t struct_size;
    int32_t rank, world_size;
    uint64_t generation;           /* the driver's mesh_generation: endpoints of another generation are
                                    * rejected */
    const char *const *addresses;  /* [world_size] */
    const uint8_t *id;             /* RK_COMM_ID_BYTES, the same on all ranks */
    int64_t connect_timeout_ms;    /* 0: 120 s */
    int64_t progress_timeout_ms;   /* maximum silence within a transfer (NCCL: of a rank); 0: 5 s */
    int64_t collective_timeout_ms; /* maximum wait for a peer to arrive; 0: 600 s */
    /* Device of the tensors; must outlive the world. Required by collectives 'nccl': it is the current device
     * of this thread. */
    struct rk_device *device;
    /* May be NULL. Called repeatedly while ranks are missing: true aborts, with COMM_ABORTED. */
    bool (*should_stop)(void *user);
    void *user;
};

/* Takes ownership of the endpoint, on failure too. */
struct rk_status *rk_comm_world_create(struct rk_comm_world **out, struct rk_comm_endpoint *endpoint,
                                       const struct rk_comm_world_config *config) RK_NODISCARD;
/* Rank `rank` of a world without its other ranks, for dry runs: operations send nothing and do not write to
 * tensors. Destroy like any other world. */
struct rk_comm_world *rk_comm_world_create_dry(int32_t rank, int32_t world_size);
/* Announces the leave to the peers unless aborted. Groups must have been destroyed. NULL is a no-op. */
void rk_comm_world_destroy(struct rk_comm_world *world);
int32_t rk_comm_world_rank(const struct rk_comm_world *world);
int32_t rk_comm_world_size(const struct rk_comm_world *world);
/* From any thread: aborts running operations here and on the peers. The first reason is kept. */
void rk_comm_world_abort(struct rk_comm_world *world, const char *reason);
/* rk_comm_world_abort because this rank failed: it is blamed (rk_status_blamed_rank), here and on the peers.
 */
void rk_comm_world_give_up(struct rk_comm_world *world, const char *reason);
/* From any thread: NULL while healthy, else a copy of the first error. */
struct rk_status *rk_comm_world_check(struct rk_comm_world *world) RK_NODISCARD;

/* This rank's current collective operation; from any thread. With NCCL an operation lasts until its stream
 * has completed it, as observed every 20 ms, and the launch of a graph is one operation. */
#define RK_COMM_DOING_BYTES 96
struct rk_comm_activity {
    uint64_t seq;      /* operations begun on this world */
    bool in_operation; /* an operation has not completed; if several, the first one */
    /* rk_time_now_ns when it began or became the first; otherwise when the last one began */
    int64_t started_ns;
    /* Description of the operation, "" before the first: "all_reduce #2 of group dp", "graph of all_reduce #3
     * to broadcast #9 of group tp" */
    char name[RK_COMM_DOING_BYTES];
};
void rk_comm_world_activity(const struct rk_comm_world *world, struct rk_comm_activity *out);

/* Totals of this rank's collectives, one row per operation ("all_reduce"); from any thread. The row "graph"
 * counts launches of recorded operations. */
#define RK_COMM_STATS_ROWS 10
struct rk_comm_stats {
    bool has_times; /* false: calls return before the operation completes, so `ns` is not meaningful */
    struct {
        const char *name; /* static */
        uint64_t count;
        uint64_t bytes; /* of this rank's tensors: sent and received ones of a batch; 0 for graphs */
        int64_t ns;     /* duration of the calls: waiting for peers, and the transfer */
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
int32_t rk_comm_group_rank(const struct rk_comm_group *group); /* this rank's index in the member list */
int32_t rk_comm_group_size(const struct rk_comm_group *group); /* 1 for NULL */
bool rk_comm_group_is_dry(const struct rk_comm_group *group);  /* of rk_comm_world_create_dry */

/* --- operations. Tensors are contiguous; dtypes F32, F64, BF16, F16, I32, I64, U8. A NULL group is a group
 * of one. --- */
struct rk_status *rk_comm_all_reduce(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t inout,
                                     rk_reduce_op_t op) RK_NODISCARD;
/* out holds size * elements(in), in rank order; in may be its own part of out. */
struct rk_status *rk_comm_all_gather(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t out,
                                     rk_tensor_t in) RK_NODISCARD;
/* in holds size * elements(out); rank i receives the reduced part i; out may be this rank's part of in. */
struct rk_status *rk_comm_reduce_scatter(struct rk_comm_group *group, struct rk_stream *stream,
                                         rk_tensor_t out, rk_tensor_t in, rk_reduce_op_t op) RK_NODISCARD;
struct rk_status *rk_comm_broadcast(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t inout,
                                    int32_t root) RK_NODISCARD;
/* Rows of dimension 0: send_rows[i] rows go to rank i, recv_rows[i] rows come from it, both in rank order. */
struct rk_status *rk_comm_all_to_all(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t out,
                                     const int64_t *recv_rows, rk_tensor_t in,
                                     const int64_t *send_rows) RK_NODISCARD;
/* Point to point. Between begin and end of a batch (rk_comm_batch_begin/end, as NCCL's group calls) sends and
 * receives are collected; they run together, so they cannot deadlock in any order. */
struct rk_status *rk_comm_send(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t tensor,
                               int32_t peer) RK_NODISCARD;
struct rk_status *rk_comm_recv(struct rk_comm_group *group, struct rk_stream *stream, rk_tensor_t tensor,
                               int32_t peer) RK_NODISCARD;
struct rk_status *rk_comm_batch_begin(struct rk_comm_group *group) RK_NODISCARD;
struct rk_status *rk_comm_batch_end(struct rk_comm_group *group) RK_NODISCARD;
struct rk_status *rk_comm_barrier(struct rk_comm_group *group, struct rk_stream *stream) RK_NODISCARD;

/* Allocates the device memory that ordered sums over the group need; otherwise the first ordered sum
 * allocates it. RESOURCE_EXHAUSTED. Not collective. */
struct rk_status *rk_comm_reserve_ordered_sum(struct rk_comm_group *group) RK_NODISCARD;
/* Bytes that it would allocate: 0 once allocated, or if ordered sums need none. */
uint64_t rk_comm_ordered_sum_bytes(const struct rk_comm_group *group);

/* --- graphs (rk_device.h) that contain operations of a group. Between begin and end, work enqueued on the
 * stream is recorded, including operations of this group, but not of other groups, and no sends and receives.
 * A launch runs the operations in order, and peers cannot tell it from calling them, so each rank may record
 * and launch independently. (NCCL's multicast algorithms communicate while they are recorded: then all ranks
 * of the group must record the same operations together.) A failure names the first and the last operation. A
 * graph is destroyed with its group, even if a caller still holds it; it is then not current. A NULL group is
 * a group of one: the functions are those of rk_device.h. Engine thread only. --- */
struct rk_comm_graph;

/* False if the device has no graphs, or the backend cannot record operations. */
bool rk_comm_has_graphs(const struct rk_comm_group *group, const struct rk_device *device);
struct rk_status *rk_comm_graph_begin(struct rk_comm_group *group, struct rk_stream *stream) RK_NODISCARD;
/* Call it also after a failure in between: then *out is NULL and the recording is dropped. */
struct rk_status *rk_comm_graph_end(struct rk_comm_graph **out, struct rk_comm_group *group,
                                    struct rk_stream *stream) RK_NODISCARD;
struct rk_status *rk_comm_graph_launch(struct rk_comm_graph *graph) RK_NODISCARD;
/* False once it can no longer be launched. */
bool rk_comm_graph_is_current(const struct rk_comm_graph *graph);
/* The stream must have completed the last launch. NULL is a no-op. */
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

/* Immutable after creation; one per role. Kinds of group with the same ordered partition of the world share
 * one communicator (cached in the world, reference-counted). Passes and gradients run at the same time, so
 * their groups have separate communicators. */
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
