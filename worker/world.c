/* The world of this daemon: rendezvous, communicators, and the effect of a new mesh on the models.
 *
 * Round 1 opens an endpoint. Round 2 joins the world and makes the communicators of every role. A role whose
 * mesh and rank are unchanged keeps its model, which gets the new communicators. So does, without its
 * training state, a role that becomes the only replica of its weights, after a world has lost
 * the others. Other models are dropped before the new world is created, so that their memory is free. When
 * round 2 fails the worker is not configured, and the models are kept for the next one.
 *
 * In a dry run there is no round 1, and no peer in round 2: the worker is that rank of a world whose
 * other ranks do not exist. init_model then only returns memory plans. */
#include "worker/worker_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_log.h"

/* The driver configures all ranks at once. */
#define CONNECT_TIMEOUT_MS 30000

struct rk_status *rk_world_open_endpoint(struct rk_worker *worker, struct rk_job_endpoint *job)
{
    const struct rk_comm_endpoint_config config = {
        .struct_size = sizeof(config),
        .backend = rk_device_collectives(worker->device),
        .listen_host = worker->listen_host,
        .tls = worker->config.comm_tls,
        .make_id = job->make_comm_id,
    };

    rk_comm_endpoint_close(worker->endpoint);
    worker->endpoint = NULL;
    if (worker->config.is_dry_run)
        return NULL;
    RK_TRY(rk_comm_endpoint_open(&worker->endpoint, &config));
    snprintf(job->comm_address, sizeof(job->comm_address), "%s", rk_comm_endpoint_address(worker->endpoint));
    if (job->make_comm_id) {
        _Static_assert(sizeof(job->comm_id) == RK_COMM_ID_BYTES, "the job carries the whole id");
        memcpy(job->comm_id, rk_comm_endpoint_id(worker->endpoint), sizeof(job->comm_id));
    }
    return NULL;
}

/* The owner of the weights gets the role's communicators, or NULL. Models that share weights follow their
 * owner. */
static void bind_model(struct rk_role *role)
{
    if (role->model && rk_role_owns_weights(role))
        rk_model_set_mesh(role->model, role->comms);
}

static void set_world(struct rk_worker *worker, struct rk_comm_world *world)
{
    pthread_mutex_lock(&worker->lock);
    worker->world = world;
    worker->is_world_aborted = false;
    pthread_mutex_unlock(&worker->lock);
}

/* Counts of a world are kept after its end. */
static void keep_collectives(struct rk_worker *worker)
{
    if (!worker->world)
        return;
    pthread_mutex_lock(&worker->lock);
    rk_worker_add_collectives(&worker->snapshot, worker->world);
    pthread_mutex_unlock(&worker->lock);
}

void rk_world_teardown(struct rk_worker *worker)
{
    struct rk_comm_world *world = worker->world;

    RK_ASSERT_ENGINE_THREAD(worker);
    for (int32_t i = 0; i < worker->num_roles; i++) {
        struct rk_role *role = &worker->roles[i];

        rk_mesh_comms_destroy(role->comms);
        role->comms = NULL;
        role->has_gradients = false; /* a failed call may have left them on only some ranks */
        bind_model(role);
    }
    rk_reshard_link_destroy(worker->weight_update.link);
    worker->weight_update.link = NULL;
    keep_collectives(worker);
    set_world(worker, NULL); /* from here on no other thread can abort it */
    rk_comm_world_destroy(world);
}

void rk_world_drop_all(struct rk_worker *worker)
{
    for (int32_t i = 0; i < worker->num_roles; i++)
        rk_role_drop_model(worker, &worker->roles[i]);
    rk_world_teardown(worker);
    for (int32_t i = 0; i < worker->num_roles; i++)
        rk_role_fini(&worker->roles[i]);
    worker->num_roles = 0;
    worker->weight_update = (struct rk_weight_update){0};
    worker->rank = -1;
    worker->world_size = 0;
    rk_comm_endpoint_close(worker->endpoint);
    worker->endpoint = NULL;
    pthread_mutex_lock(&worker->lock);
    worker->snapshot.mesh_generation = 0;
    pthread_mutex_unlock(&worker->lock);
}

