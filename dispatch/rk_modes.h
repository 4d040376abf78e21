/* Dispatch modes: the part of the arguments that each rank receives, and the ranks whose results are
 * collected.
 *
 * One mechanism: a chunk index per rank and a collect mask, both computed from a mesh. The named modes are
 * rows over it. Payload kinds: VALUE (the same for all ranks), ITEMS (a list with one entry per chunk), PROTO
 * (one batch, cut into equal chunks, results concatenated in row order) and METRIC (cut like PROTO, one
 * result per rank). Names and semantics: verl's single_controller decorators; tables in docs/dispatch.md. */
#ifndef RK_MODES_H
#define RK_MODES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/layout/rk_mesh.h"
#include "base/rk_status.h"
#include "dispatch/rk_batch.h"

RK_BEGIN_DECLS

struct rk_method;

typedef enum rk_payload_kind {
    RK_PAYLOAD_VALUE,
    RK_PAYLOAD_ITEMS,
    RK_PAYLOAD_PROTO,
    RK_PAYLOAD_METRIC
} rk_payload_kind_t;

/* A mode applied to a mesh. */
struct rk_dispatch {
    const char *mode; /* static name */
    rk_payload_kind_t payload;
    bool pads; /* a batch that does not divide is padded (and the result trimmed) */
    int32_t world_size;
    int32_t num_chunks;
    int32_t *chunk_of_rank; /* [world_size]; -1: this rank is not addressed */
    bool *collects;         /* [world_size] */
    int32_t num_collected;
    int32_t *collected; /* ranks in the order of their item, i.e. of the rows of the result */
};

/* NOT_FOUND lists the known modes. INVALID_ARGUMENT when some chunk has no receiver, or not
 * exactly one collected rank (PROTO). */
struct rk_status *rk_dispatch_create(struct rk_dispatch **out, const char *mode,
                                     const struct rk_mesh *mesh) RK_NODISCARD;
/* A VALUE mode that sends the same to all ranks and collects from all (ONE_TO_ALL), over several meshes of
 * one world: every rank that belongs to at least one of them is addressed exactly once. All modes are allowed
 * over one mesh. INVALID_ARGUMENT for other modes over several meshes, since their chunks belong to the
 * coordinates of one mesh, and for meshes of different worlds. */
struct rk_status *rk_dispatch_create_union(struct rk_dispatch **out, const char *mode,
                                           const struct rk_mesh *const *meshes,
                                           int32_t num_meshes) RK_NODISCARD;
/* The dispatch of a method that is called on a role, over the meshes that its row names (dispatch_mesh).
 * `find` gives the mesh of a role, NULL for a role without one: that is FAILED_PRECONDITION (NOT_CONFIGURED)
 * naming the role. */
struct rk_status *rk_dispatch_create_method(struct rk_dispatch **out, const struct rk_method *method,
                                            const char *role,
                                            const struct rk_mesh *(*find)(const void *user, const char *role),
                                            const void *user) RK_NODISCARD;
void rk_dispatch_destroy(struct rk_dispatch *dispatch); /* NULL is a no-op */
/* Names of all modes, NULL-terminated. */
const char *const *rk_dispatch_mode_names(void);

/* The arguments of every rank. Rank r receives chunks[chunk_of_rank[r]]; equal chunks are one object, to be
 * encoded once. */
struct rk_scatter {
    int32_t num_chunks;
    struct rk_batch **chunks;
    int64_t num_padded; /* added rows, to be dropped from the result */
};

/* PROTO, METRIC: cuts the batch. VALUE: every chunk is one object that shares the batch. */
struct rk_status *rk_scatter_batch(struct rk_scatter **out, const struct rk_dispatch *dispatch,
                                   const struct rk_batch *batch) RK_NODISCARD;
/* ITEMS, and VALUE with one item a rank (ALL_TO_ALL told to split): exactly num_chunks items. */
struct rk_status *rk_scatter_items(struct rk_scatter **out, const struct rk_dispatch *dispatch,
                                   const struct rk_batch *const *items, int64_t num_items) RK_NODISCARD;
void rk_scatter_destroy(struct rk_scatter *scatter); /* NULL is a no-op */

/* PROTO: outputs[r] of the collected ranks concatenated in row order, padding dropped. INVALID_ARGUMENT names
 * the rank whose output is missing. */
struct rk_status *rk_gather_batch(struct rk_batch **out, const struct rk_dispatch *dispatch,
                                  struct rk_batch *const *outputs, int64_t num_padded) RK_NODISCARD;

RK_END_DECLS

#endif
