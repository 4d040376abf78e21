/* Planning a job without its daemons: one daemon in a dry run plans for the ranks of the world, one
 * after the other. */
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "rl/flows/steps_internal.h"
#include "rl/rk_job.h"
#include "proto/rk_methods.h"

/* Whether two ranks have equal plans in the mesh: dp and cp cut the batch into equal parts, and ep the
 * experts. */
static bool are_alike(const struct rk_mesh *mesh, int32_t a, int32_t b)
{
    struct rk_mesh_coords of_a, of_b;
    bool has_a = rk_mesh_find_coords(mesh, a, &of_a), has_b = rk_mesh_find_coords(mesh, b, &of_b);

    return has_a == has_b && of_a.axis[RK_AXIS_TP] == of_b.axis[RK_AXIS_TP] &&
           of_a.axis[RK_AXIS_PP] == of_b.axis[RK_AXIS_PP] && of_a.axis[RK_AXIS_ETP] == of_b.axis[RK_AXIS_ETP];
}

/* The first rank with equal plans in the meshes of all roles. */
static int32_t find_alike(const struct rk_flow_context *ctx, int32_t rank)
{
    const struct rk_job_meshes *meshes = &ctx->meshes;

    for (int32_t first = 0; first < rank; first++) {
        bool is_alike = true;

        for (int64_t i = 0; i < meshes->count; i++)
            is_alike = is_alike && are_alike(meshes->items[i].mesh, first, rank);
        if (is_alike)
            return first;
    }
    return rank;
}

/* Free memory of assumed devices, for the first role. */
static struct rk_json *assumed_rooms(const struct rk_flow_context *ctx)
{
    struct rk_json *rooms = rk_json_new_array();

    for (int32_t rank = 0; rank < rk_driver_num_workers(ctx->driver); rank++) {
        struct rk_json *room = rk_json_new_object();

        rk_json_set(room, "free", rk_json_new_int(ctx->dry_device_bytes));
        rk_json_set(room, "own", rk_json_new_int(0));
        rk_json_set(room, "scratch", rk_json_new_int(0));
        rk_json_set(room, "kept", rk_json_new_int(0));
        rk_json_append(rooms, room);
    }
    return rooms;
}

/* The device that a plan names when it is not the daemon's. */
static struct rk_json *assumed_device(const struct rk_flow_context *ctx)
{
    struct rk_json *device = rk_json_new_object();

    rk_json_set(device, "name", rk_json_new_string(rk_driver_device_kind(ctx->driver)));
    rk_json_set(device, "free", rk_json_new_int(ctx->dry_device_bytes));
    rk_json_set(device, "assumed", rk_json_new_bool(true));
    return device;
}

/* *out stays NULL when the rank is outside the role's mesh. */
static struct rk_status *ask_as(struct rk_json **out, struct rk_flow_context *ctx, const char *role,
                                const struct rk_json *options, int32_t rank)
{
    struct rk_driver_result result;

    rk_driver_stand_for(ctx->driver, rank);
    RK_TRY(rk_job_meshes_configure(&ctx->meshes, ctx->driver));
    RK_TRY(rk_flow_call(ctx, role, "init_model", NULL, rk_json_clone(options), NULL, &result));
    if (result.num_outputs > 0 && result.outputs[0] &&
        rk_json_find(rk_batch_meta(result.outputs[0]), "planned")) {
        *out = rk_json_clone(rk_batch_meta(result.outputs[0]));
        if (ctx->dry_device_bytes > 0)
            rk_json_set(*out, "device", assumed_device(ctx));
    }
    rk_driver_result_fini(&result);
    return NULL;
}

struct rk_status *rk_flow_dry_memory_plans(struct rk_flow_context *ctx, const char *role,
                                           struct rk_json *options, struct rk_json **plans)
{
    struct rk_status *st = NULL;

    if (ctx->dry_device_bytes > 0 && rk_json_is_null(rk_json_find(options, "plan_room")))
        rk_json_set(options, "plan_room", assumed_rooms(ctx));
    for (int32_t rank = 0; rank < rk_driver_num_workers(ctx->driver) && !st; rank++) {
        int32_t alike = find_alike(ctx, rank);

        if (alike == rank) {
            st = ask_as(&plans[rank], ctx, role, options, rank);
        } else if (plans[alike]) {
            plans[rank] = rk_json_clone(plans[alike]);
            rk_json_set(plans[rank], "rank", rk_json_new_int(rank));
        }
    }
    rk_json_free(options);
    return st;
}

struct rk_status *rk_flow_longest_plan(struct rk_plan *plan, struct rk_flow_context *ctx)
{
    const struct rk_flow_data *data = ctx->flow->data;
    size_t num_rows = (size_t)ctx->num_rows;
    int64_t *seqlens = rk_flow_scratch(ctx, num_rows, sizeof(*seqlens));
    int64_t *loss_tokens = rk_flow_scratch(ctx, num_rows, sizeof(*loss_tokens));

    for (size_t i = 0; i < num_rows; i++) {
        seqlens[i] = data->max_tokens(ctx->job);
        loss_tokens[i] = data->max_loss_tokens(ctx->job);
    }
    return data->update_plan(plan, ctx, seqlens, loss_tokens);
}
