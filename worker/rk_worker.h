/* worker: the engine thread, the watchdog thread, the roles and the methods.
 *
 * The daemon's loop submits jobs and gets them back finished; jobs run one at a time in the order of
 * submission on thread E, the only one that touches the device and collectives. Thread W watches deadlines
 * and aborts communicators when E is stuck. Everything the daemon may ask while E is busy comes from a
 * snapshot. */
#ifndef RK_WORKER_H
#define RK_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/rk_json.h"
#include "base/layout/rk_mesh.h"
#include "base/rk_status.h"
#include "dispatch/rk_batch.h"
#include "proto/limits.h"
#include "proto/rk_messages.h"
#include "proto/rk_methods.h"

RK_BEGIN_DECLS

struct rk_worker;
struct rk_job;

typedef enum rk_job_kind {
    RK_JOB_OPEN_ENDPOINT, /* rendezvous round 1: results comm_address and, when make_comm_id, comm_id */
    RK_JOB_CONFIGURE, /* round 2: join the world, build the roles' communicators, keep models whose mesh is
                         unchanged */
    RK_JOB_METHOD,
    RK_JOB_DROP_MODELS /* the lease's grace period is over: free models and communicators */
} rk_job_kind_t;

#define RK_JOB_MAX_METRICS 64

struct rk_job_metric {
    char name[64]; /* "actor/pg_loss" */
    double value;
    const char *reduce; /* "sum", "mean", "max", "min", "last"; static */
};

/* Data of RK_JOB_OPEN_ENDPOINT. */
struct rk_job_endpoint {
    bool make_comm_id;
    /* result */
    char comm_address[256];
    uint8_t comm_id[128]; /* of make_comm_id */
};

/* Data of RK_JOB_CONFIGURE. */
struct rk_job_configure {
    int32_t rank, world_size;
    uint64_t mesh_generation;
    int64_t num_meshes;
    struct {
        char role[32];
        struct rk_mesh *mesh; /* owned */
    } meshes[RK_LIMIT_ROLES];
    char **comm_addresses; /* [world_size], owned */
    uint8_t comm_id[128];
};

/* Data of RK_JOB_METHOD. */
struct rk_job_call {
    const struct rk_method *method;
    char role[32];
    struct rk_batch *input;      /* owned; NULL when the method takes no columns */
    struct rk_json *options;     /* owned; completed by rk_method_complete_options */
    struct rk_plan plan;         /* lives in plan_arena */
    struct rk_arena *plan_arena; /* owned */
    uint64_t seq;                /* of the call, for messages */
    bool collect;                /* false: the output may stay empty */
    int64_t timeout_ms;          /* 0: none; enforced by W */
    /* result */
    struct rk_batch *output; /* owned; may be NULL */
    struct rk_job_metric metrics[RK_JOB_MAX_METRICS];
    int64_t num_metrics;
    uint64_t num_tokens; /* processed or sampled by this rank's replica; 0: the method has none */
    /* generate_sequences: tokens of the prompts, and how long each response's first token took. */
    uint64_t num_prompt_tokens;
    double *first_token_seconds; /* [num_first_tokens], owned */
    int64_t num_first_tokens;
    /* A checkpoint that this call has completed, this rank's part; 0 bytes: none. */
    uint64_t checkpoint_bytes;
    double checkpoint_seconds; /* since its save began */
};

/* One job. The daemon fills the request of its kind, submits, and reads the result after on_done. */
struct rk_job {
    rk_job_kind_t kind;
    void *user; /* the daemon's */
    union {     /* the member of `kind`; RK_JOB_DROP_MODELS has none */
        struct rk_job_endpoint endpoint;
        struct rk_job_configure configure;
        struct rk_job_call call;
    };
    /* result */
    struct rk_status *status; /* owned; NULL is success */
    uint64_t device_ns, peak_device_bytes;
};

struct rk_job *rk_job_create(rk_job_kind_t kind);
void rk_job_destroy(struct rk_job *job); /* frees what it owns; NULL is a no-op */
void rk_job_add_metric(struct rk_job_call *job, const char *name, double value, const char *reduce);

struct rk_tls; /* base/net/rk_tls.h */

