/* A daemon with its server, leases, requests and operations: the function of daemon.c without libuv, files
 * and user interface. */
#include "tests/unit/sim/host.h"

#include <stdio.h>
#include <string.h>

#include "base/rk_alloc.h"
#include "base/rk_assert.h"
#include "base/rk_random.h"
#include "base/rk_time.h"
#include "daemon/rpc/call_internal.h"
#include "daemon/deadline_internal.h"
#include "daemon/rpc/execute.h"
#include "daemon/feed_internal.h"
#include "daemon/operation_internal.h"
#include "tests/unit/sim/net.h"

#define TTL_MS   10000
#define GRACE_MS 600000

static const struct rk_listen nowhere;

/* --- daemon.c --- */

static struct rk_state_facts get_facts(const struct rk_daemon *daemon,
                                       const struct rk_worker_snapshot *snapshot)
{
    struct rk_state_facts facts = {.is_running = rk_requests_num_running(&daemon->requests) > 0,
                                   .is_configured = snapshot->is_configured};

    for (int32_t i = 0; i < snapshot->num_roles; i++)
        facts.has_model = facts.has_model || snapshot->roles[i].state != RK_ROLE_STATE_EMPTY;
    return facts;
}

void rk_daemon_update(struct rk_daemon *daemon)
{
    struct rk_worker_snapshot snapshot;
    struct rk_state_facts facts;
    rk_daemon_state_t next;

    rk_worker_get_snapshot(daemon->worker, &snapshot);
    facts = get_facts(daemon, &snapshot);
    next = rk_daemon_state_of(&facts);
    if (next != daemon->state)
        rk_daemon_state_move(&daemon->state, next);
}

struct rk_status *rk_daemon_check_fence(struct rk_daemon *daemon, const struct rk_fence *fence)
{
    int64_t now_ms = rk_time_boot_ms();
    struct rk_status *st = rk_lease_check(&daemon->lease, now_ms, fence);

    if (st && sim->defect == SIM_DEFECT_NO_FENCE && rk_lease_is_live(&daemon->lease, now_ms)) {
        rk_status_free(st);
        st = NULL;
    }
    RK_TRY(st);
    rk_lease_renew(&daemon->lease, now_ms);
    return NULL;
}

int rk_daemon_exit_code(const struct rk_status *st)
{
    (void)st;
    return 1;
}

void rk_deadline_set(int seconds, int exit_code, const char *text)
{
    (void)seconds;
    (void)exit_code;
    (void)text;
}

/* --- user interface: left out --- */

void rk_metrics_count_call(struct rk_metrics *metrics, const struct rk_call_end *end)
{
    (void)metrics;
    (void)end;
}

void rk_gpu_get_sample(struct rk_gpu *gpu, struct rk_gpu_sample *out)
{
    (void)gpu;
    *out = (struct rk_gpu_sample){0};
}

/* --- connections: the simulated network has no guard --- */

struct rk_status *rk_guard_create(struct rk_guard **out, const struct rk_guard_config *config)
{
    (void)config;
    *out = NULL;
    return NULL;
}

void rk_guard_open(struct rk_guard *guard)
{
    (void)guard;
}

void rk_guard_close_listener(struct rk_guard *guard)
{
    (void)guard;
}

void rk_guard_destroy(struct rk_guard *guard)
{
    (void)guard;
}

const char *rk_guard_address(const struct rk_guard *guard)
{
    (void)guard;
    return "";
}

void rk_guard_format_peer(struct rk_guard *guard, const char *core_peer, char *out, size_t out_bytes)
{
    (void)guard;
    snprintf(out, out_bytes, "%s", core_peer);
}

char *rk_guard_peer_names(struct rk_guard *guard, const char *core_peer)
{
    (void)guard;
    (void)core_peer;
    return NULL;
}

void rk_guard_trust(struct rk_guard *guard, const char *core_peer, rk_rights_t rights)
{
    (void)guard;
    (void)core_peer;
    (void)rights;
}

void rk_guard_get_stats(struct rk_guard *guard, struct rk_guard_stats *out)
{
    (void)guard;
    *out = (struct rk_guard_stats){0};
}

/* --- the loop, and the disk --- */

static struct sim_host *host_of(struct rk_loop *loop)
{
    return (struct sim_host *)(void *)loop;
}

static void run_event(void *user, uint64_t arg)
{
    struct sim_host *host = sim_here()->owner;
    struct rk_loop_event *event = user;

    (void)arg;
    host->num_posted--;
    event->run(event);
}

void rk_loop_post(struct rk_loop *loop, struct rk_loop_event *event)
{
    struct sim_host *host = host_of(loop);

    /* In the order in which they were posted. */
    host->num_posted++;
    sim_at(host->process, 2000, run_event, event, 0);
}

/* The loop's own thread may be busy: then the event waits for it. */
void rk_loop_run_here(struct rk_loop *loop, struct rk_loop_event *event)
{
    if (host_of(loop)->num_posted == 0 && sim_random(4) > 0)
        event->run(event);
    else
        rk_loop_post(loop, event);
}

/* The disk outlives the process. `dir` is the rank. */
struct rk_status *rk_epoch_store(const char *dir, uint64_t epoch)
{
    sim->stored_epochs[dir[0] - '0'] = epoch;
    return NULL;
}

/* --- handlers --- */

