/* The guard thread of an NCCL world: detects failures, names them, and aborts the operations that wait for a
 * lost rank (see comm_nccl_internal.h).
 *
 * An operation on a stream cannot detect that its peer is gone. The guard gets the lost ranks from the peer
 * network and the unfinished operations from the events recorded after them, and puts both into the first
 * error of the world. */
#include "engine/comm/comm_nccl_internal.h"

#include <inttypes.h>
#include <string.h>
#include <time.h>

#include "base/rk_assert.h"
#include "base/rk_str.h"
#include "base/rk_time.h"

#define NS_PER_MS 1000000
#define NS_PER_S  1000000000
/* Interval of the guard's checks. */
#define LOOK_MS 20
/* Heartbeats per progress timeout. */
#define HEARTBEATS 5
/* Delay between telling the peers and aborting. An aborted kernel still sends invalid data, which ends the
 * kernels of its peers. After the delay the peers have read the reason and recorded the operation that they
 * were in. */
#define ABORT_DELAY_MS 50
/* An operation whose peers have left may still be completing: time that it is given. */
#define LEFT_GRACE_NS NS_PER_S
/* NCCL may detect a broken connection before the peer network reports the rank. */
#define NAMING_NS NS_PER_S
/* A call of NCCL takes microseconds. A call of this duration waits for a peer while it holds the lock; the
 * guard then aborts the groups without the lock, which ends the call. */
#define STUCK_CALL_NS NS_PER_S
/* If the guard takes this long to end, it waits for communicators of a device that does not respond. */
#define STOP_NS (10LL * NS_PER_S)

static void lock(pthread_mutex_t *mutex)
{
    RK_ASSERT(pthread_mutex_lock(mutex) == 0);
}

static void unlock(pthread_mutex_t *mutex)
{
    RK_ASSERT(pthread_mutex_unlock(mutex) == 0);
}

/* --- operations that have not ended --- */

static struct rk_nccl_pending *pending_at(struct rk_nccl_world *nccl, int i)
{
    return &nccl->pending[(nccl->first_pending + i) % RK_NCCL_PENDING_MAX];
}

void rk_nccl_pending_begin(struct rk_nccl_world *nccl, struct rk_nccl_op op)
{
    op.begun_ns = rk_time_now_ns();
    lock(&nccl->pending_lock);
    nccl->current = op;
    unlock(&nccl->pending_lock);
}

struct rk_status *rk_nccl_pending_end(struct rk_nccl_world *nccl, struct rk_stream *stream, bool has_begun)
{
    struct rk_nccl_pending *pending = NULL;
    struct rk_status *st = NULL;

    /* A recorded operation does not run now, and an event recorded into a graph cannot be queried. */
    if (has_begun && !rk_stream_is_recording(stream)) {
        lock(&nccl->pending_lock);
        if (nccl->num_pending == RK_NCCL_PENDING_MAX)
            nccl->num_pending--;
        pending = pending_at(nccl, nccl->num_pending); /* stays valid while the guard removes entries from the
                                                        * front */
        unlock(&nccl->pending_lock);
        st = rk_event_record(pending->event, stream);
    }
    lock(&nccl->pending_lock);
    if (pending && !st) {
        pending->op = nccl->current;
        nccl->num_pending++;
    }
    nccl->current = (struct rk_nccl_op){0};
    unlock(&nccl->pending_lock);
    return st;
}

void rk_nccl_pending_drop(struct rk_nccl_world *nccl, const struct rk_comm_group *group)
{
    lock(&nccl->pending_lock);
    for (int i = 0; i < nccl->num_pending; i++) {
        struct rk_nccl_pending *pending = pending_at(nccl, i);

        if (pending->op.group == group)
            pending->op.group = NULL;
    }
    unlock(&nccl->pending_lock);
}

/* Guard. */
static void remove_ended(struct rk_nccl_world *nccl)
{
    struct rk_event *oldest;

    for (;;) {
        lock(&nccl->pending_lock);
        oldest = nccl->num_pending > 0 ? pending_at(nccl, 0)->event : NULL;
        unlock(&nccl->pending_lock);
        if (!oldest || !rk_event_query(oldest))
            return;
        lock(&nccl->pending_lock); /* only this thread removes entries */
        nccl->first_pending = (nccl->first_pending + 1) % RK_NCCL_PENDING_MAX;
        nccl->num_pending--;
        nccl->ended_ns = rk_time_now_ns();
        unlock(&nccl->pending_lock);
    }
}

