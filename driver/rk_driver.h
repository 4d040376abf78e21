/* librankd_driver: drives a group of rankd daemons. Umbrella over the topic headers of this module.
 *
 *   struct rk_driver *driver;
 *   rk_driver_open(&driver, &(struct rk_driver_config){.struct_size = sizeof(struct rk_driver_config),
 *                                                      .addresses = addresses, .num_addresses = 4});
 *   rk_driver_claim(driver);                       a lease on all daemons; kept alive in the background
 *   rk_driver_configure(driver, meshes, 2);        ranks, meshes, communicators
 *   rk_driver_call(driver, &call, &result);        scatter, run on all ranks, gather
 *   rk_driver_start(&future, driver, &call);       the same, asynchronously
 *   rk_driver_close(driver);                       releases the lease
 *
 * Worker i of the address list is rank i of the world. Every function returns NULL or a status that the
 * caller frees (base/rk_status.h). Messages about one daemon read "worker 3 (ADDRESS, rank 3): CODE REASON:
 * what happened". A driver belongs to one thread at a time; only rk_driver_interrupt may be called from
 * anywhere. docs/driver-library.md has an example and says how the ABI changes. */
#ifndef RK_DRIVER_H
#define RK_DRIVER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rk_arena.h"
#include "base/rk_json.h"
#include "base/layout/rk_mesh.h"
#include "base/rk_status.h"
#include "base/rk_str.h"
#include "dispatch/rk_dispatch.h"
#include "proto/rk_proto.h"

RK_BEGIN_DECLS

struct rk_driver;

/* --- the library's version --- */
/* ABI version: raised with every change that is incompatible with programs compiled before; also the number
 * in the SONAME, librankd_driver.so.N. New functions, and new fields at the end of a struct that begins with
 * struct_size, do not raise it. */
#define RK_DRIVER_ABI 2
/* RK_DRIVER_ABI of the library that was loaded. */
uint32_t rk_driver_abi(void);

/* --- addresses --- */
struct rk_hosts {
    int32_t count;
    char **addresses; /* as gRPC takes them: "HOST:PORT", "[V6]:PORT", "unix:PATH", "unix-abstract:NAME" */
};

/* Port of addresses without one. */
#define RK_DEFAULT_PORT 7000

/* "TERM,TERM" or "@FILE" (lines of the same, # comments), mixed freely. A term is an address, in which ranges
 * name several ("node[01-04]:[7000-7007]"), "dns:NAME[:PORT]" for every address of a name, or
 * "slurm:[PORT[:N]]" for the daemons of the Slurm job that the process is part of (docs/deploy.md).
 * INVALID_ARGUMENT names the invalid or repeated address and its position; NOT_FOUND for a missing file,
 * UNAVAILABLE for a name without an address. Release with rk_hosts_fini. */
struct rk_status *rk_hosts_parse(struct rk_hosts *out, const char *text) RK_NODISCARD;
void rk_hosts_fini(struct rk_hosts *hosts);
/* Bytes of the first term of a list: up to a comma outside brackets, or to the end. */
size_t rk_hosts_term_bytes(const char *text);

/* --- connection --- */
/* The driver's name in leases, if its configuration has none: "user@host:pid"; rk_free it. */
char *rk_driver_default_id(void);
struct rk_driver_config {
    size_t struct_size;           /* sizeof: fields that the program's header did not have yet are zero */
    const char *const *addresses; /* in rank order; copied */
    int32_t num_addresses;
    const char
        *token_file; /* bearer token: its first line; NULL: for a Unix socket the file "token" beside it */
    const char *driver_id;      /* shown by status and to refused drivers; NULL: user@host:pid */
    int64_t lease_ttl_ms;       /* 0: 30 s */
    int64_t control_timeout_ms; /* of small calls; 0: 10 s */
    bool takeover;              /* claim from a driver whose lease is still valid */
    /* Memory plans by one daemon that was started with dry_run=true: the size of the planned world, of which
     * it plans one rank at a time. 0: no dry run, the world consists of the daemons. */
    int32_t dry_world_size;
    const char *dry_device; /* result of rk_driver_device_kind; NULL: the daemon's device */
    /* Directory that keeps the driver key, so that the same user on this host gets the leases
     * back at once after this process has died or lost a daemon, instead of after lease_ttl_ms. It is
     * created; an unusable one is ignored. NULL: only this object can claim again. */
    const char *identity_dir;
    /* TLS on TCP connections (docs/tls.md): certificates of the authorities that are trusted, this side's
     * certificate and its key. A daemon's certificate must contain the host of its address. NULL: no TLS;
     * cert and key only with ca. Borrowed during rk_driver_open. */
    const char *tls_ca, *tls_cert, *tls_key;
};

