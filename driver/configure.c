/* Configure: every rank's coordinates in the meshes of the roles, and the communicators, in two rounds. In
 * the first the daemons open their endpoints and one creates the id; in the second all join. */
#include "driver/invocation_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "driver/rk_group_report.h"

#define JOIN_TIMEOUT_MS                                                                                \
    60000                 /* the daemons give up after 30 s, once the engine has ended its running job \
                           */
#define COMM_ID_BYTES 128 /* as the protocol has it */

static void clear_roles(struct rk_driver *driver)
{
    for (int32_t i = 0; i < driver->num_roles; i++)
        rk_mesh_destroy(driver->roles[i].mesh);
    driver->num_roles = 0;
}

static struct rk_status *add_role(struct rk_driver *driver, const struct rk_role_mesh *role)
{
    struct rk_role_entry *entry = &driver->roles[driver->num_roles];

    if (driver->num_roles == RK_LIMIT_ROLES)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "more than %d roles", RK_LIMIT_ROLES);
    if (strlen(role->role) >= sizeof(entry->role) || rk_role_parse(role->role) == 0)
        return RK_FAIL_REASON(RK_NOT_FOUND, "UNKNOWN_ROLE", "unknown role '%s'", role->role);
    if (rk_driver_find_mesh(driver, role->role))
        return RK_FAIL(RK_INVALID_ARGUMENT, "role '%s' has two meshes", role->role);
    RK_TRY(rk_mesh_create(&entry->mesh, &role->mesh, rk_driver_num_workers(driver)));
    snprintf(entry->role, sizeof(entry->role), "%s", role->role);
    driver->num_roles++;
    return NULL;
}

static struct rk_status *set_roles(struct rk_driver *driver, const struct rk_role_mesh *meshes,
                                   int64_t num_meshes)
{
    clear_roles(driver);
    for (int64_t i = 0; i < num_meshes; i++) {
        struct rk_status *st = add_role(driver, &meshes[i]);

        if (st) {
            clear_roles(driver);
            return RK_WRAP(st, "mesh of role '%s'", meshes[i].role);
        }
    }
    return NULL;
}

const struct rk_mesh *rk_driver_find_mesh(const struct rk_driver *driver, const char *role)
{
    for (int32_t i = 0; i < driver->num_roles; i++) {
        if (strcmp(driver->roles[i].role, role) == 0)
            return driver->roles[i].mesh;
    }
    return NULL;
}

const char *rk_driver_device_kind(const struct rk_driver *driver)
{
    return driver->device_kind;
}

/* Compares the coordinates that a daemon reports with the mesh arithmetic. */
static struct rk_status *check_role_rank(const struct rk_mesh *mesh, const struct rk_role_rank *got,
                                         int32_t rank)
{
    struct rk_mesh_coords want;
    const struct {
        const char *name;
        int32_t got;
        rk_axis_t axis;
    } axes[] = {
        {"tp_rank", got->tp_rank, RK_AXIS_TP}, {"cp_rank", got->cp_rank, RK_AXIS_CP},
        {"dp_rank", got->dp_rank, RK_AXIS_DP}, {"pp_rank", got->pp_rank, RK_AXIS_PP},
        {"ep_rank", got->ep_rank, RK_AXIS_EP}, {"etp_rank", got->etp_rank, RK_AXIS_ETP},
    };

    if (!rk_mesh_find_coords(mesh, rank, &want))
        return RK_FAIL(RK_INTERNAL,
                       "reports coordinates in the mesh of role '%s' (%s), to which it does not belong",
                       got->role, rk_mesh_text(mesh));
    for (size_t i = 0; i < RK_ARRAY_LEN(axes); i++) {
        if (axes[i].got != want.axis[axes[i].axis])
            return RK_FAIL(RK_INTERNAL, "reports %s=%d in the mesh of role '%s' (%s), expected %d",
                           axes[i].name, axes[i].got, got->role, rk_mesh_text(mesh), want.axis[axes[i].axis]);
    }
    return NULL;
}

struct rk_status *rk_check_rank_info(const struct rk_rank_info *info, const struct rk_role_entry *roles,
                                     int32_t num_roles, int32_t rank, int32_t world_size)
{
    struct rk_mesh_coords coords;
    int64_t num_places = 0;

    if (info->rank != rank || info->world_size != world_size)
        return RK_FAIL(RK_INTERNAL, "reports rank %d of %d, expected %d of %d", info->rank, info->world_size,
                       rank, world_size);
    for (int32_t i = 0; i < num_roles; i++) {
        const struct rk_role_rank *found = NULL;

        for (int64_t j = 0; j < info->num_roles; j++) {
            if (strcmp(info->roles[j].role, roles[i].role) == 0)
                found = &info->roles[j];
        }
        num_places += found != NULL;
        if (found)
            RK_TRY(check_role_rank(roles[i].mesh, found, rank));
        else if (rk_mesh_find_coords(roles[i].mesh, rank, &coords))
            return RK_FAIL(RK_INTERNAL, "reports no coordinates in the mesh of role '%s'", roles[i].role);
    }
    if (num_places != info->num_roles)
        return RK_FAIL(RK_INTERNAL, "reports coordinates in %lld meshes, expected the %lld of the group",
                       (long long)info->num_roles, (long long)num_places);
    return NULL;
}

