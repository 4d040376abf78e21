/* The order of the daemon's shutdown.
 *
 *   1  WAIT    health says NOT_SERVING, new work is refused; accepted and running calls may end, up to
 *              the grace
 *   2  CANCEL  calls that still run are cancelled
 *   3  ABORT   its communicators are aborted; an engine that does not respond now is stuck: exit 1
 *   4  CLOSE   endless calls end, the listeners close; remaining calls get some time, then are
 *              cancelled
 *   5  DONE    gRPC reports that all calls have ended, G ends and is joined, the loop stops
 *   6          rk_daemon_run: engine and watchdog threads, last events, gRPC, loop, locks (daemon.c, fini)
 *
 * A second signal goes from 1 to 2 at once. Health comes first because it informs clients on open connections
 * long before the listener closes. */
#include "daemon/stop_internal.h"

#include <unistd.h>

#include "base/rk_assert.h"
#include "base/rk_log.h"
#include "base/rk_time.h"
#include "daemon/daemon_internal.h"
#include "daemon/notify_internal.h"
#include "daemon/operation_internal.h"

#define CANCEL_MS 5000
#define ABORT_MS  25000 /* with CANCEL_MS: time limit for a stuck engine */
#define CLOSE_MS  1000

static void enter(struct rk_daemon *daemon, rk_stop_phase_t phase, int64_t limit_ms)
{
    daemon->stop.phase = phase;
    daemon->stop.deadline_ns = rk_time_now_ns() + limit_ms * 1000000;
}

void rk_stop_begin(struct rk_daemon *daemon, int64_t grace_ms, const char *reason)
{
    if (daemon->stop.phase == RK_STOP_NONE) {
        RK_INFO("stopping reason=\"%s\" grace_ms=%lld", reason, (long long)grace_ms);
        daemon->is_draining = true;
        if (daemon->is_stuck) /* its time limit has passed; some time for answers */
            enter(daemon, RK_STOP_ABORT, CLOSE_MS);
        else
            enter(daemon, RK_STOP_WAIT, grace_ms);
        rk_notify_stopping();
    } else if (daemon->stop.phase == RK_STOP_WAIT) {
        RK_INFO("stopping at once reason=\"%s\"", reason);
        daemon->stop.deadline_ns = 0;
    }
    rk_daemon_update(daemon);
    rk_stop_advance(daemon);
}

static void close_servers(struct rk_daemon *daemon)
{
    enter(daemon, RK_STOP_CLOSE, CLOSE_MS);
    daemon->stop.num_servers = 1;
    rk_watch_advance(&daemon->watch); /* streams that are sending end after their last event */
    rk_server_begin_shutdown(daemon->server);
    if (daemon->health_server) {
        daemon->stop.num_servers++;
        rk_server_begin_shutdown(daemon->health_server);
    }
}

void rk_stop_advance(struct rk_daemon *daemon)
{
    bool is_late = rk_time_now_ns() >= daemon->stop.deadline_ns;

    switch (daemon->stop.phase) {
    case RK_STOP_WAIT:
        if (rk_daemon_is_idle(daemon)) {
            close_servers(daemon);
        } else if (is_late) {
            enter(daemon, RK_STOP_CANCEL, CANCEL_MS);
            rk_operations_cancel(daemon, false, "the daemon stops");
        }
        break;
    case RK_STOP_CANCEL:
        if (rk_daemon_is_idle(daemon)) {
            close_servers(daemon);
        } else if (is_late) {
            enter(daemon, RK_STOP_ABORT, ABORT_MS);
            rk_operations_cancel(daemon, true, "the daemon stops");
        }
        break;
    case RK_STOP_ABORT:
        if (rk_daemon_is_idle(daemon)) {
            close_servers(daemon);
        } else if (is_late) {
            RK_ERROR("the engine does not stop within the time limit; exiting without it");
            _exit(1); /* its thread cannot be joined, so nothing can be freed */
        }
        break;
    case RK_STOP_CLOSE:
        if (is_late && !daemon->stop.has_cancelled_calls) {
            daemon->stop.has_cancelled_calls = true;
            rk_server_cancel_calls(daemon->server);
            if (daemon->health_server)
                rk_server_cancel_calls(daemon->health_server);
        }
        break;
    default:
        break;
    }
}

void rk_stop_on_server_stopped(struct rk_daemon *daemon)
{
    RK_ASSERT(daemon->stop.num_servers > 0);
    if (--daemon->stop.num_servers > 0)
        return;
    daemon->stop.phase = RK_STOP_DONE;
    rk_loop_stop(daemon->loop);
}