/* Checks the addresses and opens two channels per daemon, one for batches and one for control. Connections
 * are established when they are needed. */
struct rk_status *rk_driver_open(struct rk_driver **out, const struct rk_driver_config *config) RK_NODISCARD;
/* Releases the lease, closes the connections. Running calls continue on the daemons unless they were
 * cancelled. NULL is a no-op. */
void rk_driver_close(struct rk_driver *driver);
/* Ranks of the world. */
int32_t rk_driver_num_workers(const struct rk_driver *driver);
bool rk_driver_is_dry_run(const struct rk_driver *driver);
/* Sets, in a dry run, the rank of the daemon at the next configure, initially 0. */
void rk_driver_stand_for(struct rk_driver *driver, int32_t rank);
/* Requests a stop, from any thread or a signal handler. Once: the running call is cancelled on the daemons
 * and ends with CANCELLED, as does every later call. Twice: the call is detached and returns at once
 * (reason DETACHED). */
void rk_driver_interrupt(struct rk_driver *driver);
/* Whether rk_driver_interrupt was called; from any thread. */
bool rk_driver_is_interrupted(const struct rk_driver *driver);
/* Withdraws one interrupt, so that state can be saved; the next interrupt counts again. False, without
 * effect, after two. */
bool rk_driver_resume(struct rk_driver *driver);

/* --- queries; no lease needed --- */
struct rk_driver_worker {
    const char *address;
    struct rk_status *error;        /* owned by the caller; NULL when status is valid */
    struct rk_worker_status status; /* lives in the arena */
};

/* Asks all workers at once; workers[rk_driver_num_workers]. An unreachable one has its own error, the rest
 * answers. */
void rk_driver_get_status(struct rk_driver *driver, struct rk_arena *arena, struct rk_driver_worker *workers);
/* The methods of worker 0. */
struct rk_status *rk_driver_list_methods(struct rk_driver *driver, struct rk_arena *arena,
                                         struct rk_list_methods_response *out) RK_NODISCARD;
struct rk_driver_watch_args {
    struct rk_watch_request request; /* {0}: every new event, log lines from info on, without an end */
    /* The event lives until it returns. The first one of a worker has its status. */
    void (*on_event)(void *user, int32_t worker, const struct rk_watch_event *event);
    void (*on_end)(void *user, int32_t worker, const struct rk_status *st); /* borrowed; may be NULL */
    void *user;
};

/* Events of all workers, in the order of arrival, until every worker's stream has ended (soon with
 * past_only) or the driver is interrupted. errors[rk_driver_num_workers] receive the status of each,
 * NULL or CANCELLED or a failure; the caller frees them. */
void rk_driver_watch(struct rk_driver *driver, const struct rk_driver_watch_args *args,
                     struct rk_status **errors);
struct rk_driver_dump {
    struct rk_str json;      /* the data of DumpFlightRecorder; the caller releases it */
    struct rk_status *error; /* owned by the caller; NULL when the text is complete */
};

/* Asks all workers for their flight recorder, configuration and version; dumps[rk_driver_num_workers]. */
void rk_driver_dump_flight(struct rk_driver *driver, struct rk_driver_dump *dumps);
/* Offsets to add to the monotonic clock of each worker (monotonic_ns of its status) to get this process's
 * clock: offsets_ns[rk_driver_num_workers], within half of the time that a GetStatus takes. */
