/* Jobs of the worker: their return from thread E, and jobs without a call that waits for the result. */
#include "daemon/daemon_internal.h"

#include "base/rk_alloc.h"
#include "base/rk_log.h"

void rk_daemon_on_job_done(void *user, struct rk_job *job)
{
    struct rk_daemon *daemon = user;

    rk_loop_run_here(daemon->loop, job->user);
}

struct forgotten {
    struct rk_loop_event done_event;
    struct rk_daemon *daemon;
    struct rk_job *job;
};

static void on_forgotten_done(struct rk_loop_event *event)
{
    struct forgotten *forgotten = RK_CONTAINER_OF(event, struct forgotten, done_event);

    if (forgotten->job->status)
        RK_WARN("job failed: %s", rk_status_message(forgotten->job->status));
    rk_job_destroy(forgotten->job);
    rk_daemon_update(forgotten->daemon);
    rk_free(forgotten);
}

void rk_daemon_submit_forgotten(struct rk_daemon *daemon, struct rk_job *job)
{
    struct forgotten *forgotten = rk_calloc(1, sizeof(*forgotten));

    forgotten->done_event.run = on_forgotten_done;
    forgotten->daemon = daemon;
    forgotten->job = job;
    job->user = &forgotten->done_event;
    rk_worker_submit(daemon->worker, job);
}