const char *rk_driver_device_model(const struct rk_driver *driver)
{
    return driver->device_model;
}

/* --- the rounds --- */

/* Capabilities of the daemons: chunk size, and devices of one kind, whose collectives are compatible. */
static struct rk_status *describe(struct rk_driver *driver, struct rk_arena *arena)
{
    struct rk_fanout *items = rk_fanout_create(driver);
    struct rk_status *st;
    struct rk_describe_response description;
    const char *backend = NULL;

    rk_fanout_run(driver, RK_RPC_ID_DESCRIBE, items, driver->control_timeout_ms, 0, arena);
    for (int32_t i = 0; i < driver->num_clients; i++) {
        if (items[i].error)
            continue;
        items[i].error =
            rk_unpack_describe_response(&description, arena, items[i].reply.data, items[i].reply.bytes);
        if (items[i].error)
            continue;
        if (description.max_chunk > 0)
            driver->chunk_bytes = RK_MIN(driver->chunk_bytes, (size_t)description.max_chunk);
        if (backend && strcmp(description.backend, backend) != 0)
            items[i].error =
                RK_FAIL_REASON(RK_FAILED_PRECONDITION, "MIXED_DEVICES",
                               "its device is of kind '%s', expected '%s' as on the other workers",
                               description.backend, backend);
        if (!backend) {
            backend = description.backend;
            rk_free(driver->device_model);
            driver->device_model = rk_strdup(description.device_model);
        }
    }
    rk_free(driver->device_kind);
    if (driver->dry_device)
        backend = driver->dry_device;
    driver->device_kind = backend ? rk_strdup(backend) : NULL;
    st = rk_fanout_take_error(driver, items);
    rk_fanout_destroy(items, driver->num_clients);
    return st;
}

/* One round on all ranks; answers[num_clients] in the arena. */
static struct rk_status *run_round(struct rk_driver *driver, struct rk_configure_request *request,
                                   struct rk_configure_response *answers, struct rk_arena *arena)
{
    struct rk_fanout *items = rk_fanout_create(driver);
    struct rk_status *st;

    for (int32_t i = 0; i < driver->num_clients; i++) {
        request->fence = driver->clients[i].fence;
        request->rank = (uint32_t)rk_driver_rank_of(driver, i);
        rk_pack_configure_request(&items[i].request, request);
    }
    rk_fanout_run(driver, RK_RPC_ID_CONFIGURE, items, JOIN_TIMEOUT_MS, RK_FANOUT_ALL_OR_NONE, arena);
    for (int32_t i = 0; i < driver->num_clients; i++) {
        if (!items[i].error)
            items[i].error =
                rk_unpack_configure_response(&answers[i], arena, items[i].reply.data, items[i].reply.bytes);
        if (!items[i].error && !request->make_comm_id)
            items[i].error = rk_check_rank_info(&answers[i].rank, driver->roles, driver->num_roles,
                                                rk_driver_rank_of(driver, i), rk_driver_num_workers(driver));
    }
    st = rk_fanout_take_error(driver, items);
    rk_fanout_destroy(items, driver->num_clients);
    return st;
}

struct rk_status *rk_driver_configure(struct rk_driver *driver, const struct rk_role_mesh *meshes,
                                      int64_t num_meshes)
{
    struct rk_arena *arena = rk_arena_create(16384, 0);
    struct rk_configure_response *answers = rk_calloc((size_t)driver->num_clients, sizeof(*answers));
    static const uint8_t dry_id[COMM_ID_BYTES] = {0};
    int32_t world_size = rk_driver_num_workers(driver);
    struct rk_peer *peers = rk_calloc((size_t)world_size, sizeof(*peers));
    struct rk_configure_request request = {.world_size = (uint32_t)world_size, .num_meshes = num_meshes};
    struct rk_status *st;

    RK_TRY_GOTO(st, rk_turns_check_idle(&driver->turns, "configure"), keep);
    RK_TRY_GOTO(st, rk_driver_check_lease(driver), out);
    RK_TRY_GOTO(st, set_roles(driver, meshes, num_meshes), out);
    RK_TRY_GOTO(st, describe(driver, arena), out);
    request.meshes = rk_calloc((size_t)num_meshes, sizeof(*request.meshes));
    for (int64_t i = 0; i < num_meshes; i++)
        request.meshes[i] =
            (struct rk_role_mesh){driver->roles[i].role, rk_mesh_get_spec(driver->roles[i].mesh)};
    request.mesh_generation = ++driver->mesh_generation;

    request.make_comm_id = true;
    RK_TRY_GOTO(st, run_round(driver, &request, answers, arena), out);
    for (int32_t i = 0; i < world_size; i++)
        peers[i] = (struct rk_peer){.rank = (uint32_t)i, .comm_address = ""};
    for (int32_t i = 0; i < driver->num_clients && !rk_driver_is_dry_run(driver); i++)
        peers[i] = (struct rk_peer){(uint32_t)i, answers[i].comm_address, driver->clients[i].incarnation};
    request.make_comm_id = false;
    request.comm_id = answers[0].comm_id;
    if (rk_driver_is_dry_run(driver)) /* the ranks of a plan open no connections, so any id will do */
        request.comm_id = (struct rk_bytes){.data = dry_id, .bytes = sizeof(dry_id)};
    request.peers = peers;
    request.num_peers = world_size;
    st = run_round(driver, &request, answers, arena);
out:
    if (st)
        clear_roles(driver);
keep:
    rk_free(request.meshes);
    rk_free(peers);
    rk_free(answers);
    rk_arena_destroy(arena);
    return st;
}

