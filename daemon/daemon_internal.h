/* The daemon as a whole. One object per process, owned by rk_daemon_run; every field belongs to thread L
 * unless stated otherwise. */
#ifndef RK_DAEMON_INTERNAL_H
#define RK_DAEMON_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/layout/rk_mesh.h"
#include "base/rk_status.h"
#include "daemon/auth_internal.h"
#include "daemon/config_internal.h"
#include "daemon/metrics/gpu.h"
#include "daemon/health_internal.h"
#include "daemon/lease_internal.h"
#include "daemon/lock_internal.h"
#include "daemon/loop_internal.h"
#include "daemon/metrics/metrics_http.h"
#include "daemon/metrics/metrics.h"
#include "daemon/recorder_internal.h"
#include "daemon/requests_internal.h"
#include "daemon/rk_daemon.h"
#include "daemon/rpc/rpc.h"
#include "daemon/state_internal.h"
#include "daemon/stop_internal.h"
#include "daemon/rpc/watch.h"
#include "worker/rk_worker.h"

struct rk_execute;
struct rk_configure;

#define RK_DAEMON_LOCKS_MAX 5

/* The place of this daemon among the ranks, from the last successful Configure. */
struct rk_group {
    int32_t rank, world_size; /* world_size 0: never configured */
    int32_t num_roles;
    struct {
        char role[32];
        struct rk_mesh *mesh;
    } roles[RK_LIMIT_ROLES];
};

struct rk_daemon {
    /* fixed after start */
    const struct rk_daemon_args *args;
    uint64_t incarnation;
    char host[256];
    int64_t started_ns;
    int64_t watchdog_ms; /* of the service manager; 0: none */
    struct rk_lock *locks[RK_DAEMON_LOCKS_MAX];
    struct rk_loop *loop;
    struct rk_worker *worker;
    struct rk_server *server;
    struct rk_server *health_server;      /* of health.listen; NULL: none */
    struct rk_gpu *gpu;                   /* GPU metrics; NULL: the device is not a GPU */
    struct rk_metrics_http *metrics_http; /* of metrics.listen; NULL: none */
    struct rk_feed *feed;                 /* events; any thread adds to it */
    struct rk_recorder *recorder;         /* NULL: nothing is recorded */

    struct rk_settings settings;
    struct rk_auth *auth;
    struct rk_tls *tls; /* NULL: TCP is plain */
    int64_t tls_warned_ns;
    rk_daemon_state_t state;
    int64_t failed_ns; /* when the state became FAILED */
    bool is_stuck;     /* FAILED, and the engine does not respond */
    struct rk_lease lease;
    struct rk_requests requests;    /* of struct rk_operation */
    struct rk_execute *pending;     /* the chunk stream whose call is not committed yet; NULL: none */
    uint64_t inflight_bytes;        /* host memory of inputs */
    struct rk_configure *configure; /* the running one; NULL: none */
    /* The newest mesh that an epoch requested. */
    uint64_t mesh_epoch, mesh_generation;
    struct rk_group group;
    struct rk_health health;
    struct rk_metrics metrics;
    struct rk_watch watch;
    bool is_draining;           /* Drain was called, or the daemon stops */
    bool is_detached;           /* from the driver that started it: the daemon ends with its grace period */
    struct rk_call *drain_call; /* waits until nothing runs; NULL: none */
    int64_t drain_deadline_ns;
    struct rk_stop stop;
    double tokens_per_second; /* of the last call with tokens; 0: none yet */
    int num_dumps;            /* of the flight recorder, in progress */
    char *config_text;        /* the configuration that was read last, as JSON */
    char *last_error;         /* of the last failed method; NULL: none */
    int64_t alive_sent_ns;    /* last notification of the service manager */
};

/* --- start.c --- */
/* Everything up to listening. What was made stays on failure too: rk_daemon_run ends it. */
struct rk_status *rk_daemon_start(struct rk_daemon *daemon) RK_NODISCARD;

/* --- reload.c --- */
/* Makes the token of a daemon for which rk_settings_generates_token is true. */
struct rk_status *rk_daemon_make_token(struct rk_auth **auth,
                                       const struct rk_settings *settings) RK_NODISCARD;
struct rk_status *rk_daemon_load_settings(struct rk_daemon *daemon) RK_NODISCARD;
void rk_daemon_reload(struct rk_daemon *daemon);

/* --- tick.c: of the loop; `user` is the daemon --- */
void rk_daemon_on_tick(void *user);
void rk_daemon_on_signal(void *user, int signum);

/* --- facts.c --- */
/* Moves the daemon to the state that follows from the facts, and updates health and the service manager.
 * Call it after every change of a fact; the tick calls it as well. */
void rk_daemon_update(struct rk_daemon *daemon);
/* Nothing is committed and unfinished, uploading, or being configured. */
bool rk_daemon_is_idle(const struct rk_daemon *daemon);
/* Checks the fence of a call, and renews its lease. */
struct rk_status *rk_daemon_check_fence(struct rk_daemon *daemon, const struct rk_fence *fence) RK_NODISCARD;
/* INTERNAL (DEVICE_LOST, ENGINE_STUCK) in state FAILED. */
struct rk_status *rk_daemon_check_well(const struct rk_daemon *daemon) RK_NODISCARD;
/* As rk_daemon_check_well, and FAILED_PRECONDITION (DRAINING) when no new work is accepted. */
struct rk_status *rk_daemon_check_takes_work(const struct rk_daemon *daemon) RK_NODISCARD;

/* --- jobs.c --- */
/* E: hands the job back to L; `user` is the daemon. */
void rk_daemon_on_job_done(void *user, struct rk_job *job);
/* A job without a call that waits for its result. */
void rk_daemon_submit_forgotten(struct rk_daemon *daemon, struct rk_job *job);

/* --- group.c --- */
void rk_group_clear(struct rk_group *group);
/* Takes rank, world and meshes out of a Configure job that succeeded. */
void rk_group_take(struct rk_group *group, struct rk_job_configure *job);
const struct rk_mesh *rk_group_find_mesh(const struct rk_group *group,
                                         const char *role); /* NULL when unknown */
/* Rank and roles for GetStatus, Describe and Configure. Lists the roles whose mesh includes this rank. The
 * result lives in the arena and borrows from the daemon. */
struct rk_rank_info rk_group_describe(const struct rk_daemon *daemon,
                                      const struct rk_worker_snapshot *snapshot, struct rk_arena *arena);

/* --- rpc_query.c --- */
/* The answer of GetStatus. It lives in the arena and borrows from the daemon. */
struct rk_worker_status rk_query_status(struct rk_daemon *daemon, struct rk_arena *arena);

/* --- rpc_lease.c --- */
/* An event about the current lease: "granted", "released", "lapsed", ... */
void rk_lease_tell(struct rk_daemon *daemon, const char *what);

/* --- rpc_admin.c --- */
/* Answers a waiting Drain when nothing runs or its timeout is over. */
void rk_drain_tick(struct rk_daemon *daemon);

/* --- rpc_configure.c --- */
/* Aborts the running Configure, if there is one. */
void rk_configure_abort(struct rk_daemon *daemon, const char *reason);

extern const struct rk_rpc_handler rk_rpc_list_methods, rk_rpc_describe, rk_rpc_get_status, rk_rpc_cancel;
extern const struct rk_rpc_handler rk_rpc_acquire_lease, rk_rpc_release_lease, rk_rpc_keep_alive;
extern const struct rk_rpc_handler rk_rpc_configure, rk_rpc_execute, rk_rpc_drain, rk_rpc_shutdown;
extern const struct rk_rpc_handler rk_rpc_reflect;

#endif