bool rk_nccl_pending_is_empty(struct rk_nccl_world *nccl)
{
    bool is_empty;

    lock(&nccl->pending_lock);
    is_empty = nccl->num_pending == 0;
    unlock(&nccl->pending_lock);
    return is_empty;
}

/* The first unfinished operation, which blocks the others; NULL when none is running. Under pending_lock. */
static const struct rk_nccl_op *find_running(struct rk_nccl_world *nccl)
{
    for (int i = 0; i < nccl->num_pending; i++) {
        if (pending_at(nccl, i)->op.group)
            return &pending_at(nccl, i)->op;
    }
    return nccl->current.group ? &nccl->current : NULL;
}

static const char *op_text(const struct rk_nccl_op *op, char text[RK_COMM_DOING_BYTES])
{
    return rk_comm_doing_text(&op->doing, op->group->name, text);
}

/* Time at which the operation became the first. */
static int64_t first_since_ns(const struct rk_nccl_world *nccl, const struct rk_nccl_op *op)
{
    return RK_MAX(op->begun_ns, nccl->ended_ns);
}

void rk_nccl_activity(struct rk_nccl_world *nccl, struct rk_comm_activity *inout)
{
    const struct rk_nccl_op *op;

    lock(&nccl->pending_lock);
    op = find_running(nccl);
    if (op) {
        inout->in_operation = true;
        inout->started_ns = first_since_ns(nccl, op);
        op_text(op, inout->name);
    }
    unlock(&nccl->pending_lock);
}

/* --- looking --- */

/* Ranks that are in another operation, according to their heartbeats. */
static struct rk_status *not_arrived(struct rk_nccl_world *nccl, const struct rk_nccl_op *op)
{
    char mine[RK_COMM_DOING_BYTES], theirs[RK_COMM_DOING_BYTES];
    struct rk_str ranks = {0};
    struct rk_status *st;
    int num_ranks = 0;
    int32_t last = 0;

    op_text(op, mine);
    for (int32_t i = 0; i < op->group->size; i++) {
        int32_t rank = op->group->world_ranks[i];

        if (rank == nccl->world->rank ||
            strcmp(rk_comm_control_doing(nccl->control, rank, theirs), mine) == 0)
            continue;
        rk_str_appendf(&ranks, "%s%d", num_ranks++ ? ", " : "", rank);
        last = rank;
    }
    st = RK_FAIL_REASON(RK_DEADLINE_EXCEEDED, "WATCHDOG", "%s%s%s within %" PRId64 " ms",
                        num_ranks == 0   ? ""
                        : num_ranks == 1 ? "rank "
                                         : "ranks ",
                        rk_str_text(&ranks),
                        num_ranks == 0 ? "did not end, with all ranks in it," : " did not arrive",
                        nccl->collective_ns / NS_PER_MS);
    rk_str_fini(&ranks);
    return num_ranks == 1 ? rk_status_blame(st, last) : st;
}

/* The reason why the operation can no longer complete, or NULL. `age_ns`: how long it has been the first. */
static struct rk_status *judge_op(struct rk_nccl_world *nccl, const struct rk_nccl_op *op, int64_t now_ns,
                                  int64_t age_ns)
{
    for (int32_t i = 0; i < op->group->size; i++) {
        int32_t rank = op->group->world_ranks[i];
        int64_t seen_ns;

        if (rank == nccl->world->rank)
            continue;
        if (nccl->left_ns[rank] > 0) {
            if (now_ns - nccl->left_ns[rank] > LEFT_GRACE_NS && age_ns > LEFT_GRACE_NS)
                return rk_status_blame(
                    RK_FAIL_REASON(RK_ABORTED, "PEER_LOST", "rank %d is lost: it left the world", rank),
                    rank);
            continue;
        }
        seen_ns = RK_MAX(rk_comm_control_seen_ns(nccl->control, rank), nccl->started_ns);
        if (now_ns - seen_ns > nccl->progress_ns && age_ns > nccl->progress_ns)
            return rk_status_blame(RK_FAIL_REASON(RK_DEADLINE_EXCEEDED, "WATCHDOG",
                                                  "rank %d went silent for %" PRId64 " ms", rank,
                                                  nccl->progress_ns / NS_PER_MS),
                                   rank);
    }
    return age_ns > nccl->collective_ns ? not_arrived(nccl, op) : NULL;
}