struct rk_status *rk_driver_clock_offsets(struct rk_driver *driver, int64_t *offsets_ns) RK_NODISCARD;
/* Ends all daemons: after `grace_ms` for running calls (0: their own drain.grace), at once with `force`. */
struct rk_status *rk_driver_shutdown(struct rk_driver *driver, uint32_t grace_ms, bool force,
                                     const char *reason) RK_NODISCARD;

/* --- the group --- */
/* Takes the lease on all daemons, or on none: FAILED_PRECONDITION (LEASE_HELD) names the other driver. A
 * lease of this driver itself, on a daemon that it had lost, is replaced. Worker 0 is claimed first, so that
 * two drivers with the same address list cannot hold one half each. A thread renews the lease until
 * rk_driver_release or rk_driver_close. */
struct rk_status *rk_driver_claim(struct rk_driver *driver) RK_NODISCARD;
void rk_driver_release(struct rk_driver *driver);
/* Epoch of the lease, on all workers; a worker with a different epoch was claimed by another driver since. 0
 * before the first claim. */
uint64_t rk_driver_epoch(const struct rk_driver *driver);
/* Gives every rank its coordinates in the meshes of the roles and builds the communicators. The coordinates
 * that the daemons report are compared with the mesh arithmetic before this succeeds. */
struct rk_status *rk_driver_configure(struct rk_driver *driver, const struct rk_role_mesh *meshes,
                                      int64_t num_meshes) RK_NODISCARD;
/* Adopts the meshes that the daemons have from an earlier Configure. FAILED_PRECONDITION (NOT_CONFIGURED)
 * when they have none or do not agree. */
struct rk_status *rk_driver_adopt(struct rk_driver *driver) RK_NODISCARD;
/* Borrowed until the next configure; NULL when the role has no mesh. */
const struct rk_mesh *rk_driver_find_mesh(const struct rk_driver *driver, const char *role);
/* The kind of device of all workers: "cpu", "cuda". Borrowed until the next configure; NULL before the
 * first. */
const char *rk_driver_device_kind(const struct rk_driver *driver);
/* The hardware of the first worker: "NVIDIA H200", "cpu"; "" when the daemon does not say. Borrowed until the
 * next configure; NULL before the first. */
const char *rk_driver_device_model(const struct rk_driver *driver);

/* --- calls --- */
struct rk_driver_call_args {
    const char *role, *method;
    const struct rk_batch
        *batch; /* cut by the method's dispatch mode; NULL when the method takes no columns */
    const struct rk_json *options; /* NULL: defaults */
    const struct rk_plan *plan;    /* for methods with the flag PLAN */
    int64_t timeout_ms;            /* of the method on the daemons; 0: none but their watchdog's */
    void (*on_progress)(void *user, int32_t rank, const struct rk_progress *progress); /* may be NULL */
    void *user;
};

struct rk_driver_result {
    struct rk_batch
        *batch; /* rows of the collected ranks, in the order of the input; NULL without output columns */
    int32_t num_outputs;
    struct rk_batch **outputs; /* meta and columns of each collected rank, in item order */
    struct rk_json *metrics; /* object of numbers, reduced over the collected ranks (max and min: over all) */
};

/* Runs one method on the ranks that its dispatch mode addresses, in two phases: no rank starts before all
 * have accepted the same plan. On failure the message names the rank where the failure began; when a rank was
 * lost or failed alone, the others are cancelled and their communicators aborted, they keep their models and
 * can be configured again. A lost daemon is ABORTED (PEER_LOST). The result is zero on failure. */
struct rk_status *rk_driver_call(struct rk_driver *driver, const struct rk_driver_call_args *call,
                                 struct rk_driver_result *result) RK_NODISCARD;
void rk_driver_result_fini(struct rk_driver_result *result);

/* --- several calls at once --- */
/* An asynchronous call. The library runs it on a separate thread: it
 * is committed, and its result is received, without any further call of the program. */
struct rk_future;

