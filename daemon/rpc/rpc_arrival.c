/* The arrival of a call on thread L: authentication, limits for clients without authorisation. */
#include "daemon/rpc/call_internal.h"

#include <grpc/slice.h>
#include <grpc/support/alloc.h>

#include "base/rk_alloc.h"
#include "base/rk_log.h"
#include "base/rk_time.h"
#include "daemon/daemon_internal.h"
#include "proto/limits.h"

#define RETRY_MS 1000

struct rk_status *rk_call_fail_shutdown(void)
{
    return rk_status_retry_after(RK_FAIL(RK_UNAVAILABLE, "the daemon is shutting down"), RETRY_MS);
}

/* Value of a metadata entry that the client sent; NULL when it sent none. */
static const grpc_slice *find_metadata(const struct rk_call *call, const char *key)
{
    for (size_t i = 0; i < call->metadata.count; i++) {
        if (grpc_slice_str_cmp(call->metadata.metadata[i].key, key) == 0)
            return &call->metadata.metadata[i].value;
    }
    return NULL;
}

/* Takes the names' memory into *owned. */
static struct rk_credentials get_credentials(const struct rk_call *call, const char *core_peer, char **owned)
{
    const grpc_slice *header = find_metadata(call, "authorization");

    *owned = rk_auth_asks_names(call->server->config.auth)
                 ? rk_guard_peer_names(call->server->guard, core_peer)
                 : NULL;
    return (struct rk_credentials){.header = header ? (const char *)GRPC_SLICE_START_PTR(*header) : NULL,
                                   .header_bytes = header ? GRPC_SLICE_LENGTH(*header) : 0,
                                   .names = *owned};
}

static struct rk_status *authenticate(const struct rk_call *call)
{
    /* An unauthorised client must not learn which paths exist. */
    rk_rights_t unknown = call->server->config.is_health_only ? RK_RIGHTS_NONE : RK_RIGHTS_VIEWER;
    rk_rights_t needed = call->rpc ? call->rpc->rights : unknown;
    char *core_peer, *names, peer[64];
    struct rk_credentials given;
    rk_rights_t granted;
    struct rk_status *st;

    if (needed == RK_RIGHTS_NONE)
        return NULL;
    core_peer = grpc_call_get_peer(call->core);
    given = get_credentials(call, core_peer, &names);
    st = rk_auth_check(&granted, call->server->config.auth, &given, needed);
    if (st) {
        rk_guard_format_peer(call->server->guard, core_peer, peer, sizeof(peer));
        RK_WARN("refused peer=%s: %s", peer, rk_status_message(st));
    } else if (call->rpc) {
        rk_guard_trust(call->server->guard, core_peer, granted);
    }
    rk_free(names);
    gpr_free(core_peer);
    return st;
}

static bool is_silent_stranger(const struct rk_call *call)
{
    return call->rpc && call->rpc->rights == RK_RIGHTS_NONE && !call->has_first_message &&
           !rk_call_is_finished(call);
}

/* Limits the calls that need no authorisation and have not sent their request yet: the oldest is ended when
 * there are too many. A probe sends its request at once, so it is not affected. */
static void bound_strangers(struct rk_server *server)
{
    struct rk_call *oldest = NULL;
    int count = 0;

    for (struct rk_call *call = server->calls; call; call = call->next) {
        if (is_silent_stranger(call)) {
            oldest = call;
            count++;
        }
    }
    if (count > RK_LIMIT_SILENT_CALLS)
        rk_call_finish(
            oldest,
            RK_FAIL(RK_RESOURCE_EXHAUSTED,
                    "the call sent no request message, and %d other calls without a token wait for theirs",
                    RK_LIMIT_SILENT_CALLS));
}

void rk_call_on_arrival(struct rk_loop_event *event)
{
    struct rk_call *call = RK_CONTAINER_OF(event, struct rk_call_op, tag.event)->call;
    struct rk_server *server = call->server;
    struct rk_status *st;

    call->arrived_ns = rk_time_now_ns();
    call->next = server->calls;
    call->link = &server->calls;
    if (call->next)
        call->next->link = &call->next;
    server->calls = call;

    st = authenticate(call);
    if (!st && !call->rpc) {
        char *path = grpc_slice_to_c_string(call->details.method);

        st = RK_FAIL(RK_UNIMPLEMENTED, "unknown RPC '%.128s'", path);
        gpr_free(path);
    }
    if (!st && server->is_shutting_down)
        st = rk_call_fail_shutdown();
    if (st)
        rk_call_finish(call, st);
    else
        rk_call_read(call);
    if (is_silent_stranger(call))
        bound_strangers(server);
}