/* Prefixes a failure `st` (taken; NULL: judge_op() makes it) with the name of the running operation, as of
 * the guard's last check. */
static struct rk_status *judge(struct rk_nccl_world *nccl, struct rk_status *st)
{
    int64_t now_ns = rk_time_now_ns();
    const struct rk_nccl_op *op;
    char text[RK_COMM_DOING_BYTES];

    lock(&nccl->pending_lock);
    op = find_running(nccl);
    if (op && !st)
        st = judge_op(nccl, op, now_ns, now_ns - first_since_ns(nccl, op));
    if (op && st)
        st = RK_WRAP(st, "%s", op_text(op, text));
    unlock(&nccl->pending_lock);
    return st;
}

static void send_heartbeat(struct rk_nccl_world *nccl)
{
    char text[RK_COMM_DOING_BYTES] = "";
    const struct rk_nccl_op *op;

    lock(&nccl->pending_lock);
    op = find_running(nccl);
    if (op)
        op_text(op, text);
    unlock(&nccl->pending_lock);
    rk_comm_control_heartbeat(nccl->control, text);
}

/* The first asynchronous error of NCCL, or SUCCESS. A call in progress returns its own error. */
static rk_nccl_result_t async_error(struct rk_nccl_world *nccl)
{
    rk_nccl_result_t found = RK_NCCL_SUCCESS;

    if (pthread_mutex_trylock(&nccl->call_lock) != 0)
        return RK_NCCL_SUCCESS;
    for (struct rk_nccl_group *group = atomic_load(&nccl->groups); group && found == RK_NCCL_SUCCESS;
         group = group->next) {
        if (!group->comm)
            continue;
        if (nccl->api->comm_get_async_error(group->comm, &found) != RK_NCCL_SUCCESS)
            found = RK_NCCL_INTERNAL_ERROR;
        if (found == RK_NCCL_IN_PROGRESS)
            found = RK_NCCL_SUCCESS;
    }
    unlock(&nccl->call_lock);
    return found;
}

static struct rk_status *look_at_nccl(struct rk_nccl_world *nccl, int64_t now_ns)
{
    rk_nccl_result_t error = async_error(nccl);

    if (error == RK_NCCL_SUCCESS)
        return NULL;
    if (nccl->async_error_ns == 0)
        nccl->async_error_ns = now_ns;
    if (now_ns - nccl->async_error_ns < NAMING_NS)
        return NULL;
    return RK_FAIL(RK_INTERNAL, "NCCL: %s", nccl->api->get_error_string(error));
}

static void look(struct rk_nccl_world *nccl)
{
    int64_t now_ns = rk_time_now_ns();
    struct rk_status *st = rk_comm_world_check(nccl->control);

    remove_ended(nccl);
    if (!st)
        st = look_at_nccl(nccl, now_ns);
    for (int32_t r = 0; r < nccl->world->size; r++) {
        if (nccl->left_ns[r] == 0 && rk_comm_control_has_left(nccl->control, r))
            nccl->left_ns[r] = now_ns;
    }
    if (now_ns - nccl->heartbeat_ns > nccl->progress_ns / HEARTBEATS) {
        nccl->heartbeat_ns = now_ns;
        send_heartbeat(nccl);
    }
    st = judge(nccl, st);
    if (st)
        rk_comm_world_fail(nccl->world, st);
}

void rk_nccl_guard_poll(struct rk_nccl_world *nccl)
{
    struct rk_status *st = rk_comm_world_check(nccl->control);

    if (st)
        rk_comm_world_fail(nccl->world, judge(nccl, st));
}

/* --- aborting --- */

/* False when the engine thread is blocked in a call. */
static bool lock_calls(struct rk_nccl_world *nccl)
{
    int64_t deadline_ns = rk_time_now_ns() + STUCK_CALL_NS;

    while (pthread_mutex_trylock(&nccl->call_lock) != 0) {
        if (rk_time_now_ns() > deadline_ns)
            return false;
        rk_time_sleep_ms(1);
    }
    return true;
}

/* Aborts the kernels and calls of all groups; results are ignored. One NCCL group call for all: a kernel of
 * one communicator may be queued behind a kernel of another, so all must be aborted before the first is
 * waited for. */
static void abort_begin(const struct rk_nccl_world *nccl)
{
    (void)nccl->api->group_start();
    for (struct rk_nccl_group *group = atomic_load(&nccl->groups); group; group = group->next) {
        if (group->comm)
            (void)nccl->api->comm_abort(group->comm);
    }
}