static struct rk_status *check_job(const struct rk_worker *worker, const struct rk_job_configure *job)
{
    if (job->world_size < 1 || job->rank < 0 || job->rank >= job->world_size)
        return RK_FAIL(RK_INVALID_ARGUMENT, "rank=%d: expected a rank of the world of %d", job->rank,
                       job->world_size);
    if (job->num_meshes > RK_LIMIT_ROLES)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "%lld meshes: a daemon hosts at most %d roles",
                       (long long)job->num_meshes, RK_LIMIT_ROLES);
    for (int64_t i = 0; i < job->num_meshes; i++) {
        const char *role = job->meshes[i].role;

        if (!rk_role_kind_find(role))
            return RK_FAIL_REASON(RK_NOT_FOUND, "UNKNOWN_ROLE", "mesh of unknown role '%s'", role);
        if (rk_mesh_world_size(job->meshes[i].mesh) != job->world_size)
            return RK_FAIL(RK_INVALID_ARGUMENT,
                           "the mesh of role '%s' is for a world of %d ranks, expected %d", role,
                           rk_mesh_world_size(job->meshes[i].mesh), job->world_size);
        for (int64_t j = 0; j < i; j++)
            if (strcmp(job->meshes[j].role, role) == 0)
                return RK_FAIL(RK_INVALID_ARGUMENT, "role '%s' has two meshes", role);
    }
    if (!worker->endpoint && !worker->config.is_dry_run)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NOT_CONFIGURED",
                              "no endpoint is open; call Configure with make_comm_id first");
    return NULL;
}

static bool stays_in_place(const struct rk_worker *worker, const struct rk_role *role,
                           const struct rk_job_configure *job, const struct rk_mesh *mesh)
{
    return worker->rank == job->rank && rk_mesh_equal(role->mesh, mesh);
}

/* Whether this rank can keep the role's weights in a mesh with dp=1: all its other coordinates are unchanged.
 */
static bool becomes_only_replica(const struct rk_worker *worker, const struct rk_role *role,
                                 const struct rk_job_configure *job, const struct rk_mesh *mesh)
{
    static const rk_axis_t axes[] = {RK_AXIS_TP, RK_AXIS_CP, RK_AXIS_PP, RK_AXIS_ETP, RK_AXIS_EP};
    struct rk_mesh_coords before, after;

    if (!role->model || !rk_role_owns_weights(role) || rk_mesh_axis_size(mesh, RK_AXIS_DP) != 1 ||
        !rk_mesh_find_coords(role->mesh, worker->rank, &before) ||
        !rk_mesh_find_coords(mesh, job->rank, &after))
        return false;
    for (size_t i = 0; i < RK_ARRAY_LEN(axes); i++) {
        if (rk_mesh_axis_size(role->mesh, axes[i]) != rk_mesh_axis_size(mesh, axes[i]) ||
            before.axis[axes[i]] != after.axis[axes[i]])
            return false;
    }
    return true;
}

/* The role of that name, if its model can be kept. */
static struct rk_role *find_kept(struct rk_worker *worker, const struct rk_job_configure *job, int64_t i)
{
    struct rk_role *role = rk_role_find(worker, job->meshes[i].role);
    const struct rk_mesh *mesh = job->meshes[i].mesh;
    bool stays =
        role && (stays_in_place(worker, role, job, mesh) || becomes_only_replica(worker, role, job, mesh));

    return stays ? role : NULL;
}

/* Moves the role to the new list. Also takes `mesh`, its new one: an equal old mesh is
 * kept, and with it the pointer. */
static void keep_role(struct rk_role *out, const struct rk_worker *worker, struct rk_role *old,
                      const struct rk_job_configure *job, struct rk_mesh *mesh)
{
    bool is_in_place = stays_in_place(worker, old, job, mesh);

    *out = *old;
    *old = (struct rk_role){0};
    rk_mesh_destroy(is_in_place ? mesh : out->mesh);
    if (is_in_place)
        return;
    out->mesh = mesh;
    rk_saver_destroy(out->saver); /* a save in progress lacks the shards of the lost ranks */
    rk_trainer_destroy(out->trainer);
    out->saver = rk_saver_create(out->model);
    out->trainer = NULL;
    RK_INFO("role %s continues as the only replica, without its optimizer", out->name);
}

/* Drops the models that cannot be kept, and the models that share their weights. */
static void drop_changed_models(struct rk_worker *worker, const struct rk_job_configure *job)
{
    for (int32_t r = 0; r < worker->num_roles; r++) {
        struct rk_role *role = &worker->roles[r];
        bool stays = false;

        for (int64_t i = 0; i < job->num_meshes; i++)
            stays = stays || find_kept(worker, job, i) == role;
        if (!stays)
            rk_role_drop_model(worker, role);
    }
}

