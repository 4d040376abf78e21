/* Communicators of a mesh: one partition of the world per kind of group, computed by base/layout/rk_mesh.h,
 * created in the same order on all ranks. */
#include "base/layout/rk_mesh.h"

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "engine/comm/comm.h"
#include "engine/rk_comm.h"

struct group_row {
    const char *name;
    uint32_t axes; /* RK_AXIS_BIT of one grid */
    rk_comm_use_t use;
};

#define TP RK_AXIS_BIT(RK_AXIS_TP)
#define CP RK_AXIS_BIT(RK_AXIS_CP)
#define DP RK_AXIS_BIT(RK_AXIS_DP)
#define PP RK_AXIS_BIT(RK_AXIS_PP)

static const struct group_row group_rows[] = {
    [RK_GROUP_TP] = {"tp", TP, RK_COMM_USE_PASSES},
    [RK_GROUP_CP] = {"cp", CP, RK_COMM_USE_PASSES},
    [RK_GROUP_DP] = {"dp", DP, RK_COMM_USE_APART},
    [RK_GROUP_DP_CP] = {"dp_cp", DP | CP, RK_COMM_USE_GRADIENTS},
    [RK_GROUP_PP] = {"pp", PP, RK_COMM_USE_PASSES},
    [RK_GROUP_MP] = {"mp", TP | PP, RK_COMM_USE_APART},
    [RK_GROUP_TP_CP] = {"tp_cp", TP | CP, RK_COMM_USE_APART},
    [RK_GROUP_ALL] = {"all", TP | CP | DP | PP, RK_COMM_USE_APART},
    [RK_GROUP_EP] = {"ep", RK_AXIS_BIT(RK_AXIS_EP), RK_COMM_USE_PASSES},
    [RK_GROUP_ETP] = {"etp", RK_AXIS_BIT(RK_AXIS_ETP), RK_COMM_USE_PASSES},
    [RK_GROUP_TP_EP] = {"tp_ep", RK_AXIS_BIT(RK_AXIS_ETP) | RK_AXIS_BIT(RK_AXIS_EP), RK_COMM_USE_APART},
    [RK_GROUP_EDP] = {"edp", RK_AXIS_BIT(RK_AXIS_EDP), RK_COMM_USE_GRADIENTS},
};
_Static_assert(RK_ARRAY_LEN(group_rows) == RK_GROUP_KIND_COUNT, "one row per kind of group");

struct rk_mesh_comms {
    const struct rk_mesh *mesh;
    struct rk_mesh *own_mesh; /* the same, if this object owns it */
    struct rk_mesh_coords coords;
    int32_t world_rank;
    bool is_member;
    struct rk_comm_shared *shared[RK_GROUP_KIND_COUNT]; /* NULL for groups of one rank */
};

/* Ranks in a group of this kind; equal for all groups of a mesh. */
static int32_t group_size(const struct rk_mesh *mesh, uint32_t axes)
{
    int32_t size = 1;

    for (int axis = 0; axis < RK_AXIS_COUNT; axis++) {
        if (axes & RK_AXIS_BIT(axis))
            size *= rk_mesh_axis_size(mesh, (rk_axis_t)axis);
    }
    return size;
}

/* Every rank computes the groups of all ranks; the color of a group is its first member. */
static struct rk_status *acquire(struct rk_mesh_comms *comms, struct rk_comm_world *world,
                                 rk_mesh_group_kind_t kind)
{
    int32_t world_size = rk_comm_world_size(world);
    int32_t *colors = rk_calloc((size_t)world_size, sizeof(*colors));
    int32_t *indices = rk_calloc((size_t)world_size, sizeof(*indices));
    int32_t *members = rk_calloc((size_t)rk_mesh_num_ranks(comms->mesh), sizeof(*members));
    struct rk_status *st;

    for (int32_t r = 0; r < world_size; r++) {
        int32_t num_members = rk_mesh_group(comms->mesh, group_rows[kind].axes, r, members);

        colors[r] = num_members > 0 ? members[0] : -1;
        for (int32_t i = 0; i < num_members; i++)
            indices[members[i]] = i;
    }
    st = rk_comm_shared_acquire(&comms->shared[kind], world, group_rows[kind].name,
                                (struct rk_comm_partition){.colors = colors, .indices = indices},
                                group_rows[kind].use);
    rk_free(members);
    rk_free(indices);
    rk_free(colors);
    return st;
}

