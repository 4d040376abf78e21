/* plan_only: the memory plan of a role, without building it.
 *
 * A driver plans all roles of a job before it builds any: in the order in which it will build them, each
 * against the free memory that the previous ones leave. The driver passes that value on (room_after of one
 * answer is plan_room of the next call), so that no state is kept here. The first plan uses the current
 * memory of the device. When a role with a model is built again, its model and those that use its weights are
 * freed: this memory counts as free from its turn on. */
#include "worker/methods/memory_json_internal.h"
#include "worker/methods/model_build_internal.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_str.h"

/* --- room --- */

static uint64_t held_bytes(const struct rk_role *role)
{
    struct rk_model_memory memory;

    if (!role->model)
        return 0;
    memory = rk_model_get_memory(role->model);
    return rk_memory_total_bytes(&memory);
}

/* Memory that init_model of the role frees before it allocates. With plan_owner none: the owner's init_model
 * has freed it. */
static uint64_t given_back_bytes(const struct rk_model_build *build)
{
    const struct rk_worker *worker = build->call->worker;
    const struct rk_role *role = build->call->role;
    uint64_t bytes = held_bytes(role);

    if (build->owner_options)
        return 0;
    for (int32_t i = 0; i < worker->num_roles; i++) {
        if (rk_role_uses_weights_of(&worker->roles[i], role))
            bytes += held_bytes(&worker->roles[i]);
    }
    return bytes;
}

static struct rk_status *read_room(struct rk_model_build *build, const struct rk_json *rooms)
{
    const struct rk_worker *worker = build->call->worker;
    const struct rk_json *room = rk_json_at(rooms, worker->rank);
    int64_t own, scratch, kept, away = 0;

    if (rk_json_type(rooms) != RK_JSON_ARRAY || rk_json_count(rooms) != worker->world_size)
        return RK_FAIL(RK_INVALID_ARGUMENT, "plan_room: expected a list of %d rooms, one per rank",
                       worker->world_size);
    if (rk_json_is_null(room)) /* the rank has none of the previous roles */
        return NULL;
    RK_TRY(rk_json_get_i64(room, "plan_room", "free", INT64_MIN / 4, INT64_MAX / 4, &build->room.free_bytes));
    RK_TRY(rk_json_get_i64(room, "plan_room", "own", 0, INT64_MAX / 4, &own));
    RK_TRY(rk_json_get_i64(room, "plan_room", "scratch", 0, INT64_MAX / 4, &scratch));
    RK_TRY(rk_json_get_i64(room, "plan_room", "kept", 0, INT64_MAX / 4, &kept));
    RK_TRY(rk_json_opt_i64(room, "plan_room", "away", 0, INT64_MAX / 4, &away));
    build->room.own_bytes = (uint64_t)own;
    build->room.away_bytes = (uint64_t)away;
    build->room.workspace =
        (struct rk_workspace){.scratch_bytes = (size_t)scratch, .kept_bytes = (size_t)kept};
    if (rk_json_find(room, "ordered_sums"))
        build->sums = rk_json_clone(rk_json_find(room, "ordered_sums"));
    return NULL;
}

static struct rk_status *refuse_alone(const struct rk_json *options, const char *key)
{
    if (rk_json_is_null(rk_json_find(options, key)))
        return NULL;
    return RK_FAIL(RK_INVALID_ARGUMENT, "%s: expected only with plan_only=true", key);
}

static struct rk_status *complete_owner(struct rk_model_build *build, const struct rk_json *owner)
{
    struct rk_status *st = rk_method_complete_options(&build->owner_options, build->call->job->method, owner);

    return st ? RK_WRAP(st, "plan_owner") : NULL;
}

struct rk_status *rk_model_build_read_plan(struct rk_model_build *build)
{
    const struct rk_json *options = build->call->job->options;
    const struct rk_json *rooms = rk_json_find(options, "plan_room");
    const struct rk_json *owner = rk_json_find(options, "plan_owner");

