/* The engine of a simulated daemon (worker/rk_worker.h). The ranks of a call meet, as in a collective, and
 * each applies the mutation when its part of the call ends. Communicators break when a rank dies, when one is
 * told to abort them, or when one fails alone. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_random.h"
#include "dispatch/rk_batch.h"
#include "tests/unit/sim/host.h"
#include "daemon/operation_internal.h"

#define STUCK_MS 25000 /* the watchdog's limit for a collective */

static const struct {
    const char *name;
    sim_role_t role;
} roles[] = {{"actor", SIM_ACTOR}, {"rollout", SIM_ACTOR}, {"critic", SIM_CRITIC}};

bool sim_role_has_rank(sim_role_t role, int32_t rank)
{
    return role == SIM_ACTOR ? rank < 2 : rank > 0;
}

static struct sim_host *host_of(struct rk_worker *worker)
{
    return (struct sim_host *)(void *)worker;
}

const char *rk_role_state_name(rk_role_state_t state)
{
    return state == RK_ROLE_STATE_AWAKE ? "AWAKE" : "EMPTY";
}

void rk_worker_get_snapshot(struct rk_worker *worker, struct rk_worker_snapshot *out)
{
    struct sim_host *host = host_of(worker);

    memset(out, 0, sizeof(*out));
    out->is_configured = host->world != 0;
    out->mesh_generation = host->mesh_generation;
    for (size_t i = 0; i < RK_ARRAY_LEN(roles); i++) {
        if (!sim_role_has_rank(roles[i].role, host->rank))
            continue;
        snprintf(out->roles[out->num_roles].role, sizeof(out->roles[0].role), "%s", roles[i].name);
        out->roles[out->num_roles++].state = host->world != 0 ? RK_ROLE_STATE_AWAKE : RK_ROLE_STATE_EMPTY;
    }
    out->running = host->num_queued > 0 ? host->queue[0].job : NULL;
}

/* --- the end of a job --- */

static void look_later(struct sim_host *host);

/* Hands the job at `i` back, with that status, which it takes. */
static void give_back(struct sim_host *host, int i, struct rk_status *st)
{
    struct rk_job *job = host->queue[i].job;

    host->num_queued--;
    memmove(&host->queue[i], &host->queue[i + 1], (size_t)(host->num_queued - i) * sizeof(host->queue[0]));
    job->status = st;
    rk_loop_post(host->daemon.loop, job->user);
    look_later(host);
}

static struct sim_job *head_of(struct sim_host *host)
{
    return host && !host->process->is_dead && host->num_queued > 0 ? &host->queue[0] : NULL;
}

static void lose_comm(struct sim_host *host, struct rk_status *why)
{
    struct sim_job *head = head_of(host);

    host->world = 0;
    if (head && head->tag)
        give_back(host, 0, why);
    else
        rk_status_free(why);
}

/* Called when a peer's connection has ended. */
static void notice_break(void *user, uint64_t world)
{
    struct sim_host *host = user;

    if (!host->process->is_dead && host->world == world)
        lose_comm(host, RK_FAIL_REASON(RK_ABORTED, "PEER_LOST", "a peer is gone"));
}

static void break_world(uint64_t world)
{
    for (int32_t rank = 0; rank < SIM_RANKS && world; rank++) {
        struct sim_host *host = sim->hosts[rank];

        if (host && host->world == world)
            sim_at(host->process, sim_between_ns(0, 20), notice_break, host, world);
    }
}

/* --- execution of jobs --- */

/* Applies the mutation on one rank. */
static void apply(struct sim_host *host, uint64_t tag)
{
    struct sim_call *call = &sim->calls[tag];

    sim->num_applied++;
    if (++call->applied[host->rank] > 1)
        sim_fail("call %d was applied %d times on rank %d", (int)tag, call->applied[host->rank], host->rank);
    if (call->verdict == SIM_NOT_APPLIED || call->verdict == SIM_DONE)
        sim_fail("call %d was applied on rank %d after its driver had said that it %s", (int)tag, host->rank,
                 call->verdict == SIM_DONE ? "was done" : "had not been");
    if (call->kind == SIM_LOAD) {
        host->states[call->role] = sim->saved[call->step][call->role];
        host->has_model[call->role] = true;
    } else if (call->kind == SIM_UPDATE) {
        host->states[call->role] =
            (host->states[call->role] * 6364136223846793005ULL + (uint64_t)call->step) >> 16;
    }
}

static void save(struct sim_host *host, const struct sim_call *call)
{
    uint64_t state = host->states[call->role];

    if (call->kind != SIM_SAVE || host->rank != 1) /* the rank that has both roles writes */
        return;
    if (state != sim_state_after(call->role, call->step))
        sim_fail("the checkpoint of step %d has not what an undisturbed run has then", call->step);
    sim->saved[call->step][call->role] = state;
    sim->is_saved[call->step][call->role] = true;
}