struct rk_status *rk_mesh_comms_create(struct rk_mesh_comms **out, const struct rk_mesh *mesh,
                                       struct rk_comm_world *world)
{
    struct rk_mesh_comms *comms;
    struct rk_status *st;

    RK_ASSERT(out);
    RK_ASSERT(mesh);
    RK_ASSERT(world);
    *out = NULL;
    if (rk_mesh_world_size(mesh) != rk_comm_world_size(world))
        return RK_FAIL(RK_INVALID_ARGUMENT, "mesh %s has %d ranks, expected %d, the size of the world",
                       rk_mesh_text(mesh), rk_mesh_world_size(mesh), rk_comm_world_size(world));
    comms = rk_calloc(1, sizeof(*comms));
    comms->mesh = mesh;
    comms->world_rank = rk_comm_world_rank(world);
    comms->is_member = rk_mesh_find_coords(mesh, rk_comm_world_rank(world), &comms->coords);
    for (int kind = 0; kind < RK_GROUP_KIND_COUNT; kind++) {
        if (group_size(mesh, group_rows[kind].axes) > 1)
            RK_TRY_GOTO(st, acquire(comms, world, (rk_mesh_group_kind_t)kind), out);
    }
    *out = comms;
    return NULL;

out:
    rk_mesh_comms_destroy(comms);
    return RK_WRAP(st, "communicators of mesh %s", rk_mesh_text(mesh));
}

struct rk_status *rk_mesh_comms_create_single(struct rk_mesh_comms **out)
{
    struct rk_mesh_spec spec = {0};
    struct rk_mesh *mesh;
    struct rk_mesh_comms *comms;

    *out = NULL;
    RK_TRY(rk_mesh_create(&mesh, &spec, 1));
    comms = rk_calloc(1, sizeof(*comms));
    comms->mesh = comms->own_mesh = mesh;
    comms->is_member = rk_mesh_find_coords(mesh, 0, &comms->coords);
    RK_ASSERT(comms->is_member);
    *out = comms;
    return NULL;
}

void rk_mesh_comms_destroy(struct rk_mesh_comms *comms)
{
    if (!comms)
        return;
    for (int kind = RK_GROUP_KIND_COUNT - 1; kind >= 0; kind--)
        rk_comm_shared_release(comms->shared[kind]);
    rk_mesh_destroy(comms->own_mesh);
    rk_free(comms);
}

const struct rk_mesh *rk_mesh_comms_mesh(const struct rk_mesh_comms *comms)
{
    return comms->mesh;
}

const struct rk_mesh_coords *rk_mesh_comms_coords(const struct rk_mesh_comms *comms)
{
    return &comms->coords;
}

bool rk_mesh_comms_is_member(const struct rk_mesh_comms *comms)
{
    return comms->is_member;
}

struct rk_comm_group *rk_mesh_comms_group(const struct rk_mesh_comms *comms, rk_mesh_group_kind_t kind)
{
    RK_ASSERT(kind < RK_GROUP_KIND_COUNT);
    return comms->shared[kind] ? rk_comm_shared_group(comms->shared[kind]) : NULL;
}

int32_t rk_mesh_comms_group_ranks(const struct rk_mesh_comms *comms, rk_mesh_group_kind_t kind, int32_t *out)
{
    RK_ASSERT(kind < RK_GROUP_KIND_COUNT);
    return comms->is_member ? rk_mesh_group(comms->mesh, group_rows[kind].axes, comms->world_rank, out) : 0;
}

const char *rk_mesh_group_kind_name(rk_mesh_group_kind_t kind)
{
    RK_ASSERT(kind < RK_GROUP_KIND_COUNT);
    return group_rows[kind].name;
}
