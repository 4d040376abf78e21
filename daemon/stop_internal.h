/* Stopping: the numbered phases of the daemon's shutdown (stop.c). */
#ifndef RK_STOP_INTERNAL_H
#define RK_STOP_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

struct rk_daemon;

typedef enum rk_stop_phase {
    RK_STOP_NONE,
    RK_STOP_WAIT,   /* running calls may end by themselves */
    RK_STOP_CANCEL, /* they were cancelled */
    RK_STOP_ABORT,  /* the communicators were aborted */
    RK_STOP_CLOSE,  /* the servers end their calls */
    RK_STOP_DONE    /* every G has ended; the loop stops */
} rk_stop_phase_t;

struct rk_stop {
    rk_stop_phase_t phase;
    int64_t deadline_ns; /* of the phase */
    bool has_cancelled_calls;
    int num_servers; /* whose G has not ended yet */
};

/* Begins; a second time, skips the wait. */
void rk_stop_begin(struct rk_daemon *daemon, int64_t grace_ms, const char *reason);
/* Enters the next phase when its condition holds, or its time is over. */
void rk_stop_advance(struct rk_daemon *daemon);
/* A server's G has ended. */
void rk_stop_on_server_stopped(struct rk_daemon *daemon);

#endif
