/* The states of a daemon: one table of legal transitions, one function that makes them, one that derives the
 * state. Pure. */
#ifndef RK_STATE_INTERNAL_H
#define RK_STATE_INTERNAL_H

#include <stdbool.h>

typedef enum rk_daemon_state {
    RK_DAEMON_STARTING,
    RK_DAEMON_UNCONFIGURED,
    RK_DAEMON_CONFIGURED,
    RK_DAEMON_READY,
    RK_DAEMON_BUSY,
    RK_DAEMON_DRAINING,
    RK_DAEMON_FAILED,
    RK_DAEMON_STOPPED,
    RK_DAEMON_STATE_COUNT
} rk_daemon_state_t;

/* The facts that determine the state of a started daemon. */
struct rk_state_facts {
    bool has_failed; /* only a restart helps */
    bool is_draining;
    bool is_running;    /* a committed method has not ended */
    bool is_configured; /* communicators are up */
    bool has_model;     /* some role has one */
};

const char *rk_daemon_state_name(rk_daemon_state_t state); /* "READY" */
rk_daemon_state_t rk_daemon_state_of(const struct rk_state_facts *facts);
bool rk_daemon_state_can_move(rk_daemon_state_t from, rk_daemon_state_t to);
/* Asserts that the move is legal. */
void rk_daemon_state_move(rk_daemon_state_t *state, rk_daemon_state_t next);

#endif
