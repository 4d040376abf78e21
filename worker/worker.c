/* The worker: its two threads, the queue of jobs, and their life from submit to on_done.
 *
 * E runs one job after the other. After each it checks the communicators; if they failed it
 * destroys them, keeps the models, and the worker is not configured until the next CONFIGURE. Start reading
 * at engine_main. */
#include "worker/worker_internal.h"

#include <signal.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_flight.h"
#include "base/rk_log.h"
#include "base/rk_thread.h"
#include "base/rk_time.h"
#include "engine/rk_plugin.h"
#include "kernels/rk_trace.h"

/* --- thread E --- */

static struct rk_status *open_device(struct rk_worker *worker)
{
    const struct rk_device_config config = {
        .struct_size = sizeof(config),
        .name = worker->device_name,
        .num_threads = worker->config.num_threads,
        .memory_limit_bytes = (size_t)worker->config.device_memory_limit_bytes,
        .is_exclusive = true,
    };

    RK_TRY(rk_plugin_load(worker->device_name, worker->plugin));
    RK_TRY(rk_device_open(&worker->device, &config));
    RK_TRY(rk_stream_create(&worker->stream, worker->device, "engine"));
    return rk_device_alloc(worker->device, &worker->agree_scratch, RK_AGREE_BYTES, "verdicts of ranks");
}

struct rk_status *rk_worker_check_device(const char *device, const char *plugin)
{
    return rk_plugin_load(device, plugin);
}

/* Ends a profile, usually of a driver that has ended. */
static void end_profile(struct rk_worker *worker)
{
    rk_trace_destroy(worker->trace);
    worker->trace = NULL;
}

static void close_device(struct rk_worker *worker)
{
    if (!worker->device)
        return;
    end_profile(worker);
    rk_device_free(worker->device, worker->agree_scratch);
    rk_stream_destroy(worker->stream);
    rk_device_close(worker->device);
}

static struct rk_status *run_job(struct rk_worker *worker, struct rk_job *job)
{
    switch (job->kind) {
    case RK_JOB_OPEN_ENDPOINT:
        return rk_world_open_endpoint(worker, &job->endpoint);
    case RK_JOB_CONFIGURE:
        end_profile(worker);
        return rk_world_configure(worker, &job->configure);
    case RK_JOB_METHOD:
        return rk_method_call_run(worker, &job->call);
    case RK_JOB_DROP_MODELS:
        end_profile(worker);
        rk_world_drop_all(worker);
        return NULL;
    }
    RK_ASSERT(!"not a kind of job");
    return NULL;
}

/* The status of the job: the watchdog's verdict precedes the error that it caused, and the reason of a cancel
 * is included. A job that succeeded in spite of them has succeeded. */
static struct rk_status *settle_status(struct rk_running_job *running, struct rk_status *st)
{
    char label[RK_JOB_LABEL_BYTES];

    if (st && running->verdict) {
        RK_IGNORE(st, "the watchdog had ended the job");
        st = running->verdict;
        running->verdict = NULL;
    } else if (st && running->cancel_reason) {
        st = RK_WRAP(st, "%s was cancelled (%s)", rk_job_label(running->job, label), running->cancel_reason);
    }
    rk_status_free(running->verdict);
    rk_free(running->cancel_reason);
    return st;
}

/* Destroys the world when it failed, and checks for a lost device. */
static void settle_world(struct rk_worker *worker, const struct rk_status *st)
{
    struct rk_status *error = worker->world ? rk_comm_world_check(worker->world) : NULL;

    if (error) {
        RK_WARN("communicators lost: %s", rk_status_message(error));
        rk_status_free(error);
        rk_world_teardown(worker);
    }
    error = st ? rk_device_check(worker->device)
               : NULL; /* collectives may be the first to report a lost device */
    if (error) {
        pthread_mutex_lock(&worker->lock);
        rk_worker_fail_locked(worker, "DEVICE_LOST", rk_status_message(error));
        pthread_mutex_unlock(&worker->lock);
        rk_flight_write_file("DEVICE_LOST");
        rk_status_free(error);
    }
}