/* Starts a call as rk_driver_call does. Errors found without a daemon (arguments, batch, plan, lease) are
 * returned here, all others by rk_future_take. Strings, options and plan are copied; the columns of the batch
 * are shared, and must not be written to until the future is done; `call->user` must stay until then, and
 * `on_progress` is called on the library's thread. Calls on the same ranks run in the order of their starts,
 * rk_driver_call included: each is sent while the one before it runs. Calls on different ranks run at the
 * same time, as do calls of different drivers. Until all futures of a driver are done it cannot claim,
 * configure or adopt (FAILED_PRECONDITION), and must not be released or closed. */
struct rk_status *rk_driver_start(struct rk_future **out, struct rk_driver *driver,
                                  const struct rk_driver_call_args *call) RK_NODISCARD;
/* Never blocks. From any thread, like rk_future_cancel; the other functions belong to one thread at a time.
 */
bool rk_future_is_done(const struct rk_future *future);
/* Waits until one of futures[count] is done, and returns its index: the lowest when several are. Of any
 * drivers; NULL entries are skipped. -1 after timeout_ms (negative: no limit), or when all are NULL. */
int32_t rk_future_wait_any(struct rk_future *const *futures, int32_t count, int64_t timeout_ms);
/* Requests a cancel of the call on the daemons, and returns at once. The call ends with CANCELLED within
 * seconds, unless it was about to end: its result decides. The group stays usable. `reason` appears in the
 * daemons' logs (127 bytes of it; NULL: none). A no-op on a done future. */
void rk_future_cancel(struct rk_future *future, const char *reason);
/* Waits for the end, returns result and status to the caller as rk_driver_call does, and frees the future. */
struct rk_status *rk_future_take(struct rk_future *future, struct rk_driver_result *result) RK_NODISCARD;
/* Cancels, waits, and frees the future with its result. NULL is a no-op. */
void rk_future_drop(struct rk_future *future);

/* --- daemons that the program starts on this machine --- */
struct rk_local;

/* lease.grace of these daemons: they keep a model overnight without a driver. */
#define RK_LOCAL_GRACE "24h"

struct rk_local_config {
    size_t struct_size;
    int32_t num_daemons;
    const char *program;           /* path of rankd */
    const char *device;            /* "cpu", or "cuda": daemon i gets cuda:i */
    const char *log_dir;           /* rankd-<rank>.log is written here */
    const char *const *ckpt_roots; /* absolute directories for paths in calls; NULL-terminated */
    int64_t start_timeout_ms;      /* 0: 30 s */
    const char *record_dir;        /* absolute: daemon i records its calls in DIR/rank-<i>; NULL: no record */
    bool is_dry_run;     /* they only plan, for any rank of any world: rk_driver_config.dry_world_size */
    int64_t num_threads; /* CPU threads of each daemon; 0: the cores are divided */
};

/* Starts the daemons on Unix sockets in a private directory, each with its share of the cores, and waits
 * until they listen. They demand a token, which rk_driver_open finds beside the sockets. If one ends before
 * that: INVALID_ARGUMENT for its configuration (including a missing device), FAILED_PRECONDITION (HELD) when
 * another process has the device, else INTERNAL. Neither /etc/rankd nor RANKD_... of the environment
 * configures them. They are killed by the kernel when the calling thread dies, so call this from a thread
 * that stays. */
struct rk_status *rk_local_start(struct rk_local **out, const struct rk_local_config *config) RK_NODISCARD;
/* Detaches the daemons so that they outlive this process: rk_local_stop does not stop them, and they stop
 * RK_LOCAL_GRACE after their last lease ended. On failure they still stop with rk_local_stop. */
struct rk_status *rk_local_detach(struct rk_local *local) RK_NODISCARD;
/* Sends SIGTERM, then SIGKILL to daemons that take longer than 5 s; removes the directory. NULL is a no-op.
 */
void rk_local_stop(struct rk_local *local);
const char *const *rk_local_addresses(const struct rk_local *local); /* [num_daemons] */
/* Appends "rankd of rank 2 (pid 71) was killed by signal 9; its log is LOG" for each daemon that ended
 * unexpectedly; for use after a failure, since it waits briefly for one that is about to end. */
void rk_local_describe_deaths(struct rk_local *local, struct rk_str *out);

RK_END_DECLS

#endif
