/* One method call: the parts that all methods share before and after their handlers.
 *
 * A call must not leave its peers waiting. State and request are checked before the work begins, and the
 * ranks agree on the outcome (rk_method_call_agree, rk_method_call_begin): then all run or none. A rank that
 * fails alone later on (memory, a lost device) aborts the world, so that its peers get an error instead of a
 * timeout. */
#include "worker/worker_internal.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_fault.h"
#include "base/rk_host_memory.h"
#include "base/rk_str.h"
#include "base/rk_time.h"

#define ARENA_BLOCK_BYTES (64 << 10)

static void on_progress(void *user, const char *phase, uint64_t done, uint64_t total)
{
    const struct rk_method_call *call = user;

    rk_worker_tick(call->worker, phase, done, total);
}

/* Progress was reported already: this informs only the watchdog. */
static void on_alive(void *user)
{
    struct rk_worker *worker = ((const struct rk_method_call *)user)->worker;

    pthread_mutex_lock(&worker->lock);
    worker->running.last_tick_ns = rk_time_now_ns();
    pthread_mutex_unlock(&worker->lock);
}

static void on_rollout(void *user, const struct rk_rollout_load *load)
{
    struct rk_worker *worker = ((const struct rk_method_call *)user)->worker;
    struct rk_worker_snapshot *snapshot = &worker->snapshot;

    pthread_mutex_lock(&worker->lock);
    snapshot->rollout_running = (uint64_t)load->num_running;
    snapshot->rollout_waiting = (uint64_t)load->num_waiting;
    snapshot->kv_blocks_used = (uint64_t)load->num_used_kv_blocks;
    snapshot->kv_blocks = (uint64_t)load->num_kv_blocks;
    pthread_mutex_unlock(&worker->lock);
}

static bool is_cancelled(void *user)
{
    const struct rk_method_call *call = user;

    return atomic_load(&call->worker->is_cancel_requested);
}

void rk_method_call_progress(struct rk_method_call *call, const char *phase, uint64_t done, uint64_t total)
{
    on_progress(call, phase, done, total);
}

static struct rk_comm_group *group_of(const struct rk_method_call *call)
{
    return call->group ? call->group : rk_mesh_comms_group(call->role->comms, RK_GROUP_ALL);
}

struct rk_status *rk_method_call_agree(struct rk_method_call *call, struct rk_status *st)
{
    return rk_engine_agree(group_of(call), call->worker->stream, call->worker->agree_scratch, st);
}

struct rk_status *rk_method_call_begin(struct rk_method_call *call, struct rk_status *st)
{
    RK_TRY(rk_method_call_agree(call, st));
    call->peers_wait = true;
    return NULL;
}

struct rk_status *rk_method_call_check_cancel(struct rk_method_call *call)
{
    struct rk_worker *worker = call->worker;

    return rk_engine_check_cancel(&call->hooks, group_of(call), worker->stream, worker->agree_scratch);
}

bool rk_method_call_is_collector(const struct rk_method_call *call)
{
    return rk_mesh_is_collector(call->role->mesh, call->worker->rank);
}

void rk_method_call_add_memory_metrics(struct rk_method_call *call)
{
    const struct rk_role *role = call->role;
    char name[64];
    double gib = 1024.0 * 1024.0 * 1024.0,
           bytes = (double)rk_device_get_stats(call->worker->device).peak_bytes;

    rk_job_add_metric(call->job, "perf/max_memory_allocated_gb", bytes / gib, "max");
    rk_job_add_metric(call->job, "perf/cpu_memory_used_gb", (double)rk_host_used_bytes("") / gib, "max");
    snprintf(name, sizeof(name), "%s/memory_overflows", role->name);
    rk_job_add_metric(call->job, name, (double)rk_model_get_memory(role->model).step_overflows, "max");
}

/* The role that the call addresses. The result is the same on all ranks unless this rank has lost its peers.
 */
static struct rk_status *find_role(struct rk_role **out, struct rk_worker *worker,
                                   const struct rk_job_call *job)
{
    struct rk_role *role;

    if (!worker->world)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NOT_CONFIGURED",
                              "the daemon has no communicators; call Configure before %s.%s", job->role,
                              job->method->name);
    if (!(rk_role_parse(job->role) & job->method->roles))
        return RK_FAIL(RK_INVALID_ARGUMENT, "role '%s' has no method %s", job->role, job->method->name);
    role = *out = rk_role_find(worker, job->role);
    if (!role) {
        char *names = rk_role_names(worker);
        struct rk_status *st =
            RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NOT_CONFIGURED",
                           "role '%s' has no mesh; configured roles: %s", job->role, names);

        rk_free(names);
        return st;
    }
    return NULL;
}

/* Whether the role can run the method now. It may differ from rank to rank: an update was interrupted on
 * some, of this role or of the one whose weights it uses, or some were cancelled before they began. */
