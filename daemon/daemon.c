/* Start, the main loop's callbacks, and the end. The order of start: configuration, locks, loop, device,
 * port. A daemon that cannot have its lock or its device never touches the address of the one that has. */
#include "daemon/rk_daemon.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_flight.h"
#include "base/rk_hash.h"
#include "base/rk_log.h"
#include "base/rk_time.h"
#include "daemon/daemon_internal.h"
#include "daemon/deadline_internal.h"
#include "daemon/execute_internal.h"
#include "daemon/feed_internal.h"
#include "daemon/flight_internal.h"
#include "daemon/notify_internal.h"
#include "daemon/operation_internal.h"
#include "daemon/tls_internal.h"

/* How long a daemon that only a restart helps still answers, so that drivers learn why; then it exits to be
 * restarted. */
#define FAILED_EXIT_NS (30 * 1000000000LL)

/* --- facts and what follows from them --- */

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

/* Of a daemon in state FAILED. */
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
        return; /* what runs ends with its own error */
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
        return; /* the daemon is stopping, its worker has gone */
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

/* --- jobs --- */

/* E: hands the job back to L. */
static void on_job_done(void *user, struct rk_job *job)
{
    struct rk_daemon *daemon = user;

    rk_loop_post(daemon->loop, job->user);
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

/* --- L: time and signals --- */

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

/* The service manager hears from us only while both L (this runs) and G are well. */
static void tick_watchdog(struct rk_daemon *daemon)
{
    int64_t half_ns = daemon->watchdog_ms * 1000000 / 2, now_ns = rk_time_now_ns();

    if (half_ns == 0 || now_ns - daemon->alive_sent_ns < half_ns ||
        rk_server_queue_age_ns(daemon->server) > half_ns)
        return;
    daemon->alive_sent_ns = now_ns;
    rk_notify_alive();
}

static void on_tick(void *user)
{
    struct rk_daemon *daemon = user;

    tick_lease(daemon);
    rk_daemon_update(daemon);
    rk_server_tick(daemon->server);
    if (daemon->health_server)
        rk_server_tick(daemon->health_server);
    rk_drain_tick(daemon);
    tick_watchdog(daemon);
    rk_daemon_tls_warn(daemon->tls, &daemon->tls_warned_ns);
    if (daemon->state == RK_DAEMON_FAILED && daemon->stop.phase == RK_STOP_NONE &&
        rk_time_now_ns() - daemon->failed_ns > FAILED_EXIT_NS)
        rk_stop_begin(daemon, 0, "it has failed");
    rk_stop_advance(daemon);
}

static void apply_log_settings(const struct rk_settings *settings)
{
    char context[32];

    rk_log_set_level(settings->log_level);
    rk_log_set_format(settings->log_format);
    snprintf(context, sizeof(context), "slot=%d", settings->slot);
    rk_log_set_context(context);
}

/* For those who ask later what it was; it names files with secrets, and has none. */
static void keep_config(struct rk_daemon *daemon, const struct rk_config *config)
{
    rk_free(daemon->config_text);
    daemon->config_text = rk_json_dump(rk_config_tree(config), 0, false);
}

static struct rk_status *reload(struct rk_daemon *daemon)
{
    struct rk_config *config = NULL;
    struct rk_auth *auth = NULL;
    struct rk_status *st;

    RK_TRY(rk_daemon_config_load(&config, daemon->args));
    st = rk_auth_create(&auth, rk_config_string(config, "rpc.token_file"));
    if (!st)
        st = rk_daemon_tls_reload(daemon->tls, &daemon->settings, config);
    if (!st) {
        daemon->tls_warned_ns = 0;
        rk_settings_reload(&daemon->settings, config);
        apply_log_settings(&daemon->settings);
        rk_server_set_auth(daemon->server, auth);
        if (daemon->health_server)
            rk_server_set_auth(daemon->health_server, auth);
        rk_auth_destroy(daemon->auth);
        daemon->auth = auth;
        auth = NULL;
    }
    if (!st)
        keep_config(daemon, config);
    rk_auth_destroy(auth);
    rk_config_destroy(config);
    return st;
}

void rk_daemon_reload(struct rk_daemon *daemon)
{
    struct rk_status *st;

    rk_notify_reloading();
    st = reload(daemon);
    daemon->metrics.reload_failures += st != NULL;
    if (st)
        RK_ERROR("reload refused, the old configuration stays: %s", rk_status_message(st));
    else
        RK_INFO("reloaded: certificates, tokens, log, lease and drain settings");
    rk_status_free(st);
    rk_notify_ready();
}

/* The driver that started this daemon leaves it behind: it outlives the driver, and ends when the model that
 * it was kept for is freed. The signal of the parent's death was set on this thread, before exec. */
static void detach(struct rk_daemon *daemon)
{
    prctl(PR_SET_PDEATHSIG, 0);
    daemon->is_detached = true;
    RK_INFO("detached: this daemon stops lease.grace after its last lease");
    if (daemon->args->on_detached)
        daemon->args->on_detached(daemon->args->user);
}

static void on_signal(void *user, int signum)
{
    struct rk_daemon *daemon = user;

    if (signum == SIGHUP)
        rk_daemon_reload(daemon);
    else if (signum == SIGUSR1)
        detach(daemon);
    else
        rk_stop_begin(daemon, daemon->settings.drain_grace_ms, strsignal(signum));
}

/* --- start and end --- */

static struct rk_status *load_settings(struct rk_daemon *daemon)
{
    struct rk_config *config = NULL;
    struct rk_status *st;

    RK_TRY(rk_daemon_config_load(&config, daemon->args));
    st = rk_settings_init(&daemon->settings, config);
    keep_config(daemon, config);
    rk_config_destroy(config);
    if (st)
        return st;
    apply_log_settings(&daemon->settings);
    if (daemon->settings.is_insecure && !daemon->settings.listen.is_local &&
        !daemon->settings.asks_certificates)
        RK_WARN("rpc.insecure: no authentication: anyone who can connect to %s controls this daemon; set "
                "rpc.token_file",
                daemon->settings.listen.host);
    rk_settings_warn_roots(&daemon->settings);
    RK_TRY(rk_auth_create(&daemon->auth, daemon->settings.token_file));
    return rk_daemon_tls_create(&daemon->tls, &daemon->settings);
}

static struct rk_status *take_lock(struct rk_daemon *daemon, int i, const char *dir, const char *name)
{
    char *path = rk_path_join(dir, name);
    struct rk_status *st = rk_lock_take(&daemon->locks[i], path, daemon->incarnation);

    rk_free(path);
    return st;
}

/* A socket file that is there is replaced, a live daemon's too. */
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
        .on_done = on_job_done,
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

/* Without NVML there are no figures of the GPU, and all the rest. */
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
    struct rk_recorder_config config = {.dir = daemon->settings.record_dir,
                                        .device = daemon->settings.device,
                                        .host = daemon->host,
                                        .slot = daemon->settings.slot,
                                        .incarnation = daemon->incarnation};

    return config.dir ? rk_recorder_create(&daemon->recorder, &config) : NULL;
}