/* Waits for the aborts, and for the graphs that refer to the communicators to be destroyed. A split in
 * progress ends with the world's communicator, and may still create a child. */
static void abort_end(const struct rk_nccl_world *nccl)
{
    (void)nccl->api->group_end();
    if (nccl->comm)
        (void)nccl->api->comm_abort(nccl->comm);
    if (nccl->child)
        (void)nccl->api->comm_abort(nccl->child);
}

void rk_nccl_abort_comms(struct rk_nccl_world *nccl)
{
    bool is_locked;

    atomic_store(&nccl->is_down, true);
    is_locked = lock_calls(nccl);
    if (nccl->api)
        abort_begin(nccl);
    if (!is_locked) /* NCCL would free memory that the call in progress uses, and the call may create more
                     * communicators */
        lock(&nccl->call_lock);
    /* The engine thread makes no NCCL call from here on. It may wait for is_down before it destroys its
     * graphs. */
    unlock(&nccl->call_lock);
    if (nccl->api)
        abort_end(nccl);
    lock(&nccl->call_lock);
    for (struct rk_nccl_group *group = atomic_load(&nccl->groups); group; group = group->next)
        group->comm = NULL;
    nccl->comm = NULL;
    nccl->child = NULL;
    unlock(&nccl->call_lock);
}

void rk_nccl_guard_abort(struct rk_nccl_world *nccl)
{
    lock(&nccl->guard_lock);
    nccl->is_abort_wanted = true;
    pthread_cond_signal(&nccl->wakes_guard);
    unlock(&nccl->guard_lock);
}

/* --- the thread --- */

/* Waits until the next check or a signal. Under guard_lock. */
static void wait_a_little(struct rk_nccl_world *nccl)
{
    struct timespec until;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_nsec += LOOK_MS * NS_PER_MS;
    if (until.tv_nsec >= NS_PER_S) {
        until.tv_nsec -= NS_PER_S;
        until.tv_sec++;
    }
    pthread_cond_timedwait(&nccl->wakes_guard, &nccl->guard_lock, &until);
}

static void *guard_main(void *user)
{
    struct rk_nccl_world *nccl = user;
    struct rk_status *st;

    pthread_setname_np(pthread_self(), "rk-nccl-guard");
    st = rk_device_use(nccl->device);
    if (st)
        rk_comm_world_fail(nccl->world, st);
    lock(&nccl->guard_lock);
    while (!nccl->is_stopping || (nccl->is_abort_wanted && !nccl->is_aborted)) {
        bool aborts = nccl->is_abort_wanted && !nccl->is_aborted;

        if (!aborts)
            wait_a_little(nccl);
        unlock(&nccl->guard_lock);
        if (aborts) {
            rk_time_sleep_ms(atomic_load(&nccl->world->has_failed) ? ABORT_DELAY_MS : 0);
            rk_nccl_abort_comms(nccl);
            nccl->is_aborted = true;
        } else if (!nccl->is_aborted) {
            look(nccl);
        }
        lock(&nccl->guard_lock);
    }
    unlock(&nccl->guard_lock);
    atomic_store(&nccl->is_guard_done, true);
    return NULL;
}

struct rk_status *rk_nccl_guard_start(struct rk_nccl_world *nccl)
{
    int rc;

    nccl->started_ns = rk_time_now_ns();
    rc = pthread_create(&nccl->guard, NULL, guard_main, nccl);
    if (rc != 0)
        return RK_FAIL(RK_RESOURCE_EXHAUSTED, "thread that guards the collectives: %s", strerror(rc));
    nccl->has_guard = true;
    return NULL;
}

bool rk_nccl_guard_stop(struct rk_nccl_world *nccl)
{
    int64_t deadline_ns = rk_time_now_ns() + STOP_NS;

    if (!nccl->has_guard)
        return true;
    lock(&nccl->guard_lock);
    nccl->is_stopping = true;
    pthread_cond_signal(&nccl->wakes_guard);
    unlock(&nccl->guard_lock);
    nccl->has_guard = false;
    while (!atomic_load(&nccl->is_guard_done)) {
        if (rk_time_now_ns() > deadline_ns) {
            pthread_detach(nccl->guard);
            return false;
        }
        rk_time_sleep_ms(1);
    }
    pthread_join(nccl->guard, NULL);
    return true;
}
