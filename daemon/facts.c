/* Facts about the daemon and the values derived from them: its state, its health, and which calls it
 * accepts. */
#include "daemon/daemon_internal.h"

#include <string.h>

#include "base/rk_flight.h"
#include "base/rk_log.h"
#include "base/rk_time.h"
#include "daemon/feed_internal.h"
#include "daemon/notify_internal.h"
#include "daemon/operation_internal.h"

static struct rk_state_facts get_facts(const struct rk_daemon *daemon,
                                       const struct rk_worker_snapshot *snapshot)
{
    struct rk_state_facts facts = {.is_draining = daemon->is_draining,
                                   .is_running = rk_requests_num_running(&daemon->requests) > 0,
                                   .has_failed = snapshot->failure != NULL,
                                   .is_configured = snapshot->is_configured};

    for (int32_t i = 0; i < snapshot->num_roles; i++) {
        if (snapshot->roles[i].state != RK_ROLE_STATE_EMPTY)
            facts.has_model = true;
    }
    return facts;
}

/* Reason of a daemon in state FAILED. */
static struct rk_status *get_failure(const struct rk_daemon *daemon)
{
    struct rk_worker_snapshot snapshot;

    rk_worker_get_snapshot(daemon->worker, &snapshot);
    return RK_FAIL_REASON(RK_INTERNAL, snapshot.failure, "%s; the daemon must be restarted",
                          snapshot.failure_text);
}

static void on_failed(struct rk_daemon *daemon, const struct rk_worker_snapshot *snapshot)
{
    struct rk_status *failure;

    daemon->failed_ns = rk_time_now_ns();
    daemon->is_stuck = strcmp(snapshot->failure, "ENGINE_STUCK") == 0;
    if (!daemon->is_stuck)
        return; /* the running call ends with its own error */
    failure = get_failure(daemon);
    rk_operations_answer(daemon, failure);
    rk_status_free(failure);
}

void rk_daemon_update(struct rk_daemon *daemon)
{
    struct rk_worker_snapshot snapshot;
    struct rk_health_facts health;
    struct rk_state_facts facts;
    rk_daemon_state_t next;

    if (!daemon->worker)
        return; /* the daemon is stopping, its worker has ended */
    rk_worker_get_snapshot(daemon->worker, &snapshot);
    facts = get_facts(daemon, &snapshot);
    next = rk_daemon_state_of(&facts);
    if (daemon->state == RK_DAEMON_FAILED)
        next = RK_DAEMON_FAILED; /* for good */
    if (next != daemon->state) {
        RK_INFO("state %s -> %s", rk_daemon_state_name(daemon->state), rk_daemon_state_name(next));
        rk_flight_note(&(struct rk_flight_entry){.kind = RK_FLIGHT_STATE,
                                                 .what = rk_daemon_state_name(next),
                                                 .where = rk_daemon_state_name(daemon->state)},
                       RK_OK);
        rk_feed_add(daemon->feed, RK_FEED_STATE,
                    RK_FEED_FIELDS(
                        ((struct rk_meta_entry[]){RK_FEED_TEXT("from", rk_daemon_state_name(daemon->state)),
                                                  RK_FEED_TEXT("to", rk_daemon_state_name(next))})),
                    "%s -> %s", rk_daemon_state_name(daemon->state), rk_daemon_state_name(next));
        rk_daemon_state_move(&daemon->state, next);
        if (next == RK_DAEMON_FAILED)
            on_failed(daemon, &snapshot);
        rk_notify_status("slot %d: %s, epoch %llu", daemon->settings.slot, rk_daemon_state_name(next),
                         (unsigned long long)daemon->lease.epoch);
    }
    health.is_alive =
        next != RK_DAEMON_FAILED && daemon->stop.phase == RK_STOP_NONE && rk_server_listens(daemon->server);
    health.takes_work =
        health.is_alive && !daemon->is_draining && rk_server_takes_connections(daemon->server);
    health.is_ready = health.takes_work && facts.is_configured && facts.has_model;
    rk_health_set(&daemon->health, &health);
    rk_watch_tick(daemon, &snapshot);
}

bool rk_daemon_is_idle(const struct rk_daemon *daemon)
{
    return !daemon->pending && !daemon->configure && rk_requests_num_running(&daemon->requests) == 0;
}

struct rk_status *rk_daemon_check_fence(struct rk_daemon *daemon, const struct rk_fence *fence)
{
    int64_t now_ms = rk_time_boot_ms();

    RK_TRY(rk_lease_check(&daemon->lease, now_ms, fence));
    rk_lease_renew(&daemon->lease, now_ms);
    return NULL;
}

struct rk_status *rk_daemon_check_well(const struct rk_daemon *daemon)
{
    return daemon->state == RK_DAEMON_FAILED ? get_failure(daemon) : NULL;
}

struct rk_status *rk_daemon_check_takes_work(const struct rk_daemon *daemon)
{
    RK_TRY(rk_daemon_check_well(daemon));
    if (daemon->is_draining)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "DRAINING", "the daemon is draining");
    return NULL;
}
