/* get_mesh_info: coordinates of this rank in the role's mesh and the state of the role, as meta of an empty
 * batch. */
#include "worker/methods/methods.h"

#include <stdio.h>

#include "base/rk_alloc.h"

static void set_int(struct rk_batch *batch, const char *key, int64_t value)
{
    rk_batch_set_meta(batch, key, rk_json_new_int(value));
}

static void set_axes(struct rk_batch *batch, const struct rk_mesh *mesh, const struct rk_mesh_coords *coords)
{
    for (int axis = 0; axis < RK_AXIS_COUNT; axis++) {
        char key[32];

        snprintf(key, sizeof(key), "%s_size", rk_axis_name((rk_axis_t)axis));
        set_int(batch, key, rk_mesh_axis_size(mesh, (rk_axis_t)axis));
        snprintf(key, sizeof(key), "%s_rank", rk_axis_name((rk_axis_t)axis));
        set_int(batch, key, coords->axis[axis]);
    }
}

/* The communicators of this rank with more than one member: {"tp": [0, 1], ...}. */
static struct rk_json *groups_json(const struct rk_role *role)
{
    int32_t *ranks = rk_calloc((size_t)rk_mesh_num_ranks(role->mesh), sizeof(*ranks));
    struct rk_json *object = rk_json_new_object();

    for (int kind = 0; kind < RK_GROUP_KIND_COUNT; kind++) {
        int32_t count = rk_mesh_comms_group_ranks(role->comms, (rk_mesh_group_kind_t)kind, ranks);
        struct rk_json *list;

        if (count < 2)
            continue;
        list = rk_json_new_array();
        for (int32_t i = 0; i < count; i++)
            rk_json_append(list, rk_json_new_int(ranks[i]));
        rk_json_set(object, rk_mesh_group_kind_name((rk_mesh_group_kind_t)kind), list);
    }
    rk_free(ranks);
    return object;
}

struct rk_status *rk_m_get_mesh_info(struct rk_method_call *call)
{
    const struct rk_role *role = call->role;
    struct rk_batch *batch;

    RK_TRY(rk_batch_create(&call->job->output, 0));
    batch = call->job->output;
    set_int(batch, "rank", call->worker->rank);
    set_int(batch, "world_size", call->worker->world_size);
    set_axes(batch, role->mesh, rk_mesh_comms_coords(role->comms));
    rk_batch_set_meta(batch, "mesh", rk_json_new_string(rk_mesh_text(role->mesh)));
    rk_batch_set_meta(batch, "groups", groups_json(role));
    rk_batch_set_meta(batch, "is_collect", rk_json_new_bool(rk_method_call_is_collector(call)));
    rk_batch_set_meta(batch, "state", rk_json_new_string(rk_role_state_name(role->state)));
    set_int(batch, "weight_version", role->model ? (int64_t)rk_model_weight_version(role->model) : 0);
    return NULL;
}
