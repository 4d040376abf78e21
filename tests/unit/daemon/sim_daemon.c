/* The environment of the code under test in a daemon: the engine and the functions of daemon.c that it calls.
 * State and health are omitted. */
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_time.h"
#include "daemon/rpc/execute.h"
#include "daemon/feed_internal.h"
#include "daemon/rpc/watch.h"
#include "tests/unit/daemon/sim.h"

#define TTL_MS   10000
#define GRACE_MS 600000

/* The worker of a daemon is its sim_daemon. */
static struct sim_daemon *host_of(struct rk_worker *worker)
{
    return (struct sim_daemon *)(void *)worker;
}

/* --- functions of daemon.c --- */

void rk_daemon_update(struct rk_daemon *daemon)
{
    (void)daemon; /* state and health are not simulated */
}

struct rk_status *rk_daemon_check_fence(struct rk_daemon *daemon, const struct rk_fence *fence)
{
    int64_t now_ms = rk_time_boot_ms();

    if (sim->defect == SIM_DEFECT_NO_FENCE)
        return NULL;
    RK_TRY(rk_lease_check(&daemon->lease, now_ms, fence));
    rk_lease_renew(&daemon->lease, now_ms);
    return NULL;
}

void rk_configure_abort(struct rk_daemon *daemon, const char *reason)
{
    (void)daemon;
    (void)reason;
}

/* The disk survives a crash of the process. `dir` is the rank. */
struct rk_status *rk_epoch_store(const char *dir, uint64_t epoch)
{
    sim->daemons[dir[0] - '0'].stored_epoch = epoch;
    return NULL;
}

/* --- the engine --- */

static const char *const role_names[] = {"actor", "rollout"};

const char *rk_role_state_name(rk_role_state_t state)
{
    return state == RK_ROLE_STATE_AWAKE ? "AWAKE" : "EMPTY";
}

void rk_worker_get_snapshot(struct rk_worker *worker, struct rk_worker_snapshot *out)
{
    struct sim_daemon *host = host_of(worker);

    *out = (struct rk_worker_snapshot){
        .is_configured = true, .mesh_generation = 1, .num_roles = RK_ARRAY_LEN(role_names)};
    for (int32_t i = 0; i < out->num_roles; i++) {
        snprintf(out->roles[i].role, sizeof(out->roles[i].role), "%s", role_names[i]);
        out->roles[i].state = RK_ROLE_STATE_AWAKE;
    }
    out->running = host->num_queued > 0 ? host->queue[0].job : NULL;
}

/* Completes the job at `i` with that status, which it takes. */
static void give_back(struct sim_daemon *host, int i, struct rk_status *st)
{
    struct rk_job *job = host->queue[i].job;
    struct rk_loop_event *event = job->user;

    host->num_queued--;
    memmove(&host->queue[i], &host->queue[i + 1], (size_t)(host->num_queued - i) * sizeof(host->queue[0]));
    job->status = st;
    event->run(event);
}

static void finish_meeting(void *user)
{
    uint64_t tag = (uint64_t)(uintptr_t)user;

    for (int32_t rank = 0; rank < SIM_RANKS; rank++) {
        struct sim_daemon *host = &sim->daemons[rank];

        if (!host->is_up || host->num_queued == 0 || host->queue[0].tag != tag || !host->queue[0].is_meeting)
            continue; /* it was restarted meanwhile */
        rk_job_add_metric(&host->queue[0].job->call, "tag", (double)tag, "last");
        give_back(host, 0, NULL);
    }
}

/* Applies the mutation on one rank: only once, and only under the current lease. */
static void apply(struct sim_daemon *host, const struct sim_job *job)
{
    const struct rk_lease *lease = &host->daemon.lease;

    sim->num_applied++;
    if (++sim->applied[job->tag][host->rank] > 1)
        sim_fail("call %d was applied %d times on rank %d", (int)job->tag, sim->applied[job->tag][host->rank],
                 host->rank);
    if (job->operation->epoch != lease->epoch)
        sim_fail("call %d of epoch %d was applied on rank %d in epoch %d", (int)job->tag,
                 (int)job->operation->epoch, host->rank, (int)lease->epoch);
}

/* The ranks synchronise when both have the same call at the head. */
static void try_to_meet(void)
{
    struct sim_job *heads[SIM_RANKS];

    for (int32_t rank = 0; rank < SIM_RANKS; rank++) {
        struct sim_daemon *host = &sim->daemons[rank];

        if (!host->is_up || host->num_queued == 0 || host->queue[0].is_meeting)
            return;
        heads[rank] = &host->queue[0];
    }
    if (heads[0]->tag != heads[1]->tag)
        return;
    for (int32_t rank = 0; rank < SIM_RANKS; rank++) {
        heads[rank]->is_meeting = true;
        apply(&sim->daemons[rank], heads[rank]);
    }
    sim_at(sim_between_ns(1, 200), finish_meeting, (void *)(uintptr_t)heads[0]->tag);
}

