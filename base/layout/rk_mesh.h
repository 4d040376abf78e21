/* Mesh arithmetic: coordinates of ranks. Pure; engine/mesh creates communicators from it.
 *
 * A mesh lays the axes tp, cp, dp, pp over a list of world ranks; `order` names the axes, fastest first
 * ("tp-cp-ep-dp-pp" for training, "pp-tp-dp" for verl's rollout; an axis that is not named has size 1). With
 * stride s_a = product of the sizes of the faster axes:  index = sum_a coord_a * s_a,  world rank =
 * ranks[index]. Expert layers see the same ranks as a second grid (etp, ep, edp, pp), in which cp does not
 * exist: etp and ep take the places of tp and cp-dp, edp = size / (etp * ep * pp). Both grids have the same
 * pp groups. Source: Megatron-LM's rank generator; the tables are asserted in tests/unit/base/test_rk_mesh.c.
 */
#ifndef RK_MESH_H
#define RK_MESH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_status.h"

RK_BEGIN_DECLS

#define RK_MESH_ORDER_TRAIN   "tp-cp-ep-dp-pp"
#define RK_MESH_ORDER_ROLLOUT "pp-tp-dp"
/* Order of a mesh with whole experts on the tp ranks: ep is tp, and etp 1. */
#define RK_MESH_ORDER_ROLLOUT_EP "pp-tp-ep-dp"
#define RK_MESH_MAX_RANKS        4096

typedef enum rk_axis {
    RK_AXIS_TP,
    RK_AXIS_CP,
    RK_AXIS_DP,
    RK_AXIS_PP,
    RK_AXIS_ETP, /* expert grid */
    RK_AXIS_EP,  /* expert grid */
    RK_AXIS_EDP, /* expert grid; derived */
    RK_AXIS_COUNT
} rk_axis_t;

#define RK_AXIS_BIT(axis) (1u << (axis))

/* Plain description, as in messages. Sizes of 0 mean 1, except dp: 0 means the remaining factor, and etp: 0
 * means tp.
 */
struct rk_mesh_spec {
    int32_t tp, cp, ep, etp, dp, pp;
    char order[32];       /* empty means RK_MESH_ORDER_TRAIN */
    int32_t num_ranks;    /* 0: all ranks of the world, in order */
    const int32_t *ranks; /* world ranks in mesh order; borrowed */
};

struct rk_mesh_coords {
    int32_t axis[RK_AXIS_COUNT];
};

struct rk_mesh;

/* Validates and copies. INVALID_ARGUMENT names the sizes and the world size when they do not fit. */
struct rk_status *rk_mesh_create(struct rk_mesh **out, const struct rk_mesh_spec *spec,
                                 int32_t world_size) RK_NODISCARD;
void rk_mesh_destroy(struct rk_mesh *mesh); /* NULL is a no-op */
struct rk_status *rk_mesh_clone(struct rk_mesh **out, const struct rk_mesh *mesh) RK_NODISCARD;
bool rk_mesh_equal(const struct rk_mesh *a, const struct rk_mesh *b);
/* Whether every rank has the same part of a model in both, and the same groups over tp, pp,
 * ep and etp. Replicas may differ in use: cp in one may be dp in the other. */
bool rk_mesh_has_same_parts(const struct rk_mesh *a, const struct rk_mesh *b);
/* Whether every tp group is a group of ep too: the tp ranks of a replica have different experts, and together
 * all experts. */
bool rk_mesh_ep_is_tp(const struct rk_mesh *mesh);

/* The complete description, sizes filled in; `ranks` borrows from the mesh. */
struct rk_mesh_spec rk_mesh_get_spec(const struct rk_mesh *mesh);
int32_t rk_mesh_axis_size(const struct rk_mesh *mesh, rk_axis_t axis);
int32_t rk_mesh_num_ranks(const struct rk_mesh *mesh);
int32_t rk_mesh_world_size(const struct rk_mesh *mesh);
/* "tp=2 dp=2" (sizes of 1 left out; "single" when all are). Borrowed. */
const char *rk_mesh_text(const struct rk_mesh *mesh);

/* Coordinates of a world rank; false (all -1) when it is not in the mesh. */
bool rk_mesh_find_coords(const struct rk_mesh *mesh, int32_t world_rank, struct rk_mesh_coords *out);
/* World rank at dense coordinates (tp, cp, dp, pp of `coords`). */
int32_t rk_mesh_rank_at(const struct rk_mesh *mesh, const struct rk_mesh_coords *coords);
/* The group of `world_rank` over the axes of `axis_mask` (of one grid): all ranks that agree on every other
 * axis of that grid, ordered by the masked axes, fastest first. Writes the world ranks to `out` (room for
 * rk_mesh_num_ranks) and returns their number; 0 when the rank is not in the mesh. */
int32_t rk_mesh_group(const struct rk_mesh *mesh, uint32_t axis_mask, int32_t world_rank, int32_t *out);
/* The mesh's collector: tp 0, cp 0, and pp last (training order) or pp 0 (orders in which pp is fastest). */
bool rk_mesh_is_collector(const struct rk_mesh *mesh, int32_t world_rank);
const char *rk_axis_name(rk_axis_t axis);
#define RK_MESH_PLACE_BYTES 96
/* Coordinates of a rank as text: "tp 1 of 2, pp 0 of 4" (axes of size 1 left out). False, and "", for a rank
 * that is not in the mesh or the only one in it. */
bool rk_mesh_place_text(const struct rk_mesh *mesh, int32_t world_rank, char buf[RK_MESH_PLACE_BYTES]);

RK_END_DECLS

#endif
