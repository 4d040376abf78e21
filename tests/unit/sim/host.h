/* A daemon's process: the environment of its code, and the engine below it. */
#ifndef RK_TEST_UNIT_SIM_HOST_H
#define RK_TEST_UNIT_SIM_HOST_H

#include "daemon/daemon_internal.h"
#include "tests/unit/sim/sim.h"

#define SIM_QUEUE 64

struct sim_job {
    struct rk_job *job;
    uint64_t number, epoch, tag; /* tag 0: no method */
    int64_t begun_ns;            /* time at which it reached the head of the queue; 0: not yet */
    bool has_met;                /* all ranks have started it: it runs */
    bool is_flagged;             /* told to stop */
};

struct sim_host {
    struct sim_host *next;
    struct rk_daemon daemon;
    struct sim_process *process;
    int32_t rank;
    struct grpc_server *server;
    bool has_stopped; /* the server has ended */
    int num_posted;   /* events that wait for the loop */
    /* the engine */
    struct sim_job queue[SIM_QUEUE];
    int num_queued;
    uint64_t next_number;
    uint64_t world; /* id of the communicators; 0: none */
    uint64_t mesh_generation;
    uint64_t submitted_epoch, submitted_seq; /* of the newest operation */
    uint64_t states[SIM_ROLE_COUNT];
    bool has_model[SIM_ROLE_COUNT];
};

/* --- engine.c --- */
/* The process has died: the engine's jobs are returned, and its peers notice. */
void sim_engine_crash(struct sim_host *host);

#endif