    RK_TRY(rk_json_get_bool(options, "", "plan_only", &build->plan_only));
    if (!build->plan_only && build->call->worker->config.is_dry_run)
        return RK_FAIL(RK_FAILED_PRECONDITION,
                       "this daemon was started with dry_run=true: init_model needs plan_only=true");
    if (!build->plan_only) {
        RK_TRY(refuse_alone(options, "plan_room"));
        return refuse_alone(options, "plan_owner");
    }
    if (!rk_json_is_null(owner) && !build->share_with)
        return RK_FAIL(RK_INVALID_ARGUMENT, "plan_owner: expected only with share_weights_of");
    if (!rk_json_is_null(owner))
        RK_TRY(complete_owner(build, owner));
    build->room = rk_memory_room_of(build->call->worker->device);
    if (!rk_json_is_null(rooms))
        RK_TRY(read_room(build, rooms));
    build->room.free_bytes += (int64_t)given_back_bytes(build);
    return NULL;
}

/* --- memory of collectives --- */

/* Ranks of the role's tp group, which roles with equal meshes share: "0,1". */
static char *tp_ranks(const struct rk_model_build *build)
{
    const struct rk_mesh *mesh = build->call->role->mesh;
    int32_t *ranks = rk_calloc((size_t)rk_mesh_num_ranks(mesh), sizeof(*ranks));
    int32_t count = rk_mesh_group(mesh, RK_AXIS_BIT(RK_AXIS_TP), build->call->worker->rank, ranks);
    struct rk_str text = {0};

    for (int32_t i = 0; i < count; i++)
        rk_str_appendf(&text, "%s%d", i ? "," : "", ranks[i]);
    rk_free(ranks);
    return rk_str_take(&text);
}

static bool has_string(const struct rk_json *list, const char *text)
{
    for (int64_t i = 0; i < rk_json_count(list); i++) {
        if (strcmp(rk_json_as_string(rk_json_at(list, i), ""), text) == 0)
            return true;
    }
    return false;
}

void rk_model_build_count_sums(struct rk_model_build *build)
{
    uint64_t bytes = rk_comm_ordered_sum_bytes(rk_model_build_sums(build));
    char *ranks = tp_ranks(build);

    if (rk_json_type(build->sums) != RK_JSON_ARRAY) {
        rk_json_free(build->sums);
        build->sums = rk_json_new_array();
    }
    if (bytes > 0 && !has_string(build->sums, ranks)) {
        rk_json_append(build->sums, rk_json_new_string(ranks));
        build->sums_bytes = bytes;
        build->room.free_bytes -= (int64_t)bytes;
    }
    rk_free(ranks);
}

/* --- the answer --- */

static struct rk_json *room_json(const struct rk_memory_room *room)
{
    struct rk_json *object = rk_json_new_object();

    rk_json_set(object, "free", rk_json_new_int(room->free_bytes));
    rk_json_set_bytes(object, "own", room->own_bytes);
    rk_json_set_bytes(object, "scratch", room->workspace.scratch_bytes);
    rk_json_set_bytes(object, "kept", room->workspace.kept_bytes);
    rk_json_set_bytes(object, "away", room->away_bytes);
    return object;
}

struct rk_status *rk_model_build_report(struct rk_model_build *build)
{
    struct rk_method_call *call = build->call;
    struct rk_memory_room before = build->room, after = build->room;
    struct rk_status *excess;
    struct rk_json *room_after;
    struct rk_batch *batch;

    RK_TRY(rk_batch_create(&call->job->output, 0));
    batch = call->job->output;
    excess = rk_memory_plan_check(&build->plan, &build->room);
    rk_memory_room_take(&after, &build->plan);
    before.free_bytes += (int64_t)build->sums_bytes;
    room_after = room_json(&after);
    rk_json_set(room_after, "ordered_sums", rk_json_retain(build->sums));
    rk_batch_set_meta(batch, "rank", rk_json_new_int(call->worker->rank));
    rk_batch_set_meta(batch, "planned", rk_memory_json(&build->plan.memory));
    rk_batch_set_meta(batch, "away", rk_json_new_int((int64_t)build->plan.away_bytes));
    rk_batch_set_meta(batch, "communication", rk_json_new_int((int64_t)build->sums_bytes));
    rk_batch_set_meta(batch, "num_kv_blocks", rk_json_new_int(build->plan.num_kv_blocks));
    rk_batch_set_meta(batch, "given_back", rk_json_new_int((int64_t)given_back_bytes(build)));
    rk_batch_set_meta(batch, "fits", rk_json_new_bool(excess == NULL));
    rk_batch_set_meta(batch, "room", room_json(&before));
    rk_batch_set_meta(batch, "room_after", room_after);
    rk_batch_set_meta(batch, "device", rk_device_json(call->worker->device));
    rk_status_free(excess);
    return NULL;
}
