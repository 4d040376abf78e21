/* Driver and daemons in one process, for one seed: the driver library's client, leases, streams, invocations
 * and futures, and the daemon's server, leases, requests, operations and Execute streams, all as built for
 * rankctl and rankd. The following parts are simulated:
 *
 *   the core of gRPC    core_*.c: channels, calls, queues and the server, over a simulated network (net.c)
 *                       that delays, stalls, cuts and repeats packets
 *   threads and time    fiber.c: a thread is a fiber, one runs at a time, and clocks show simulated time
 *   the engine          engine.c: ranks meet in collectives, and apply mutations
 *   the daemon's loop   host.c
 *   the program         trainer.c: a training run, as the user of the driver library
 *
 * Everything runs in one thread, and all randomness comes from the seed, so that a seed is reproducible. */
#ifndef RK_TEST_UNIT_SIM_H
#define RK_TEST_UNIT_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/rk_arena.h"
#include "base/rk_status.h"
#include "tests/unit/sim/common.h"
#include "tests/unit/sim/defects.h"

#define SIM_RANKS    3
#define SIM_TRAINERS 8 /* processes of programs, restarted ones included */
#define SIM_TAGS     2048
#define SIM_STEPS    12 /* of the training run */
#define SIM_EXTRA    2  /* steps of the last trainer when the run is complete */

/* The method's timeout encodes the tag of a call; it is longer than any seed runs. */
#define SIM_TIMEOUT_MS 10000000

/* --- scheduling --- */

/* The unit that crashes and stops. Events of a stopped process wait until it continues. A dead process has no
 * effect on others any more; its code continues until it has freed its resources. */
struct sim_process {
    struct sim_process *next;
    int32_t rank; /* of a daemon; -1: a program */
    int64_t stopped_until_ns;
    bool is_dead;
    void *owner;
};

struct sim_fiber;
struct sim_conn;
struct sim_host;
struct sim_trainer;

/* --- calls of the programs: expected effects --- */

typedef enum sim_role { SIM_ACTOR, SIM_CRITIC, SIM_ROLE_COUNT } sim_role_t;

typedef enum sim_kind {
    SIM_NOTHING,
    SIM_GENERATE, /* rows in, rows out */
    SIM_UPDATE,   /* the mutation of a step */
    SIM_SAVE,
    SIM_LOAD
} sim_kind_t;

typedef enum sim_verdict { SIM_PENDING, SIM_DONE, SIM_NOT_APPLIED, SIM_UNKNOWN } sim_verdict_t;

struct sim_call {
    sim_kind_t kind;
    sim_role_t role;
    int32_t step;
    struct sim_trainer *trainer;
    sim_verdict_t verdict;
    int applied[SIM_RANKS];
};

/* --- the world --- */
struct sim {
    struct sim_world world; /* the owner of an event is its process; NULL: the world itself */
    uint64_t seed;
    sim_defect_t defect;
    struct rk_arena *arena; /* allocations that live as long as the seed */
    double roughness;       /* factor of the fault rates: 1 is the default */
    bool is_ending;

    struct sim_process *acting; /* the process whose event runs */
    struct sim_process *processes;
    struct sim_fiber *fibers, *current; /* current NULL: an event without a fiber */
    struct sim_conn *conns;
    int64_t blocked_until_ns[SIM_TRAINERS][SIM_RANKS]; /* no packets between the two until then */
    struct sim_host *hosts[SIM_RANKS];                 /* the newest processes; NULL: down */
    uint64_t stored_epochs[SIM_RANKS];                 /* as state.dir keeps them */
    struct sim_host *all_hosts;
    struct sim_trainer *trainers[SIM_TRAINERS];
    int num_trainers;

    struct sim_call calls[SIM_TAGS];
    uint64_t next_tag;
    /* What the checkpoints hold, and which is the newest that is complete. Step 0 is there from the start. */
    uint64_t saved[SIM_STEPS + SIM_EXTRA + 1][SIM_ROLE_COUNT];
    bool is_saved[SIM_STEPS + SIM_EXTRA + 1][SIM_ROLE_COUNT];
    int32_t latest_step;
    bool is_complete; /* the last program has completed its work */

    int64_t num_applied, num_done, num_failed, num_cuts, num_copies, num_crashes, num_stops, num_claims;
};

extern struct sim *sim;

/* --- world.c --- */
/* Runs one seed; false if an invariant was violated: sim->world.failure names it. The state is kept until
 * sim_end. */
bool sim_run(uint64_t seed, sim_defect_t defect);
void sim_end(void);
void sim_at(struct sim_process *process, int64_t delay_ns, void (*run)(void *user, uint64_t arg), void *user,
            uint64_t arg);
/* sim_chance for events of packets and threads, scaled by the seed's roughness. */
bool sim_weather(double probability);
uint32_t sim_random(uint32_t count); /* below count */
/* Lives as long as the seed; zeroed. */
void *sim_alloc(size_t bytes);
struct sim_process *sim_process_create(int32_t rank, void *owner);
/* The state of a role after `step` undisturbed steps. */
uint64_t sim_state_after(sim_role_t role, int32_t step);

/* --- fiber.c --- */
struct sim_fiber *sim_fiber_start(struct sim_process *process, void *(*run)(void *user), void *user);
/* Suspends the running fiber until it is woken or the time is reached; true if it was woken. */
bool sim_fiber_sleep(int64_t until_ns);
/* Has no effect on a fiber that does not sleep. */
void sim_fiber_wake(struct sim_fiber *fiber);
/* The process whose code runs. */
struct sim_process *sim_here(void);
void sim_fibers_end(void); /* at the end of the seed: all fibers have ended */

struct grpc_server; /* core_server.c */

/* --- engine.c --- */
bool sim_role_has_rank(sim_role_t role, int32_t rank);

/* --- host.c --- */
void sim_host_start(int32_t rank);
void sim_host_crash(struct sim_host *host);
struct sim_process *sim_host_process(struct sim_host *host);
struct grpc_server *sim_host_server(struct sim_host *host);
/* Checks that no daemon keeps state of this driver, which has been closed. */
void sim_hosts_check_free_of(const char *driver_id);
void sim_hosts_free(void);

/* --- trainer.c --- */
/* Runs the training until it is complete, or until the process dies. The last one makes SIM_EXTRA steps more,
 * and sets sim->is_complete. `identity` NULL: none is kept. */
struct sim_trainer *sim_trainer_start(bool takeover, bool is_last, const char *identity, int64_t delay_ns);
struct sim_process *sim_trainer_process(struct sim_trainer *trainer);
bool sim_trainer_is_running(const struct sim_trainer *trainer);
/* As Ctrl-C. */
void sim_trainer_interrupt(struct sim_trainer *trainer);

#endif
