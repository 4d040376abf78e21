/* Drain and Shutdown. */
#include "base/rk_log.h"
#include "base/rk_time.h"
#include "daemon/daemon_internal.h"

static void pack_state(const struct rk_daemon *daemon, struct rk_str *reply)
{
    struct rk_drain_response response = {.state = rk_daemon_state_name(daemon->state)};

    rk_pack_drain_response(reply, &response);
}

static void answer_drain(struct rk_daemon *daemon)
{
    struct rk_str reply = {0};

    pack_state(daemon, &reply);
    rk_call_answer(daemon->drain_call, NULL, &reply);
    daemon->drain_call = NULL;
    rk_str_fini(&reply);
}

void rk_drain_tick(struct rk_daemon *daemon)
{
    if (daemon->drain_call && (rk_daemon_is_idle(daemon) || rk_time_now_ns() >= daemon->drain_deadline_ns ||
                               rk_call_is_finished(daemon->drain_call)))
        answer_drain(daemon);
}

static struct rk_status *undo_drain(struct rk_daemon *daemon)
{
    if (daemon->stop.phase != RK_STOP_NONE)
        return RK_FAIL_REASON(RK_FAILED_PRECONDITION, "DRAINING",
                              "the daemon is stopping; Drain cannot be undone now");
    daemon->is_draining = false;
    rk_daemon_update(daemon);
    if (daemon->drain_call)
        answer_drain(daemon);
    return NULL;
}

/* With a timeout it waits until accepted calls have ended; the answered state is DRAINING in both
 * cases. */
static struct rk_status *drain(struct rk_call *call, struct rk_bytes request, struct rk_str *reply)
{
    struct rk_daemon *daemon = rk_call_daemon(call);
    struct rk_drain_request message;

    RK_TRY(rk_unpack_drain_request(&message, rk_call_arena(call), request.data, request.bytes));
    if (message.undo) {
        RK_TRY(undo_drain(daemon));
        pack_state(daemon, reply);
        return NULL;
    }
    if (daemon->drain_call)
        return RK_FAIL(RK_FAILED_PRECONDITION,
                       "another Drain call is waiting on this daemon; expected one at a time");
    RK_INFO("drain reason=\"%s\"", message.reason);
    daemon->is_draining = true;
    rk_daemon_update(daemon);
    if (message.timeout_ms == 0 || rk_daemon_is_idle(daemon)) {
        pack_state(daemon, reply);
        return NULL;
    }
    daemon->drain_call = call;
    daemon->drain_deadline_ns = rk_time_now_ns() + (int64_t)message.timeout_ms * 1000000;
    rk_call_defer(call);
    return NULL;
}

static struct rk_status *shut_down(struct rk_call *call, struct rk_bytes request, struct rk_str *reply)
{
    struct rk_daemon *daemon = rk_call_daemon(call);
    struct rk_shutdown_request message;
    int64_t grace_ms;

    (void)reply; /* the response has no fields */
    RK_TRY(rk_unpack_shutdown_request(&message, rk_call_arena(call), request.data, request.bytes));
    grace_ms = message.grace_ms ? (int64_t)message.grace_ms : daemon->settings.drain_grace_ms;
    if (message.force)
        grace_ms = 0;
    if (daemon->stop.phase == RK_STOP_NONE || message.force)
        rk_stop_begin(daemon, grace_ms, message.reason);
    return NULL;
}

const struct rk_rpc_handler rk_rpc_drain = {.unary = drain};
const struct rk_rpc_handler rk_rpc_shutdown = {.unary = shut_down};