/* Tokens of this rank's replica, from the plan: replicas have about the same number. */
static uint64_t planned_tokens(const struct rk_plan *plan)
{
    uint64_t all = 0;

    for (int64_t i = 0; i < plan->num_mini; i++) {
        const struct rk_mini_batch *mini = &plan->mini[i];
        uint64_t sum = 0;

        for (int64_t j = 0; j < mini->num_entries; j++)
            sum += mini->micro[j].num_tokens;
        if (mini->num_entries > 0)
            all += sum * (uint64_t)mini->num_micro / (uint64_t)mini->num_entries;
    }
    return all;
}

static void settle_call(struct rk_job_call *call, bool has_failed)
{
    if (call->num_tokens == 0)
        call->num_tokens = planned_tokens(&call->plan);
    if (!has_failed)
        return;
    rk_batch_destroy(call->output);
    call->output = NULL;
    call->num_metrics = 0;
}

static void run_and_settle(struct rk_worker *worker, struct rk_job *job)
{
    int64_t begin = rk_time_now_ns();
    char label[RK_JOB_LABEL_BYTES];
    uint64_t seq = job->kind == RK_JOB_METHOD ? job->call.seq : 0;
    uint64_t flight = rk_flight_begin(&(struct rk_flight_entry){
        .kind = RK_FLIGHT_CALL, .what = rk_job_label(job, label), .where = "", .seq = seq});
    struct rk_status *st;

    rk_device_reset_peak(worker->device);
    worker->flight_phase = 0;
    st = run_job(worker, job);
    if (worker->flight_phase)
        rk_flight_end(worker->flight_phase, (int)rk_status_code(st));
    rk_flight_end(flight, (int)rk_status_code(st));
    if (worker->trace) {
        rk_trace_add_host(worker->trace, rk_job_label(job, label), begin, rk_time_now_ns());
        rk_trace_flush(worker->trace);
    }
    job->device_ns = (uint64_t)(rk_time_now_ns() - begin);
    job->peak_device_bytes = rk_device_get_stats(worker->device).peak_bytes;
    settle_world(worker, st);
    rk_worker_publish(worker);

    pthread_mutex_lock(&worker->lock);
    job->status = settle_status(&worker->running, st);
    worker->running = (struct rk_running_job){0};
    pthread_mutex_unlock(&worker->lock);
    if (job->kind == RK_JOB_METHOD)
        settle_call(&job->call, job->status != NULL);
}

/* Takes the first queued job and makes it the running one. Needs the lock. */
static struct rk_queued_job take_job(struct rk_worker *worker)
{
    struct rk_queued_job entry = worker->queue.items[0];
    int64_t now = rk_time_now_ns();

    worker->queue.count--;
    memmove(worker->queue.items, worker->queue.items + 1, (size_t)worker->queue.count * sizeof(entry));
    /* Without a world no peer can have begun the job. */
    entry.is_removed = entry.is_removed || worker->is_stopping || (entry.cancel_reason && !worker->world);
    if (!entry.is_removed) {
        worker->running = (struct rk_running_job){.job = entry.job, .since_ns = now, .last_tick_ns = now};
        atomic_store(&worker->is_cancel_requested, entry.cancel_reason != NULL);
        worker->running.cancel_reason = entry.cancel_reason;
        entry.cancel_reason = NULL;
        pthread_cond_signal(&worker->wakes_watchdog);
    }
    return entry;
}

/* Waits for work: destroying a failed world comes before the next job, and *entry is NULL then.
 * False when the worker stops and no job is left. */
static bool next_job(struct rk_worker *worker, struct rk_queued_job *entry)
{
    bool goes_on = true;

    *entry = (struct rk_queued_job){0};
    pthread_mutex_lock(&worker->lock);
    while (worker->queue.count == 0 && !worker->is_stopping && !worker->is_world_aborted)
        pthread_cond_wait(&worker->wakes_engine, &worker->lock);
    if (!worker->is_world_aborted && worker->queue.count > 0)
        *entry = take_job(worker);
    else
        goes_on = worker->is_world_aborted;
    pthread_mutex_unlock(&worker->lock);
    return goes_on;
}

