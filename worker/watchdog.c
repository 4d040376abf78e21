/* Thread W: ends jobs that take too long.
 *
 * A job is ended when it exceeds its own timeout, when one collective lasts longer than watchdog.collective,
 * or when it makes no progress for watchdog.idle_progress outside collectives (progress: a tick of the
 * method, or a further collective). Ending means: the job is cancelled, and the communicators are
 * aborted, because a rank that waits in a collective does not check for a cancel. The job then fails with
 * DEADLINE_EXCEEDED here and ABORTED on the peers. When the communicators had failed before, their error
 * is kept: it is nearer to the cause.
 *
 * A job that has not ended watchdog.engine_grace later is stuck: a kernel that hangs, a file system that does
 * not respond. The worker has failed then, and calls that wait for the job are answered without it. */
#include "worker/worker_internal.h"

#include <time.h>

#include "base/rk_alloc.h"
#include "base/rk_flight.h"
#include "base/rk_log.h"
#include "base/rk_str.h"
#include "base/rk_time.h"

#define POLL_MS   20
#define NS_PER_MS 1000000
/* The communicator has the same limit and names the peer that did not arrive; W acts when it does not
 * respond. */
#define COLLECTIVE_GRACE_MS 1000

/* `has_failed`: because this rank failed, and not on request. */
static void abort_world(struct rk_worker *worker, const char *reason, bool has_failed)
{
    if (!worker->world || worker->is_world_aborted)
        return;
    worker->is_world_aborted = true;
    if (has_failed)
        rk_comm_world_give_up(worker->world, reason);
    else
        rk_comm_world_abort(worker->world, reason);
    pthread_cond_signal(&worker->wakes_engine); /* an idle E destroys the world */
}

void rk_worker_abort_locked(struct rk_worker *worker, const char *reason)
{
    abort_world(worker, reason, false);
}

void rk_worker_give_up(struct rk_worker *worker, const char *reason)
{
    pthread_mutex_lock(&worker->lock);
    abort_world(worker, reason, true);
    pthread_mutex_unlock(&worker->lock);
}

/* The reason why the running job must end now, or NULL; rk_free it. */
static char *find_reason(struct rk_worker *worker)
{
    struct rk_running_job *running = &worker->running;
    const struct rk_worker_config *config = &worker->config;
    struct rk_comm_activity activity = {0};
    int64_t now = rk_time_now_ns();
    int64_t timeout_ms = running->job->kind == RK_JOB_METHOD ? running->job->call.timeout_ms : 0;
    char label[RK_JOB_LABEL_BYTES];

    rk_job_label(running->job, label);
    if (worker->world)
        rk_comm_world_activity(worker->world, &activity);
    if (activity.in_operation || activity.seq != running->seen_collectives)
        running->last_tick_ns = now;
    running->seen_collectives = activity.seq;

    if (timeout_ms > 0 && now - running->since_ns > timeout_ms * NS_PER_MS)
        return rk_format("%s did not end within its timeout of %lld ms", label, (long long)timeout_ms);
    if (activity.in_operation && config->collective_timeout_ms > 0 &&
        now - activity.started_ns > (config->collective_timeout_ms + COLLECTIVE_GRACE_MS) * NS_PER_MS)
        return rk_format("%s: %s did not end within %lld ms", label, activity.name,
                         (long long)config->collective_timeout_ms);
    if (config->idle_progress_ms > 0 && now - running->last_tick_ns > config->idle_progress_ms * NS_PER_MS)
        return rk_format("%s made no progress for %lld ms", label, (long long)config->idle_progress_ms);
    return NULL;
}

/* For the flight recorder, which is written when the lock is free: a file may take its time. */
static void note_error(struct rk_worker *worker, const char *reason, rk_code_t code)
{
    struct rk_flight_entry entry = {.kind = RK_FLIGHT_ERROR, .what = "watchdog", .where = reason};

    rk_flight_note(&entry, (int)code);
    worker->flight_reason = "watchdog";
}

static void check_grace(struct rk_worker *worker)
{
    const struct rk_running_job *running = &worker->running;
    int64_t grace_ms = worker->config.engine_grace_ms;
    char *text;

    if (grace_ms == 0 || worker->snapshot.failure ||
        rk_time_now_ns() - running->verdict_ns <= grace_ms * NS_PER_MS)
        return;
    text = rk_format("%s, and did not end within %lld ms after it was cancelled",
                     rk_status_message(running->verdict), (long long)grace_ms);
    note_error(worker, text, RK_INTERNAL);
    rk_worker_fail_locked(worker, "ENGINE_STUCK", text);
    rk_free(text);
}

static void check_running(struct rk_worker *worker)
{
    struct rk_status *comm_error;
    char *reason;

    if (worker->running.verdict) {
        check_grace(worker);
        return;
    }
    reason = find_reason(worker);
    if (!reason)
        return;
    comm_error = worker->world ? rk_comm_world_check(worker->world) : NULL;
    worker->running.verdict =
        comm_error ? comm_error : RK_FAIL_REASON(RK_DEADLINE_EXCEEDED, "WATCHDOG", "%s", reason);
    worker->running.verdict_ns = rk_time_now_ns();
    worker->snapshot.num_watchdog_verdicts++;
    note_error(worker, reason, RK_DEADLINE_EXCEEDED);
    RK_WARN("watchdog: %s", reason);
    atomic_store(&worker->is_cancel_requested, true);
    rk_worker_abort_locked(worker, reason);
    rk_free(reason);
}

/* Needs the lock, and releases it while it works. */
static void write_flight(struct rk_worker *worker)
{
    const char *reason = worker->flight_reason;

    worker->flight_reason = NULL;
    pthread_mutex_unlock(&worker->lock);
    rk_flight_write_file(reason);
    pthread_mutex_lock(&worker->lock);
}

void *rk_watchdog_main(void *user)
{
    struct rk_worker *worker = user;

    pthread_setname_np(pthread_self(), "rk-watchdog");
    pthread_mutex_lock(&worker->lock);
    while (!worker->is_engine_done) {
        struct timespec until;

        if (!worker->running.job) {
            pthread_cond_wait(&worker->wakes_watchdog, &worker->lock);
            continue;
        }
        check_running(worker);
        if (worker->flight_reason)
            write_flight(worker);
        clock_gettime(CLOCK_MONOTONIC, &until);
        until.tv_nsec += POLL_MS * NS_PER_MS;
        if (until.tv_nsec >= 1000 * NS_PER_MS) {
            until.tv_nsec -= 1000 * NS_PER_MS;
            until.tv_sec++;
        }
        pthread_cond_timedwait(&worker->wakes_watchdog, &worker->lock, &until);
    }
    pthread_mutex_unlock(&worker->lock);
    return NULL;
}
