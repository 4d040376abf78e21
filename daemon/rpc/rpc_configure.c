/* Configure, in two rounds: every rank opens its endpoint and returns its address (make_comm_id), then all
 * join the world that the driver describes. Both are jobs of the engine, so the answer comes later. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_log.h"
#include "daemon/daemon_internal.h"
#include "daemon/operation_internal.h"

/* The waiting call and its job; L owns it. */
struct rk_configure {
    struct rk_loop_event done_event; /* posted by E */
    struct rk_daemon *daemon;
    struct rk_call *call;
    struct rk_job *job;
};

static struct rk_status *bad_field(const char *field, const char *text)
{
    return rk_status_at_field(RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "%s", text), field);
}

static struct rk_status *check_free(const struct rk_daemon *daemon)
{
    if (daemon->configure)
        return RK_FAIL(RK_FAILED_PRECONDITION,
                       "another Configure call is running on this daemon; expected one at a time");
    if (daemon->pending || rk_operations_num_current(daemon) > 0)
        return RK_FAIL(RK_FAILED_PRECONDITION,
                       "a method is running or queued; wait until it has ended, or cancel it");
    return NULL;
}

static struct rk_status *add_mesh(struct rk_job_configure *job, const struct rk_role_mesh *given)
{
    if (!rk_role_parse(given->role))
        return RK_FAIL_REASON(RK_NOT_FOUND, "UNKNOWN_ROLE", "unknown role '%s'", given->role);
    for (int64_t i = 0; i < job->num_meshes; i++) {
        if (strcmp(job->meshes[i].role, given->role) == 0)
            return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "role '%s' has two meshes", given->role);
    }
    if (job->num_meshes == RK_LIMIT_ROLES)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "more than %d roles", RK_LIMIT_ROLES);
    RK_TRY(rk_mesh_create(&job->meshes[job->num_meshes].mesh, &given->mesh, job->world_size));
    snprintf(job->meshes[job->num_meshes].role, sizeof(job->meshes[0].role), "%s", given->role);
    job->num_meshes++;
    return NULL;
}

static struct rk_status *add_peers(struct rk_job_configure *job, const struct rk_configure_request *message,
                                   uint64_t incarnation)
{
    /* A world of one needs no addresses. */
    if (message->num_peers != job->world_size && !(job->world_size == 1 && message->num_peers == 0))
        return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD", "%" PRId64 " peers, expected world_size=%d",
                              message->num_peers, job->world_size);
    job->comm_addresses = rk_calloc((size_t)job->world_size, sizeof(*job->comm_addresses));
    for (int64_t i = 0; i < message->num_peers; i++) {
        const struct rk_peer *peer = &message->peers[i];

        if (peer->rank >= (uint32_t)job->world_size || job->comm_addresses[peer->rank])
            return RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                                  "peer %" PRId64 " has rank %u: expected each of 0 to %d once", i,
                                  peer->rank, job->world_size - 1);
        if (peer->rank == message->rank && peer->incarnation && peer->incarnation != incarnation)
            return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "WRONG_INCARNATION",
                                  "rank %u was restarted after the driver read its incarnation", peer->rank);
        job->comm_addresses[peer->rank] = rk_strdup(peer->comm_address);
    }
    for (int32_t i = 0; i < job->world_size; i++) {
        if (!job->comm_addresses[i])
            job->comm_addresses[i] = rk_strdup("");
    }
    return NULL;
}

static struct rk_status *fill_world(struct rk_job_configure *job, const struct rk_configure_request *message,
                                    uint64_t incarnation)
{
    job->rank = (int32_t)message->rank;
    job->world_size = (int32_t)message->world_size;
    job->mesh_generation = message->mesh_generation;
    if (message->mesh_generation == 0)
        return bad_field("mesh_generation", "mesh_generation=0, expected a number from 1");
    if (message->num_meshes == 0)
        return bad_field("mesh", "no role has a mesh");
    if (message->comm_id.bytes != sizeof(job->comm_id) &&
        !(job->world_size == 1 && message->comm_id.bytes == 0))
        return rk_status_at_field(RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                                                 "comm_id has %zu bytes, expected %zu",
                                                 message->comm_id.bytes, sizeof(job->comm_id)),
                                  "comm_id");
    if (message->comm_id.bytes > 0)
        memcpy(job->comm_id, message->comm_id.data, sizeof(job->comm_id));
    for (int64_t i = 0; i < message->num_meshes; i++) {
        struct rk_status *st = add_mesh(job, &message->meshes[i]);

        if (st)
            return rk_status_at_field(RK_WRAP(st, "mesh of role '%s'", message->meshes[i].role), "mesh");
    }
    return rk_status_at_field(add_peers(job, message, incarnation), "peer");
}