struct rk_worker_config {
    size_t struct_size;
    const char *device;                 /* "cpu", "cuda:0"; used only by this process */
    const char *plugin;                 /* library of the device's backend; NULL: the installed one */
    int32_t num_threads;                /* CPU kernels; 0: all cores */
    uint64_t device_memory_limit_bytes; /* 0: none */
    const char *comm_listen_host;       /* CPU net; "unix" or an address */
    struct rk_tls *comm_tls;            /* of its TCP connections; NULL: plain. Must outlive the worker */
    const char *const *ckpt_roots;      /* absolute directories for paths in calls; NULL-terminated */
    int64_t collective_timeout_ms;      /* watchdog.collective */
    int64_t idle_progress_ms;           /* watchdog.idle_progress: a running job without a tick */
    int64_t engine_grace_ms; /* watchdog.engine_grace: from a verdict to the job's end; 0: unlimited */
    int64_t comm_progress_timeout_ms;
    bool is_dry_run; /* accepts any rank of a world without peers; it only plans */
    void *user;
    /* On thread E: the job is finished and belongs to the receiver. Must not block. */
    void (*on_done)(void *user, struct rk_job *job);
};

/* Checks a device without opening it: whether its backend exists and can be loaded, which keeps it in
 * this process. Not in a process that has a worker. */
struct rk_status *rk_worker_check_device(const char *device, const char *plugin) RK_NODISCARD;
/* Opens the device, starts the threads. RESOURCE_EXHAUSTED when they cannot be created. */
struct rk_status *rk_worker_create(struct rk_worker **out,
                                   const struct rk_worker_config *config) RK_NODISCARD;
/* Aborts the running job, returns queued jobs with CANCELLED, joins the threads, frees the device. NULL is a
 * no-op. */
void rk_worker_destroy(struct rk_worker *worker);
/* Takes the job. Any thread. */
void rk_worker_submit(struct rk_worker *worker, struct rk_job *job);
/* Cancels the running or a queued job; abort_comm also aborts the communicators (for a job stuck in a
 * collective). A queued job still begins, since its peers may have begun, and ends at the first agreement of
 * the ranks, unless the communicators are aborted. "not_found", "queued_removed" (on_done follows), "flagged"
 * or "aborted". Any thread. */
const char *rk_worker_cancel(struct rk_worker *worker, struct rk_job *job, bool abort_comm,
                             const char *reason);
/* Aborts the communicators, whatever job is running: the lease lapsed, or a peer was lost. Any thread. */
void rk_worker_abort_comm(struct rk_worker *worker, const char *reason);

typedef enum rk_role_state { RK_ROLE_STATE_EMPTY, RK_ROLE_STATE_AWAKE, RK_ROLE_STATE_COUNT } rk_role_state_t;
const char *rk_role_state_name(rk_role_state_t state);

#define RK_WORKER_MEMORY_KINDS 8
#define RK_WORKER_COLLECTIVES  10

/* State that any thread may read at any time. */
struct rk_worker_snapshot {
    bool is_configured; /* communicators are up */
    /* Why a restart is needed: "DEVICE_LOST", "ENGINE_STUCK" (the running job does not end); NULL if none is
     * needed. Static storage. */
    const char *failure;
    char failure_text[256];
    uint64_t mesh_generation;
    int32_t num_roles;
    struct {
        char role[32];
        rk_role_state_t state;
        uint64_t weight_version;
        struct {
            const char *kind; /* "parameters", "kv_cache"; static */
            uint64_t bytes;
        } memory[RK_WORKER_MEMORY_KINDS]; /* of the device, after the last job */
        uint64_t host_bytes;              /* pinned, and of checkpoints being written */
    } roles[RK_LIMIT_ROLES];
    const struct rk_job *running; /* identity only; NULL when idle */
    int64_t running_since_ns;
    char phase[32];
    uint64_t progress_done, progress_total;
    uint64_t collective_seq;
    /* The collective that this rank waits in, "" outside collectives: "all_reduce #7 of group dp" */
    char collective_name[96];
    int64_t collective_since_ns; /* when it began, if there is one */
    /* Operations of collectives since the start; the time of one is known where its call waits for its end.
     */
    struct {
        const char *name; /* "all_reduce"; static; NULL: never configured */
        uint64_t count;
        int64_t ns;
    } collectives[RK_WORKER_COLLECTIVES];
    bool has_collective_times;
    /* Load of the generation that runs: sequences, and blocks of the KV cache, which are taken for the
     * longest possible response when a sequence begins. kv_blocks 0: there was none yet. */
    uint64_t rollout_running, rollout_waiting, kv_blocks_used, kv_blocks;
    uint64_t num_watchdog_verdicts; /* calls that the watchdog ended, since the start */
    uint64_t device_allocated_bytes, device_peak_bytes, device_total_bytes;
    char device_uuid[64], device_model[64];
};
void rk_worker_get_snapshot(struct rk_worker *worker, struct rk_worker_snapshot *out);

RK_END_DECLS

#endif