/* Threads that are started meanwhile never take a signal: only libuv on this one shall. */
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
    rk_deadline_set(RK_DEADLINE_START_S, 1,
                    "gRPC does not start; are there limits on memory (ulimit -v) or threads?");
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

static struct rk_status *start(struct rk_daemon *daemon)
{
    struct rk_loop_handlers handlers = {.user = daemon, .on_tick = on_tick, .on_signal = on_signal};
    uint64_t epoch = 0;

    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a file-size limit shall be an error, not the end */
    RK_TRY(rk_random_bytes(&daemon->incarnation, sizeof(daemon->incarnation)));
    if (gethostname(daemon->host, sizeof(daemon->host) - 1) != 0)
        snprintf(daemon->host, sizeof(daemon->host), "unknown");
    RK_TRY(load_settings(daemon));
    set_limits();
    RK_TRY(take_locks(daemon));
    if (daemon->settings.state_dir)
        RK_TRY(rk_epoch_load(&epoch, daemon->settings.state_dir));
    rk_flight_start(&daemon->settings);
    rk_lease_init(&daemon->lease, daemon->incarnation, epoch);
    daemon->requests.limit_bytes = RK_LIMIT_STORED_RESULT_BYTES;
    daemon->requests.drop_result = rk_operation_drop_result;
    daemon->requests.destroy = rk_operation_destroy;
    daemon->watchdog_ms = rk_notify_watchdog_ms();
    RK_TRY(rk_loop_create(&daemon->loop, &handlers));
    rk_watch_init(&daemon->watch, daemon->feed, daemon->loop);
    RK_TRY(start_threads(daemon));
    rk_daemon_update(daemon);
    return NULL;
}

/* What is left after the loop (stop.c, 6), or after a start that failed with `st`. The deadline stands until
 * the process has ended: libraries are unloaded after main. */
static void fini(struct rk_daemon *daemon, const struct rk_status *st)
{
    struct rk_worker *worker = daemon->worker;

    rk_metrics_http_destroy(daemon->metrics_http);
    rk_gpu_destroy(daemon->gpu);
    daemon->worker = NULL;
    rk_worker_destroy(worker);
    if (daemon->loop)
        rk_loop_drain(daemon->loop); /* jobs that came back meanwhile */
    rk_recorder_destroy(daemon->recorder);
    daemon->recorder = NULL;
    rk_deadline_set(RK_DEADLINE_END_S, rk_daemon_exit_code(st),
                    st ? rk_status_message(st) : "the daemon has stopped, but gRPC does not end");
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
    st = start(daemon);
    if (!st) {
        tell_addresses(daemon);
        rk_notify_ready();
        rk_loop_run(daemon->loop);
        st = rk_daemon_check_well(daemon);
        rk_daemon_state_move(&daemon->state, RK_DAEMON_STOPPED);
        RK_INFO("stopped");
    } else if (daemon->server) { /* calls may have come already */
        rk_daemon_update(daemon);
        rk_stop_begin(daemon, 0, "another listener could not be had");
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
    case RK_DATA_LOSS: /* what state.dir holds: it does not mend itself */
        return 2;
    default:
        return 1;
    }
}
