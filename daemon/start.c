/* Start. The order: configuration, locks, loop, device, port. A daemon that cannot have its lock or its
 * device never touches the address of the one that has. */
#include "daemon/daemon_internal.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_log.h"
#include "base/rk_random.h"
#include "base/rk_thread.h"
#include "daemon/deadline_internal.h"
#include "daemon/rpc/flight.h"
#include "daemon/notify_internal.h"
#include "daemon/operation_internal.h"
#include "daemon/tls_internal.h"
#include "dispatch/rk_batch.h"

#define KEPT_MEMORY_BYTES (512LL << 20) /* freed memory of batches, kept for the next ones */

static struct rk_status *take_lock(struct rk_daemon *daemon, int i, const char *dir, const char *name)
{
    char *path = rk_path_join(dir, name);
    struct rk_status *st = rk_lock_take(&daemon->locks[i], path, daemon->incarnation);

    rk_free(path);
    return st;
}

/* Two daemons that start at once must not both replace the file of a third that has ended. */
static struct rk_status *take_socket_lock(struct rk_daemon *daemon, int i, const struct rk_listen *listen)
{
    struct rk_status *st;
    char *name;

    if (!listen->is_unix || listen->is_abstract)
        return NULL;
    name = rk_format("%s.lock", listen->name);
    st = rk_lock_take(&daemon->locks[i], name, daemon->incarnation);
    rk_free(name);
    return st;
}

static struct rk_status *take_locks(struct rk_daemon *daemon)
{
    const struct rk_settings *settings = &daemon->settings;

    if (settings->runtime_dir)
        RK_TRY(take_lock(daemon, 0, settings->runtime_dir, "lock"));
    if (settings->state_dir)
        RK_TRY(take_lock(daemon, 1, settings->state_dir, "lock"));
    RK_TRY(take_socket_lock(daemon, 2, &settings->listen));
    RK_TRY(take_socket_lock(daemon, 3, &settings->health));
    return take_socket_lock(daemon, 4, &settings->metrics);
}

static struct rk_status *start_worker(struct rk_daemon *daemon)
{
    const struct rk_settings *settings = &daemon->settings;
    struct rk_worker_config config = {
        .struct_size = sizeof(config),
        .device = settings->device,
        .plugin = settings->plugin,
        .num_threads = settings->num_threads,
        .device_memory_limit_bytes = settings->device_memory_bytes,
        .comm_listen_host = settings->comm_listen,
        .comm_tls = settings->has_comm_tls ? daemon->tls : NULL,
        .ckpt_roots = (const char *const *)settings->ckpt_roots,
        .collective_timeout_ms = settings->collective_timeout_ms,
        .idle_progress_ms = settings->idle_progress_ms,
        .engine_grace_ms = settings->engine_grace_ms,
        .comm_progress_timeout_ms = settings->comm_progress_timeout_ms,
        .is_dry_run = settings->is_dry_run,
        .user = daemon,
        .on_done = rk_daemon_on_job_done,
    };

    return rk_worker_create(&daemon->worker, &config);
}

static struct rk_status *start_server(struct rk_daemon *daemon)
{
    struct rk_server_config config = {.daemon = daemon,
                                      .loop = daemon->loop,
                                      .auth = daemon->auth,
                                      .listen = &daemon->settings.listen,
                                      .tls = daemon->tls,
                                      .tls_demand = rk_settings_tls_demand(&daemon->settings),
                                      .has_reflection = daemon->settings.has_reflection,
                                      .on_stopped = rk_stop_on_server_stopped};

    return rk_server_create(&daemon->server, &config);
}

static struct rk_status *start_health_server(struct rk_daemon *daemon)
{
    struct rk_server_config config = {.daemon = daemon,
                                      .loop = daemon->loop,
                                      .auth = daemon->auth,
                                      .listen = &daemon->settings.health,
                                      .is_health_only = true,
                                      .on_stopped = rk_stop_on_server_stopped};

    return daemon->settings.health.key ? rk_server_create(&daemon->health_server, &config) : NULL;
}

static void render_metrics(void *user, struct rk_str *out)
{
    rk_metrics_render(user, out);
}

