/* One process from its start to its end, and what its exit tells. */
#include "daemon/rk_daemon.h"

#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_log.h"
#include "base/rk_time.h"
#include "daemon/daemon_internal.h"
#include "daemon/deadline_internal.h"
#include "daemon/feed_internal.h"
#include "daemon/notify_internal.h"
#include "dispatch/rk_batch.h"

/* Cleans up after the loop (stop.c, 6), or after a start that failed with `st`. The deadline stays set until
 * the process has ended: libraries are unloaded after main. */
static void fini(struct rk_daemon *daemon, const struct rk_status *st)
{
    struct rk_worker *worker = daemon->worker;

    rk_metrics_http_destroy(daemon->metrics_http);
    rk_gpu_destroy(daemon->gpu);
    daemon->worker = NULL;
    rk_worker_destroy(worker);
    if (daemon->loop)
        rk_loop_drain(daemon->loop); /* jobs that returned in the meantime */
    rk_recorder_destroy(daemon->recorder);
    daemon->recorder = NULL;
    rk_deadline_set(RK_DEADLINE_END_S, rk_daemon_exit_code(st),
                    st ? rk_status_message(st)
                       : "the daemon has stopped, but gRPC did not end within the time limit");
    rk_server_destroy(daemon->health_server);
    rk_server_destroy(daemon->server);
    rk_loop_destroy(daemon->loop);
    rk_requests_clear(&daemon->requests);
    rk_group_clear(&daemon->group);
    rk_auth_destroy(daemon->auth);
    rk_tls_destroy(daemon->tls);
    for (int i = 0; i < RK_DAEMON_LOCKS_MAX; i++)
        rk_lock_release(daemon->locks[i]);
    rk_settings_fini(&daemon->settings);
    rk_free(daemon->last_error);
    rk_free(daemon->config_text);
    rk_batch_keep_memory(0);
    (void)rk_batch_trim_memory(0);
    rk_log_set_tap(NULL, NULL);
    rk_feed_destroy(daemon->feed);
    rk_free(daemon);
}

static void tell_address(struct rk_daemon *daemon, const char *key, const char *address)
{
    RK_INFO("%s: listening on %s", key, address);
    daemon->args->on_listening(daemon->args->user, key, address);
}

static void tell_addresses(struct rk_daemon *daemon)
{
    const struct rk_daemon_args *args = daemon->args;

    RK_INFO("listening on %s", rk_server_address(daemon->server));
    args->on_listening(args->user, NULL, rk_server_address(daemon->server));
    if (daemon->health_server)
        tell_address(daemon, "health.listen", rk_server_address(daemon->health_server));
    if (daemon->metrics_http)
        tell_address(daemon, "metrics.listen", rk_metrics_http_address(daemon->metrics_http));
}

/* Any thread. */
static void on_log(void *user, rk_log_level_t level, const char *message, size_t bytes, const char *source)
{
    struct rk_daemon *daemon = user;

    rk_feed_add_log(daemon->feed, level, message, bytes, source);
}

struct rk_status *rk_daemon_run(const struct rk_daemon_args *args)
{
    struct rk_daemon *daemon = rk_calloc(1, sizeof(*daemon));
    struct rk_status *st;

    daemon->args = args;
    daemon->feed = rk_feed_create();
    rk_log_set_tap(on_log, daemon);
    daemon->started_ns = rk_time_now_ns();
    st = rk_daemon_start(daemon);
    if (!st) {
        tell_addresses(daemon);
        rk_notify_ready();
        rk_loop_run(daemon->loop);
        st = rk_daemon_check_well(daemon);
        rk_daemon_state_move(&daemon->state, RK_DAEMON_STOPPED);
        RK_INFO("stopped");
    } else if (daemon->server) { /* calls may have arrived already */
        rk_daemon_update(daemon);
        rk_stop_begin(daemon, 0, "an additional listener could not be opened");
        rk_loop_run(daemon->loop);
    }
    fini(daemon, st);
    return st;
}

int rk_daemon_exit_code(const struct rk_status *st)
{
    static const struct {
        const char *reason;
        int code;
    } rows[] = {
        {"ADDRESS_IN_USE", 4}, {"LOCK_HELD", 4},          {"DEVICE_BUSY", 4}, {"PLUGIN_MISSING", 2},
        {"PLUGIN_BROKEN", 2},  {"COMPUTE_CAPABILITY", 2}, {"NO_DEVICE", 2},   {"NO_DRIVER", 2},
    };
    rk_code_t code = rk_status_code(st);

    if (!st)
        return 0;
    for (size_t i = 0; i < RK_ARRAY_LEN(rows); i++) {
        if (strcmp(rk_status_reason(st), rows[i].reason) == 0)
            return rows[i].code;
    }
    switch (code) {
    case RK_INVALID_ARGUMENT:
    case RK_NOT_FOUND:
    case RK_PERMISSION_DENIED:
    case RK_DATA_LOSS: /* content of state.dir: a retry does not help */
        return 2;
    default:
        return 1;
    }
}