static const struct rk_rpc_handler *const handlers[RK_RPC_COUNT] = {
    [RK_RPC_ID_DESCRIBE] = &rk_rpc_describe,     [RK_RPC_ID_ACQUIRE_LEASE] = &rk_rpc_acquire_lease,
    [RK_RPC_ID_KEEP_ALIVE] = &rk_rpc_keep_alive, [RK_RPC_ID_RELEASE_LEASE] = &rk_rpc_release_lease,
    [RK_RPC_ID_CONFIGURE] = &rk_rpc_configure,   [RK_RPC_ID_EXECUTE] = &rk_rpc_execute,
    [RK_RPC_ID_CANCEL] = &rk_rpc_cancel,         [RK_RPC_ID_GET_STATUS] = &rk_rpc_get_status,
};

/* rpc_server.c compares handlers with these. */
const struct rk_rpc_handler rk_rpc_health_check, rk_rpc_health_watch, rk_rpc_reflect;

const struct rk_rpc_handler *rk_rpc_handler_get(rk_rpc_id_t id)
{
    return handlers[id];
}

/* --- life --- */

struct sim_process *sim_host_process(struct sim_host *host)
{
    return host->process;
}

struct grpc_server *sim_host_server(struct sim_host *host)
{
    return host->server;
}

static void on_stopped(struct rk_daemon *daemon)
{
    struct sim_host *host = RK_CONTAINER_OF(daemon, struct sim_host, daemon);

    rk_server_destroy(daemon->server);
    host->server = NULL;
    host->has_stopped = true;
}

static void tick(void *user, uint64_t arg)
{
    struct sim_host *host = user;
    struct rk_daemon *daemon = &host->daemon;

    (void)arg;
    if (host->process->is_dead)
        return;
    if (rk_lease_tick(&daemon->lease, rk_time_boot_ms(), GRACE_MS) == RK_LEASE_LAPSED)
        rk_operations_cancel(daemon, true, "the driver's lease lapsed");
    rk_daemon_update(daemon);
    rk_server_tick(daemon->server);
    sim_at(host->process, SIM_MS(RK_TICK_MS), tick, host, 0);
}

static void fill_daemon(struct sim_host *host)
{
    static char state_dirs[SIM_RANKS][2] = {"0", "1", "2"}, device[] = "cpu";
    struct rk_daemon *daemon = &host->daemon;
    struct rk_status *st = rk_random_bytes(&daemon->incarnation, sizeof(daemon->incarnation));

    RK_ASSERT(!st);
    daemon->worker = (struct rk_worker *)(void *)host;
    daemon->loop = (struct rk_loop *)(void *)host;
    daemon->state = RK_DAEMON_UNCONFIGURED;
    daemon->settings.state_dir = state_dirs[host->rank];
    daemon->settings.device = device;
    daemon->settings.lease_ttl_ms = TTL_MS;
    daemon->settings.lease_grace_ms = GRACE_MS;
    daemon->settings.max_inflight_bytes = 1 << 30;
    daemon->settings.chunk_bytes = 1 << 20;
    rk_lease_init(&daemon->lease, daemon->incarnation, sim->stored_epochs[host->rank]);
    daemon->requests.limit_bytes = RK_LIMIT_STORED_RESULT_BYTES;
    daemon->requests.drop_result = rk_operation_drop_result;
    daemon->requests.destroy = rk_operation_destroy;
}

void sim_host_start(int32_t rank)
{
    struct sim_host *host = rk_calloc(1, sizeof(*host));
    struct rk_daemon *daemon = &host->daemon;
    struct rk_server_config config = {.daemon = daemon, .listen = &nowhere, .on_stopped = on_stopped};
    struct sim_process *before = sim->acting;
    struct rk_status *st;

    host->rank = rank;
    host->process = sim_process_create(rank, host);
    host->next = sim->all_hosts;
    sim->all_hosts = host;
    sim->acting = host->process;
    fill_daemon(host);
    st = rk_auth_create(&daemon->auth, NULL);
    RK_ASSERT(!st);
    config.auth = daemon->auth;
    config.loop = daemon->loop;
    st = rk_server_create(&daemon->server, &config);
    RK_ASSERT(!st);
    host->server = daemon->server->core;
    sim->hosts[rank] = host;
    sim_at(host->process, SIM_MS(RK_TICK_MS), tick, host, 0);
    sim->acting = before;
}

/* The code continues until the server has ended, without visible effects on others. */
void sim_host_crash(struct sim_host *host)
{
    sim_net_end_process(host->process);
    sim_engine_crash(host);
    rk_server_begin_shutdown(host->daemon.server);
}

void sim_hosts_check_free_of(const char *driver_id)
{
    for (int32_t rank = 0; rank < SIM_RANKS; rank++) {
        const struct rk_daemon *daemon = sim->hosts[rank] ? &sim->hosts[rank]->daemon : NULL;

        if (!daemon || strcmp(daemon->lease.driver_id, driver_id) != 0)
            continue;
        if (rk_lease_is_live(&daemon->lease, rk_time_boot_ms()))
            sim_fail("rank %d still has the lease of %s, which was closed", rank, driver_id);
        if (daemon->pending || daemon->inflight_bytes > 0 || rk_operations_num_current(daemon) > 0)
            sim_fail("rank %d still has a call of %s, which was closed", rank, driver_id);
    }
}

void sim_hosts_free(void)
{
    struct sim_host *next;

    for (struct sim_host *host = sim->all_hosts; host; host = next) {
        next = host->next;
        RK_ASSERT(host->has_stopped);
        RK_ASSERT(!host->daemon.pending);
        RK_ASSERT(host->daemon.inflight_bytes == 0);
        rk_requests_clear(&host->daemon.requests);
        rk_group_clear(&host->daemon.group);
        rk_auth_destroy(host->daemon.auth);
        rk_free(host->daemon.last_error);
        rk_free(host);
    }
    sim->all_hosts = NULL;
}
