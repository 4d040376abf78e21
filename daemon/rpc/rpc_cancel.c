/* Cancel: asks an operation to end. With abort_comm it also aborts the communicators, whatever the state of
 * the operation: when a call lost a rank, the driver asks every other rank to do so. */
#include "base/rk_log.h"
#include "daemon/daemon_internal.h"
#include "daemon/rpc/execute.h"
#include "daemon/operation_internal.h"

#include <string.h>

static const char *cancel_request(struct rk_daemon *daemon, const struct rk_cancel_request *message)
{
    struct rk_request *known = rk_requests_find(&daemon->requests, message->request_id.data);
    struct rk_execute *pending = daemon->pending;

    if (pending &&
        memcmp(pending->operation->request.id, message->request_id.data, RK_REQUEST_ID_BYTES) == 0) {
        rk_execute_drop(pending, RK_FAIL(RK_CANCELLED, "cancelled: %s", message->reason));
        return "queued_removed";
    }
    if (known)
        return rk_operation_cancel((struct rk_operation *)known, message->abort_comm, message->reason);
    return "not_found";
}

static struct rk_status *cancel(struct rk_call *call, struct rk_bytes request, struct rk_str *reply)
{
    struct rk_daemon *daemon = rk_call_daemon(call);
    struct rk_cancel_response response = {.outcome = "aborted"};
    struct rk_cancel_request message;

    RK_TRY(rk_unpack_cancel_request(&message, rk_call_arena(call), request.data, request.bytes));
    RK_TRY(rk_daemon_check_fence(daemon, &message.fence));
    if (message.request_id.bytes != RK_REQUEST_ID_BYTES &&
        (message.request_id.bytes > 0 || !message.abort_comm))
        return rk_status_at_field(
            RK_FAIL_REASON(RK_INVALID_ARGUMENT, "BAD_FIELD",
                           "request_id has %zu bytes, expected %d (or none, with abort_comm)",
                           message.request_id.bytes, RK_REQUEST_ID_BYTES),
            "request_id");
    if (message.request_id.bytes > 0)
        response.outcome = cancel_request(daemon, &message);
    if (message.abort_comm)
        rk_worker_abort_comm(daemon->worker, message.reason);
    rk_daemon_update(daemon);
    rk_pack_cancel_response(reply, &response);
    return NULL;
}

const struct rk_rpc_handler rk_rpc_cancel = {.unary = cancel};