static void run_queue(struct rk_worker *worker)
{
    struct rk_queued_job entry;
    char label[RK_JOB_LABEL_BYTES];

    while (next_job(worker, &entry)) {
        if (!entry.job) {
            rk_world_teardown(worker);
            rk_worker_publish(worker);
            continue;
        }
        if (entry.is_removed)
            entry.job->status =
                RK_FAIL(RK_CANCELLED, "%s was cancelled before it began: %s", rk_job_label(entry.job, label),
                        entry.cancel_reason ? entry.cancel_reason : "the daemon is stopping");
        else
            run_and_settle(worker, entry.job);
        rk_free(entry.cancel_reason);
        worker->config.on_done(worker->config.user, entry.job);
    }
}

static void *engine_main(void *user)
{
    struct rk_worker *worker = user;
    struct rk_status *st;

    pthread_setname_np(pthread_self(), "rk-engine");
    worker->engine_thread_id = pthread_self();
    st = open_device(worker);
    if (!st)
        rk_worker_publish(worker);

    pthread_mutex_lock(&worker->lock);
    worker->is_started = true;
    worker->start_status = st;
    pthread_cond_broadcast(&worker->wakes_watchdog);
    pthread_mutex_unlock(&worker->lock);

    if (!st) {
        run_queue(worker);
        rk_world_drop_all(worker);
    }
    close_device(worker);
    pthread_mutex_lock(&worker->lock);
    worker->is_engine_done = true;
    pthread_cond_broadcast(&worker->wakes_watchdog);
    pthread_mutex_unlock(&worker->lock);
    return NULL;
}

/* --- any thread --- */

void rk_worker_submit(struct rk_worker *worker, struct rk_job *job)
{
    struct rk_queued_job entry = {.job = job};

    pthread_mutex_lock(&worker->lock);
    rk_array_append(&worker->queue, entry);
    pthread_cond_signal(&worker->wakes_engine);
    pthread_mutex_unlock(&worker->lock);
}

/* The peers may have begun the job already, and wait for this rank in its collectives. So the job begins, and
 * ends at the first agreement of the ranks; only a job whose communicators are aborted never begins. */
static const char *cancel_queued(struct rk_worker *worker, const struct rk_job *job, bool abort_comm,
                                 const char *reason)
{
    for (int64_t i = 0; i < worker->queue.count; i++) {
        struct rk_queued_job *entry = &worker->queue.items[i];

        if (entry->job != job)
            continue;
        if (!entry->cancel_reason)
            entry->cancel_reason = rk_strdup(reason);
        entry->is_removed = entry->is_removed || abort_comm;
        return entry->is_removed ? "queued_removed" : "flagged";
    }
    return "not_found";
}

const char *rk_worker_cancel(struct rk_worker *worker, struct rk_job *job, bool abort_comm,
                             const char *reason)
{
    const char *outcome;

    pthread_mutex_lock(&worker->lock);
    if (worker->running.job == job && job) {
        if (!worker->running.cancel_reason)
            worker->running.cancel_reason = rk_strdup(reason);
        atomic_store(&worker->is_cancel_requested, true);
        outcome = abort_comm ? "aborted" : "flagged";
        if (abort_comm)
            rk_worker_abort_locked(worker, reason);
    } else {
        outcome = cancel_queued(worker, job, abort_comm, reason);
    }
    pthread_mutex_unlock(&worker->lock);
    return outcome;
}

void rk_worker_abort_comm(struct rk_worker *worker, const char *reason)
{
    pthread_mutex_lock(&worker->lock);
    if (worker->running.job)
        atomic_store(&worker->is_cancel_requested, true);
    rk_worker_abort_locked(worker, reason);
    pthread_mutex_unlock(&worker->lock);
}

/* --- life --- */

static void init_sync(struct rk_worker *worker)
{
    pthread_condattr_t attr;

    pthread_mutex_init(&worker->lock, NULL);
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&worker->wakes_engine, &attr);
    pthread_cond_init(&worker->wakes_watchdog, &attr);
    pthread_condattr_destroy(&attr);
}

