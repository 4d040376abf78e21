#include <stdio.h>
#include <string.h>

#include "base/rk_assert.h"
#include "daemon/daemon_internal.h"

void rk_group_clear(struct rk_group *group)
{
    for (int32_t i = 0; i < group->num_roles; i++)
        rk_mesh_destroy(group->roles[i].mesh);
    *group = (struct rk_group){0};
}

void rk_group_take(struct rk_group *group, struct rk_job_configure *job)
{
    rk_group_clear(group);
    group->rank = job->rank;
    group->world_size = job->world_size;
    for (int64_t i = 0; i < job->num_meshes; i++) {
        snprintf(group->roles[i].role, sizeof(group->roles[i].role), "%s", job->meshes[i].role);
        group->roles[i].mesh = job->meshes[i].mesh;
        job->meshes[i].mesh = NULL;
    }
    group->num_roles = (int32_t)job->num_meshes;
}

const struct rk_mesh *rk_group_find_mesh(const struct rk_group *group, const char *role)
{
    for (int32_t i = 0; i < group->num_roles; i++) {
        if (strcmp(group->roles[i].role, role) == 0)
            return group->roles[i].mesh;
    }
    return NULL;
}

static struct rk_role_rank describe_place(const char *role, const struct rk_mesh *mesh, int32_t rank,
                                          const struct rk_mesh_coords *coords)
{
    return (struct rk_role_rank){
        .role = role,
        .mesh = rk_mesh_get_spec(mesh),
        .tp_rank = coords->axis[RK_AXIS_TP],
        .cp_rank = coords->axis[RK_AXIS_CP],
        .ep_rank = coords->axis[RK_AXIS_EP],
        .etp_rank = coords->axis[RK_AXIS_ETP],
        .dp_rank = coords->axis[RK_AXIS_DP],
        .pp_rank = coords->axis[RK_AXIS_PP],
        .is_collect = rk_mesh_is_collector(mesh, rank),
    };
}

/* The part of the role that the rank holds. */
static void describe_model(struct rk_role_rank *out, const struct rk_worker_snapshot *snapshot)
{
    out->state = rk_role_state_name(RK_ROLE_STATE_EMPTY);
    for (int32_t i = 0; i < snapshot->num_roles; i++) {
        if (strcmp(snapshot->roles[i].role, out->role) != 0)
            continue;
        out->state = rk_role_state_name(snapshot->roles[i].state);
        out->weight_version = snapshot->roles[i].weight_version;
    }
}

struct rk_rank_info rk_group_describe(const struct rk_daemon *daemon,
                                      const struct rk_worker_snapshot *snapshot, struct rk_arena *arena)
{
    const struct rk_group *group = &daemon->group;
    struct rk_rank_info out = {
        .rank = group->rank,
        .world_size = group->world_size,
        .host = daemon->host,
        .device = daemon->settings.device,
        .device_uuid = rk_arena_strdup(arena, snapshot->device_uuid),
        .device_mem_total = snapshot->device_total_bytes,
    };

    out.roles = rk_arena_calloc(arena, RK_LIMIT_ROLES, sizeof(*out.roles));
    RK_ASSERT(out.roles);
    for (int32_t i = 0; i < group->num_roles; i++) {
        const struct rk_mesh *mesh = group->roles[i].mesh;
        struct rk_mesh_coords coords;

        if (!rk_mesh_find_coords(mesh, group->rank, &coords))
            continue;
        out.roles[out.num_roles] = describe_place(group->roles[i].role, mesh, group->rank, &coords);
        describe_model(&out.roles[out.num_roles++], snapshot);
    }
    return out;
}
