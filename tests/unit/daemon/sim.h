/* The driver's protocol under a simulated network, for one seed: two daemons whose leases, requests,
 * operations and Execute streams are the product's code (daemon/lease.c, requests.c, operation.c, rpc_*.c,
 * execute_*.c), drivers that follow docs/rpc.md, and a network that delays, disconnects, drops and repeats
 * calls. Time is simulated, everything runs in one thread, and all random choices come from the seed.
 *
 * A mutation is an operation of the simulated engine: the ranks of a call synchronise, as in a collective,
 * and it is then applied on both. */
#ifndef RK_TEST_SIM_H
#define RK_TEST_SIM_H

#include <stdbool.h>
#include <stdint.h>

#include "daemon/daemon_internal.h"
#include "daemon/operation_internal.h"
#include "tests/unit/sim/common.h"

#define SIM_RANKS   2
#define SIM_DRIVERS 3 /* two that compete, and one that starts when all faults are over */
#define SIM_TAGS    512
#define SIM_QUEUE   64

/* Input of calls that have one. */
#define SIM_TENSORS      3
#define SIM_TENSOR_BYTES 64

/* Intentional defects, to verify that the checks detect them. */
typedef enum sim_defect {
    SIM_DEFECT_NONE,
    SIM_DEFECT_NO_DEDUPE,   /* a known request_id runs again */
    SIM_DEFECT_NO_FENCE,    /* calls of any epoch are accepted */
    SIM_DEFECT_NO_CANCEL,   /* a new lease does not cancel running calls */
    SIM_DEFECT_FRESH_RETRY, /* drivers repeat a committed call as a new one */
    SIM_DEFECT_COUNT
} sim_defect_t;

struct sim_driver;
struct sim_stream;

/* --- a daemon --- */
struct sim_job {
    struct rk_job *job;
    struct rk_operation *operation;
    uint64_t tag;
    bool is_meeting; /* both ranks have it: it succeeds */
};

struct sim_daemon {
    struct rk_daemon daemon;
    int32_t rank;
    bool is_up;
    uint64_t generation; /* of the process: events of an earlier one are void */
    struct sim_job queue[SIM_QUEUE];
    int num_queued;
    uint64_t submitted_epoch, submitted_seq; /* of the newest operation */
    uint64_t stored_epoch;                   /* as state.dir keeps it */
    struct rk_call *calls;                   /* open ones */
};

/* --- the world --- */
struct sim {
    struct sim_world world;
    uint64_t seed;
    sim_defect_t defect;
    bool is_ending; /* messages in flight are discarded */
    struct sim_daemon daemons[SIM_RANKS];
    struct sim_driver *drivers[SIM_DRIVERS];
    int applied[SIM_TAGS][SIM_RANKS]; /* mutations of a tag on a rank */
    uint64_t next_tag;
    int64_t num_applied, num_succeeded, num_retried, num_repeated, num_cut, num_crashes;
};

extern struct sim *sim;

/* --- sim.c --- */
/* Runs one seed; false if a guarantee was violated: sim->world.failure names it. Valid until sim_end. */
bool sim_run(uint64_t seed, sim_defect_t defect);
void sim_end(void);
void sim_at(int64_t delay_ns, void (*run)(void *user), void *user);
/* Delay of a message: mostly a millisecond, sometimes seconds. */
int64_t sim_delay_ns(void);

/* --- sim_daemon.c --- */
void sim_daemon_start(struct sim_daemon *host, int32_t rank);
void sim_daemon_crash(struct sim_daemon *host);
void sim_daemon_tick(struct sim_daemon *host);
void sim_daemon_stop(struct sim_daemon *host); /* at the end: frees what it holds */

/* --- sim_net.c --- */
/* A small call. on_reply is called once: UNAVAILABLE if the network lost it. `reply` is borrowed. */
typedef void (*sim_reply_t)(void *user, int32_t rank, rk_code_t code, const char *reason,
                            struct rk_bytes reply);
void sim_unary(int32_t rank, const struct rk_rpc_handler *handler, const struct rk_str *request,
               sim_reply_t on_reply, void *user);
/* An Execute stream. */
struct sim_stream_hooks {
    void (*on_accepted)(void *user, int32_t rank, bool is_replayed);
    /* The end: OK with the tag of the result, or an error; UNAVAILABLE without reason: the link was cut. */
    void (*on_end)(void *user, int32_t rank, rk_code_t code, const char *reason, uint64_t tag);
    void *user;
};
struct sim_stream *sim_stream_open(int32_t rank, const struct rk_execute_header *header,
                                   const struct sim_stream_hooks *hooks);
void sim_stream_commit(struct sim_stream *stream);
void sim_stream_close(struct sim_stream *stream); /* the driver stops reading; the daemon learns of it
                                                   * later */

/* --- sim_driver.c --- */
/* Claims, and makes `num_calls` calls, with as many retries as the protocol allows. */
struct sim_driver *sim_driver_start(int number, int num_calls, bool takeover, int64_t delay_ns);
void sim_driver_crash(struct sim_driver *driver);
bool sim_driver_is_done(const struct sim_driver *driver); /* has made all its calls */
void sim_driver_destroy(struct sim_driver *driver);

#endif