static char **copy_roots(const char *const *roots)
{
    int64_t count = 0;
    char **copy;

    while (roots && roots[count])
        count++;
    copy = rk_calloc((size_t)count + 1, sizeof(*copy));
    for (int64_t i = 0; i < count; i++)
        copy[i] = rk_strdup(roots[i]);
    return copy;
}

static struct rk_worker *worker_new(const struct rk_worker_config *config)
{
    struct rk_worker *worker = rk_calloc(1, sizeof(*worker));

    worker->config = *config;
    worker->config.device = worker->device_name = rk_strdup(config->device);
    worker->config.plugin = worker->plugin = rk_strdup(config->plugin);
    worker->config.comm_listen_host = worker->listen_host = rk_strdup(config->comm_listen_host);
    worker->ckpt_roots = copy_roots(config->ckpt_roots);
    worker->config.ckpt_roots = (const char *const *)worker->ckpt_roots;
    worker->rank = -1;
    init_sync(worker);
    return worker;
}

/* Frees the worker after its threads have ended. */
static void worker_free(struct rk_worker *worker)
{
    RK_ASSERT(worker->queue.count == 0);
    rk_array_fini(&worker->queue);
    pthread_cond_destroy(&worker->wakes_engine);
    pthread_cond_destroy(&worker->wakes_watchdog);
    pthread_mutex_destroy(&worker->lock);
    for (char **root = worker->ckpt_roots; *root; root++)
        rk_free(*root);
    rk_free(worker->ckpt_roots);
    rk_free(worker->listen_host);
    rk_free(worker->plugin);
    rk_free(worker->device_name);
    rk_free(worker);
}

/* The watchdog would wait for an engine that did not start. */
static void end_watchdog(struct rk_worker *worker)
{
    pthread_mutex_lock(&worker->lock);
    worker->is_engine_done = true;
    pthread_cond_broadcast(&worker->wakes_watchdog);
    pthread_mutex_unlock(&worker->lock);
    pthread_join(worker->watchdog_thread, NULL);
}

/* Signals are for the main thread's loop: the worker's threads start with all of them blocked. */
static struct rk_status *start_threads(struct rk_worker *worker)
{
    sigset_t all, before;
    struct rk_status *st;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    st = rk_thread_start(&worker->watchdog_thread, rk_watchdog_main, worker, "watchdog");
    if (!st) {
        st = rk_thread_start(&worker->engine_thread, engine_main, worker, "engine");
        if (st)
            end_watchdog(worker);
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return st;
}

static void join_and_free(struct rk_worker *worker)
{
    pthread_join(worker->engine_thread, NULL);
    pthread_join(worker->watchdog_thread, NULL);
    worker_free(worker);
}

struct rk_status *rk_worker_create(struct rk_worker **out, const struct rk_worker_config *config)
{
    struct rk_worker *worker;
    struct rk_status *st;

    RK_ASSERT(config->struct_size == sizeof(*config));
    RK_ASSERT(config->on_done);
    *out = NULL;
    worker = worker_new(config);
    st = start_threads(worker);
    if (st) {
        worker_free(worker);
        return st;
    }
    pthread_mutex_lock(&worker->lock);
    while (!worker->is_started)
        pthread_cond_wait(&worker->wakes_watchdog, &worker->lock);
    st = worker->start_status;
    pthread_mutex_unlock(&worker->lock);
    if (st)
        join_and_free(worker);
    else
        *out = worker;
    return st;
}

void rk_worker_destroy(struct rk_worker *worker)
{
    if (!worker)
        return;
    pthread_mutex_lock(&worker->lock);
    worker->is_stopping = true;
    if (worker->running.job && !worker->running.cancel_reason)
        worker->running.cancel_reason = rk_strdup("the daemon is stopping");
    atomic_store(&worker->is_cancel_requested, true);
    if (worker->running.job)
        rk_worker_abort_locked(worker, "the daemon is stopping");
    pthread_cond_broadcast(&worker->wakes_engine);
    pthread_mutex_unlock(&worker->lock);
    join_and_free(worker);
}
