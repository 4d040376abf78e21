/* The main loop's callbacks: time and signals. Thread L. */
#include "daemon/daemon_internal.h"

#include <signal.h>
#include <string.h>
#include <sys/prctl.h>

#include "base/rk_log.h"
#include "base/rk_time.h"
#include "daemon/notify_internal.h"
#include "daemon/operation_internal.h"
#include "daemon/tls_internal.h"
#include "dispatch/rk_batch.h"

/* How long a daemon in state FAILED still answers, so that drivers get the reason; then it exits to be
 * restarted. */
#define FAILED_EXIT_NS (30 * 1000000000LL)

#define KEPT_MEMORY_MS 5000 /* time for which freed memory of a batch is kept for the next step */

static void tick_lease(struct rk_daemon *daemon)
{
    switch (rk_lease_tick(&daemon->lease, rk_time_boot_ms(), daemon->settings.lease_grace_ms)) {
    case RK_LEASE_LAPSED:
        RK_WARN("the lease of driver \"%s\" lapsed epoch=%llu", daemon->lease.driver_id,
                (unsigned long long)daemon->lease.epoch);
        rk_lease_tell(daemon, "lapsed");
        rk_operations_cancel(daemon, true, "the driver's lease lapsed");
        break;
    case RK_LEASE_GRACE_OVER:
        RK_INFO("grace period over, freeing models epoch=%llu", (unsigned long long)daemon->lease.epoch);
        rk_lease_tell(daemon, "grace period over");
        rk_requests_drop_results(&daemon->requests);
        rk_group_clear(&daemon->group);
        rk_daemon_submit_forgotten(daemon, rk_job_create(RK_JOB_DROP_MODELS));
        if (daemon->is_detached)
            rk_stop_begin(daemon, 0, "a detached daemon ends with its grace period");
        break;
    case RK_LEASE_NOTHING:
        break;
    }
}

/* Notifies the service manager only while both L (which runs this) and G respond. */
static void tick_watchdog(struct rk_daemon *daemon)
{
    int64_t half_ns = daemon->watchdog_ms * 1000000 / 2, now_ns = rk_time_now_ns();

    if (half_ns == 0 || now_ns - daemon->alive_sent_ns < half_ns ||
        rk_server_queue_age_ns(daemon->server) > half_ns)
        return;
    daemon->alive_sent_ns = now_ns;
    rk_notify_alive();
}

void rk_daemon_on_tick(void *user)
{
    struct rk_daemon *daemon = user;

    tick_lease(daemon);
    rk_daemon_update(daemon);
    rk_server_tick(daemon->server);
    if (daemon->health_server)
        rk_server_tick(daemon->health_server);
    if (daemon->metrics_http)
        rk_metrics_http_tick(daemon->metrics_http);
    rk_drain_tick(daemon);
    tick_watchdog(daemon);
    (void)rk_batch_trim_memory(KEPT_MEMORY_MS);
    rk_daemon_tls_warn(daemon->tls, &daemon->tls_warned_ns);
    if (daemon->state == RK_DAEMON_FAILED && daemon->stop.phase == RK_STOP_NONE &&
        rk_time_now_ns() - daemon->failed_ns > FAILED_EXIT_NS)
        rk_stop_begin(daemon, 0, "it has failed");
    rk_stop_advance(daemon);
}

/* The driver that started this daemon detaches it: it outlives the driver, and ends when the model that it
 * keeps is freed. The parent-death signal was set on this thread, before exec. */
static void detach(struct rk_daemon *daemon)
{
    prctl(PR_SET_PDEATHSIG, 0);
    daemon->is_detached = true;
    RK_INFO("detached: this daemon stops lease.grace after its last lease");
    if (daemon->args->on_detached)
        daemon->args->on_detached(daemon->args->user);
}

void rk_daemon_on_signal(void *user, int signum)
{
    struct rk_daemon *daemon = user;

    if (signum == SIGHUP)
        rk_daemon_reload(daemon);
    else if (signum == SIGUSR1)
        detach(daemon);
    else
        rk_stop_begin(daemon, daemon->settings.drain_grace_ms, strsignal(signum));
}