/* Each row's response is computed from the row. */
static struct rk_status *generate(struct rk_job *job)
{
    int64_t shape[2], num_rows = rk_batch_num_rows(job->call.input);
    const int64_t *prompts;
    const void *data;
    void *out;

    RK_TRY(rk_batch_get_dense(job->call.input, "prompts", RK_DTYPE_I64, 2, shape, &data));
    prompts = data;
    RK_TRY(rk_batch_create(&job->call.output, num_rows));
    RK_TRY(rk_batch_add_dense(job->call.output, "responses", RK_DTYPE_I64, 2, shape, &out));
    for (int64_t i = 0; i < num_rows * shape[1]; i++)
        ((int64_t *)out)[i] = 3 * prompts[i] + 1;
    return NULL;
}

static struct rk_status *run_method(struct sim_host *host, const struct sim_job *head)
{
    struct sim_call *call = &sim->calls[head->tag];

    if (sim_chance(0.005)) {
        break_world(host->world);
        host->world = 0;
        return RK_FAIL_REASON(RK_RESOURCE_EXHAUSTED, "DEVICE_OOM", "no memory on this rank");
    }
    if (call->kind == SIM_GENERATE)
        return generate(head->job);
    if (call->kind != SIM_SAVE)
        apply(host, head->tag);
    save(host, call);
    rk_job_add_metric(&head->job->call, "tag", (double)head->tag, "last");
    rk_job_add_metric(&head->job->call, "state", (double)host->states[call->role], "last");
    return NULL;
}

static void join_world(struct sim_host *host, const struct rk_job_configure *job)
{
    memcpy(&host->world, job->comm_id, sizeof(host->world));
    host->mesh_generation = job->mesh_generation;
}

static void finish_head(void *user, uint64_t number)
{
    struct sim_host *host = user;
    struct sim_job *head = head_of(host);
    struct rk_status *st = NULL;

    if (!head || head->number != number)
        return; /* it was aborted, or the process is gone */
    if (head->tag)
        st = run_method(host, head);
    else if (head->job->kind == RK_JOB_CONFIGURE)
        join_world(host, &head->job->configure);
    give_back(host, 0, st);
}

/* --- meeting --- */

static bool is_addressed(const struct sim_job *job, int32_t rank)
{
    return job->tag ? sim_role_has_rank(sim->calls[job->tag].role, rank) : true;
}

/* Both are the same job of the same world. */
static bool is_same(const struct sim_host *host, const struct sim_job *job, struct sim_host *other)
{
    const struct sim_job *head = head_of(other);

    if (!head || head->job->kind != job->job->kind || head->has_met || !head->begun_ns)
        return false;
    if (job->job->kind == RK_JOB_CONFIGURE)
        return memcmp(head->job->configure.comm_id, job->job->configure.comm_id,
                      sizeof(job->job->configure.comm_id)) == 0;
    return head->tag == job->tag && host->world != 0 && other->world == host->world;
}

static bool all_are_here(struct sim_host *host, const struct sim_job *job)
{
    for (int32_t rank = 0; rank < SIM_RANKS; rank++) {
        if (is_addressed(job, rank) && !is_same(host, job, sim->hosts[rank]))
            return false;
    }
    return true;
}

/* Whether all ranks have been told to stop and can agree to stop. */
static bool all_are_flagged(const struct sim_job *job)
{
    for (int32_t rank = 0; rank < SIM_RANKS; rank++) {
        if (is_addressed(job, rank) && !sim->hosts[rank]->queue[0].is_flagged)
            return false;
    }
    return true;
}

static void meet(const struct sim_job *job)
{
    struct sim_job given = *job;
    bool is_stopped = given.tag && all_are_flagged(&given);
    int64_t duration_ns = sim_between_ns(1, 300);

    for (int32_t rank = 0; rank < SIM_RANKS; rank++) {
        struct sim_host *host = sim->hosts[rank];

        if (!is_addressed(&given, rank))
            continue;
        if (is_stopped) {
            give_back(host, 0, RK_FAIL(RK_CANCELLED, "stopped where all ranks agree"));
            continue;
        }
        if (given.tag && host->queue[0].epoch != host->daemon.lease.epoch)
            sim_fail("call %d of epoch %d began on rank %d in epoch %d", (int)given.tag,
                     (int)host->queue[0].epoch, rank, (int)host->daemon.lease.epoch);
        host->queue[0].has_met = true;
        sim_at(host->process, duration_ns + sim_between_ns(0, 30), finish_head, host, host->queue[0].number);
    }
}

