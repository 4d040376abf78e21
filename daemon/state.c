/* States of the daemon and who moves between them. Every move is made by rk_daemon_update (facts.c), which
 * asks rk_daemon_state_of where the facts lead, except the first and the last.
 *
 *   STARTING           --device open, port bound-->            UNCONFIGURED
 *   UNCONFIGURED       --Configure-->                          CONFIGURED, or READY when models were kept
 *   CONFIGURED         --init_model-->                         READY
 *   CONFIGURED, READY  --Commit-->                             BUSY
 *   UNCONFIGURED       --Commit of a call accepted before-->   BUSY, until the call fails
 *   BUSY               --method ended-->                       CONFIGURED, READY
 *   BUSY               --method ended, peers lost-->           UNCONFIGURED
 *   CONFIGURED, READY  --communicators aborted, grace over-->  UNCONFIGURED
 *   any of these       --Drain, SIGTERM-->                     DRAINING --undo--> back
 *   DRAINING           --server closed-->                      STOPPED
 *   any but STOPPED    --device lost, engine stuck-->          FAILED --server closed--> STOPPED
 *
 * UNCONFIGURED  no communicators. Models may be kept from before. Needs Configure.
 * CONFIGURED    communicators are up, no role has a model. Needs init_model.
 * READY         communicators are up, some role has a model, nothing runs.
 * BUSY          a committed method is queued or runs. Further calls are accepted up to the limits.
 * DRAINING      no new calls are accepted; accepted calls continue.
 * FAILED        the device is lost, or the engine does not respond. Status and health still answer; only a
 *               restart helps. */
#include "daemon/state_internal.h"

#include "base/rk_assert.h"

#define BIT(name) (1u << RK_DAEMON_##name)

static const struct {
    const char *name;
    unsigned next; /* bits of the states that may follow */
} states[RK_DAEMON_STATE_COUNT] = {
    [RK_DAEMON_STARTING] = {"STARTING", BIT(UNCONFIGURED) | BIT(FAILED) | BIT(STOPPED)},
    [RK_DAEMON_UNCONFIGURED] = {"UNCONFIGURED",
                                BIT(CONFIGURED) | BIT(READY) | BIT(BUSY) | BIT(DRAINING) | BIT(FAILED)},
    [RK_DAEMON_CONFIGURED] = {"CONFIGURED",
                              BIT(UNCONFIGURED) | BIT(READY) | BIT(BUSY) | BIT(DRAINING) | BIT(FAILED)},
    [RK_DAEMON_READY] = {"READY",
                         BIT(UNCONFIGURED) | BIT(CONFIGURED) | BIT(BUSY) | BIT(DRAINING) | BIT(FAILED)},
    [RK_DAEMON_BUSY] = {"BUSY",
                        BIT(UNCONFIGURED) | BIT(CONFIGURED) | BIT(READY) | BIT(DRAINING) | BIT(FAILED)},
    [RK_DAEMON_DRAINING] = {"DRAINING", BIT(UNCONFIGURED) | BIT(CONFIGURED) | BIT(READY) | BIT(BUSY) |
                                            BIT(FAILED) | BIT(STOPPED)},
    [RK_DAEMON_FAILED] = {"FAILED", BIT(STOPPED)},
    [RK_DAEMON_STOPPED] = {"STOPPED", 0},
};

const char *rk_daemon_state_name(rk_daemon_state_t state)
{
    RK_ASSERT(state < RK_DAEMON_STATE_COUNT);
    return states[state].name;
}

rk_daemon_state_t rk_daemon_state_of(const struct rk_state_facts *facts)
{
    if (facts->has_failed)
        return RK_DAEMON_FAILED;
    if (facts->is_draining)
        return RK_DAEMON_DRAINING;
    if (facts->is_running)
        return RK_DAEMON_BUSY;
    if (!facts->is_configured)
        return RK_DAEMON_UNCONFIGURED;
    return facts->has_model ? RK_DAEMON_READY : RK_DAEMON_CONFIGURED;
}

bool rk_daemon_state_can_move(rk_daemon_state_t from, rk_daemon_state_t to)
{
    RK_ASSERT(from < RK_DAEMON_STATE_COUNT);
    RK_ASSERT(to < RK_DAEMON_STATE_COUNT);
    return states[from].next & 1u << to;
}

void rk_daemon_state_move(rk_daemon_state_t *state, rk_daemon_state_t next)
{
    RK_ASSERT(rk_daemon_state_can_move(*state, next));
    *state = next;
}
