#include "driver/rk_replicas.h"

#include <string.h>

struct group {
    const char *role;
    const struct rk_driver_worker *workers;
    int32_t num_workers;
};

/* The coordinates that the worker reports; NULL when it does not answer or does not have the role. */
static const struct rk_role_rank *find_place(const struct rk_driver_worker *worker, const char *role)
{
    const struct rk_rank_info *info = &worker->status.rank;

    for (int64_t i = 0; !worker->error && i < info->num_roles; i++) {
        if (strcmp(info->roles[i].role, role) == 0)
            return &info->roles[i];
    }
    return NULL;
}

static bool is_same_mesh(const struct rk_mesh_spec *a, const struct rk_mesh_spec *b)
{
    return a->tp == b->tp && a->cp == b->cp && a->ep == b->ep && a->etp == b->etp && a->dp == b->dp &&
           a->pp == b->pp && strcmp(a->order, b->order) == 0;
}

/* The worker at these coordinates of the replica; NULL when none answers. */
static const struct rk_driver_worker *find_worker(const struct group *group, const struct rk_mesh_spec *mesh,
                                                  int32_t dp_rank, const struct rk_mesh_coords *coords)
{
    for (int32_t i = 0; i < group->num_workers; i++) {
        const struct rk_role_rank *place = find_place(&group->workers[i], group->role);

        if (place && is_same_mesh(&place->mesh, mesh) && place->dp_rank == dp_rank &&
            place->tp_rank == coords->axis[RK_AXIS_TP] && place->cp_rank == coords->axis[RK_AXIS_CP] &&
            place->pp_rank == coords->axis[RK_AXIS_PP])
            return &group->workers[i];
    }
    return NULL;
}

static void collect(struct rk_replicas *out, const struct group *group, const struct rk_mesh_spec *whole,
                    const struct rk_mesh *one, int32_t dp_rank, struct rk_str *missing)
{
    struct rk_replica replica = {.dp_rank = dp_rank, .mesh = *whole};
    int32_t num_ranks = rk_mesh_num_ranks(one);

    replica.mesh.dp = 1;
    replica.mesh.num_ranks = 0;
    replica.mesh.ranks = NULL;
    for (int32_t rank = 0; rank < num_ranks; rank++) {
        const struct rk_driver_worker *worker;
        struct rk_mesh_coords coords;

        if (!rk_mesh_find_coords(one, rank, &coords))
            continue;
        worker = find_worker(group, whole, dp_rank, &coords);
        if (worker)
            rk_array_append(&replica.addresses, worker->address);
        else
            rk_str_appendf(missing, "replica %d lacks the daemon of tp rank %d, pp rank %d, cp rank %d\n",
                           dp_rank, coords.axis[RK_AXIS_TP], coords.axis[RK_AXIS_PP],
                           coords.axis[RK_AXIS_CP]);
    }
    if (replica.addresses.count == num_ranks)
        rk_array_append(&out->items, replica);
    else
        rk_array_fini(&replica.addresses);
}

struct rk_status *rk_replicas_find(struct rk_replicas *out, const char *role,
                                   const struct rk_driver_worker *workers, int32_t num_workers,
                                   struct rk_str *missing)
{
    const struct group group = {role, workers, num_workers};
    const struct rk_role_rank *first = NULL;
    struct rk_mesh_spec spec;
    struct rk_mesh *one;

    *out = (struct rk_replicas){0};
    for (int32_t i = 0; i < num_workers && !first; i++)
        first = find_place(&workers[i], role);
    if (!first)
        return NULL;
    spec = first->mesh;
    spec.dp = 1;
    spec.num_ranks = 0;
    spec.ranks = NULL;
    RK_TRY(rk_mesh_create(&one, &spec, RK_MAX(spec.tp, 1) * RK_MAX(spec.cp, 1) * RK_MAX(spec.pp, 1)));
    for (int32_t d = 0; d < RK_MAX(first->mesh.dp, 1); d++)
        collect(out, &group, &first->mesh, one, d, missing);
    rk_mesh_destroy(one);
    return NULL;
}

void rk_replicas_fini(struct rk_replicas *replicas)
{
    for (int64_t i = 0; i < replicas->items.count; i++)
        rk_array_fini(&replicas->items.items[i].addresses);
    rk_array_fini(&replicas->items);
}
