/* Thread L: the libuv loop. Other threads post events; one timer ticks; signals arrive as calls.
 *
 * All state of the daemon belongs to L unless stated otherwise, so it needs no locks. L is the thread that
 * has the turn: the one that created the loop, or another while rk_loop_run_here runs the queue, so that a
 * short answer needs no second thread. Only the queue of events may be used without the turn. */
#ifndef RK_LOOP_INTERNAL_H
#define RK_LOOP_INTERNAL_H

#include <stddef.h>

#include "base/rk_status.h"

/* The struct of `type` that `ptr` is the member of. */
#define RK_CONTAINER_OF(ptr, type, member) ((type *)(void *)((char *)(ptr)-offsetof(type, member)))

#define RK_TICK_MS 250 /* resolution of every deadline that L watches */

/* Embedded in its subject. It is in the queue at most once; `run` is called with the turn. */
struct rk_loop_event {
    struct rk_loop_event *next;
    void (*run)(struct rk_loop_event *event);
};

struct rk_loop;

struct rk_loop_handlers {
    void *user;
    void (*on_tick)(void *user);
    void (*on_signal)(void *user, int signum); /* SIGTERM, SIGINT, SIGHUP, SIGUSR1 */
};

struct rk_status *rk_loop_create(struct rk_loop **out, const struct rk_loop_handlers *handlers) RK_NODISCARD;
/* Closes every handle and asserts that libuv has no open handles. From then on the process ignores the
 * signals above: it ends, and another SIGTERM must not change its exit code. NULL is a no-op. */
void rk_loop_destroy(struct rk_loop *loop);
/* Any thread. Events run in the order in which they were posted. */
void rk_loop_post(struct rk_loop *loop, struct rk_loop_event *event);
/* rk_loop_post, but this thread takes the turn and runs the queued events if no thread has the turn. Must not
 * be called by the thread that has the turn, nor with a lock that events take. */
void rk_loop_run_here(struct rk_loop *loop, struct rk_loop_event *event);
/* Until rk_loop_stop. The calling thread made the loop, and has the turn before and after it. */
void rk_loop_run(struct rk_loop *loop);
void rk_loop_stop(struct rk_loop *loop);
/* Runs queued events: for the time after the loop, when the other threads have been joined. */
void rk_loop_drain(struct rk_loop *loop);

#endif