/* Replaces the list of roles by the job's. */
static struct rk_status *adopt_roles(struct rk_worker *worker, const struct rk_job_configure *job)
{
    struct rk_role roles[RK_LIMIT_ROLES] = {0};
    struct rk_mesh *meshes[RK_LIMIT_ROLES] = {0};
    struct rk_status *st = NULL;

    for (int64_t i = 0; i < job->num_meshes && !st; i++)
        st = rk_mesh_clone(&meshes[i], job->meshes[i].mesh);
    if (st) {
        for (int64_t i = 0; i < job->num_meshes; i++)
            rk_mesh_destroy(meshes[i]);
        return st;
    }
    for (int64_t i = 0; i < job->num_meshes; i++) {
        struct rk_role *old = find_kept(worker, job, i);

        if (old) {
            keep_role(&roles[i], worker, old, job, meshes[i]);
        } else {
            roles[i].kind = rk_role_kind_find(job->meshes[i].role);
            roles[i].mesh = meshes[i];
            snprintf(roles[i].name, sizeof(roles[i].name), "%s", job->meshes[i].role);
        }
    }
    for (int32_t r = 0; r < worker->num_roles; r++)
        rk_role_fini(&worker->roles[r]);
    memcpy(worker->roles, roles, sizeof(roles));
    worker->num_roles = (int32_t)job->num_meshes;
    worker->rank = job->rank;
    worker->world_size = job->world_size;
    rk_weight_update_bind(worker);
    return NULL;
}

/* The watchdog's verdict, a cancel and the end of the daemon all request it. */
static bool should_stop(void *user)
{
    struct rk_worker *worker = user;

    return atomic_load(&worker->is_cancel_requested);
}

/* All ranks have the meshes of all roles, so every rank creates the link. */
static struct rk_status *link_weights(struct rk_worker *worker, struct rk_comm_world *world)
{
    struct rk_weight_update *update = &worker->weight_update;

    if (!update->source || !update->destination)
        return NULL;
    return rk_reshard_link_create(&update->link, world, update->source->mesh, update->destination->mesh);
}

static struct rk_status *create_world(struct rk_comm_world **out, struct rk_worker *worker,
                                      const struct rk_job_configure *job)
{
    const struct rk_comm_world_config config = {
        .struct_size = sizeof(config),
        .rank = job->rank,
        .world_size = job->world_size,
        .generation = job->mesh_generation,
        .addresses = (const char *const *)job->comm_addresses,
        .id = job->comm_id,
        .connect_timeout_ms = CONNECT_TIMEOUT_MS,
        .progress_timeout_ms = worker->config.comm_progress_timeout_ms,
        .collective_timeout_ms = worker->config.collective_timeout_ms,
        .device = worker->device,
        .should_stop = should_stop,
        .user = worker,
    };
    struct rk_comm_endpoint *endpoint = worker->endpoint;

    *out = NULL;
    if (worker->config.is_dry_run) {
        *out = rk_comm_world_create_dry(job->rank, job->world_size);
        return NULL;
    }
    worker->endpoint = NULL;
    return rk_comm_world_create(out, endpoint, &config);
}

static struct rk_status *join_world(struct rk_worker *worker, const struct rk_job_configure *job)
{
    struct rk_comm_world *world;

    RK_TRY(create_world(&world, worker, job));
    set_world(worker, world);
    for (int32_t i = 0; i < worker->num_roles; i++) {
        struct rk_role *role = &worker->roles[i];

        RK_TRY(rk_mesh_comms_create(&role->comms, role->mesh, world));
        bind_model(role);
    }
    return link_weights(worker, world);
}

struct rk_status *rk_world_configure(struct rk_worker *worker, const struct rk_job_configure *job)
{
    struct rk_status *st;

    RK_TRY(check_job(worker, job));
    rk_world_teardown(worker);
    drop_changed_models(worker, job);
    RK_TRY(adopt_roles(worker, job));
    st = join_world(worker, job);
    if (st) {
        rk_world_teardown(worker);
        return RK_WRAP(st, "joining the world as rank %d of %d", job->rank, job->world_size);
    }
    pthread_mutex_lock(&worker->lock);
    worker->snapshot.mesh_generation = job->mesh_generation;
    pthread_mutex_unlock(&worker->lock);
    return NULL;
}