static struct rk_status *check_state(struct rk_worker *worker, const struct rk_role *role,
                                     const struct rk_job_call *job)
{
    const struct rk_weights *weights = role->weights;

    if (atomic_load(&worker->is_cancel_requested))
        return RK_FAIL(RK_CANCELLED, "cancelled before it began");
    if (role->state != RK_ROLE_STATE_AWAKE)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NO_MODEL",
                              "role '%s' is %s: %s needs a model; call init_model first", job->role,
                              rk_role_state_name(role->state), job->method->name);
    if (weights->are_missing)
        return RK_FAIL_REASON(
            RK_FAILED_PRECONDITION, "NO_MODEL",
            "role '%s' was built without weights (rollout.load_format=dummy); call update_weights first",
            rk_role_name(weights->owner->bit));
    if (weights->is_suspect)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "NO_MODEL",
                              "role '%s': %s was interrupted, its weights may be mixed; call %s first",
                              rk_role_name(weights->owner->bit),
                              weights->owner->generates ? "update_weights" : "an optimizer step",
                              weights->owner->generates ? "update_weights or init_model" : "init_model");
    return NULL;
}

/* Whether other ranks take part in the call's collectives. */
static bool has_peers(const struct rk_method_call *call)
{
    return rk_comm_group_size(group_of(call)) > 1;
}

/* Aborts the world so that peers stop waiting. Not needed after a communicator error, an agreed cancel or
 * NON_FINITE: peers know. */
static void release_peers(struct rk_method_call *call, const struct rk_status *st)
{
    struct rk_worker *worker = call->worker;
    struct rk_status *comm_error = rk_comm_world_check(worker->world);
    bool is_shared =
        comm_error || rk_status_code(st) == RK_CANCELLED || strcmp(rk_status_reason(st), "NON_FINITE") == 0;
    char label[RK_JOB_LABEL_BYTES];
    char *reason;

    rk_status_free(comm_error);
    if (is_shared || !call->peers_wait || !has_peers(call))
        return;
    reason = rk_format("%s failed: %s", rk_job_call_label(call->job, label), rk_status_message(st));
    rk_worker_give_up(worker, reason);
    rk_free(reason);
}

/* If another rank caused the failure: adds its number and its coordinates in the mesh. */
static struct rk_status *name_culprit(const struct rk_method_call *call, struct rk_status *st)
{
    int32_t rank = rk_status_blamed_rank(st);
    const struct rk_role *role = call->role, *source = call->worker->weight_update.source;
    char place[RK_MESH_PLACE_BYTES];

    if (rank < 0 || rank == call->worker->rank)
        return st;
    if (!rk_mesh_place_text(role->mesh, rank, place) && source && /* update_weights is between two roles */
        rk_mesh_place_text(source->mesh, rank, place))
        role = source;
    return RK_WRAP(st, "because of rank %d (%s%s%s)", rank, role->name, *place ? ": " : "", place);
}

void *rk_method_call_alloc(struct rk_method_call *call, int64_t count, size_t elem_bytes)
{
    RK_ASSERT(count >= 0);
    return rk_arena_calloc(call->arena, (size_t)count, elem_bytes);
}

struct rk_status *rk_method_call_no_memory(const struct rk_method_call *call)
{
    char label[RK_JOB_LABEL_BYTES];

    return RK_FAIL(RK_RESOURCE_EXHAUSTED, "not enough host memory for the columns of %s",
                   rk_job_call_label(call->job, label));
}

/* Runs the handler with the needed parts of the role's model on the device. */
static struct rk_status *run_method(struct rk_method_call *call)
{
    bool is_any_state = call->job->method->flags & RK_MF_ANY_STATE;
    struct rk_status *st = NULL, *left;

    if (!is_any_state && rk_role_moves(call->role))
        st = RK_WRAP(rk_method_call_agree(call, rk_method_call_onload(call)),
                     "copying parts of the model to the device");
    if (!st) {
        call->peers_wait = RK_FAULT("worker.before_method");
        st = call->peers_wait ? RK_FAIL(RK_INTERNAL, "fault point worker.before_method")
                              : rk_method_handler(call->job->method->id)(call);
    }
    if (st)
        release_peers(call, st); /* before anything here waits for a stream on which they are waited for */
    left = rk_method_call_offload(call);
    if (!st && left)
        release_peers(call, left);
    return rk_status_first(st, left);
}

struct rk_status *rk_method_call_run(struct rk_worker *worker, struct rk_job_call *job)
{
    struct rk_method_call call = {
        .worker = worker,
        .job = job,
        .hooks = {.user = &call,
                  .on_progress = on_progress,
                  .is_cancelled = is_cancelled,
                  .on_alive = on_alive,
                  .on_rollout = on_rollout},
    };
    struct rk_status *st;

    RK_ASSERT_ENGINE_THREAD(worker);
    RK_TRY(find_role(&call.role, worker, job));
    if (!(job->method->flags & RK_MF_ANY_STATE)) {
        /* ONE_TO_ALL reaches ranks outside the role's mesh too. They skip steps that need a model. */
        if (!rk_mesh_comms_is_member(call.role->comms))
            return NULL;
        st = rk_method_call_agree(&call, check_state(worker, call.role, job));
        if (st)
            return name_culprit(&call, st);
    }
    rk_worker_tick(worker, job->method->name, 0, 0);
    call.arena = rk_arena_create(ARENA_BLOCK_BYTES, 0);
    st = run_method(&call);
    rk_arena_destroy(call.arena);
    return name_culprit(&call, st);
}