static void on_submitted(void *user)
{
    (void)user;
    try_to_meet();
}

void rk_worker_submit(struct rk_worker *worker, struct rk_job *job)
{
    struct sim_daemon *host = host_of(worker);
    struct rk_operation *operation = RK_CONTAINER_OF(job->user, struct rk_operation, done_event);

    RK_ASSERT(host->num_queued < SIM_QUEUE);
    sim_check_order(host->rank, operation, &host->submitted_epoch, &host->submitted_seq);
    host->queue[host->num_queued++] = (struct sim_job){job, operation, (uint64_t)job->call.timeout_ms, false};
    sim_at(SIM_MS(1), on_submitted, NULL);
}

const char *rk_worker_cancel(struct rk_worker *worker, struct rk_job *job, bool abort_comm,
                             const char *reason)
{
    struct sim_daemon *host = host_of(worker);

    for (int i = 0; i < host->num_queued; i++) {
        if (host->queue[i].job != job)
            continue;
        if (host->queue[i].is_meeting)
            return "flagged"; /* too late: it ends well */
        if (!abort_comm || sim->defect == SIM_DEFECT_NO_CANCEL)
            return "flagged";
        give_back(host, i, RK_FAIL(RK_CANCELLED, "%s", reason));
        sim_at(SIM_MS(1), on_submitted, NULL);
        return "aborted";
    }
    return "not_found";
}

void rk_worker_abort_comm(struct rk_worker *worker, const char *reason)
{
    struct sim_daemon *host = host_of(worker);

    while (host->num_queued > 0 && !host->queue[0].is_meeting)
        give_back(host, 0, RK_FAIL_REASON(RK_ABORTED, "COMM_ABORTED", "%s", reason));
}

/* --- life --- */

static void set_group(struct rk_group *group, int32_t rank)
{
    const struct rk_mesh_spec spec = {.dp = SIM_RANKS};

    group->rank = rank;
    group->world_size = SIM_RANKS;
    group->num_roles = RK_ARRAY_LEN(role_names);
    for (int32_t i = 0; i < group->num_roles; i++) {
        struct rk_status *st = rk_mesh_create(&group->roles[i].mesh, &spec, SIM_RANKS);

        RK_ASSERT(!st);
        snprintf(group->roles[i].role, sizeof(group->roles[i].role), "%s", role_names[i]);
    }
}

void sim_daemon_start(struct sim_daemon *host, int32_t rank)
{
    static char state_dirs[SIM_RANKS][2] = {"0", "1"};
    struct rk_daemon *daemon = &host->daemon;

    *daemon = (struct rk_daemon){0};
    host->rank = rank;
    host->is_up = true;
    host->generation++;
    host->submitted_epoch = host->submitted_seq = 0;
    daemon->incarnation = ((uint64_t)rank + 1) << 32 | host->generation;
    daemon->worker = (struct rk_worker *)(void *)host;
    daemon->settings.state_dir = state_dirs[rank];
    daemon->settings.lease_ttl_ms = TTL_MS;
    daemon->settings.lease_grace_ms = GRACE_MS;
    daemon->settings.max_inflight_bytes = 1 << 30;
    daemon->settings.chunk_bytes = 1 << 20;
    rk_lease_init(&daemon->lease, daemon->incarnation, host->stored_epoch);
    daemon->requests.limit_bytes = RK_LIMIT_STORED_RESULT_BYTES;
    daemon->requests.drop_result = rk_operation_drop_result;
    daemon->requests.destroy = rk_operation_destroy;
    set_group(&daemon->group, rank);
}

void sim_net_cut_daemon(struct sim_daemon *host);

/* The process crashes: its connections end, and the engine's jobs are lost. */
void sim_daemon_crash(struct sim_daemon *host)
{
    host->is_up = false;
    sim_net_cut_daemon(host);
    while (host->num_queued > 0)
        give_back(host, host->num_queued - 1, RK_FAIL(RK_UNAVAILABLE, "the process is gone"));
    rk_requests_clear(&host->daemon.requests);
    rk_group_clear(&host->daemon.group);
    rk_free(host->daemon.last_error);
    host->daemon.last_error = NULL;
}

void sim_daemon_stop(struct sim_daemon *host)
{
    if (host->is_up)
        sim_daemon_crash(host);
}

void sim_daemon_tick(struct sim_daemon *host)
{
    struct rk_daemon *daemon = &host->daemon;

    if (rk_lease_tick(&daemon->lease, rk_time_boot_ms(), GRACE_MS) == RK_LEASE_LAPSED)
        rk_operations_cancel(daemon, true, "the driver's lease lapsed");
}