static void give_up(void *user, uint64_t number)
{
    struct sim_host *host = user;
    struct sim_job *head = head_of(host);

    if (!head || head->number != number || head->has_met)
        return;
    if (!head->tag) {
        give_back(host, 0, RK_FAIL(RK_DEADLINE_EXCEEDED, "the others did not come"));
        return;
    }
    break_world(host->world);
    lose_comm(host, RK_FAIL_REASON(RK_ABORTED, "COLLECTIVE_TIMEOUT", "the others did not come"));
}

static void begin_head(struct sim_host *host, struct sim_job *head)
{
    struct rk_job *job = head->job;

    head->begun_ns = sim->world.now_ns;
    if (job->kind == RK_JOB_OPEN_ENDPOINT) {
        struct rk_job_endpoint *endpoint = &job->endpoint;

        snprintf(endpoint->comm_address, sizeof(endpoint->comm_address), "sim:%d", host->rank);
        if (endpoint->make_comm_id)
            RK_IGNORE(rk_random_bytes(endpoint->comm_id, sizeof(endpoint->comm_id)), "it cannot fail here");
        sim_at(host->process, sim_between_ns(0, 10), finish_head, host, head->number);
        return;
    }
    if (job->kind == RK_JOB_CONFIGURE && host->world != 0) {
        break_world(host->world); /* this rank leaves it */
        host->world = 0;
    }
    sim_at(host->process, SIM_MS(STUCK_MS), give_up, host, head->number);
}

static void look(void *user, uint64_t arg)
{
    struct sim_host *host = user;
    struct sim_job *head = head_of(host);

    (void)arg;
    if (!head || head->has_met)
        return;
    if (!head->begun_ns)
        begin_head(host, head);
    if (head->tag && host->world == 0) {
        give_back(host, 0, RK_FAIL_REASON(RK_ABORTED, "COMM_ABORTED", "the communicators are gone"));
        return;
    }
    if (head->job->kind != RK_JOB_OPEN_ENDPOINT && all_are_here(host, head))
        meet(head);
}

static void look_later(struct sim_host *host)
{
    sim_at(host->process, sim_between_ns(0, 2), look, host, 0);
}

/* --- worker/rk_worker.h --- */

void rk_worker_submit(struct rk_worker *worker, struct rk_job *job)
{
    struct sim_host *host = host_of(worker);
    struct sim_job *queued = &host->queue[host->num_queued++];

    RK_ASSERT(host->num_queued <= SIM_QUEUE);
    *queued = (struct sim_job){.job = job, .number = ++host->next_number};
    if (job->kind == RK_JOB_METHOD) {
        const struct rk_operation *operation = RK_CONTAINER_OF(job->user, struct rk_operation, done_event);

        queued->tag = (uint64_t)(job->call.timeout_ms - SIM_TIMEOUT_MS);
        queued->epoch = operation->epoch;
        if (!host->process->is_dead)
            sim_check_order(host->rank, operation, &host->submitted_epoch, &host->submitted_seq);
    }
    if (host->process->is_dead)
        give_back(host, host->num_queued - 1, RK_FAIL(RK_UNAVAILABLE, "the process is gone"));
    else
        look_later(host);
}

/* A job whose ranks have all started may be past the point at which it can be stopped. */
static bool can_abort(const struct sim_job *job)
{
    return !job->has_met || sim_random(2) == 0;
}

const char *rk_worker_cancel(struct rk_worker *worker, struct rk_job *job, bool abort_comm,
                             const char *reason)
{
    struct sim_host *host = host_of(worker);

    for (int i = 0; i < host->num_queued; i++) {
        struct sim_job *queued = &host->queue[i];

        if (queued->job != job)
            continue;
        if (abort_comm && sim->defect == SIM_DEFECT_NO_CANCEL)
            return "flagged";
        queued->is_flagged = true;
        if (!abort_comm || !can_abort(queued))
            return "flagged";
        if (queued->tag) {
            break_world(host->world);
            host->world = 0;
        }
        give_back(host, i, RK_FAIL(RK_CANCELLED, "%s", reason));
        return "aborted";
    }
    return "not_found";
}

void rk_worker_abort_comm(struct rk_worker *worker, const char *reason)
{
    struct sim_host *host = host_of(worker);
    struct sim_job *head = head_of(host);

    if (head && !can_abort(head))
        return;
    break_world(host->world);
    lose_comm(host, RK_FAIL_REASON(RK_ABORTED, "COMM_ABORTED", "%s", reason));
}

void sim_engine_crash(struct sim_host *host)
{
    uint64_t world = host->world;

    host->world = 0;
    while (host->num_queued > 0)
        give_back(host, host->num_queued - 1, RK_FAIL(RK_UNAVAILABLE, "the process is gone"));
    sim->hosts[host->rank] = NULL;
    break_world(world);
}
