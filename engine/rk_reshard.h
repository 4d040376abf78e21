/* Resharding: copies the weights of a model laid out over one mesh to the same model laid out over another
 * mesh (the actor's weights to the rollout's layout, docs/resharding.md).
 *
 * The plan is a pure function of the parameter tables and meshes of both sides (rk_param.h). Every rank of
 * the world can compute it, also a rank that is in only one of the meshes, or in none. Hybrid placement:
 * Sheng et al., "HybridFlow", arXiv:2409.19256, section 5. */
#ifndef RK_RESHARD_H
#define RK_RESHARD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/layout/rk_mesh.h"
#include "base/rk_status.h"
#include "engine/rk_param.h"

RK_BEGIN_DECLS

/* One layout of the model. `params` are the global rows of the table, the same on all ranks of the mesh. */
struct rk_reshard_side {
    const struct rk_mesh *mesh;
    const struct rk_param *params;
    int64_t num_params;
};

/* A move: the elements of a box of a tensor, from one rank to another, or within a rank from one model's
 * memory to the other's. */
struct rk_reshard_move {
    int64_t source_param, param; /* rows of the source's and the destination's table */
    struct rk_param_box box;     /* in the global tensor; never empty */
    int32_t source, destination; /* world ranks */
    int32_t round;               /* -1 if source and destination are the same rank */
};

/* Traffic of one rank. */
struct rk_reshard_traffic {
    uint64_t sent_bytes, received_bytes; /* to and from other ranks */
    uint64_t copied_bytes;               /* between its two models */
};

struct rk_reshard_desc {
    struct rk_reshard_side source, destination;
    int32_t rank;         /* in the world: the rank whose moves the plan lists */
    size_t elem_bytes;    /* bytes of an element as sent */
    int64_t bucket_bytes; /* maximum that a rank sends, and that it receives, in a round; at least one
                           * element */
};

/* The rank's part of a tensor on both sides. */
struct rk_reshard_part {
    int64_t source_param; /* row of the source's table */
    bool is_counted;      /* this rank is the counted one of the ranks that hold this part of the source */
    int32_t num_copies;   /* ranks that hold one part of the destination: equal for all parts */
    int32_t copy; /* index of this rank among the ranks that hold its part of the destination; -1: it holds
                   * none */
};

/* The moves of a rank. All ranks execute the rounds in order: in each round a rank sends and receives at most
 * a bucket. Read only. */
struct rk_reshard_plan {
    /* Moves in which the rank is source, destination, or both, by ascending round. The moves of a round from
     * one rank to another have the same order on both ranks. */
    struct rk_reshard_move *moves;
    int64_t num_moves;
    int32_t num_rounds;                     /* the same on all ranks */
    int64_t send_bytes_max, recv_bytes_max; /* maximum over the rounds and ranks: sizes of their buffers */
    struct rk_reshard_traffic mine;
    uint64_t moved_bytes; /* between ranks, in the whole plan */
    uint64_t hash;        /* of the whole plan: equal on all ranks exactly for equal layouts and tables */
    /* Parts of every row of the destination's table. */
    struct rk_reshard_part *parts; /* [num_parts] */
    int64_t num_parts;
    int32_t num_copies; /* maximum over the parts */
};

/* Every element of the destination is covered by exactly one move. An element that a rank holds on both sides
 * is copied from its own memory; other elements are sent by the copy whose rank has the least to send so far.
 * Moves are in the order of the destination's table, so the first layers arrive first.
 *
 * INVALID_ARGUMENT names the first tensor that one of the sides lacks, or that has another shape there. Free
 * with rk_reshard_plan_destroy. */
struct rk_status *rk_reshard_plan_create(struct rk_reshard_plan **out,
                                         const struct rk_reshard_desc *desc) RK_NODISCARD;
void rk_reshard_plan_destroy(struct rk_reshard_plan *plan); /* NULL is a no-op */

/* --- running it --- */

struct rk_comm_group;
struct rk_comm_world;
struct rk_engine_hooks;
struct rk_model;
struct rk_stream;

/* The communicator of all ranks of two meshes, and the ranks' coordinates. Immutable. */
struct rk_reshard_link;

/* Collective over the world, also for ranks outside of both meshes. Borrows the meshes. */
struct rk_status *rk_reshard_link_create(struct rk_reshard_link **out, struct rk_comm_world *world,
                                         const struct rk_mesh *source,
                                         const struct rk_mesh *destination) RK_NODISCARD;
void rk_reshard_link_destroy(struct rk_reshard_link *link); /* NULL is a no-op */
/* Whether this rank is in one of the meshes. */
bool rk_reshard_link_is_member(const struct rk_reshard_link *link);
/* NULL for a group of one, and outside. */
struct rk_comm_group *rk_reshard_link_group(const struct rk_reshard_link *link);

struct rk_reshard_args {
    size_t struct_size;
    const struct rk_reshard_link *link;
    struct rk_model *source, *destination; /* of this rank; NULL if it is not in that mesh */
    struct rk_stream *stream;              /* stream of the models */
    void *scratch;                         /* RK_AGREE_BYTES on the device */
    int64_t bucket_bytes;
    const struct rk_engine_hooks *hooks; /* may be NULL; the phase is "update_weights" */
};

struct rk_reshard_result {
    struct rk_reshard_traffic traffic; /* of this rank */
    int32_t num_rounds;
    uint64_t weight_version; /* of the source, and from now on of the destination */
    /* Valid after an error. */
    bool has_begun;         /* the destination may have tensors of both versions */
    bool is_known_to_peers; /* all ranks have the error: none waits for this one */
};

/* Collective over the link's group: the destination's parameters become the source's, rounded to nearest
 * where its dtype differs, and its weight version the source's. Then compares the sums of all elements'
 * fingerprints (rk_fingerprint) of every tensor: DATA_LOSS (reason FINGERPRINT) on all ranks names the first
 * tensor that differs, and the ranks. Waits for the stream. Uses the step arena of the destination, or of the
 * source on a rank without destination.
 *
 * CANCELLED only before anything was moved. INVALID_ARGUMENT if the models differ. */
struct rk_status *rk_reshard_run(struct rk_reshard_result *out,
                                 const struct rk_reshard_args *args) RK_NODISCARD;

RK_END_DECLS

#endif
