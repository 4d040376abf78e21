/* Where the roles of a job stand. The keys of a role give its mesh's description; the mesh object made from
 * it answers everything else, here and in the flows: replicas, who collects, who takes part. */
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "driver-cli/job_internal.h"

/* Keys below a role's section. */
static const struct {
    rk_axis_t axis;
    const char *key;
} sizes[] = {
    {RK_AXIS_TP, RK_JOB_TP},
};

/* What a role leaves open is the actor's. */
static int64_t size_of(const struct rk_config *job, const struct rk_job_role *role, const char *name)
{
    char *key = rk_format("%s%s", role->section, name), *actors = rk_format(RK_JOB_ACTOR "%s", name);
    int64_t size = rk_job_int_or(job, rk_config_is_null(job, key) ? actors : key, 1);

    rk_free(actors);
    rk_free(key);
    return size;
}

int32_t rk_job_role_size(const struct rk_config *job, uint32_t role, rk_axis_t axis)
{
    const struct rk_job_role *row = rk_job_role(role);

    if (row->shares)
        return rk_job_role_size(job, row->shares, axis);
    for (size_t i = 0; i < RK_ARRAY_LEN(sizes); i++) {
        if (sizes[i].axis == axis)
            return (int32_t)size_of(job, row, sizes[i].key);
    }
    RK_ASSERT(!"an axis that a job names");
    return 0;
}

struct rk_mesh_spec rk_job_mesh_spec(const struct rk_config *job, uint32_t role)
{
    return (struct rk_mesh_spec){.tp = rk_job_role_size(job, role, RK_AXIS_TP)};
}

struct rk_status *rk_job_mesh_create(struct rk_mesh **out, const struct rk_config *job, uint32_t role,
                                     int32_t world_size)
{
    struct rk_mesh_spec spec = rk_job_mesh_spec(job, role);

    return rk_mesh_create(out, &spec, world_size);
}

int32_t rk_job_num_replicas(const struct rk_config *job, uint32_t role, int32_t world_size)
{
    struct rk_mesh *mesh;
    struct rk_status *st = rk_job_mesh_create(&mesh, job, role, world_size);
    int32_t count = st ? 1 : rk_mesh_axis_size(mesh, RK_AXIS_DP);

    rk_status_free(st);
    rk_mesh_destroy(mesh);
    return count;
}

/* --- of all roles --- */

struct rk_status *rk_job_meshes_create(struct rk_job_meshes *out, const struct rk_config *job,
                                       int32_t world_size)
{
    int64_t num_roles;
    const struct rk_job_role *roles = rk_job_roles(&num_roles);

    *out = (struct rk_job_meshes){0};
    for (int64_t i = 0; i < num_roles; i++) {
        struct rk_job_mesh *item = &out->items[out->count];
        struct rk_status *st;

        if (!rk_job_role_needed(job, roles[i].bit))
            continue;
        RK_ASSERT(out->count < RK_LIMIT_ROLES);
        st = rk_job_mesh_create(&item->mesh, job, roles[i].bit, world_size);
        if (st) {
            rk_job_meshes_fini(out);
            return RK_WRAP(st, "mesh of role '%s'", roles[i].name);
        }
        item->role = &roles[i];
        out->count++;
    }
    return NULL;
}

void rk_job_meshes_fini(struct rk_job_meshes *meshes)
{
    for (int64_t i = 0; i < meshes->count; i++)
        rk_mesh_destroy(meshes->items[i].mesh);
    *meshes = (struct rk_job_meshes){0};
}

const struct rk_mesh *rk_job_meshes_find(const struct rk_job_meshes *meshes, uint32_t role)
{
    for (int64_t i = 0; i < meshes->count; i++) {
        if (meshes->items[i].role->bit == role)
            return meshes->items[i].mesh;
    }
    return NULL;
}

struct rk_status *rk_job_meshes_configure(const struct rk_job_meshes *meshes, struct rk_driver *driver)
{
    struct rk_role_mesh specs[RK_LIMIT_ROLES];

    for (int64_t i = 0; i < meshes->count; i++)
        specs[i] =
            (struct rk_role_mesh){meshes->items[i].role->name, rk_mesh_get_spec(meshes->items[i].mesh)};
    return rk_driver_configure(driver, specs, meshes->count);
}