static struct rk_status *make_job(struct rk_job **out, const struct rk_configure_request *message,
                                  uint64_t incarnation)
{
    struct rk_status *st = NULL;
    struct rk_job *job;

    *out = NULL;
    if (message->world_size == 0 || message->world_size > RK_MESH_MAX_RANKS)
        return rk_status_at_field(RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                                                 "world_size=%u, expected 1 to %d", message->world_size,
                                                 RK_MESH_MAX_RANKS),
                                  "world_size");
    if (message->rank >= message->world_size)
        return rk_status_at_field(RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                                                 "rank=%u, expected 0 to %u", message->rank,
                                                 message->world_size - 1),
                                  "rank");
    job = rk_job_create(message->make_comm_id ? RK_JOB_OPEN_ENDPOINT : RK_JOB_CONFIGURE);
    if (message->make_comm_id)
        job->endpoint.make_comm_id = message->rank == 0; /* the others only return their address */
    else
        st = fill_world(&job->configure, message, incarnation);
    if (st) {
        rk_job_destroy(job);
        return st;
    }
    *out = job;
    return NULL;
}

/* L: the job has returned. */
static void on_done(struct rk_loop_event *event)
{
    struct rk_configure *configure = RK_CONTAINER_OF(event, struct rk_configure, done_event);
    struct rk_daemon *daemon = configure->daemon;
    struct rk_job *job = configure->job;
    struct rk_configure_response response = {0};
    struct rk_worker_snapshot snapshot;
    struct rk_status *st = job->status;
    struct rk_str reply = {0};

    job->status = NULL;
    daemon->configure = NULL;
    if (!st && job->kind == RK_JOB_CONFIGURE) {
        rk_record_configure(daemon, &job->configure);
        rk_group_take(&daemon->group, &job->configure);
        RK_INFO("configured rank=%d world_size=%d mesh_generation=%" PRIu64 " meshes=%lld",
                job->configure.rank, job->configure.world_size, job->configure.mesh_generation,
                (long long)job->configure.num_meshes);
    } else if (!st) {
        response.comm_address = job->endpoint.comm_address;
        if (job->endpoint.make_comm_id)
            response.comm_id =
                (struct rk_bytes){.data = job->endpoint.comm_id, .bytes = sizeof(job->endpoint.comm_id)};
    }
    if (!st && daemon->worker) {
        rk_worker_get_snapshot(daemon->worker, &snapshot);
        response.rank = rk_group_describe(daemon, &snapshot, rk_call_arena(configure->call));
        rk_pack_configure_response(&reply, &response);
    }
    rk_daemon_update(daemon);
    rk_call_answer(configure->call, st, &reply);
    rk_str_fini(&reply);
    rk_job_destroy(job);
    rk_free(configure);
    rk_stop_advance(daemon);
}

/* Later calls name the mesh by its number: a repeated number would admit calls of an older mesh. Every epoch
 * has its own numbers. */
static struct rk_status *check_generation(const struct rk_daemon *daemon,
                                          const struct rk_configure_request *message)
{
    if (message->make_comm_id || message->fence.epoch != daemon->mesh_epoch ||
        message->mesh_generation > daemon->mesh_generation)
        return NULL;
    return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "WRONG_MESH",
                          "mesh_generation=%" PRIu64 ", this epoch has configured %" PRIu64
                          " already: expected a higher number",
                          message->mesh_generation, daemon->mesh_generation);
}

static struct rk_status *configure_world(struct rk_call *call, struct rk_bytes request, struct rk_str *reply)
{
    struct rk_daemon *daemon = rk_call_daemon(call);
    struct rk_configure_request message;
    struct rk_configure *configure;
    struct rk_job *job;

    (void)reply; /* filled when the job is done */
    RK_TRY(rk_unpack_configure_request(&message, rk_call_arena(call), request.data, request.bytes));
    RK_TRY(rk_daemon_check_fence(daemon, &message.fence));
    RK_TRY(rk_daemon_check_takes_work(daemon));
    RK_TRY(check_free(daemon));
    RK_TRY(check_generation(daemon, &message));
    RK_TRY(make_job(&job, &message, daemon->incarnation));
    if (!message.make_comm_id) {
        daemon->mesh_epoch = message.fence.epoch;
        daemon->mesh_generation = message.mesh_generation;
    }
    configure = rk_calloc(1, sizeof(*configure));
    configure->done_event.run = on_done;
    configure->daemon = daemon;
    configure->call = call;
    configure->job = job;
    job->user = &configure->done_event;
    daemon->configure = configure;
    rk_call_defer(call);
    rk_worker_submit(daemon->worker, job);
    return NULL;
}

void rk_configure_abort(struct rk_daemon *daemon, const char *reason)
{
    if (daemon->configure)
        rk_worker_cancel(daemon->worker, daemon->configure->job, true, reason);
}

const struct rk_rpc_handler rk_rpc_configure = {.unary = configure_world};