/* The roles of all workers: a worker reports the roles to whose mesh it belongs. */
static struct rk_status *set_roles_of(struct rk_driver *driver, const struct rk_driver_worker *workers)
{
    clear_roles(driver);
    for (int32_t i = 0; i < driver->num_clients; i++) {
        const struct rk_rank_info *info = &workers[i].status.rank;

        for (int64_t j = 0; j < info->num_roles; j++) {
            struct rk_role_mesh known = {info->roles[j].role, info->roles[j].mesh};

            if (!rk_driver_find_mesh(driver, known.role))
                RK_TRY(add_role(driver, &known));
        }
    }
    if (driver->num_roles > 0)
        return NULL;
    return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NOT_CONFIGURED",
                          "worker 0 (%s) is %s and has no meshes; configure the group first",
                          workers[0].address, workers[0].status.state);
}

/* All daemons of a configured group must be listed, in the order of its Configure. */
static struct rk_status *check_standing(const struct rk_driver_worker *worker, int32_t rank,
                                        int32_t world_size)
{
    const struct rk_worker_status *status = &worker->status;

    if (strcmp(status->state, "UNCONFIGURED") == 0)
        return RK_FAIL_REASON(
            RK_FAILED_PRECONDITION, "NOT_CONFIGURED",
            "worker %d (%s) is UNCONFIGURED%s; configure the group first", rank, worker->address,
            status->rank.num_roles > 0 ? ", its communicators were lost" : " and has no meshes");
    if (status->rank.rank != rank || status->rank.world_size != world_size)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "WRONG_MESH",
                              "worker %d (%s) is rank %d of %d in its group; list all daemons, in rank order",
                              rank, worker->address, status->rank.rank, status->rank.world_size);
    return NULL;
}

static void free_errors(struct rk_driver_worker *workers, int32_t num_workers)
{
    for (int32_t i = 0; i < num_workers; i++)
        rk_status_free(workers[i].error);
}

struct rk_status *rk_driver_adopt(struct rk_driver *driver)
{
    struct rk_arena *arena = rk_arena_create(16384, 0);
    struct rk_driver_worker *workers = rk_calloc((size_t)driver->num_clients, sizeof(*workers));
    const struct rk_worker_status *first;
    struct rk_status *st;

    RK_TRY_GOTO(st, rk_turns_check_idle(&driver->turns, "adopt"), keep);
    rk_driver_get_status(driver, arena, workers);
    for (int32_t i = 0; i < driver->num_clients && !st; i++)
        st = rk_status_clone(workers[i].error);
    for (int32_t i = 0; i < driver->num_clients && !st; i++)
        st = check_standing(&workers[i], i, driver->num_clients);
    if (st)
        goto out;
    first = &workers[0].status;
    RK_TRY_GOTO(st, set_roles_of(driver, workers), out);
    for (int32_t i = 0; i < driver->num_clients && !st; i++) {
        st = rk_check_rank_info(&workers[i].status.rank, driver->roles, driver->num_roles, i,
                                driver->num_clients);
        if (!st && workers[i].status.mesh_generation != first->mesh_generation)
            st = RK_FAIL_REASON(RK_FAILED_PRECONDITION, "WRONG_MESH",
                                "has mesh generation %llu, worker 0 has %llu",
                                (unsigned long long)workers[i].status.mesh_generation,
                                (unsigned long long)first->mesh_generation);
        if (st)
            st = rk_error_of_worker(st, i, workers[i].address);
    }
    driver->mesh_generation = first->mesh_generation;
out:
    if (st) {
        clear_roles(driver);
        st = rk_group_report_explain(st, workers, driver->num_clients);
    }
keep:
    free_errors(workers, driver->num_clients);
    rk_free(workers);
    rk_arena_destroy(arena);
    return st;
}