/* Without NVML there are no GPU metrics; everything else works. */
static void start_gpu(struct rk_daemon *daemon)
{
    struct rk_worker_snapshot snapshot;
    struct rk_status *st;

    rk_worker_get_snapshot(daemon->worker, &snapshot);
    if (!rk_str_has_prefix(snapshot.device_uuid, "GPU-"))
        return;
    st = rk_gpu_create(&daemon->gpu, RK_GPU_LIBRARY, snapshot.device_uuid);
    if (st)
        RK_WARN("%s", rk_status_message(st));
    rk_status_free(st);
}

static struct rk_status *start_metrics(struct rk_daemon *daemon)
{
    struct rk_metrics_http_config config = {
        .listen = &daemon->settings.metrics, .loop = daemon->loop, .user = daemon, .render = render_metrics};

    if (!daemon->settings.metrics.key)
        return NULL;
    return rk_metrics_http_create(&daemon->metrics_http, &config);
}

static struct rk_status *start_recorder(struct rk_daemon *daemon)
{
    struct rk_recorder_config config = {
        .dir = daemon->settings.record_dir,
        .device = daemon->settings.device,
        .host = daemon->host,
        .slot = daemon->settings.slot,
        .num_threads = daemon->settings.num_threads > 0 ? daemon->settings.num_threads : rk_thread_num_cpus(),
        .incarnation = daemon->incarnation};

    return config.dir ? rk_recorder_create(&daemon->recorder, &config) : NULL;
}

/* Threads that are started here must not receive signals: only libuv on this thread handles them. */
static struct rk_status *start_threads(struct rk_daemon *daemon)
{
    sigset_t all, before;
    struct rk_status *st;

    sigfillset(&all);
    sigdelset(&all, SIGALRM); /* a deadline may pass in any thread */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    st = start_recorder(daemon);
    if (!st)
        st = start_worker(daemon);
    rk_deadline_set(
        RK_DEADLINE_START_S, 1,
        "gRPC did not start within the time limit; check limits on memory (ulimit -v) and threads");
    if (!st)
        st = start_server(daemon);
    if (!st)
        st = start_health_server(daemon);
    if (!st)
        st = start_metrics(daemon);
    if (!st)
        start_gpu(daemon);
    rk_deadline_clear();
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return st;
}

/* A core would hold weights and prompts. Files: every connection is one. */
static void set_limits(void)
{
    struct rlimit limit = {0};

    setrlimit(RLIMIT_CORE, &limit);
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

struct rk_status *rk_daemon_start(struct rk_daemon *daemon)
{
    struct rk_loop_handlers handlers = {
        .user = daemon, .on_tick = rk_daemon_on_tick, .on_signal = rk_daemon_on_signal};
    uint64_t epoch = 0;

    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* exceeding a file-size limit must be an error, not the end */
    RK_TRY(rk_random_bytes(&daemon->incarnation, sizeof(daemon->incarnation)));
    if (gethostname(daemon->host, sizeof(daemon->host) - 1) != 0)
        snprintf(daemon->host, sizeof(daemon->host), "unknown");
    RK_TRY(rk_daemon_load_settings(daemon));
    rk_settings_warn_open(&daemon->settings);
    set_limits();
    RK_TRY(take_locks(daemon));
    /* After the locks are taken, as the file may be the token of another daemon. */
    if (rk_settings_generates_token(&daemon->settings))
        RK_TRY(rk_daemon_make_token(&daemon->auth, &daemon->settings));
    if (daemon->settings.state_dir)
        RK_TRY(rk_epoch_load(&epoch, daemon->settings.state_dir));
    rk_flight_start(&daemon->settings);
    rk_lease_init(&daemon->lease, daemon->incarnation, epoch);
    daemon->requests.limit_bytes = RK_LIMIT_STORED_RESULT_BYTES;
    daemon->requests.drop_result = rk_operation_drop_result;
    daemon->requests.destroy = rk_operation_destroy;
    daemon->watchdog_ms = rk_notify_watchdog_ms();
    rk_batch_keep_memory((size_t)RK_MIN(KEPT_MEMORY_BYTES, daemon->settings.max_inflight_bytes));
    RK_TRY(rk_loop_create(&daemon->loop, &handlers));
    rk_watch_init(&daemon->watch, daemon->feed, daemon->loop);
    RK_TRY(start_threads(daemon));
    rk_daemon_update(daemon);
    return NULL;
}
